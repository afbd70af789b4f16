# SPDX-License-Identifier: MIT
"""BatchNorm, the activation after it, and the max pool behind both: the first layers of ResNet and DenseNet, and each
stage of VGG. `chain` joins them with a convolution that evaluation folds."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap import functional as F
from opswap.nn.norm import Pooling, apply_norm_pool

from ..rule import Refusal, Region, Replacement, Rule, Shapes, Sized, named
from ..runtime.condition_texts import describe_condition
from ..runtime.guards import unhooked
from .conditions import normed_fast, poolable
from .norm import NORMS, act_of, behind, module_calls, region_of, supported_norm
from .norm_functional import call_arguments, is_batch_norm
from .pool_sizes import far_windows, max_pool_pays, pair

__all__ = ["POOLS", "RULES", "is_max_pool", "is_pool", "pool_behind", "pooling", "pooling_text"]

POOLS = (nn.MaxPool2d,)
_FUNCTIONS = (torch_functional.max_pool2d, torch.max_pool2d)
_MANY_TAPS = 16


def is_max_pool(module: nn.Module) -> bool:
    """True for torch's own pool that returns its maxima alone."""
    return isinstance(module, POOLS) and type(module) in POOLS and module.return_indices is False


def pooling(module: nn.MaxPool2d) -> Pooling:
    """The window of a pool, as it is now."""
    return Pooling(module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)


def _window_of(node: Node) -> tuple[Any, ...] | None:
    """The window of a call of a function, if it is made of numbers."""
    try:
        bound = inspect.signature(F.max_pool2d).bind(*node.args, **node.kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    _, *window, return_indices = bound.arguments.values()
    return tuple(window) if return_indices is False and all(map(_is_number, window)) else None


def _is_number(value: Any) -> bool:
    """True for numbers, and pairs of them, that Python prints as they are."""
    if isinstance(value, (tuple, list)):
        return all(type(v) is int for v in value)
    return value is None or type(value) in (int, bool)


def pool_behind(node: Node) -> Node | None:
    """The max pool that reads the result of a node, if nothing else does."""
    pool = next(iter(node.users)) if len(node.users) == 1 else None
    return pool if pool is not None and is_pool(pool) else None


def is_pool(node: Node) -> bool:
    """True for a max pool over planes of its only argument that is a tensor, its first."""
    if len(node.all_input_nodes) != 1 or node.args[:1] != (node.all_input_nodes[0],):
        return False
    if node.op == "call_module":
        return is_max_pool(node.meta["module"]) and len(node.args) == 1 and not node.kwargs
    return node.op == "call_function" and node.target in _FUNCTIONS and _window_of(node) is not None


def pooling_text(pool: Node, module: str) -> tuple[str, str, dict[str, Any]]:
    """The window of a call as text, the condition that a module still is what it was, or "", and the names in both."""
    if pool.op == "call_module":
        return f"pooling({module})", f"is_max_pool({module})", named(pooling, is_max_pool)
    window = ", ".join(repr(tuple(v) if isinstance(v, list) else v) for v in _window_of(pool) or ())
    return f"Pooling({window})", "", named(Pooling)


def joined_pays(input: Tensor, pooling: Pooling) -> bool:
    """False for contiguous images under windows for which torch's pool is faster: beyond 16 taps it takes 0.3 to 0.8 of
    the time of the joined pass, which is always faster in channels_last."""
    return not input.is_contiguous() or max_pool_pays(input, *pooling[:3])


describe_condition(joined_pays, lambda input, pooling: far_windows(input, *pooling[:3]))


def _has_many_taps(pool: Node) -> bool:
    """True if the window has more taps than those for which torch's pool is never faster."""
    kernel = pool.meta["module"].kernel_size if pool.op == "call_module" else (_window_of(pool) or (0,))[0]
    return math.prod(pair(kernel)) > _MANY_TAPS


def _find(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        norm = node.op == "call_module" and type(node.meta["module"]) in NORMS
        if not (norm and len(node.all_input_nodes) == 1) and not is_batch_norm(node):
            continue
        nodes = (node, *behind(node))
        pool = pool_behind(nodes[-1])
        if pool is not None:
            yield region_of((*nodes, pool))


def _prove(region: Region, shapes: Shapes) -> Replacement:
    """The graph holds torch's own modules and functions, so that no run has to show what they compute."""
    norm, *_, pool = region.nodes
    calls = [f"m{i}" for i, _ in enumerate(module_calls(region.nodes))]
    window, still, names = pooling_text(pool, calls[-1] if calls else "")
    still, name = still and f" and {still}", None
    if len(region.nodes) > 2:
        name, acts, more = act_of(region_of(region.nodes[:-1]))
        still, names = still + acts, names | more
    conditions = [f"unhooked({', '.join(calls)})"] if calls else []
    names |= named(unhooked, normed_fast)
    if _has_many_taps(pool):
        still, names = f"{still} and joined_pays(x0, {window})", names | named(joined_pays)
    if not is_batch_norm(norm):
        names |= named(supported_norm, apply_norm_pool)
        conditions += ["supported_norm(m0, x0)", "normed_fast(x0)"]
        result = f"apply_norm_pool(m0, x0, {name!r}, {window})"
        return Replacement(" and ".join(conditions) + still, result, names)
    arguments = call_arguments(norm, region.names)
    input = arguments.pop("input")
    if input != "x0":
        raise Refusal("its input is not its first argument")
    names |= named(poolable, F.batch_norm_act_max_pool2d)
    conditions += ["poolable(x0)", "normed_fast(x0)"]
    options = ", ".join(f"{key}={text}" for key, text in arguments.items())
    result = f"batch_norm_act_max_pool2d(x0, {options}, activation={name!r}, **{window}._asdict())"
    return Replacement(" and ".join(conditions) + still, result, names)


def _example() -> Sized:
    return nn.Sequential(nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(3, 2, 1)), ((16, 24, 56, 56),)


RULES = (Rule("batch_norm_act_max_pool", False, _find, _prove, calls=NORMS, behind=POOLS, example=_example),)
