# SPDX-License-Identifier: MIT
"""`opswap bench`: what it selects, shows, writes and compares, and that Ctrl-C leaves what was measured."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch

from opswap import cli
from opswap.bench import cold_caches, display, plot, rows, run
from opswap.bench.cases import FAMILIES, models, peers
from opswap.bench.selection import Selection
from opswap.commands import bench
from opswap.memory.switches import reuse_freed, reuse_kept, reuses_freed
from surviving import python

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# One case of two directions, each measured for a moment.
FEW = [
    "channels",
    "--filter",
    "shuffle g=2",
    "bfloat16",
    "--batch",
    "1",
    "--seconds",
    "0.001",
    "--threads",
    "1",
]


def row(**changes: Any) -> dict[str, Any]:
    """A row as the benchmark writes it."""
    made = {"case": "pool", "shape": "1,2", "dtype": "float32", "layout": "NCHW", "direction": "forward"}
    made |= {"threads": 1, "allocation": "warm", "form": "opswap", "refused": {}, "plan": "", "shares": {}}
    spread = {"median": 2.0, "low": 1.9, "high": 2.1, "samples": 9}
    made |= {"stock": {"torch": spread}, "best_stock": "torch", "stock_ms": 2.0}
    made |= {"opswap": {"median": 1.0, "low": 0.95, "high": 1.05, "samples": 9}, "opswap_ms": 1.0}
    made |= {
        "ratio": 2.0,
        "ratio_low": 1.95,
        "ratio_high": 2.05,
        "roof_share": 0.5,
        "gbps": 4.0,
        "copy_gbps": 8.0,
    }
    made |= {"cpu": "a CPU", "isa": "scalar", "torch": "2", "opswap_version": "0", "date": "2026-01-01"}
    return made | changes


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a run yields, in place of a run; an exception is raised."""
    found: list[Any] = []

    def rows_of(selection: Selection) -> Iterator[dict[str, Any]]:
        for item in found:
            if isinstance(item, BaseException):
                raise item
            yield item

    monkeypatch.setattr(run, "measured_rows", rows_of)
    return found


def test_a_run_prints_and_writes_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "plot")}
    options = [f"--{name}={file}" for name, file in files.items()]
    assert cli.main(["bench", *FEW, "--allocation", "warm", *options]) == 0
    printed = capsys.readouterr().out
    head, *lines, last = printed.splitlines()
    assert head.split()[:5] == ["case", "shape", "dtype", "layout", "direction"] and "\x1b" not in printed
    assert len(lines) == 2 and last.startswith("2 rows, ")
    assert all(line.startswith("shuffle g=2  1,116,28,28  bfloat16  NHWC") for line in lines)
    found = rows.read(files["json"])
    assert [r["direction"] for r in found] == ["forward", "backward"]
    assert all(0 < r["ratio_low"] <= r["ratio"] <= r["ratio_high"] for r in found)
    table = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert [float(line["ratio"]) for line in table] == [r["ratio"] for r in found]
    assert files["plot"].read_bytes().startswith(b"\x89PNG")


