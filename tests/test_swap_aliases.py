# SPDX-License-Identifier: MIT
"""Code that writes to what a shuffle reads or returns, or that is almost a shuffle."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import opswap
from nearness import assert_model_as_near
from spellings import Wrapped, by_size
from step import assert_equal, outputs_and_gradients
from swapping import images, same


def writes_to_the_source_afterwards(x: Tensor) -> Tensor:
    x = x * 1
    y = by_size(x)
    x.add_(1)
    return y + x


def writes_to_the_result(x: Tensor) -> Tensor:
    x = x * 1
    y = by_size(x)
    y.mul_(3)
    return y + x


def writes_to_an_identity(x: Tensor) -> Tensor:
    """One group: the result is a view of the source."""
    x = x * 1
    y = by_size(x, 1)
    y.add_(1)
    return x * y


def keeps_the_joined(x: Tensor) -> Tensor:
    z = torch.cat((x[:, :6], x[:, 6:] * 2), 1)
    return by_size(z) * z[:, :1]


def joins_one_tensor_twice(x: Tensor) -> Tensor:
    half = x[:, :6]
    return by_size(torch.cat((half, half), 1)) * x


def writes_to_a_half(x: Tensor) -> Tensor:
    y = by_size(x * 1)
    a, b = y[:, :6], y[:, 6:]
    a.mul_(2)
    return torch.cat((b, a), 1) + y


def writes_to_the_joined_parts(x: Tensor) -> Tensor:
    a, b = x[:, :6] * 1, x[:, 6:] * 1
    y = by_size(torch.cat((a, b), 1))
    a.zero_()
    return y + torch.cat((a, b), 1)


def sets_items(x: Tensor) -> Tensor:
    y = by_size(x * 1)
    y[:, 0] = 0
    return y


def shuffles_twice(x: Tensor) -> Tensor:
    return by_size(by_size(x, 3), 3)


def undoes_itself(x: Tensor) -> Tensor:
    return by_size(by_size(x, 3), 4) * 2


def expands(x: Tensor) -> Tensor:
    return by_size(x[:, :1].expand(-1, 12, -1, -1).contiguous()) * x


def shuffles_the_batch(x: Tensor) -> Tensor:
    return by_size(x.transpose(0, 1).reshape(6, 4, 4, 8)).reshape(x.shape)


def mixes_images_of_a_pair(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n // 2, 2, c, h, w).transpose(1, 2).reshape(n, c, h, w)


def adds_to_a_view(x: Tensor) -> Tensor:
    x = x * 1
    half = x[:, :6]
    half += 1
    return by_size(x)


def divides_a_view(x: Tensor) -> Tensor:
    x = x * 1
    half = x[:, :6]
    half /= 3
    return by_size(x)


def raises_between_the_views(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    x = x * 1
    y = x.view(b, 2, c // 2, h, w).transpose(1, 2)
    x **= 2
    return y.reshape(b, c, h, w)


def adds_to_what_another_name_holds(x: Tensor) -> Tensor:
    y = by_size(x * 1)
    kept = y
    y += 1
    return by_size(kept) * y


def adds_numbers_and_tuples(x: Tensor) -> Tensor:
    """Which give new ones: the old stay as they are."""
    batch = x.shape[0]
    more = batch
    more += 1
    parts = x.chunk(2, 1)
    three = parts
    three += (x[:, :2],)
    return by_size(torch.cat(parts, 1))[:batch] * len(three) + torch.cat(three, 1)[:more, :12]


WRITERS = [
    adds_numbers_and_tuples,
    adds_to_a_view,
    adds_to_what_another_name_holds,
    divides_a_view,
    raises_between_the_views,
    writes_to_the_source_afterwards,
    writes_to_the_result,
    writes_to_an_identity,
    keeps_the_joined,
    joins_one_tensor_twice,
    writes_to_a_half,
    writes_to_the_joined_parts,
    sets_items,
    shuffles_twice,
    undoes_itself,
    expands,
    shuffles_the_batch,
    mixes_images_of_a_pair,
]


@pytest.mark.parametrize("body", WRITERS, ids=lambda f: f.__name__)
def test_aliases_and_writes(body: Callable[[Tensor], Tensor]) -> None:
    stock = Wrapped(body)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    for x in (images(), images(4, 12, 5, 3), images().contiguous(memory_format=torch.channels_last)):
        try:
            expected = outputs_and_gradients(stock, x)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                outputs_and_gradients(model, x)
            continue
        if x.is_contiguous():
            assert_equal(outputs_and_gradients(model, x), expected)
        else:  # which stock loses, so that its last convolution rounds otherwise
            assert_model_as_near(
                model, stock, lambda: (images().contiguous(memory_format=torch.channels_last),)
            )
    same(model, stock)
