# SPDX-License-Identifier: MIT
"""Convolutions that follow each other, each with its BatchNorm and activation.

In training 1 x 1 and depthwise ones: ShuffleNetV2's branches, and the blocks of MobileNetV1 and V2, MnasNet and
Xception without what is added to them. In evaluation all that are not grouped otherwise, a single one too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn
from torch.fx import Graph, Node

from opswap.nn.chain import apply_chain, apply_folded, settle, settled
from opswap.nn.norm import NormCall
from opswap.ops._convolution import taps_of
from opswap.ops.chain import (
    FEWEST_CHANNELS,
    MOST_CHANNELS,
    MOST_FOLDED,
    MOST_STAGES,
    MOST_WEIGHTS,
    chain_wins,
)
from opswap.ops.depthwise import is_depthwise
from opswap.ops.norm import spell

from ..graph.metadata import is_metadata
from ..rule import Refusal, Region, Replacement, Rule, Shapes, Sized, named
from ..runtime.guards import unhooked
from ..runtime.messages import require
from .activation import activation, activation_of
from .conditions import poolable
from .norm import behind, identities_behind, module_calls, modules_between, region_of
from .norm_functional import (
    call_arguments,
    is_batch_norm,
    trains_with_statistics,
    uses_statistics_of_input,
)
from .norm_pool import POOLS, is_pool, pool_behind, pooling_text

__all__ = ["RULES", "foldable", "is_foldable", "is_link", "linked"]

_ACTIVATIONS = ("relu", "relu6", "hardtanh", "hardswish")
_FEWEST_STAGES = 2  # a single one gains little over its parts


def _are_pairs(*options: Any) -> bool:
    """True if each option is a pair, as nn.Conv2d makes them. Torch also accepts other forms, if assigned later."""
    return all([type(option) is tuple and len(option) == 2 for option in options])  # noqa: C419, a list is faster


def is_link(module: nn.Module) -> bool:
    """True for a convolution that a chain may hold, by its options alone."""
    if type(module) is not nn.Conv2d or module.bias is not None or module.padding_mode != "zeros":
        return False
    taps, stride, padding, dilation = taps_of(module), module.stride, module.padding, module.dilation
    inputs, outputs = module.in_channels, module.out_channels
    if not _are_pairs(taps, stride, padding, dilation) or dilation != (1, 1):
        return False
    if not FEWEST_CHANNELS <= min(inputs, outputs) <= max(inputs, outputs) <= MOST_CHANNELS:
        return False
    side = taps[0]
    if taps != (side, side) or padding != (side // 2, side // 2):
        return False
    if side == 1:
        return module.groups == 1 and stride == (1, 1) and module.weight.numel() <= MOST_WEIGHTS
    return side in (3, 5) and is_depthwise(module)


def is_foldable(module: nn.Module) -> bool:
    """True for a convolution that a chain may hold in evaluation, by its options alone."""
    if type(module) is not nn.Conv2d or module.padding_mode != "zeros" or module.dilation != (1, 1):
        return False
    if not FEWEST_CHANNELS <= module.out_channels <= MOST_CHANNELS or module.in_channels > MOST_CHANNELS:
        return False
    taps, padding = taps_of(module), module.padding
    if not _are_pairs(taps, module.stride, padding, module.dilation):
        return False
    if module.groups == 1:
        inside = all(p < k for p, k in zip(padding, taps, strict=True))
        return inside and module.weight.numel() <= MOST_FOLDED
    side = taps[0]
    return side in (3, 5) and is_depthwise(module) and padding == (side // 2, side // 2)


def linked(count: int, *modules: nn.Module) -> bool:
    """True if the arguments, `count` convolutions and then normalisations, can still form a chain."""
    return _are(is_link, count, modules)


def foldable(count: int, *modules: nn.Module) -> bool:
    """True if the arguments, `count` convolutions and then normalisations, can still form a chain in evaluation."""
    return _are(is_foldable, count, modules)


def _are(known: Callable[[nn.Module], bool], count: int, modules: tuple[nn.Module, ...]) -> bool:
    return all(map(known, modules[:count])) and all(type(norm) is nn.BatchNorm2d for norm in modules[count:])


Stage = tuple[Node, ...]  # a convolution, perhaps its normalisation, and what is after that


def _is_norm(node: Node) -> bool:
    return node.op == "call_module" and type(node.meta["module"]) is nn.BatchNorm2d


def _counts(node: Node) -> bool:
    """True if a node counts a batch, as the forward of a BatchNorm does."""
    if node.op != "call_method" or node.target != "add_" or node.users or len(node.args) != 2:
        return False
    counter, one = node.args
    is_counter = isinstance(counter, Node) and counter.op == "get_attr"
    return is_counter and str(counter.target).endswith("num_batches_tracked") and one == 1 and not node.kwargs


def _norm_of(node: Node, sizes: set[Node]) -> Node | None:
    """The normalisation that reads a convolution's result, of which other code reads at most its sizes."""
    readers = [user for user in node.users if user not in sizes]
    if len(readers) != 1:
        return None
    (norm,) = readers
    if is_batch_norm(norm) and norm.args[:1] == (node,) and _counts_as_module(node, norm):
        return norm
    return norm if _is_norm(norm) and len(node.users) == 1 else None


