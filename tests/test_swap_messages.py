# SPDX-License-Identifier: MIT
"""Forwards that warn or write to a log say the same, from the same place, when they are rewritten."""

from __future__ import annotations

import copy
import logging
import pickle
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import opswap
from replay_cases import LAST
from spellings import messages
from spellings.guards import Only
from threads import meanwhile

Body = Callable[[Tensor], Tensor]
SIZES = ((2, 4, 4, 8), (2, 4, 8, 4), (1, 4, 2, 2), (2, 6, 4, 8), (2, 4, 4))
every = pytest.mark.parametrize("body", [*messages.WARNINGS, *messages.LOGS])


class Kept(logging.Handler):
    """What was written to all logs but opswap's."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[object, ...]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "opswap":  # says which forward runs
            return
        place = record.pathname, record.lineno, record.funcName
        self.lines.append((record.name, record.levelno, record.getMessage(), record.args, *place))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, root = Kept(), logging.getLogger()
    loud = [messages.log, messages.own_log, messages.unknown_log]
    for log in (root, *loud):
        log.addHandler(handler) if log is not messages.log else None
        log.setLevel(logging.DEBUG)
    yield handler
    for log in (root, *loud):
        log.removeHandler(handler)
    root.setLevel(logging.WARNING)
    messages.log.setLevel(logging.NOTSET)


def said(model: nn.Module, kept: Kept, sizes: tuple[tuple[int, ...], ...] = SIZES) -> list[object]:
    """What calls with these sizes warn of, write, and raise."""
    found: list[object] = []
    for size in sizes:
        kept.lines.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model(torch.ones(size))
            except Exception as error:
                found.append((type(error), error.args))
        found += [(str(w.message), w.category, w.filename, w.lineno) for w in caught]
        found += kept.lines
    return found


def swapped(body: Body) -> tuple[nn.Module, nn.Module]:
    stock = Only(body)
    return stock, opswap.swap(copy.deepcopy(stock), exact=True, strict=True)


@every
def test_it_says_the_same(body: Body, kept: Kept) -> None:
    stock, model = swapped(body)
    assert not kept.lines
    wanted = said(stock, kept)
    assert said(model, kept) == wanted
    opswap.reset_stats()
    said(model, kept, SIZES[:3])
    assert not opswap.stats()["original"]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert said(other, kept) == wanted
    x = torch.randn(SIZES[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(model(x), stock(x))


@every
def test_a_swap_says_nothing(body: Body, kept: Kept) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opswap.scan(Only(body))
        opswap.swap(Only(body))
    assert not caught and not kept.lines


@pytest.mark.parametrize("body", messages.LEFT)
def test_what_is_not_captured_says_the_same_too(
    body: Body, kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    stock = Only(body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert not opswap.report(model).swapped
    capsys.readouterr()
    wanted = said(stock, kept), capsys.readouterr()
    assert (said(model, kept), capsys.readouterr()) == wanted


class Deprecated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("the line of the caller", stacklevel=2)
        return messages.shuffled(x)


def test_a_line_of_torch_is_left(kept: Kept) -> None:
    stock = Deprecated()
    model = opswap.swap(copy.deepcopy(stock))
    assert "warnings.warn() is called" in opswap.report(model).kept[0].reason
    assert said(model, kept) == said(stock, kept)


@pytest.mark.parametrize("body", messages.WARNINGS)
def test_filters(body: Body) -> None:
    """Once for each place, and as errors."""
    stock, model = swapped(body)
    for action in ("default", "once", "ignore", "error"):
        found = []
        for m in (stock, model):
            vars(messages).pop("__warningregistry__", None)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter(action)  # type: ignore[arg-type]
                errors = []
                for _ in range(3):
                    try:
                        m(torch.ones(2, 4, 8, 8))
                    except Warning as error:
                        errors.append((type(error), str(error)))
            found.append(([(str(w.message), w.lineno) for w in caught], errors))
        assert found[0] == found[1], action
    vars(messages).pop("__warningregistry__", None)


def test_levels(kept: Kept) -> None:
    stock, model = swapped(messages.logs_sizes)
    for level in (logging.INFO, logging.WARNING, logging.CRITICAL):
        messages.log.setLevel(level)
        assert said(model, kept) == said(stock, kept)
    logging.disable(logging.INFO)
    try:
        messages.log.setLevel(logging.DEBUG)
        assert said(model, kept) == said(stock, kept)
    finally:
        logging.disable(logging.NOTSET)


def test_another_log(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    stock, model = swapped(messages.logs)
    monkeypatch.setattr(messages, "log", logging.getLogger("spellings.another"))
    opswap.reset_stats()
    assert said(model, kept, SIZES[:1]) == said(stock, kept, SIZES[:1])
    assert opswap.stats()["original"]


def test_a_function_of_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it stands in for warnings.warn, the original forward runs."""
    stock, model = swapped(messages.warns)
    texts: list[str] = []
    monkeypatch.setattr(warnings, "warn", texts.append)
    for m in (stock, model):
        m(torch.ones(2, 4, 4, 4))
    assert texts == ["slow", "slow"]


