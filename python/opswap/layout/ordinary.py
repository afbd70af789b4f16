# SPDX-License-Identifier: MIT
"""The calls that most are: channels_last images in and out, nothing else known of them. Judged without objects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from opswap.finding.operators import SKIPPED, is_view, op_name
from opswap.finding.storages import storage_key

from .marks import Marks
from .measured import COPIED_INSIDE
from .operators import CONVERTERS, NOT_IMAGES, WEIGHTS

__all__ = ["NOTHING", "Known", "ordinary_call"]

_STRIDED, _LAST = torch.strided, torch.channels_last
_SCALARS = frozenset({type(None), int, float, bool, str})
_SEQUENCES = frozenset({tuple, list})

# What `ordinary_call` returns of a call that has nothing to do with images.
NOTHING: tuple[tuple[int, ...], int] = ((), 0)


class Known:
    """What does not change between calls of an operator.

    name: "aten.clone". skipped: it looks at no data. ordinary: `ordinary_call` may judge its calls. weight_at: the
    place of a convolution's weight among the arguments, -1 for none; gradient_at: of its gradient among the results.
    func: keeps the operator, and with it its id, alive.
    """

    __slots__ = ("func", "gradient_at", "name", "ordinary", "skipped", "weight_at")

    def __init__(self, func: Any, is_operator: bool) -> None:
        # A higher-order operator such as torch.cond is skipped; the operators that it calls are seen.
        self.func, self.name = func, op_name(func) if is_operator else "aten.detach"
        self.skipped = self.name in SKIPPED
        special = self.name in CONVERTERS or self.name in COPIED_INSIDE or self.name == "aten._unsafe_view"
        elsewhere = self.name in NOT_IMAGES and self.name not in WEIGHTS
        self.ordinary = is_operator and not (special or elsewhere or is_view(func))
        self.weight_at = WEIGHTS.get(self.name, -1)
        self.gradient_at = NOT_IMAGES.get(self.name, (0, None))[1]


def ordinary_call(
    known: Known, args: tuple[Any, ...], out: Any, marks: Marks
) -> tuple[tuple[int, ...], int] | None:
    """The sizes of the first image and the bytes of all of them, NOTHING, or None: `make_call` has to look.

    Not None only for dense 4-D tensors on the CPU that are channels_last and unmarked, arguments and results.
    """
    first: Tensor | None = None
    total = 0
    for place, value in enumerate(args):
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            if place == known.weight_at:
                if not _keeps_weight(value) or (known.gradient_at and kind is Tensor):
                    return None  # to be converted; or computed, whose gradient is noted
                continue
            if kind is Parameter:
                if value.dim() > 1:
                    return None
                continue
            parts: Any = (value,)
        elif kind in _SCALARS:
            continue
        elif kind in _SEQUENCES:
            parts = value
        else:
            return None
        for part in parts:
            moved = _bytes_of_source(part, marks)
            if moved < 0:
                return None
            if moved and first is None:
                first = part
            total += moved
    written = _bytes_of_results(known, out, marks)
    if first is not None:
        return (tuple(first.shape), total + written) if written > 0 else None
    return NOTHING if written == 0 else None


def _bytes_of_results(known: Known, out: Any, marks: Marks) -> int:
    """Of the images among them; -1 if `make_call` has to look."""
    if type(out) is Tensor:
        return _bytes(out, marks)
    if type(out) not in _SEQUENCES:
        return -1
    total = 0
    for place, part in enumerate(out):
        if place == known.gradient_at:
            continue
        beside = place and type(out) is tuple and type(part) is Tensor
        if beside and (part.dim() < 4 or not part.is_floating_point()):
            continue  # statistics; indices, offsets, masks
        moved = _bytes(part, marks)
        if moved < 0:
            return -1
        total += moved
    return total


def _bytes_of_source(value: Any, marks: Marks) -> int:
    """As `_bytes`; an argument of two or three dimensions is not an image, but a result may be made of an image."""
    if type(value) is Tensor and 1 < value.dim() < 4:
        return 0 if not marks or marks.get(storage_key(value)) is None else -1
    return _bytes(value, marks)


def _bytes(value: Any, marks: Marks) -> int:
    """Of an image; 0 for a tensor that neither is an image nor was computed from one, -1 if that is not known yet."""
    if type(value) is not Tensor:
        return 0 if type(value) in _SCALARS else -1
    if value.dim() < 2:
        return 0
    if value.layout is not _STRIDED or not value.is_cpu or value.is_nested:
        return -1
    if value.is_contiguous() or not value.is_contiguous(memory_format=_LAST):
        return -1
    if marks and marks.get(storage_key(value)) is not None:
        return -1
    return value.nbytes


def _keeps_weight(weight: Tensor) -> bool:
    """False if the weight may be in contiguous format, which the operator then converts."""
    return weight.layout is _STRIDED and weight.is_contiguous(memory_format=_LAST)
