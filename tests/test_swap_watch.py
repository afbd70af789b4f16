# SPDX-License-Identifier: MIT
"""What a capture watches: answers about sizes, copies and files of a model, compilers, profilers, memory."""

from __future__ import annotations

import copy
import cProfile
import gc
import io
import linecache
import pickle
import sys
from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import originals_of
from opswap.swap.runtime import outside
from spellings import by_size
from swapping import images, same, swapped

GROUPS = 2
SHIFT = {"by": [1, 2]}
act = lambda x: by_size(x, GROUPS)  # noqa: E731 (as people write it)


def helper(x: Tensor) -> Tensor:
    return by_size(x, GROUPS)


class Config:
    groups = 2


class ReadsGlobals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = act(helper(self.conv(x)))
        return by_size(x, Config.groups) + SHIFT["by"][0]


class BySize(nn.Module):
    """Decides by the size of what a convolution returns."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, padding=1)
        self.seq = nn.Sequential(nn.Conv2d(12, 12, 1), nn.AvgPool2d(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.seq(self.conv(x))
        return by_size(y, 2) if y.shape[2] > 4 else by_size(y, 3)


# --- answers about sizes ---


def _weight(m: BySize) -> None:
    m.conv.weight = nn.Parameter(torch.ones(12, 12, 5, 5) / 300)


CHANGES: dict[str, Callable[[BySize], object]] = {
    "stride": lambda m: setattr(m.conv, "stride", (2, 2)),
    "padding": lambda m: setattr(m.conv, "padding", (0, 0)),
    "dilation": lambda m: setattr(m.conv, "dilation", (3, 3)),
    "weight": _weight,
    "pool further down": lambda m: setattr(m.seq[1], "kernel_size", 2) or setattr(m.seq[1], "stride", 2),
    "child of a child": lambda m: m.seq.append(nn.MaxPool2d(2)),
    "child": lambda m: setattr(m, "conv", nn.Conv2d(12, 12, 3, stride=2, padding=1)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_sizes_are_asked_again_when_a_child_changes(change: Callable[[BySize], object]) -> None:
    stock = BySize()
    model = swapped(stock)
    for height in (8, 6):
        same(model, stock, images(2, 12, height, 8))
    for m in (model, stock):
        torch.manual_seed(0)
        change(m)
    for height in (8, 6):
        same(model, stock, images(2, 12, height, 8))


class Layers(nn.Module):
    """Its chain is in the module itself and in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12), nn.ReLU()
        self.seq = nn.Sequential(
            nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.seq(self.relu(self.bn(self.conv(x))))


def _names_of_children(names: str) -> Callable[[nn.Module], None]:
    def change(m: nn.Module) -> None:
        children = list(m.seq.children())
        m.seq._modules.clear()
        for name, child in zip(names.split(), children, strict=True):
            m.seq.add_module(name, child)

    return change


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rewritten", [lambda m: m, lambda m: m.seq], ids=["model", "Sequential"])
@pytest.mark.parametrize(
    "change",
    [
        _names_of_children("conv1 bn1 relu conv2 bn2"),
        _names_of_children("3 1 2 0 4"),
        lambda m: vars(m).update(relu=torch.tanh),
        lambda m: vars(m.seq).update({"2": torch.tanh}),
    ],
    ids=["renamed", "exchanged", "hidden", "hidden in the Sequential"],
)
def test_children_have_the_names_that_they_had(
    change: Callable[[nn.Module], None], rewritten: Callable[[nn.Module], nn.Module], training: bool
) -> None:
    stock, x = Layers().train(training), images()
    model = copy.deepcopy(stock)
    opswap.swap(rewritten(model))
    for m in (stock, model):
        with torch.no_grad():
            m(x)
        change(m)
    torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)


class HoldsOthers(nn.Module):
    """Reads what a tensor and a queue have besides their values."""

    def __init__(self) -> None:
        super().__init__()
        self.tensor, self.queue = torch.ones(1), deque([1], 2)
        self.tensor.groups = 2

    def forward(self, x: Tensor) -> Tensor:
        return by_size(x, self.tensor.groups) * self.queue.maxlen


def _longer_queue(m: HoldsOthers) -> None:
    m.queue = deque(m.queue, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: setattr(m.tensor, "groups", 3), "self.tensor.groups changed from 2 to 3"),
        (_longer_queue, "self.queue.maxlen changed from 2 to 3"),
    ],
    ids=["tensor", "queue"],
)
def test_what_a_tensor_and_a_queue_have_besides(change: Callable[[nn.Module], None], reason: str) -> None:
    stock, x = HoldsOthers(), images()
    model = swapped(stock)
    same(model, stock, x)
    for m in (stock, model):
        change(m)
    assert torch.equal(model(x), stock(x))
    assert reason in str(opswap.explain(model, x))


