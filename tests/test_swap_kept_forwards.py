# SPDX-License-Identifier: MIT
"""Forwards of swapped modules that users keep, wrap, put on or remove, and swaps, copies and reports after that."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.swap.rules import DEFAULT
from opswap.swap.runtime.reasons import site_names
from spellings import by_size
from test_swap_types import CONV, conv, image, ran, wrap
from threads import at_once

pytestmark = [pytest.mark.usefixtures("one_thread", "seed")]


class Mixer(nn.Module):
    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class Pool(nn.MaxPool2d):
    """Not a class of torch: its forward is put on as a subclass."""


class Holder(nn.Module):
    """Calls its part by a bound method, and so not by Module.__call__."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.call = part, None

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def pair() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(12), nn.ReLU())


def test_a_bound_forward_kept_over_a_second_swap_follows_changes() -> None:
    model, x = opswap.swap(Mixer(2), exact=True, strict=True), image()
    kept = model.forward
    model.groups = 4
    opswap.swap(model, exact=True, strict=True)
    assert torch.equal(kept(x), Mixer(4)(x)) and torch.equal(model(x), Mixer(4)(x))


def test_a_bound_forward_of_a_layer_kept_over_a_second_swap_follows_changes() -> None:
    model, x = opswap.swap(pair(), rules=DEFAULT, strict=True), image()
    kept = model.forward
    model.append(nn.Threshold(1.0, 5.0))
    opswap.swap(model, rules=DEFAULT, strict=True)
    model.eval()
    assert torch.equal(kept(x), model(x)) and kept(x).min() >= 1


def more_groups(model: Any) -> None:
    model.groups = 4


def one_more(model: Any) -> None:
    model.append(nn.Threshold(1.0, 5.0))


def wider(model: Any) -> None:
    model.kernel_size = 3


KEPT: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], None]]] = {
    "own class": (Mixer, more_groups),
    "container": (pair, one_more),
    "layer": (lambda: nn.MaxPool2d(2, 2), wider),
    "subclass of a layer": (lambda: Pool(2, 2), wider),
}
LATER: dict[str, Callable[[nn.Module], Any]] = {
    "nothing": lambda m: None,
    "swap": lambda m: opswap.swap(m, rules=DEFAULT),
    "exact swap": lambda m: opswap.swap(m, exact=True),
    "swap without rules": lambda m: opswap.swap(m, rules=()),
    "unswap": opswap.unswap,
    "unswap and swap": lambda m: opswap.swap(opswap.unswap(m), rules=DEFAULT),
    "a copy": copy.deepcopy,
}


