# SPDX-License-Identifier: MIT
"""A swap in one thread, and torch.compile, torch.fx or another switch of the process in a second one."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import opswap
from opswap import _torch
from opswap.swap.capture.patches import Patches
from opswap.swap.capture.tracer import Tracer
from spellings import Split, by_size
from swapping import images, same
from threads import elsewhere


class Shuffled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.conv(x)) + torch.zeros(x.size(0), 1, 1, 1)


class Slow(nn.Module):
    """Stays in its forward, which another thread traces, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ReLU()
        self.began, self.go_on = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.began.set()
        self.go_on.wait(60)
        return self.layer(x)


class Traces:
    """torch.fx.symbolic_trace in another thread, begun and ended when the test says so."""

    def __init__(self) -> None:
        self.module, self.graphs = Slow(), []
        self.thread = threading.Thread(
            target=lambda: self.graphs.append(fx.symbolic_trace(self.module).graph)
        )

    def begin(self) -> None:
        self.thread.start()
        assert self.module.began.wait(60)

    def end(self) -> None:
        self.module.go_on.set()
        self.thread.join(60)


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Have a step run once in the middle of the next trace."""

    def add(step: Callable[[], Any]) -> None:
        stock, done = Tracer.proxy, []

        def proxy(self: Tracer, node: fx.Node) -> fx.Proxy:
            if node.op == "call_method" and not done:
                done.append(True)
                step()
            return stock(self, node)

        monkeypatch.setattr(Tracer, "proxy", proxy)

    return add


def can_compile() -> bool:
    lock = _torch.compile_lock()
    acquired = lock.acquire(blocking=False)
    if acquired:
        lock.release()
    return acquired


def swap_shuffled(then: Callable[[], Any] = lambda: None) -> None:
    stock = Shuffled()
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    then()
    assert [s.rule for s in opswap.report(model).swapped] == ["channel_shuffle"], str(opswap.report(model))
    same(model, stock)


def test_compiled_code_runs_meanwhile(during: Any) -> None:
    """torch.fx tells the whole process that it traces, for which compiled code raises."""
    compiled, x = torch.compile(Split(), backend="eager"), images()
    expected, seen = compiled(x), []
    during(lambda: seen.append(elsewhere(lambda: compiled(x))))
    swap_shuffled()
    assert torch.equal(seen[0], expected)


def test_nothing_is_compiled_meanwhile(during: Any) -> None:
    """A function compiled at that time would be guarded by what is patched."""
    torch.compile(Split(), backend="eager")(images())  # imports the compiler
    seen = []
    during(lambda: seen.append(elsewhere(can_compile)))
    swap_shuffled()
    assert seen == [False] and elsewhere(can_compile)


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_a_trace_of_torch_fx_overlaps(first: str, during: Any) -> None:
    """Each of the two has patched torch.nn.Module; nothing of it is left, and either has its result."""
    stock = nn.Module.__call__, nn.Module.__getattr__
    other = Traces()
    if first == "theirs":
        other.begin()
        during(other.end)
    else:
        during(other.begin)
    swap_shuffled(other.end)
    assert [n.op for n in other.graphs[0].nodes] == ["placeholder", "call_module", "output"]
    swap_shuffled()
    nn.Sequential(nn.ReLU())(images())
    assert (nn.Module.__call__, nn.Module.__getattr__) == stock


def test_patches_that_are_taken_back_in_the_order_they_began() -> None:
    class Thing:
        def name(self) -> str:
            return "stock"

    stock, scope = Thing.name, {"f": 1}
    first, second = Patches(), Patches()
    first.patch_method(Thing, "name", lambda self: "first")
    first.patch(scope, "f", 2)
    first.patch(scope, "abs", 2)
    first.patch(scope, "g", 2)
    first.meet(compile("f + abs", "", "eval"))
    assert scope == {"f": 2, "abs": 2}
    assert Thing().name() == "first" and elsewhere(Thing().name) == "stock"
    second.patch_method(Thing, "name", lambda self: "second")
    second.patch(scope, "f", 3)
    second.meet(compile("f", "", "eval"))
    assert Thing().name() == "second"
    first.close()
    assert first.disturbed and Thing().name() == "second" and scope == {"f": 3}
    second.close()
    assert not second.disturbed and Thing().name() == "stock" and Thing.name is stock
    third = Patches()
    third.patch_method(Thing, "name", lambda self: "third")
    third.close()
    assert Thing.name is stock


class Interrupts(type):
    """Runs a step once before, or behind, the next write to the class."""

    before: Callable[[], Any] | None = None
    behind: Callable[[], Any] | None = None

    def __setattr__(cls, name: str, value: Any) -> None:
        before, behind = Interrupts.before, Interrupts.behind
        Interrupts.before = Interrupts.behind = None
        if before is not None:
            before()
        super().__setattr__(name, value)
        if behind is not None:
            behind()


def test_a_call_elsewhere_while_patches_are_taken_back() -> None:
    """One method is stock again, the other is called by a thread that trains: no trace has come in between."""

    class Thing(metaclass=Interrupts):
        def name(self) -> str:
            return "stock"

        def other(self) -> str:
            return "stock"

    stock, seen = Thing.name, []
    patches = Patches()
    patches.patch_method(Thing, "name", lambda self: "first")
    patches.patch_method(Thing, "other", lambda self: "first")
    Interrupts.behind = lambda: seen.append(elsewhere(Thing().name))
    patches.close()
    assert seen == ["stock"] and not patches.disturbed and Thing.name is stock


def test_a_patch_that_is_taken_back_late_leaves_the_next_one_alone() -> None:
    """The thread that finds the patch of a trace that is over stops just before it writes to the class."""

    class Thing(metaclass=Interrupts):
        def name(self) -> str:
            return "stock"

    first, second = Patches(), Patches()
    first.patch_method(Thing, "name", lambda self: "first")
    kept = Thing.name
    Thing.name = lambda self: "theirs"
    first.close()
    Thing.name = kept  # as torch.fx puts back what it found
    patching = threading.Thread(target=lambda: second.patch_method(Thing, "name", lambda self: "second"))

    def patch_meanwhile() -> None:
        patching.start()
        patching.join(0.5)

    Interrupts.before = patch_meanwhile
    assert elsewhere(Thing().name) == "stock"
    patching.join(60)
    assert Thing().name() == "second"
    second.close()
    assert Thing().name() == "stock" and not second.disturbed


def disturb(monkeypatch: pytest.MonkeyPatch, wanted: Callable[[Tracer], bool]) -> list[Tracer]:
    """Have torch.fx begin in another thread in the middle of the traces that are wanted, and end behind them."""
    disturbed: list[Tracer] = []
    proxy, trace, other = Tracer.proxy, Tracer.trace, [Traces()]

    def begin(self: Tracer, node: fx.Node) -> fx.Proxy:
        if node.op != "placeholder" and other[0].thread.ident is None and wanted(self):
            disturbed.append(self)
            other[0].begin()
        return proxy(self, node)

    def end(self: Tracer, root: nn.Module) -> fx.Graph:
        try:
            return trace(self, root)
        finally:
            if other[0].thread.ident is not None:
                other[0].end()
                other[0] = Traces()

    monkeypatch.setattr(Tracer, "proxy", begin)
    monkeypatch.setattr(Tracer, "trace", end)
    return disturbed


def heads() -> list[nn.Module]:
    return [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(2)]


def test_a_trace_that_another_thread_disturbs_in_one_mode_is_not_taken_for_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disturbed = disturb(monkeypatch, lambda tracer: not tracer.root.training)
    with pytest.raises(ValueError, match="another thread traced a module"):
        opswap.merge.branches(heads())
    assert disturbed


def test_traces_that_are_disturbed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed: list[Tracer] = disturb(monkeypatch, lambda tracer: len(disturbed) < 6)
    opswap.merge.branches(heads())
    assert len(disturbed) == 6


@pytest.mark.usefixtures("third_thread")
def test_another_thread_adds_to_a_dictionary_that_a_trace_goes_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch.fx does so with the globals of every forward."""
    stock, scope = Tracer.trace, {"first": 0}

    def trace(self: Tracer, root: nn.Module) -> fx.Graph:
        graph = stock(self, root)
        for _ in scope:
            if len(scope) < 4:
                elsewhere(lambda: scope.update({str(len(scope)): 0}))
        return graph

    monkeypatch.setattr(Tracer, "trace", trace)
    swap_shuffled()
    assert len(scope) == 4


