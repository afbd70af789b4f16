# SPDX-License-Identifier: MIT
"""Texts of sizes and dtypes: a message is captured and stays as it was, a text that decides refuses the forward."""

from __future__ import annotations

import copy
import linecache
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near
from opswap.swap.capture.bytecode import reads
from spellings import Wrapped, texts
from spellings.guards import Only
from step import assert_equal, outputs_and_gradients

Body = Callable[[Tensor], Tensor]
SIZES = ((2, 12, 4, 8), (2, 12, 5, 8), (2, 8, 4, 8), (2, 12, 4), (2, 12, 2, 2, 2), (12, 4))


class Behind(nn.Module):
    """A function of what a module returns, whose sizes no guard can ask for before the forward runs."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.before = nn.ReLU()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.before(x))


def images(*size: int) -> Tensor:
    return torch.randn(size or (2, 12, 4, 8))


def error_of(model: nn.Module, x: Tensor) -> tuple[type, tuple[object, ...]] | None:
    try:
        model(x)
    except Exception as error:
        return type(error), error.args
    return None


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("body", texts.MESSAGES)
def test_a_message_is_as_it_was(body: Body, behind: bool) -> None:
    stock = Behind(body) if behind else Only(body)
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)
    raised = [error_of(stock, torch.ones(size)) for size in SIZES]
    assert [error_of(model, torch.ones(size)) for size in SIZES] == raised
    assert any(raised) and not all(raised)
    opswap.reset_stats()
    x = images()
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
    assert not opswap.stats()["original"]


def test_a_message_about_what_a_module_returns() -> None:
    stock = Wrapped(texts.after_a_module)
    stock.forward = texts.after_a_module.__get__(stock)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    for size in ((2, 12, 4, 8), (2, 12, 1, 8)):
        assert error_of(model, torch.ones(size)) == error_of(stock, torch.ones(size))


@pytest.mark.parametrize("body", texts.DECIDING)
def test_a_text_of_sizes_that_decides_needs_an_example(body: Body) -> None:
    stock = Only(body)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    report = opswap.report(model)
    assert not report.swapped and "a string is built from a size" in report.kept[0].reason, str(report)
    for size in SIZES:
        assert error_of(model, torch.ones(size)) == error_of(stock, torch.ones(size))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("body", [*texts.DECIDING, *texts.BY_TYPE])
def test_a_text_that_decides_is_a_guard(body: Body, behind: bool) -> None:
    """The new forward is for the text of the example, and for no other."""
    stock = Behind(body) if behind else Only(body)
    inputs = images(*SIZES[0])
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True, example_inputs=(inputs,))
    opswap.reset_stats()
    assert_equal(outputs_and_gradients(model, inputs), outputs_and_gradients(stock, inputs))
    assert not opswap.stats()["original"]
    for size in SIZES:
        for dtype in (torch.float32, torch.float64):
            x = torch.arange(math.prod(size), dtype=dtype).reshape(size)
            assert error_of(model, x) == error_of(stock, x)
            if error_of(stock, x) is None:
                assert torch.equal(model(x), stock(x))
    assert opswap.stats()["original"] or body is texts.by_the_device  # there is one alone


@pytest.mark.parametrize("body", texts.BY_TYPE)
def test_the_type_of_the_parameters_is_likely(body: Body) -> None:
    model = opswap.swap(Only(body), exact=True, strict=True)
    x = images(2, 12, 4, 8)
    assert torch.equal(model(x), Only(body)(x))
    assert torch.equal(model(x.double()), Only(body)(x.double()))
    assert not opswap.explain(model, x).kept


@pytest.mark.parametrize("example", [False, True], ids=["", "example"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("body", texts.LEFT)
def test_a_message_that_cannot_be_made_again_is_the_originals(
    body: Body, behind: bool, example: bool
) -> None:
    stock = Behind(body) if behind else Only(body)
    inputs = (images(*SIZES[0]),) if example else None
    model = opswap.swap(copy.deepcopy(stock), exact=True, example_inputs=inputs)
    for size in (*SIZES, (2, 6, 4, 8), (2, 9, 4, 8)):
        assert error_of(model, torch.ones(size)) == error_of(stock, torch.ones(size))


@pytest.mark.parametrize(
    ("expression", "looks"),
    [
        ("'{} and {0!s} {rows:>3} {{}}'.format(x, rows=2)", False),
        ("'{0.shape}'.format(x)", True),
        ("'{0[1]}'.format(x)", True),
        ("'{:{width}}'.format(x, width=3)", True),
        ("'{'.format(x)", True),
        ("text.format(x)", True),
        ("'{}'.format_map(x)", True),
    ],
)
def test_what_a_format_looks_up(expression: str, looks: bool) -> None:
    assert reads(compile(expression, "text", "eval")).dynamic == looks


@pytest.mark.parametrize("act", [None, nn.ReLU6(inplace=True), nn.Hardswish(), nn.Identity(), nn.SiLU()])
def test_batch_norms_of_libraries(act: nn.Module | None) -> None:
    norms = [texts.BatchNormAct(8, act), texts.BatchNormAct(8, copy.deepcopy(act))]
    stock = nn.Sequential(nn.Conv2d(3, 8, 3), norms[0], nn.Conv2d(8, 8, 3), norms[1])
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    found = {s.path for s in opswap.report(model).swapped if s.rule.startswith("batch_norm")}
    assert found == {"1", "3"}
    for training in (True, False):
        for m in (model, stock):
            m.train(training)
        assert_model_as_near(model, stock, lambda: (torch.randn(4, 3, 9, 9),))
    with pytest.raises(AssertionError, match=r"^expected 4D input \(got 3D input\)$"):
        model[1](torch.ones(8, 4, 4))


def test_momentum_of_none_counts_batches() -> None:
    stock = nn.Sequential(texts.BatchNormAct(8))
    stock[0].momentum = None
    model = opswap.swap(copy.deepcopy(stock))
    for _ in range(3):
        x = torch.randn(4, 8, 5, 5)
        model(x), stock(x)
    torch.testing.assert_close(dict(model.named_buffers()), dict(stock.named_buffers()))


def test_a_source_that_has_changed_is_not_believed(tmp_path: Path) -> None:
    text = """def forward(x):
    {}
    b, c, h, w = x.shape
    return x.view(b, 3, c // 3, h, w).transpose(1, 2).reshape(b, c, h, w)
"""
    checking = text.format("_assert(x.dim() == 4, f'{x.shape[2]}')")
    deciding = text.format("_assert(f'{x.shape[2]}' == '4', 'text')")
    file = tmp_path / "changed_source.py"
    for running, on_disk, found in (
        (checking, checking, True),
        (checking.replace("dim() == 4", "dim() != 3"), checking, False),
        (checking.replace("dim() == 4", "dim() > 3"), "", False),
        (deciding, checking, False),
        (deciding, deciding, False),
    ):
        scope: dict[str, object] = {"_assert": torch._assert}
        exec(compile(running, str(file), "exec"), scope)
        file.write_text(on_disk)
        linecache.clearcache()
        assert bool(opswap.scan(Only(scope["forward"])).swapped) is found


def test_a_name_that_stands_for_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(condition: object, text: str) -> None:
        assert "4" in text

    monkeypatch.setattr(texts, "_assert", strict)
    stock = Only(texts.imported_assert)
    model = opswap.swap(copy.deepcopy(stock))
    for size in SIZES:
        assert error_of(model, torch.ones(size)) == error_of(stock, torch.ones(size))


def test_compiled_and_exported() -> None:
    model = opswap.swap(Only(texts.torch_assert), exact=True, strict=True)
    x = images()
    expected = Only(texts.torch_assert)(x)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), expected)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)
    assert torch.equal(copy.deepcopy(model)(x), expected)