@pytest.mark.parametrize("then", LATER.values(), ids=LATER)
@pytest.mark.parametrize("how", ["bound", "function", "pickled"])
@pytest.mark.parametrize("kind", KEPT)
def test_kept_forwards_never_run_former_code(kind: str, how: str, then: Callable[[nn.Module], Any]) -> None:
    make, change = KEPT[kind]
    stock, x = make().eval(), image()
    model = opswap.swap(copy.deepcopy(stock), rules=DEFAULT, strict=True)
    if how == "bound":
        kept = model.forward
    elif how == "function":
        kept = functools.partial(model.forward.__func__, model)
    else:
        model, kept = pickle.loads(pickle.dumps((model, model.forward)))
    for change_or_not in (lambda m: None, change):
        change_or_not(model)
        change_or_not(stock)
        then(model)
        torch.testing.assert_close(kept(x), stock(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KEPT)
def test_a_kept_function_of_another_module(kind: str) -> None:
    make, change = KEPT[kind]
    model, x = opswap.swap(make().eval(), rules=DEFAULT, strict=True), image()
    function = model.forward.__func__
    for other in (make().eval(), opswap.swap(make().eval(), rules=DEFAULT)):
        change(other)
        expected = opswap.unswap(copy.deepcopy(other))(x)
        torch.testing.assert_close(function(other, x), expected, rtol=1e-4, atol=1e-5)
        opswap.swap(other, rules=DEFAULT)
        torch.testing.assert_close(function(other, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "do",
    [
        lambda m, x: opswap.explain(m, x),
        lambda m, x: opswap.verify(m, (x,)),
        lambda m, x: opswap.scan(m, rules=DEFAULT, example_inputs=(x,)),
    ],
    ids=["explain", "verify", "scan"],
)
@pytest.mark.parametrize("how", ["wrapped", "held"])
def test_analysis_leaves_the_model_alone(how: str, do: Callable[[nn.Module, Tensor], Any]) -> None:
    """A bound forward of the live model that a copy holds would train the live model."""
    model = opswap.swap(Holder(pair()), rules=DEFAULT)
    model.call = model.part.forward
    if how == "wrapped":
        wrap(model.part)
        model.call = model.part
    before = copy.deepcopy(model.state_dict())
    do(model, image())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("how", ["wrapped", "held"])
@pytest.mark.parametrize(
    "make", [pair, lambda: nn.MaxPool2d(2), lambda: Pool(2)], ids=["pair", "torch", "own"]
)
def test_explain_counts_calls_of_kept_forwards(make: Callable[[], nn.Module], how: str) -> None:
    model = opswap.swap(Holder(make()), rules=DEFAULT)
    model.call = model.part.forward
    if how == "wrapped":
        wrap(model.part)
        model.call = model.part
    assert [o.result for o in opswap.explain(model, image()).outcomes] in (["ran"], [])
    assert bool(opswap.explain(model, image()).outcomes) == bool(opswap.report(model).swapped)


def test_explain_of_a_layer_whose_forward_was_replaced() -> None:
    model = opswap.swap(nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(2)), rules=DEFAULT, strict=True)
    model[0].forward = lambda x: x * 2
    found = {o.path: (o.result, o.reason) for o in opswap.explain(model, image()).outcomes}
    assert found["0"][0] != "ran" and "its forward was replaced" in found["0"][1]
    assert found["1"] == ("ran", "")


def over_class(module: nn.Module) -> None:
    module.forward = lambda x: type(module).forward(module, x) + 1


def over_function(module: nn.Module) -> None:
    module.forward = types.MethodType(torch.no_grad()(module.forward.__func__), module)


def over_variable(module: nn.Module) -> None:
    before = module.forward
    module.forward = lambda x: before(x) + 1


def over_object(module: nn.Module) -> None:
    class Wrapper:
        def __init__(self, function: Any) -> None:
            self.steps = [{"function": function}]

        def __call__(self, x: Tensor) -> Tensor:
            return self.steps[0]["function"](x)

    module.forward = Wrapper(module.forward)


@pytest.mark.parametrize("over", [wrap, over_function, over_variable, over_object])
@pytest.mark.parametrize(
    "make", [pair, lambda: nn.MaxPool2d(2), lambda: Pool(2), Mixer], ids=["pair", "torch", "own", "forward"]
)
def test_report_of_wrapped_forwards(make: Callable[[], nn.Module], over: Callable[[nn.Module], None]) -> None:
    model = opswap.swap(nn.Sequential(make()), rules=DEFAULT, strict=True)
    before = opswap.report(model)
    over(model[0])
    assert opswap.report(model) == before
    model(image())


@pytest.mark.parametrize("make", [Mixer, lambda: nn.MaxPool2d(2)])
def test_report_of_a_forward_that_calls_its_class(make: Callable[[], nn.Module]) -> None:
    model = opswap.swap(make(), rules=DEFAULT, strict=True)
    over_class(model)  # the stock forward
    assert not opswap.report(model).swapped


@pytest.mark.parametrize(
    "make", [pair, lambda: nn.MaxPool2d(2), lambda: Pool(2), Mixer], ids=["pair", "torch", "own", "forward"]
)
def test_report_of_replaced_forwards(make: Callable[[], nn.Module]) -> None:
    model = opswap.swap(nn.Sequential(make(), nn.Tanh(), make()), rules=DEFAULT, strict=True)
    before = opswap.report(model)
    other = model[0]
    model[2].forward = lambda x: other(x)  # the generated forward of another module
    report = opswap.report(model)
    assert report.swapped == [s for s in before.swapped if s.path.startswith("0")]
    added = [s for s in report.kept if s not in before.kept]
    assert added and all(s.path.startswith("2") for s in added)
    assert any("its forward was replaced after the swap" in s.reason for s in added)
    del model[2].forward
    opswap.swap(model, rules=DEFAULT)
    assert opswap.report(model) == before


def test_reasons_tell_hooks_from_forwards() -> None:
    model = opswap.swap(nn.Sequential(nn.BatchNorm2d(12), nn.ReLU()), rules=DEFAULT, strict=True)
    model[0].register_forward_hook(lambda *_: None)
    assert any(o.reason.startswith("hooks on") for o in opswap.explain(model, image()).outcomes)
    model = opswap.swap(nn.Sequential(nn.BatchNorm2d(12), nn.ReLU()), rules=DEFAULT, strict=True)
    model[0].forward = lambda x: x
    found = [o.reason for o in opswap.explain(model, image()).outcomes]
    assert any("forward was replaced" in reason for reason in found), found
    assert not any("hooks on" in reason for reason in found), found


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm2d(12), lambda: nn.MaxPool2d(2), lambda: Pool(2)])
def test_why_a_layer_declines(make: Callable[[], nn.Module]) -> None:
    model = opswap.swap(make(), rules=DEFAULT, strict=True).to("meta")
    (found,) = opswap.explain(model, image().to("meta")).outcomes
    assert (found.result, found.reason) == ("original", "no kernel for meta")


