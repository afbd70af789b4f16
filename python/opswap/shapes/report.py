# SPDX-License-Identifier: MIT
"""What `detect` found: lines whose sizes depend on data, and modules whose inputs change their shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from opswap.finding import Hidden, Origin, Report, Site, plural

from .rewrites import Observed, advice, rewrite
from .syntax import BRANCH, LOOP, SIZE, VALUE, role_of, statement_at

__all__ = ["InputShapes", "ShapesReport", "ShapesSite", "Tally", "parents"]

FINDINGS = ("size", "branch", "loop", "write", "input")
_MOST_SIZES = 64
_MOST_SHAPES = 8
_MOST_STEPS = 512
_MOST_PANELS = 8
_MOST_FILES = 3
_NUMBERS = ("item", "tolist")
_Shapes = tuple["tuple[int, ...] | None", ...]

_ADVICE = {
    SIZE: "a size is made of data: use the largest size and a mask",
    BRANCH: "a branch depends on data: compute both sides and choose with torch.where, or use torch.cond",
    LOOP: "Python loops over a tensor: work on the whole tensor, or use torch.vmap",
    "nonzero": "keep the mask and use torch.where, or torch.nonzero_static(mask, size=N)",
    "unique": "sort, and keep all: `values = x.sort().values`; `values.diff() != 0` marks where another value begins",
    "index": "keep all elements and a mask: torch.where(mask, x, 0), opswap.shapes.losses with valid=mask",
    "masked_select": "keep all elements and a mask: torch.where(mask, x, 0), opswap.shapes.losses with valid=mask",
    "repeat_interleave": "pass output_size=",
    "torchvision.nms": "keep a fixed number of boxes: the first N indices, padded, and a mask of those that are real",
    "bincount": "count into a tensor of a fixed size: torch.zeros(N).index_add(0, x, ones)",
    "index_put": "torch.where(mask, value, x)",
    "input": "give every batch one size: opswap.shapes.pad_images, pad_targets, collate_fixed",
    "rows": "pad it to one length and keep a mask of what is real; boxes: opswap.shapes.pad_targets, collate_fixed",
}


@dataclass
class Tally:
    """Counts of one operator at one line. sizes: how often each size came, at most 64; series: the first 512."""

    op: str
    origin: Origin
    observed: Observed
    count: int = 0
    bytes: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    series: list[int] = field(default_factory=list)

    def add(self, size: int, moved: int) -> None:
        """One more call."""
        self.count += 1
        self.bytes += moved
        if size in self.sizes or len(self.sizes) < _MOST_SIZES:
            self.sizes[size] += 1
        if len(self.series) < _MOST_STEPS:
            self.series.append(size)


@dataclass
class InputShapes:
    """Shapes that a module was called with. names: of the arguments, by place, keyword or both ("1.boxes" in a dict or
    list); shapes: how often each tuple of their shapes came, at most 64; None for an argument that is not a tensor.
    changing: a later step had other shapes than the first one. Within a step a module may have several inputs, as
    heads of a pyramid and shared activations have."""

    kind: str
    names: tuple[str, ...] = ()
    count: int = 0
    shapes: Counter[_Shapes] = field(default_factory=Counter)
    series: list[int] = field(default_factory=list)
    changing: bool = False
    first_step: int = -1

    def add(self, found: Mapping[str, tuple[int, ...] | None], step: int) -> None:
        """One more call, with the shapes of its arguments, in a step of the module around it."""
        shapes = tuple(found.values())
        if not self.count:
            self.first_step = step
        elif step != self.first_step and shapes not in self.shapes:
            self.changing = True
        if len(found) > len(self.names):
            self.names = tuple(found)
        self.count += 1
        if shapes in self.shapes or len(self.shapes) < _MOST_SIZES:
            self.shapes[shapes] += 1
        if len(self.series) < _MOST_STEPS:
            self.series.append(sum(_numel(s) for s in shapes))

    def graphs(self, dynamic: bool | None = None) -> int:
        """How many graphs torch.compile makes of these calls, with dynamic=False or by default (None).

        By default the second shape is compiled for open sizes; only sizes of 0 and 1 get graphs of their own.
        """
        if dynamic is False or len(self.shapes) < 2:
            return len(self.shapes)
        first, *rest = self.shapes
        return 1 + len({tuple(_open(a, b) for a, b in zip(first, other, strict=False)) for other in rest})


def _open(first: tuple[int, ...] | None, other: tuple[int, ...] | None) -> Any:
    if first is None or other is None or len(first) != len(other):
        return other
    return tuple(b if b in (0, 1) or a == b else -1 for a, b in zip(first, other, strict=True))


def _numel(shape: tuple[int, ...] | None) -> int:
    total = 1
    for size in shape or (0,):
        total *= size
    return total


@dataclass(frozen=True)
class ShapesSite(Site):
    """A finding; `sizes` is the histogram of (size, times): rows of a result, turns of a loop, or elements of inputs.

    status: "size" (the size of a result depends on data), "branch" (a Python branch does), "loop", "write" (a masked
    store), "input" (the shape of a module's input changes), "value" (a number that decides neither).
    """

    sizes: tuple[tuple[int, int], ...] = ()


class ShapesReport(Report):
    """Which shapes depend on data; current at any time, inside the context and after it.

    `sites` has every operator of the list, the most different sizes first; `findings` are those but the values.
    `inputs` has the shapes of the inputs of every module, by its path.
    """

    title = "opswap.shapes"
    nothing_found = "no shape depends on data"

    def __init__(self, is_allowed: Callable[[str, Origin], bool]) -> None:
        self._is_allowed = is_allowed
        self.hidden = Hidden("TORCH_LOGS=recompiles shows the sizes that a compiler guards on")
        self._tallies: dict[tuple[str, Origin], Tally] = {}
        self.inputs: dict[str, InputShapes] = {}

    def tally(self, op: str, origin: Origin, observed: Observed) -> Tally:
        """The counts of an operator at a line."""
        found = self._tallies.get((op, origin))
        if found is None:
            found = self._tallies[op, origin] = Tally(op, origin, observed)
        elif observed.each:  # a store of one element looks like one of the same value for all
            found.observed = observed
        return found

    @property
    def sites(self) -> list[ShapesSite]:
        found = [self._site(t) for t in list(self._tallies.values())]
        for name, shapes in self._changing():
            found += self._input_sites(name, shapes)
        return sorted(found, key=lambda s: (s.status == "value", -len(s.sizes), -s.bytes, -s.count))

    @property
    def notes(self) -> list[str]:
        notes = self.hidden.notes
        places = [t.origin for t in list(self._tallies.values()) if t.op in _NUMBERS]
        unread = sorted({o.file for o in places if o.file and statement_at(o.file, o.line) is None})
        if unread:
            files = ", ".join(unread[:_MOST_FILES]) + (" and others" if len(unread) > _MOST_FILES else "")
            notes.append(f"the source of {files} cannot be read: what becomes of numbers there is not known")
        return notes

    @property
    def summary(self) -> dict[str, Any]:
        """operators: calls of those in the list. graphs, graphs_dynamic: what torch.compile would make of the
        outermost module's inputs, with dynamic=False and by default."""
        outer = self.outermost()
        return {
            "operators": sum(t.count for t in self._tallies.values()),
            "graphs": outer.graphs(False) if outer else 0,
            "graphs_dynamic": outer.graphs() if outer else 0,
        }

    def outermost(self) -> InputShapes | None:
        """The inputs of the module that was called first of all, None if no module was called."""
        return min(
            self.inputs.items(), key=lambda item: item[0].count(".") if item[0] else -1, default=("", None)
        )[1]

    def is_finding(self, site: ShapesSite) -> bool:
        return site.status in FINDINGS and site.phase != "backward"

    def detail(self, sites: Sequence[ShapesSite]) -> str:
        sizes: Counter[int] = Counter()
        for site in sites:
            sizes.update(dict(site.sizes))
        if sites[0].status in ("branch", "value") or not sizes:
            return ""
        shown = ", ".join(f"{size} ({count}x)" for size, count in sorted(sizes.items())[:6])
        more = f" and {plural(len(sizes) - 6, 'other size')}" if len(sizes) > 6 else ""
        return f"sizes: {shown}{more}"

    def plot(self, path: str | PathLike[str]) -> None:
        """Sizes over calls, a panel for each of the first eight findings: a PNG file whatever the suffix.

        Raises: ModuleNotFoundError without matplotlib.
        """
        from .plot import draw

        shown = [s for s in self.findings if s.status != BRANCH][:_MOST_PANELS]
        series = {f"{s.source} {s.op}" if s.file else s.op: self._series(s) for s in shown}
        draw(path, series, self._headline())

    def _rows(self) -> list[Any]:
        """The most different sizes first, as in `sites`."""
        sizes = [(row, {size for site in row.sites for size, _ in site.sizes}) for row in super()._rows()]
        return [row for row, _ in sorted(sizes, key=lambda item: -len(item[1]))]

    def _series(self, site: ShapesSite) -> list[int]:
        if site.status == "input":
            return self.inputs[site.module].series
        place = (site.file, site.line, site.phase, site.module)
        found = [t for t in self._tallies.values() if t.op == site.op.removeprefix("aten.")]
        origins = ((t, t.origin) for t in found)
        return [n for t, o in origins if (o.file, o.line, o.phase, o.module) == place for n in t.series]

    def _changing(self) -> list[tuple[str, InputShapes]]:
        """Modules whose inputs change although those of the module around them do not."""
        changing = {name for name, shapes in self.inputs.items() if shapes.changing}
        return [
            (n, self.inputs[n]) for n in changing if not any(p in changing for p in parents(n, self.inputs))
        ]

    def _site(self, tally: Tally) -> ShapesSite:
        origin = tally.origin
        status = {"loop": LOOP, "index_put": "write"}.get(tally.op, SIZE)
        if tally.op in _NUMBERS:
            status = role_of(origin.file, origin.line)
        statement = statement_at(origin.file, origin.line)
        text = advised = ""
        if statement is not None and status != VALUE:
            text, advised = rewrite(statement, tally.observed), advice(statement, tally.observed)
        hint = f"`{text}`" if text else advised or _ADVICE.get(tally.op) or _ADVICE.get(status, "")
        return ShapesSite.at(
            origin,
            status=status,
            op=_full_name(tally.op),
            count=tally.count,
            bytes=tally.bytes,
            shapes=tuple((size,) for size, _ in tally.sizes.most_common(_MOST_SHAPES)),
            hint="" if status == VALUE else hint,
            allowed=self._is_allowed(_full_name(tally.op), origin),
            sizes=tuple(sorted(tally.sizes.items())),
        )

    def _input_sites(self, name: str, shapes: InputShapes) -> Iterator[ShapesSite]:
        """One for each argument whose shape changes."""
        graphs = f"torch.compile makes {plural(shapes.graphs(False), 'graph')} of it with dynamic=False"
        origin = Origin(name, "", 0, "", "forward")
        for place, argument in enumerate(shapes.names):
            seen = Counter[Any]()
            for key, count in shapes.shapes.items():
                seen[key[place] if place < len(key) else None] += count
            if len(seen) < 2:
                continue
            rows = all(s is None or len(s) < 3 for s in seen)  # of words, boxes, points
            yield ShapesSite.at(
                origin,
                status="input",
                op=f"input {argument} of {shapes.kind}",
                count=shapes.count,
                bytes=0,
                shapes=tuple(s for s, _ in seen.most_common(_MOST_SHAPES) if s is not None),
                hint=f"{_ADVICE['rows' if rows else 'input']}; {graphs}",
                allowed=self._is_allowed("input", origin),
                sizes=tuple(sorted((_numel(s), count) for s, count in seen.items())),
            )


def _full_name(op: str) -> str:
    """ "aten.index" of "index"; loops, tolist() and operators of other libraries have their own names."""
    return op if "." in op or op in ("loop", "tolist") else f"aten.{op}"


def parents(name: str, known: Container[str]) -> list[str]:
    """Those of the known modules that are around one, by their paths, the outermost first; "" is a model's own path."""
    parts = name.split(".")
    paths = ["", *(".".join(parts[:i]) for i in range(1, len(parts)))]
    return [path for path in paths if path != name and path in known]
