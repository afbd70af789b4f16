# SPDX-License-Identifier: MIT
"""What the finders share: user files, names of modules, reports, running scripts, counting steps."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sysconfig
from pathlib import Path

import pytest
import torch
from torch import nn

import opswap
from opswap.finding import (
    Locator,
    Report,
    Site,
    format_bytes,
    format_seconds,
    is_user_file,
    short_path,
)
from opswap.finding.plot import MOST_BARS, Bar, draw_bars
from opswap.finding.script import (
    InputSize,
    StepsDone,
    Target,
    UsageError,
    parse_target,
    run_script,
    stop_after,
)


class Found(Report):
    title = "finder"

    def __init__(self, *sites: Site) -> None:
        self._sites = list(sites)

    @property
    def sites(self) -> list[Site]:
        return sorted(self._sites, key=lambda s: -s.cost)

    @property
    def notes(self) -> list[str]:
        return ["seen <half>"]


def site(**changes: object) -> Site:
    values = {
        "status": "lost",
        "op": "aten.clone",
        "module": "a",
        "file": __file__,
        "line": 1,
        "function": "f",
        "phase": "forward",
        "count": 2,
        "bytes": 10,
        "shapes": ((1, 2),),
        "hint": "write <less>",
    }
    return Site(**(values | changes))


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (__file__, True),
        (torch.nn.__file__, False),
        (opswap.__file__, False),
        (opswap.models.shufflenetv2.__file__, True),
        (functools.__file__, False),
        (os.path.join(sysconfig.get_path("purelib"), "timm", "models", "net.py"), True),
        (os.path.join(sysconfig.get_path("purelib"), "einops", "einops.py"), False),
        ("<frozen runpy>", False),
        ("<opswap Net 3>", False),
        ("<eval_with_key>.7", False),
        ("<stdin>", True),
        ("<ipython-input-3-abc>", True),
    ],
)
def test_user_files(file: str, expected: bool) -> None:
    assert is_user_file(file) is expected


def test_short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "src" / "net.py")) == os.path.join("src", "net.py")
    assert short_path("/a/b/c/d/net.py") == os.path.join("c", "d", "net.py")
    assert short_path("") == "" and short_path("<stdin>") == "<stdin>"


def test_numbers() -> None:
    assert [format_bytes(n) for n in (0, 999, 1500, 2.5e6, 3e9, 4e15)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "3 GB",
        "4e+03 TB",
    ]
    assert [format_seconds(s) for s in (2, 0.0123, 4.5e-5)] == ["2 s", "12.3 ms", "45 us"]


def test_sites_of_one_line_are_one_row() -> None:
    sites = [site(module=name, bytes=10 * (i + 1)) for i, name in enumerate("abcde")]
    report = Found(*sites, site(line=2, bytes=500, module="z", hint=""), site(allowed=True, line=3))
    text = str(report)
    lines = text.splitlines()
    assert "finder: 12 findings at 2 lines" in lines[0]
    assert lines[2].split()[:2] == ["lost", "2x"] and "500 B" in lines[2]
    assert "10x" in text and "150 B" in text and "e, d, c and 2 more" in text
    assert text.count("-> write <less>") == 1 and "note: seen <half>" in text
    assert "SPDX" in text  # the line of code


def test_json_and_html() -> None:
    report = Found(site(), site(status="other", op="<b>"))
    value = json.loads(report.to_json())
    assert value["title"] == "finder" and value["notes"] == ["seen <half>"] and len(value["sites"]) == 2
    assert value["sites"][0]["cost"] == 10 and value["sites"][0]["shapes"] == [[1, 2]]
    html = report._repr_html_()
    assert "&lt;b&gt;" in html and "write &lt;less&gt;" in html and "seen &lt;half&gt;" in html
    assert "<table>" not in Found()._repr_html_() and "nothing found" in str(Found())


def test_the_model_itself_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is empty, which is no reason to look for it again at each of its operators."""
    model = nn.Sequential(nn.ReLU())
    locator = Locator(model)
    monkeypatch.setattr(locator, "_name_all", lambda *args: pytest.fail("the model was named again"))
    assert locator.module_name(model, None) == ""


def test_parameters_and_modules_are_named_by_the_model_and_kept_by_nobody() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    locator = Locator(model)
    assert locator.parameter_name(model[1][0].weight) == "1.0.weight"
    assert locator.parameter_name(torch.ones(2)) == ""
    name = locator.parameter_name
    weight = model[0].weight.detach().clone()
    del model
    assert name(weight) == ""


