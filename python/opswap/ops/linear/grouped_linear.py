# SPDX-License-Identifier: MIT
"""One linear map a group, all groups in one call.

The weights of all groups lie one after another, in the order of torch.nn.Linear: (groups, out, in) where every group
has as many outputs, else (total outputs, in) with the outputs of every group as `sections`. Inside this package the
input is always (N, groups, in).

Output and gradients are linear in each argument, so that the backward of the backward is made of the same two
operators again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from opswap import _core
from opswap._torch import functorch_active

from .._function import (
    DeclinedError,
    base_apply,
    concrete_size,
    make_apply,
    needs_graph,
    plain_cpu,
    tracing,
    transforms_active,
)
from .._stats import count_kernel, count_reference, reference_forced
from ._operators import backward_operator, batch, batch_backward, operator
from ._run import FLOATS, HALVES, NAME, Sections, kernel, kernel_backward, library_wins, reference

__all__ = ["grouped_linear"]

# Looked up once: what lies on the way to a name costs microseconds where it has left the caches.
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_transforms = functorch_active
_is_tracing = torch.jit.is_tracing
_NAME_BACKWARD = f"{NAME}_backward"


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [t for t in tensors if t is not None]


def _forward(sections: Sections, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if plain_cpu(_given(input, weight, bias)):
        return kernel(sections, input, weight, bias)
    return operator(input, weight, bias, sections)


def _forward_of_backward(
    sections: Sections, mask: tuple[bool, ...], grad_output: Tensor, input: Tensor, weight: Tensor
) -> tuple[Tensor, ...]:
    """The gradients that mask asks for, and no others."""
    tensors = (grad_output, input, weight)
    if plain_cpu(tensors):
        gradients = kernel_backward(sections, mask, *tensors)
    else:
        gradients = backward_operator(*tensors, sections, mask)
    return tuple(t for t, wanted in zip(gradients, mask, strict=True) if wanted)


def _setup(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    ctx.sections, input, weight, _ = args
    ctx.save_for_backward(input, weight)
    ctx.save_for_forward(input, weight)


def _backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    mask = tuple(ctx.needs_input_grad[1:])
    # A compiled backward is never differentiated again, and Dynamo cannot trace a Function inside a backward.
    run = _forward_of_backward if torch.compiler.is_compiling() else _differentiable_backward
    gradients = iter(run(ctx.sections, mask, grad_output, *ctx.saved_tensors))
    return (None, *(next(gradients) if wanted else None for wanted in mask))


def _add(*terms: Tensor | None) -> Tensor | None:
    given = _given(*terms)
    return sum(given[1:], given[0]) if given else None


def _jvp(ctx: Any, _: Any, t_input: Tensor | None, t_weight: Tensor | None, t_bias: Tensor | None) -> Any:
    input, weight = ctx.saved_tensors
    of_input = None if t_input is None else _differentiable(ctx.sections, t_input, weight, None)
    of_weight = None if t_weight is None else _differentiable(ctx.sections, input, t_weight, None)
    of_bias = None if t_bias is None else t_bias.expand(input.shape[0], *t_bias.shape)
    return _add(of_input, of_weight, of_bias)


def _setup_of_backward(ctx: Any, args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    ctx.sections, ctx.mask, *tensors = args
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)


def _by_mask(mask: Sequence[bool], tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    given = iter(tensors)
    return [next(given) if wanted else None for wanted in mask]


def _backward_of_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    grad_output, input, weight = ctx.saved_tensors
    of_input, of_weight, of_bias = _by_mask(ctx.mask, gradients)
    needed = ctx.needs_input_grad[2:]
    first = second = third = None
    if needed[0]:
        by_input = None if of_input is None else _differentiable(ctx.sections, of_input, weight, None)
        if of_weight is not None:
            second_term = _differentiable(ctx.sections, input, of_weight, of_bias)
        else:
            second_term = None if of_bias is None else of_bias.expand_as(grad_output)
        first = _add(by_input, second_term)
    if needed[1] and of_weight is not None:
        (second,) = _differentiable_backward(
            ctx.sections, (True, False, False), grad_output, input, of_weight
        )
    if needed[2] and of_input is not None:
        (third,) = _differentiable_backward(ctx.sections, (False, True, False), grad_output, of_input, weight)
    return None, None, first, second, third


def _jvp_of_backward(
    ctx: Any, _: Any, __: Any, t_output: Tensor | None, t_input: Tensor | None, t_weight: Tensor | None
) -> tuple[Tensor, ...]:
    grad_output, input, weight = ctx.saved_tensors
    t_output = torch.zeros_like(grad_output) if t_output is None else t_output
    t_input = torch.zeros_like(input) if t_input is None else t_input
    t_weight = torch.zeros_like(weight) if t_weight is None else t_weight
    first = _differentiable_backward(ctx.sections, ctx.mask, t_output, input, weight)
    mask = (*ctx.mask[:2], False)
    second = _differentiable_backward(ctx.sections, mask, grad_output, t_input, t_weight)
    pairs = zip(_by_mask(ctx.mask, first), _by_mask(mask, second), strict=True)
    return tuple(t for t in (_add(a, b) for a, b in pairs) if t is not None)


def _vmap_function(info: Any, in_dims: Any, sections: Sections, *tensors: Any) -> Any:
    def run(input: Tensor, weight: Tensor, bias: Tensor | None, sections: Sections) -> Tensor:
        return _differentiable(sections, input, weight, bias)

    return batch(info, in_dims[1:], run, *tensors, sections)


def _vmap_of_backward(info: Any, in_dims: Any, sections: Sections, mask: Any, *tensors: Tensor) -> Any:
    def run(*args: Any) -> list[Tensor | None]:
        return _by_mask(mask, _differentiable_backward(args[3], mask, *args[:3]))

    outputs, places = batch_backward(info, in_dims[2:], run, tensors, sections, mask)
    wanted = [(t, p) for t, p, m in zip(outputs, places, mask, strict=True) if m]
    return tuple(t for t, _ in wanted), tuple(p for _, p in wanted)


_apply = make_apply("GroupedLinear", _forward, _setup, _backward, _jvp, _vmap_function)
_apply_backward = make_apply(
    "GroupedLinearBackward",
    _forward_of_backward,
    _setup_of_backward,
    _backward_of_backward,
    _jvp_of_backward,
    _vmap_of_backward,
)


def _recorded(*tensors: Tensor | None) -> bool:
    return needs_graph(_given(*tensors)) or (not torch.compiler.is_compiling() and transforms_active())


def _differentiable(sections: Sections, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    run = _apply if _recorded(input, weight, bias) else _forward
    return run(sections, input, weight, bias)


def _differentiable_backward(
    sections: Sections, mask: Sequence[bool], grad_output: Tensor, input: Tensor, weight: Tensor
) -> tuple[Tensor, ...]:
    run = _apply_backward if _recorded(grad_output, input, weight) else _forward_of_backward
    return run(sections, tuple(mask), grad_output, input, weight)


class GroupedLinear(Function):
    """The short way of ordinary tensors: for small groups Python costs as much as the work."""

    @staticmethod
    def forward(ctx: Any, sections: Sections, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        output = _core.plain_grouped_linear(input, weight, bias, sections)
        if output is NotImplemented:
            raise DeclinedError
        ctx.sections = sections
        ctx.save_for_backward(input, weight)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        if not _grad_enabled() and not reference_forced():
            _, *wanted = ctx.needs_input_grad
            gradients = _core.plain_grouped_linear_backward(
                grad_output, *ctx.saved_tensors, ctx.sections, *wanted
            )
            if gradients is not NotImplemented:
                count_kernel(_NAME_BACKWARD)
                return (None, *gradients)
        return _backward(ctx, grad_output)


_apply_plain = base_apply(GroupedLinear)


def _require_tensors(input: Any, weight: Any, bias: Any) -> None:
    for name, value in (("input", input), ("weight", weight), ("bias", bias)):
        if not isinstance(value, Tensor) and not (name == "bias" and value is None):
            raise TypeError(f"{NAME}(): {name} must be a tensor, got {type(value).__name__}")


def _check_sections(weight: Tensor, out_features: Any) -> tuple[int, ...]:
    if not isinstance(out_features, Sequence) or isinstance(out_features, str):
        raise TypeError(f"{NAME}(): out_features must be a list of ints, got {out_features!r}")
    for n in out_features:
        if isinstance(n, bool) or not isinstance(n, int):
            raise TypeError(f"{NAME}(): out_features must be a list of ints, got {list(out_features)}")
    rows = concrete_size(weight)[0]
    if min(out_features, default=-1) < 0 or sum(out_features) != rows:
        raise RuntimeError(
            f"{NAME}: out_features {list(out_features)} must be non-negative and sum to the {rows} rows "
            f"of the weight"
        )
    return tuple(out_features)


def _check(input: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and (t.dtype != input.dtype or t.device != input.device):
            raise RuntimeError(
                f"{NAME}: {name} is {t.dtype} on {t.device}, input is {input.dtype} on {input.device}"
            )
    weight_size = concrete_size(weight)
    if bias is not None and concrete_size(bias) != weight_size[:-1]:
        raise RuntimeError(
            f"{NAME}: bias of size {tuple(bias.shape)} does not fit the weight of size {tuple(weight.shape)}"
        )
    size, in_features = concrete_size(input), weight_size[-1]
    if not _is_stacked(size, groups, in_features) and (not size or size[-1] != groups * in_features):
        raise RuntimeError(
            f"{NAME}: input of size {tuple(size)} must end in ({groups}, {in_features}) or "
            f"({groups * in_features},) for {groups} groups of {in_features} features"
        )


def _is_stacked(size: Sequence[int], groups: int, in_features: int) -> bool:
    return len(size) > 1 and size[-1] == in_features and size[-2] == groups


def _autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Under autocast: in its dtype, as torch.nn.functional.linear."""
    device = tensors[0].device.type
    dtype = torch.get_autocast_dtype(device)
    return [
        t if t is None or t.dtype not in FLOATS or t.dtype is torch.float64 else t.to(dtype) for t in tensors
    ]


