# SPDX-License-Identifier: MIT
"""Pools: the functions, and torch's own modules, whose forwards call them.

A graph holds torch's operator itself, so that no run has to show what the call computes: opswap's operator has the same
signature. adaptive_max_pool2d differs on purpose in half precision, where torch sends the gradients of
contiguous planes of more than 256 pixels (bf16; 2048 for fp16) to wrong pixels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap import functional as F

from ..rule import Example, Refusal, Region, Replacement, Rule, Shapes, Sized, argument_text, calls_of, named
from .conditions import poolable, trains
from .pool_sizes import AVERAGE, adaptive_pays, fills_vectors, large_enough, max_pool_pays

__all__ = ["OPTIONAL", "RULES"]


def only_ours(input: Any) -> bool:
    """True for images of whole numbers in channels_last, which torch's maxima over volumes refuse."""
    return poolable(input, (4,), _WHOLE) and not input.is_contiguous()


def made_contiguous(output: Any) -> Any:
    """The output, or both, as torch's pools over volumes return them for an input in any memory format."""
    return tuple([t.contiguous() for t in output]) if isinstance(output, tuple) else output.contiguous()


_SPATIAL = {F.adaptive_max_pool1d: 1, F.adaptive_max_pool2d: 2, F.adaptive_max_pool3d: 3}
_MADE_CONTIGUOUS = (F.avg_pool3d, F.adaptive_max_pool3d)
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_NUMBERS = (bool, int)  # torch refuses a window of float
_PLANE = ({2, 3}, {-2, -1})

# Elements from which global_max_pool2d without a gradient is faster than torch.amax.
_INFERRED_AMAX = 1 << 18


