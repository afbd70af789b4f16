# SPDX-License-Identifier: MIT
"""The one timer, the one statistic, the one table."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from opswap import _progress, _table, _timing
from opswap._timing import Spread, medians_in_turn, ratio_spread, time_in_turn

pytestmark = pytest.mark.once


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 100])
def test_spread(count: int) -> None:
    samples = np.random.default_rng(count).random(count).tolist()
    found = Spread.of(samples)
    assert (found.low, found.median, found.high) == pytest.approx(tuple(np.percentile(samples, (25, 50, 75))))
    assert found.samples == count


def test_a_machine_that_changes_its_speed_does_not_change_the_ratio() -> None:
    slow, fast = [2.0, 2.0, 20.0, 20.0, 20.0], [1.0, 1.0, 10.0, 10.0, 10.0]
    assert ratio_spread(slow, fast) == Spread(2.0, 2.0, 2.0, 5)
    with pytest.raises(ValueError):
        ratio_spread(slow, fast[:2])


class TestInTurn:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Nanoseconds, which the functions below let pass."""
        now = [0]
        monkeypatch.setattr(_timing.time, "perf_counter_ns", lambda: now[0])
        monkeypatch.setattr(_timing.time, "perf_counter", lambda: now[0] / 1e9)
        return now

    def test_what_prepares_a_block_is_not_timed(self, clock: list[int]) -> None:
        class Prepared:
            calls = 0

            def __call__(self) -> None:
                clock[0] += 1_000_000

            def prepare(self) -> None:
                self.calls += 1
                clock[0] += 50_000_000

        prepared = Prepared()
        samples = time_in_turn({"prepared": prepared}, 0.0, 3)
        assert samples["prepared"] == [1.0, 1.0, 1.0]
        assert prepared.calls >= 3

    def test_what_prepares_a_call_is_not_timed(self, clock: list[int]) -> None:
        class Prepared:
            calls, prepared = 0, 0

            def __call__(self) -> None:
                assert self.prepared == self.calls + 1
                self.calls += 1
                clock[0] += 50_000

            def prepare_call(self) -> None:
                self.prepared += 1
                clock[0] += 5_000_000

        function = Prepared()
        assert time_in_turn({"function": function}, 0.0, 3)["function"] == [0.05] * 3
        assert function.calls == 2 + 3 * 4

    def test_rounds_blocks_and_order(self, clock: list[int]) -> None:
        calls: list[str] = []

        def function(name: str, nanoseconds: int) -> object:
            def run() -> None:
                calls.append(name)
                clock[0] += nanoseconds

            return run

        functions = {"short": function("short", 50_000), "long": function("long", 3_000_000)}
        times = time_in_turn(functions, 0.0, 20)
        assert times == {"short": [0.05] * 20, "long": [3.0] * 20}
        assert calls[:4] == ["short"] * 2 + ["long"] * 2, "two calls of each come first"
        assert calls.count("short") == 2 + 20 * 4 and calls.count("long") == 2 + 20, "a block takes 0.2 ms"
        rounds = [calls[4:][i * 5] for i in range(20)]
        assert set(rounds) == {"short", "long"}, "the order is random"

    def test_the_time_is_used(self, clock: list[int]) -> None:
        def run() -> None:
            clock[0] += 10_000_000

        assert len(time_in_turn({"a": run}, 1.0, 3)["a"]) == 100
        assert medians_in_turn({"a": run, "b": run}, 0.0) == {"a": 10.0, "b": 10.0}

    @pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 2), (0.05, 5), (1.0, 7)])
    def test_at_most_so_many_rounds(self, clock: list[int], seconds: float, rounds: int) -> None:
        calls = []

        def run() -> None:
            calls.append(1)
            clock[0] += 10_000_000

        assert medians_in_turn({"a": run}, seconds, 2, most=7) == {"a": 10.0} and len(calls) == 2 + rounds

    def test_a_slow_function_is_called_once_before(self, clock: list[int]) -> None:
        calls = []

        def run() -> None:
            calls.append(1)
            clock[0] += 600_000_000

        assert time_in_turn({"a": run}, 0.0, 1) == {"a": [600.0]} and len(calls) == 2


def test_table() -> None:
    lines = _table.table(("name", "ms"), [("a long name", "1"), ("b", "100")], right=[1])
    assert lines == ["name          ms", "a long name    1", "b            100"]
    assert _table.table(("a", "long"), [("xyz", "1")]) == ["a    long", "xyz  1"]
    assert _table.table(("name", "ms"), []) == []
    with pytest.raises(ValueError):
        _table.table(("name", "ms"), [("a",)])
    assert _table.markdown(("a", "b"), [("1", "2")]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]


@pytest.mark.parametrize(
    ("time", "text"), [(1234.4, "1234"), (99.94, "99.9"), (2.0, "2"), (0.01234, "0.0123")]
)
def test_milliseconds(time: float, text: str) -> None:
    assert _table.milliseconds(time) == text


class TestProgress:
    def test_nothing_in_a_pipe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with _progress.progress_bar() as update:
            update("work", 1, 2)
        assert stream.getvalue() == ""

    def test_nothing_without_rich(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rich.console", None)
        with _progress.progress_bar() as update:
            update("work", 1, 2)

    def test_a_bar_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = io.StringIO()
        stream.isatty = lambda: True
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with _progress.progress_bar() as update:
            update("some work", 1, 2)
        assert "some work" in stream.getvalue() and "1/2" in stream.getvalue()
