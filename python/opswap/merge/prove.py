# SPDX-License-Identifier: MIT
"""Run a merged module against the loop over its branches before it is believed.

Both are copies in float64 with the same random tensors (a zero in a trained layer would hide the layers after it).
Compared are outputs, the gradients of inputs and parameters, and the buffers afterwards, in training and in evaluation,
for contiguous inputs, and for channels_last ones if the loop supports these.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opswap._draws import generators_kept
from opswap._torch import tree_leaves

from .carry import fill_merged, tensor_links
from .forms import Form
from .layers import RANDOM
from .program import Program

__all__ = ["prove"]

_NAME = "branches"
# Of the largest value; other orders of summation in float64 stay below 1e-10.
_TOLERANCE = 1e-6
# (training, channels_last, batch)
_RUNS = ((True, False, 3), (True, True, 2), (False, False, 2))


def prove(
    merged: nn.Module,
    program: Program,
    modules: Sequence[nn.Module],
    examples: Sequence[Tensor],
    shared: Sequence[bool],
    *,
    evaluation: bool = True,
) -> None:
    """Show that the program computes what the loop does.

    Args:
        examples: one input of a branch each; their sizes after the batch and their dtypes are used.
        evaluation: not only in training; of interest once for every program of one module.
    Raises: ValueError that names what differs, or the error that the merged module raised.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    with generators_kept(), torch.enable_grad():
        for training, channels_last, batch in _RUNS if evaluation else _RUNS[:2]:
            loop = [_twin(m, training) for m in modules]
            whole = _twin(merged, training)
            _randomise(loop, generator)
            fill_merged(whole, loop)
            inputs = [
                [
                    _example(x, batch, channels_last, generator)
                    for _ in range(1 if is_shared else len(modules))
                ]
                for x, is_shared in zip(examples, shared, strict=True)
            ]
            try:
                expected = _run_loop(loop, inputs)
            except RuntimeError:
                if not channels_last:
                    raise
                continue  # a view of what is in channels_last: the loop is for contiguous inputs alone
            what = f"in {'training' if training else 'evaluation'}"
            _compare(whole, program, loop, inputs, expected, what)


def _twin(module: nn.Module, training: bool) -> Any:
    twin = copy.deepcopy(module).to("cpu", torch.float64)
    twin.train(training)
    for m in twin.modules():
        if type(m) in RANDOM:
            m.training = False
    twin.zero_grad()
    return twin


def _randomise(modules: Sequence[nn.Module], generator: torch.Generator) -> None:
    with torch.no_grad():
        for module in modules:
            for p in module.parameters():
                fan_in = math.prod(p.shape[1:]) if p.dim() > 1 else 1
                p.copy_(
                    torch.randn(p.shape, generator=generator, dtype=torch.float64, device="cpu")
                    / max(fan_in, 1) ** 0.5
                )
            for b in module.buffers():
                if b.is_floating_point():
                    b.copy_(torch.rand(b.shape, generator=generator, dtype=torch.float64, device="cpu") + 0.5)


def _example(x: Tensor, batch: int, channels_last: bool, generator: torch.Generator) -> Tensor:
    if not x.is_floating_point():
        return torch.zeros(batch, *x.shape[1:], dtype=x.dtype, device="cpu")
    value = torch.randn(batch, *x.shape[1:], generator=generator, dtype=torch.float64, device="cpu")
    if channels_last and value.dim() == 4:
        value = value.contiguous(memory_format=torch.channels_last)
    return value.requires_grad_()


def _compare(
    whole: nn.Module,
    program: Program,
    loop: Sequence[nn.Module],
    inputs: Sequence[Sequence[Tensor]],
    of_loop: tuple[list[Any], list[Any]],
    what: str,
) -> None:
    outputs, loop_grads = of_loop
    results, grads = _run_merged(whole, program, inputs)
    expected = [_together(parts) for parts in zip(*outputs, strict=True)]
    for actual, wanted in zip(results, expected, strict=True):
        _check(actual, wanted, f"the outputs {what}")
    for actual, wanted in zip(grads, loop_grads, strict=True):
        _check(actual, wanted, f"the gradients of the inputs {what}")
    for name, actual, wanted in _tensors_after(whole, loop):
        _check(actual, wanted, f"{name} {what}")


