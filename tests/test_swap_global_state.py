# SPDX-License-Identifier: MIT
"""Forwards that depend on the state of whole libraries: it is watched, or the forward is left alone."""

from __future__ import annotations

import decimal
import gc
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import opswap
from outside import net
from step import assert_equal
from swapping import images

VALUE = np.array([1.23456789])
ZERO = np.array([0.0])
ONE, THREE = decimal.Decimal(1), decimal.Decimal(3)
CALLS: list[int] = []


def raises(body: Callable[[], Any], error: type[BaseException]) -> int:
    try:
        body()
    except error:
        return 3
    return 2


def deep(n: int) -> int:
    return 0 if n == 0 else deep(n - 1)


def divides(_: Any) -> int:
    np.float64(1) / np.float64(0)
    return 2 + len(CALLS)


def note(*_: Any) -> None:
    CALLS[:] = [1]


def context(**options: Any) -> Callable[[], None]:
    def change() -> None:
        for name, value in options.items():
            setattr(decimal.getcontext(), name, value)

    return change


# Name, what gives the number of groups, the change.
CASES: list[tuple[str, Callable[[Any], Any], Callable[[], Any]]] = [
    ("division", lambda s: raises(lambda: ZERO / ZERO, FloatingPointError), lambda: np.seterr(all="raise")),
    ("geterr", lambda s: 2 if np.geterr()["over"] == "warn" else 3, lambda: np.seterr(over="raise")),
    ("errcall", divides, lambda: (np.seterrcall(note), np.seterr(all="call"))),
    ("array text", lambda s: 2 + (len(repr(VALUE)) < 16), lambda: np.set_printoptions(precision=1)),
    ("scalar text", lambda s: 2 + (len(repr(np.float64(1.5))) < 6), lambda: np.set_printoptions(legacy="1.13")),
    ("getbufsize", lambda s: 2 + (np.getbufsize() > 9999), lambda: np.setbufsize(16384)),
    ("prec", lambda s: 2 if decimal.getcontext().prec == 28 else 3, context(prec=2)),
    ("quotient", lambda s: 2 if len(str(ONE / THREE)) > 9 else 3, context(prec=2)),
    ("attribute", lambda s: 2 if len(str(s.d / 3)) > 9 else 3, context(prec=2)),
    ("rounding", lambda s: int((ONE * 5 / 2).to_integral_value()), context(rounding="ROUND_UP")),
    ("capitals", lambda s: 2 + (str(ONE.scaleb(30))[1] == "e"), context(capitals=0)),
    ("options", lambda s: 2 + (torch._tensor_str.PRINT_OPTS.precision < 4), lambda: torch.set_printoptions(1)),
    ("tensor text", lambda s: 2 + (len(str(s.conv.bias)) < 150), lambda: torch.set_printoptions(1)),
    ("size text", lambda s: 2 + (len(str(s.conv.bias.shape)) < 9), lambda: torch.set_printoptions(1)),
    ("gradient mode", lambda s: 2 + torch.is_grad_enabled(), lambda: torch.set_grad_enabled(False)),
    ("threads", lambda s: 2 + (torch.get_num_threads() == 2), lambda: torch.set_num_threads(2)),
    ("dtype", lambda s: torch.finfo().bits // 16, lambda: torch.set_default_dtype(torch.float64)),
    ("device", lambda s: len(torch.get_default_device().type) - 1, lambda: torch.set_default_device("meta")),
    ("autocast", lambda s: 2 + torch.is_autocast_enabled("cpu"), lambda: torch.set_autocast_enabled("cpu", True)),
    (
        "precision",
        lambda s: len(torch.get_float32_matmul_precision()) // 3,
        lambda: torch.set_float32_matmul_precision("high"),
    ),
    ("filters", lambda s: 2 + (warnings.filters[0][0] == "error"), lambda: warnings.simplefilter("error")),
    (
        "warning",
        lambda s: raises(lambda: warnings.warn("x", stacklevel=1), UserWarning),
        lambda: warnings.simplefilter("error"),
    ),
    ("recursion limit", lambda s: 2 + (sys.getrecursionlimit() > 5000), lambda: sys.setrecursionlimit(6000)),
    ("recursion", lambda s: raises(lambda: deep(1500), RecursionError), lambda: sys.setrecursionlimit(4000)),
    ("digits", lambda s: raises(lambda: str(10**2000), ValueError), lambda: sys.set_int_max_str_digits(900)),
    ("switches", lambda s: 2 + (sys.getswitchinterval() > 1), lambda: sys.setswitchinterval(2)),
    ("collector", lambda s: 2 + gc.isenabled(), gc.disable),
]  # fmt: skip


@pytest.fixture(autouse=True)
def restored() -> Any:
    """Each of them as it was."""
    threads, limit, precision = (
        torch.get_num_threads(),
        sys.getrecursionlimit(),
        torch.get_float32_matmul_precision(),
    )
    digits = sys.get_int_max_str_digits()
    errors, call, size, shown = np.geterr(), np.geterrcall(), np.getbufsize(), np.get_printoptions()
    interval = sys.getswitchinterval()
    with warnings.catch_warnings(), decimal.localcontext():
        warnings.simplefilter("ignore")
        yield
    np.seterr(**errors)
    np.seterrcall(call)
    np.setbufsize(size)
    np.set_printoptions(**shown)
    CALLS.clear()
    torch.set_printoptions(profile="default")
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_autocast_enabled("cpu", False)
    torch.set_float32_matmul_precision(precision)
    sys.setrecursionlimit(limit)
    sys.set_int_max_str_digits(digits)
    sys.setswitchinterval(interval)
    gc.enable()


def outcome(model: torch.nn.Module, x: torch.Tensor) -> list[Any]:
    try:
        return [model(x)]
    except Exception as error:
        return [torch.tensor(float(len(type(error).__name__)), device="cpu")]


@pytest.mark.parametrize(("name", "body", "change"), CASES, ids=[c[0] for c in CASES])
def test_a_change_of_state(name: str, body: Any, change: Any) -> None:
    stock, model = (net(body, d=lambda: decimal.Decimal(1))() for _ in range(2))
    model.load_state_dict(stock.state_dict())
    opswap.swap(model, exact=True)
    x = images()
    assert_equal(outcome(model, x), outcome(stock, x))
    change()
    found, wanted = outcome(model, x), outcome(stock, x)
    if wanted[0].device.type == "meta":
        assert found[0].device == wanted[0].device and found[0].shape == wanted[0].shape
    else:
        assert_equal(found, wanted)


@pytest.mark.parametrize("name", ["errcall", "scalar text", "quotient", "attribute", "options"])
def test_state_that_is_watched(name: str) -> None:
    """Where nothing changes the rewrite runs."""
    body = next(b for n, b, _ in CASES if n == name)
    model = opswap.swap(net(body, d=lambda: decimal.Decimal(1))(), exact=True, strict=True)
    opswap.reset_stats()
    model(images())
    assert not opswap.stats()["original"] and opswap.report(model).swapped


def test_the_reason_names_the_library() -> None:
    model = opswap.swap(net(next(b for n, b, _ in CASES if n == "quotient"))(), exact=True, strict=True)
    decimal.getcontext().prec = 2
    assert "decimal_context() is" in str(opswap.explain(model, images()))


def test_queries_can_be_pickled() -> None:
    from opswap.swap.runtime.global_state import decimal_context, numpy_options

    for query in (decimal_context, numpy_options):
        answer = pickle.loads(pickle.dumps((query, query())))
        assert answer[0] is query and answer[1] == query()
