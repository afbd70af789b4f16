# SPDX-License-Identifier: MIT
"""One or more calls of every public function and module, with the code of torch that does the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
import opswap.functional as F
from opswap.ops.chain import Stage

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """name: in opswap.functional, or of a class in opswap.nn; sizes: of the arguments of both calls.

    fixed: positions of arguments that have no gradient. operators: those that a graph of the call has, forward alone;
    none where torch's own stands in it.
    """

    name: str
    ours: Callable[..., Any]
    stock: Callable[..., Any]
    sizes: tuple[tuple[int, ...], ...]
    channels_last: bool = False
    fixed: tuple[int, ...] = ()
    operators: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}{list(self.sizes[0])}{' channels_last' * self.channels_last}"

    def inputs(self, dtype: torch.dtype = torch.float32) -> Tensors:
        """Random tensors on the CPU, whatever the default device and dtype; one-dimensional ones are positive."""
        made = []
        for size in self.sizes:
            t = torch.randn(size, dtype=torch.float64, device="cpu")
            t = t.abs() + 0.5 if len(size) == 1 else t
            if self.channels_last and len(size) in (4, 5):
                last = torch.channels_last if len(size) == 4 else torch.channels_last_3d
                t = t.to(memory_format=last)
            made.append(t.to(dtype))
        return tuple(made)


def _shuffle(tensors: Tensors, groups: int, inverse: bool = False) -> Tensor:
    x = torch.cat(tensors, 1)
    return x.unflatten(1, (-1, groups) if inverse else (groups, -1)).transpose(1, 2).flatten(1, 2)


def _grouped(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    y = torch.einsum("...gi,goi->...go", x, w)
    return y if b is None else y + b


def _ragged(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    parts = zip(x.unbind(-2), w.split([1, 3, 2]), b.split([1, 3, 2]), strict=True)
    return torch.cat([T.linear(*p) for p in parts], -1)


_NORM = ((5, 6, 4, 3), (6,), (6,), (6,), (6,))
_ORDER = (3, 0, 5, 1, 4, 2)


def _elu(x: Tensor) -> Tensor:
    return T.elu(x, 0.7)


def _norm_cases(last: bool) -> list[Case]:
    def stock(act: Callable[..., Any], training: bool) -> Callable[..., Any]:
        return lambda x, m, v, w, b: act(T.batch_norm(x, m.clone(), v.clone(), w, b, training))

    def ours(function: Callable[..., Any], training: bool, *rest: Any) -> Callable[..., Any]:
        return lambda x, m, v, w, b: function(x, m.clone(), v.clone(), w, b, training, *rest)

    cases = [
        Case("over_mean_square", F.over_mean_square, lambda x: x / x.pow(2).mean(), _NORM[:1], last),
    ]
    for training in (True, False):
        cases += [
            Case("batch_norm", ours(F.batch_norm, training), stock(lambda x: x, training), _NORM, last),
            Case("batch_norm_relu", ours(F.batch_norm_relu, training), stock(T.relu, training), _NORM, last),
        ]
        for name, act in (
            ("relu6", T.relu6),
            ("hardswish", T.hardswish),
            ("silu", T.silu),
            ("elu(0.7)", _elu),
        ):
            made = ours(F.batch_norm_act, training, 0.1, 1e-5, name)
            cases.append(Case("batch_norm_act", made, stock(act, training), _NORM, last))
        made = ours(
            partial(F.batch_norm_act_max_pool2d, kernel_size=2, stride=2), training, 0.1, 1e-5, "silu"
        )
        pooled = stock(lambda x: T.max_pool2d(T.silu(x), 2, 2), training)
        cases.append(Case("batch_norm_act_max_pool2d", made, pooled, _NORM, last))
    return cases


def _layer_norm_cases(last: bool) -> list[Case]:
    """Rows in the contiguous format, images in both."""
    vectors = ((6,), (6,))
    images = Case(
        "layer_norm2d",
        lambda x, w, b: F.layer_norm2d(x, w, b, 1e-3),
        lambda x, w, b: T.layer_norm(x.movedim(1, -1), (6,), w, b, 1e-3).movedim(-1, 1),
        ((2, 6, 4, 5), *vectors),
        last,
    )
    if last:
        return [images]
    return [
        images,
        Case(
            "layer_norm",
            lambda x, w, b: F.layer_norm(x, (6,), w, b, 1e-3),
            lambda x, w, b: T.layer_norm(x, (6,), w, b, 1e-3),
            ((2, 5, 6), *vectors),
        ),
        Case("layer_norm", lambda x: F.layer_norm(x, (7,)), lambda x: T.layer_norm(x, (7,)), ((4, 7),)),
    ]


def _group_norm_cases(last: bool) -> list[Case]:
    """torch's group_norm has no forward mode in channels_last."""
    image, vectors = (2, 6, 4, 5), ((6,), (6,))
    return [
        Case(
            "group_norm",
            lambda x, w, b: F.group_norm(x, 3, w, b, 1e-3),
            lambda x, w, b: T.group_norm(x.contiguous(), 3, w, b, 1e-3),
            (image, *vectors),
            last,
        ),
        Case(
            "group_norm",
            lambda x: F.group_norm(x, 2),
            lambda x: T.group_norm(x.contiguous(), 2),
            (image,),
            last,
        ),
        Case(
            "instance_norm",
            lambda x, w, b: F.instance_norm(x, None, None, w, b),
            lambda x, w, b: T.instance_norm(x, None, None, w, b),
            ((2, 3, 4, 3, 2), (3,), (3,)),
            last,
        ),
    ]