def _aside(node: Node, norm: Node) -> tuple[Node, ...]:
    """What is between a convolution and a call of F.batch_norm, counts the batch or reads the convolution's sizes."""
    found = [node]
    step = node.next
    while step is not norm:
        if _counts(step) or not set(step.all_input_nodes).isdisjoint(found):
            found.append(step)
        step = step.next
    return tuple(found[1:])


def _counts_as_module(node: Node, norm: Node) -> bool:
    """True if the batch is counted once, in training with running statistics, or not at all, as by nn.BatchNorm2d."""
    counters = [step for step in _aside(node, norm) if _counts(step)]
    return not counters or (len(counters) == 1 and trains_with_statistics(norm))


def _asserts_images(node: Node, tensor: Node) -> bool:
    """True for an assertion that this tensor has four dimensions."""
    fact, answer, *_ = node.args if node.target is require else (None, None)
    if not isinstance(fact, Node) or fact.target is not operator.eq or answer is not True:
        return False
    ndim, four = fact.args
    return four == 4 and isinstance(ndim, Node) and ndim.target is getattr and ndim.args == (tensor, "ndim")


def _behind(node: Node) -> tuple[Node, ...]:
    """Identities and an activation after this node, if a chain can compute it."""
    rest = behind(node)
    found = activation(rest[-1]) if rest and not modules_between((node, *rest)) else None
    return rest if found is not None and found[0] in _ACTIVATIONS else ()


def _sizes(graph: Graph) -> set[Node]:
    known: dict[Node, bool] = {}  # filled in the graph's order: no deep recursion
    return {node for node in graph.nodes if is_metadata(node, known)}


def _adjoin(nodes: Stage, sizes: set[Node]) -> bool:
    """True if between these nodes code at most reads sizes or gets parameters.

    The whole chain runs at its first convolution. What stands in between may read or write what a later call of the
    chain uses, or raise before that call moves its statistics.
    """
    node = nodes[0]
    called = any(map(is_batch_norm, nodes))
    while node is not nodes[-1]:
        node = node.next
        if node in nodes or node in sizes or node.op in ("get_attr", "placeholder"):
            continue
        if not called or not (_asserts_images(node, nodes[0]) or _counts(node)):
            return False
    return True


def _is_wide(node: Node, known: Callable[[nn.Module], bool]) -> bool:
    """True for a call of a `known` convolution whose weight is not in 16 bits, for which no chain has kernels.

    That is asked of the model as it is swapped, not in each call.
    """
    return node.op == "call_module" and known(node.meta["module"]) and node.meta["module"].weight.itemsize > 2


def _stage(node: Node, sizes: set[Node]) -> Stage:
    """A convolution, its normalisation and what is after that; () if a chain cannot hold them."""
    norm = _norm_of(node, sizes) if _is_wide(node, is_link) else None
    return (node, norm, *_behind(norm)) if norm is not None and _adjoin((node, norm), sizes) else ()


def _folded_stage(node: Node, sizes: set[Node]) -> Stage:
    """The same in evaluation, in which all but the convolution may be missing."""
    if not _is_wide(node, is_foldable):
        return ()
    norm = _norm_of(node, sizes)
    if norm is None:
        return (node, *_behind(node))
    if is_batch_norm(norm) and uses_statistics_of_input(norm):
        return ()
    if behind(norm) and not _behind(norm):
        return ()  # batch_norm_act joins the normalisation and this activation, in training too
    if not _adjoin((node, norm), sizes):
        return ()
    return (node, norm, *_behind(norm))


