# SPDX-License-Identifier: MIT
"""A merged forward: steps that run one after another on numbered values."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .forms import Form
from .layers.layer import Layer
from .layers.replaced import check_function, stand_in

__all__ = [
    "KeepsDtype",
    "Method",
    "Named",
    "Program",
    "Ref",
    "Slot",
    "Step",
    "call_branch",
    "picklable",
    "plain_arguments",
    "run_batched",
    "schedule",
]


@dataclass(frozen=True)
class Ref:
    """The value of an earlier step; if listed, the one of the branch that is at work."""

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
class Named:
    """A function of torch that is pickled by the name of this module's attribute, as its own name leads nowhere."""

    function: Callable[..., Any]
    module: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_named, (self.module, self.name)


def _find_named(module: str, name: str) -> Named:
    return Named(getattr(importlib.import_module(module), name), module, name)


def picklable(function: Any) -> Any:
    """The function, or what calls it, so that a program can be pickled: F.max_pool2d is a function within another."""
    if "<locals>" in getattr(function, "__qualname__", ""):
        for name, value in vars(torch.nn.functional).items():
            if value is function:
                return Named(function, torch.nn.functional.__name__, name)
    return function


@dataclass(frozen=True)
class KeepsDtype:
    """Call a function whose result has the dtype of its first argument, as a call that writes to it has."""

    function: Callable[..., Tensor]

    def __call__(self, subject: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.function(subject, *args, **kwargs).to(subject.dtype)


@dataclass(frozen=True)
class Step:
    """One call.

    function: what is called, None for the module at `layer`, a path of names, or for its attribute of this name.
    merged: that module is a Layer. kind: the class of another module, as it was when the program was built.
    With loop, it is called once per branch; with separate, every branch has its own module below `layer`.
    value: the number of what it makes. frees: values that nothing after this step reads; drops: those of them that are
    made in the same run of loops, which every branch may forget by itself. node: name of the step in the graph of a
    branch.
    """

    function: Callable[..., Any] | None
    layer: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    node: str
    attribute: str = ""
    loop: bool = False
    separate: bool = False
    merged: bool = False
    kind: type[nn.Module] | None = None
    value: int = 0
    frees: tuple[int, ...] = ()
    drops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """Runs of steps: one step for all branches, or several that one branch does before the next one begins.

    inputs: the form in which each input is wanted; their values come before those of the steps. result: Refs. stacked:
    False if the result is a list of those of the branches. sections: for every tensor of the result, how many
    features each branch has of it, () if these lie along a dimension of their own.
    """

    branches: int
    inputs: tuple[Form, ...]
    runs: tuple[tuple[Step, ...], ...]
    result: Any
    stacked: bool
    sections: tuple[tuple[int, ...], ...] = ()

    @property
    def steps(self) -> list[Step]:
        return [step for run in self.runs for step in run]

    def run(self, root: nn.Module, inputs: Sequence[Any], watch: Callable[..., None] | None = None) -> Any:
        """inputs: in the forms of `inputs`. watch: is called with every step for all branches before it runs."""
        values = [*inputs, *[None] * sum(map(len, self.runs))]
        for run in self.runs:
            if run[0].loop:
                self._loop(root, run, values)
            else:
                arguments = _resolve(run[0].args, values), _resolve(run[0].kwargs, values)
                if watch is not None:
                    watch(run[0], arguments[0])
                values[run[0].value] = _call(self._function(root, run[0]), run[0], arguments)
            for step in run:
                for i in step.frees:
                    values[i] = None
        if self.stacked:
            return _resolve(self.result, values)
        return [_resolve(self.result, values, branch) for branch in range(self.branches)]

    def _function(self, root: nn.Module, step: Step) -> Any:
        if step.function is not None:
            return step.function
        module: Any = root
        for name in step.layer:
            module = module._modules[name]
        if step.merged and not isinstance(module, Layer):
            return stand_in(module, ".".join(step.layer), self.branches)
        if step.kind is not None and type(module) is not step.kind:
            check_function(module, step.kind, ".".join(step.layer))
        return module

    def _loop(self, root: nn.Module, run: Sequence[Step], values: list[Any]) -> None:
        functions = [self._function(root, step) for step in run]
        for step in run:
            values[step.value] = [None] * self.branches
        for branch in range(self.branches):
            for step, function in zip(run, functions, strict=True):
                own = function[branch] if step.separate else function
                args, kwargs = _resolve(step.args, values, branch), _resolve(step.kwargs, values, branch)
                values[step.value][branch] = own(*args, **kwargs)
                del args, kwargs
                for i in step.drops:
                    values[i][branch] = None


def _call(function: Any, step: Step, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    return getattr(function, step.attribute) if step.attribute else function(*arguments[0], **arguments[1])


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


def call_branch(layer: Callable[[Any], Any], x: Any) -> Any:
    """One of the functions of `Layer.branch_calls`."""
    return layer(x)


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
    if isinstance(value, (Ref, Slot, torch.Size)):
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


def schedule(steps: Sequence[Step], inputs: Sequence[Form], result: Any) -> tuple[tuple[Step, ...], ...]:
    """The runs of a program: steps in a row that are done once per branch follow each other branch by branch.

    So a branch works on what it has just made, which is still in the caches. What only parameters and shared inputs go
    into is done before such a run, not to part it.
    """
    early = {i for i, form in enumerate(inputs) if form is Form.SHARED}
    runs: list[list[Step]] = []
    loops: list[Step] = []
    for value, step in enumerate(steps, len(inputs)):
        step = replace(step, value=value)
        if step.loop:
            loops.append(step)
        elif _read(step) <= early:
            early.add(value)
            runs.append([step])
        else:
            runs += [loops] * bool(loops) + [[step]]
            loops = []
    return _with_frees(runs + [loops] * bool(loops), result)


def _read(step: Step) -> set[int]:
    return {r.index for r in _refs((step.args, step.kwargs))}


def _with_frees(runs: Sequence[Sequence[Step]], result: Any) -> tuple[tuple[Step, ...], ...]:
    """The runs, each step with the values that it is the last to read."""
    kept = {r.index for r in _refs(result)}
    freed: list[tuple[Step, ...]] = []
    for run in reversed(runs):
        made = {step.value for step in run} if run[0].loop else set()
        steps: list[Step] = []
        for step in reversed(run):
            last = (_read(step) | {step.value}) - kept
            kept |= last
            steps.append(replace(step, frees=tuple(sorted(last)), drops=tuple(sorted(last & made))))
        freed.append(tuple(reversed(steps)))
    return tuple(reversed(freed))