def _channel_cases(last: bool) -> list[Case]:
    one, two = ((2, 6, 4, 5),), ((2, 6, 4, 5), (2, 6, 4, 5))
    cases = []
    for inverse in (False, True):
        cases += [
            Case(
                "channel_shuffle",
                lambda x, i=inverse: F.channel_shuffle(x, 2, inverse=i),
                lambda x, i=inverse: _shuffle((x,), 2, i),
                one,
                last,
            ),
            Case(
                "cat_channel_shuffle",
                lambda *t, i=inverse: F.cat_channel_shuffle(t, 3, inverse=i),
                lambda *t, i=inverse: _shuffle(t, 3, i),
                two,
                last,
            ),
            Case(
                "cat_channel_shuffle_split",
                lambda *t, i=inverse: F.cat_channel_shuffle_split(t, 2, 2, inverse=i),
                lambda *t, i=inverse: _shuffle(t, 2, i).chunk(2, 1),
                two,
                last,
            ),
        ]
    return [
        *cases,
        Case(
            "cat_channel_shuffle_split",
            lambda *t: F.cat_channel_shuffle_split(t, 4, (5, 7)),
            lambda *t: _shuffle(t, 4).split((5, 7), 1),
            two,
            last,
        ),
        Case(
            "channel_permutation",
            lambda x: F.channel_permutation(x, _ORDER),
            lambda x: x[:, list(_ORDER)],
            one,
            last,
        ),
    ]


