# SPDX-License-Identifier: MIT
"""KeyboardInterrupt in the middle of a swap: the model and torch are as they were, and the next swap is whole."""

from __future__ import annotations

import builtins
import contextlib
import gc
import math
import random
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # replaces torch.manual_seed, once
import torch.nn.functional as torch_functional
from torch import Tensor, nn

import opswap
from opswap.swap import carry_out
from opswap.swap.capture import dry_run, example_run, follow, patches, tracer
from opswap.swap.planning import planner
from opswap.swap.rewriting import code, input_format
from spellings import Split
from swapping import images, same

pytestmark = pytest.mark.once


class Net(nn.Module):
    """Interrupts on the n-th call of its forward, or when its property is read."""

    interrupts: Callable[[], Any] | None = None
    reads = False

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, padding=1)
        self.body = nn.Sequential(Split(), Split(), nn.BatchNorm2d(12), nn.ReLU())
        self.pool = nn.MaxPool2d(2)

    @property
    def groups(self) -> int:
        if self.reads and Net.interrupts is not None:
            Net.interrupts()
        return 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if not self.reads and Net.interrupts is not None:
            Net.interrupts()
        n, c, h, w = x.shape
        x = x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.pool(self.body(x))


class ReadsProperty(Net):
    reads = True


def _of_torch() -> dict[Any, Any]:
    """All that a trace replaces in torch and in Python, and the switches of this thread."""
    spaces = (nn.Module, Tensor, torch, torch_functional, math, builtins)
    found = {(space, k): v for space in spaces for k, v in vars(space).items() if callable(v)}
    return found | {
        "profiler": sys.getprofile(),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "gradients": torch.is_grad_enabled(),
        "modes": opswap._core.plain_eager(),
        "random": (random.getstate(), torch.get_rng_state().tolist()),
    }


def _of_model(model: nn.Module) -> list[Any]:
    tensors = [(k, id(v), v.stride(), v._version) for k, v in model.state_dict(keep_vars=True).items()]
    return [tensors] + [
        (id(m), type(m), m.training, {k: id(v) for k, v in vars(m).items()}) for m in model.modules()
    ]


@contextlib.contextmanager
def unnoticed(model: nn.Module) -> Iterator[None]:
    """The block is interrupted; what it has changed is found."""
    torch_before, before = _of_torch(), _of_model(model)
    with pytest.raises(KeyboardInterrupt):
        yield
    after = _of_torch()
    assert [
        k for k in torch_before if after.get(k) is not torch_before[k] and after[k] != torch_before[k]
    ] == []
    assert after.keys() == torch_before.keys() and _of_model(model) == before


@pytest.fixture
def model() -> Iterator[nn.Module]:
    yield Net()
    Net.interrupts = None


def _interrupt() -> None:
    raise KeyboardInterrupt


SECOND = pytest.mark.parametrize("second", (False, True), ids=("first swap", "second swap"))


def _swapped_well(model: nn.Module) -> None:
    stock = opswap.unswap(model, inplace=False)
    opswap.swap(model, exact=True, strict=True)
    x = images(2, 12, 8, 8)
    opswap.reset_stats()
    same(model, stock, x)
    assert opswap.stats()["kernel"] and not opswap.stats()["original"]


@SECOND
@pytest.mark.parametrize("kind", (Net, ReadsProperty))
@pytest.mark.parametrize(
    ("calls", "example"),
    ((1, False), (1, True), (2, True)),
    ids=("trace", "example_inputs", "trace behind them"),
)
def test_by_the_users_code(
    second: bool,
    kind: type[Net],
    calls: int,
    example: bool,
    model: nn.Module,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Else the run with example inputs does not count.
    monkeypatch.setattr(dry_run.DryRuns, "undone", lambda self: contextlib.nullcontext())
    model, x = kind(), images(2, 12, 8, 8)
    if second:
        opswap.swap(model, exact=True)
    seen: list[int] = []

    def after_some() -> None:
        seen.append(1)
        if len(seen) >= calls:
            _interrupt()

    Net.interrupts = after_some
    with unnoticed(model):
        opswap.swap(model, example_inputs=(x,) if example else None)
    Net.interrupts = None
    _swapped_well(model)


STEPS: dict[str, tuple[Any, str, tuple[int, ...]]] = {
    "the plan": (planner, "apply_rules", (1, 4)),
    "a capture": (tracer.Tracer, "trace", (1, 4)),
    "a call of a module in a trace": (tracer.Tracer, "call_module", (1, 4)),
    "a node of a graph": (tracer.Tracer, "create_node", (4,)),
    "a patch of a method": (patches.Patches, "patch_method", (1, 4)),
    "a patch of a name": (patches.Patches, "meet", (1,)),
    "a function that is entered": (follow.Follower, "_enter", (1,)),
    "the run on examples": (example_run.ModelInputs, "_run", (1,)),
    "the text of a forward": (code, "_function_text", (4,)),
    "a class": (code.Recipe, "make_class", (1,)),
    "a new forward": (carry_out, "install", (1, 2)),
    "the plan that is kept": (carry_out, "keep_plan", (1, 4)),
    "a weight in another format": (input_format, "_convert", (1, 2)),
    "the hook of the format": (input_format, "_remove_hook", (1,)),
}


def _as_opswaps(function: Any) -> Any:
    """The function as if it stood in opswap's code, which a capture does not follow."""
    stands_in = {**function.__globals__, "__name__": opswap.__name__}
    there = function.__code__.replace(co_filename=opswap.__file__)
    return types.FunctionType(there, stands_in, function.__name__, None, function.__closure__)


@pytest.mark.parametrize(("late", "second"), ((False, False), (True, True)), ids=("before", "behind, again"))
@pytest.mark.parametrize(("step", "calls"), [(step, n) for step, (*_, calls) in STEPS.items() for n in calls])
def test_in_every_step(
    step: str, calls: int, late: bool, second: bool, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In front of the n-th call of a step, or right behind it."""
    owner, name, _ = STEPS[step]
    x = images(2, 12, 8, 8)
    plain, count = getattr(owner, name), [0]
    if second:
        opswap.swap(model, exact=True)

    def stopped(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == calls and not late:
            signal.raise_signal(signal.SIGINT)
        result = plain(*args, **kwargs)
        if count[0] == calls:
            raise KeyboardInterrupt
        return result

    with unnoticed(model), monkeypatch.context() as patched:
        patched.setattr(owner, name, _as_opswaps(stopped))
        opswap.swap(model, example_inputs=(x,), memory_format=torch.channels_last)
    _swapped_well(model)


def test_while_patches_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the function that takes them back, and in front of it."""

    class Thing:
        def name(self) -> str:
            return "stock"

    stock, plain = Thing.name, {n: getattr(patches.Patches, n) for n in ("close", "_take_back")}
    for method in plain:
        for entries in (0, 1):
            interrupted = []

            def stopped(
                self: Any, method: str = method, at: int = entries, seen: list[int] = interrupted
            ) -> None:
                if at:
                    plain[method](self)
                seen.append(1)
                if len(seen) == 1:
                    raise KeyboardInterrupt
                plain[method](self)

            def trace(new_patcher: Any) -> None:
                with new_patcher() as found:
                    found.patch_method(Thing, "name", lambda self: "traced")
                    assert Thing().name() == "traced"

            with monkeypatch.context() as patched:
                patched.setattr(patches.Patches, method, stopped)
                patched.setattr(patches, "fx_trace", lambda new: lambda *_: trace(new))
                with pytest.raises(KeyboardInterrupt):
                    patches.trace_with(patches.Patches(), None, None)
            assert Thing.name is stock