def test_why_a_layer_of_another_class_declines() -> None:
    class Other(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return input

    model = opswap.swap(nn.BatchNorm2d(12), rules=DEFAULT, strict=True)
    model.__class__ = Other
    (found,) = opswap.explain(model, image()).outcomes
    assert (found.result, found.reason) == ("original", "its class is now Other, was BatchNorm2d")


def test_a_removed_forward_is_put_on_by_the_next_swap() -> None:
    model, x = conv(), image()
    rules = opswap.report(model)
    del model.forward
    ran()  # forget the calls of other tests
    model(x)
    assert not ran()
    found = opswap.explain(model, x).outcomes
    assert not ran() and [o.result for o in found] == ["original"] and "removed" in found[0].reason
    opswap.swap(model, rules=[CONV])
    model(x)
    assert ran() and opswap.report(model) == rules


class Guarded(nn.Module):
    """Asks for a size that its child decides."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.norm, self.act = nn.MaxPool2d(2), nn.BatchNorm2d(12), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(x)
        return self.act(self.norm(x)) if x.shape[2] > 2 else x


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"]
)
def test_answers_about_sizes_are_as_good_for_copies(how: Callable[[nn.Module], nn.Module]) -> None:
    model, x = opswap.swap(Guarded(), rules=DEFAULT, strict=True), image()
    model(x)
    known = len(model._opswap_record.known)
    assert known
    twin = how(model)
    torch.testing.assert_close(twin(x), model(x))
    assert len(twin._opswap_record.known) == known


def test_generated_code_is_read_in_several_threads() -> None:
    """CPython up to 3.12 raises SystemError where the collector lets two threads into ast.parse."""
    model = opswap.swap(nn.Sequential(*(pair() for _ in range(8))), rules=DEFAULT, strict=True)
    code = max((m.opswap_code for m in model.modules() if hasattr(m, "opswap_code")), key=len)

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            time.sleep(0)  # lets another thread run

    def work() -> None:
        for _ in range(30):
            made = [Cycle() for _ in range(3)]
            del made
            site_names(code)

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(100)
    try:
        at_once(work, work, work)
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)


def double(self: nn.Module, x: Tensor, scale: float = 2) -> Tensor:
    return by_size(x) * scale


def double_by_name(self: nn.Module, x: Tensor, *, scale: float = 2) -> Tensor:
    return by_size(x) * scale


def several(self: nn.Module, x: Tensor, more: float = 1, scale: float = 2, **rest: float) -> Tensor:
    return by_size(x) * scale + more


def new_default(cls: type) -> None:
    cls.forward.__defaults__ = (3,) * len(cls.forward.__defaults__ or ())
    cls.forward.__kwdefaults__ = {"scale": 3} if cls.forward.__kwdefaults__ else None


def new_forward(cls: type) -> None:
    cls.forward = lambda self, x, scale=3: x - scale


def fewer_arguments(cls: type) -> None:
    cls.forward = lambda self, x: x * 3


def other_arguments(cls: type) -> None:
    cls.forward = lambda self, x, factor=5, shift=1: x * factor + shift


@pytest.mark.parametrize("change", [new_default, new_forward, fewer_arguments, other_arguments])
@pytest.mark.parametrize("forward", [double, double_by_name, several])
def test_defaults_are_those_of_the_forward_that_runs(
    forward: Callable[..., Tensor], change: Callable[[type], None]
) -> None:
    own = types.FunctionType(forward.__code__, forward.__globals__, "forward", forward.__defaults__)
    own.__kwdefaults__ = copy.copy(forward.__kwdefaults__)
    cls = type("Defaulted", (nn.Module,), {"forward": own, "__module__": __name__})
    model, x = opswap.swap(cls(), exact=True), torch.randn(2, 12, 3, 3)
    assert torch.equal(model(x), cls()(x))
    change(cls)
    assert torch.equal(model(x), cls()(x))
