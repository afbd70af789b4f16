# SPDX-License-Identifier: MIT
"""No argument of a public function ends the process, or gives another result than torch's function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

import opswap.functional as F
from surviving import python

_CALLS = 500


@pytest.mark.parametrize("seed", range(2))
def test_random_calls(seed: int, tmp_path: Path) -> None:
    """A failure shows the seed and the call; hostile_calls.py repeats it."""
    script = Path(__file__).with_name("hostile_calls.py")
    try:
        assert python(script, str(seed), str(_CALLS), cwd=tmp_path, timeout=400) == f"{_CALLS} calls\n"
    finally:
        print((tmp_path / f"{seed}.log").read_text())


X = torch.ones(2, 4, 6, 6)
BAD: list[tuple[Callable[[], Any], type[Exception]]] = [
    (lambda: F.max_pool2d(X, 2**63), ValueError),
    (lambda: F.max_pool2d(X, (2, 2**100)), ValueError),
    (lambda: F.avg_pool2d(X, 2, -(2**64)), ValueError),
    (lambda: F.adaptive_max_pool2d(X, 2**63), ValueError),
    (lambda: F.max_pool3d(X, 2, padding=2**70), ValueError),
    (lambda: F.adaptive_max_pool2d(X[0, 0], (2, 2)), ValueError),
    (lambda: F.avg_pool2d(X[0, 0], 2), IndexError),
    (lambda: F.channel_permutation("x", (0,)), TypeError),
    (lambda: F.channel_permutation(None, (0, 1)), TypeError),
    (lambda: F.pointwise_conv2d(object(), X), TypeError),
    (lambda: F.pointwise_conv2d(X, None), TypeError),
    (lambda: F.pointwise_conv2d(X, torch.ones(4, 4, 1, 1), "x"), TypeError),
    (lambda: F.depthwise_conv2d(None, X), TypeError),
    (lambda: F.batch_norm(X.to_sparse(), None, None, training=True), NotImplementedError),
]


@pytest.mark.parametrize(("call", "kind"), BAD)
def test_errors(call: Callable[[], Any], kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind


QUANTIZED = torch.quantize_per_tensor(torch.randn(2, 4, 6, 6), 0.1, 3, torch.quint8)


@pytest.mark.parametrize(
    ("ours", "stock"),
    [
        (lambda x: F.channel_shuffle(x, 2), lambda x: T.channel_shuffle(x, 2)),
        (lambda x: F.cat_channel_shuffle((x,), 2), lambda x: T.channel_shuffle(x, 2)),
        (lambda x: F.cat_channel_shuffle_split((x,), 2)[1], lambda x: T.channel_shuffle(x, 2).chunk(2, 1)[1]),
        (lambda x: F.max_pool2d(x, 2), lambda x: T.max_pool2d(x, 2)),
        (lambda x: F.avg_pool2d(x, 3, 1, 1), lambda x: T.avg_pool2d(x, 3, 1, 1)),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_quantized_tensors(
    ours: Callable[[Tensor], Tensor], stock: Callable[[Tensor], Tensor], last: bool
) -> None:
    x = QUANTIZED.contiguous(memory_format=torch.channels_last) if last else QUANTIZED
    made, expected = ours(x), stock(x)
    assert made.is_quantized and torch.equal(made.int_repr(), expected.int_repr())
