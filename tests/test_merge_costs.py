# SPDX-License-Identifier: MIT
"""How the convolutions of a module that was merged without an example run, and what the report says of it."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from merge_cases import check_step, example, make
from opswap import merge
from opswap.merge import costs
from opswap.merge.layers.conv import BranchConv
from threads import on_threads

pytestmark = pytest.mark.usefixtures("one_thread")

Record = Callable[[dict[str, list[list[float]]]], None]
SETTINGS = [
    costs.setting_name(training, last, threads)
    for training in (True, False)
    for last in (True, False)
    for threads in (1, 2)
]
POINTWISE = [1, 8, 4, 3, 2, 64]
SQUARE = [9, 4, 4, 3, 2, 64]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs._own.cache_clear()
    yield tmp_path / "opswap" / "merge_costs.json"
    costs._own.cache_clear()


@pytest.fixture
def record(cache: Path) -> Record:
    def write(rows: list[list[float]], settings: list[str] = SETTINGS) -> None:
        costs.keep(dict.fromkeys(settings, rows))

    return write


def convolutions(module: nn.Module) -> dict[str, BranchConv]:
    return {path: m for path, m in module.named_modules() if isinstance(m, BranchConv) and m.ways}


def runs(module: nn.Module, x: Tensor) -> dict[str, str]:
    """How every convolution that has several ways runs on x."""
    twin = copy.deepcopy(module).eval()
    for layer in convolutions(twin).values():
        layer.choices.clear()
    twin(x)
    found = {path: list(layer.choices.values()) for path, layer in convolutions(twin).items()}
    return {path: choices[0][1].way for path, choices in found.items() if choices}


def test_every_convolution_runs_as_was_recorded(record: Record) -> None:
    """A Bottleneck has a shared 1 x 1, a 3 x 3 and a 1 x 1 convolution; the first has no other way."""
    record([[*POINTWISE, 0.5, 2.0], [*SQUARE, 3.0, 0.0]])
    modules = make("bottleneck", 3)
    merged = merge.branches(modules)
    x = example("bottleneck")
    assert runs(merged, x) == {"residual.3": "chunks", "residual.6": "product"}
    check_step(merged, modules, [x], True)
    record([[*POINTWISE, 0.5, 0.9], [*SQUARE, 0.5, 0.0]])
    modules = make("bottleneck", 3)
    merged = merge.branches(modules)
    assert runs(merged, x) == {"residual.3": "wide", "residual.6": "wide"}
    check_step(merged, modules, [x], True)


def test_the_setting_decides(record: Record) -> None:
    record([[*POINTWISE, 0.5, 2.0]], ["inference, contiguous, 1 thread"])
    merged = merge.branches(make("bottleneck", 3))
    x = example("bottleneck")
    with on_threads(1):
        assert runs(merged, x)["residual.6"] == "wide"
        with torch.no_grad():
            assert runs(merged, x)["residual.6"] == "product"
            last = x.contiguous(memory_format=torch.channels_last)
            merged.to(memory_format=torch.channels_last)
            assert runs(merged, last)["residual.6"] == "wide"
            torch.set_num_threads(2)
            merged.to(memory_format=torch.contiguous_format)
            assert runs(merged, x)["residual.6"] == "wide"


def site(taps: int, channels: int, **sizes: Any) -> costs.Site:
    given = {"branches": 3, "batch": 2, "pixels": 64, "channels_last": False, "training": True, "threads": 1}
    return costs.Site(taps, channels, channels, **(given | sizes))


def test_the_nearest_row_counts(record: Record) -> None:
    ways = ("chunks", "product")
    record([[1, 8, 8, 3, 2, 64, 0.9, 1.02], [1, 64, 64, 3, 2, 64, 2.0, 1.5]])
    assert costs.recorded_choice(site(1, 8), ways) == costs.Choice("wide", 1.0)
    assert costs.recorded_choice(site(1, 48), ways) == costs.Choice("chunks", 2.0)
    assert costs.recorded_choice(site(1, 48), ways[1:]) == costs.Choice("product", 1.5)
    assert costs.recorded_choice(site(1, 48, pixels=1 << 20), ways) == costs.Choice("wide", None)
    assert costs.recorded_choice(site(9, 48), ways) == costs.Choice("wide", None)


def test_the_report_says_what_was_chosen_and_by_how_much(record: Record) -> None:
    record([[*POINTWISE, 0.5, 2.5], [*SQUARE, 0.5, 0.0]])
    merged = merge.branches(make("bottleneck", 3))
    report = merged.merge_report()
    assert report.source == "this machine" and not report.timings
    paths = [r.path for r in report.recorded]
    assert paths == ["residual.3", "residual.3", "residual.6", "residual.6"], "training and inference"
    text = str(report)
    assert "not measured: convolutions run by figures recorded for this machine" in text
    assert "product (2.50x over grouped)" in text and "grouped (no other way is faster)" in text
    assert json.loads(report.to_json())["recorded"][2]["choice"] == {"way": "product", "gain": 2.5}
    merged.measure(example("bottleneck"), seconds=0.01)
    report = merged.merge_report()
    assert report.timings and not report.recorded and "recorded for" not in str(report)


def test_a_class_of_cpus_without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "cpu_class", lambda: "another")
    merged = merge.branches(make("bottleneck", 2))
    assert set(runs(merged, example("bottleneck")).values()) == {"wide"}
    assert "nothing is recorded for this class of CPUs" in str(merged.merge_report())


def test_the_shipped_table() -> None:
    tables = json.loads(costs._SHIPPED.read_text())
    assert tables
    for table in tables.values():
        assert set(table["gains"]) <= set(SETTINGS) and table["cpu"] and table["torch"]
        for rows in table["gains"].values():
            assert all(len(row) == len(costs.SIZES) + len(costs.WAYS) for row in rows)
            assert all(size >= 1 for row in rows for size in row[: len(costs.SIZES)])
            assert all(gain >= 0 for row in rows for gain in row[len(costs.SIZES) :])


def test_tune_keeps_what_it_measures(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune = sys.modules["opswap.merge.tune"]
    monkeypatch.setattr(tune, "_CHANNELS", ((4, 4),))
    monkeypatch.setattr(tune, "_BRANCHES", (2,))
    monkeypatch.setattr(tune, "_INPUTS", ((1, 3), (2, 500_000)))
    threads = torch.get_num_threads()
    table = merge.tune(seconds=0.0)
    assert torch.get_num_threads() == threads
    assert json.loads(cache.read_text())["gains"] == table
    assert len(table) == 4 * len({1, threads})
    for rows in table.values():
        assert [row[:6] for row in rows] == [[1, 4, 4, 2, 1, 9], [9, 4, 4, 2, 1, 9]], (
            "too large ones are left out"
        )
        assert all(row[6] > 0 for row in rows) and rows[0][7] > 0 and rows[1][7] == 0
    assert costs.source() == "this machine"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cpu": 1}'])
def test_a_broken_table_is_not_read(cache: Path, text: str) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(text)
    assert costs.source() in ("", costs.cpu_class())


def test_without_a_batch_and_compiled(record: Record) -> None:
    record([[*POINTWISE, 0.5, 2.5]])
    merged = merge.branches(make("bottleneck", 2)).eval()
    assert merged(torch.randn(0, 8, 7, 7)).shape == (0, 2, 8, 7, 7)
    x = example("bottleneck")
    compiled = torch.compile(merged, backend="eager")
    torch.testing.assert_close(compiled(x), merged(x), rtol=1e-4, atol=1e-5)


def test_choices_are_bounded(record: Record) -> None:
    """Of many input sizes the latest are known, and a few of them are in the report."""
    record([[*POINTWISE, 0.5, 2.0]])
    merged = merge.branches(make("bottleneck", 3)).eval()
    layers = {path: m for path, m in convolutions(merged).items() if m.choices}
    assert set(layers) == {"residual.3", "residual.6"}
    shapes = [(2, 8, 4 + width % 10, 4 + width // 10) for width in range(80)]
    for shape in shapes:
        merged(torch.randn(shape))
    for layer in layers.values():
        assert len(layer.choices) == 64
    first = layers["residual.3"]
    oldest = next(iter(first.choices))
    merged(torch.randn(oldest[0][0], 8, *oldest[0][2:]))
    merged(torch.randn(2, 8, 40, 40))
    assert oldest in first.choices and len(first.choices) == 64
    report = merged.merge_report()
    assert len(report.recorded) <= 4 * len(layers)
    assert str(report).endswith(f"and {report.older} rows of earlier calls")
    assert report.older == sum(len(layer.choices) for layer in layers.values()) - len(report.recorded)
    assert {r.site.pixels for r in report.recorded} >= {1600}


def test_choices_of_copies_are_their_own(record: Record) -> None:
    record([[*POINTWISE, 0.5, 2.0]])
    merged = merge.branches(make("bottleneck", 3)).eval()
    known = {path: dict(layer.choices) for path, layer in convolutions(merged).items() if layer.choices}
    for twin in (copy.deepcopy(merged), pickle.loads(pickle.dumps(merged))):
        twin(torch.randn(3, 8, 5, 5))
        assert all(len(twin.get_submodule(path).choices) > len(known[path]) for path in known)
    assert {path: dict(merged.get_submodule(path).choices) for path in known} == known


def test_choices_in_several_threads(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas of a module share what it has looked up."""
    monkeypatch.setattr("opswap.merge.recent.Recent.limit", 2)
    record([[*POINTWISE, 0.5, 2.0]])
    merged = merge.branches(make("bottleneck", 3)).eval()

    def run(seed: int) -> bool:
        with torch.no_grad():
            return all(merged(torch.randn(1, 8, 3 + (i * seed) % 7, 4)).isfinite().all() for i in range(60))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, (1, 2, 3, 5)))
    assert all(len(layer.choices) <= 2 for layer in convolutions(merged).values())


