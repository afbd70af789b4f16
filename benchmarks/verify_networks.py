# SPDX-License-Identifier: MIT
"""Whether swapped networks of other libraries compute what stock ones do, over several seeds.

    python benchmarks/verify_networks.py [--library timm ...] [--network TEXT ...] [--seeds 0 1 2] [--json FILE]
    python benchmarks/verify_networks.py --rows FILE.json ... > benchmarks/results/verified.md

runs `opswap.verify` for a small network of each family: with the exact rules outputs and gradients are bit-equal to
stock's, with all rules as near to those in float64 as stock's are, in train(), in eval() and without gradients. A seed
makes other weights and other images, two of the first size that the network supports. Each network and seed runs in a
process of its own. `--only default` leaves out the exact rules.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import networks
import opswap
from opswap._table import markdown
from opswap.swap import Check, VerificationError
from process import first_line, row_of

_IMAGES = 2
_KINDS = ("exact", "default")


@dataclass
class Row:
    """One network and seed. exact, default: "holds", what `verify` says, or "" if it did not run."""

    library: str
    name: str
    seed: int = 0
    size: int = 0
    exact: str = ""
    default: str = ""
    error: str = ""


def measure(library: str, name: str, seed: int, kinds: Iterable[str] = _KINDS) -> Row:
    row = Row(library, name, seed)
    try:
        model = _model(library, name, seed)  # thrown away, since its BatchNorms count the images
        torch.manual_seed(seed)
        arguments, row.size = networks.first_arguments(model, library, name, _IMAGES, torch.contiguous_format)
        for kind in kinds:
            model = _model(library, name, seed)
            setattr(row, kind, _verified(model, arguments, kind == "exact"))
    except Exception as error:  # the library's own
        row.error = first_line(error)
    return row


def _model(library: str, name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = networks.make(library, name)
    model.train()  # which does not return the module in every library
    return model


def _verified(model: nn.Module, arguments: tuple[Any, ...], exact: bool) -> str:
    try:
        opswap.verify(model, arguments, exact=exact)
    except VerificationError as error:
        return "; ".join(map(_said, (c for c in error.report.checks if not c.holds)))
    except Exception as error:  # a line of the table
        return first_line(error)
    return "holds"


def _said(check: Check) -> str:
    errors = "" if check.error is None else f" ({check.error:.1e}, stock {check.bound:.1e})"
    return f"{check.name}: {check.detail}{errors}"


def page(rows: list[Row]) -> list[str]:
    """Markdown: a line per network, how many seeds held, and what did not."""
    by_network = defaultdict[tuple[str, str], list[Row]](list)
    for row in rows:
        by_network[row.library, row.name].append(row)
    lines, all_held = [], 0
    for (library, name), of_one in by_network.items():
        said = [
            f"seed {r.seed}: {t}"
            for r in of_one
            for t in (r.exact, r.default, r.error)
            if t not in ("", "holds")
        ]
        held = [_held(of_one, kind) for kind in _KINDS]
        all_held += not said
        lines.append([library, name, str(of_one[0].size), *held, "; ".join(said).replace("|", "\\|")])
    return [
        "# Verified networks",
        "",
        "Made by `python benchmarks/verify_networks.py --rows`. Of how many seeds `opswap.verify` held: bit-equal with "
        "the exact rules, as near to float64 as stock with all.",
        "",
        f"torch {torch.__version__}, opswap {opswap.__version__}. {len(lines)} networks, of {all_held} every seed "
        "held.",
        "",
        *markdown(["library", "network", "side", *_KINDS, "what did not hold"], lines),
    ]


def _held(rows: Iterable[Row], kind: str) -> str:
    ran = [text for row in rows if (text := getattr(row, kind))]
    return f"{ran.count('holds')} of {len(ran)}" if ran else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", nargs="+", default=list(networks.listed()), metavar="NAME")
    parser.add_argument(
        "--network", nargs="+", default=[""], metavar="TEXT", help="only names with one of these"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", choices=_KINDS, help="of the exact and the default rules")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    parser.add_argument("--rows", type=Path, nargs="+", metavar="FILE", help="make the page of these rows")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rows:
        found = [Row(**row) for file in options.rows for row in json.loads(file.read_text())]
        print("\n".join(page(found)))
        return
    if options.one:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        library, name, seed, *kinds = options.one
        print(json.dumps(asdict(measure(library, name, int(seed), kinds))))
        return
    kinds = (options.only,) if options.only else _KINDS
    chosen = networks.chosen(options.library, options.network)
    wanted = [(library, name, seed) for library, _, name in chosen for seed in options.seeds]
    rows: list[Row] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for (library, name, seed), row in zip(
            wanted, pool.map(lambda one: row_of(__file__, *one, *kinds), wanted), strict=True
        ):
            rows.append(Row(**{"library": library, "name": name, "seed": seed, **row}))
            print(rows[-1], file=sys.stderr, flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print("\n".join(page(rows)))


if __name__ == "__main__":
    main()
