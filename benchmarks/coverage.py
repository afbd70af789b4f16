# SPDX-License-Identifier: MIT
"""How much of other people's networks `opswap.swap` reaches, counted apart from it.

    python benchmarks/coverage.py [--library timm ...] [--network TEXT ...] [--batch 8 --side 224] [--json FILE]
    python benchmarks/coverage.py --rows FILE.json ... > benchmarks/results/coverage.md

runs a forward in training mode of a small network of each family of timm, torchvision, pytorchcv, transformers and
segmentation_models_pytorch, stock and swapped, under torch's profiler, and prints a row of a table for each: the
operators of each kind that the stock network runs, those that the swapped one no longer leaves to torch, and why the
others were kept. Libraries that are not installed are left out (`pip install --no-deps timm torchvision ...`). Each
network runs in a process of its own. `verify_networks.py` runs `opswap.verify` for the same networks. `--rows` makes
the page of results from what `--json` has written, and names the listed networks that are missing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import networks
import opswap
from opswap._machine import cpu_model
from opswap._table import markdown
from opswap.swap.rules import DEFAULT
from process import first_line, row_of
from sites import KINDS, convolution_kind, count_sites

_LAST = torch.channels_last
_IMAGES = 32  # of a batch that people train with: calls of small tensors cost more than the arithmetic


@dataclass
class Row:
    """One network. sites, left: by kind, what the stock and the swapped network leave to torch.

    kept: reasons of the report, with the number of places. batch, size: of the images.
    faster: by kind, what is left because torch's code was measured as fast or faster. untold: by kind, what is left
    without a reason in the report. Both None in rows that were counted before these.
    """

    library: str
    family: str
    name: str
    size: int = 0
    batch: int = _IMAGES
    sites: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    faster: dict[str, int] | None = None
    untold: dict[str, int] | None = None
    swap_seconds: float = 0.0
    error: str = ""

    @property
    def replaced(self) -> int:
        return sum(n - self.left.get(kind, 0) for kind, n in self.sites.items())


def measure(library: str, family: str, name: str, batch: int, side: int) -> Row:
    """One row; what the network or the swap raises is its text. side: 0: the first that the network supports."""
    row = Row(library, family, name, batch=batch)
    torch.manual_seed(0)
    try:
        stock = networks.make(library, name)
        stock.train()  # which does not return the module in every library
        arguments, row.size, memory_format = _arguments(stock, library, name, batch, side)
    except Exception as error:  # the library's own
        row.error = f"the stock network raises {first_line(error)}"
        return row
    try:
        row.sites = dict(count_sites(lambda: stock(*arguments)))
        start = time.perf_counter()
        swapped = _swapped(stock, arguments, memory_format)
        row.swap_seconds = time.perf_counter() - start
        row.left = dict(count_sites(lambda: swapped(*arguments)))
        why = reasons(swapped, arguments)
        row.faster, row.untold = sort_out(row.left, why)
        named = Counter[str]()
        for w in why:
            named[f"{w.rule}: {w.reason}".removeprefix(": ")] += w.calls
        row.kept = dict(named.most_common())
    except Exception as error:  # shown in the table: none should
        row.error = f"raises {first_line(error)}"
    return row


@dataclass(frozen=True)
class Why:
    """Why `calls` operators of a kind, "" if it is none of `KINDS`, were left to torch."""

    kind: str
    rule: str
    reason: str
    calls: int

    @property
    def is_faster(self) -> bool:
        return "torch is faster" in self.reason or "torch is as fast" in self.reason


def reasons(swapped: nn.Module, arguments: tuple[Any, ...]) -> list[Why]:
    """What the report and `explain` say about a forward: refused at the swap, or stopped by a condition.

    Replacements that are for evaluation are left out while the model trains: another one is for training. A folded
    convolution that was reached has run its normalisation and activation as one. Activations that run once in place of
    several are torch's: they count as left.
    """
    of_inference = {rule.name for rule in DEFAULT if rule.inference} if swapped.training else set()
    found = opswap.explain(swapped, *arguments)
    left = [(s.path, s.rule, s.reason, 1) for s in found.kept if s.rule not in of_inference]
    left += [
        (o.path, o.rule, o.reason, o.calls - o.ran)
        for o in found.outcomes
        if o.calls > o.ran and o.rule not in of_inference - {_FOLDED}
    ]
    left += [
        (o.path, o.rule, _ONCE, o.ran) for o in found.outcomes if o.rule == "shared_activation" and o.ran
    ]
    modules = dict(swapped.named_modules())
    return [Why(_kind_of(rule, modules.get(path)), rule, reason, calls) for path, rule, reason, calls in left]


_ONCE = "several activations of one tensor run once, in torch's code"
_FOLDED = "conv_folded"
_KINDS = {
    **dict.fromkeys(("batch_norm_act", "chain", "shared_activation", _FOLDED), "activation after it"),
    "batch_norm": "batch norm",
    "dropout": "dropout",
    **dict.fromkeys(("channel_shuffle", "cat_channel_shuffle_split"), "channel shuffle"),
}


def _kind_of(rule: str, module: nn.Module | None) -> str:
    weight = getattr(module, "weight", None)
    if "conv" in rule and rule != _FOLDED and isinstance(weight, torch.Tensor) and weight.dim() == 4:
        return convolution_kind(list(weight.shape), getattr(module, "groups", 1))
    return "pool" if "pool" in rule else _KINDS.get(rule, "")


def sort_out(left: dict[str, int], why: list[Why]) -> tuple[dict[str, int], dict[str, int]]:
    """By kind: how much of what is left torch runs as fast or faster, and how much has no reason.

    A forward that could not be captured, which the report names, is the reason of what nothing else explains.
    """
    told, faster = Counter[str](), Counter[str]()
    for w in why:
        told[w.kind] += w.calls
        faster[w.kind] += w.calls * w.is_faster
    uncaptured = any(not w.rule for w in why)
    return (
        {kind: min(n, faster[kind]) for kind, n in left.items() if faster[kind]},
        {kind: n - told[kind] for kind, n in left.items() if n > told[kind] and not uncaptured},
    )


def _arguments(
    model: nn.Module, library: str, name: str, batch: int, side: int
) -> tuple[tuple[Any, ...], int, Any]:
    """Images, and targets for a detector, of the side, or of the first that the network supports, and the format that
    it supports.

    A network that views what it computes as another size does not run in channels_last.
    """
    error: Exception = ValueError("no format")
    for memory_format in (_LAST, torch.contiguous_format):
        networks.convert(model, memory_format)
        try:
            sides = (side,) if side else ()
            arguments, size = networks.first_arguments(model, library, name, batch, memory_format, sides)
        except Exception as found:  # the library's own
            error = found
        else:
            return arguments, size, _LAST if memory_format is _LAST else None
    raise error


def _swapped(stock: nn.Module, arguments: tuple[Any, ...], memory_format: Any) -> nn.Module:
    """A swapped copy. If the stock network does not run in channels_last, the swapped one may, as `optimize` finds."""
    if memory_format is None:
        swapped = opswap.swap(stock, memory_format=_LAST, example_inputs=arguments, inplace=False)
        try:
            swapped(*arguments)
        except Exception:  # code that was not replaced views another size
            pass
        else:
            return swapped
    return opswap.swap(stock, memory_format=memory_format, example_inputs=arguments, inplace=False)


def _in_a_process(library: str, family: str, name: str, options: argparse.Namespace) -> Row:
    size = ("--batch", options.batch, "--side", options.side)
    found = row_of(__file__, library, family, name, *size)
    return Row(**{"library": library, "family": family, "name": name, "batch": options.batch, **found})


def table(rows: Iterable[Row]) -> list[str]:
    """Markdown: for each kind "replaced of all", the share, what is better left to torch, the commonest reasons."""
    head = ["library", "network", *KINDS, "share", "torch as fast or faster", "of the rest", "kept by reason"]
    return markdown(head, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    if row.error:
        return [row.library, row.name, *[""] * len(KINDS), "", "", "", row.error]
    kinds = []
    for kind in KINDS:
        there = row.sites.get(kind, 0)
        kinds.append(f"{there - row.left.get(kind, 0)} of {there}" if there else "")
    reasons = "; ".join(f"{n}: {_within(row.library, reason)}" for reason, n in list(row.kept.items())[:4])
    untold = "".join(f"; {n} of {kind} without a reason" for kind, n in (row.untold or {}).items())
    left = "" if row.faster is None else str(sum(row.faster.values()))
    ends = [_share([row]), left, _share_of_rest(row), reasons.replace("|", "\\|") + untold]
    return [row.library, row.name, *kinds, *ends]


def _within(library: str, reason: str) -> str:
    """A reason with the names of files as they are in the library, or below mmpretrain, wherever that is installed."""
    return re.sub(rf"/\S*/(?=(?:{re.escape(library)}|mmengine|mmcv)/)", "", reason)


def _share(rows: Iterable[Row]) -> str:
    rows = list(rows)
    there = sum(sum(row.sites.values()) for row in rows)
    return f"{sum(row.replaced for row in rows) / there:.0%}" if there else ""


def _share_of_rest(row: Row) -> str:
    """The share of the operators for which torch's code was not measured as fast or faster."""
    if row.faster is None:
        return ""
    rest = sum(row.sites.values()) - sum(row.faster.values())
    return f"{row.replaced / rest:.0%}" if rest else ""


