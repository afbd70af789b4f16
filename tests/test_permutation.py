# SPDX-License-Identifier: MIT
"""channel_permutation against indexing: values, gradients, layouts, bad input."""

from __future__ import annotations

import pytest
import torch

from inputs import DTYPES, LAYOUTS, same_bits, values
from opswap import functional as F
from opswap.ops.permutation import reference

ORDER = (3, 0, 4, 1, 2)
SIZES = [(2, 5), (2, 5, 7), (3, 5, 4, 6), (1, 5, 2, 3, 4), (0, 5, 2, 2)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = values(size, dtype)
    assert same_bits(F.channel_permutation(x, ORDER), reference(x, ORDER))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_gradients(layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(3, 5, 4, 6)).detach().requires_grad_()
    twin = x.detach().clone().requires_grad_()
    y, expected = F.channel_permutation(x, list(ORDER)), reference(twin, ORDER)
    assert torch.equal(y, expected)
    grad = LAYOUTS[layout](torch.randn(3, 5, 4, 6))
    y.backward(grad)
    expected.backward(grad)
    assert torch.equal(x.grad, twin.grad)


@pytest.mark.parametrize(
    ("size", "order", "error", "message"),
    [
        ((2, 5), (0, 1, 2, 3, 3), ValueError, "not a permutation"),
        ((2, 5), (1, 2, 3, 4, 5), ValueError, "not a permutation"),
        ((2, 4), ORDER, RuntimeError, r"5 channels expected, got a tensor of size \(2, 4\)"),
        ((5,), ORDER, RuntimeError, r"of size \(5,\)"),
    ],
)
def test_bad_input(
    size: tuple[int, ...], order: tuple[int, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        F.channel_permutation(torch.randn(size), order)


def test_what_a_trace_makes_is_not_kept() -> None:
    order = (3, 0, 4, 1, 5, 2, 6)
    x = torch.randn(2, 7, 3, 3)
    with torch._subclasses.FakeTensorMode():
        F.channel_permutation(torch.empty(2, 7, 3, 3), order)
    assert torch.equal(F.channel_permutation(x, order), x[:, list(order)])
