# SPDX-License-Identifier: MIT
"""LayerNorm: torch's module, calls of its function, and the ConvNeXt paper's arithmetic over the channels of images.

In channels_last the permuted view that timm, torchvision and ConvNeXt give to the function is dense, and the rule for
calls is all that they need. The paper's arithmetic makes seven passes over the image and keeps what they write.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap import functional as F
from opswap._torch import constant_in_graphs
from opswap.ops.norm import layer_norm2d_fits, layer_norm_fits

from ..graph.calls import reached
from ..rule import Refusal, Region, Replacement, Rule, Shapes, argument_texts, calls_of, named
from ..runtime.condition_texts import describe_condition
from ..runtime.shown import shown
from .arithmetic import is_call, operands, squared
from .closed import closed_region
from .conditions import trains
from .group_norm import has_vectors
from .kept import elements

__all__ = ["RULES"]

# Elements of an input from which a call was measured faster than torch's, whose calls cost less, between other
# operators, whose data fills the caches (alone it wins with a quarter of that): without a gradient or in 16 bits, such
# calls of float32 with long rows, and a step in float32 on one thread and on several. A step in float32 with long rows
# takes torch's kernel no longer.
_FEWEST, _FEWEST_LONG, _FEWEST_TRAINED, _FEWEST_SHARED = 1 << 18, 1 << 20, 1 << 19, 1 << 21
_SHORT_ROW = 128
_FEWEST_ARITHMETIC = 1 << 12
_WHOLE = slice(None)


@constant_in_graphs
def _has_one_thread() -> bool:
    return torch.get_num_threads() == 1


def is_large(input: Any) -> bool:
    """False for a tensor with fewer elements than any call that was measured faster."""
    return type(input) is not Tensor or input.numel() >= _FEWEST


def layer_norm_wins(input: Any, *arguments: Any) -> bool:
    """`layer_norm_fits`, for what was measured faster than torch; the cheapest look first, as most are small."""
    if not isinstance(input, Tensor) or input.dim() == 0 or input.numel() < _FEWEST or not has_vectors(input):
        return False
    fewest = _fewest(input, *arguments)
    return fewest is not None and input.numel() >= fewest and layer_norm_fits(input, *arguments)


def _fewest(input: Tensor, *arguments: Any) -> int | None:
    """Elements from which a call with these arguments is faster than torch's; None: with none."""
    if input.dtype is not torch.float32:
        return _FEWEST
    short = input.shape[-1] <= _SHORT_ROW
    if not any(isinstance(t, Tensor) and trains(t) for t in (input, *arguments)):
        return _FEWEST if short else _FEWEST_LONG
    if not short:
        return None
    return _FEWEST_TRAINED if _has_one_thread() else _FEWEST_SHARED


def _why_slower(input: Any, *arguments: Any) -> str:
    if not has_vectors(input):
        return f"no kernel for {shown(input)}"
    if layer_norm_fits(input, *arguments):
        fewest = _fewest(input, *arguments)
        if fewest is None:
            return f"in training in float32 torch is as fast with rows of more than {_SHORT_ROW} values"
        return elements(input, fewest)
    if not input.is_contiguous():
        return f"the kernels support rows that are dense in memory: the input is {shown(input)}"
    return ""


def _why_slower_module(module: nn.LayerNorm, input: Any) -> str:
    return _why_slower(input, module.normalized_shape, module.weight, module.bias, module.eps)


def layer_norm_able(module: nn.LayerNorm, input: Any) -> bool:
    """`layer_norm_wins` for the options of a module."""
    return layer_norm_wins(input, module.normalized_shape, module.weight, module.bias, module.eps)


def arithmetic_wins(input: Any, weight: Any, bias: Any, eps: Any) -> bool:
    """True for an image in channels_last whose parameters have its dtype: the arithmetic would widen it otherwise."""
    if not isinstance(input, Tensor) or not has_vectors(input):
        return False
    if input.dim() != 4 or input.numel() < _FEWEST_ARITHMETIC:
        return False
    parameters = all(isinstance(t, Tensor) and t.dtype is input.dtype for t in (weight, bias))
    # Under autocast pow and sqrt compute in float32, whatever the image is.
    kept = input.dtype is torch.float32 or not torch.is_autocast_enabled("cpu")
    return parameters and kept and layer_norm2d_fits(input, weight, bias, eps)


describe_condition(is_large, lambda input: elements(input, _FEWEST))
describe_condition(layer_norm_wins, _why_slower)
describe_condition(layer_norm_able, _why_slower_module)

