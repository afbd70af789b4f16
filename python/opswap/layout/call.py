# SPDX-License-Identifier: MIT
"""One call of an operator: which of its tensors are images, in which format, with which marks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from opswap.finding.operators import tensors_in
from opswap.finding.storages import storage_key

from .formats import Format, format_of
from .marks import Mark, Marks
from .measured import COPIED_INSIDE
from .operators import CONVERTERS, NOT_IMAGES, WEIGHTS

_STRIDED = torch.strided
_SPECIAL = CONVERTERS | COPIED_INSIDE

__all__ = ["Call", "Operand", "make_call"]


@dataclass(slots=True, eq=False)
class Operand:
    """A tensor, its format, the identity of its memory and what is known of that."""

    tensor: Tensor
    format: Format
    key: int
    mark: Mark | None


@dataclass(slots=True, eq=False)
class Call:
    """The tensors of one call that matter.

    sources, results: all strided tensors of 3 dimensions and more, and of 2 if they descend from an image; weights
    and parameters left out. mutable: it writes one of its arguments. weight: of a convolution, with the format;
    weight_gradient: of one that is no parameter, but computed.
    parameters: images among the arguments that are parameters. asks_for_format: called with a memory_format.
    is_list: the output is a list, whose members are alike; of a tuple, the first is what the operator is called for.
    """

    name: str
    func: Any
    arguments: tuple[Any, ...]
    sources: list[Operand]
    results: list[Operand]
    mutable: bool
    weight: tuple[Tensor, Format] | None = None
    weight_gradient: Tensor | None = None
    parameters: list[Tensor] = field(default_factory=list)
    asks_for_format: bool = False
    is_list: bool = False
    nanoseconds: int = 0

    @property
    def aliases(self) -> bool:
        """Every result lies in the memory of a source: a view, or an operator in place."""
        if not self.results:
            return False
        keys = {o.key for o in self.sources}
        return all(o.key in keys for o in self.results)

    @property
    def is_plain(self) -> bool:
        """Images in channels_last in and out: the most frequent calls, recognised quickly."""
        if not (self.results and self.sources) or self.name in _SPECIAL:
            return False
        if self.weight is not None and self.weight[1] is Format.CONTIGUOUS:
            return False
        return all(o.mark is None and o.format is Format.LAST for o in (*self.sources, *self.results))

    def images(self, operands: list[Operand]) -> list[Operand]:
        return [o for o in operands if o.format is not Format.NONE]

    def bytes(self) -> int:
        """What reading the sources and writing the results once moves, images only."""
        moved = 0
        for operand in (*self.sources, *self.results):
            if operand.format is not Format.NONE:
                moved += operand.tensor.nbytes
        return moved

    def shape(self) -> tuple[int, ...]:
        """The sizes of the first image."""
        for operand in (*self.sources, *self.results):
            if operand.format is not Format.NONE:
                return tuple(operand.tensor.shape)
        return tuple(self.sources[0].tensor.shape) if self.sources else ()


def make_call(
    name: str,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
    nanoseconds: int,
    marks: Marks,
) -> Call | None:
    """The call, or None if it has nothing to do with images."""
    other_at, gradient_at = NOT_IMAGES.get(name, (None, None))
    other = args[other_at] if other_at is not None and len(args) > other_at else None
    sources: list[Operand] = []
    parameters: list[Tensor] = []
    fewest = 2 if marks else 4
    for tensor in tensors_in((*args, *kwargs.values()) if kwargs else args):
        if tensor.dim() < fewest or tensor is other or not _is_plain(tensor):
            continue
        if type(tensor) is not Tensor and isinstance(tensor, Parameter):
            parameters.append(tensor)
            continue
        operand = _operand(tensor, marks)
        if operand.format is Format.NONE if operand.mark is None else operand.mark.weight:
            continue
        sources.append(operand)
    results = _results(name, out, gradient_at, parameters, marks, 2 if sources else 4)
    if not (sources or results):
        return None
    call = Call(name, func, args, sources, results, func._schema.is_mutable, parameters=parameters)
    call.nanoseconds = nanoseconds
    call.is_list = isinstance(out, list)
    if kwargs:
        call.asks_for_format = kwargs.get("memory_format", torch.preserve_format) is not torch.preserve_format
    if name in WEIGHTS and other is not None:
        call.weight = other, format_of(other)
        if gradient_at is not None and type(other) is Tensor:
            call.weight_gradient = out[gradient_at]
    return call


def _results(
    name: str,
    out: Any,
    gradient_at: int | None,
    parameters: list[Tensor],
    marks: Marks,
    fewest: int,
) -> list[Operand]:
    """The results, without what nothing computes on further as on an image."""
    if type(out) is Tensor:
        outputs, is_tuple = [out], False
    else:
        outputs, is_tuple = tensors_in(out), isinstance(out, tuple)
    results = []
    weights = [p.shape for p in parameters] if parameters and name.endswith("_backward") else ()
    floating = len(outputs) > 1 and any(t.is_floating_point() for t in outputs)
    for place, tensor in enumerate(outputs):
        if place == gradient_at or tensor.dim() < fewest or not _is_plain(tensor) or tensor.shape in weights:
            continue
        if floating and not tensor.is_floating_point():
            continue  # indices, offsets, masks
        operand = _operand(tensor, marks)
        if operand.mark is not None and operand.mark.weight:
            continue
        if operand.format is Format.NONE and ((is_tuple and place) or fewest == 4):
            continue  # statistics; no image of no image
        results.append(operand)
    return results


def _operand(tensor: Tensor, marks: Marks) -> Operand:
    key = storage_key(tensor)
    return Operand(tensor, format_of(tensor), key, marks.get(key))


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is _STRIDED and not (tensor.is_meta or tensor.is_nested)