@pytest.mark.usefixtures("third_thread")
def test_another_thread_draws_from_the_generator_of_python_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stock, drawn = Tracer.trace, []

    def trace(self: Tracer, root: nn.Module) -> fx.Graph:
        if len(drawn) < 6:
            drawn.append(elsewhere(random.random))
        return stock(self, root)

    monkeypatch.setattr(Tracer, "trace", trace)
    swap_shuffled()
    assert len(set(drawn)) == 6 and random.random() not in drawn


@pytest.mark.usefixtures("third_thread")
def test_only_the_generator_that_a_forward_draws_from_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, drawn = Tracer.trace, []

    def trace(self: Tracer, root: nn.Module) -> fx.Graph:
        torch.rand(3)
        if not drawn:
            drawn.append(elsewhere(random.random))
        return stock(self, root)

    monkeypatch.setattr(Tracer, "trace", trace)
    model, state = Split(), torch.get_rng_state()
    report = opswap.scan(model)
    assert "draws random numbers" in report.kept[0].reason
    assert random.random() not in drawn and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("switch", [gc.disable, gc.enable])
def test_another_thread_switches_the_collector_meanwhile(switch: Callable[[], None], during: Any) -> None:
    """Nothing is collected in a trace, and afterwards the collector is as the other thread wants it."""
    collected, seen = [], []
    gc.callbacks.append(lambda phase, _: collected.append(phase))
    (gc.disable if switch is gc.enable else gc.enable)()

    def step() -> None:
        elsewhere(switch)
        collected.clear()
        kept = [[] for _ in range(10 * gc.get_threshold()[0] + 10000)]
        seen.append(len(kept) > 0 and not collected)

    try:
        during(step)
        swap_shuffled()
        assert seen == [True] and gc.isenabled() == (switch is gc.enable)
    finally:
        gc.callbacks.pop()
        gc.enable()


