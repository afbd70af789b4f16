# SPDX-License-Identifier: MIT
"""A merged forward: steps that run one after another on numbered values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .forms import Form

__all__ = ["Method", "Program", "Ref", "Slot", "Step", "plain_arguments", "run_batched", "with_frees"]


@dataclass(frozen=True)
class Ref:
    """The value of an earlier step; where listed, the one of the branch that is at work."""

    index: int
    listed: bool = False


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in the arguments of a function under torch.vmap."""

    index: int


@dataclass(frozen=True)
class Method:
    """Call the method of this name of the first argument."""

    name: str

    def __call__(self, subject: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(subject, self.name)(*args, **kwargs)


@dataclass(frozen=True)
class Step:
    """One call.

    function: what is called, None for the module at `layer`, a path of names, or for its attribute of this name.
    With loop, it is called once a branch; with separate, every branch has its own module below `layer`.
    frees: values that nothing after this step reads. node: name of the step in the graph of a branch.
    """

    function: Callable[..., Any] | None
    layer: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    node: str
    attribute: str = ""
    loop: bool = False
    separate: bool = False
    frees: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """steps[i] makes value len(inputs) + i; inputs: the form in which each input is wanted; result: Refs."""

    branches: int
    inputs: tuple[Form, ...]
    steps: tuple[Step, ...]
    result: Any

    def run(self, root: nn.Module, inputs: Sequence[Any], watch: Callable[..., None] | None = None) -> Any:
        """inputs: in the forms of `inputs`. watch: is told of every step and its arguments before it runs."""
        values = list(inputs)
        for step in self.steps:
            if watch is not None:
                watch(step, _resolve(step.args, values))
            values.append(self._call(root, step, values))
            for i in step.frees:
                values[i] = None
        return _resolve(self.result, values)

    def _call(self, root: nn.Module, step: Step, values: list[Any]) -> Any:
        function = step.function
        if function is None:
            function = root
            for name in step.layer:
                function = function._modules[name]
            if step.attribute:
                return getattr(function, step.attribute)
        if not step.loop:
            return function(*_resolve(step.args, values), **_resolve(step.kwargs, values))
        results = []
        for i in range(self.branches):
            own = function[i] if step.separate else function
            results.append(own(*_resolve(step.args, values, i), **_resolve(step.kwargs, values, i)))
        return results


def _resolve(value: Any, values: Sequence[Any], branch: int | None = None) -> Any:
    """The argument with every Ref replaced by its value."""
    kind = type(value)
    if kind is Ref:
        found = values[value.index]
        return found[branch] if value.listed and branch is not None else found
    if kind is tuple:
        return tuple([_resolve(v, values, branch) for v in value])
    if kind is list:
        return [_resolve(v, values, branch) for v in value]
    if kind is dict:
        return {k: _resolve(v, values, branch) for k, v in value.items()}
    if kind is slice:
        return slice(*[_resolve(v, values, branch) for v in (value.start, value.stop, value.step)])
    return value


def run_batched(
    function: Callable[..., Any],
    tensors: tuple[Tensor, ...],
    dims: tuple[int | None, ...],
    out_dim: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The function under torch.vmap; args and kwargs have a Slot for each tensor; the branches lie along dims."""

    def call(*own: Tensor) -> Any:
        return function(*_fill(args, own), **_fill(kwargs, own))

    return torch.vmap(call, in_dims=dims, out_dims=out_dim, randomness="different")(*tensors)


def _fill(value: Any, tensors: Sequence[Tensor]) -> Any:
    """The argument with every Slot replaced by its tensor."""
    kind = type(value)
    if kind is Slot:
        return tensors[value.index]
    if kind in (tuple, list):
        return kind([_fill(v, tensors) for v in value])
    if kind is dict:
        return {k: _fill(v, tensors) for k, v in value.items()}
    return value


def plain_arguments(value: Any) -> Any:
    """Arguments of a graph as ordinary lists, tuples and dicts."""
    if isinstance(value, (Ref, Slot)):
        return value
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, tuple):
        return tuple(plain_arguments(v) for v in value)
    if isinstance(value, list):
        return [plain_arguments(v) for v in value]
    if isinstance(value, dict):
        return {k: plain_arguments(v) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(plain_arguments(v) for v in (value.start, value.stop, value.step)))
    return value


def _refs(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _refs(v)
    elif isinstance(value, dict):
        yield from _refs(tuple(value.values()))
    elif isinstance(value, slice):
        yield from _refs((value.start, value.stop, value.step))


def with_frees(steps: Sequence[Step], inputs: int, result: Any) -> tuple[Step, ...]:
    """The steps, each with the values that it is the last to read."""
    kept = {r.index for r in _refs(result)}
    freed: list[Step] = []
    for i in range(len(steps) - 1, -1, -1):
        read = {r.index for r in _refs((steps[i].args, steps[i].kwargs))}
        unread = set() if inputs + i in kept else {inputs + i}
        freed.append(replace(steps[i], frees=tuple(sorted((read | unread) - kept))))
        kept |= read | unread
    return tuple(reversed(freed))
