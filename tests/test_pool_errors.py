# SPDX-License-Identifier: MIT
"""What torch refuses, the pools refuse with the same kind of error, with the values, and write nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as T

from opswap import functional as F
from step import assert_same_error

IMAGES, VOLUMES, ROWS = torch.ones(2, 4, 6, 6), torch.ones(2, 4, 4, 6, 6), torch.ones(2, 4, 6)

# input, arguments, text that quotes a value
WINDOWS = [
    (IMAGES, (0,), "(0, 0)"),
    (IMAGES, (-1,), "(-1, -1)"),
    (IMAGES, ((2, 0),), "(2, 0)"),
    (IMAGES, (2, 0), "(0, 0)"),
    (IMAGES, (2, (1, -3)), "(1, -3)"),
    (IMAGES, (2, 2, 2), "(2, 2)"),
    (IMAGES, (2, 2, -1), "(-1, -1)"),
    (IMAGES, (7,), "(0, 0)"),
    (IMAGES, ((1, 2, 3),), "(1, 2, 3)"),
    (IMAGES, ((),), "()"),
    (IMAGES, (2, (1, 2, 3)), "(1, 2, 3)"),
    (IMAGES, (2, None, ()), "()"),
    (IMAGES, (2.5,), "2.5"),
    (IMAGES, ("a",), "'a'"),
    (IMAGES, (None,), "None"),
    (IMAGES, (True,), "True"),
    (VOLUMES, (2,), "(2, 4, 4, 6, 6)"),
    (IMAGES[:, :0], (2,), "(2, 0, 6, 6)"),
    (IMAGES[:, :, :0], (2,), "(2, 4, 0, 6)"),
    (IMAGES[..., :0], (2,), "(2, 4, 6, 0)"),
    (IMAGES[:0, ..., :0], (2,), "(0, 4, 6, 0)"),
    (5, (2,), "int"),
    (None, (2,), "NoneType"),
]
VOLUME_WINDOWS = [
    (VOLUMES, (0,), "(0, 0, 0)"),
    (VOLUMES, ((1, 2),), "(1, 2)"),
    (VOLUMES, (2, 0), "(0, 0, 0)"),
    (VOLUMES, (2, 2, 2), "(2, 2, 2)"),
    (VOLUMES, (2, 2, -1), "(-1, -1, -1)"),
    (VOLUMES, (7,), "(7, 7, 7)"),
    (VOLUMES, (2.5,), "2.5"),
    (IMAGES, ((1, 3, 3), (2, 1, 2), (1, 0, 0)), "(1, 0, 0)"),
    (IMAGES[0, 0], (2,), "(6, 6)"),
    (VOLUMES[None], (2,), "(1, 2, 4, 4, 6, 6)"),
    (VOLUMES[:, :0], (2,), "(2, 0, 4, 6, 6)"),
    (VOLUMES[:, :, :0], (2,), "(2, 4, 0, 6, 6)"),
    (IMAGES[:0], (2,), "(0, 4, 6, 6)"),
]
MAX_ONLY = [
    (IMAGES, (2, 2, 0, 0), "(0, 0)"),
    (IMAGES, (2, 2, 0, -1), "(-1, -1)"),
    (IMAGES, (3, 1, 2, 1), "(2, 2)"),
    (IMAGES, (3, None, 2, 2), "(2, 2)"),
    (IMAGES, (3, 1, 1, 5), "(-2, -2)"),
    (IMAGES, (2, None, 0, (1, 1, 1)), "(1, 1, 1)"),
    (IMAGES, (2, None, 0, 1, 2), "2"),
    (IMAGES[0, 0], (2,), "(6, 6)"),
    (IMAGES.bool(), (2,), "torch.bool"),
    (IMAGES.cfloat(), (2,), "torch.complex64"),
]
AVG_ONLY = [
    (IMAGES, (2, None, 0, False, True, 0), "0"),
    (IMAGES, (2, None, 0, False, True, 2.5), "2.5"),
    (IMAGES, (2, None, 0, False, 1), "1"),
    (IMAGES.int(), (2,), "torch.int32"),
    (IMAGES.bool(), (2,), "torch.bool"),
]
ADAPTIVE = [
    (IMAGES, (-1,), "(-1, -1)"),
    (IMAGES, ((1, 2, 3),), "(1, 2, 3)"),
    (IMAGES, ((2,),), "(2,)"),
    (IMAGES, (None,), "None"),
    (IMAGES, (2.5,), "2.5"),
    (IMAGES[0, 0], (2,), "(6, 6)"),
    (VOLUMES, (2,), "(2, 4, 4, 6, 6)"),
    (IMAGES[:, :0], (2,), "(2, 0, 6, 6)"),
    (IMAGES[:, :, :0], (2,), "(2, 4, 0, 6)"),
    (IMAGES.int(), (2,), "torch.int32"),
    (IMAGES.long(), (2,), "torch.int64"),
]
ADAPTIVE_ROWS = [
    (ROWS, (-1,), "-1"),
    (ROWS, ((1, 2),), "(1, 2)"),
    (ROWS, (None,), "None"),
    (ROWS, ((None,),), "None"),
    (ROWS, (2.5,), "2.5"),
    (IMAGES, (2,), "(2, 4, 6, 6)"),
    (ROWS[0, 0], (2,), "(6,)"),
    (ROWS[..., :0], (2,), "(2, 4, 0)"),
    (ROWS.int(), (2,), "torch.int32"),
]
CASES = [
    *[(F.max_pool2d, T.max_pool2d, *case) for case in WINDOWS + MAX_ONLY],
    *[(F.avg_pool2d, T.avg_pool2d, *case) for case in WINDOWS + AVG_ONLY],
    *[(F.max_pool3d, T.max_pool3d, *case) for case in VOLUME_WINDOWS],
    *[(F.avg_pool3d, T.avg_pool3d, *case) for case in VOLUME_WINDOWS],
    (F.avg_pool3d, T.avg_pool3d, torch.ones(1, 1, 2, 2, 2), (3, 1, 1), "(1, 1, 2, 2, 2)"),
    *[(F.adaptive_max_pool2d, T.adaptive_max_pool2d, *case) for case in ADAPTIVE],
    (F.adaptive_max_pool3d, T.adaptive_max_pool3d, VOLUMES, (-1,), "(-1, -1, -1)"),
    (F.adaptive_max_pool3d, T.adaptive_max_pool3d, IMAGES[0, 0], (2,), "(6, 6)"),
    *[(F.adaptive_max_pool1d, T.adaptive_max_pool1d, *case) for case in ADAPTIVE_ROWS],
]


@pytest.mark.parametrize("ours,theirs,input,arguments,text", CASES)
def test_errors_are_torchs(ours: Any, theirs: Any, input: Any, arguments: Any, text: str) -> None:
    error = assert_same_error(lambda: ours(input, *arguments), lambda: theirs(input, *arguments), 0)
    assert text in str(error)


def test_what_torch_takes_is_taken() -> None:
    """Arguments that look wrong and are not."""
    for arguments in (
        ((2,),),
        (2, ()),
        (torch.tensor(2),),
        ([2, 2], [2, 1], [1, 0]),
        (5, 2, 2, 2),
        (3, 1, 1, 3),
    ):
        assert torch.equal(F.max_pool2d(IMAGES, *arguments), T.max_pool2d(IMAGES, *arguments))
    assert F.max_pool2d(IMAGES[:0], 2).shape == (0, 4, 3, 3)
    assert F.max_pool3d(VOLUMES[:0], 2).shape == (0, 4, 2, 3, 3)
    assert F.avg_pool3d(VOLUMES[:0], 2).shape == (0, 4, 2, 3, 3)


@pytest.mark.parametrize(
    "arguments,kind",
    [
        ((IMAGES[0],), RuntimeError),
        ((VOLUMES,), RuntimeError),
        ((3,), TypeError),
        ((IMAGES[:, :, :0],), RuntimeError),
    ],
)
def test_global_pool_refuses_other_inputs(arguments: tuple[Any, ...], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        F.global_max_pool2d(*arguments)


def test_global_pool_refuses_other_rules() -> None:
    with pytest.raises(ValueError, match="'last'"):
        F.global_max_pool2d(IMAGES, ties="last")
    with pytest.raises(IndexError, match=re.escape("(2, 4, 0, 6)")):
        F.global_max_pool2d(IMAGES[:, :, :0], ties="split")
    with pytest.raises(IndexError):
        IMAGES[:, :, :0].amax((2, 3))


def test_operators_check_what_they_are_given() -> None:
    operators = torch.ops.opswap
    geometry = ([2, 2], [2, 2], [0, 0], [1, 1])
    output, offsets = operators.max_pool_with_offsets(IMAGES, *geometry, False, 1)
    with pytest.raises(RuntimeError, match=re.escape("(2, 4, 3, 2)")):
        operators.max_pool_backward(
            output[..., :2], offsets, IMAGES.shape, *geometry, 1, torch.contiguous_format
        )
    for size in ((2, 4, -6, 6), (2**40, 2**40, 6, 6), (2, 4, 6)):
        with pytest.raises(RuntimeError, match=re.escape(str(size))):
            operators.max_pool_backward(output, offsets, size, *geometry, 1, torch.contiguous_format)
    with pytest.raises(RuntimeError):
        operators.max_pool(IMAGES, [9, 9], *geometry[1:], False, 1)
    with pytest.raises(NotImplementedError):
        operators.avg_pool(IMAGES.int(), *geometry[:3], False, True, None, 1)
    output, index = operators.adaptive_max_pool_with_index(IMAGES, [2, 2])
    with pytest.raises(RuntimeError, match=re.escape("(2, 4, 2, 1)")):
        operators.adaptive_max_pool_backward(output[..., :1], index, IMAGES.shape, torch.contiguous_format)