def test_models_that_follow_each_other_share_a_name() -> None:
    """A loss module made in every step is the same finding in every step."""
    locator = Locator()
    names = [locator.module_name(nn.MSELoss(), None) for _ in range(5)]
    kept = [nn.MSELoss() for _ in range(3)]
    assert names == ["MSELoss"] * 5
    assert [locator.module_name(m, None) for m in kept] == ["MSELoss", "MSELoss#2", "MSELoss#3"]
    del kept[1]
    assert locator.module_name(nn.MSELoss(), None) == "MSELoss#2"


def test_bars_are_folded_but_marked_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opswap.finding import plot

    bars = [Bar(f"m{i}", {"kept": i + 1.0}, "lost" if i == 0 else "") for i in range(MOST_BARS + 10)]
    shown = plot._folded(bars)
    assert len(shown) == MOST_BARS and shown[0].label == "m0" and shown[-1].label == "(11 smaller ones)"
    assert sum(b.total() for b in shown) == sum(b.total() for b in bars)
    draw_bars(tmp_path / "x", bars, {"kept": "gray"}, title="t", unit="MB")
    draw_bars(tmp_path / "none", [], {"kept": "gray"}, title="t", unit="MB")
    assert (tmp_path / "x").read_bytes().startswith(b"\x89PNG")


def test_marks_and_parts_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figures = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda canvas, path: figures.append(canvas.figure))
    bars = [Bar("first", {"kept": 2.0, "lost": 1.0}, "lost: net.py:3"), Bar("second", {"kept": 4.0})]
    draw_bars(tmp_path / "x", bars, {"kept": "gray", "lost": "red"}, title="a title", unit="MB")
    (axes,) = figures[0].axes
    assert [t.get_text() for t in axes.texts] == ["lost: net.py:3"] and axes.texts[0].get_position()[1] == 0
    assert [t.get_text() for t in axes.get_yticklabels()] == ["first", "second"]
    assert [(p.get_x(), p.get_width()) for p in axes.patches] == [(0, 2), (0, 4), (2, 1), (4, 0)]
    assert (axes.get_title("left"), axes.get_xlabel()) == ("a title", "MB")
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["kept", "lost"]


@pytest.mark.parametrize(
    ("text", "size", "dtype"),
    [
        ("32x3x8x8", (32, 3, 8, 8), torch.float32),
        ("4:int64", (4,), torch.int64),
        ("0x2:float16", (0, 2), torch.half),
    ],
)
def test_input_sizes(text: str, size: tuple[int, ...], dtype: torch.dtype) -> None:
    made = InputSize.parse(text).make()
    assert tuple(made.shape) == size and made.dtype is dtype


@pytest.mark.parametrize("text", ["", "x", "3x", "1x-2", "1x2:nn", "1x2:float", "1,2", "²"])
def test_bad_input_sizes(text: str) -> None:
    if text == "1x2:float":  # torch.float is a dtype
        assert InputSize.parse(text).dtype is torch.float32
        return
    with pytest.raises(argparse.ArgumentTypeError, match="32x3x224x224"):
        InputSize.parse(text)


def test_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("odd:name").touch()
    assert parse_target(["train.py", "--rate", "1"], None) == Target("script", "train.py", ("--rate", "1"))
    assert parse_target(["-m", "a.b", "x"], None) == Target("module", "a.b", ("x",))
    assert parse_target(["a.b:c"], [InputSize((1,))]) == Target("factory", "a.b:c")
    assert parse_target(["odd:name"], None).kind == "script"
    with pytest.raises(UsageError, match=r"'other\.py'"):
        parse_target(["other.py"], None)


def test_finish_runs_once_whatever_happens(capsys: pytest.CaptureFixture[str]) -> None:
    def ending(error: BaseException | None) -> int:
        done = []

        def run() -> None:
            if error is not None:
                raise error

        status = run_script(run, lambda: done.append(1))
        assert done == [1]
        return status

    cases = [(None, 0), (StepsDone(), 0), (SystemExit(), 0), (SystemExit(4), 4), (SystemExit("why"), 1)]
    cases += [(KeyboardInterrupt(), 130), (ValueError("x"), 1), (GeneratorExit(), 1)]
    assert [ending(error) for error, _ in cases] == [status for _, status in cases]
    assert "why" in capsys.readouterr().err


def test_steps_are_counted_and_the_hook_is_removed() -> None:
    from torch.optim import optimizer

    parameter = nn.Parameter(torch.ones(2))
    sgd = torch.optim.SGD([parameter], lr=0.1)
    hooks = dict(optimizer._global_optimizer_post_hooks)
    with pytest.raises(StepsDone), stop_after(2):
        for _ in range(5):
            parameter.sum().backward()
            sgd.step()
    assert parameter.grad.sum() == 4 and dict(optimizer._global_optimizer_post_hooks) == hooks
    with stop_after(None) as operator_ran, contextlib.nullcontext():
        operator_ran(True)
        operator_ran(False)
