# SPDX-License-Identifier: MIT
"""BatchNorm, activation and max pool in one: the bits of both functions, their gradients, what is declined."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import opswap
from counted import counts, kernels
from norm_steps import assert_close, parameters
from opswap import functional as F
from step import saved_by
from threads import same_on_any_threads

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# kernel_size, stride, padding, dilation, ceil_mode
WINDOWS: tuple[tuple[Any, ...], ...] = (
    (3, 2, 1, 1, False),
    (2, None, 0, 1, False),
    (2, 2, 0, 1, True),
    (3, 1, 1, 1, False),
    (2, 1, 1, 1, False),
    ((1, 3), [1, 2], (0, 1), 1, False),
    (3, 2, 1, 2, True),
    (5, 2, 2, 1, False),
    (7, 3, 3, 1, True),
    ((5, 2), (3, 1), 1, 1, False),
)
# Channels that fill vectors and that do not, planes of one row or column, images that strips cut.
SIZES = ((2, 24, 16, 18), (3, 5, 9, 13), (1, 130, 7, 5), (2, 3, 1, 40), (2, 64, 40, 44), (1, 16, 130, 50))


def keywords(window: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("kernel_size", "stride", "padding", "dilation", "ceil_mode"), window, strict=True))


def fits(size: tuple[int, ...], window: tuple[Any, ...]) -> bool:
    """True for a window that torch accepts for this size."""
    try:
        T.max_pool2d(torch.zeros(size), *window)
    except RuntimeError:
        return False
    return True


def parts(
    x: Tensor, vectors: tuple[Any, ...], training: bool, activation: str | None, window: tuple[Any, ...]
) -> Tensor:
    return F.max_pool2d(F.batch_norm_act(x, *vectors, training, 0.1, 1e-5, activation), *window)


def joined(
    x: Tensor, vectors: tuple[Any, ...], training: bool, activation: str | None, window: tuple[Any, ...]
) -> Tensor:
    return F.batch_norm_act_max_pool2d(x, *vectors, training, 0.1, 1e-5, activation, **keywords(window))


def places(
    x: Tensor, vectors: tuple[Any, ...], training: bool, activation: str | None, window: tuple[Any, ...]
) -> Tensor:
    """Where the values that the pool chooses stand: of nearly equal ones float64 chooses others."""
    normed = F.batch_norm_act(x, *(v.clone() for v in vectors), training, 0.1, 1e-5, activation)
    return T.max_pool2d(normed, *window, return_indices=True)[1]


def step(
    function: Any,
    x: Tensor,
    vectors: tuple[Tensor, ...],
    training: bool,
    activation: str | None,
    window: tuple[Any, ...],
    grad: Tensor | None = None,
) -> list[Tensor]:
    """Output, gradients of input, weight and bias, running statistics."""
    mean, var, *affine = (v.clone() for v in vectors)
    leaves = [x.detach().requires_grad_(), *(v.requires_grad_() for v in affine)]
    y = function(leaves[0], (mean, var, *leaves[1:]), training, activation, window)
    grad = torch.ones_like(y) if grad is None else grad
    return [y.detach(), *torch.autograd.grad(y, leaves, grad), mean, var]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_as_both(dtype: torch.dtype, layout: str, training: bool, tier: str) -> None:
    """Bits of the output and of the running statistics; gradients near those of float64; on each tier."""
    activations = itertools.cycle((None, "relu", "leaky_relu(0.1)", "hardswish", "silu", "mish"))
    for size, window in itertools.product(SIZES[: 4 if tier in opswap.isa.hidden() else None], WINDOWS):
        if not fits(size, window):
            continue
        activation = next(activations)
        x = torch.randn(size).to(dtype).contiguous(memory_format=FORMATS[layout])
        vectors = parameters(size[1], dtype)
        grad = torch.randn_like(F.max_pool2d(x, *window))
        got = step(joined, x, vectors, training, activation, window, grad)
        want = step(parts, x, vectors, training, activation, window, grad)
        for a, b in zip((got[0], *got[4:]), (want[0], *want[4:]), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
        assert got[1].stride() == want[1].stride()
        exact = [want[0].double(), *(t.double() for t in want[1:4])]
        if dtype is not torch.float64:
            wide = tuple(v.double() for v in vectors)
            exact = step(parts, x.double(), wide, training, activation, window, grad.double())
            same = torch.equal(
                *(places(*a, training, activation, window) for a in ((x, vectors), (x.double(), wide)))
            )
            if dtype.itemsize == 2 or not same:
                exact = [t.double() for t in want]
        for a, b in zip(got[1:4], exact[1:4], strict=True):
            assert_close(a, b, 3 if dtype.itemsize == 2 else None)


@pytest.mark.parametrize("layout", FORMATS)
def test_one_kernel_each_way(layout: str) -> None:
    x = torch.randn(4, 24, 20, 20).contiguous(memory_format=FORMATS[layout])
    vectors = parameters(24, torch.float32)
    opswap.reset_stats()
    step(joined, x, vectors, True, "relu", WINDOWS[0])
    assert counts() == ({"batch_norm_max_pool": 1, "batch_norm_max_pool_backward": 1}, {})
    opswap.reset_stats()
    step(joined, x, vectors, True, "relu", WINDOWS[3])  # as many outputs as inputs
    assert kernels("batch_norm_max_pool") == kernels("max_pool_backward") == 1
    opswap.reset_stats()
    with torch.no_grad():
        joined(x, vectors, False, "relu", WINDOWS[0])
    assert counts() == ({"batch_norm_max_pool": 1}, {})


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads(dtype: torch.dtype, layout: str) -> None:
    x = torch.randn(5, 24, 40, 37).to(dtype).contiguous(memory_format=FORMATS[layout])
    vectors = parameters(24, torch.float32)
    for window in (WINDOWS[0], WINDOWS[1]):
        same_on_any_threads(lambda window=window: step(joined, x, vectors, True, "relu", window))


def test_one_image_of_large_rows() -> None:
    """A strip of few rows, which overlap."""
    x = torch.randn(1, 64, 30, 224).contiguous(memory_format=torch.channels_last)
    vectors = parameters(64, torch.float32)
    opswap.reset_stats()
    for window in ((3, 2, 1, 1, False), (3, 1, 1, 1, False), (2, 2, 0, 1, False)):
        got, want = (step(f, x, vectors, True, "relu", window) for f in (joined, parts))
        assert torch.equal(got[0], want[0])
        for a, b in zip(got[1:], want[1:], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert kernels("batch_norm_max_pool") == 3


SHAPES: dict[str, Any] = {
    "rows that are too long": lambda: torch.randn(1, 512, 4, 130).contiguous(
        memory_format=torch.channels_last
    ),
    "one row that fits": lambda: torch.randn(2, 24, 3, 1500).contiguous(memory_format=torch.channels_last),
    "planes that are too large": lambda: torch.randn(1, 2, 300, 300),
    "one channel": lambda: torch.randn(2, 1, 8, 8),
    "one position in channels_last": lambda: torch.randn(4, 8, 1, 1),
    "every second row": lambda: torch.randn(2, 8, 16, 8)[:, :, ::2],
    "part of the channels": lambda: torch.randn(2, 16, 8, 8)[:, ::2],
    "transposed": lambda: torch.randn(2, 8, 6, 8).transpose(2, 3),
    "no image": lambda: torch.randn(0, 8, 8, 8),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_runs_as_two(name: str) -> None:
    """Values, gradients, formats and errors are those of both functions."""
    x, window = SHAPES[name](), (1, 1, 0, 1, False) if "one " in name else (2, 2, 0, 1, False)
    vectors = parameters(x.shape[1], torch.float32)
    opswap.reset_stats()
    got, want = (step(f, x, vectors, True, "relu", window) for f in (joined, parts))
    assert kernels("batch_norm_max_pool") == 0
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


def test_activations_of_two_passes() -> None:
    """A sigmoid is torch's; a SiLU of 16 bits is faster behind the normalisation while it trains."""
    for dtype, activation, training, one in (
        (torch.float32, "sigmoid", True, 0),
        (torch.bfloat16, "silu", True, 0),
        (torch.float32, "silu", True, 1),
    ):
        x = torch.randn(2, 8, 8, 8).to(dtype)
        opswap.reset_stats()
        step(joined, x, parameters(8, torch.float32), training, activation, WINDOWS[0])
        assert kernels("batch_norm_max_pool") == one, (dtype, activation)
    with torch.no_grad():
        opswap.reset_stats()
        joined(torch.randn(2, 8, 8, 8).bfloat16(), parameters(8, torch.float32), False, "silu", WINDOWS[0])
        assert kernels("batch_norm_max_pool") == 1