def convolutions() -> int:
    """How many are alive. isinstance would ask dead proxies of other tests, which raise."""
    gc.collect()
    return sum(issubclass(type(o), nn.Conv2d) for o in gc.get_objects())


def test_answers_about_sizes_are_bounded() -> None:
    model = swapped(BySize())
    for height in range(3, 103):
        model(images(1, 12, height, 4))
    known = model._opswap_record.known
    assert 0 < len(known) <= 64
    before = convolutions()
    for height in range(110, 150):
        model(images(1, 12, height, 4))
    assert convolutions() <= before  # another test may have left some that are freed here
    assert len(known) <= 64


def test_generated_sources_go_with_their_class() -> None:
    gc.collect()
    before = {k for k in linecache.cache if k.startswith("<opswap")}
    model = swapped(ReadsGlobals())
    assert {k for k in linecache.cache if k.startswith("<opswap")} - before
    del model
    gc.collect()
    assert not {k for k in linecache.cache if k.startswith("<opswap")} - before


# --- copies and files ---


def test_copies_watch_the_same_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = ReadsGlobals()
    model = copy.deepcopy(swapped(stock))
    assert originals_of(lambda: model(images())) == 0
    monkeypatch.setattr(Config, "groups", 3)
    assert originals_of(lambda: model(images())) == 1
    same(model, stock)


def test_files_watch_the_same_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = ReadsGlobals()
    file = io.BytesIO()
    torch.save(swapped(stock), file)
    model = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert originals_of(lambda: model(images())) == 0
    monkeypatch.setitem(SHIFT, "by", [5, 2])
    same(model, stock)
    assert originals_of(lambda: model(images())) == 1
    other = torch.load(io.BytesIO(file.getvalue()), weights_only=False)  # where the value is another
    same(other, stock)
    assert originals_of(lambda: other(images())) == 1


@pytest.mark.parametrize("name", ["GROUPS", "helper", "act", "Config"])
def test_files_of_another_version_of_the_code(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Other:
        groups = 3

    values = {"GROUPS": 3, "helper": lambda x: by_size(x, 6), "act": lambda x: x * 2, "Config": Other}
    stock = ReadsGlobals()
    data = pickle.dumps(swapped(stock))
    monkeypatch.setattr(sys.modules[__name__], name, values[name])
    model = pickle.loads(data)
    same(model, stock)
    assert originals_of(lambda: model(images())) == 1


def test_a_file_without_the_module_of_a_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = ReadsGlobals()
    model = swapped(stock)
    monkeypatch.delattr(sys.modules[__name__], "act")
    data = pickle.dumps(model)
    monkeypatch.undo()
    loaded = pickle.loads(data)
    same(loaded, stock)


def test_what_is_lost_never_stands() -> None:
    assert outside.is_unchanged(outside.Outside())
    assert not outside.is_unchanged(outside.Outside(lost=True))


# --- compilers ---


@pytest.mark.parametrize("name", ["GROUPS", "helper", "Config"])
def test_compiled_code_watches_too(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    values = {"GROUPS": 3, "helper": lambda x: by_size(x, 6), "Config": type("Other", (), {"groups": 3})}
    stock = ReadsGlobals()
    model = swapped(stock)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    x = images()
    assert torch.equal(compiled(x), stock(x))
    monkeypatch.setattr(sys.modules[__name__], name, values[name])
    assert torch.equal(compiled(x), stock(x))


def test_compiles_in_one_graph_and_exports() -> None:
    model = swapped(ReadsGlobals()).eval()
    torch._dynamo.reset()
    x = images()
    opswap.reset_stats()
    y = torch.compile(model, fullgraph=True, backend="eager")(x)
    assert torch.equal(y, model(x)) and not opswap.stats()["original"]
    for strict in (True, False):
        assert torch.equal(torch.export.export(model, (x,), strict=strict).module()(x), y)


# --- profilers ---


def test_a_profile_function_stays() -> None:
    calls: list[str] = []

    def profile(frame: object, event: str, argument: object) -> None:
        calls.append(event)

    sys.setprofile(profile)
    try:
        swapped(ReadsGlobals())
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert calls


def test_a_profiler_goes_on() -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        model = swapped(ReadsGlobals())
        same(model, copy.deepcopy(opswap.unswap(copy.deepcopy(model))))
    finally:
        profiler.disable()
    assert any(name == "outputs_and_gradients" for _, _, name in (e[0:3] for e in _entries(profiler)))


def _entries(profiler: cProfile.Profile) -> list[tuple[str, int, str]]:
    profiler.create_stats()
    return list(profiler.stats)


def test_the_collector_goes_on() -> None:
    thresholds = gc.get_threshold()
    assert gc.isenabled() and thresholds[0]
    swapped(ReadsGlobals())
    assert gc.isenabled() and gc.get_threshold() == thresholds and sys.getprofile() is None
