# SPDX-License-Identifier: MIT
"""A swap in one thread, and torch.compile, torch.fx or another switch of the process in a second one."""

from __future__ import annotations

import copy
import math
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


def elsewhere(step: Callable[[], Any]) -> Any:
    """What `step` returns or raises in another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(step())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


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
