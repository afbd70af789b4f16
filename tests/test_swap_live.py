# SPDX-License-Identifier: MIT
"""While a model is analysed, nobody who uses it notices: flags, classes, hooks, values and random generators."""

from __future__ import annotations

import copy
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import opswap
from opswap.swap.capture.shell import Shell
from opswap.swap.capture.tracer import Tracer
from spellings import Split, Wrapped, by_size
from swapping import images, same
from threads import elsewhere, meanwhile


class Net(nn.Module):
    """Convolutions, norms that keep statistics, shuffles and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.body = nn.Sequential(Split(), Split())
        self.drop = nn.Dropout(0.5)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.drop(self.body(self.stem(x))))


ANALYSES: dict[str, Callable[[nn.Module], object]] = {
    "swap": opswap.swap,
    "swap with example_inputs": lambda m: opswap.swap(m, example_inputs=(images(),)),
    "scan": opswap.scan,
    "scan with example_inputs": lambda m: opswap.scan(m, exact=True, example_inputs=(images(),)),
    "report": opswap.report,
    "verify": lambda m: opswap.verify(m, (images(),)),
    "swap with verify_with": lambda m: opswap.swap(m, verify_with=(images(),)),
}


def analyse_in_every_way(model: nn.Module) -> None:
    for analyse in ANALYSES.values():
        analyse(model)


every_analysis = pytest.mark.parametrize("analyse", ANALYSES.values(), ids=ANALYSES)


def state(model: nn.Module) -> list[object]:
    """All that code may see of the modules, by identity."""
    return [(id(m), m.training, type(m), [(k, id(v)) for k, v in vars(m).items()]) for m in model.modules()]


@every_analysis
@pytest.mark.parametrize("training", [True, False])
def test_another_thread_sees_one_model(analyse: Callable[[nn.Module], object], training: bool) -> None:
    model = opswap.swap(Net()).train(training)
    model.body[1].eval()
    seen: list[object] = []
    expected = state(model)

    def look() -> None:
        found = state(model)
        if found != expected and not seen:
            seen.append(found)

    with meanwhile(look):
        analyse(model)
    assert not seen and state(model) == expected


@every_analysis
def test_another_thread_computes_what_it_did(analyse: Callable[[nn.Module], object]) -> None:
    model = opswap.swap(Net()).eval()
    x = images()
    expected, wrong = model(x), []

    def run() -> None:
        with torch.no_grad():
            if not torch.equal(model(x), expected):
                wrong.append(1)

    with meanwhile(run):
        analyse(model)
    assert not wrong


KINDS = [
    "forward_hook",
    "forward_pre_hook",
    "full_backward_hook",
    "full_backward_pre_hook",
    "state_dict_pre_hook",
    "state_dict_post_hook",
    "load_state_dict_pre_hook",
    "load_state_dict_post_hook",
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_hook_fires(kind: str) -> None:
    seen: list[str] = []
    model = Net()
    for name, m in model.named_modules():
        getattr(m, f"register_{kind}")(lambda *_, name=name: seen.append(name))
    analyse_in_every_way(model)
    assert not seen
    assert all(
        len(getattr(m, k)) <= 1 for m in model.modules() for k in vars(nn.Module()) if k.endswith("_hooks")
    )


@pytest.mark.parametrize(
    "register",
    [
        torch_module.register_module_forward_hook,
        torch_module.register_module_forward_pre_hook,
        torch_module.register_module_full_backward_hook,
        torch_module.register_module_full_backward_pre_hook,
    ],
    ids=lambda f: f.__name__,
)
def test_no_hook_of_the_process_fires(register: Callable[..., object]) -> None:
    model, seen = Net(), []
    handle = register(lambda *_: seen.append(1))
    try:
        analyse_in_every_way(model)
    finally:
        handle.remove()
    assert not seen


def test_a_hook_that_resizes_is_not_seen_and_not_needed() -> None:
    stock = Net()
    stock.body.register_forward_pre_hook(lambda m, args: F.interpolate(args[0], size=(6, 6)))
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True, example_inputs=(images(),))
    same(model.eval(), stock.eval())
    assert all(c.holds for c in opswap.verify(stock, (images(),)).checks)


def test_hooks_by_which_torch_computes_run() -> None:
    """weight_norm computes the weight in a hook, lazy modules find their sizes in one."""
    model = nn.Sequential(nn.LazyConv2d(12, 1), nn.utils.weight_norm(nn.Conv2d(12, 12, 1)), Split())
    seen = Shell(model)
    assert len(seen.root[1]._forward_pre_hooks) == 1
    assert opswap.scan(model, example_inputs=(images(),)).swapped
    assert type(model[0]) is nn.LazyConv2d
    model(images())
    model[1].weight_g.data.mul_(2)
    assert all(c.holds for c in opswap.verify(model, (images(),)).checks)


class Draws(nn.Module):
    """Draws from generators of its own and of the process."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.bn = nn.BatchNorm2d(12)
        self.own = [random.Random(3), np.random.default_rng(3), np.random.RandomState(3)]
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        scale = random.random() + np.random.rand() + torch.rand(()) + torch.rand((), generator=self.generator)
        scale = scale + self.own[0].random() + self.own[1].random() + self.own[2].rand()
        return F.dropout(by_size(self.bn(self.conv(x))), 0.3) * scale

    def state(self) -> list[object]:
        python, new, old = self.own
        return [
            python.getstate(),
            str(new.bit_generator.state),
            str(old.get_state()),
            self.generator.get_state().tolist(),
            random.getstate(),
            str(np.random.get_state()),
            torch.get_rng_state().tolist(),
        ]