class Norms(nn.Module):
    def __init__(self, before: bool = False) -> None:
        super().__init__()
        self.before = before
        self.norm, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        messages.log.warning("between %s", x.shape)
        if self.before:
            warnings.warn(f"between {x.shape}", stacklevel=1)
        x = torch.relu(x)
        warnings.warn(f"between {x.shape}", stacklevel=1)
        return torch.relu(self.norm2(x))


@pytest.mark.parametrize("before", [False, True], ids=["", "in front of the activation"])
@pytest.mark.usefixtures("every_rule_applies")
def test_statistics_move_before_and_after(before: bool, kept: Kept) -> None:
    stock = Norms(before)
    model = opswap.swap(copy.deepcopy(stock), memory_format=LAST)
    x = torch.randn(4, 16, 8, 8)
    for m in (stock, model):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="between"):
                m(x)
    torch.testing.assert_close(model.state_dict(), stock.state_dict())
    assert model.norm.num_batches_tracked == 1 and model.norm2.num_batches_tracked == 0


@torch.no_grad()
def test_in_evaluation_each_call_says_it(kept: Kept) -> None:
    """Recorded calls hold calls on tensors alone."""
    stock = Norms().eval()
    model = opswap.swap(copy.deepcopy(stock), memory_format=LAST)
    for m in (model, opswap.freeze(model)):
        assert said(m, kept, ((4, 16, 8, 8),) * 6) == said(stock, kept, ((4, 16, 8, 8),) * 6)


class Warns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn(f"before {x.shape}", stacklevel=1)
        return torch.relu(self.norm(x))


@torch.no_grad()
@pytest.mark.usefixtures("every_rule_applies")
def test_in_evaluation_each_call_warns(kept: Kept) -> None:
    stock = Warns().eval()
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    assert said(model, kept, ((4, 16, 8, 8),) * 6) == said(stock, kept, ((4, 16, 8, 8),) * 6)


def test_other_threads_go_on_meanwhile(kept: Kept) -> None:
    written = [0]

    def write() -> None:
        logging.getLogger("spellings.thread").warning("from a thread")
        written[0] += 1
        warnings.warn("from a thread", UserWarning, 1)
        warnings.warn("from a thread", stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with meanwhile(write):
            for _ in range(20):
                swapped(messages.logs)
                swapped(messages.warns)
    lines = [line for line in kept.lines if line[0] == "spellings.thread"]
    assert len(lines) == written[0] > 0
    assert {line[4:] for line in lines} == {(__file__, write.__code__.co_firstlineno + 1, "write")}
    assert len(caught) == 2 * written[0]
    assert {(w.filename, w.lineno - write.__code__.co_firstlineno) for w in caught} == {
        (__file__, 3),
        (__file__, 4),
    }
    assert warnings.warn.__module__ == "_warnings" and logging.Logger.debug.__module__ == "logging"


@pytest.mark.once
def test_compiled(kept: Kept) -> None:
    stock, model = swapped(messages.logs_sizes)
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(2, 4, 4, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), stock(x))