_MODULE = Replacement(
    "layer_norm_able(m0, x0)",
    "layer_norm(x0, m0.normalized_shape, m0.weight, m0.bias, m0.eps)",
    named(layer_norm_able, F.layer_norm),
)


# --- calls -----------------------------------------------------------------------------------------------------------


def _find_call(graph: Graph) -> Iterator[Region]:
    return calls_of((torch_functional.layer_norm,), graph)


def _prove_call(region: Region, shapes: Shapes) -> Replacement:
    given = ", ".join(argument_texts(region.main, torch_functional.layer_norm, region.names).values())
    return Replacement(
        f"layer_norm_wins({given})",
        f"layer_norm({given})",
        named(layer_norm_wins, F.layer_norm) | {"opswap_is_large": is_large},
        first="opswap_is_large(x0)",
    )


# --- the arithmetic --------------------------------------------------------------------------------------------------


def _mean_over_channels(node: Any) -> Any:
    """What x.mean(1, keepdim=True) is the mean of, or None."""
    if not is_call(node, (torch.mean,), ("mean",)):
        return None
    options = dict(zip(("input", "dim", "keepdim"), node.args, strict=False)) | node.kwargs
    if set(options) != {"input", "dim", "keepdim"} or options["keepdim"] is not True:
        return None
    return options["input"] if options["dim"] in (1, (1,), [1]) else None


def _root(node: Any) -> Any:
    rooted = is_call(node, (torch.sqrt,), ("sqrt",)) and len(node.args) == 1 and not node.kwargs
    return node.args[0] if rooted else None


def _centered(node: Any) -> Any:
    """x if this is x - x.mean(1, keepdim=True), else None."""
    pair = operands(node, (operator.sub, torch.sub), ("sub",))
    return pair[0] if pair and _mean_over_channels(pair[1]) is pair[0] else None


def _normalised(node: Any) -> tuple[Node, float] | None:
    """(x, eps) if this is the centered x over the root of its variance and eps."""
    quotient = operands(node, (operator.truediv, torch.div), ("div",))
    x = _centered(quotient[0]) if quotient else None
    summed = operands(_root(quotient[1]), (operator.add, torch.add), ("add",)) if quotient else ()
    if not isinstance(x, Node) or not summed or type(summed[1]) is not float:
        return None
    of_variance = squared(_mean_over_channels(summed[0]))
    return (x, summed[1]) if _centered(of_variance) is x else None


def _per_channel(node: Any) -> Any:
    """The parameter of which this is parameter[:, None, None], or None."""
    pair = operands(node, (operator.getitem,), ())
    return pair[0] if pair and pair[1] == (_WHOLE, None, None) else None


def _with_parameter(pair: tuple[Any, ...]) -> Iterator[tuple[Any, Node]]:
    """(the other operand, the parameter), in either order."""
    for one, other in (pair, pair[::-1]) if pair else ():
        parameter = _per_channel(other)
        if parameter is not None and isinstance(one, Node):
            yield one, parameter


def _find_arithmetic(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        for scaled, bias in _with_parameter(operands(node, (operator.add, torch.add), ("add",))):
            products = operands(scaled, (operator.mul, torch.mul), ("mul",))
            for quotient, weight in _with_parameter(products):
                found = _normalised(quotient)
                if found is not None:
                    yield _region(node, (found[0], weight, bias), quotient)


def _region(last: Node, inputs: tuple[Node, ...], quotient: Node) -> Region:
    nodes = reached((last,), lambda n: [i for i in n.all_input_nodes if i not in inputs])
    return closed_region(inputs, nodes, quotient)


def _prove_arithmetic(region: Region, shapes: Shapes) -> Replacement:
    found = _normalised(region.main)
    if found is None:
        raise Refusal("not a normalisation", report=False)
    given = f"x0, x1, x2, {found[1]!r}"
    return Replacement(
        f"arithmetic_wins({given})",
        f"layer_norm2d({given})",
        named(arithmetic_wins, F.layer_norm2d),
    )


class _Permuted(nn.Module):
    """An image's channels, as ConvNeXt's block has them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


RULES = (
    Rule(
        "layer_norm",
        False,
        modules=(nn.LayerNorm,),
        whole=_MODULE,
        example=lambda: (_Permuted(96), ((32, 96, 28, 28),)),
    ),
    Rule("layer_norm", False, _find_call, _prove_call),
    Rule("layer_norm", False, _find_arithmetic, _prove_arithmetic),
)