def _pool_cases(last: bool) -> list[Case]:
    plane, volume = ((2, 4, 9, 8),), ((2, 3, 6, 5, 7),)
    images = lambda x: x.contiguous()  # torch's volume pools refuse images in channels_last  # noqa: E731
    return [
        Case(
            "max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: T.max_pool2d(x, 3, 2, 1), plane, last
        ),
        Case(
            "max_pool2d",
            lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
            lambda x: T.max_pool2d(x, 2, return_indices=True)[0],
            plane,
            last,
        ),
        Case("max_pool3d", lambda x: F.max_pool3d(x, 2, 1), lambda x: T.max_pool3d(x, 2, 1), volume, last),
        Case(
            "max_pool3d",
            lambda x: F.max_pool3d(x, (1, 3, 3), (2, 1, 1)),
            lambda x: T.max_pool3d(images(x), (1, 3, 3), (2, 1, 1)),
            plane,
            last,
        ),
        Case(
            "avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), lambda x: T.avg_pool2d(x, 3, 2, 1), plane, last
        ),
        Case(
            "avg_pool2d",
            lambda x: F.avg_pool2d(x, (3, 2), ceil_mode=True, count_include_pad=False),
            lambda x: T.avg_pool2d(x, (3, 2), ceil_mode=True, count_include_pad=False),
            plane,
            last,
        ),
        Case("avg_pool3d", lambda x: F.avg_pool3d(x, 2, 1), lambda x: T.avg_pool3d(x, 2, 1), volume, last),
        Case(
            "avg_pool3d",
            lambda x: F.avg_pool3d(x, (1, 3, 3), (2, 1, 1)),
            lambda x: T.avg_pool3d(images(x), (1, 3, 3), (2, 1, 1)),
            plane,
            last,
        ),
        Case(
            "adaptive_max_pool1d",
            lambda x: F.adaptive_max_pool1d(x, 3),
            lambda x: T.adaptive_max_pool1d(x, 3),
            ((2, 4, 9),),
        ),
        Case(
            "adaptive_max_pool2d",
            lambda x: F.adaptive_max_pool2d(x, (3, None)),
            lambda x: T.adaptive_max_pool2d(x, (3, None)),
            plane,
            last,
        ),
        Case(
            "adaptive_max_pool3d",
            lambda x: F.adaptive_max_pool3d(x, 2),
            lambda x: T.adaptive_max_pool3d(x, 2),
            volume,
            last,
        ),
        Case("global_max_pool2d", F.global_max_pool2d, lambda x: T.adaptive_max_pool2d(x, 1), plane, last),
        Case(
            "global_max_pool2d",
            lambda x: F.global_max_pool2d(x, ties="split", keepdim=False),
            lambda x: x.amax((2, 3)),
            plane,
            last,
        ),
    ]


def _linear_cases() -> list[Case]:
    sizes = ((7, 3, 5), (3, 4, 5), (3, 4))
    return [
        Case("linear", F.linear, T.linear, ((3, 4, 5), (6, 5), (6,))),
        Case("grouped_linear", F.grouped_linear, _grouped, sizes),
        Case("grouped_linear", F.grouped_linear, _grouped, ((2, 7, 3, 5), *sizes[1:])),
        Case(
            "grouped_linear",
            F.grouped_linear,
            lambda x, w: _grouped(x.unflatten(-1, (3, 5)), w).flatten(-2),
            ((7, 15), (3, 4, 5)),
        ),
        Case(
            "grouped_linear",
            lambda x, w, b: F.grouped_linear(x, w, b[0], [1, 3, 2]),
            lambda x, w, b: _ragged(x, w, b[0]),
            ((7, 3, 5), (6, 5), (1, 6)),
        ),
    ]


def _chain(x: Tensor, expand: Tensor, spatial: Tensor) -> Tensor:
    return F.conv_chain(x, (Stage(expand, activation="relu"), Stage(spatial, stride=2)))


def _stock_chain(x: Tensor, expand: Tensor, spatial: Tensor) -> Tensor:
    x = T.relu(T.batch_norm(T.conv2d(x, expand), None, None, training=True))
    return T.batch_norm(T.conv2d(x, spatial, None, 2, 1, 1, 24), None, None, training=True)