def _is_one_stage(graph: Graph) -> bool:
    """True if a forward is one stage of a chain, as torchvision's Conv2dNormActivation."""
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    if len(inputs) != 1 or len(inputs[0].users) != 1 or not chain_wins():
        return False
    (first,) = inputs[0].users
    stage = _stage(first, _sizes(graph))
    (result,) = (n.args[0] for n in graph.nodes if n.op == "output")
    return bool(stage) and result is stage[-1]


def _is_norm_block(graph: Graph) -> bool:
    """True if a forward is the normalisation and activation of a stage, as timm's BatchNormAct2d."""
    sizes = _sizes(graph)
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    norm = _norm_of(inputs[0], sizes) if len(inputs) == 1 and chain_wins() else None
    if norm is None or not is_batch_norm(norm) or not _adjoin((inputs[0], norm), sizes):
        return False
    (result,) = (n.args[0] for n in graph.nodes if n.op == "output")
    last = (norm, *_behind(norm))[-1]
    return result is (last, *identities_behind(last))[-1]


def _is_tall(node: Node) -> bool:
    """True for a dense convolution that needs several rows of its input, which a chain would compute again."""
    module = node.meta["module"]
    return module.groups == 1 and taps_of(module)[0] > 1


def _follow(node: Node, stage_of: Callable[[Node, set[Node]], Stage], sizes: set[Node]) -> list[Stage]:
    stages: list[Stage] = []
    stage = stage_of(node, sizes)
    while stage and len(stages) < MOST_STAGES and not (stages and _is_tall(stage[0])):
        stages.append(stage)
        passed = (*stage, *identities_behind(stage[-1]))
        users = tuple(passed[-1].users)
        adjoins = len(users) == 1 and _adjoin((*passed, *users), sizes)
        stage = stage_of(*users, sizes) if adjoins else ()
        if stage:
            stages[-1] = passed
    return stages


def _chains(graph: Graph) -> Iterator[list[Stage]]:
    taken: set[Node] = set()
    sizes = _sizes(graph)
    for node in graph.nodes if chain_wins() else ():
        stages = _follow(node, _stage, sizes) if node not in taken else []
        if len(stages) >= _FEWEST_STAGES:
            taken.update(n for stage in stages for n in stage)
            yield stages


def _folded_chains(graph: Graph) -> Iterator[list[Stage]]:
    """For modules that are not a chain in training."""
    taken = {n for stages in _chains(graph) for stage in stages for n in stage}
    sizes = _sizes(graph)
    for node in graph.nodes if chain_wins() else ():
        stages = _follow(node, lambda n, sizes: _folded_stage(n, sizes) if n not in taken else (), sizes)
        if any(len(stage) > 1 for stage in stages):  # convolutions alone gain nothing
            stages = [*stages[:-1], _with_pool(stages[-1], sizes)]
            taken.update(n for stage in stages for n in stage)
            yield stages


def _with_pool(stage: Stage, sizes: set[Node]) -> Stage:
    """The stage and the max pool behind its normalisation or activation, which training joins with these."""
    normed = len(stage) > 1 and (_is_norm(stage[1]) or is_batch_norm(stage[1]))
    pool = pool_behind(stage[-1]) if normed else None
    return (*stage, pool) if pool is not None and _adjoin((*stage, pool), sizes) else stage


def _region(stages: list[Stage]) -> Region:
    called = [(stage[0], stage[1]) for stage in stages if len(stage) > 1 and is_batch_norm(stage[1])]
    if not called:
        return region_of(tuple(n for stage in stages for n in stage))
    inside = {n for stage in stages for n in stage}.union(*(_aside(*pair) for pair in called))
    nodes = tuple(n for n in stages[0][0].graph.nodes if n in inside)
    read = dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside)
    # In front of the last one, since the parameters are read in between.
    return replace(region_of(nodes), inputs=tuple(read), anchor=nodes[-1])


def _find(chains: Callable[[Graph], Iterator[list[Stage]]], graph: Graph) -> Iterator[Region]:
    return map(_region, chains(graph))


def _stages_of(region: Region) -> list[Stage]:
    starts = [
        i
        for i, n in enumerate(region.nodes)
        if n.op == "call_module" and isinstance(n.meta["module"], nn.Conv2d)
    ]
    return [region.nodes[a:b] for a, b in zip(starts, [*starts[1:], len(region.nodes)], strict=True)]


