# SPDX-License-Identifier: MIT
"""What branches read beside their inputs and tensors: the merged module notices a change, or the merge is refused."""

from __future__ import annotations

import copy
import io
import os
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from opswap import merge
from opswap.swap.capture import modes

pytestmark = pytest.mark.usefixtures("one_thread")

ME = sys.modules[__name__]
SCALE = 2.0
TABLE = {"scale": 2.0, "other": 1}
CONFIG = SimpleNamespace(scale=2.0)
STEPS = [2, 3]
USED = True


def helper(x: Tensor) -> Tensor:
    return x * 2


def other_helper(x: Tensor) -> Tensor:
    return x * 3


def make_closure(n: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * n


CLOSURE = make_closure(2.0)


class Branch(nn.Module):
    """A convolution, and what a body makes of its result."""

    scale: ClassVar[float] = 2.0
    steps: ClassVar[list[int]] = [2]

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.drop = nn.Dropout(0.5)
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(2))
        self.named = nn.ModuleDict({"a": nn.Conv2d(4, 4, 1)})
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
        self.register_parameter("extra", None)
        self.config = CONFIG
        self.eval()


def branch(body: Callable[[Any, Tensor], Tensor]) -> type[Branch]:
    """A class whose forward gives the body what the convolution makes."""

    class Made(Branch):
        def forward(self, x: Tensor) -> Tensor:
            return body(self, self.conv(x))

    return Made


def iterates(s: Any, x: Tensor) -> Tensor:
    for layer in s.layers:
        x = layer(x)
    return x * len(s.layers)


def iterates_over_names(s: Any, x: Tensor) -> Tensor:
    for layer in s.named.values():
        x = layer(x)
    return x


def default(s: Any, x: Tensor, steps: list[int] = STEPS) -> Tensor:
    return x * steps[0]


def set_scale(value: float) -> Callable[[nn.Module, type], None]:
    return lambda m, cls: setattr(ME, "SCALE", value)


