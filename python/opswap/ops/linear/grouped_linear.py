# SPDX-License-Identifier: MIT
"""One linear map per group, all groups in one call.

The weights of all groups lie one after another, in the order of torch.nn.Linear: (groups, out, in) if every group
has as many outputs, else (total outputs, in) with the outputs of every group as `sections`. Inside this package the
input is always (N, groups, in).
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
from opswap._torch import constant_in_graphs, functorch_active

from .._derivatives import read_by_gradients
from .._function import (
    DeclinedError,
    base_apply,
    check_memory,
    concrete_size,
    needs_graph,
    plain_cpu,
    tracing,
)
from .._stats import count_kernel, count_reference, reference_forced
from ._operators import gradients, operator
from ._run import (
    FLOATS,
    HALVES,
    NAME,
    NAME_BACKWARD,
    Sections,
    fits,
    library_product,
    library_wins,
    reference,
)

__all__ = ["grouped_linear"]

# Looked up once: what lies on the way to a name costs microseconds if it has left the caches.
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_transforms = functorch_active
_is_tracing = torch.jit.is_tracing


class GroupedLinear(Function):
    """The short way of ordinary tensors: for small groups Python costs as much as the work."""

    @staticmethod
    def forward(ctx: Any, sections: Sections, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        output = _run_plain(sections, input, weight, bias)
        if output is NotImplemented:
            raise DeclinedError
        ctx.sections = sections
        _, of_input, of_weight, of_bias = ctx.needs_input_grad
        if of_input and of_weight:
            ctx.save_for_backward(input, weight)
        else:  # as torch's products: what no gradient reads may change before the backward
            ctx.save_for_backward(*read_by_gradients((input, weight), (of_input, of_weight, of_bias)))
            ctx.input_size, ctx.weight = input.shape, None if of_input else weight
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        _, *needed = ctx.needs_input_grad
        input, weight = ctx.saved_tensors  # once: a checkpoint unpacks no tensor twice
        if input is None:  # values that are not read, in one row of memory
            input = grad_output.new_empty_strided(ctx.input_size, (0, 0, 1))
        if weight is None:
            weight = ctx.weight
        by_library = grad_output.dtype in HALVES and library_wins(input, weight, backward=True)
        if not _grad_enabled() and not reference_forced() and not by_library:
            made = _core.plain_grouped_linear_backward(grad_output, input, weight, ctx.sections, *needed)
            if made is not NotImplemented:
                count_kernel(NAME_BACKWARD)
                return (None, *made)
        return (None, *gradients((input, weight), ctx.sections, needed, grad_output))


_apply_plain = base_apply(GroupedLinear)


def _run_plain(sections: Sections, input: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    """The output of an ordinary call without its graph, NotImplemented for another one."""
    if not (input.dtype in HALVES and input.dim() == 3 and library_wins(input, weight)):
        return _core.plain_grouped_linear(input, weight, bias, sections)
    tensors = (input, weight) if bias is None else (input, weight, bias)
    alike = sections is None and all(t.dtype is input.dtype for t in tensors)
    if (
        alike
        and fits(None, input, weight, bias)
        and _core.plain_eager_without_autocast()
        and plain_cpu(tensors)
    ):
        return library_product(input, weight, bias)
    return NotImplemented


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
    """True, and counted, if the public function runs as torch's own code: other devices, other dtypes, or forced."""
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
            if needs_graph((input, weight, bias)):
                hidden = _transforms() or _is_tracing()  # from which a Function would hide what it calls
                output = NotImplemented if hidden else _apply_plain(sections, input, weight, bias)
            else:
                output = _run_plain(sections, input, weight, bias)
            if output is not NotImplemented:
                count_kernel(NAME)
                return output
        except (DeclinedError, AttributeError, TypeError):
            pass
    return _checked(input, weight, bias, out_features)


@constant_in_graphs  # torch 2.10 cannot trace the question
def _has_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device)


def _checked(input: Any, weight: Any, bias: Any, out_features: Any) -> Tensor:
    """General `grouped_linear`: refuses arguments that do not fit, and reshapes the input to (N, G, in)."""
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if has_torch_function(tensors):
        return handle_torch_function(grouped_linear, tensors, input, weight, bias, out_features)
    _require_tensors(input, weight, bias)
    check_memory(NAME, **dict(zip(("input", "weight", "bias"), tensors, strict=False)))
    if weight.dim() != (3 if out_features is None else 2):
        raise RuntimeError(
            f"{NAME}: weight must be (groups, out, in), or (sum(out_features), in) with out_features, "
            f"got {tuple(weight.shape)}"
        )
    sections = None if out_features is None else _check_sections(weight, out_features)
    device = input.device.type
    if _has_autocast(device) and torch.is_autocast_enabled(device):
        input, weight, bias = _autocast(input, weight, bias)
    weight_size = concrete_size(weight)
    groups = weight_size[0] if sections is None else len(sections)
    _check(input, weight, bias, groups)
    in_features = weight_size[-1]
    stacked = _is_stacked(concrete_size(input), groups, in_features)
    if stacked and input.dim() == 3:
        return _linear(input, weight, bias, sections)
    lead = input.shape[: -2 if stacked else -1]
    output = _linear(input.reshape(math.prod(lead), groups, in_features), weight, bias, sections)
    if stacked:
        return output.reshape(*lead, *output.shape[1:])
    return output.reshape(*lead, math.prod(weight_size[:-1]))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None, sections: Sections) -> Tensor:
    if tracing() or _plain(input):
        return reference(input, weight, bias, sections)
    return operator(input, weight, bias, sections)
