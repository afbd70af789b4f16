# SPDX-License-Identifier: MIT
"""opswap.explain and the log say which rewrite runs, and which condition keeps another from it."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.ops import conv
from opswap.ops import dropout as dropout_module
from opswap.swap import Explanation, Outcome
from opswap.swap.rules import DEFAULT
from spellings import Split, Wrapped, by_size
from spellings.guards import NumberOfSize
from swapping import images
from test_swap_live import Net, state
from test_swap_state import Configured, _override_method, _reorder, _replace_child, _set_inner_part
from threads import at_once, meanwhile


@pytest.fixture(autouse=True)
def small_images_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "_FEWEST_PRODUCTS", 0)
    monkeypatch.setattr(dropout_module, "FEWEST", 0)


def reasons(model: nn.Module, *inputs: object) -> set[str]:
    found = opswap.explain(model, *inputs).outcomes
    assert found and not any(o.ran for o in found), str(found)
    return {o.reason for o in found}


def test_everything_ran() -> None:
    model = opswap.swap(Net())
    found = opswap.explain(model, images().contiguous(memory_format=torch.channels_last))
    assert isinstance(found, Explanation) and not found.kept and not found.note
    assert {(o.path, o.rule, o.source) for o in found.outcomes} == {
        (s.path, s.rule, s.source) for s in opswap.report(model).swapped
    }
    assert all(o.result == "ran" and o.calls == o.ran == 1 and not o.reason for o in found.outcomes)
    count = len(found.outcomes)
    assert count >= 5 and str(found).startswith(f"{count} of {count} replacements ran")
    parsed = json.loads(found.to_json())
    assert parsed["outcomes"][0]["result"] == "ran" and parsed["kept"] == []


def test_a_compiled_model() -> None:
    model = torch.compile(opswap.swap(Net()), backend="eager")
    x = images().contiguous(memory_format=torch.channels_last)
    results = [o.result for o in opswap.explain(model, x).outcomes]
    assert len(results) >= 5 and set(results) == {"ran"}


def test_in_eval() -> None:
    model = opswap.swap(Net()).eval()
    by_rule = {o.rule: o for o in opswap.explain(model, images()).outcomes}
    assert by_rule["dropout"].result == "original" and by_rule["dropout"].reason == "self.training is False"
    assert by_rule["batch_norm_act"].result == by_rule["max_pool2d"].result == "ran"


class Deep(nn.Module):
    """Reads attributes of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.cfg = {"groups": {"first": 2}, "on": [True]}
        self.groups = 2
        self.name = "sum"

    def forward(self, x: Tensor, scale: float = 1.0, *more: Tensor, flag: bool = True) -> Tensor:
        x = by_size(self.conv(x), self.cfg["groups"]["first"]) * scale
        return by_size(x, self.groups) if self.cfg["on"][0] and self.name == "sum" and flag else x


def _set(path: str, value: object) -> Callable[[nn.Module], None]:
    def change(m: nn.Module) -> None:
        exec(f"m.{path} = value", {"m": m, "value": value})

    return change


def _rename(m: nn.Module) -> None:
    m.other = m._modules.pop("conv")
    vars(m)["conv"] = m.other


CHANGES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "number": (_set("groups", 3), "self.groups changed from 2 to 3"),
    "entry": (_set("cfg['groups']['first']", 3), "self.cfg['groups']['first'] changed from 2 to 3"),
    "element": (_set("cfg['on'][0]", False), "self.cfg['on'][0] changed from True to False"),
    "length": (_set("cfg['on']", [True, True]), "len(self.cfg['on']) changed from 1 to 2"),
    "key": (_set("cfg['off']", 1), "len(self.cfg) changed from 2 to 3"),
    "kind": (_set("cfg", None), "self.cfg changed from a dict to None"),
    "text": (_set("name", "x" * 200), "self.name changed from 'sum' to 'xxx"),
    "child": (
        _set("conv", nn.Conv2d(12, 12, 3, padding=1)),
        "self.conv was replaced: it is a Conv2d, was a Conv2d",
    ),
    "added": (lambda m: m.add_module("other", nn.ReLU()), "self has 2 children, had 1"),
    "renamed": (_rename, "the child conv of self is called other now"),
    "hidden": (
        lambda m: vars(m).update(conv=m.conv),
        "self.conv was set on the instance, which hides the child",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_after_the_swap(change: str) -> None:
    do, reason = CHANGES[change]
    model = opswap.swap(nn.Sequential(Deep()), exact=True)
    do(model[0])
    if change == "kind":
        with pytest.raises(TypeError):
            opswap.explain(model, images())
        return
    (found,) = reasons(model, images())
    assert reason in found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_reorder, "self.order[0] changed from 11 to 0"),
        (_set_inner_part, "self.parts[0][0] changed from 6 to 4"),
        (_override_method, "self.mix was set on the instance"),
        (_replace_child, "self.conv was replaced"),
    ],
)
def test_what_changed_in_a_configured_module(change: Callable[[nn.Module], None], reason: str) -> None:
    model = opswap.swap(Configured(), exact=True)
    change(model)
    (found,) = reasons(model, images())
    assert reason in found