def _plain(input: Tensor) -> bool:
    """True, and counted, where the public function runs as torch's own code: other devices, other dtypes, or forced."""
    if input.is_cpu and input.dtype in FLOATS and not reference_forced():
        return False
    if not torch.compiler.is_compiling():
        count_reference(NAME)
    return True


def grouped_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, out_features: Sequence[int] | None = None
) -> Tensor:
    """One linear map per group: output[..., g, :] = input[..., g, :] @ weight[g].T + bias[g].

    Args:
        input: (*, G, in), or (*, G * in), with any leading dimensions; strided input is read in place. An input that
            ends in (G, in) is read as the former.
        weight: (G, out, in); with out_features (sum(out_features), in), the rows of group after group.
        bias: (G, out) or (sum(out_features),), or None.
        out_features: the number of outputs of each group, if these differ; None if they are equal.
    Returns: (*, G, out), or (*, G * out) for a flat input; with out_features (*, sum(out_features)); contiguous.
    float32 and float64 are computed as they are; bfloat16 and float16 with sums in float32 that are rounded once, to
        nearest and ties to even, after the bias, as torch.baddbmm and torch.nn.functional.linear do, gradients
        likewise; other dtypes as torch does.
    Raises: RuntimeError for sizes, dtypes or devices that do not fit; TypeError for an argument that is not a tensor or
        list.
    Source: Ridnik et al. 2021, ML-Decoder, section 3.
    """
    if not _compiling() and not reference_forced():
        try:
            sections = None if out_features is None else tuple(out_features)
            if input.dtype in HALVES and input.dim() == 3 and library_wins(input, weight):
                output = NotImplemented
            elif _grad_enabled() and (
                input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
            ):
                hidden = _transforms() or _is_tracing()  # from which a Function would hide what it calls
                output = NotImplemented if hidden else _apply_plain(sections, input, weight, bias)
            else:
                output = _core.plain_grouped_linear(input, weight, bias, sections)
            if output is not NotImplemented:
                count_kernel(NAME)
                return output
        except (DeclinedError, AttributeError, TypeError):
            pass
    return _checked(input, weight, bias, out_features)