def test_bias_alone_may_change() -> None:
    """As in torch, which keeps the weight alone, a bias that alone is trained may change before the backward."""
    x = torch.randn(2, 8, 8, 8)
    *running, weight, bias = parameters(8, torch.float32)
    bias.requires_grad_()
    y = joined(x, (*running, weight, bias), True, "relu", WINDOWS[0])
    with torch.no_grad():
        bias.add_(1)
    y.sum().backward()
    weight.requires_grad_()
    y = joined(x, (*running, weight, bias), True, "relu", WINDOWS[0])
    with torch.no_grad():
        bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_gradient(which: int) -> None:
    x, (*running, weight, bias) = torch.randn(2, 8, 8, 8), parameters(8, torch.float32)
    found = []
    for function in (joined, parts):
        leaves = [t.clone().requires_grad_(i == which) for i, t in enumerate((x, weight, bias))]
        statistics = tuple(v.clone() for v in running)
        y = function(leaves[0], (*statistics, *leaves[1:]), True, "relu", WINDOWS[0])
        y.square().sum().backward()
        found.append(leaves[which].grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("training", [True, False])
def test_without_parameters(training: bool) -> None:
    x, running = torch.randn(2, 8, 8, 8), parameters(8, torch.float32)[:2]
    x.requires_grad_()
    found = []
    for function in (joined, parts):
        y = function(x, (*(v.clone() for v in running), None, None), training, "relu", WINDOWS[0])
        found.append((y, *torch.autograd.grad(y.square().sum(), x)))
    torch.testing.assert_close(*found)


def test_derivatives() -> None:
    """Second order too, by the operators of both."""
    x = torch.randn(2, 4, 6, 7, dtype=torch.float64, requires_grad=True)
    weight, bias = (v.double().requires_grad_() for v in parameters(4, torch.float64)[2:])

    def function(*leaves: Tensor) -> Tensor:
        first, *affine = leaves
        return joined(first, (None, None, *affine), True, "silu", WINDOWS[0])

    assert torch.autograd.gradcheck(function, (x, weight, bias))
    assert torch.autograd.gradgradcheck(function, (x, weight, bias), fast_mode=True)


def test_gradients_of_any_strides() -> None:
    x, vectors = torch.randn(2, 8, 8, 8), parameters(8, torch.float32)
    y = joined(x, vectors, True, "relu", WINDOWS[0])
    made = torch.randn(*y.shape, 2)
    for grad in (
        torch.ones(()).expand_as(y),
        made[..., 0],
        made[..., 1].contiguous(memory_format=torch.channels_last),
    ):
        got, want = (step(f, x, vectors, True, "relu", WINDOWS[0], grad) for f in (joined, parts))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant: bool) -> None:
    x, (*running, weight, bias) = torch.randn(2, 8, 8, 8), parameters(8, torch.float32)
    found = []
    for checkpointed in (True, False):
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]

        def function(first: Tensor, *affine: Tensor) -> Tensor:
            return joined(first, (*running, *affine), True, "relu", WINDOWS[0])

        y = checkpoint(function, *leaves, use_reentrant=reentrant) if checkpointed else function(*leaves)
        y.square().sum().backward()
        found.append([y, *(t.grad for t in leaves)])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_first_run_as_two() -> None:
    """A checkpoint that runs a tensor of a subclass, and ordinary ones again, finds as many tensors saved."""

    class Marked(Tensor):
        pass

    x, (*running, weight, bias) = torch.randn(2, 8, 8, 8).as_subclass(Marked), parameters(8, torch.float32)
    x.requires_grad_()

    def function(y: Tensor) -> Tensor:
        return joined(y, (*running, weight, bias), True, "relu", WINDOWS[0])

    checkpoint(function, x, use_reentrant=False).sum().backward()
    assert x.grad is not None


