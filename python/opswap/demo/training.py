# SPDX-License-Identifier: MIT
"""Several copies of one model trained on the same batches, each step of each copy timed in turn."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import opswap
from opswap._timing import Spread

from .settings import DemoError

__all__ = [
    "Batch",
    "Criterion",
    "Learner",
    "adam",
    "autocast",
    "check_equal_parameters",
    "check_finite",
    "in_turn",
    "nesterov",
    "optimized",
    "swap_exactly",
    "train_close",
    "train_equal",
]

Batch = tuple[Tensor, Tensor]
Criterion = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter], float], Optimizer]


def nesterov(parameters: Iterable[nn.Parameter], learning_rate: float) -> Optimizer:
    """SGD with momentum and a little weight decay, for a classifier."""
    return torch.optim.SGD(parameters, learning_rate, momentum=0.9, weight_decay=1e-4, nesterov=True)


def adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> Optimizer:
    """AdamW with its usual weight decay."""
    return torch.optim.AdamW(parameters, learning_rate, weight_decay=1e-2)


class Learner:
    """A model with an optimizer and a one-cycle schedule; keeps the loss and the time of every step.

    dtype: float32, or 16 bits, which the model then computes in under autocast. Losses in float16 are scaled.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        criterion: Criterion,
        *,
        steps: int,
        learning_rate: float,
        optimizer: MakeOptimizer = nesterov,
        memory_format: torch.memory_format = torch.contiguous_format,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.model = model.to(memory_format=memory_format).train()
        self.memory_format = memory_format
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._criterion = criterion
        self._optimizer = optimizer(self.model.parameters(), learning_rate)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, max_lr=learning_rate, total_steps=steps
        )
        self._average: AveragedModel | None = None
        self._scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """One training step; converting the inputs to the memory format is not part of its time."""
        inputs = inputs.contiguous(memory_format=self.memory_format)
        start = time.perf_counter()
        self._optimizer.zero_grad()
        with autocast(self.dtype):
            outputs = self.model(inputs)
        loss = self._criterion(outputs.float(), targets)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._schedule.step()
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())
        if self._average is not None:
            self._average.update_parameters(self.model)

    def keep_average(self, decay: float) -> None:
        """From here on, predict with a moving average of the parameters and buffers after each step."""
        self._average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)

    def infer(self, inputs: Tensor, targets: Tensor) -> None:
        """One timed inference; converting the inputs to the memory format is not part of its time."""
        inputs = inputs.contiguous(memory_format=self.memory_format)
        with torch.inference_mode():
            start = time.perf_counter()
            self.model(inputs)
            self.seconds.append(time.perf_counter() - start)

    def predict(self, inputs: Tensor) -> Tensor:
        """The outputs of the model, or of the average, in inference mode."""
        model = self._average or self.model
        model.eval()
        with torch.inference_mode(), autocast(self.dtype):
            outputs = model(inputs.contiguous(memory_format=self.memory_format))
        model.train()
        return outputs

    def spread(self, skip: int) -> Spread:
        """Of the step times, without the first `skip` steps, in which caches are filled."""
        return Spread.of([1e3 * seconds for seconds in self.seconds[skip:] or self.seconds])


def autocast(dtype: torch.dtype) -> torch.autocast:
    """Of the CPU to a dtype of 16 bits; none to float32."""
    half = dtype is not torch.float32
    return torch.autocast("cpu", dtype if half else torch.bfloat16, enabled=half)


def in_turn(
    learners: Sequence[Learner],
    batches: Iterable[Batch],
    turn: Callable[[Learner, Tensor, Tensor], None] = Learner.step,
) -> Iterator[int]:
    """Give every batch to every learner, in random order, and yield the number of batches done.

    What disturbs the machine disturbs all learners alike, and none always follows the same other one, whose
    memory it would find in the caches: their times can be compared.
    """
    generator = random.Random(0)
    for done, (inputs, targets) in enumerate(batches, 1):
        for learner in generator.sample(learners, len(learners)):
            turn(learner, inputs, targets)
        yield done


def train_equal(
    stock: Learner, swapped: Learner, batches: Iterable[Batch], *others: Learner
) -> Iterator[int]:
    """Train all `in_turn`; raise DemoError at the first step in which the losses of the first two differ in any bit."""
    for done in in_turn((stock, swapped, *others), batches):
        if stock.losses[-1] != swapped.losses[-1]:
            raise DemoError(
                f"the losses of step {done} differ: {stock.name} {stock.losses[-1]!r}, "
                f"{swapped.name} {swapped.losses[-1]!r}"
            )
        yield done


def train_close(first: Learner, second: Learner, batches: Iterable[Batch], tolerance: float) -> Iterator[int]:
    """Train both `in_turn`; raise DemoError at the first step whose losses differ by more than this part of them."""
    for done in in_turn((first, second), batches):
        a, b = first.losses[-1], second.losses[-1]
        if not abs(b - a) <= tolerance * abs(a):
            raise DemoError(
                f"the losses of step {done} differ by more than {tolerance:g} of their value: {first.name} {a!r}, "
                f"{second.name} {b!r}"
            )
        yield done


def check_equal_parameters(stock: nn.Module, swapped: nn.Module) -> int:
    """Raise DemoError unless parameters and buffers are equal bit for bit; return their number."""
    expected, actual = stock.state_dict(), swapped.state_dict()
    if expected.keys() != actual.keys():
        raise DemoError(f"state_dict keys differ: {sorted(expected.keys() ^ actual.keys())}")
    for key, value in expected.items():
        if not torch.equal(value, actual[key]):
            worst = (value.double() - actual[key].double()).abs().max().item()
            raise DemoError(f"after training, {key!r} differs by up to {worst!r}")
    return len(expected)


def check_finite(learner: Learner) -> None:
    """Raise DemoError if a loss is NaN or infinite."""
    for step, loss in enumerate(learner.losses, 1):
        if not math.isfinite(loss):
            raise DemoError(f"{learner.name}: the loss of step {step} is {loss!r}")


def optimized(model: nn.Module, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.memory_format]:
    """opswap.optimize(model) under autocast to the dtype, and the memory format that it chose."""
    with autocast(dtype):
        opswap.optimize(model)
    report = opswap.report(model)
    if not report.swapped:
        raise DemoError(f"optimize found nothing to replace in {type(model).__name__}")
    return model, getattr(torch, report.memory_format or "contiguous_format")


def swap_exactly(model: nn.Module) -> nn.Module:
    """opswap.swap with bit-equal replacements only; DemoError if there is nothing to replace."""
    swapped = opswap.swap(model, exact=True)
    if not opswap.report(swapped).swapped:
        raise DemoError(f"swap found nothing to replace in {type(model).__name__}")
    return swapped