def _convolution_cases(last: bool) -> list[Case]:
    pixels, depth = ((2, 8, 5, 6), (12, 8, 1, 1), (12,)), ((2, 8, 6, 7), (8, 1, 3, 3), (8,))
    return [
        Case("pointwise_conv2d", F.pointwise_conv2d, T.conv2d, pixels, last),
        Case(
            "pointwise_conv2d",
            lambda x, w, b: F.pointwise_conv2d(x, w, b, (2, 3)),
            lambda x, w, b: T.conv2d(x, w, b, (2, 3)),
            pixels,
            last,
        ),
        Case(
            "depthwise_conv2d",
            lambda x, w, b: F.depthwise_conv2d(x, w, b, 2, 1),
            lambda x, w, b: T.conv2d(x, w, b, 2, 1, 1, 8),
            depth,
            last,
        ),
        Case(
            "depthwise_conv2d",
            lambda x, w, b: F.depthwise_conv2d(x, w, b, 1, 2, 2),
            lambda x, w, b: T.conv2d(x, w, b, 1, 2, 2, 8),
            depth,
            last,
        ),
        Case(
            "depthwise_conv2d",
            lambda x, w, b: F.depthwise_conv2d(x, w, b, 1, "same"),
            lambda x, w, b: T.conv2d(x, w, b, 1, "same", 1, 8),
            depth,
            last,
        ),
        Case(
            "conv2d",
            lambda x, w, b: F.conv2d(x, w, b, 2, 1),
            lambda x, w, b: T.conv2d(x, w, b, 2, 1),
            ((2, 8, 6, 7), (6, 8, 3, 3), (6,)),
            last,
        ),
        Case(
            "conv2d",
            lambda x, w, b: F.conv2d(x, w, b, 2, 1, 1),
            lambda x, w, b: T.conv2d(x, w, b, 2, 1, 1),
            ((2, 33, 6, 7), (48, 33, 3, 3), (48,)),
            last,
        ),
        Case("dropout", lambda x: F.dropout(x, 0.3, False), lambda x: x, ((2, 8, 16, 16),), last),
        Case(
            "conv2d_batch_norm_act",
            lambda x, w, g, b: F.conv2d_batch_norm_act(x, w, g, b, activation="relu"),
            lambda x, w, g, b: T.relu(T.batch_norm(T.conv2d(x, w), None, None, g, b, True)),
            ((2, 16, 6, 7), (24, 16, 1, 1), (24,), (24,)),
            last,
        ),
        Case("conv_chain", _chain, _stock_chain, ((2, 16, 6, 7), (24, 16, 1, 1), (24, 1, 3, 3)), last),
    ]


_OPERATORS = {
    "channel_shuffle": ("cat_channel_shuffle_split",),
    "cat_channel_shuffle": ("cat_channel_shuffle_split",),
    "cat_channel_shuffle_split": ("cat_channel_shuffle_split",),
    "channel_permutation": ("channel_permutation",),
    "batch_norm": ("batch_norm_act",),
    "batch_norm_act": ("batch_norm_act",),
    "batch_norm_act_max_pool2d": ("batch_norm_act", "max_pool", "max_pool_with_offsets"),
    "batch_norm_relu": ("batch_norm_act",),
    "over_mean_square": (),
    "group_norm": ("group_norm",),
    "instance_norm": ("group_norm",),
    "layer_norm": ("layer_norm",),
    "layer_norm2d": ("layer_norm",),
    "max_pool2d": ("max_pool", "max_pool_with_offsets"),
    "max_pool3d": ("max_pool", "max_pool_with_offsets"),
    "avg_pool2d": ("avg_pool",),
    "avg_pool3d": ("avg_pool",),
    "adaptive_max_pool1d": ("adaptive_max_pool", "adaptive_max_pool_with_index"),
    "adaptive_max_pool2d": ("adaptive_max_pool", "adaptive_max_pool_with_index"),
    "adaptive_max_pool3d": ("adaptive_max_pool", "adaptive_max_pool_with_index"),
    "global_max_pool2d": ("global_amax", "adaptive_max_pool", "adaptive_max_pool_with_index"),
    "grouped_linear": ("grouped_linear",),
    "pointwise_conv2d": ("pointwise_conv2d",),
    "depthwise_conv2d": ("depthwise_conv2d",),
}


