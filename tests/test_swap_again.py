# SPDX-License-Identifier: MIT
"""A second swap does what its own arguments say, and a swap that fails leaves the model as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import kernels_of
from opswap.models import lprnet, shufflenet_v2_x0_5
from opswap.swap import carry_out
from opswap.swap.planning import gains
from opswap.swap.rewriting import input_format
from opswap.swap.rules import DEFAULT, Rule
from opswap.swap.verify import VerificationError
from spellings import Split, Wrapped, by_size
from spellings.guards import NumberOfSize
from swapping import images, same
from test_swap_live import Net, state
from test_swap_verify import wrong
from twins import twins


def rules_of(model: nn.Module) -> set[str]:
    return {s.rule for s in opswap.report(model).swapped}


def named(*names: str) -> list[Rule]:
    return [r for r in DEFAULT if r.name in names]


def generated(model: nn.Module) -> dict[str, str]:
    """The new forwards, by path."""
    found = {path: getattr(m, "opswap_code", "") for path, m in model.named_modules()}
    return {path: code for path, code in found.items() if code}


ARGUMENTS: dict[str, dict[str, object]] = {
    "default": {},
    "exact": {"exact": True},
    "no rules": {"rules": ()},
    "one rule": {"rules": named("batch_norm_act")},
    "other rules": {"rules": named("max_pool2d", "channel_shuffle")},
    "exact of one": {"rules": named("batch_norm_act"), "exact": True},
    "example_inputs": {"example_inputs": (torch.zeros(2, 12, 4, 8),)},
}


@pytest.mark.parametrize("second", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("first", ARGUMENTS.values(), ids=ARGUMENTS)
def test_as_if_only_the_second_had_been_called(first: dict[str, object], second: dict[str, object]) -> None:
    stock = Net()
    model = opswap.swap(opswap.swap(copy.deepcopy(stock), **first), **second)
    fresh = opswap.swap(copy.deepcopy(stock), **second)
    assert generated(model) == generated(fresh)
    assert opswap.report(model) == opswap.report(fresh)
    assert [m._opswap_record.sites for m in model.modules() if hasattr(m, "_opswap_record")] == [
        m._opswap_record.sites for m in fresh.modules() if hasattr(m, "_opswap_record")
    ]
    before = state(model)
    opswap.swap(model, **second)
    assert state(model) == before, "the same objects"


@pytest.mark.parametrize(
    "make", [Net, lambda: lprnet(11, 0.5), shufflenet_v2_x0_5], ids=["net", "lprnet", "shuffle"]
)
def test_exact_takes_rounding_rules_back(make: Callable[[], nn.Module]) -> None:
    model = opswap.swap(make())
    assert not all(s.exact for s in opswap.report(model).swapped)
    opswap.swap(model, exact=True, strict=True)
    assert all(s.exact for s in opswap.report(model).swapped)
    opswap.swap(model, rules=())
    assert not generated(model) and not opswap.report(model).swapped


def test_strict_counts_what_is_there_afterwards() -> None:
    model = opswap.swap(nn.Sequential(nn.BatchNorm2d(12), nn.ReLU()))
    before = state(model)
    with pytest.raises(RuntimeError, match="nothing to replace"):
        opswap.swap(model, exact=True, strict=True)
    assert state(model) == before
    opswap.swap(model, exact=True)
    opswap.swap(model, strict=True)
    assert rules_of(model) == {"batch_norm_act"}


def test_other_example_inputs_are_another_proof() -> None:
    model = nn.Sequential(NumberOfSize())
    small, large = images(), images(2, 12, 6, 8)
    opswap.swap(model, example_inputs=(small,), exact=True)
    assert (kernels_of(model, small), kernels_of(model, large)) == (1, 0)
    opswap.swap(model, example_inputs=(large,), exact=True)
    assert (kernels_of(model, small), kernels_of(model, large)) == (0, 1)
    opswap.swap(model, exact=True)
    assert not generated(model) and "example_inputs" in opswap.report(model).kept[0].reason


@pytest.mark.parametrize("losing", ["contiguous", "channels_last"])
def test_another_table_of_gains(losing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = opswap.swap(nn.Sequential(nn.MaxPool2d(2))), images()
    other = x.contiguous(memory_format=torch.channels_last)
    assert kernels_of(model, x) == kernels_of(model, other) == 1
    table = {"max_pool2d": {"contiguous": 2.0, "channels_last": 2.0, losing: 0.5}}
    monkeypatch.setattr(gains, "_table", lambda: table)
    opswap.swap(model)
    assert (kernels_of(model, x), kernels_of(model, other)) == ((0, 1) if losing == "contiguous" else (1, 0))


def test_the_memory_format_of_the_first_swap_stays() -> None:
    model = opswap.swap(nn.Sequential(nn.Conv2d(12, 12, 2)), memory_format=torch.channels_last)
    opswap.swap(model, exact=True)
    assert opswap.report(model).memory_format == "channels_last"
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_part_swapped_again() -> None:
    model = opswap.swap(Net())
    whole = opswap.report(model)
    opswap.swap(model.stem, exact=True)
    assert not [s for s in opswap.report(model).swapped if s.path.startswith("stem")]
    opswap.swap(model)
    assert opswap.report(model) == whole


def test_a_shared_part_of_two_models() -> None:
    block = Split()
    one, other = nn.Sequential(block, nn.BatchNorm2d(12)), nn.Sequential(block)
    opswap.swap(one)
    opswap.swap(other, rules=())
    assert [s.path for s in opswap.report(one).swapped] == ["1"]
    assert [s.path for s in opswap.report(one).kept] == ["0"]


FIRST: dict[str, Callable[[nn.Module], object]] = {
    "stock": lambda m: None,
    "swapped": opswap.swap,
    "swapped exactly": lambda m: opswap.swap(m, exact=True),
    "in channels_last": lambda m: opswap.swap(m, memory_format=torch.channels_last),
}


class BrokenError(Exception):
    pass


def _break_nth(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, n: int, error: BaseException
) -> None:
    calls, stock = [], getattr(module, name)

    def call(*args: object, **keywords: object) -> object:
        calls.append(1)
        if len(calls) == n:
            raise error
        return stock(*args, **keywords)

    monkeypatch.setattr(module, name, call)


def _last(m: nn.Module) -> object:
    return opswap.swap(m, exact=True, memory_format=torch.channels_last)


FAILING: dict[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[nn.Module], object], type[BaseException]]
] = {
    "example_inputs": (lambda p: None, lambda m: opswap.swap(m, example_inputs=(torch.ones(1),)), ValueError),
    "memory_format": (
        lambda p: None,
        lambda m: opswap.swap(m, memory_format=torch.preserve_format),
        ValueError,
    ),
    "verify": (
        lambda p: None,
        lambda m: opswap.swap(m, rules=wrong("channel_shuffle(x0, 3)"), verify_with=(images(),)),
        VerificationError,
    ),
    "write": (
        lambda p: _break_nth(p, carry_out, "write", 1, BrokenError()),
        lambda m: opswap.swap(m, rules=SOME),
        BrokenError,
    ),
    "record": (
        lambda p: _break_nth(p, carry_out, "make_record", 1, BrokenError()),
        lambda m: opswap.swap(m, rules=SOME),
        BrokenError,
    ),
    "first change": (lambda p: _break_nth(p, carry_out, "_change", 1, BrokenError()), _last, BrokenError),
    "third change": (lambda p: _break_nth(p, carry_out, "_change", 3, BrokenError()), _last, BrokenError),
    "interrupt": (
        lambda p: _break_nth(p, carry_out, "_change", 2, KeyboardInterrupt()),
        _last,
        KeyboardInterrupt,
    ),
    "conversion": (lambda p: _break_nth(p, input_format, "_convert", 1, BrokenError()), _last, BrokenError),
}
SOME = named("channel_shuffle", "cat_channel_shuffle", "cat_channel_shuffle_split")


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
@pytest.mark.parametrize("kind", FAILING)
def test_a_failing_swap_leaves_the_model_as_it_was(
    kind: str, first: Callable[[nn.Module], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, swap, error = FAILING[kind]
    model = nn.Sequential(Net(), nn.Conv2d(12, 12, 2), Wrapped(by_size))
    first(model)
    if kind == "conversion" and opswap.report(model).memory_format:
        model.append(nn.Conv2d(12, 12, 2))
    x = images(2, 12, 6, 8)
    before, code = state(model), generated(model)
    layouts = [(t.stride(), t.data_ptr()) for t in (*model.parameters(), *model.buffers())]
    records = [copy.copy(vars(m).get("_opswap_record")) for m in model.modules()]
    expected = copy.deepcopy(model).eval()(x)
    with monkeypatch.context() as patch:
        prepare(patch)
        with pytest.raises(error):
            swap(model)
    assert state(model) == before and generated(model) == code
    assert [(t.stride(), t.data_ptr()) for t in (*model.parameters(), *model.buffers())] == layouts
    assert [vars(m).get("_opswap_record") for m in model.modules()] == records
    assert torch.equal(copy.deepcopy(model).eval()(x), expected)


def test_a_conversion_that_fails_half_way_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Conv2d(12, 12, 2) for _ in range(4)))
    model(images(2, 12, 6, 8)).sum().backward()
    tensors = [t for p in model.parameters() for t in (p, p.grad)]
    before = [(t.stride(), t.data_ptr()) for t in tensors]
    _break_nth(monkeypatch, input_format, "_convert", 3, BrokenError())
    with pytest.raises(BrokenError):
        opswap.swap(model, memory_format=torch.channels_last)
    assert [(t.stride(), t.data_ptr()) for t in tensors] == before and not model._forward_pre_hooks


class TestReport:
    def test_it_is_what_the_swap_planned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = nn.Sequential(NumberOfSize(), Split())
        opswap.swap(model, example_inputs=(images(),), rules=SOME)
        expected = opswap.scan(model, example_inputs=(images(),), rules=SOME)
        monkeypatch.setattr(opswap.swap.__globals__["make_plan"], "__code__", (lambda *a: 1 / 0).__code__)
        report = opswap.report(model)
        assert report == expected and len(report.swapped) == 2

    def test_of_copies(self) -> None:
        model = opswap.swap(nn.Sequential(Net(), Wrapped(lambda_free)), exact=True)
        for twin in twins(model):
            assert opswap.report(twin) == opswap.report(model)
            assert opswap.report(twin[0]) == opswap.report(model[0])

    def test_of_parts(self) -> None:
        model = nn.Sequential(Net(), nn.Sequential(Wrapped(refused), Split()), nn.Linear(2, 2))
        opswap.swap(model, exact=True)
        whole, part = opswap.report(model), opswap.report(model[1])
        assert [s.path for s in part.swapped] == ["1"] and [s.path for s in part.kept] == ["0"]
        assert [s.below("1") for s in part.kept] == [s for s in whole.kept if s.path.startswith("1")]
        assert not opswap.report(model[0]).kept
        for nothing in (opswap.report(model[2]), opswap.report(nn.Linear(2, 2))):
            assert not nothing.swapped and not nothing.kept and "not swapped" in str(nothing)

    def test_of_a_model_that_was_never_swapped(self) -> None:
        report = opswap.report(nn.Sequential(Split()))
        assert not report.swapped and not report.kept and "opswap.scan(model)" in report.note
        assert report.note in str(report) and report.note in report.to_json()
        assert not opswap.report(opswap.swap(nn.Linear(2, 2))).note
        assert opswap.report(opswap.unswap(opswap.swap(nn.Sequential(Split())))).note

    @pytest.mark.parametrize(
        "replacement", [Split, Net, lambda: nn.Conv2d(12, 12, 1)], ids=["same", "other", "plain"]
    )
    def test_of_a_replaced_part(self, replacement: Callable[[], nn.Module]) -> None:
        model = opswap.swap(nn.Sequential(nn.Conv2d(12, 12, 1), Split(), Split()), exact=True)
        model[2] = replacement()
        report = opswap.report(model)
        assert [s.path for s in report.swapped] == ["1"], "whose own new forward runs"
        assert "2" in [s.path for s in report.kept if "opswap.swap again" in s.reason]
        assert any("2 was replaced" in s.reason for s in report.kept)

    def test_of_an_added_part(self) -> None:
        model = opswap.swap(nn.Sequential(Split()), exact=True)
        model.append(Net())
        (kept,) = opswap.report(model).kept
        assert kept.path == "1" and "added after the swap" in kept.reason

    def test_of_a_part_that_was_swapped_before_and_after(self) -> None:
        inner = opswap.swap(nn.Sequential(Wrapped(refused), Split()), exact=True)
        model = opswap.swap(nn.Sequential(inner, Split()), rules=())
        assert not opswap.report(model).swapped
        opswap.swap(inner, exact=True)
        report = opswap.report(model)
        assert [s.path for s in report.swapped] == ["0.1"] and [s.path for s in report.kept] == ["0.0"]

    def test_of_a_part_that_was_unswapped(self) -> None:
        model = opswap.swap(nn.Sequential(Split(), nn.Conv2d(12, 12, 1), Split()), exact=True)
        opswap.unswap(model[2])
        assert [s.path for s in opswap.report(model).swapped] == ["0"]
        assert [s.path for s in opswap.report(model).kept] == ["2"]


class TestReportOfSharedModules:
    """One module object under several paths: every place has one line, under the first of its paths."""

    def test_each_once(self) -> None:
        block, norm = Split(), nn.Sequential(nn.BatchNorm2d(12), nn.ReLU())
        model = opswap.swap(nn.Sequential(block, norm, block, nn.Sequential(norm, block)), rules=DEFAULT)
        report = opswap.report(model)
        assert [s.path for s in report.swapped] == ["0", "1.0"] and not report.kept
        assert report == opswap.scan(model, rules=DEFAULT)

    def test_of_parts(self) -> None:
        block, other = Split(), Wrapped(refused)
        model = nn.Sequential(block, other, nn.Sequential(block, nn.Tanh(), other, block))
        opswap.swap(model, exact=True)
        report = opswap.report(model[2])
        assert [s.path for s in report.swapped] == ["0"] and [s.path for s in report.kept] == ["2"]
        assert "added" not in report.kept[0].reason

    def test_in_a_forward_around_and_in_one_below(self) -> None:
        norm = nn.BatchNorm2d(12)
        model = nn.Sequential(norm, nn.ReLU(), norm, nn.ReLU(), nn.Sequential(norm, nn.ReLU()))
        opswap.swap(model, rules=DEFAULT)
        assert len(opswap.report(model).swapped) == 3 and not opswap.report(model).kept
        assert len(opswap.report(model[4]).swapped) == 1 and not opswap.report(model[4]).kept

    def test_one_of_the_paths_is_deleted(self) -> None:
        block = Split()
        model = nn.ModuleDict({"a": block, "b": nn.Sequential(block, nn.ReLU())})
        opswap.swap(model, exact=True)
        del model["a"]
        report = opswap.report(model)
        assert [s.path for s in report.swapped] == ["b.0"] and not report.kept

    def test_one_of_the_paths_is_replaced(self) -> None:
        block = Split()
        model = opswap.swap(nn.ModuleDict({"a": block, "b": block}), exact=True)
        model["a"] = nn.Tanh()
        report = opswap.report(model)
        assert [s.path for s in report.swapped] == ["b"]
        assert [s.path for s in report.kept] == ["a"] and "was added" in report.kept[0].reason

    @pytest.mark.parametrize("again", [lambda m: opswap.swap(m, rules=()), opswap.unswap])
    def test_swapped_again_in_another_model(self, again: Callable[[nn.Module], nn.Module]) -> None:
        block = Split()
        one = opswap.swap(nn.ModuleDict({"a": block, "b": nn.Sequential(block)}), exact=True)
        again(nn.Sequential(nn.Tanh(), block))
        report = opswap.report(one)
        assert not report.swapped and [s.path for s in report.kept] == ["a"]
        assert "swapped again on its own or in another model" in report.kept[0].reason

    def test_many_paths(self) -> None:
        model: nn.Module = Split()
        for _ in range(20):
            model = nn.ModuleDict({"a": model, "b": model})
        opswap.swap(model, exact=True)
        assert [s.path for s in opswap.report(model).swapped] == [".".join("a" * 20)]


def lambda_free(x: Tensor) -> Tensor:
    return by_size(x)


def refused(x: Tensor) -> Tensor:
    return by_size(x) if x.mean() > 0 else x


def test_surgery_between_two_swaps() -> None:
    stock = Net()
    model = opswap.swap(copy.deepcopy(stock))
    for m in (stock, model):
        m.body.append(copy.deepcopy(stock.body[0]))
        m.stem[2] = nn.Tanh()
    opswap.swap(model, exact=True)
    same(model.eval(), stock.eval())
    assert generated(model) == generated(opswap.swap(copy.deepcopy(stock), exact=True))