class _Spelled:
    """The modules of a region by kind, as text, its links, and what has to hold of its activations."""

    def __init__(self, region: Region) -> None:
        calls = module_calls(region.nodes)
        name = {node: f"m{i}" for i, node in enumerate(calls)}
        self.modules = list(name.values())
        self.convolutions: list[str] = []
        self.norms: list[str] = []
        self.links: list[str] = []
        self.still: list[str] = []
        self.pool = ""
        self.names: dict[str, Any] = {}
        pool = region.nodes[-1] if is_pool(region.nodes[-1]) else None
        if pool is not None:
            window, still, self.names = pooling_text(pool, name.get(pool, ""))
            self.pool, self.still = f", pool={window}", [still] if still else []
        for convolution, *rest in _stages_of(region):
            rest = [n for n in rest if n is not pool]
            rest = [n for n in rest if n in name or is_batch_norm(n) or activation(n) is not None]
            norm = None
            if rest and is_batch_norm(rest[0]):
                norm = _call_text(rest.pop(0), region)
            elif rest and _is_norm(rest[0]):
                norm = name[rest.pop(0)]
                self.norms.append(norm)
            found = next((act for n in rest if (act := activation(n)) is not None), None)
            for node in rest:
                kind = activation(node)
                if node in name and kind is None:
                    self.still.append(f"type({name[node]}) is Identity")
                elif node in name:
                    self.still.append(f"activation_of({name[node]}) == {kind!r}")
            self.convolutions.append(name[convolution])
            self.links.append(f"({name[convolution]}, {norm}, {spell(*found) if found else None!r})")


def _call_text(norm: Node, region: Region) -> str:
    """A `NormCall` as Python text."""
    arguments = call_arguments(norm, {norm.args[0]: "", **region.names})
    counters = [n.args[0] for n in _aside(norm.args[0], norm) if _counts(n)]
    counter = f"x{region.inputs.index(counters[0])}" if counters else "None"
    vectors = [arguments[name] for name in ("running_mean", "running_var", "weight", "bias")]
    options = [arguments[name] for name in ("training", "momentum", "eps")]
    if any(text.startswith("x") for text in options):
        raise Refusal("an option of batch_norm is computed")
    return f"NormCall({', '.join((*vectors, counter, *options))})"


_NAMES = named(unhooked, NormCall, poolable, linked, foldable, settled, settle)
_NAMES |= named(activation_of, nn.Identity, apply_chain, apply_folded)


def _prove(fits: str, function: str, region: Region, shapes: Shapes) -> Replacement:
    """The graph holds torch's own modules, so that no run has to show what they compute.

    What is known of a frozen chain that has settled is not evaluated again.

    Args: fits: the condition on convolutions and normalisations. function: what runs the chain.
    """
    text = _Spelled(region)
    modules, parts = ", ".join(text.modules), ", ".join(text.convolutions + text.norms)
    conditions = [f"unhooked({modules})", f"{fits}({len(text.convolutions)}, {parts})", *text.still]
    if any("NormCall" in link for link in text.links):  # whose tensors belong to other modules
        condition = " and ".join(["poolable(x0)", "x0.dim() == 4", *conditions])
    else:
        conditions.append(f"settle({modules})")
        condition = f"poolable(x0) and (settled({modules}) or {' and '.join(conditions)})"
    result = f"{function}(x0, {', '.join(text.links)}{text.pool})"
    return Replacement(condition, result, {**_NAMES, **text.names})


def _example() -> Sized:
    def stage(*window: int, groups: int = 1, act: bool = True) -> list[nn.Module]:
        convolution = nn.Conv2d(58, 58, *window, groups=groups, bias=False)
        return [convolution, nn.BatchNorm2d(58), *([nn.ReLU()] if act else [])]

    layers = [*stage(1), *stage(3, 1, 1, groups=58, act=False), *stage(1)]
    return nn.Sequential(*layers), ((32, 58, 28, 28),)


def _folded_example() -> Sized:
    layers = (nn.Conv2d(24, 58, 3, padding=1, bias=False), nn.BatchNorm2d(58), nn.ReLU())
    return nn.Sequential(*layers), ((32, 24, 28, 28),)


RULES = (
    Rule(
        "conv_chain",
        False,
        partial(_find, _chains),
        partial(_prove, "linked", "apply_chain"),
        calls=(nn.BatchNorm2d,),
        links=_is_one_stage,
        starts=is_link,
        ends=_is_norm_block,
        example=_example,
    ),
    Rule(
        "conv_folded",
        False,
        partial(_find, _folded_chains),
        partial(_prove, "foldable", "apply_folded"),
        calls=(nn.Conv2d,),
        starts=is_foldable,
        ends=_is_norm_block,
        behind=POOLS,
        single=True,
        example=_folded_example,
        inference=True,
    ),
)
