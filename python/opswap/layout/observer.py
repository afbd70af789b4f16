# SPDX-License-Identifier: MIT
"""Decides what each operator does to the memory format, and who is to blame for what comes after a loss."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

from opswap.finding import Locator, Origin

from .call import Call, Operand
from .formats import Format, innermost
from .hints import inside_hint, loss_hint, one_pixel_hint, refused_hint, undone_hint, weight_hint
from .marks import Conversion, Mark, Marks
from .measured import COPIED_INSIDE
from .operators import CONVERTERS, MATRIX_PRODUCTS, REDUCTIONS
from .tally import Tally

__all__ = ["Observer"]

_REFUSALS = ("memory format", "memory_format", "channels_last", "view size is not compatible")


class Moves(Enum):
    """What an operator other than a view does to the channels in memory."""

    NO = "the innermost dimension stays"
    YES = "another dimension is innermost"
    PERHAPS = "the result has other sizes, so that dimensions cannot be compared"


class Observer:
    """Counts what calls do to the format; `on_loss` is called with the tally of every loss that is not allowed.

    Memory: one tally for each operator, line, module, phase and status, and one mark for each live storage that
    descends from a channels_last image without being one.
    """

    def __init__(
        self,
        locator: Locator,
        is_allowed: Callable[[str, Origin], bool],
        on_loss: Callable[[Tally, tuple[int, ...]], None],
    ) -> None:
        self.tallies: dict[tuple[str, str, Origin], Tally] = {}
        self._candidates: dict[tuple[str, str, Origin], Tally] = {}
        self.wrong_bytes: dict[str, int] = {}
        self.modules: dict[str, None] = {}  # by their first operator on an image
        self.operators = 0
        self.seen_channels_last = False
        self._locator = locator
        self._is_allowed = is_allowed
        self._on_loss = on_loss
        self.marks = Marks()

    def observe_ordinary(
        self, name: str, origin: Origin, shape: tuple[int, ...], moved: int, nanoseconds: int
    ) -> None:
        """Count a call that kept the format (see `ordinary_call`)."""
        self.operators += 1
        if origin.phase == "optimizer" or origin.to_leaf:
            return  # parameters and their gradients are not images
        self.seen_channels_last = True
        self._tally("kept", name, origin, str).add(shape, moved, nanoseconds)

    def observe(self, call: Call, origin: Origin) -> None:
        """Judge one call that has run."""
        self.operators += 1
        if call.weight_gradient is not None:
            self.marks.set(call.weight_gradient, Mark((), weight=True))
        if (call.aliases and not call.mutable) or call.name == "aten._unsafe_view":
            self._observe_view(call)
            return
        if origin.phase == "optimizer" or origin.to_leaf:
            return  # parameters and their gradients are not images
        if call.is_plain:
            self.seen_channels_last = True
            self._count(self._tally("kept", call.name, origin, str), call)
            return
        images, results = call.images(call.sources), call.images(call.results)
        if call.name == "aten.copy_":
            images = images[1:]
        last = [o for o in images if o.format is Format.LAST]
        outcome = _outcome(results)
        if last or outcome is Format.LAST:
            self.seen_channels_last = True
        self._settle_conversions(call, outcome)
        if outcome is Format.CONTIGUOUS or (outcome is Format.LAST and not last):
            self._confirm_spread_pixels(images, last)
        loss = next((o.mark.loss for o in images if o.mark is not None and _is_lost(o)), None)
        if outcome is Format.CONTIGUOUS:
            self._contiguous_result(call, origin, last, loss, results)
        elif outcome is Format.LAST:
            self._last_result(call, origin, images, last, loss)
        elif last:
            self._no_image_result(call, origin, outcome)
        elif loss is not None:
            self._count_downstream(call, origin, loss)
        self._pass_marks_on(call, origin, last)

    def refuse(self, name: str, origin: Origin, shape: tuple[int, ...], error: Exception) -> None:
        """Count an operator that raised because of the format of its input."""
        tally = self._tally("refused", name, origin, lambda: refused_hint(name, error))
        tally.add(shape, 0, 0)

    @staticmethod
    def is_refusal(error: Exception) -> bool:
        """True if an operator's error speaks of the memory format."""
        return isinstance(error, (RuntimeError, ValueError)) and any(part in str(error) for part in _REFUSALS)

    def _observe_view(self, call: Call) -> None:
        """A view moves nothing; but it may show that what was moved before is an image again."""
        sources = {o.key: o for o in call.sources}
        for result in call.results:
            source = sources.get(result.key)
            if source is None:
                continue
            mark = result.mark
            if mark is None:
                if source.format is Format.LAST and result.format is not Format.LAST:
                    self.marks.set(source.tensor, Mark(tuple(source.tensor.shape[2:])))
            elif result.format is Format.LAST:
                mark.candidate = None
            elif mark.spatial and _is_image_again(result, mark):
                mark.image = mark.loss is not None
                self._confirm(mark, tuple(result.tensor.shape))

    def _contiguous_result(
        self, call: Call, origin: Origin, last: list[Operand], loss: Tally | None, results: list[Operand]
    ) -> None:
        if loss is not None:
            self._count_downstream(call, origin, loss)
        elif last:
            self._lost(call, origin, results)
        else:
            self._contiguous_descendant(call, origin, results)

    def _lost(self, call: Call, origin: Origin, results: list[Operand]) -> None:
        tally = self._tally("lost", call.name, origin, lambda: loss_hint(call, origin))
        self._count(tally, call)
        for result in results:
            result.mark = Mark(tuple(result.tensor.shape[2:]), loss=tally, image=True)
            if call.name in CONVERTERS and result.format is Format.CONTIGUOUS:
                result.mark.conversion = Conversion(tally, Format.LAST, call.bytes(), call.nanoseconds)
            self.marks.set(result.tensor, result.mark)
        if not tally.allowed:
            self._on_loss(tally, call.shape())

    def _contiguous_descendant(self, call: Call, origin: Origin, results: list[Operand]) -> None:
        """No source is in channels_last, but one may descend from such an image."""
        pixels = [
            o for o in call.sources if o.format is Format.AMBIGUOUS and (o.mark is None or not o.mark.spatial)
        ]
        if pixels and len(pixels) == len(call.images(call.sources)):
            descends = any(o.mark is not None for o in pixels)
            if descends or origin.phase == "backward":
                self._note_spread_pixel(call, origin, results[0], descends=descends)
            return
        for result in results:
            for source in call.sources:
                mark = source.mark
                if mark is None or mark.loss is not None or mark.candidate is None or mark.unproven:
                    continue
                if _is_image_again(result, mark):
                    shape = tuple(result.tensor.shape)
                    result.mark = Mark(shape[2:], mark.candidate, mark.candidate_bytes)
                    result.mark.candidate_nanoseconds = mark.candidate_nanoseconds
                    self.marks.set(result.tensor, result.mark)
                    self._confirm(result.mark, shape)
                    return
        if call.name == "aten.stack" and any(_is_slice_of(o, results[0]) for o in call.sources):
            self._lost(call, origin, results)

    def _note_spread_pixel(self, call: Call, origin: Origin, result: Operand, *, descends: bool) -> None:
        """An image made of one pixel per channel is contiguous; it may yet meet a channels_last operand that decides.

        descends: the pixel was computed from a channels_last image. If that is not known, only an operator that has
        another operand in channels_last shows that the format was wanted.
        """
        candidate = self._candidate(call, origin, one_pixel_hint(call, origin.phase == "backward"))
        result.mark = Mark(tuple(result.tensor.shape[2:]), candidate, call.bytes(), call.nanoseconds)
        result.mark.image, result.mark.unproven = True, not descends
        self.marks.set(result.tensor, result.mark)

    def _count_downstream(self, call: Call, origin: Origin, loss: Tally) -> None:
        moved = call.bytes()
        self.modules[origin.module] = None
        loss.add_downstream(moved, call.nanoseconds)
        self.wrong_bytes[origin.module] = self.wrong_bytes.get(origin.module, 0) + moved

    def _confirm_spread_pixels(self, images: list[Operand], last: list[Operand]) -> None:
        """A contiguous image that was spread from one pixel met no channels_last operand that decides."""
        for operand in images:
            mark = operand.mark
            if mark is None or not mark.image or operand.format is not Format.CONTIGUOUS:
                continue
            if last or not mark.unproven:
                self._confirm(mark, tuple(operand.tensor.shape))

    def _confirm(self, mark: Mark, shape: tuple[int, ...]) -> None:
        """An image in contiguous format came of what the candidate wrote."""
        candidate = mark.candidate
        if candidate is None:
            return
        mark.loss, mark.candidate, mark.image = candidate, None, True
        candidate.add(shape, mark.candidate_bytes, mark.candidate_nanoseconds)
        self.tallies[candidate.status, candidate.op, candidate.origin] = candidate
        if not candidate.allowed:
            self._on_loss(candidate, shape)

    def _last_result(
        self, call: Call, origin: Origin, images: list[Operand], last: list[Operand], loss: Tally | None
    ) -> None:
        if not last:
            self._restored(call, origin, images, loss)
        elif call.weight is not None and call.weight[1] is Format.CONTIGUOUS:
            weight = call.weight[0]
            name = self._locator.parameter_name(weight)
            tally = self._tally("copied inside", call.name, origin, lambda: weight_hint(name, weight))
            tally.add(call.shape(), 2 * weight.nbytes, call.nanoseconds)
        elif self._copies_inside(call):
            self._count_inside(call, origin)
        elif call.asks_for_format and call.name in CONVERTERS and _same_strides(last[0], call.results):
            self._count(self._tally("needless", call.name, origin, lambda: undone_hint("")), call)
        else:
            self._count(self._tally("kept", call.name, origin, str), call)

    def _restored(self, call: Call, origin: Origin, images: list[Operand], loss: Tally | None) -> None:
        before = next((o for o in images if o.format in (Format.CONTIGUOUS, Format.OTHER)), None)
        if before is None:
            return
        copied = 2 * before.tensor.nbytes
        if loss is not None:
            loss.add_downstream(copied, call.nanoseconds)
        tally = self._tally("restored", call.name, origin, str)
        tally.add(call.shape(), copied, call.nanoseconds)
        if call.name in CONVERTERS and before.format is Format.CONTIGUOUS:
            for result in call.results:
                conversion = Conversion(tally, Format.CONTIGUOUS, copied, call.nanoseconds)
                result.mark = Mark(tuple(result.tensor.shape[2:]), conversion=conversion)
                self.marks.set(result.tensor, result.mark)

    def _no_image_result(self, call: Call, origin: Origin, outcome: Format) -> None:
        if self._copies_inside(call):
            self._count_inside(call, origin)
        else:
            status = "ambiguous" if outcome is Format.AMBIGUOUS else "kept"
            self._count(self._tally(status, call.name, origin, str), call)

    def _copies_inside(self, call: Call) -> bool:
        return call.name in COPIED_INSIDE and call.sources[0].tensor.device.type == "cpu"

    def _count_inside(self, call: Call, origin: Origin) -> None:
        tally = self._tally("copied inside", call.name, origin, lambda: inside_hint(call.name))
        moved = 2 * sum(o.tensor.nbytes for o in call.sources if o.format is Format.LAST)
        tally.add(call.shape(), moved, call.nanoseconds)

    def _settle_conversions(self, call: Call, outcome: Format) -> None:
        """A conversion that its first reader undoes was needless.

        From contiguous to channels_last that is another conversion: an operator that loses the format is a fault of
        its own.
        """
        for operand in call.sources:
            mark = operand.mark
            if mark is None or mark.conversion is None:
                continue
            conversion, mark.conversion = mark.conversion, None
            deliberate = outcome is Format.LAST or call.name in CONVERTERS
            if deliberate and outcome is conversion.before and outcome is not operand.format:
                tally = conversion.tally
                tally.take_back(conversion.bytes, conversion.nanoseconds)
                hint = partial(undone_hint, call.name, tally.origin)
                needless = self._tally("needless", tally.op, tally.origin, hint)
                needless.add(tuple(operand.tensor.shape), conversion.bytes, conversion.nanoseconds)
                if mark.loss is not None:
                    mark.loss = needless  # what the reader pays to bring the format back is charged there

    def _pass_marks_on(self, call: Call, origin: Origin, last: list[Operand]) -> None:
        """Results that are not channels_last images descend from one, or from what was lost."""
        marked = [(o, o.mark) for o in call.sources if o.mark is not None and not o.mark.unproven]
        lost = ((o, mark) for o, mark in marked if mark.loss is not None)
        parent, known = next(lost, None) or next(iter(marked), (None, None))
        source = next(iter(last), None) or parent
        if source is None:
            return
        for result in call.results if call.is_list else call.results[:1]:
            if result.format is Format.LAST:
                if result.mark is not None and result.mark.loss is not None:
                    self.marks.drop(result.key)  # written again, in channels_last
            elif result.mark is None:
                result.mark = self._descendant(known, source, result, call, origin)
                self.marks.set(result.tensor, result.mark)

    def _descendant(
        self, parent: Mark | None, source: Operand, result: Operand, call: Call, origin: Origin
    ) -> Mark:
        mark = Mark(parent.spatial if parent is not None else tuple(source.tensor.shape[2:]))
        is_image = result.format is not Format.NONE
        if parent is not None and parent.loss is not None:
            mark.loss, mark.image = parent.loss, is_image and parent.image
            if mark.image:
                mark.spatial = tuple(result.tensor.shape[2:])
        elif result.format is Format.AMBIGUOUS or call.name in REDUCTIONS:
            mark.spatial = ()
        else:
            self._set_candidate(mark, parent, source, result, call, origin)
        return mark

    def _set_candidate(
        self, mark: Mark, parent: Mark | None, source: Operand, result: Operand, call: Call, origin: Origin
    ) -> None:
        moves = _moves_channels(call, source, result)
        known = parent is not None and parent.candidate is not None
        if parent is not None and known and (not parent.surmised or moves is Moves.NO):
            mark.candidate, mark.surmised = parent.candidate, parent.surmised
            mark.candidate_bytes = parent.candidate_bytes
            mark.candidate_nanoseconds = parent.candidate_nanoseconds
        elif moves is not Moves.NO:
            mark.candidate, mark.surmised = self._candidate(call, origin), moves is Moves.PERHAPS
            mark.candidate_bytes = source.tensor.nbytes + result.tensor.nbytes
            mark.candidate_nanoseconds = call.nanoseconds

    def _candidate(self, call: Call, origin: Origin, hint: str = "") -> Tally:
        """The tally that a loss would be counted in, which is not in the report before it is confirmed."""
        key = ("lost", call.name, origin)
        tally = self.tallies.get(key) or self._candidates.get(key)
        if tally is None:
            tally = self._candidates[key] = self._new_tally(*key, hint or loss_hint(call, origin))
        return tally

    def _new_tally(self, status: str, op: str, origin: Origin, hint: str) -> Tally:
        self.modules[origin.module] = None
        tally = Tally(status, op, origin, hint)
        tally.allowed = self._is_allowed(op, origin)
        return tally

    def _tally(self, status: str, op: str, origin: Origin, hint: Callable[[], str]) -> Tally:
        key = (status, op, origin)
        tally = self.tallies.get(key)
        if tally is None:
            tally = self._candidates.get(key) or self._new_tally(*key, hint())
            self.tallies[key] = tally
        return tally

    def _count(self, tally: Tally, call: Call) -> None:
        tally.add(call.shape(), call.bytes(), call.nanoseconds)