def summary(rows: list[Row]) -> list[str]:
    """One line per kind, over all networks."""
    ran = [row for row in rows if not row.error]
    lines = [
        f"{len(ran)} networks, {len(rows) - len(ran)} not counted; of all operators {_share(ran)} replaced"
    ]
    for kind in KINDS:
        there, left = (sum(getattr(row, name).get(kind, 0) for row in ran) for name in ("sites", "left"))
        lines.append(f"{kind}: {there - left} of {there}")
    return lines


def page(every: list[Row]) -> list[str]:
    """Markdown of all rows: the machine, the summary, the table, rows of other batches, and what was not run.

    The summary has each network once: by its row of `_IMAGES` images if there is one.
    """
    rows, others = (
        [row for row in every if row.batch == _IMAGES],
        [row for row in every if row.batch != _IMAGES],
    )
    counted = {(row.library, row.name): row for row in (*others, *rows)}
    left_out = [
        f"{library}: {', '.join(missing)}"
        for library, found in networks.listed().items()
        if (missing := [name for name in found.values() if (library, name) not in counted])
    ]
    return [
        "# Coverage",
        "",
        "Made by `python benchmarks/coverage.py --rows`. 3 of 4: of 4 operators in a training forward of "
        f"{_IMAGES} images, 3 are replaced.",
        "",
        f"{cpu_model()}, {opswap.isa.current()}, torch {torch.__version__}, opswap {opswap.__version__}, "
        f"{datetime.date.today().isoformat()}. {len(counted)} networks.",
        "",
        *(f"- {line}" for line in summary(list(counted.values()))),
        "",
        *table(rows),
        "",
        *_of_other_sizes(others),
        *(["Not run:", "", *(f"- {line}" for line in left_out)] if left_out else []),
    ]


