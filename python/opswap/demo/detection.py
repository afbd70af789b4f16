# SPDX-License-Identifier: MIT
"""The part of the demo about shapes: a detector whose sizes depend on data, and the same with fixed sizes."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.figure import SubFigure
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

import opswap

from .._timing import Spread
from .._torch import compiled_graphs
from ..shapes import ShapesReport
from . import canvases, digits
from .detector import Batch, Detector, data_dependent_loss, fixed_loss
from .settings import DemoError, Settings
from .tables import table, time_cells

__all__ = ["DEPENDENT", "FIXED", "Detection", "Form", "PaddingEffects", "padding_effects"]

DEPENDENT, FIXED = "different sizes", "fixed size"
_COMPILED = "fixed, compiled"
_BATCH, _BATCHES = 16, 12
_WATCHED = 4  # batches under the detector and the compiler that counts
_LEARNING_RATE = 3e-3
# Of a loss, in float64; sums over other sizes are taken in another order.
_TOLERANCE = 1e-6
_WARM_UP = 2
_COLOURS = {DEPENDENT: "tab:gray", FIXED: "tab:red", _COMPILED: "tab:blue"}


@dataclass
class Form:
    """One way to compute the loss of a batch. graphs: how many torch.compile built of it."""

    name: str
    loss: Callable[[nn.Module, Sequence[canvases.Sample]], Tensor]
    report: ShapesReport | None = None
    graphs: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def spread(self) -> Spread:
        """Of the step times, in ms."""
        return Spread.of([1e3 * seconds for seconds in self.seconds])


@dataclass(frozen=True)
class PaddingEffects:
    """What padding changes if nothing masks it.

    share: of the pixels that are padding. mean, variance: how far those of a channel after the first convolution move,
    at most, if a BatchNorm counts padding: in standard deviations, and as a part of the variance. border, inner: how
    far outputs move at cells of the right and lower border of an image, and at its other cells: root of the mean
    square, as a part of the outputs' standard deviation.
    """

    share: float
    mean: float
    variance: float
    border: float
    inner: float

    def __str__(self) -> str:
        return (
            f"What padding changes: it is {self.share:.0%} of the pixels. A BatchNorm after the first convolution "
            f"would count it: means move by up to {self.mean:.2f} standard deviations, variances by up to "
            f"{self.variance:.0%}. Without a mask, convolutions at the right and lower border read it: outputs there "
            f"move by {self.border:.1%} of their spread, all others by {self.inner:.1%}. This detector has no "
            "BatchNorm and masks its features."
        )


@torch.no_grad()
def padding_effects(net: Detector, batch: Batch) -> PaddingEffects:
    """Measured on one batch."""
    features = net.convs[0](batch.images).movedim(1, -1)
    own = features[batch.inside[0]]
    deviation = own.std(0)
    everything = features.flatten(0, 2)
    mean = ((everything.mean(0) - own.mean(0)) / deviation).abs().max()
    variance = ((everything.std(0) / deviation) ** 2 - 1).abs().max()
    masked, plain = (net(batch.images, masks).movedim(1, -1) for masks in (batch.inside, ()))
    cells = batch.inside[-1]
    beside_padding = F.max_pool2d((~cells).float(), 3, stride=1, padding=1).bool()
    moved = ((plain - masked) / masked[cells].std()) ** 2
    border, inner = cells & beside_padding, cells & ~beside_padding
    return PaddingEffects(
        share=1 - cells.float().mean().item(),
        mean=mean.item(),
        variance=variance.item(),
        border=moved[border].mean().sqrt().item(),
        inner=moved[inner].mean().sqrt().item(),
    )


class Detection:
    """The detector in both forms: what is found in them, what a compiler makes of them, that they train alike."""

    title = "A detector of digits on canvases of different sizes"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        data = digits.load((8, 8), settings.seed)
        count = _BATCH * min(_BATCHES, max(settings.detection_steps, _WATCHED))
        samples = canvases.compose(data.train_images, data.train_labels, count, settings.seed)
        self.batches = [samples[i : i + _BATCH] for i in range(0, count, _BATCH)]
        self._collate = opswap.shapes.collate_fixed(canvases.LARGEST, max_boxes=canvases.MOST_BOXES)
        torch.manual_seed(settings.seed)
        self.initial = Detector()
        self.forms = [
            Form(DEPENDENT, lambda net, samples: data_dependent_loss(net, *zip(*samples, strict=True))),
            Form(FIXED, lambda net, batch: fixed_loss(net, batch)),
        ]
        self.timed: list[Form] = []
        self.notes: list[str] = []

    def batch(self, samples: Sequence[canvases.Sample]) -> Batch:
        """The padded batch of some samples, as a DataLoader with `collate_fixed` yields it."""
        return Batch.of(*self._collate(samples))

    def find(self) -> None:
        """Watch some steps of both forms with `shapes.detect`. Raises: DemoError if it finds the wrong things."""
        for form, batches in self._watched():
            net = copy.deepcopy(self.initial)
            with opswap.shapes.detect(net) as form.report:
                for batch in batches:
                    form.loss(net, batch).backward()
        dependent, fixed = (form.report for form in self.forms)
        if not dependent.findings or fixed.findings or fixed.summary["graphs"] != 1:
            raise DemoError(f"shapes.detect found {len(dependent.findings)} sites, then:\n{fixed}")

    def count_graphs(self) -> None:
        """Compile both forms, without a code generator. Raises: DemoError unless the fixed form has one graph."""
        for form, batches in self._watched():
            torch.compiler.reset()
            net, before = copy.deepcopy(self.initial), compiled_graphs()
            compiled = torch.compile(_function_of(form), backend="eager")
            for batch in batches:
                compiled(net, *_arguments(form, batch)).backward()
            form.graphs = compiled_graphs() - before
        torch.compiler.reset()
        dependent, fixed = self.forms
        if fixed.graphs != 1 or dependent.graphs <= 1:
            raise DemoError(f"torch.compile built {dependent.graphs} and {fixed.graphs} graphs")

    def train(self) -> Iterator[int]:
        """Train both in float64 on the same data; yields the steps done. Raises: DemoError if losses differ."""
        nets = [copy.deepcopy(self.initial).double() for _ in self.forms]
        optimizers = [torch.optim.AdamW(net.parameters(), _LEARNING_RATE) for net in nets]
        for step in range(self.settings.detection_steps):
            samples = self.batches[step % len(self.batches)]
            wide = [(image.double(), {**t, "boxes": t["boxes"].double()}) for image, t in samples]
            for form, net, optimizer, batch in zip(
                self.forms, nets, optimizers, (wide, self.batch(samples).double()), strict=True
            ):
                optimizer.zero_grad()
                loss = form.loss(net, batch)
                loss.backward()
                optimizer.step()
                form.losses.append(loss.item())
            first, second = (form.losses[-1] for form in self.forms)
            if not abs(second - first) <= _TOLERANCE * abs(first):
                raise DemoError(
                    f"the losses of step {step + 1} differ by more than {_TOLERANCE:g} of their value: "
                    f"{DEPENDENT} {first!r}, {FIXED} {second!r}"
                )
            yield step + 1
        pairs = list(zip(*(form.losses for form in self.forms), strict=True))
        worst = max(abs(b - a) / abs(a) for a, b in pairs)
        self.notes.append(
            f"All {len(pairs)} losses are equal to {worst:.1g} of their value (allowed: {_TOLERANCE:g})."
        )

    def time(self) -> Iterator[int]:
        """Time training steps in float32, the fixed form compiled too; yields the rounds done."""
        samples = self.batches[0]
        fixed = self.batch(samples)
        compiled = Form(_COMPILED, self._compiled(fixed))
        self.timed = [*self.forms, compiled]
        nets = [copy.deepcopy(self.initial) for _ in self.timed]
        generator = random.Random(0)
        for done in range(_WARM_UP + self.settings.rounds):
            for index in generator.sample(range(len(nets)), len(nets)):
                form, net = self.timed[index], nets[index]
                net.zero_grad()
                start = time.perf_counter()
                form.loss(net, samples if form.name == DEPENDENT else fixed).backward()
                if done >= _WARM_UP:
                    form.seconds.append(time.perf_counter() - start)
            yield done + 1

    def print(self, console: Console) -> None:
        """What was found, the table of times and the notes."""
        dependent, fixed = self.forms
        console.print(str(dependent.report), markup=False, highlight=False, soft_wrap=True)
        console.print(f"With fixed sizes: {fixed.report}", markup=False, highlight=False, soft_wrap=True)
        console.print()
        if self.timed and self.timed[0].seconds:
            made = table(f"{_BATCH} canvases, in turn", "form", "graphs")
            for form in self.timed:
                graphs = str(form.graphs) if form.graphs else ""
                made.add_row(form.name, graphs, *time_cells(form.spread(), dependent.spread()))
            console.print(made)
        graphs = f"torch.compile builds {dependent.graphs} graphs for {_WATCHED} batches of {DEPENDENT}"
        effects = str(padding_effects(self.initial, self.batch(self.batches[0])))
        for note in (f"{graphs}, and {fixed.graphs} for those of a {FIXED}.", *self.notes, effects):
            console.print(note, highlight=False)

    def draw(self, row: SubFigure) -> None:
        """Losses, and pixels of the network's inputs over its calls."""
        row.suptitle(self.title, fontweight="bold")
        losses, sizes = row.subplots(1, 2)
        for form, style, width in zip(self.forms, ("-", "--"), (4.0, 1.2), strict=True):
            steps = np.arange(1, len(form.losses) + 1)
            losses.plot(
                steps, form.losses, style, linewidth=width, color=_COLOURS[form.name], label=form.name
            )
            each = 1 if form.name == DEPENDENT else _BATCH
            pixels = np.repeat(form.report.inputs[""].series, each) / each
            built = f"{form.graphs} graph" + "s" * (form.graphs != 1)
            sizes.plot(pixels, ".-", markersize=4, color=_COLOURS[form.name], label=f"{form.name}: {built}")
        losses.set(xlabel="step", ylabel="loss", yscale="log", title="Loss: both curves coincide")
        sizes.set(xlabel="image", ylabel="pixels", ylim=(0, 1.3 * canvases.LARGEST**2))
        sizes.set_title("Sizes of images that the network gets, graphs that torch.compile builds")
        losses.legend()
        sizes.legend()

    def _watched(self) -> Iterator[tuple[Form, list]]:
        some = self.batches[:_WATCHED]
        yield self.forms[0], some
        yield self.forms[1], [self.batch(samples) for samples in some]

    def _compiled(self, batch: Batch) -> Callable[[nn.Module, Batch], Tensor]:
        """The fixed loss compiled with code generation, or, without a C++ compiler, as far as torch gets without."""
        net = copy.deepcopy(self.initial)
        try:
            compiled = torch.compile(fixed_loss, fullgraph=True)
            compiled(net, batch).backward()
        except Exception as error:
            torch.compiler.reset()
            self.notes.append(
                f"{_COMPILED}: torch.compile generates no code here ({type(error).__name__}), so that the backend is "
                "aot_eager."
            )
            return torch.compile(fixed_loss, fullgraph=True, backend="aot_eager")
        return compiled


def _function_of(form: Form) -> Callable[..., Tensor]:
    return data_dependent_loss if form.name == DEPENDENT else fixed_loss


def _arguments(form: Form, batch: Sequence) -> tuple:
    return tuple(zip(*batch, strict=True)) if form.name == DEPENDENT else (batch,)