def _outcome(results: list[Operand]) -> Format:
    """The format of the results together: contiguous if any is."""
    formats = {o.format for o in results}
    for format in (Format.CONTIGUOUS, Format.LAST, Format.AMBIGUOUS, Format.OTHER):
        if format in formats:
            return format
    return Format.NONE


def _moves_channels(call: Call, source: Operand, result: Operand) -> Moves:
    """Whether the dimension that is innermost in the source is so no longer in the result."""
    if call.name in MATRIX_PRODUCTS:
        # The columns of the right factor become the innermost dimension: channels, unless the rows were.
        right = call.sources[-1]
        rows_first = right.mark is not None and innermost(right.tensor) != right.tensor.dim() - 1
        return Moves.PERHAPS if rows_first else Moves.NO
    if source.tensor.shape == result.tensor.shape:
        return Moves.YES if innermost(source.tensor) != innermost(result.tensor) else Moves.NO
    return Moves.PERHAPS


def _is_lost(operand: Operand) -> bool:
    mark = operand.mark
    return mark is not None and mark.loss is not None and mark.image and operand.format is not Format.LAST


def _is_image_again(result: Operand, mark: Mark) -> bool:
    if result.format is not Format.CONTIGUOUS:
        return False
    return tuple(result.tensor.shape[2:]) == mark.spatial


def _is_slice_of(part: Operand, whole: Operand) -> bool:
    """Images or channels of a channels_last image, one by one, of which a contiguous image is stacked."""
    mark = part.mark
    if mark is None or mark.loss is not None or mark.unproven or not mark.spatial:
        return False
    return part.format is Format.NONE and _is_image_again(whole, mark)


def _same_strides(source: Operand, results: list[Operand]) -> bool:
    return any(
        source.tensor.stride() == r.tensor.stride() and source.tensor.dtype == r.tensor.dtype for r in results
    )