def test_nothing_of_the_size_of_the_input_is_kept() -> None:
    x, vectors = torch.randn(4, 24, 20, 20).requires_grad_(), parameters(24, torch.float32)
    saved = saved_by(lambda: joined(x, vectors, True, "relu", WINDOWS[0]))
    large = [t for t in saved if t.numel() >= x.numel()]
    assert len(large) == 1 and large[0].data_ptr() == x.data_ptr()
    assert sorted(t.dtype.itemsize for t in saved if t.numel() == x.numel() // 4) == [1]


def test_not_a_number() -> None:
    """It passes, as through both."""
    x, vectors = torch.randn(2, 8, 8, 8), parameters(8, torch.float32)
    x[0, 3, 2, 5] = float("nan")
    x[1, 2, 4, 4] = float("inf")
    for training, layout in itertools.product((True, False), FORMATS.values()):
        image = x.contiguous(memory_format=layout)
        got, want = (step(f, image, vectors, training, "relu", WINDOWS[0]) for f in (joined, parts))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


ERRORS: dict[str, Any] = {
    "a window that does not fit": lambda x, v: F.batch_norm_act_max_pool2d(x, *v, kernel_size=9),
    "padding": lambda x, v: F.batch_norm_act_max_pool2d(x, *v, kernel_size=2, padding=2),
    "a text": lambda x, v: F.batch_norm_act_max_pool2d(x, *v, kernel_size="3"),
    "an activation": lambda x, v: F.batch_norm_act_max_pool2d(x, *v, activation="relu7", kernel_size=2),
    "integers": lambda x, v: F.batch_norm_act_max_pool2d(x.int(), *v, kernel_size=2),
    "no statistics": lambda x, v: F.batch_norm_act_max_pool2d(x, None, None, kernel_size=2),
    "other channels": lambda x, v: F.batch_norm_act_max_pool2d(x[:, :3].contiguous(), *v, kernel_size=2),
    "one value": lambda x, v: F.batch_norm_act_max_pool2d(
        x[:1, :, :1, :1].contiguous(), *v, True, kernel_size=1
    ),
    "a list": lambda x, v: F.batch_norm_act_max_pool2d([x], *v, kernel_size=2),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError)) as found:
        ERRORS[name](torch.randn(2, 8, 8, 8), parameters(8, torch.float32))
    assert str(found.value)


def test_switched_off() -> None:
    x, vectors = torch.randn(2, 8, 8, 8), parameters(8, torch.float32)
    opswap.reset_stats()
    with opswap.disabled(), torch.no_grad():
        got = joined(x, vectors, False, "relu", WINDOWS[0])
    assert kernels() == 0
    torch.testing.assert_close(got, T.max_pool2d(T.relu(T.batch_norm(x, *vectors)), 3, 2, 1))