def _checked(input: Any, weight: Any, bias: Any, out_features: Any) -> Tensor:
    """`grouped_linear` of anything: what does not fit is refused, the rest brought to (N, G, in)."""
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if has_torch_function(tensors):
        return handle_torch_function(grouped_linear, tensors, input, weight, bias, out_features)
    _require_tensors(input, weight, bias)
    if weight.dim() != (3 if out_features is None else 2):
        raise RuntimeError(
            f"{NAME}: weight must be (groups, out, in), or (sum(out_features), in) with out_features, "
            f"got {tuple(weight.shape)}"
        )
    sections = None if out_features is None else _check_sections(weight, out_features)
    device = input.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        input, weight, bias = _autocast(input, weight, bias)
    weight_size = concrete_size(weight)
    groups = weight_size[0] if sections is None else len(sections)
    _check(input, weight, bias, groups)
    in_features = weight_size[-1]
    stacked = _is_stacked(concrete_size(input), groups, in_features)
    if stacked and input.dim() == 3:
        return _linear(input, weight, bias, sections)
    lead = input.shape[: -2 if stacked else -1]
    output = _linear(input.reshape(-1, groups, in_features), weight, bias, sections)
    if stacked:
        return output.reshape(*lead, *output.shape[1:])
    return output.reshape(*lead, math.prod(weight_size[:-1]))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None, sections: Sections) -> Tensor:
    if tracing() or _plain(input):
        return reference(input, weight, bias, sections)
    return _differentiable(sections, input, weight, bias)