def _described(case: Case) -> Case:
    fixed = (1, 2) if case.name.startswith("batch_norm") else ()
    wide = case.name == "conv2d" and case.sizes[1][0] >= 48  # of the others torch's is as fast
    operators = ("conv2d",) if wide else _OPERATORS.get(case.name, ())
    return replace(case, fixed=fixed, operators=operators)


_UNDESCRIBED: list[Case] = [
    *(case for last in (False, True) for case in _channel_cases(last)),
    *(case for last in (False, True) for case in _norm_cases(last)),
    *(case for last in (False, True) for case in _group_norm_cases(last)),
    *(case for last in (False, True) for case in _layer_norm_cases(last)),
    *(case for last in (False, True) for case in _pool_cases(last)),
    *(case for last in (False, True) for case in _convolution_cases(last)),
    *_linear_cases(),
]
FUNCTIONS = [_described(case) for case in _UNDESCRIBED]
# Calls that draw random numbers: alike after the same seed.
RANDOM = [
    Case(
        "dropout",
        lambda x: F.dropout(x, 0.3),
        lambda x: T.dropout(x, 0.3),
        ((2, 8, 16, 16),),
        last,
        operators=("dropout",),
    )
    for last in (False, True)
]


def _module(make: Callable[[], nn.Module], stock: Callable[..., Any], *sizes: tuple[int, ...]) -> Case:
    return Case(make().__class__.__name__, make(), stock, sizes)


def modules() -> list[Case]:
    """Every module of opswap.nn, in evaluation mode: its forward, and the code that does the same."""
    image, row, volume = (2, 6, 4, 5), (2, 6, 7), (2, 6, 3, 4, 5)
    linear = opswap.nn.GroupedLinear(5, 4, 3)
    out = torch.zeros(7, 3, 4, device="cpu")
    fully = opswap.nn.GroupFC()

    def fully_connected(x: Tensor, w: Tensor) -> Tensor:
        result = out.clone()
        fully(x, w, result)
        return result

    cases = [
        _module(lambda: opswap.nn.ChannelShuffle(2), lambda x: _shuffle((x,), 2), image),
        _module(lambda: opswap.nn.IndexSelectFull(2), lambda *t: _shuffle(t, 2), image, image),
        _module(lambda: opswap.nn.IndexSelectHalf(2), lambda *t: _shuffle(t, 2).chunk(2, 1), image, image),
        _module(lambda: opswap.nn.CatChannelShuffle(12), lambda *t: _shuffle(t, 2).chunk(2, 1), image, image),
        _module(lambda: opswap.nn.Pool3dAsPool2d(2), nn.MaxPool3d(2), volume),
        _module(lambda: opswap.nn.AvgPool3dAsPool2d((1, 3, 3)), nn.AvgPool3d((1, 3, 3)), image),
        _module(opswap.nn.GlobalMaxPool2d, nn.AdaptiveMaxPool2d(1), image),
        _module(lambda: linear, lambda x: _grouped(x, linear.weight, linear.bias), (7, 3, 5)),
        Case(
            "GroupFC",
            fully_connected,
            lambda x, w: x.transpose(0, 1).bmm(w).transpose(0, 1),
            ((7, 3, 5), (3, 5, 4)),
        ),
    ]
    for cls, stock, size in (
        (opswap.nn.BatchNormAct1d, nn.BatchNorm1d(6), row),
        (opswap.nn.BatchNormAct2d, nn.BatchNorm2d(6), image),
        (opswap.nn.BatchNormAct3d, nn.BatchNorm3d(6), volume),
    ):
        cases.append(_module(lambda c=cls: c(6).eval(), nn.Sequential(stock, nn.ReLU()).eval(), size))
    return cases


def as_tuple(value: Any) -> Tensors:
    return (value,) if isinstance(value, Tensor) else tuple(value)
