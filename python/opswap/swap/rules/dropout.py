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
from opswap.ops.dropout import FEWEST, draws_alike, dropout_pays

from ..rule import Refusal, Region, Replacement, Rule, Shapes, calls_of, named
from ..runtime.condition_texts import describe_condition
from .conditions import on_cpu, poolable
from .dropout_add import MODULES, OF_CHANNELS
from .kept import elements

__all__ = ["RULES"]


_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_FUNCTIONS_ALPHA = (torch_functional.alpha_dropout, torch_functional.feature_alpha_dropout)
# torch draws a number per channel and multiplies once, at the speed of memory. Rule dropout_add joins an addition.
_AS_FAST = "torch is as fast: {} alone multiplies by one number per channel"
_NO_KERNEL = "no kernel for {}, which keeps mean and variance"


def _declines(module: nn.Module) -> str | None:
    text = _AS_FAST if type(module) in OF_CHANNELS else _NO_KERNEL
    return text.format(type(module).__name__) if module.p > 0 else None


def _find_another(graph: Graph) -> Iterator[Region]:
    return calls_of((*OF_CHANNELS, *_FUNCTIONS_ALPHA), graph)


def _refuse(region: Region, shapes: Shapes) -> Replacement:
    function = region.main.target
    text = _AS_FAST if function in OF_CHANNELS else _NO_KERNEL
    raise Refusal(text.format(function.__name__))


def _find(graph: Graph) -> Iterator[Region]:
    return calls_of((torch_functional.dropout, torch.dropout), graph)


def _signature(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> None:
    """The arguments of the function; torch.dropout calls the third one `train`."""


def _prove(region: Region, shapes: Shapes) -> Replacement:
    """The generator's numbers are compared once, on this CPU; the kernel then draws the same ones."""
    node = region.main
    given = {"training" if name == "train" else name: value for name, value in node.kwargs.items()}
    call = inspect.signature(_signature).bind(*node.args, **given)
    call.apply_defaults()
    arguments = call.arguments
    if arguments["training"] is False or arguments["p"] == 0:
        raise Refusal("it returns its input", report=False)
    if arguments["inplace"] is True:
        raise Refusal("it writes over its input: with inplace=False it is replaced")
    if not draws_alike():
        raise Refusal("torch draws random numbers in another way on this CPU")
    texts = {k: region.names[v] if isinstance(v, Node) else repr(v) for k, v in arguments.items()}
    return Replacement(
        f"{texts['training']} and poolable({texts['input']}) and dropout_pays({texts['input']})",
        f"dropout({', '.join(texts.values())})",
        named(F.dropout, poolable, dropout_pays),
    )


def _too_small(input: Tensor) -> str:
    return elements(input, FEWEST) if on_cpu(input) else f"no kernel for {input.device.type}"


describe_condition(dropout_pays, _too_small)

_NEVER = Replacement("False", "x0", {})
RULES = (
    Rule("dropout", True, _find, _prove, (nn.Dropout,), lambda: (nn.Dropout(0.5), ((8, 64, 18, 44),))),
    Rule("dropout", True, modules=MODULES + _ALPHA, whole=_NEVER, declines=_declines),
    Rule("dropout", True, _find_another, _refuse),
)
