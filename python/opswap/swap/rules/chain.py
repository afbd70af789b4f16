# SPDX-License-Identifier: MIT
"""Convolutions that follow each other, 1 x 1 and depthwise, each with its BatchNorm and activation.

ShuffleNetV2's branches, and the blocks of MobileNetV1 and V2, MnasNet and Xception without what is added to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.fx import Graph, Node

from opswap.nn.chain import apply_chain
from opswap.ops.chain import FEWEST_CHANNELS, MOST_CHANNELS, MOST_STAGES, MOST_WEIGHTS, chain_wins
from opswap.ops.norm import spell

from ..rule import Region, Replacement, Rule, Shapes
from ..runtime.guards import unhooked
from ..runtime.state import stock_class
from .activation import activation, activation_of
from .norm import behind, module_calls, normable, problem_of

__all__ = ["RULES", "is_link", "linked"]

_ACTIVATIONS = ("relu", "relu6", "hardtanh", "hardswish")
_FEWEST_STAGES = 2  # a single one gains little over its parts


def is_link(module: nn.Module) -> bool:
    """True for a convolution that a chain may hold, by its options alone."""
    if stock_class(module) is not nn.Conv2d or module.bias is not None or module.padding_mode != "zeros":
        return False
    side = module.kernel_size[0]
    if not min(module.in_channels, module.out_channels) >= FEWEST_CHANNELS:
        return False
    if max(module.in_channels, module.out_channels) > MOST_CHANNELS or module.dilation != (1, 1):
        return False
    if module.kernel_size != (side, side) or module.padding != (side // 2, side // 2):
        return False
    if side == 1:
        return module.groups == 1 and module.stride == (1, 1) and module.weight.numel() <= MOST_WEIGHTS
    depthwise = module.groups == module.in_channels == module.out_channels
    return depthwise and side in (3, 5) and module.stride in ((1, 1), (2, 2))


def linked(*modules: nn.Module) -> bool:
    """True while convolutions, then as many normalisations, are what a chain holds."""
    half = len(modules) // 2
    for convolution, norm in zip(modules[:half], modules[half:], strict=True):
        if not is_link(convolution) or stock_class(norm) is not nn.BatchNorm2d:
            return False
    return True


def _stage(node: Node) -> tuple[Node, ...]:
    """A convolution, its normalisation and what is behind that; () if a chain cannot hold them."""
    if node.op != "call_module" or not is_link(node.meta["module"]) or len(node.users) != 1:
        return ()
    (norm,) = node.users
    if norm.op != "call_module" or type(norm.meta["module"]) is not nn.BatchNorm2d:
        return ()
    rest = behind(norm)
    found = activation(rest[-1]) if rest else None
    if rest and (found is None or found[0] not in _ACTIVATIONS):
        rest = ()  # the chain ends with the normalisation
    return (node, norm, *rest)


def _chain(node: Node) -> list[tuple[Node, ...]]:
    stages: list[tuple[Node, ...]] = []
    stage = _stage(node)
    while stage and len(stages) < MOST_STAGES:
        stages.append(stage)
        users = tuple(stage[-1].users)
        stage = _stage(users[0]) if len(users) == 1 else ()
    return stages


def _stages_of(region: Region) -> list[tuple[Node, ...]]:
    starts = [i for i, n in enumerate(region.nodes) if n.op == "call_module" and is_link(n.meta["module"])]
    return [region.nodes[a:b] for a, b in zip(starts, [*starts[1:], len(region.nodes)], strict=True)]


def _find(graph: Graph) -> Iterator[Region]:
    taken: set[Node] = set()
    for node in graph.nodes if chain_wins() else ():
        stages = _chain(node) if node not in taken else []
        if len(stages) < _FEWEST_STAGES:
            continue
        taken.update(n for stage in stages for n in stage)
        nodes = tuple(n for stage in stages for n in stage)
        inputs = tuple(node.all_input_nodes)
        problem = problem_of(nodes)
        yield Region(inputs, None, nodes, nodes[-1:], node, nodes[-1], problem, module_calls(nodes))


def _prove(region: Region, shapes: Shapes) -> Replacement:
    """The graph holds torch's own modules, so that no run has to show what they compute."""
    calls = module_calls(region.nodes)
    name = {node: f"m{i}" for i, node in enumerate(calls)}
    links, still, convolutions, norms = [], [], [], []
    for convolution, norm, *rest in _stages_of(region):
        found = activation(rest[-1]) if rest else None
        for node in rest:
            kind = activation(node)
            if node in name and kind is None:
                still.append(f"stock_class({name[node]}) is Identity")
            elif node in name:
                still.append(f"activation_of({name[node]}) == {kind!r}")
        convolutions.append(name[convolution])
        norms.append(name[norm])
        links.append(f"({name[convolution]}, {name[norm]}, {spell(*found) if found else None!r})")
    conditions = (
        f"unhooked({', '.join(name.values())})",
        f"normable({norms[0]}, x0)",
        f"linked({', '.join(convolutions + norms)})",
        *still,
    )
    names: dict[str, Any] = {
        "unhooked": unhooked,
        "normable": normable,
        "linked": linked,
        "activation_of": activation_of,
        "stock_class": stock_class,
        "Identity": nn.Identity,
        "apply_chain": apply_chain,
    }
    return Replacement(" and ".join(conditions), f"apply_chain(x0, {', '.join(links)})", names)


def _example() -> tuple[nn.Module, tuple[tuple[int, ...], ...]]:
    def stage(*window: int, groups: int = 1, act: bool = True) -> list[nn.Module]:
        convolution = nn.Conv2d(58, 58, *window, groups=groups, bias=False)
        return [convolution, nn.BatchNorm2d(58), *([nn.ReLU()] if act else [])]

    layers = [*stage(1), *stage(3, 1, 1, groups=58, act=False), *stage(1)]
    return nn.Sequential(*layers), ((32, 58, 28, 28),)


RULES = (Rule("conv_chain", False, _find, _prove, calls=(nn.BatchNorm2d,), example=_example),)