def _run_loop(loop: Sequence[nn.Module], inputs: Sequence[Sequence[Tensor]]) -> tuple[list[Any], list[Any]]:
    # Every branch reads a copy, for its first layer may work in place.
    calls = [[own[i % len(own)].clone() for own in inputs] for i in range(len(loop))]
    outputs = [tree_leaves(m(*xs)) for m, xs in zip(loop, calls, strict=True)]
    return outputs, _gradients([_together(parts) for parts in zip(*outputs, strict=True)], inputs)


def _run_merged(
    whole: nn.Module, program: Program, inputs: Sequence[Sequence[Tensor]]
) -> tuple[list[Tensor], list[Tensor | None]]:
    values: list[Any] = []
    for own, form in zip(inputs, program.inputs, strict=True):
        copies = [x.clone() for x in own]
        values.append(
            copies[0] if form is Form.SHARED else copies if form is Form.LISTED else torch.stack(copies, 1)
        )
    output = program.run(whole, values)
    parts = [tree_leaves(own) for own in ([output] if program.stacked else output)]
    results = parts[0] if program.stacked else [_together(own) for own in zip(*parts, strict=True)]
    return results, _gradients(results, inputs)


def _gradients(outputs: Sequence[Any], inputs: Sequence[Sequence[Tensor]]) -> list[Tensor | None]:
    """Run the backward of a weighted sum; the gradients of the inputs, which are cleared."""
    total: Any = sum(
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)).sum()
        for y in outputs
        if isinstance(y, Tensor)
    )
    if isinstance(total, Tensor) and total.requires_grad:
        total.backward()
    leaves = [x for own in inputs for x in own]
    found = [x.grad for x in leaves]
    for x in leaves:
        x.grad = None
    return found


def _together(parts: Sequence[Any]) -> Any:
    """Outputs of all branches as the merged module gives them, a single one for outputs that are not tensors."""
    if not all(isinstance(p, Tensor) for p in parts):
        if any(p != parts[0] for p in parts):
            raise ValueError(f"{_NAME}: the branches return {list(parts)}, which cannot be merged")
        return parts[0]
    return torch.stack(parts, 1) if len({p.shape for p in parts}) == 1 else torch.cat(parts, -1)


def _tensors_after(
    whole: nn.Module, loop: Sequence[nn.Module]
) -> Iterator[tuple[str, Tensor | None, Tensor | None]]:
    for link in tensor_links(whole, loop):
        if isinstance(link.whole, nn.Parameter):
            parts = [p.grad for p in link.parts]
            missing = all(p is None for p in parts)
            parts = [torch.zeros_like(q) if p is None else p for p, q in zip(parts, link.parts, strict=True)]
            yield f"the gradient of {link.name}", link.whole.grad, None if missing else link.join(parts)
        else:
            yield link.name, link.whole, link.join(link.parts)


def _check(actual: Any, wanted: Any, what: str) -> None:
    if not isinstance(actual, Tensor) and not isinstance(wanted, Tensor):
        if actual != wanted:
            raise ValueError(f"{_NAME}: {what} are {actual} merged and {wanted} in the loop")
        return
    if actual is None or wanted is None:
        present = actual if wanted is None else wanted
        if present is not None and present.abs().max() == 0:
            return
        raise ValueError(f"{_NAME}: {what} are missing on one side of merged module and loop")
    if actual.shape != wanted.shape:
        sizes = tuple(actual.shape), tuple(wanted.shape)
        raise ValueError(f"{_NAME}: {what} have sizes {sizes[0]} merged and {sizes[1]} in the loop")
    if not wanted.numel():
        return
    difference = (actual.double() - wanted.double()).abs().max().item()
    scale = max(wanted.double().abs().max().item(), 1e-30)
    if not difference <= _TOLERANCE * max(scale, 1e-6):
        raise ValueError(
            f"{_NAME}: {what} differ by {difference:.3g} from the loop, whose largest is {scale:.3g}"
        )
