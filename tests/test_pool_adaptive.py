# SPDX-License-Identifier: MIT
"""Adaptive and global max pools against torch's: values, indices, the two rules for ties."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
import torch.nn.functional as T

import opswap
from inputs import LAYOUTS, same_bits
from opswap import functional as F
from pool_cases import FLOATS, alike, amax, gradient, split, ties
from step import saved_by

OURS = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
TORCH = {1: T.adaptive_max_pool1d, 2: T.adaptive_max_pool2d, 3: T.adaptive_max_pool3d}
MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_random_sizes_equal_torch(spatial: int, dtype: torch.dtype, tier: str) -> None:
    ours, theirs = OURS[spatial], TORCH[spatial]
    for layout in LAYOUTS:
        for _ in range(3):
            channels = random.choice((1, 2, 16, 65, 290))
            x = ties((2, channels, *(random.randint(1, 9) for _ in range(spatial))), dtype)
            x = LAYOUTS[layout](x)
            size = tuple(random.randint(1, 5) for _ in range(spatial))
            want, want_indices = theirs(x.contiguous(), size, return_indices=True)
            got, indices = ours(x, size, return_indices=True)
            assert alike(got, want) and torch.equal(indices, want_indices), (x.shape, size, layout)
            assert alike(ours(x, size), want), (x.shape, size, layout)
            grad = torch.randn(want.shape).to(dtype)
            want = gradient(theirs, x.contiguous(), grad, size)
            assert same_bits(gradient(ours, x, grad, size), want), (x.shape, size, layout)


@pytest.mark.parametrize("size", [(None, 2), (2, None), (None, None), (0, 2), [3, 1], 5])
def test_output_sizes(size: object) -> None:
    for x in (torch.randn(2, 3, 4, 5), torch.randn(3, 4, 5), torch.randn(0, 3, 4, 5)):
        got, indices = F.adaptive_max_pool2d(x, size, return_indices=True)
        want, want_indices = T.adaptive_max_pool2d(x, size, return_indices=True)
        assert same_bits(got, want) and torch.equal(indices, want_indices) and got.stride() == want.stride()


def test_volumes_keep_channels_last_3d(tier: str) -> None:
    dense = ties((2, 17, 5, 6, 7), torch.float32)
    x = dense.contiguous(memory_format=torch.channels_last_3d).requires_grad_()
    for size in (1, (2, 3, 4)):
        output, indices = F.adaptive_max_pool3d(x, size, return_indices=True)
        want, want_indices = T.adaptive_max_pool3d(dense, size, return_indices=True)
        assert alike(output, want) and torch.equal(indices, want_indices)
        assert output.is_contiguous(memory_format=torch.channels_last_3d)
        (grad,) = torch.autograd.grad(output.nan_to_num().sum(), x)
        assert grad.is_contiguous(memory_format=torch.channels_last_3d)


def test_empty_batch_has_an_empty_gradient() -> None:
    x = torch.randn(0, 3, 4, 5, requires_grad=True)
    F.adaptive_max_pool2d(x, 2).sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory_format", MEMORY_FORMATS, ids=str)
@pytest.mark.parametrize("place", [1207, 2049, 4095])
def test_index_is_exact_in_half_precision(
    place: int, dtype: torch.dtype, memory_format: torch.memory_format, tier: str
) -> None:
    """An index that went through the dtype would be rounded: 1207 to 1208 in bfloat16, 2049 to 2048 in float16."""
    assert int(torch.tensor(place).bfloat16()) != place
    x = torch.zeros(1, 2, 64, 64).to(dtype)
    x.view(1, 2, -1)[..., place] = 1
    x = x.contiguous(memory_format=memory_format).requires_grad_()
    output, indices = F.adaptive_max_pool2d(x, 1, return_indices=True)
    assert indices.flatten().tolist() == [place, place]
    output.sum().backward()
    assert torch.equal(x.grad, x.detach())


@pytest.mark.parametrize("memory_format", MEMORY_FORMATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_global_pools_keep_their_rule_for_ties(
    dtype: torch.dtype, memory_format: torch.memory_format, tier: str
) -> None:
    for channels in (1, 2, 31, 64, 67, 130):
        for plane in ((1, 1), (3, 5), (7, 7), (9, 4)):
            x = ties((2, channels, *plane), dtype).contiguous(memory_format=memory_format)
            first, want = F.global_max_pool2d(x), T.adaptive_max_pool2d(x, 1)
            assert alike(first, want) and first.stride() == want.stride()
            assert torch.allclose(split(x), amax(x), rtol=0, atol=0, equal_nan=True)
            grad = torch.randn(2, channels).to(dtype)
            want = gradient(T.adaptive_max_pool2d, x, grad[..., None, None], 1)
            assert same_bits(gradient(F.global_max_pool2d, x, grad[..., None, None]), want)
            assert alike(gradient(split, x, grad), gradient(amax, x, grad))


def test_inputs_beyond_the_caches() -> None:
    """More than 8 MB: their pixels are read one after the other, those of smaller inputs several at a time."""
    x = ties((3, 300, 50, 50), torch.float32).contiguous(memory_format=torch.channels_last)
    assert torch.allclose(split(x), amax(x), rtol=0, atol=0, equal_nan=True)
    grad = torch.randn(3, 300)
    assert alike(gradient(split, x, grad), gradient(amax, x, grad))


def test_global_shapes_and_other_dtypes() -> None:
    x = torch.randn(2, 3, 4, 5)
    for rule in ("first", "split"):
        assert F.global_max_pool2d(x, ties=rule).shape == (2, 3, 1, 1)
        assert F.global_max_pool2d(x, ties=rule, keepdim=False).shape == (2, 3)
    assert torch.equal(split(x.int()), amax(x.int()))
    assert split(x[:0]).shape == (0, 3) and split(x[:, :0]).shape == (2, 0)


@pytest.mark.parametrize("memory_format", MEMORY_FORMATS, ids=str)
def test_expanded_gradients(memory_format: torch.memory_format) -> None:
    x = ties((3, 5, 4, 6), torch.float32).contiguous(memory_format=memory_format)
    for grad in (torch.ones(()).expand(3, 5), torch.randn(5).expand(3, 5), torch.randn(3, 1).expand(3, 5)):
        assert alike(gradient(split, x, grad), gradient(amax, x, grad))
        want = gradient(T.adaptive_max_pool2d, x, grad[..., None, None], 1)
        assert same_bits(gradient(F.global_max_pool2d, x, grad[..., None, None]), want)


@pytest.mark.parametrize("channels_last", [False, True])
def test_references_equal_the_kernels(channels_last: bool) -> None:
    operators = torch.ops.opswap
    x = ties((2, 7, 6, 8), torch.float32)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    output, index = operators.adaptive_max_pool_with_index(x, [3, 2])
    grad = torch.randn_like(output)
    back = operators.adaptive_max_pool_backward(grad, index, x.shape, memory_format)
    largest = operators.global_amax(x)
    shared = operators.global_amax_backward(grad[..., 0, 0], x, largest)
    with opswap.force_reference():
        again = operators.adaptive_max_pool_with_index(x, [3, 2])
        assert alike(again[0], output) and torch.equal(again[1], index)
        assert alike(operators.adaptive_max_pool(x, [3, 2]), output)
        assert same_bits(operators.adaptive_max_pool_backward(grad, index, x.shape, memory_format), back)
        assert torch.allclose(operators.global_amax(x), largest, rtol=0, atol=0, equal_nan=True)
        assert alike(operators.global_amax_backward(grad[..., 0, 0], x, largest), shared)
        assert alike(F.adaptive_max_pool2d(x, [3, 2]), output)
        assert torch.allclose(split(x), largest, rtol=0, atol=0, equal_nan=True)


def test_saved_bytes_are_half_of_torchs_indices() -> None:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    ours, theirs = (saved_by(partial(f, x, 2)) for f in (F.adaptive_max_pool2d, T.adaptive_max_pool2d))
    assert [t.dtype for t in ours] == [torch.int32]
    assert sum(t.nbytes for t in ours) < sum(t.nbytes for t in theirs)