# What a branch does, how that changes, and what the error names.
CHANGES: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[nn.Module, type], Any], str]] = {
    "a global variable": (lambda s, x: x * SCALE, set_scale(3.0), "SCALE changed from 2.0 to 3.0"),
    "an element of a global": (lambda s, x: x * TABLE["scale"], lambda m, c: TABLE.update(scale=3.0), "scale"),
    "an object": (lambda s, x: x * CONFIG.scale, lambda m, c: setattr(CONFIG, "scale", 3.0), r"CONFIG\.scale"),
    "a shared object": (lambda s, x: x * s.config.scale, lambda m, c: setattr(CONFIG, "scale", 3.0), r"config\.scale"),
    "a function": (lambda s, x: helper(x), lambda m, c: setattr(ME, "helper", other_helper), "helper"),
    "a closure": (
        lambda s, x: CLOSURE(x),
        lambda m, c: setattr(CLOSURE.__closure__[0], "cell_contents", 3.0),
        "enclosing function changed from 2.0 to 3.0",
    ),
    "a default": (default, lambda m, c: STEPS.reverse(), "default"),
    "a constant of the class": (lambda s, x: x * s.scale, lambda m, c: setattr(c, "scale", 3.0), r"scale"),
    "a list of the class": (lambda s, x: x * s.steps[0], lambda m, c: c.steps.insert(0, 3), r"steps"),
    "the forward": (lambda s, x: x * 2, lambda m, c: setattr(c, "forward", other_helper), "forward"),
    "a builtin": (lambda s, x: x * max(1, 2), lambda m, c: setattr(ME, "max", min), "max"),
    "a child that is read": (
        lambda s, x: F.dropout(x, s.drop.p, training=False) * (1 - s.drop.p),
        lambda m, c: setattr(m.drop, "p", 0.25),
        r"drop\.p changed from 0.5 to 0.25",
    ),
    "children that are counted": (iterates, lambda m, c: m.layers.add_module("2", nn.ReLU()), "children of layers"),
    "children by name": (iterates_over_names, lambda m, c: m.named.add_module("b", nn.ReLU()), "children of named"),
    "a parameter that was None": (
        lambda s, x: x if s.extra is None else x * s.extra,
        lambda m, c: setattr(m, "extra", nn.Parameter(torch.ones(()))),
        "extra is a Tensor, was None",
    ),
    "an attribute that was not there": (
        lambda s, x: x * getattr(s, "factor", 2.0),
        lambda m, c: setattr(m, "factor", 3.0),
        "factor was set",
    ),
    "an attribute of a branch": (
        lambda s, x: x * s.config.scale,
        lambda m, c: setattr(m, "config", SimpleNamespace(scale=3.0)),
        "config was set",
    ),
    "a hook on what nothing calls": (
        lambda s, x: s.block(x),
        lambda m, c: m.block.register_forward_hook(lambda *a: None),
        "block has hooks",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def outside_as_it_was() -> Any:
    kept = {
        k: (v, copy.deepcopy(v))
        for k, v in vars(ME).items()
        if k in ("SCALE", "TABLE", "CONFIG", "STEPS", "USED")
    }
    functions, steps = (ME.helper, CLOSURE.__closure__[0].cell_contents), list(Branch.steps)
    yield
    for name, (value, then) in kept.items():
        setattr(ME, name, value)
        if isinstance(value, dict):
            value.update(then)
        elif isinstance(value, list):
            value[:] = then
        elif isinstance(value, SimpleNamespace):
            vars(value).update(vars(then))
    ME.helper, CLOSURE.__closure__[0].cell_contents = functions
    Branch.steps[:] = steps
    vars(ME).pop("max", None)


def merged(cls: type[Branch]) -> tuple[list[nn.Module], merge.MergedBranches, Tensor]:
    torch.manual_seed(0)
    branches = [cls() for _ in range(3)]
    return branches, merge.branches(branches).eval(), torch.randn(2, 3, 5, 5)


def assert_as_the_loop(branches: list[nn.Module], model: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(model(x), torch.stack([b(x) for b in branches], 1))


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_is_noticed_and_named(name: str) -> None:
    body, change, words = CHANGES[name]
    cls = branch(body)
    branches, model, x = merged(cls)
    assert_as_the_loop(branches, model, x)
    change(model, cls)
    with pytest.raises(RuntimeError, match=words):
        model(x)
    with pytest.raises(RuntimeError, match=words):
        model.measure(x, seconds=0.01)
    with pytest.raises(RuntimeError, match=words):
        copy.deepcopy(model)(x) if name != "a shared object" else model(x)


def test_modules_that_are_split_back_read_it_anew() -> None:
    branches, model, x = merged(branch(lambda s, x: x * s.config.scale + SCALE))
    ME.SCALE = 3.0
    CONFIG.scale = 4.0
    with pytest.raises(RuntimeError, match=r"split_back\(\)"):
        model(x)
    own = model.split_back()
    for one, twin in zip(own, branches, strict=True):
        assert torch.equal(one(x), twin(x))
    assert_as_the_loop(branches, merge.branches(own).eval(), x)


def test_it_goes_on_when_the_value_comes_back() -> None:
    branches, model, x = merged(branch(lambda s, x: x * SCALE))
    ME.SCALE = 3.0
    with pytest.raises(RuntimeError, match="SCALE"):
        model(x)
    ME.SCALE = 2.0
    assert_as_the_loop(branches, model, x)


def test_a_change_that_means_the_same_is_taken() -> None:
    branches, model, x = merged(branch(lambda s, x: x * (2 if USED else 3) * TABLE["scale"]))
    ME.USED = "yes"
    TABLE["other"] = 5
    assert_as_the_loop(branches, model, x)
    assert_as_the_loop(branches, model, x)
    ME.USED = ""
    with pytest.raises(RuntimeError, match="USED"):
        model(x)


def test_objects_of_one_branch_are_copied() -> None:
    class Own(Branch):
        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace(scale=2.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) * self.config.scale

    branches, model, x = merged(Own)
    expected = model(x)
    branches[1].config.scale = 5.0
    assert torch.equal(model(x), expected)


class Saved(Branch):
    """A class that can be pickled."""

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) * SCALE * self.scale


def test_it_is_noticed_after_saving() -> None:
    branches, model, x = merged(Saved)
    file = io.BytesIO()
    torch.save(model, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert_as_the_loop(branches, loaded, x)
    ME.SCALE = 3.0
    with pytest.raises(RuntimeError, match="SCALE"):
        loaded(x)
    later = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    with pytest.raises(RuntimeError):
        later(x)


def test_it_is_noticed_under_compile() -> None:
    branches, model, x = merged(branch(lambda s, x: x * SCALE))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_as_the_loop(branches, compiled, x)
    ME.SCALE = 3.0
    with pytest.raises(Exception, match=r"would not compute|RuntimeError"):
        compiled(x)


# Values that nobody can watch: the merge is refused, with their name and the line.
REFUSED: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "random": (lambda s, x: x * random.random(), r"random"),
    "numpy": (lambda s, x: x * float(np.random.rand()), r"rand"),
    "environment": (lambda s, x: x * len(os.environ), r"environ|os"),
    "a file": (lambda s, x: x * len(open(os.devnull).read()), r"open"),  # noqa: SIM115
    "a counter": (
        lambda s, x: x * (TABLE.update(other=TABLE["other"] + 1) or TABLE["other"]),
        "writes to a dict",
    ),
    "an identity": (lambda s, x: x * (id(s) % 7), r"id"),
    "how many modules": (lambda s, x: x * len(list(s.__dict__)), "__dict__"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_can_watch_is_refused(name: str) -> None:
    body, words = REFUSED[name]
    branches = [branch(body)() for _ in range(2)]
    with pytest.raises(ValueError, match=words):
        merge.branches(branches)


def test_the_live_branches_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    branches = [branch(lambda s, x: s.block(x))() for _ in range(2)]
    live = {id(m) for b in branches for m in b.modules()}
    flagged: list[nn.Module] = []
    set_flags = modes._set_flags
    monkeypatch.setattr(modes, "_set_flags", lambda flags: (flagged.extend(flags), set_flags(flags)))
    merge.branches(branches)
    assert flagged and not any(id(m) in live for m in flagged)