@every_analysis
def test_no_generator_is_advanced(
    analyse: Callable[[nn.Module], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = nn.Sequential(Draws()), images()
    monkeypatch.setitem(globals(), "images", lambda: x)  # the table above would draw them
    before = model[0].state()
    analyse(model)
    assert before == model[0].state()


@pytest.mark.usefixtures("third_thread")
@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("draw", [lambda: torch.rand(3), lambda: torch.zeros(3).normal_(), random.random])
def test_a_draw_while_a_forward_is_traced(
    draw: Callable[[], object], others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another thread stays drawn, and refuses nothing; that of the trace is undone, and refuses it."""
    traces: list[int] = []
    trace = Tracer.trace

    def trace_and_draw(tracer: Tracer, root: nn.Module) -> object:
        if not others:
            draw()
        elif not traces:
            elsewhere(draw)
        traces.append(1)
        return trace(tracer, root)

    monkeypatch.setattr(Tracer, "trace", trace_and_draw)
    model, states = Split(), [random.getstate(), torch.get_rng_state()]
    if others:
        draw()
        after = [random.getstate(), torch.get_rng_state()]
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        states = after
    report = opswap.scan(model, exact=True)
    assert traces and random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    assert bool(report.swapped) == others
    assert others or "draws random numbers" in report.kept[0].reason


class Writes(nn.Module):
    """Leaves traces of every call on whatever it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.seen: list[int] = []
        self.count = {"calls": 0}
        self.last = deque(maxlen=3)
        self.total = torch.zeros(3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        self.count["calls"] += 1
        self.last.append(1)
        self.total.add_(1)
        self.calls += 1
        return by_size(self.conv(x))


@every_analysis
def test_what_a_forward_writes_is_not_seen(analyse: Callable[[nn.Module], object]) -> None:
    model = nn.Sequential(Writes())
    analyse(model)
    m = model[0]
    assert (m.seen, m.count, len(m.last), m.calls) == ([], {"calls": 0}, 0, 0)
    assert not m.total.any()
    model(images())
    assert (m.seen, m.count, len(m.last), m.calls, m.total.tolist()) == ([1], {"calls": 1}, 1, 1, [1.0] * 3)


class Holder(nn.Module):
    """Holds its modules in every way but as a child only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12)
        self.listed = [self.conv, {"bn": (self.bn,)}]
        self.bound = self.inner
        self.part = partial(self.inner, norm=self.bn)
        self.closure = lambda x: self.bn(self.conv(x))
        self.weak = weakref.ref(self.bn)
        self.proxies = [weakref.proxy(self.conv)]
        self.plain = SimpleNamespace(norm=self.bn)

    def inner(self, x: Tensor, norm: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        return (norm or self.bn)(x)


WAYS: dict[str, Callable[[Holder, Tensor], Tensor]] = {
    "list": lambda m, x: m.listed[1]["bn"][0](m.listed[0](x)),
    "bound method": lambda m, x: m.bound(x),
    "partial": lambda m, x: m.part(x),
    "closure": lambda m, x: m.closure(x),
    "weak reference": lambda m, x: m.weak()(x),
    "weak proxy": lambda m, x: m.bn(m.proxies[0](x)),
    "object": lambda m, x: m.plain.norm(x),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_modules_that_are_held_in_other_ways(way: Callable[[Holder, Tensor], Tensor]) -> None:
    class Held(Holder):
        def forward(self, x: Tensor) -> Tensor:
            return by_size(way(self, x))

    model = Held().train()
    calls: list[int] = []
    model.bn.register_forward_hook(lambda *_: calls.append(1))
    before = copy.deepcopy(model.state_dict())
    analyse_in_every_way(model)
    assert not calls and model.bn.num_batches_tracked == 0
    assert all(torch.equal(a, before[k]) for k, a in model.state_dict().items())


def test_a_shell_shares_parameters_and_nothing_else() -> None:
    model = opswap.swap(Holder())
    shell = Shell(model)
    twin = shell.root
    assert twin is not model and type(twin) is Holder and shell.live(twin) is model
    assert twin.conv.weight is model.conv.weight and twin.bn.running_mean is model.bn.running_mean
    held = [twin.listed[0], twin.closure.__closure__[0].cell_contents.conv, twin.bound.__self__.conv]
    assert all(m is twin.conv for m in held) and twin.proxies[0].weight is twin.conv.weight
    assert all(
        m is twin.bn
        for m in (twin.listed[1]["bn"][0], twin.weak(), twin.plain.norm, twin.part.keywords["norm"])
    )
    assert not any("_opswap" in k for m in twin.modules() for k in vars(m))


WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "script": torch.jit.script,
    "trace": lambda m: torch.jit.trace(m, images()),
    "graph": torch.fx.symbolic_trace,
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "own state": lambda m: OwnState(m),
}


class OwnState(nn.Module):
    """Says what a pickle of it holds."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.lock = inner, threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in vars(self).items() if k != "lock"}

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_parts_that_are_copied_in_ways_of_their_own(wrap: Callable[[nn.Module], nn.Module]) -> None:
    inner = nn.Sequential(nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12))
    model = nn.Sequential(wrap(inner), Split())
    before = copy.deepcopy(model[0].state_dict())
    analyse_in_every_way(model)
    assert all(o.ran for o in opswap.explain(model, images()).outcomes if o.path.startswith("1"))
    after = model[0].state_dict()
    different = [k for k, t in after.items() if t.dtype != before[k].dtype or not torch.equal(t, before[k])]
    assert not different and after.keys() == before.keys()
    assert all(p.grad is None for p in model.parameters())


def test_what_cannot_be_copied_is_not_run() -> None:
    class Stubborn(nn.Module, dict):
        def __init__(self) -> None:
            nn.Module.__init__(self)

        __hash__ = nn.Module.__hash__

        def __deepcopy__(self, memo: object) -> nn.Module:
            raise RuntimeError("there is only one of me")

        def forward(self, x: Tensor) -> Tensor:
            return x

    model = nn.Sequential(Stubborn(), Split())
    assert opswap.scan(model).swapped
    for run in (
        lambda: opswap.verify(model, (images(),)),
        lambda: opswap.scan(model, example_inputs=(images(),)),
    ):
        with pytest.raises((RuntimeError, ValueError), match="only one of me"):
            run()


def test_closures_that_share_a_variable() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(12, 12, 1)
            inner = self.conv

            def read(x: Tensor) -> Tensor:
                return inner(x)

            def write(module: nn.Module) -> None:
                nonlocal inner
                inner = module

            self.read, self.write = read, write

    model = Shared()
    twin = Shell(model).root
    other = nn.Conv2d(12, 12, 1)
    twin.write(other)
    assert twin.read.__closure__[0].cell_contents is other
    assert model.read.__closure__[0].cell_contents is model.conv


def test_what_is_not_plain_is_shared_or_refused() -> None:
    class Both(nn.Module, dict):
        def __init__(self) -> None:
            nn.Module.__init__(self)

        __hash__ = nn.Module.__hash__

        def forward(self, x: Tensor) -> Tensor:
            return by_size(x)

    report = opswap.scan(nn.Sequential(Both(), Wrapped(by_size)), exact=True)
    assert [s.path for s in report.swapped] == ["1"] and "written in C" in report.kept[0].reason


def test_example_inputs_are_not_written_to() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), Split())
    x = images()
    before = x.clone()
    opswap.swap(model, example_inputs=(x,), verify_with=(x,))
    assert torch.equal(x, before)