def _arguments(node: Node, function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of the call by the names that they have in `function`."""
    try:
        arguments = inspect.signature(function).bind(*node.args, **node.kwargs).arguments
    except TypeError as error:
        raise Refusal(f"its arguments are not replaced: {error}") from error
    if not isinstance(arguments["input"], Node):
        raise Refusal("its input is a constant")
    return arguments


def _window(arguments: Mapping[str, Any]) -> str:
    """kernel_size, stride and padding of an average pool as text, each a pair of ints; "" if one is none."""
    kernel, padding = arguments["kernel_size"], arguments.get("padding", 0)
    pairs = [(v, v) if type(v) is int else v for v in (kernel, arguments.get("stride") or kernel, padding)]
    known = all(isinstance(p, (tuple, list)) and [type(v) for v in p] == [int, int] for p in pairs)
    return str(tuple(map(tuple, pairs))) if known else ""


def _prove_pool(
    ours: Callable[..., Any],
    targets: Mapping[Any, bool],
    region: Region,
    shapes: Shapes,
    sizes: tuple[int, int] | None = None,
    optional: bool = False,
) -> Replacement:
    """`sizes`: elements from which the pool is replaced, contiguous and in channels_last; None is any number.

    An adaptive pool has its own condition. `optional`: also where torch is faster.
    """
    node = region.main
    arguments = _arguments(node, ours)
    window = _window(arguments) if ours is F.avg_pool2d else ""
    if targets[node.target]:
        arguments["return_indices"] = True
    names = region.names
    input = names[arguments.pop("input")]
    defaults = {p.name: repr(p.default) for p in inspect.signature(ours).parameters.values()}
    given = {name: argument_text(name, value, names, _NUMBERS) for name, value in arguments.items()}
    options = [f"{name}={text}" for name, text in given.items() if text != defaults[name]]
    one = ", one=True" if arguments.get("output_size") in (1, (1,), (1, 1), (1, 1, 1)) else ""
    result = f"{ours.__name__}({', '.join([input, *options])})"
    tests = (poolable, large_enough, fills_vectors, adaptive_pays, only_ours, max_pool_pays, trains)
    scope = named(ours, *tests)
    condition = f"poolable({input})"
    batched = ", batched=5" if ours.__name__.endswith("3d") else ""
    if ours in _SPATIAL and not optional:
        adaptive = f"adaptive_pays({input}, {_SPATIAL[ours]}, {given['output_size']})"
        condition = f"{adaptive} and fills_vectors({input}{batched}{one})"
    elif sizes is not None:
        limits = f"{sizes[0]}, {sizes[1]}" + f", window={window}" * bool(window)
        condition = f"large_enough({input}, {limits}) and fills_vectors({input}{batched}{one})"
    elif not optional:
        condition += f" and fills_vectors({input}, trains({input}){batched})"
        if ours in (F.max_pool2d, F.max_pool3d):
            windows = ", ".join(given.get(n, defaults[n]) for n in ("kernel_size", "stride", "padding"))
            spatial = ", 3" if ours is F.max_pool3d else ""
            condition += f" and max_pool_pays({input}, {windows}{spatial})"
        if ours is F.max_pool3d:
            condition = f"(only_ours({input}) or {condition})"
    ordered = None
    if ours in _MADE_CONTIGUOUS:
        scope["made_contiguous"] = made_contiguous
        ordered = Replacement(condition, f"made_contiguous({result})", scope)
    return Replacement(condition, result, scope, ordered=ordered)


def _amax(input: Any, dim: Any = (), keepdim: bool = False) -> None:
    """The signature of torch.amax without `out`."""


def _find_amax(graph: Graph) -> Iterator[Region]:
    yield from calls_of({torch.amax}, graph)
    yield from calls_of({"amax"}, graph, "call_method")


def _prove_amax(region: Region, shapes: Shapes) -> Replacement:
    """The gain is in the gradient; without one, torch.amax is faster on small inputs."""
    arguments = _arguments(region.main, _amax)
    dims = arguments.get("dim", ())
    over_planes = isinstance(dims, (tuple, list)) and all(isinstance(d, int) for d in dims)
    if not over_planes or len(dims) != 2 or set(dims) not in _PLANE:
        raise Refusal("not a maximum over planes", report=False)
    names = region.names
    input = names[arguments["input"]]
    keepdim = argument_text("keepdim", arguments.get("keepdim", False), names, _NUMBERS)
    few = f"0 if trains({input}) else {_INFERRED_AMAX}"
    return Replacement(
        f"large_enough({input}, {few}, {few}, (4,), doubles=trains({input}))",
        f"global_max_pool2d({input}, ties='split', keepdim={keepdim})",
        named(F.global_max_pool2d, large_enough, trains),
    )


# torch's names of each pool; True for those that return indices for all arguments.
_MAX_2D = {
    torch_functional.max_pool2d: False,
    torch_functional.max_pool2d_with_indices: True,
    torch.max_pool2d: False,
}
_MAX_3D = {
    torch_functional.max_pool3d: False,
    torch_functional.max_pool3d_with_indices: True,
    torch.max_pool3d: False,
}
_AVG_2D = {torch_functional.avg_pool2d: False}
_AVG_3D = {torch_functional.avg_pool3d: False}
_ADAPTIVE_1D = {
    torch_functional.adaptive_max_pool1d: False,
    torch_functional.adaptive_max_pool1d_with_indices: True,
}
_ADAPTIVE_2D = {
    torch_functional.adaptive_max_pool2d: False,
    torch_functional.adaptive_max_pool2d_with_indices: True,
}
_ADAPTIVE_3D = {
    torch_functional.adaptive_max_pool3d: False,
    torch_functional.adaptive_max_pool3d_with_indices: True,
}


class _Amax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.amax((2, 3))


def _example(module: type[nn.Module], *arguments: Any, size: tuple[int, ...] = (16, 24, 56, 56)) -> Sized:
    return module(*arguments), (size,)


def _pool(
    ours: Callable[..., Any],
    targets: Mapping[Any, bool],
    module: type[nn.Module],
    sizes: tuple[int, int] | None = None,
    example: Example | None = None,
    optional: bool = False,
) -> Rule:
    prove = partial(_prove_pool, ours, targets, sizes=sizes, optional=optional)
    return Rule(ours.__name__, True, partial(calls_of, targets), prove, (module,), example=example)


_MAX_2D_EXAMPLE = partial(_example, nn.MaxPool2d, 3, 2, 1)
_MAX_3D_EXAMPLE = partial(_example, nn.MaxPool3d, (1, 3, 3), (2, 1, 2), size=(8, 64, 20, 44))
_ADAPTIVE_EXAMPLE = partial(_example, nn.AdaptiveMaxPool2d, 1)
_AVG_3D_EXAMPLE = partial(_example, nn.AvgPool3d, (1, 2, 2), size=(4, 8, 8, 28, 28))

RULES = (
    _pool(F.max_pool2d, _MAX_2D, nn.MaxPool2d, example=_MAX_2D_EXAMPLE),
    _pool(F.max_pool3d, _MAX_3D, nn.MaxPool3d, example=_MAX_3D_EXAMPLE),
    _pool(F.avg_pool3d, _AVG_3D, nn.AvgPool3d, (AVERAGE[0], AVERAGE[0]), example=_AVG_3D_EXAMPLE),
    _pool(F.avg_pool2d, _AVG_2D, nn.AvgPool2d, AVERAGE, example=partial(_example, nn.AvgPool2d, 2)),
    _pool(F.adaptive_max_pool1d, _ADAPTIVE_1D, nn.AdaptiveMaxPool1d),
    _pool(F.adaptive_max_pool2d, _ADAPTIVE_2D, nn.AdaptiveMaxPool2d, example=_ADAPTIVE_EXAMPLE),
    _pool(F.adaptive_max_pool3d, _ADAPTIVE_3D, nn.AdaptiveMaxPool3d),
    Rule("amax", True, _find_amax, _prove_amax, example=partial(_example, _Amax)),
)

# The same for inputs of any size, small ones too, if `rules` names them.
OPTIONAL = (
    _pool(F.avg_pool2d, _AVG_2D, nn.AvgPool2d, optional=True),
    _pool(F.avg_pool3d, _AVG_3D, nn.AvgPool3d, optional=True),
    _pool(F.adaptive_max_pool1d, _ADAPTIVE_1D, nn.AdaptiveMaxPool1d, optional=True),
    _pool(F.adaptive_max_pool2d, _ADAPTIVE_2D, nn.AdaptiveMaxPool2d, optional=True),
    _pool(F.adaptive_max_pool3d, _ADAPTIVE_3D, nn.AdaptiveMaxPool3d, optional=True),
)
