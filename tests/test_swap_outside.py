# SPDX-License-Identifier: MIT
"""A capture believes no value from outside: what it takes for granted is watched, or the forward is left alone."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import opswap
from harmless import HARMLESS
from outside_later import CASES, WATCHED, Case
from step import assert_equal
from swapping import images, same

# Their answers differ from call to call, or cannot be watched.
REFUSED = ("random", "clock", "counter")
ALL = [c for cases in CASES.values() for c in cases]
STILL = [c for kind, cases in CASES.items() if kind not in REFUSED for c in cases]


@pytest.fixture(autouse=True)
def torch_state() -> Iterator[None]:
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = benchmark


def run(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(0)
    try:
        return [model(x)]
    except Exception as error:
        return [torch.tensor([float(len(str(type(error))))])]


@pytest.mark.parametrize("case", [c for k in REFUSED for c in CASES[k]], ids=lambda c: c.name)
def test_answers_that_differ_from_call_to_call(case: Case) -> None:
    stock = case.make()
    model = case.make()
    report = opswap.report(opswap.swap(model, exact=True))
    assert not [s for s in report.swapped if s.path == ""], model.opswap_code
    assert report.kept and report.kept[0].reason
    assert re.search(r"\.py:\d+$", report.kept[0].source) or re.search(r"\.py:\d+", report.kept[0].reason)
    del stock


@pytest.mark.parametrize("case", STILL, ids=lambda c: c.name)
def test_values_that_change(case: Case) -> None:
    stock = case.make().train(False)
    state = copy.deepcopy(stock.state_dict())
    models = []
    for options in ({"exact": True}, {}):
        model = case.make().train(False)
        model.load_state_dict(state)
        models.append(opswap.swap(model, **options))
    x = images()
    for training in (False, True):
        expected = run(stock.train(training), x)
        for model in models:
            assert_equal(run(model.train(training), x), expected)
    for model in (stock, *models):
        if case.change is not None:
            case.change(model)
    if case.name.startswith("torch") and torch.get_default_dtype() is torch.float64:
        x = x.float()
    for training in (True, False):
        expected = run(stock.train(training), x)
        for model in models:
            assert_equal(run(model.train(training), x), expected)


@pytest.mark.parametrize("case", [c for k in WATCHED for c in CASES[k]], ids=lambda c: c.name)
def test_values_that_are_watched(case: Case) -> None:
    report = opswap.report(opswap.swap(case.make(), exact=True, strict=True))
    assert any("shuffle" in s.rule for s in report.swapped), str(report)


class Reads(nn.Module):
    """Has what the harmless forwards read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.more = nn.ModuleList(nn.Conv2d(12, 12, 1) for _ in range(2))
        self.register_buffer("scale", torch.tensor(2.0))
        self.plain = torch.tensor(3.0)
        self.kind = "A"


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_forwards(name: str) -> None:
    body = HARMLESS[name]

    class Made(Reads):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return body(self, x)

    stock = Made()
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)
    assert any("shuffle" in s.rule for s in opswap.report(model).swapped)
    for training in (True, False):
        opswap.reset_stats()
        x = images()
        same(model.train(training), stock.train(training), x)
        assert not opswap.stats()["original"]


SCRIPT = """
import opswap
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)

print(len(opswap.report(opswap.swap(Net())).swapped))
"""


@pytest.mark.parametrize("how", ["-", "-c"])
def test_code_without_a_file(how: str) -> None:
    arguments, text = (["-"], SCRIPT) if how == "-" else (["-c", SCRIPT], None)
    run = subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1"]