def _of_other_sizes(rows: list[Row]) -> list[str]:
    lines = []
    for batch, size in sorted({(row.batch, row.size) for row in rows}):
        of_size = [row for row in rows if (row.batch, row.size) == (batch, size)]
        lines += [f"## {batch} images of {size} x {size} pixels", "", *table(of_size), ""]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", nargs="+", default=list(networks.listed()), metavar="NAME")
    parser.add_argument(
        "--network", nargs="+", default=[""], metavar="TEXT", help="only names with one of these texts"
    )
    parser.add_argument("--batch", type=int, default=_IMAGES, help="images")
    parser.add_argument(
        "--side", type=int, default=0, help="of the images; 0: the first that a network supports"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    parser.add_argument("--rows", type=Path, nargs="+", metavar="FILE", help="make the page of these rows")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rows:
        rows = [Row(**row) for file in arguments.rows for row in json.loads(file.read_text())]
        print("\n".join(page(rows)))
        return
    if arguments.one:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        print(json.dumps(asdict(measure(*arguments.one, arguments.batch, arguments.side))))
        return
    wanted = networks.chosen(arguments.library, arguments.network)
    rows: list[Row] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(lambda one: _in_a_process(*one, arguments), wanted):
            rows.append(row)
            print(" | ".join(_cells(row)), file=sys.stderr, flush=True)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print("\n".join([*table(rows), "", *summary(rows)]))


if __name__ == "__main__":
    main()