def test_cold_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On request only; the plan and the preparation of a form are those of the function."""
    assert Selection().allocations == ("warm", "fresh")
    file = tmp_path / "out.json"
    assert cli.main(["bench", *FEW, "--allocation", "cold", f"--json={file}"]) == 0
    assert [(r["allocation"], r["ratio"] > 0) for r in rows.read(file)] == [("cold", True)] * 2
    monkeypatch.setattr(cold_caches, "_LEAST", 1 << 10)
    monkeypatch.setattr(cold_caches.os, "sysconf", lambda name: 0)
    monkeypatch.setattr(cold_caches, "_other_data", cold_caches._other_data.__wrapped__)
    assert cold_caches._other_data().numel() * 4 == 1 << 10

    def function() -> int:
        return 3

    function.plan, function.prepare = "a plan", "something"
    cold = cold_caches.ColdCaches(function)
    cold.prepare_call()
    assert (cold(), cold.plan, cold.prepare) == (3, "a plan", "something")
    assert not hasattr(cold_caches.ColdCaches(lambda: 3), "prepare")


def test_a_failing_process_is_an_error() -> None:
    with pytest.raises(run.BenchError, match="the warm run failed with status 1"):
        list(run.measured_rows(Selection(names=("channels",), batch=-1, allocations=("warm",))))


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    seconds = f"0.01{os.getpid()}"  # other runs of the tests may measure at the same time
    command = [sys.executable, "-m", "opswap", "bench", "channels", "--threads", "1", "--batch", "1"]
    with subprocess.Popen(
        [*command, "--seconds", seconds, "--json", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell may have ignored the signal for its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        for _ in range(3):
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    found = json.loads(file.read_text())
    assert len(found) >= 2 and f"{len(found)} rows, " in printed
    assert not _commands_with(seconds), "the process that measures has ended too"


def _commands_with(text: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "opswap.bench.run" in command and text in command:
                found.append(command)
    return found


@pytest.mark.parametrize(
    ("end", "status"), [(KeyboardInterrupt(), 130), (run.BenchError("the warm run failed"), 1)]
)
def test_what_was_measured_before_the_end_is_written(
    end: BaseException, status: int, measured: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured += [row(), row(direction="backward", ratio=0.5), end]
    assert cli.main(["bench", *FEW, "--json", str(tmp_path / "out.json")]) == status
    printed = capsys.readouterr()
    assert json.loads((tmp_path / "out.json").read_text()) == measured[:2]
    assert "2 rows, 1 slower than stock" in printed.out and "SLOWER" in printed.out
    assert (str(end) or "interrupted") in printed.err


def test_json_on_standard_output_is_all_of_it(
    measured: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    measured.append(row())
    assert cli.main(["bench", *FEW, "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [row()] and "1 rows" in printed.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_live_table_on_a_terminal(measured: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    measured += [row(shape=f"1,{i}") for i in range(100)]
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert cli.main(["bench", *FEW]) == 0
    printed = terminal.getvalue()
    assert "measured" in printed and "\x1b[" in printed, "the bar, drawn in place"
    _, *lines = printed.rpartition("\x1b")[2].splitlines()
    assert (
        sum(line.startswith("pool") for line in lines) == 100 and lines[-1] == "100 rows, 0 slower than stock"
    )


def test_rows_below_each_other() -> None:
    out = io.StringIO()
    chosen = Selection(names=("channels",), filters=("g=2", "bfloat16"))
    with display.line_by_line(out, chosen) as show:
        show(row(case="shuffle g=2", shape="32,116,28,28"))
    head, line = out.getvalue().splitlines()
    places = [head.index(name) for name in ("case", "shape", "dtype", "layout", "direction", "best stock")]
    assert all(line[place] != " " and (place == 0 or line[place - 1] == " ") for place in places)


class TestSelection:
    def test_families_are_those_of_the_help(self) -> None:
        assert ", ".join(FAMILIES) == bench._FAMILIES

    @pytest.mark.parametrize("name", ["LPRNet", "lprn", "shufflenetv2 x0.5"])
    def test_a_model_by_the_beginning_of_its_name(self, name: str) -> None:
        found = Selection(names=(name,)).cases()
        assert found and all(case.case.lower().startswith(name.lower()) for case in found)
        assert not any("compiled" in form for case in found for form in case.ours)

    def test_peers_are_measured_only_if_named(self) -> None:
        assert not any(case.direction == "deployed" for case in Selection().cases())
        assert not any(case.direction == "deployed" for case in Selection(names=("lprnet",)).cases())
        found = Selection(names=("peers",)).cases()
        assert {case.shape.split(",")[0] for case in found} == {"1", "32", "64"}
        assert all(case.direction == "deployed" for case in found)

    def test_a_peer_that_is_not_installed(self) -> None:
        def make(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
            raise ImportError("No module named 'onnxruntime'")

        with pytest.raises(ImportError, match=r"'onnxruntime'; python3 -m pip install 'opswap\[peers\]'"):
            peers._or_missing(make, torch.nn.Identity(), torch.ones(1))()

    def test_families_and_filters(self) -> None:
        found = Selection(names=("pool", "norm"), filters=("float32", "backward")).cases()
        assert {case.case for case in found} >= {"avg_pool2d", "batch_norm_relu"}
        assert all(case.dtype == "float32" and case.direction == "backward" for case in found)

    def test_count(self) -> None:
        chosen = Selection(names=("LPRNet",), threads=(1, 2), allocations=("warm",))
        assert chosen.count() == 2 * sum(len(case.ours) for case in chosen.cases()) > 0

    def test_the_list(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["bench", *FEW, "--list"]) == 0
        listed = capsys.readouterr().out
        assert listed.splitlines() == [
            c.label for c in Selection(("channels",), ("g=2", "bfloat16"), 1).cases()
        ]
        assert "channels_last" not in listed and listed

    def test_the_script_of_the_repository_is_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        printed = python(ROOT / "benchmarks" / "run.py", *FEW, "--list")
        cli.main(["bench", *FEW, "--list"])
        assert printed == capsys.readouterr().out


class TestCompare:
    def test_what_overlaps_or_differs_little_is_noise(self) -> None:
        old = [row()]
        for ratio, low, high, moved in (
            (2.5, 2.4, 2.6, True),
            (1.5, 1.4, 1.6, True),
            (2.5, 2.0, 2.6, False),
            (2.08, 2.07, 2.09, False),
            (1.5, 1.4, 1.95, False),
        ):
            found, common = rows.changes(old, [row(ratio=ratio, ratio_low=low, ratio_high=high)])
            assert bool(found) is moved and common == 1, (ratio, low, high)

    def test_rows_without_quartiles_of_the_ratio(self) -> None:
        old = {k: v for k, v in row().items() if k not in ("ratio_low", "ratio_high")}
        assert rows.changes([old], [row(ratio=2.12, ratio_low=2.11, ratio_high=2.13)])[0]
        assert not rows.changes([old], [row(ratio=2.12, ratio_low=2.1, ratio_high=2.13)])[0]

    def test_only_equal_rows_are_compared(self) -> None:
        for change in (
            {"threads": 2},
            {"allocation": "fresh"},
            {"shape": "2,2"},
            {"form": "exact NCHW"},
            {"stock": {}},
        ):
            assert rows.changes([row()], [row(ratio=9.0, ratio_low=9.0, ratio_high=9.0, **change)]) == ([], 0)

    @pytest.mark.parametrize(
        ("ratio", "status", "change"), [(1.5, 1, "-25%"), (3.0, 0, "+50%"), (2.0, 0, "")]
    )
    def test_the_command(
        self, ratio: float, status: int, change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        old, new = tmp_path / "old.json", tmp_path / "new.json"
        old.write_text(json.dumps([row(), row(shape="9,9")]))
        now = row(ratio=ratio, ratio_low=ratio - 0.01, ratio_high=ratio + 0.01)
        new.write_text(json.dumps([now]))
        assert cli.main(["bench", "--from", str(new), "--compare", str(old)]) == status
        printed = capsys.readouterr().out
        assert f"{int(bool(change))} of 1 rows" in printed and change in printed

    def test_without_names_the_old_rows_are_measured(
        self, measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        case = next(iter(FAMILIES["channels"](4)))
        old = row(case=case.case, shape=case.shape, dtype=case.dtype, direction=case.direction, threads=3)
        (tmp_path / "old.json").write_text(json.dumps([old]))
        chosen: list[Selection] = []
        monkeypatch.setattr(
            run, "measured_rows", lambda selection: (chosen.append(selection), iter_rows())[1]
        )
        assert cli.main(["bench", "--compare", str(tmp_path / "old.json"), "--batch", "4"]) == 0
        (selection,) = chosen
        assert [c.label for c in selection.cases()] == [case.label]
        assert selection.threads == (3,) and selection.allocations == ("warm",)


def iter_rows() -> Iterator[dict[str, Any]]:
    yield from ()


def test_pictures(tmp_path: Path) -> None:
    """All three panels, and each file of results; old ones have no quartiles and no shares of stock."""
    shares = {"convolution": 0.7, "other": 0.3}
    plot.draw(tmp_path / "a.png", [row(), row(ratio=0.4, shares=shares, stock_shares=shares, gbps=None)])
    plot.draw(tmp_path / "b.png", rows.read(RESULTS / "models.json"))
    plot.draw(tmp_path / "c.png", [row(shape=f"1,{i}", ratio=1 + i / 100) for i in range(5000)])
    for name in ("a", "b", "c"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_file_of_results_is_read(file: Path) -> None:
    found = rows.read(file)
    assert all(len(rows.cells(r)) == len(rows.HEAD) for r in found)
    assert len(rows.to_csv(found).splitlines()) == 1 + len(found)
    assert rows.changes(found, found) == ([], len(found))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "neither a family nor a case: 'nonsense'"),
        (["channels", "--filter", "nonsense"], "no row matches"),
        (["--compare", "absent.json"], "'absent.json' cannot be read"),
        (["--from", "broken.json"], "'broken.json' cannot be read: expected a list of rows"),
    ],
)
def test_mistakes(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("[1]")
    assert cli.main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("opswap bench: error: ") and message in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("option", "value"),
    [("--seconds", "-1"), ("--batch", "0"), ("--threads", "x"), ("--plot", "no/such.png")],
)
def test_wrong_arguments(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "channels", option, value])
    assert stop.value.code == 2 and f"'{value}'" in capsys.readouterr().err


@pytest.mark.skipif(
    not (ROOT / "benchmarks" / "report.py").is_file(), reason="the benchmarks are not beside the tests"
)
def test_the_table_of_networks_as_used(tmp_path: Path) -> None:
    """A column per form, how many times faster than stock as it comes and than the best form, and a picture."""
    module = run_path(str(ROOT / "benchmarks" / "report.py"))
    spread = {"low": 1.0, "high": 2.0, "samples": 9}
    stock = {
        "stock as it comes": spread | {"median": 30.0},
        "stock with reused memory": spread | {"median": 20.0},
    }
    made = row(case="LPRNet, as used", shape="4,3,24,94", direction="step", roof_share=None, stock=stock)
    made |= {"best_stock": "stock with reused memory", "form": "optimize", "opswap_ms": 10.0, "ratio": 2.01}
    text = module["report"]([made])
    assert "| LPRNet, 4 x 3 x 24 x 94 | step | 30 | 20 | 10 | 3.00 | 2.01 |" in text
    assert "best swapped" not in text
    text = module["report"]([made, {**made, "threads": 2}])
    assert "| LPRNet, 4 x 3 x 24 x 94 | step | 2 threads, warm | 30 | 20 | 10 | 3.00 | 2.01 |" in text
    compiled = {**made, "stock": {**stock, "torch.compile": spread | {"median": 25.0}}}
    assert "| LPRNet, 4 x 3 x 24 x 94 | step | 30 | 20 | 25 | 10 | 3.00 | 2.01 |" in module["report"](
        [compiled]
    )
    text = module["report"]([made, compiled])
    assert "| LPRNet, 4 x 3 x 24 x 94 | step | 30 | 20 |  | 10 | 3.00 | 2.01 |" in text
    module["draw_used"](tmp_path / "networks.png", [made, compiled])
    assert (tmp_path / "networks.png").read_bytes().startswith(b"\x89PNG")


def test_networks_as_used_switch_the_allocator(kept_switch: None) -> None:
    """Each form runs with its own setting, and its first call after a change is not measured."""
    calls: list[bool] = []
    forms = [models._Reusing(lambda: calls.append(reuses_freed()), reuse) for reuse in (False, True)]
    for form in (*forms, forms[1]):
        form.prepare()
        form()
    assert calls == [False, True, True, True]


@pytest.fixture
def kept_switch() -> Iterator[None]:
    with reuse_kept():
        try:
            reuse_freed(False)
        except RuntimeError as error:
            pytest.skip(str(error))
        yield
