# SPDX-License-Identifier: MIT
"""The table of gains: where it comes from, and that what loses is left to torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import opswap
from counted import kernels
from opswap.ops.dropout import draws_alike
from opswap.swap.planning import gains
from opswap.swap.rules import DEFAULT, OPTIONAL, convolution
from spellings import Wrapped, by_size

Record = Callable[[dict[str, dict[str, float]]], None]


@pytest.fixture(autouse=True)
def recorded_gains() -> None:
    """The tables are read here."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gains._read.cache_clear()
    yield tmp_path / "opswap" / "costs.json"
    gains._read.cache_clear()


@pytest.fixture
def record(cache: Path) -> Record:
    def write(table: dict[str, dict[str, float]], **machine: str) -> None:
        cache.parent.mkdir(exist_ok=True)
        cache.write_text(json.dumps({**gains._machine(), **machine, "gains": table}))
        gains._read.cache_clear()

    return write


def test_the_shipped_table_knows_the_rules() -> None:
    names = {r.name for r in DEFAULT + OPTIONAL if r.example is not None}
    tables = json.loads(gains._SHIPPED.read_text())
    assert tables
    for table in tables.values():
        assert names >= set(table["gains"]) and table["cpu"] and table["torch"]
        assert all(ratio > 0 for layouts in table["gains"].values() for ratio in layouts.values())


@pytest.mark.parametrize(
    ("tiers", "loses"),
    [(("scalar", "avx2", "avx512"), True), (("scalar", "avx2"), True), (("scalar",), False)],
)
def test_what_loses_in_the_nearest_class_below_is_left_to_torch(
    tiers: tuple[str, ...], loses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped.json"
    shipped.write_text(json.dumps({"m-avx2": {"gains": {"amax": {"contiguous": 0.5}}}}))
    monkeypatch.setattr(gains, "_SHIPPED", shipped)
    monkeypatch.setattr(gains.platform, "machine", lambda: "m")
    monkeypatch.setattr(gains.isa, "available", lambda: tiers)
    assert bool(gains.loss("amax")) is loses


def test_a_gain_is_in_the_report(record: Record) -> None:
    record({"channel_shuffle": {"contiguous": 2.0, "channels_last": 8.0}})
    report = opswap.scan(Wrapped(by_size))
    assert report.swapped[0].gain == 4.0 and "4.0x" in str(report)
    record({})
    assert opswap.scan(Wrapped(by_size)).swapped[0].gain is None


def test_a_rule_that_loses_everywhere_is_not_applied(record: Record) -> None:
    record({"channel_shuffle": {"contiguous": 0.5, "channels_last": 0.7}})
    report = opswap.scan(Wrapped(by_size), exact=True)
    assert not report.swapped and "0.50x in contiguous" in report.kept[0].reason
    assert opswap.scan(Wrapped(by_size), rules=DEFAULT).swapped, "rules that were asked for are applied"


def test_tensors_in_a_format_that_loses_take_their_own_code(record: Record) -> None:
    record({"max_pool2d": {"contiguous": 3.0, "channels_last": 0.5}})
    model = opswap.swap(nn.Sequential(nn.MaxPool2d(2)), strict=True)
    x = torch.randn(2, 12, 4, 8)
    opswap.reset_stats()
    expected = model(x)
    assert kernels() == 1
    assert torch.equal(model(x.contiguous(memory_format=torch.channels_last)), expected)
    assert kernels() == 1
    record({"max_pool2d": {"contiguous": 0.5, "channels_last": 3.0}})
    model = opswap.swap(nn.Sequential(nn.MaxPool2d(2)), strict=True)
    model(x)
    assert kernels() == 1
    model(x.contiguous(memory_format=torch.channels_last))
    assert kernels() == 2


def test_a_whole_module_in_a_format_that_loses_takes_its_own_code(record: Record) -> None:
    record({"batch_norm": {"contiguous": 2.0, "channels_last": 0.5}})
    model = opswap.swap(nn.Sequential(nn.BatchNorm2d(12)), strict=True)
    x = torch.randn(2, 12, 20, 18)
    opswap.reset_stats()
    model(x)
    assert kernels() == 1
    model(x.contiguous(memory_format=torch.channels_last))
    assert kernels() == 1


def test_the_table_of_another_machine_is_not_read(record: Record) -> None:
    record({"channel_shuffle": {"contiguous": 0.5}}, cpu="another")
    assert opswap.scan(Wrapped(by_size)).swapped


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cpu": 1}'])
def test_a_broken_table_is_not_read(cache: Path, text: str) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text(text)
    assert opswap.scan(Wrapped(by_size)).swapped


def test_tune_keeps_what_it_measures(cache: Path) -> None:
    names = {"cat_channel_shuffle", "channel_shuffle", "max_pool3d", "dropout_add"}
    table = opswap.tune([r for r in DEFAULT if r.name in names], rounds=1)
    assert set(table) == names
    assert set(table["cat_channel_shuffle"]) == {"contiguous", "channels_last"}
    assert set(table["channel_shuffle"]) == {"channels_last"}, "in contiguous layout it is torch's own"
    assert set(table["max_pool3d"]) == {"contiguous"}, "torch has no such pool in channels_last"
    assert set(table["dropout_add"]) == {"contiguous", "channels_last"}, "it calls no kernel"
    assert json.loads(cache.read_text())["gains"] == table
    ratios = table["cat_channel_shuffle"].values()
    assert gains.gain("cat_channel_shuffle") == pytest.approx((min(ratios) * max(ratios)) ** 0.5)


def test_tune_passes_over_what_is_left_to_torch_here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "pointwise_wins", lambda: False)
    assert opswap.tune([r for r in DEFAULT if r.name == "pointwise_conv"], rounds=1) == {"pointwise_conv": {}}
    assert gains.gain("pointwise_conv") is None and not gains.loss("pointwise_conv")


@pytest.mark.parametrize("rule", [r for r in DEFAULT + OPTIONAL if r.example], ids=lambda r: r.name)
def test_every_example_is_changed_by_its_rule(rule: opswap.swap.Rule) -> None:
    module, shapes = rule.example()
    if (rule.whole and rule.declines(module) != "") or (rule.name == "dropout" and not draws_alike()):
        pytest.skip("left to torch on this tier or CPU")
    report = opswap.scan(module, rules=[rule])
    assert [s.rule for s in report.swapped] == [rule.name]
    inputs = tuple(torch.randn(2, *shape[1:]) for shape in shapes)
    assert all(c.holds for c in opswap.verify(module, inputs, rules=[rule]).checks)