class Late:
    """Another call, in the middle of a copy or a pickle."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __deepcopy__(self, memo: dict[int, Any]) -> str:
        self.call()
        return "late"

    def __reduce__(self) -> tuple[Any, ...]:
        self.call()
        return str, ("late",)


@pytest.mark.parametrize("make_twin", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_while_another_thread_calls_the_module(
    make_twin: Callable[[Any], Any], record: Record
) -> None:
    record([[*POINTWISE, 0.5, 2.0]])
    merged = merge.branches(make("bottleneck", 3)).eval()
    choices = next(layer.choices for layer in convolutions(merged).values() if layer.choices)
    kept = next(iter(choices.values()))
    choices[Late(lambda: choices.add(object(), kept))] = kept
    twin = make_twin(merged)
    assert any("late" in layer.choices for layer in convolutions(twin).values())


def test_nothing_of_a_merged_module_outlives_it(record: Record) -> None:
    record([[*POINTWISE, 0.5, 2.0]])
    merged = merge.branches(make("bottleneck", 3), example_input=example("bottleneck"))
    merged(torch.randn(2, 8, 5, 9))
    str(merged.merge_report())
    alive = [weakref.ref(m) for m in merged.modules()] + [weakref.ref(p) for p in merged.parameters()]
    alive += [weakref.ref(layer.choices) for layer in convolutions(merged).values()]
    del merged
    gc.collect()
    assert [made() for made in alive if made() is not None] == []
