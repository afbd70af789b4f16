# SPDX-License-Identifier: MIT
"""How much faster a training step of other people's networks, or a call, is swapped than stock, in the faster format.

    python benchmarks/speed.py [--network TEXT ...] [--side 128 224] [--threads 1 2] [--batch 32] [--json FILE]
    python benchmarks/speed.py --library timm ... --side 0 --threads 1 --batch 8 [--network TEXT ...] [--json FILE]
    python benchmarks/speed.py --inference --batch 1 [--network TEXT ...] [--library NAME ...] [--json FILE]
    python benchmarks/speed.py --rows FILE.json ... > benchmarks/results/speed.md

times zero_grad, forward, loss, backward and plain SGD of float32 networks, stock and swapped in both memory formats, in
turn in one process per row, with freed memory reused. Networks of timm and torchvision are left out if these are not
installed. `--library` times networks of networks.json instead: no family may be slower swapped. Side
0 is the first that the network supports, of a detector always; the loss of a detector is the sum of its own.
`--inference` times a call in eval() without gradients.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import networks
import opswap
from opswap._machine import cpu_model
from opswap._table import markdown, milliseconds
from opswap._timing import Spread, ratio_spread, time_in_turn
from opswap._torch import tree_leaves
from opswap.bench.cases.models import step
from opswap.swap.rules import MENDS
from process import first_line, row_of

_LAST = torch.channels_last
_SWAPPED = "swapped"
_ROUNDS = 7
_SECONDS = 4.0


class UNet(nn.Module):
    """A U-Net of three levels with GroupNorm, after Ronneberger et al., 2015: (N, 3, H, W) to (N, 2, H, W)."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        widths = [channels, 2 * channels, 4 * channels]
        self.down = nn.ModuleList(self._block(i, o) for i, o in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(
            self._block(wide + deep, wide) for wide, deep in zip(widths[1::-1], widths[:0:-1], strict=True)
        )
        self.head = nn.Conv2d(channels, 2, 1)

    @staticmethod
    def _block(channels: int, out_channels: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for inner in (channels, out_channels):
            layers += [nn.Conv2d(inner, out_channels, 3, padding=1, bias=False)]
            layers += [nn.GroupNorm(8, out_channels), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for block, wide in zip(self.up, kept[-2::-1], strict=True):
            x = block(torch.cat((F.interpolate(x, scale_factor=2.0), wide), 1))
        return self.head(x)


class Detector(nn.Module):
    """A detector of torchvision that trains with these targets: images (N, 3, H, W) to its losses."""

    def __init__(self, model: nn.Module, targets: list[dict[str, Tensor]]) -> None:
        super().__init__()
        self.model = model
        self.targets = targets

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.model(list(x), [dict(target) for target in self.targets])


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ShuffleNetV2 x1.0": opswap.models.shufflenet_v2_x1_0,
    "LPRNet": opswap.models.lprnet,
    "U-Net, GroupNorm": UNet,
    "MobileNetV2": partial(networks.make, "timm", "mobilenetv2_100"),
    "MobileNetV3-small": partial(networks.make, "timm", "mobilenetv3_small_100"),
    "EfficientNet-B0": partial(networks.make, "timm", "efficientnet_b0"),
    "MnasNet": partial(networks.make, "timm", "mnasnet_100"),
    "GhostNet": partial(networks.make, "timm", "ghostnet_100"),
    "RegNetX-002": partial(networks.make, "timm", "regnetx_002"),
    "ResNet-18": partial(networks.make, "timm", "resnet18"),
    "SqueezeNet": partial(networks.make, "torchvision", "squeezenet1_1"),
}
# LPRNet reads plates, of one size.
_SIZES = {"LPRNet": (24, 94)}


@dataclass
class Row:
    """One network, size and number of threads. stock: milliseconds by format; swapped: in the faster one. ratio: of
    the faster stock format to it, with its quartiles. inference: of a call in evaluation, not of a step.
    """

    name: str
    shape: tuple[int, ...] = ()
    threads: int = 1
    stock: dict[str, float] = field(default_factory=dict)
    swapped: float = 0.0
    ratio: tuple[float, float, float] = (0.0, 0.0, 0.0)
    machine: str = ""
    error: str = ""
    inference: bool = False


def measure(name: str, side: int, threads: int, batch: int, inference: bool = False) -> Row:
    """One row; an error is its text."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    opswap.memory.reuse_freed(True)
    shape: tuple[int, ...] = (batch, 3, *_SIZES.get(name, (side, side)))
    machine = f"{cpu_model()}, {opswap.isa.current()}, torch {torch.__version__}, {datetime.date.today()}"
    row = Row(name, shape, threads, machine=machine, inference=bool(inference))
    try:
        model = (NETWORKS[name] if name in NETWORKS else partial(networks.make, *name.split("/")))()
        model.train(not inference)
        library, listed = name.split("/") if "/" in name else ("", name)
        if networks.is_detector(library, listed):
            row.shape = (batch, 3, *[networks.sizes(library, listed)[0]] * 2)
            images, targets = networks.arguments(
                library, listed, batch, row.shape[-1], torch.contiguous_format
            )
            samples = _samples(Detector(model, targets), torch.stack(images), inference)
        else:
            if not side:
                _, first = networks.first_arguments(model, library, listed, 2, torch.contiguous_format)
                shape = batch, 3, first, first
            row.shape = shape
            samples = _samples(model, torch.randn(row.shape), inference)
    except Exception as error:  # a library that is not installed, or that raises
        row.error = first_line(error)
        return row
    medians = {form: Spread.of(times).median for form, times in samples.items()}
    row.stock = {form: median for form, median in medians.items() if not form.startswith(_SWAPPED)}
    swapped = min(medians.keys() - row.stock.keys(), key=lambda form: medians[form])
    row.swapped = medians[swapped]
    ratio = ratio_spread(samples[min(row.stock, key=lambda form: row.stock[form])], samples[swapped])
    row.ratio = ratio.median, ratio.low, ratio.high
    return row


def _samples(model: nn.Module, x: Tensor, inference: bool) -> dict[str, list[float]]:
    """Milliseconds by form; those that the network does not run in are left out."""
    last = x.contiguous(memory_format=_LAST)
    swap = partial(opswap.swap, model, example_inputs=(x,), inplace=False)
    forms = {
        "contiguous": (model, x),
        "channels_last": (_in_channels_last(model), last),
        _SWAPPED: (swap(), x),
        f"{_SWAPPED}, channels_last": (swap(memory_format=_LAST), last),
    }
    steps = {}
    for form, pair in forms.items():
        steps[form] = one = _call(*pair) if inference else step(*pair, pair[1], _loss)
        try:
            one()
        except RuntimeError:  # MaxPool3d of LPRNet, and code that views what it computes
            del steps[form]
            if form in ("contiguous", _SWAPPED):
                raise
    return time_in_turn(steps, _SECONDS, _ROUNDS)


def _call(model: nn.Module, x: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def call() -> None:
        model(x)

    return call


def _in_channels_last(model: nn.Module) -> nn.Module:
    """A copy, without the gradients of torch that may end the process. Parameters of five dimensions stay."""
    model = opswap.swap(model, rules=MENDS, inplace=False)
    networks.convert(model, _LAST)
    return model


def _loss(output: Any, _: Tensor) -> Tensor:
    """Of one tensor, or of all in what a network returns: a detector's are its losses."""
    if isinstance(output, Tensor):
        return output.float().log_softmax(1)[:, 0].mean().neg()
    outputs = [y for y in tree_leaves(output) if isinstance(y, Tensor) and y.requires_grad]
    return torch.stack([y.float() if y.dim() == 0 else y.float().square().mean() for y in outputs]).sum()


def table(rows: Iterable[Row]) -> list[str]:
    """Markdown: a line per row."""
    head = [
        "network",
        "batch",
        "threads",
        "contiguous",
        "channels_last",
        "swapped",
        "times as fast",
        "quartiles",
    ]
    lines = []
    for row in rows:
        cells = [row.name, " x ".join(map(str, row.shape)), str(row.threads)]
        if row.error:
            lines.append([*cells, row.error, "", "", "", ""])
            continue
        times = [
            milliseconds(row.stock[f]) if f in row.stock else "" for f in ("contiguous", "channels_last")
        ]
        ratio, low, high = (f"{number:.2f}" for number in row.ratio)
        lines.append([*cells, *times, milliseconds(row.swapped), ratio, f"{low} to {high}"])
    return markdown(head, lines)


def page(rows: list[Row]) -> list[str]:
    """Markdown of all rows, with the machine and the median of the ratios."""
    ratios = sorted(row.ratio[0] for row in rows if not row.error)
    title, timed = "Training steps", "a training step"
    if all(row.inference for row in rows):
        title, timed = "Inference", "a call in `eval()` without gradients"
    return [
        f"# {title}",
        "",
        f"Made by `python benchmarks/speed.py --rows`. Milliseconds of {timed} in float32; how many times as "
        "fast as the faster format of stock. Swapped is in its faster format too, in rows from before 2026-11-28 in "
        "channels_last.",
        "",
        "; ".join(dict.fromkeys(row.machine for row in rows)),
        "",
        f"Median {statistics.median(ratios):.2f}, smallest {ratios[0]:.2f}.",
        "",
        *table(rows),
    ]


def _in_a_process(name: str, *numbers: int) -> Row:
    return _row(
        {"name": name, "shape": (), "ratio": (), "threads": numbers[1], **row_of(__file__, name, *numbers)}
    )


def _row(found: dict[str, Any]) -> Row:
    return Row(**{**found, "shape": tuple(found["shape"]), "ratio": tuple(found["ratio"])})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--network", nargs="+", default=[""], metavar="TEXT", help="only names with one of these"
    )
    parser.add_argument("--library", nargs="+", default=[], metavar="NAME", help="networks of networks.json")
    parser.add_argument("--side", type=int, nargs="+", default=[128, 224], help="of the images")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--inference", action="store_true", help="calls in evaluation, not training steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    parser.add_argument("--rows", type=Path, nargs="+", metavar="FILE", help="make the page of these rows")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rows:
        rows = [_row(row) for file in arguments.rows for row in json.loads(file.read_text())]
        print("\n".join(page(rows)))
        return
    if arguments.one:
        warnings.simplefilter("ignore")
        name, *numbers = arguments.one
        print(json.dumps(asdict(measure(name, *map(int, numbers)))))
        return
    rows = []
    listed = [
        f"{library}/{name}" for library in arguments.library for name in networks.listed()[library].values()
    ]
    for name in listed or NETWORKS:
        if not any(text in name for text in arguments.network):
            continue
        for side in arguments.side[: 1 if name in _SIZES else None]:
            for threads in arguments.threads:
                rows.append(_in_a_process(name, side, threads, arguments.batch, int(arguments.inference)))
                print(*table(rows[-1:])[2:], file=sys.stderr, flush=True)
                if arguments.json is not None:
                    arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
