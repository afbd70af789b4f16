# SPDX-License-Identifier: MIT
"""Prove what a region does by running it on numbered elements.

Every element of a probe carries its own number, so that one run shows where each element goes: nothing is
believed about the region that no run has shown. Sizes on which the region cannot be run are outside of the
proof, and the rewritten forward sends them to the original code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from ...graph.aliasing import escape_or_write
from ...rule import UNPROBED, Refusal, Region
from .regions import FOREIGN_SIZES

__all__ = ["Shuffle", "prove_shuffle"]

_BATCHES = (2, 3, 1)
_TAILS = {
    4: [(5, 7), (7, 5), (1, 1)],
    3: [(7,), (5,), (1,)],
    5: [(2, 5, 7), (3, 7, 5), (1, 1, 1)],
    2: [(), (), ()],
}
_CHANNELS = (24, 48, 72, 120)
# Above every other size of a probe, so that the channels cannot be taken for one of them.
_CONSTANT_CHANNELS = range(8, 4097)


@dataclass(frozen=True)
class Shuffle:
    """A region is channel_shuffle(cat(inputs, 1), groups, inverse) cut into sections.

    sections: None for one output, a number as an argument of torch.chunk, or the channels of every output.
    ndims, channels, spatial, batches: the sizes the proof holds for, as arguments of `conditions.within_proof`.
    views: contiguous inputs give views of themselves.
    """

    groups: int  # 1 if it does not move any channel
    inverse: bool
    sections: int | tuple[int, ...] | None
    ndims: tuple[int, ...]
    channels: tuple[int, ...] | None = None
    spatial: tuple[tuple[int, ...], ...] | None = None
    batches: tuple[int, ...] | None = None
    views: bool = False


@dataclass(frozen=True)
class _Result:
    """What one probe showed: the shuffle has `groups` groups; the outputs have `cuts` channels."""

    shape: tuple[int, ...]
    groups: int
    cuts: tuple[int, ...]
    views: bool


def prove_shuffle(region: Region, shapes: Iterable[tuple[int, ...]] = ()) -> Shuffle:
    """Show that the region's body is one channel shuffle.

    Args: shapes: sizes of the source that were seen in a run, for regions with constants in them.
    Raises: Refusal with the reason.
    """
    if region.problem == FOREIGN_SIZES:
        raise Refusal(region.problem, executed=False)
    key = _text(region, shapes)
    found = _PROVEN.get(key)
    if found is None:
        found = _prove(region, shapes)
        if len(_PROVEN) == _MOST:
            _PROVEN.clear()
        _PROVEN[key] = found
    writer = escape_or_write(region.source, region.outputs) if found.views and found.groups > 1 else ""
    if writer:
        raise Refusal(f"it returns views of its input, which {writer} may write to")
    return found


# What was proven of a text, which the blocks of a network share.
_PROVEN: dict[str, Shuffle] = {}
_MOST = 256


def _text(region: Region, shapes: Iterable[tuple[int, ...]]) -> str:
    """A text of the region; regions that do the same have equal texts."""
    names = {node: f"%{i}" for i, node in enumerate((region.source, *region.body))}
    lines = [
        f"{node.op} {node.target!r} {map_arg((node.args, node.kwargs), lambda n: names[n])!r}"
        for node in region.body
    ]
    return "\n".join([*lines, *(names[n] for n in region.outputs), repr(sorted(set(shapes)))])


def _prove(region: Region, shapes: Iterable[tuple[int, ...]]) -> Shuffle:
    constants = sorted({abs(c) for n in region.body for c in _integers((n.args, n.kwargs)) if abs(c) > 1})
    channels = sorted({*_CHANNELS, *(12 * c for c in constants[:4])})
    failures = _Failures()
    found = _over_channels(region, channels, failures, any_channels=True)
    if found is None:
        found = _over_channels(region, _candidates(constants), failures, any_channels=False)
    if found is None:
        found = _over_shapes(region, shapes, failures)
    if found is None:
        raise failures.best()
    return found


class _Failures(list[Refusal]):
    """Refusals of single probes; `understood` is one of a number of dimensions at which every probe ran."""

    understood: Refusal | None = None

    def best(self) -> Refusal:
        """The most informative one: what the region does, before that it could not be run."""
        seen = next((f for f in self if f.executed and f.report), self.understood)
        return seen or next((f for f in self if not f.executed), self[0])


def _integers(value: Any) -> Iterable[int]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _integers(v)
    elif isinstance(value, dict):
        yield from _integers(tuple(value.values()))
    elif isinstance(value, slice):
        yield from _integers((value.start, value.stop, value.step))


def _candidates(constants: Sequence[int]) -> list[int]:
    """Numbers of channels for which a view or a split with these constants may have been written."""
    pairs = list(itertools.combinations_with_replacement(constants, 2))
    numbers = {*constants, *(a * b for a, b in pairs), *(a + b for a, b in pairs)}
    return sorted(n for n in numbers if n in _CONSTANT_CHANNELS)[:48]


def _over_channels(
    region: Region, channels: Sequence[int], failures: _Failures, *, any_channels: bool
) -> Shuffle | None:
    """The proof for free batch and spatial sizes: at any number of channels, or at the ones that succeed."""
    results: dict[int, list[_Result]] = {}
    for ndim, tails in _TAILS.items():
        proven = []
        before = len(failures)
        for c in channels:
            shapes = [(n, c, *tail) for n, tail in zip(_BATCHES, tails, strict=True)]
            runs = _probe_all(region, shapes, failures)
            if runs is not None:
                proven += runs
        if proven:
            results[ndim] = proven
        elif channels and all(f.executed for f in failures[before:]):
            failures.understood = failures.understood or failures[before]
    everything = _moving(itertools.chain(*results.values()))
    views = any(r.views for r in everything)
    form = _agree(region, everything)
    if form is None:
        return None
    groups, inverse, sections = form
    seen = sorted({r.shape[1] for r in everything})
    if not any_channels:
        return Shuffle(groups, inverse, sections, tuple(results), tuple(seen), views=views)
    expected = {c for c in channels if c % groups == 0}
    complete = tuple(n for n, runs in results.items() if {r.shape[1] for r in runs} == expected)
    if len(expected) < 2 or not complete:
        failures.append(Refusal("it is a shuffle at some numbers of channels only"))
        return None
    return Shuffle(groups, inverse, sections, complete, views=views)


def _over_shapes(region: Region, shapes: Iterable[tuple[int, ...]], failures: _Failures) -> Shuffle | None:
    """The proof for sizes that were seen in a run, at any batch size or at the one that was seen."""
    shapes = sorted(set(shapes))
    for any_batch in (True, False):
        proven: list[_Result] = []
        for shape in shapes:
            batches = {*_BATCHES, shape[0]} if any_batch else {shape[0]}
            proven += _probe_all(region, [(n, *shape[1:]) for n in sorted(batches)], failures) or []
        proven = _moving(proven)
        form = _agree(region, proven)
        if form is not None:
            return Shuffle(
                *form,
                ndims=tuple({len(r.shape) for r in proven}),
                channels=tuple(sorted({r.shape[1] for r in proven})),
                spatial=tuple(sorted({r.shape[2:] for r in proven})),
                batches=None if any_batch else tuple(sorted({r.shape[0] for r in proven})),
                views=any(r.views for r in proven),
            )
    return None


def _moving(results: Iterable[_Result]) -> list[_Result]:
    """Without those that move no channel, if there are others."""
    results = list(results)
    return [r for r in results if r.groups > 1] or results


def _probe_all(
    region: Region, shapes: Sequence[tuple[int, ...]], failures: _Failures
) -> list[_Result] | None:
    """Results at all shapes, or None if one of them fails."""
    results = []
    for shape in shapes:
        try:
            results.append(_probe(region, shape))
        except Refusal as refusal:
            failures.append(refusal)
            return None
    return results


def _agree(
    region: Region, results: Sequence[_Result]
) -> tuple[int, bool, int | tuple[int, ...] | None] | None:
    """Groups, direction and sections that explain all results, if there are such."""
    if not results:
        return None
    sections = _sections(region, results)
    groups = {r.groups for r in results}
    per_group = {r.shape[1] // r.groups for r in results}
    if sections == () or (len(groups) > 1 and len(per_group) > 1):
        return None
    if len(groups) == 1:
        return groups.pop(), False, sections
    return per_group.pop(), True, sections


def _sections(region: Region, results: Sequence[_Result]) -> int | tuple[int, ...] | None:
    """How the outputs cut the channels: None if they do not, () if all results together have no such explanation."""
    number = len(region.outputs)
    if number == 1:
        return None
    if all(
        r.cuts == tuple(t.numel() for t in torch.empty(r.shape[1], device="cpu").chunk(number))
        for r in results
    ):
        return number
    cuts = {r.cuts for r in results}
    return cuts.pop() if len(cuts) == 1 else ()


def _probe(region: Region, shape: tuple[int, ...]) -> _Result:
    """Run the region on a tensor of this shape whose elements are numbered.

    Raises: Refusal if the region does not run, moves more than whole channels, or permutes them otherwise.
    """
    x = torch.arange(math.prod(shape), dtype=torch.int32, device="cpu").view(shape)
    try:
        outputs = _run(region, x)
    except Exception as error:
        raise Refusal(
            f"{UNPROBED}: {(str(error).splitlines() or [type(error).__name__])[0]}", executed=False
        ) from error
    if not all(isinstance(y, Tensor) and y.dim() == len(shape) for y in outputs):
        raise Refusal("it changes the number of dimensions", report=False)
    if any(y.shape[:1] + y.shape[2:] != x.shape[:1] + x.shape[2:] for y in outputs):
        raise Refusal("it changes sizes other than the channels", report=False)
    whole = torch.cat(outputs, 1)
    if whole.shape != x.shape:
        raise Refusal("it does not keep all channels", report=False)
    groups = _groups(whole, x)
    if groups == 1 and len(outputs) > 1:
        raise Refusal("it does not move any channel")
    memory = x.untyped_storage().data_ptr()
    views = any(y.untyped_storage().data_ptr() == memory for y in outputs)
    return _Result(shape, groups, tuple(y.shape[1] for y in outputs), views)


def _groups(y: Tensor, x: Tensor) -> int:
    """The number of groups with which y is the channel shuffle of the numbered x."""
    channels = x.shape[1]
    plane = math.prod(x.shape[2:])
    order = y[0].reshape(channels, plane)[:, 0] // plane
    per_group = int(order[1])
    if torch.equal(y, x):
        return 1
    if not 1 < per_group < channels or channels % per_group:
        raise Refusal("not a channel shuffle")
    groups = channels // per_group
    expected = x.unflatten(1, (groups, per_group)).transpose(1, 2).flatten(1, 2)
    if not torch.equal(y, expected):
        raise Refusal("not a channel shuffle")
    return groups


def _run(region: Region, x: Tensor) -> list[Any]:
    values: dict[Node, Any] = {region.source: x}
    for node in region.body:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "call_method":
            subject, *rest = args
            values[node] = getattr(subject, node.target)(*rest, **kwargs)
        else:
            values[node] = node.target(*args, **kwargs)
    return [values[node] for node in region.outputs]
