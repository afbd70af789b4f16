# SPDX-License-Identifier: MIT
"""Whether networks keep channels_last through a training step, which lines lose it, and what the format is worth.

    python benchmarks/layout.py torchvision.models:resnet18 opswap.models:shufflenet_v2_x1_0 --input 4x3x224x224

prints one row of a table for each package.module:factory (built without arguments): of the model as it is and of the
swapped one. Step times are medians, the forms in turn.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import opswap
from opswap._machine import cpu_model
from opswap._timing import medians_in_turn
from opswap.finding.script import InputSize, load_model

_LAST = torch.channels_last


@dataclass
class Row:
    """lost, swapped_lost: "line: operator" of each finding, by phase; steps: milliseconds by form."""

    name: str
    lost: dict[str, list[str]] = field(default_factory=dict)
    swapped_lost: dict[str, list[str]] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    error: str = ""


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _step(model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    outputs = list(_tensors(model(x)))
    torch.stack([t.float().log_softmax(1)[:, 0].mean() for t in outputs]).sum().neg().backward()


def _findings(model: nn.Module, x: Tensor) -> dict[str, list[str]]:
    with opswap.layout.check(model) as report:
        try:
            _step(model, x)
        except RuntimeError as error:
            if not any(s.status == "refused" for s in report.findings):
                raise error
    found: dict[str, list[str]] = {}
    for site in report.findings:
        file = site.source.rpartition("/")[2]
        found.setdefault(site.phase, []).append(f"{file} {site.op.partition('.')[2]} {site.status}")
    return {phase: sorted(dict.fromkeys(lines)) for phase, lines in found.items()}


def _time(forms: dict[str, tuple[nn.Module, Tensor]], rounds: int) -> dict[str, float]:
    steps = {name: partial(_step, model, x) for name, (model, x) in forms.items()}
    return medians_in_turn(steps, 0.0, rounds)


def measure(name: str, size: InputSize, rounds: int) -> Row:
    """One row; an error of the model, with either format, is its text."""
    row = Row(name.partition(":")[2])
    torch.manual_seed(0)
    try:
        plain, x = load_model(name), size.make()
        last = copy.deepcopy(plain).to(memory_format=_LAST), x.contiguous(memory_format=_LAST)
        swapped = opswap.swap(copy.deepcopy(plain)).to(memory_format=_LAST), last[1]
        row.lost, row.swapped_lost = _findings(*last), _findings(*swapped)
        forms = {"contiguous": (plain, x), "channels_last": last, "swapped": swapped}
        if any("refused" in line for line in row.lost.get("forward", ())):
            del forms["channels_last"]
        if rounds:
            row.steps = _time(forms, rounds)
    except (RuntimeError, ValueError) as error:
        row.error = str(error).splitlines()[0]
    return row


def _lines(found: dict[str, list[str]]) -> str:
    texts = [f"{phase}: " + ", ".join(lines) for phase, lines in found.items()]
    return "; ".join(texts) or "keeps it"


def _gain(row: Row, form: str) -> str:
    if form not in row.steps:
        return "-"
    return f"{row.steps['contiguous'] / row.steps[form]:.2f}"


def table(rows: list[Row]) -> list[str]:
    """Markdown."""
    lines = [
        "| model | stock: what loses channels_last | swapped | ms, contiguous | gain in channels_last | swapped |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if row.error:
            lines.append(f"| {row.name} | {row.error} | | | | |")
            continue
        time_ = f"{row.steps['contiguous']:.0f}" if row.steps else "-"
        cells = (row.name, _lines(row.lost), _lines(row.swapped_lost), time_, _gain(row, "channels_last"))
        lines.append("| " + " | ".join((*cells, _gain(row, "swapped"))) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("factories", nargs="+", metavar="package.module:factory")
    parser.add_argument("--input", type=InputSize.parse, default=InputSize((2, 3, 224, 224)))
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each form, 0 for none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for name in arguments.factories:
        rows.append(measure(name, arguments.input, arguments.rounds))
        gc.collect()
        if arguments.json is not None:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    size = "x".join(map(str, arguments.input.size))
    print(f"{cpu_model()}, torch {torch.__version__}, {arguments.threads} thread, input {size}\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
