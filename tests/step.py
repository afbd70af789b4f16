# SPDX-License-Identifier: MIT
"""One training step as a list of tensors, for comparing two models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap


def outputs_and_gradients(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    """The output, the input's gradient and every parameter's gradient of one step."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    (y * weight).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def assert_equal(ours: list[Tensor | None], theirs: list[Tensor | None]) -> None:
    assert len(ours) == len(theirs)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert (a is None) == (b is None), f"tensor {i} is missing"
        if a is None or b is None:
            continue
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b), f"tensor {i} differs"


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the kind and the text of its error."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def assert_same_error(
    ours: Callable[[], Any], stock: Callable[[], Any], text: int | None = None
) -> BaseException:
    """Both calls raise errors of one type whose first `text` characters are equal, all if None; returns ours."""
    with pytest.raises(Exception) as wanted:
        stock()
    with pytest.raises(wanted.type) as found:
        ours()
    assert found.type is wanted.type and str(found.value)[:text] == str(wanted.value)[:text]
    return found.value


def assert_same_outcome(ours: Callable[[], Any], stock: Callable[[], Any], text: int | None = None) -> None:
    """Both calls return near tensors, or raise the same error as in `assert_same_error`."""
    found, wanted = outcome(ours), outcome(stock)
    if isinstance(wanted, Tensor):
        torch.testing.assert_close(found, wanted)
    else:
        assert found[0] is wanted[0] and found[1][:text] == wanted[1][:text]


def saved_by(call: Callable[[], Any]) -> list[Tensor]:
    """What a call keeps for the backward."""
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        call()
    return kept


def saved_bytes(call: Callable[[], Any]) -> int:
    """Bytes of the memory that a call keeps for the backward."""
    storages = (t.untyped_storage() for t in saved_by(call))
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def assert_near_by_kernels(model: nn.Module, stock: nn.Module, x: Tensor, calls: int) -> None:
    """Outputs and gradients of every parameter, under their own names, by `calls` kernels and no plain code."""
    assert list(model.state_dict()) == list(stock.state_dict())
    opswap.reset_stats()
    ours, theirs = outputs_and_gradients(model, x), outputs_and_gradients(stock, x)
    assert sum(opswap.stats()["kernel"].values()) == calls and not opswap.stats()["reference"]
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, atol=1e-5, rtol=1e-4)
