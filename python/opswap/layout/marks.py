# SPDX-License-Identifier: MIT
"""What is known of the memory behind tensors: descends from a channels_last image, lost the format, was converted."""

from __future__ import annotations

from dataclasses import dataclass

from opswap.finding.storages import Storages

from .formats import Format
from .tally import Tally

__all__ = ["Conversion", "Mark", "Marks"]


@dataclass(slots=True)
class Conversion:
    """A copy that did nothing but change the format; needless if the next operator changes it back.

    tally: where the copy was counted. before: the format of its source. bytes: what it moved.
    """

    tally: Tally
    before: Format
    bytes: int
    nanoseconds: int


@dataclass(slots=True)
class Mark:
    """One storage that holds, or was computed from, what was a channels_last image.

    spatial: sizes after the channels of that image, () if a reduction left one pixel: a 4-D tensor of these sizes
        is an image again, any other (scores of an attention, windows) is not.
    candidate: the operator that moved the channels away from the innermost place; the culprit if an image in
        contiguous format comes of it. surmised: it computed something of another shape, so that a copy after it that
        moves the channels is the better candidate.
    unproven: that a channels_last image comes into it is not known; a reader with such an operand would prove it.
    loss: the culprit, once it is known. image: written as an image.
    conversion: the copy that wrote it, until somebody reads it.
    weight: it is the gradient of a weight that the forward computed, and no image.
    """

    spatial: tuple[int, ...]
    candidate: Tally | None = None
    candidate_bytes: int = 0
    candidate_nanoseconds: int = 0
    surmised: bool = False
    unproven: bool = False
    loss: Tally | None = None
    image: bool = False
    conversion: Conversion | None = None
    weight: bool = False


Marks = Storages[Mark]
