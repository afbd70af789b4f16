# SPDX-License-Identifier: MIT
"""Dropout while a model trains: the function, and torch's own module, whose forward calls it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap import functional as F
from opswap.ops.dropout import draws_alike

from ..rule import Refusal, Region, Replacement, Rule, Shapes
from .conditions import poolable

__all__ = ["RULES"]


def _find(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        if node.op == "call_function" and node.target in (torch_functional.dropout, torch.dropout):
            yield Region(tuple(node.all_input_nodes), None, (node,), (node,), node, node, "")


def _signature(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> None:
    """The arguments of the function; torch.dropout calls the third one `train`."""


def _prove(region: Region, shapes: Shapes) -> Replacement:
    """The generator's numbers are compared once, on this CPU; the kernel then draws the same ones."""
    node = region.mixing
    given = {"training" if name == "train" else name: value for name, value in node.kwargs.items()}
    call = inspect.signature(_signature).bind(*node.args, **given)
    call.apply_defaults()
    arguments = call.arguments
    if arguments["training"] is False:
        raise Refusal("it returns its input", report=False)
    if arguments["inplace"] is True:
        raise Refusal("it writes over its input: with inplace=False it is replaced")
    if not draws_alike():
        raise Refusal("torch draws random numbers in another way on this CPU")
    names = {n: f"x{i}" for i, n in enumerate(region.inputs)}
    texts = {k: names[v] if isinstance(v, Node) else repr(v) for k, v in arguments.items()}
    return Replacement(
        f"{texts['training']} and poolable({texts['input']})",
        f"dropout({', '.join(texts.values())})",
        {"dropout": F.dropout, "poolable": poolable},
    )


RULES = (Rule("dropout", True, _find, _prove, (nn.Dropout,), lambda: (nn.Dropout(0.5), ((8, 64, 18, 44),))),)