ARGUMENTS: dict[str, tuple[tuple[object, ...], dict[str, object], str]] = {
    "default": ((2.0,), {}, "argument scale is 2.0, was 1.0 by default"),
    "more": ((1.0, torch.ones(1)), {}, "arguments were given in *more"),
    "keyword": ((), {"flag": False}, "argument flag is False, was True by default"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments(case: str) -> None:
    args, kwargs, reason = ARGUMENTS[case]

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Deep()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, *args, **kwargs)

    model = opswap.swap(Outer(), exact=True)
    defaults = {o.reason for o in opswap.explain(model, images()).outcomes if o.result == "original"}
    assert defaults == {reason}


class ByName(nn.Module):
    def forward(self, x: Tensor, *, groups: int = 2, more: dict[str, Tensor] | None = None) -> Tensor:
        return by_size(x, groups) + (0 if more is None else more["shift"])


def test_arguments_by_name() -> None:
    model, x = opswap.swap(ByName(), exact=True), images()
    assert [o.result for o in opswap.explain(model, x=x).outcomes] == ["ran"]
    shift = torch.zeros(1)
    (outcome,) = opswap.explain(model, x, groups=3, more={"shift": shift}).outcomes
    assert outcome.result == "original" and torch.equal(shift, torch.zeros(1))


def test_an_input_that_is_no_tensor() -> None:
    class Optional(nn.Module):
        def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
            return by_size(x)

    model = opswap.swap(Optional(), exact=True)
    assert reasons(model, images(), None) == {"input 1 is None, was a Tensor"}


HOOKS = ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks(kind: str) -> None:
    model = nn.Sequential(nn.Sequential(Split(), Split()), nn.Conv2d(12, 12, 1))
    opswap.swap(model, exact=True)
    seen: list[int] = []
    getattr(model[0][1], f"register_{kind}")(lambda *_: seen.append(1))
    found = {o.rule: o for o in opswap.explain(model, images()).outcomes if o.result == "original"}
    assert found["cat_channel_shuffle_split"].reason == "hooks on 0.1" and not seen


def test_hooks_on_a_pair() -> None:
    model = opswap.swap(Net(), rules=[r for r in DEFAULT if r.name == "batch_norm_act"])
    model.stem[1].register_forward_hook(lambda *_: None)
    (found,) = reasons(model, images())
    assert found.startswith("hooks on") and "1" in found


def test_an_error_in_a_reason_never_reaches_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Configured()
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    for m in (stock, model):
        m.options["groups"] = 4
    code = (lambda *a: 1 / 0).__code__
    monkeypatch.setattr(opswap.explain.__globals__["why_missed"].__globals__["call_reason"], "__code__", code)
    (found,) = reasons(model, images())
    assert "division by zero" in found
    x = images()
    logging.getLogger("opswap").setLevel(logging.INFO)
    try:
        assert torch.equal(model(x), stock(x))
    finally:
        logging.getLogger("opswap").setLevel(logging.NOTSET)


def test_global_hooks() -> None:
    model, seen = opswap.swap(nn.Sequential(Split(), Split()), exact=True), []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    try:
        found = opswap.explain(model, images())
    finally:
        handle.remove()
    assert "torch has global module hooks" in {o.reason for o in found.outcomes} and not seen
    assert all(o.ran for o in opswap.explain(model, images()).outcomes)


def test_a_hook_that_only_looks_leaves_fused_code_fused() -> None:
    """That of shapes.detect; another hook beside it still runs every module by itself."""
    model, x = opswap.swap(nn.Sequential(Split(), Split()), exact=True), images()
    seen: list[nn.Module] = []

    def see(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(module)

    with opswap.shapes.detect():
        assert all(o.ran for o in opswap.explain(model, x).outcomes)
        handle = nn.modules.module.register_module_forward_pre_hook(see)
        try:
            opswap.reset_stats()
            model(x)
            assert opswap.stats()["original"] and len(seen) == len(list(model.modules()))
        finally:
            handle.remove()
        opswap.reset_stats()
        model(x)
        assert not opswap.stats()["original"]


class BySize(nn.Module):
    """Shuffles by another number of groups where images are wide."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise ValueError("no image")
        return by_size(self.conv(x), 2) if self.conv(x).shape[3] > 4 else self.conv(x).exp()


def test_sizes() -> None:
    model = opswap.swap(nn.Sequential(NumberOfSize()), example_inputs=(images(),), exact=True)
    (found,) = reasons(model, images(2, 12, 6, 8))
    assert "x is float32 (2, 12, 6, 8)" in found and "guards.py:" in found and "is False" in found
    model = opswap.swap(BySize(), exact=True)
    (found,) = reasons(model, images(2, 12, 4, 3))
    assert "test_swap_explain.py:" in found and "shape[3] > 4 is False" in found


class Proven(nn.Module):
    """A shuffle with constant sizes, which is proven for those of the example."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], 2, 6, 4, 8).transpose(1, 2).reshape(x.shape[0], 12, 4, 8)


def test_what_was_proven() -> None:
    model = opswap.swap(nn.Sequential(Proven()), example_inputs=(images(),), exact=True, strict=True)
    (found,) = reasons(model, images(2, 12, 8, 4))
    assert "the input has sizes (8, 4): proven for (4, 8)" in found
    (found,) = reasons(model.to("meta"), images(2, 12, 4, 8).to("meta"))
    assert found == "no kernel for meta"
    small = opswap.swap(nn.Sequential(nn.AdaptiveMaxPool2d(1)), strict=True)
    assert "torch is faster on fewer than" in reasons(small, images()).pop()
    (found,) = reasons(opswap.swap(nn.Sequential(nn.MaxPool2d(2))), images().int())
    assert "no kernel for int32 (2, 12, 4, 8)" in found


class Modes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return by_size(x) if self.training else x.exp()


def test_modes() -> None:
    model = opswap.swap(nn.Sequential(Modes()), exact=True, strict=True)
    assert opswap.explain(model, images()).outcomes[0].result == "ran"
    (outcome,) = opswap.explain(model.eval(), images()).outcomes
    assert outcome.result in ("not called", "original") and outcome.reason


def test_several_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Sequential(nn.Conv2d(12, 12, 1), nn.MaxPool2d(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(x) + self.mix(x.double().float()) + F.relu(self.mix[1](x.int().float()))

    (pool,) = opswap.explain(opswap.swap(Twice(), exact=True), images()).outcomes
    assert (pool.result, pool.calls) == ("ran", 3)
    assert Outcome("", "", "", 3, 2).result == "ran 2 of 3"


def test_what_was_refused_is_in_the_table() -> None:
    model = opswap.swap(
        nn.Sequential(Split(), Wrapped(lambda x: by_size(x) if x.mean() > 0 else x)), exact=True
    )
    found = opswap.explain(model, images())
    assert [s.path for s in found.kept] == ["1"]
    assert "not swapped" in str(found) and found.kept[0].reason in str(found)


class Cell(nn.Module):
    """As in NASNet: a branch begins with the activation of a BatchNorm's result that others read too."""

    def __init__(self, before: nn.Module) -> None:
        super().__init__()
        self.before, self.branch = before, nn.Sequential(nn.ReLU(), nn.Conv2d(12, 12, 1), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.branch(x) + x


@pytest.mark.parametrize(
    "before", [lambda: nn.BatchNorm2d(12), lambda: nn.Sequential(nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12))]
)
def test_an_activation_behind_the_batch_norm_of_another_forward(before: Callable[[], nn.Module]) -> None:
    model = opswap.swap(Cell(before()))
    x = images(8, 12, 32, 32).contiguous(memory_format=torch.channels_last)
    (found,) = (o for o in opswap.explain(model, x).outcomes if o.rule == "batch_norm_act")
    assert (found.path, found.calls, found.ran) == ("branch.0", 1, 0)
    assert "in another forward" in found.reason
    with torch.no_grad():  # where no graph shows what was computed from what
        assert not [o for o in opswap.explain(model, x).outcomes if o.rule == "batch_norm_act"]
    assert not opswap.explain(Cell(before()), x).outcomes


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.BatchNorm2d(12), nn.ReLU()), Cell(nn.Sequential(nn.BatchNorm2d(12), nn.ReLU()))],
)
def test_joined_activations_are_not_called_apart(model: nn.Module) -> None:
    x = images(8, 12, 32, 32).contiguous(memory_format=torch.channels_last)
    outcomes = [o for o in opswap.explain(opswap.swap(model), x).outcomes if o.rule == "batch_norm_act"]
    assert [o.ran for o in outcomes] == [1]


def test_a_model_that_was_not_swapped() -> None:
    found = opswap.explain(Net(), images())
    assert not found.outcomes and not found.kept and "opswap.scan(model)" in str(found)


def test_nothing_is_changed() -> None:
    model = opswap.swap(Net())
    x = images().requires_grad_()
    before, tensors = state(model), copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    generator = torch.get_rng_state()
    for mode in (True, False):
        model.train(mode)
        opswap.explain(model, x)
        assert model.training is mode
    model.train()
    assert state(model) == before and torch.equal(torch.get_rng_state(), generator) and x.grad is None
    assert all(torch.equal(v, tensors[k]) for k, v in model.state_dict().items())


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got int"):
        opswap.explain(3)
    with pytest.raises(RuntimeError, match="channels"):
        opswap.explain(opswap.swap(Net()), images(1, 5, 4, 8))


class TestLog:
    @pytest.fixture(autouse=True)
    def info(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, logger="opswap")

    def test_once_for_each_module(self, caplog: pytest.LogCaptureFixture) -> None:
        model = opswap.swap(nn.Sequential(Configured(), Configured()), exact=True)
        model(images())
        assert not caplog.messages
        for m in model:
            m.options["groups"] = 4
        for _ in range(3):
            model(images())
        reason = "the original forward runs: self.options['groups'] changed from 3 to 4"
        assert caplog.messages == [f"0 (Configured): {reason}", f"1 (Configured): {reason}"]
        assert {r.levelno for r in caplog.records} == {logging.INFO} and {r.name for r in caplog.records} == {
            "opswap"
        }

    def test_a_rewrite_in_a_module(self, caplog: pytest.LogCaptureFixture) -> None:
        model = opswap.swap(nn.Sequential(nn.Conv2d(12, 12, 1), nn.Dropout(0.5), nn.BatchNorm2d(12))).eval()
        for _ in range(2):
            model(images())
        assert "1 (Dropout): the original operators run: self.training is False" in caplog.messages
        assert len(caplog.messages) == len(set(caplog.messages))

    def test_not_while_explaining_or_compiling(self, caplog: pytest.LogCaptureFixture) -> None:
        model = opswap.swap(Configured(), exact=True)
        model.options["groups"] = 4
        opswap.explain(model, images())
        torch._dynamo.reset()
        torch.compile(model, backend="eager")(images())
        assert not caplog.messages
        model(images())
        assert len(caplog.messages) == 1

    def test_silent_by_default(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, logger="opswap")
        model = opswap.swap(Net()).eval()
        model(images())
        assert not caplog.messages

    def test_replicas_and_threads(self, caplog: pytest.LogCaptureFixture) -> None:
        model = opswap.swap(Configured(), exact=True)
        model.options["groups"] = 4
        replicas = [model._replicate_for_data_parallel() for _ in range(4)]
        for r in replicas:
            r._modules = dict(model._modules)
        at_once(*(partial(r, images()) for r in replicas))
        assert len(caplog.messages) == 1

    def test_copies_still_pickle(self) -> None:
        model = opswap.swap(Configured(), exact=True)
        model.options["groups"] = 4
        model(images())
        assert copy.deepcopy(model)(images()).shape == (2, 12, 4, 8)


def test_threads_do_not_hear_each_other() -> None:
    """One explains a model that runs its original, while others run the same model and another."""
    one, other = opswap.swap(Configured(), exact=True), opswap.swap(Net()).eval()
    one.options["groups"] = 4

    def run() -> None:
        one(images())
        other(images())

    with meanwhile(run), meanwhile(run):
        for _ in range(5):
            found = opswap.explain(one, images()).outcomes
            assert [(o.calls, o.ran) for o in found] == [(1, 0)] * len(found)
            assert all(o.calls <= 1 for o in opswap.explain(other, images()).outcomes)


def test_the_fast_path_calls_nothing_more() -> None:
    """What runs when every condition holds mentions no function of the log."""
    model = opswap.swap(nn.Sequential(Split(), nn.MaxPool2d(2)), exact=True)
    for m in model.modules():
        code = getattr(m, "opswap_code", "")
        for line in code.splitlines():
            assert not line.startswith("        ") or ("declined" not in line and "missed" not in line)