STEPS = 0


class ReadsSteps(Shuffled):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if STEPS < 100 else self.conv(x)


def count_step() -> None:
    global STEPS
    STEPS += 1


def test_a_global_that_another_thread_counts_up_keeps_its_count(
    during: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training goes on while the model is swapped; the forward asks for the number of steps."""
    monkeypatch.setitem(globals(), "STEPS", 3)
    during(lambda: elsewhere(count_step))
    model = ReadsSteps()
    assert opswap.scan(model, exact=True).swapped and STEPS == 4


def test_functions_that_the_forward_does_not_name_are_left_alone(during: Any) -> None:
    """torch.fx wraps those of math; torch.export, in another thread, knows them by identity."""
    stock, seen = dict(vars(math)), []
    during(lambda: seen.append(dict(vars(math)) == stock))
    swap_shuffled()
    assert seen == [True]


def test_factories_of_torch_are_replaced_only_for_code_that_names_them(during: Any) -> None:
    """Other threads see it: torch.jit.script and torch.compile know torch's functions by identity."""
    stock, seen = (torch.ones, torch.zeros), []
    during(lambda: seen.append((torch.ones is stock[0], torch.zeros is stock[1])))
    swap_shuffled()
    assert seen == [(True, False)] and (torch.ones, torch.zeros) == stock


class Halves(nn.Module):
    """It asks for the size of a convolution's output, which is looked up once per size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return by_size(y) if y.size(2) > 2 else y


class Late:
    """What another thread's call adds while a dictionary is copied."""

    def __init__(self, known: dict[Any, bool]) -> None:
        self.known = known

    def __deepcopy__(self, memo: dict[int, Any]) -> str:
        self.known[object()] = True
        return "late"

    def __reduce__(self) -> tuple[Any, ...]:
        self.known[object()] = True
        return str, ("late",)


@pytest.mark.parametrize("make_twin", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_while_another_thread_calls_the_model(make_twin: Callable[[Any], Any]) -> None:
    model = opswap.swap(Halves())
    model(torch.randn(2, 8, 6, 6))
    known = model._opswap_record.known
    assert known
    known[Late(known)] = True
    twin = make_twin(model)
    assert "late" in twin._opswap_record.known
    x = torch.randn(2, 8, 6, 6)
    assert torch.equal(twin(x), model(x))


def test_limits_that_overlap() -> None:
    """The tier belongs to the process: what the first context found is put back by the last one to be left."""
    before = opswap.isa.current()
    first, second = opswap.isa.limit("scalar"), opswap.isa.limit("scalar")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert opswap.isa.current() == "scalar"
    second.__exit__(None, None, None)
    assert opswap.isa.current() == before
    with opswap.isa.limit("scalar"):
        with opswap.isa.limit(before):
            assert opswap.isa.current() == before
        assert opswap.isa.current() == "scalar"
    assert opswap.isa.current() == before
