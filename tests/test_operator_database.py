# SPDX-License-Identifier: MIT
"""torch's own database of operators: its samples, its error inputs and odd forms of both, through opswap.functional.

Outputs, gradients, gradients of gradients and gradients in a batch are those of torch's functions, and errors are of
the same class.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

import opswap.functional as F

pytest.importorskip("expecttest", reason="torch's test utilities need expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
OTHERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64)
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.bfloat16: 8e-2,
    torch.float16: 5e-2,
    torch.complex64: 2e-5,
}
# Samples of a function and a dtype that are run; the database has up to 1,440, most of them alike.
MOST = {torch.float32: 60, torch.float64: 60}
FEW = 12


@dataclass(frozen=True)
class Mirror:
    """ours and stock take the samples that the database has for `name`; what `serves` refuses is no call of ours.

    extends: calls that torch refuses and we compute, by a word in torch's message.
    sums: in 16 bits torch rounds in between and ours at the end, so derivatives differ by roundings of the largest.
    """

    name: str
    ours: Callable[..., Any]
    stock: Callable[..., Any]
    exact: bool = True
    serves: Callable[..., bool] = lambda *args, **kwargs: True
    extends: tuple[str, ...] = ()
    sums: bool = False

    def __repr__(self) -> str:
        return f"{self.name}-{self.ours.__name__}"


def amax(input: Tensor, keepdim: bool = False, **_: Any) -> Tensor:
    return input.amax((2, 3), keepdim)


def global_max_pool2d(input: Tensor, keepdim: bool = False, **_: Any) -> Tensor:
    return F.global_max_pool2d(input, ties="split", keepdim=keepdim)


def depthwise_conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, groups: int = 1, **kwargs: Any
) -> Tensor:
    return F.depthwise_conv2d(input, weight, bias, *rest, **kwargs)


def is_depthwise(input: Tensor, weight: Tensor, *args: Any, groups: int = 1, **kwargs: Any) -> bool:
    return input.dim() in (3, 4) and groups == input.shape[-3]


def grouped_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    bias = None if bias is None else bias.unsqueeze(0)
    return F.grouped_linear(input.unsqueeze(-2), weight.unsqueeze(0), bias).squeeze(-2)


def is_matrix(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return input.dim() > 0 and weight.dim() == 2 and weight.numel() > 0


def pointwise_conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.pointwise_conv2d(input[..., None, None], weight[..., None, None], bias)[..., 0, 0]


def is_row(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return input.dim() == 2 and is_matrix(input, weight) and weight.dim() == 2


def cat_channel_shuffle(input: Tensor, groups: int) -> Tensor:
    return F.cat_channel_shuffle(input.split([1, input.shape[1] - 1], 1), groups)


def cat_channel_shuffle_split(input: Tensor, groups: int) -> tuple[Tensor, ...]:
    return F.cat_channel_shuffle_split((input,), groups, 2)


def shuffled_chunks(input: Tensor, groups: int) -> tuple[Tensor, ...]:
    return T.channel_shuffle(input, groups).chunk(2, 1)


def has_channels(input: Tensor, *args: Any) -> bool:
    return input.dim() > 2 and input.shape[1] > 1


def batch_norm_relu6(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return F.batch_norm_act(input, *args, **kwargs, activation="relu6")


# torch's channel_shuffle wants three dimensions, its volume pools no images in channels_last, and for small integers
# no planes of more than 127 or 255 pixels.
_VOLUMES = ("Unsupported memory format", "numeric_limits")
MIRRORS = [
    Mirror("nn.functional.channel_shuffle", F.channel_shuffle, T.channel_shuffle, extends=("> 2 dims",)),
    Mirror("nn.functional.channel_shuffle", cat_channel_shuffle, T.channel_shuffle, serves=has_channels),
    Mirror("nn.functional.channel_shuffle", cat_channel_shuffle_split, shuffled_chunks, serves=has_channels),
    Mirror("nn.functional.max_pool2d", F.max_pool2d, T.max_pool2d),
    Mirror("nn.functional.max_pool3d", F.max_pool3d, T.max_pool3d, extends=_VOLUMES),
    Mirror("nn.functional.avg_pool2d", F.avg_pool2d, T.avg_pool2d, exact=False),
    Mirror("nn.functional.avg_pool3d", F.avg_pool3d, T.avg_pool3d, exact=False, extends=("not implemented",)),
    Mirror("nn.functional.adaptive_max_pool1d", F.adaptive_max_pool1d, T.adaptive_max_pool1d),
    Mirror("nn.functional.adaptive_max_pool2d", F.adaptive_max_pool2d, T.adaptive_max_pool2d),
    Mirror("nn.functional.adaptive_max_pool3d", F.adaptive_max_pool3d, T.adaptive_max_pool3d),
    Mirror("amax", global_max_pool2d, amax, serves=lambda x, *_, **__: x.dim() == 4),
    Mirror("nn.functional.batch_norm", F.batch_norm, T.batch_norm, exact=False),
    Mirror(
        "nn.functional.batch_norm",
        F.batch_norm_relu,
        lambda *args, **kwargs: T.relu(T.batch_norm(*args, **kwargs)),
        exact=False,
    ),
    Mirror(
        "nn.functional.batch_norm",
        batch_norm_relu6,
        lambda *args, **kwargs: T.relu6(T.batch_norm(*args, **kwargs)),
        exact=False,
    ),
    Mirror("nn.functional.dropout", F.dropout, T.dropout),
    Mirror("nn.functional.conv2d", depthwise_conv2d, T.conv2d, exact=False, serves=is_depthwise),
    Mirror("nn.functional.conv2d", F.conv2d, T.conv2d, exact=False, sums=True),
    Mirror("nn.functional.linear", F.linear, T.linear, exact=False, sums=True),
    Mirror("nn.functional.linear", grouped_linear, T.linear, exact=False, serves=is_matrix),
    Mirror("nn.functional.linear", pointwise_conv2d, T.linear, exact=False, serves=is_row),
]


@dataclass
class Result:
    error: Exception | None = None
    outputs: tuple[Tensor, ...] = ()
    written: tuple[Tensor, ...] = ()


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
    """The outputs and the running statistics, which are copied first; or the error."""
    torch.manual_seed(1)
    written = tuple(t.clone() for t in args[1:3] if isinstance(t, Tensor) and not t.requires_grad)
    copies = iter(written)
    args = (
        args[:1]
        + tuple(next(copies) if isinstance(t, Tensor) and not t.requires_grad else t for t in args[1:3])
        + args[3:]
    )
    try:
        outputs = function(*args, **kwargs)
    except Exception as error:
        return Result(error)
    many = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return Result(None, tuple(t for t in many if t is not None), written)


def same(a: Tensor | None, b: Tensor | None, exact: bool, sums: bool = False) -> bool:
    if a is None or b is None:
        return (a is None or not a.any()) and (b is None or not b.any())
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if exact:
        return bool(((a == b) | ((a != a) & (b != b))).all())
    tolerance = TOLERANCE.get(a.dtype, 0)
    wide = torch.complex128 if a.is_complex() else torch.float64
    largest = b.abs().max().item() if sums and b.numel() else 1.0
    return torch.allclose(a.to(wide), b.to(wide), tolerance, tolerance * max(largest, 1.0), equal_nan=True)


def differentiate(result: Result, leaves: list[Tensor]) -> list[Tensor | None]:
    """Gradients, gradients of gradients, gradients in a batch."""
    output = result.outputs[0]
    weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).to(output.dtype).view(output.shape)
    first = torch.autograd.grad(
        (output * weight).sum(), leaves, create_graph=True, retain_graph=True, allow_unused=True
    )
    again = [(t * t).sum() for t in first if t is not None and t.requires_grad]
    twice = torch.autograd.grad(sum(again), leaves, retain_graph=True, allow_unused=True) if again else ()
    twice = twice or (None,) * len(leaves)
    batch = torch.stack((weight, 1 - weight))
    batched = torch.autograd.grad(output, leaves, batch, is_grads_batched=True, allow_unused=True)
    return [*first, *twice, *batched]


def check(mirror: Mirror, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """One call of both functions."""
    shapes = [(tuple(t.shape), t.stride(), t.dtype) if isinstance(t, Tensor) else t for t in args]
    case = f"{shapes} {kwargs}"
    ours, stock = run(mirror.ours, args, kwargs), run(mirror.stock, args, kwargs)
    if stock.error is not None:
        if ours.error is None and any(word in str(stock.error) for word in mirror.extends):
            return
        assert ours.error is not None, f"{case}: torch raises {stock.error!r}"
        assert type(ours.error) is type(stock.error), f"{case}: {ours.error!r}, torch {stock.error!r}"
        return
    assert ours.error is None, f"{case}: {ours.error!r}"
    assert len(ours.outputs) == len(stock.outputs)
    for a, b in zip((*ours.outputs, *ours.written), (*stock.outputs, *stock.written), strict=True):
        assert same(a, b, mirror.exact), case
        assert a.requires_grad is b.requires_grad, case
    leaves = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.requires_grad]
    if not leaves or not stock.outputs[0].requires_grad:
        return
    try:
        expected = differentiate(stock, leaves)
    except Exception as error:
        with pytest.raises(type(error)):
            differentiate(ours, leaves)
        return
    for i, (a, b) in enumerate(zip(differentiate(ours, leaves), expected, strict=True)):
        assert same(a, b, False, mirror.sums), f"{case}: derivative {i}"


def forms(x: Tensor) -> Iterator[Tensor]:
    """The tensor, and others that are like it but for one thing: layout, number of dimensions, an empty dimension."""

    def leaf(t: Tensor) -> Tensor:
        return t.requires_grad_(x.requires_grad)

    plain = x.detach()
    yield x
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is not None:
        yield leaf(plain.contiguous(memory_format=last))
    if x.dim() > 1:
        yield leaf(plain.transpose(0, -1).contiguous().transpose(0, -1))
    if x.dim() > 2 and x.shape[0]:
        yield leaf(plain[:1].expand_as(plain))
        yield leaf(plain.flatten(2)[..., 0])
    for dim in range(x.dim()):
        yield leaf(plain.narrow(dim, 0, 0))
    yield leaf(plain.flatten()[:6])
    yield leaf(plain.unsqueeze(0).unsqueeze(0))
    if x.numel():
        yield leaf(plain.flatten()[0])


def entry(name: str) -> Any:
    return next(op for op in op_db if op.name == name and not op.variant_test_name)


def samples(name: str, dtype: torch.dtype) -> list[Any]:
    """Those of the database; for a dtype that torch refuses, those of float32 in it."""
    op = entry(name)
    if dtype in op.dtypes:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point))
    else:
        found = list(op.sample_inputs("cpu", torch.float32))[:FEW]
        for sample in found:
            sample.input = sample.input.to(dtype)
            sample.args = tuple(t.to(dtype) if isinstance(t, Tensor) else t for t in sample.args)
    return found[:: max(1, len(found) // MOST.get(dtype, FEW))]


def cases() -> list[tuple[Mirror, torch.dtype]]:
    """All but activations of halves: a value that rounding moves over the bend has another gradient."""
    pairs = [(mirror, dtype) for mirror in MIRRORS for dtype in (*FLOATS, *OTHERS)]
    return [
        (m, d) for m, d in pairs if d not in (torch.bfloat16, torch.float16) or "relu" not in m.ours.__name__
    ]


@pytest.mark.parametrize(("mirror", "dtype"), cases(), ids=str)
def test_samples(mirror: Mirror, dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample in enumerate(samples(mirror.name, dtype)):
            for j, x in enumerate(forms(sample.input)):
                args = (x, *sample.args)
                if (j < 2 or i % 7 == 0) and mirror.serves(*args, **sample.kwargs):
                    check(mirror, args, sample.kwargs)


@pytest.mark.parametrize("mirror", MIRRORS, ids=repr)
def test_error_inputs(mirror: Mirror) -> None:
    op = entry(mirror.name)
    if op.error_inputs_func is None:
        pytest.skip(f"the database has no error inputs for {mirror.name}")
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        args = (sample.input, *sample.args)
        if isinstance(sample.input, Tensor) and mirror.serves(*args, **sample.kwargs):
            check(mirror, args, sample.kwargs)


class TestBatchNorm:
    """What the database has no samples of."""

    @pytest.mark.parametrize("momentum", [-1.0, -0.3, 0.0, 1.0, 2.0, float("nan"), float("inf"), 1])
    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
    def test_any_momentum(self, momentum: float, layout: torch.memory_format) -> None:
        x = torch.randn(3, 4, 5, 6).contiguous(memory_format=layout)
        ours, stock = ([torch.full((4,), 0.5), torch.full((4,), 2.0)] for _ in range(2))
        F.batch_norm(x, *ours, training=True, momentum=momentum)
        T.batch_norm(x, *stock, training=True, momentum=momentum)
        torch.testing.assert_close(ours, stock, equal_nan=True)

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize(
        "size", [(0,), (5,), (1,), (), (2, 3), (0, 3), (2, 0), (0, 3, 4), (2, 3, 0), (2, 0, 4, 4)]
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
    def test_sizes(self, size: tuple[int, ...], training: bool, dtype: torch.dtype) -> None:
        channels = size[1] if len(size) > 1 else (size[0] if size else 1)
        x = torch.ones(size).to(dtype).requires_grad_(dtype.is_floating_point)
        vectors = (torch.ones(channels, dtype=dtype), torch.ones(channels, dtype=dtype))
        mirror = Mirror("batch_norm", F.batch_norm, T.batch_norm, exact=False)
        for given in (vectors, (None, None)):
            check(mirror, (x, *given, None, None, training), {})
