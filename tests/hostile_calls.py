# SPDX-License-Identifier: MIT
"""Random calls of opswap.functional with odd arguments; a script, since a failing call might end the process.

Usage: hostile_calls.py SEED CALLS. Prints a line for each call that raises another kind of error than a bad argument's,
or whose result differs from that of torch's function. The last call is in a file, SEED.log in the current folder.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as T
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import opswap
import opswap.functional as F
from opswap.ops.chain import Stage

# OverflowError and AttributeError are what torch's own Python wrappers raise of the same arguments.
EXPECTED = (TypeError, ValueError, RuntimeError, IndexError)
NUMBERS: list[Any] = [
    2**31 - 1,
    2**31,
    2**63 - 1,
    2**63,
    2**100,
    -1,
    -(2**63),
    0,
    True,
    False,
    None,
    1.0,
    1.5,
]
NUMBERS += [
    float("nan"),
    "2",
    (2,),
    [2, 2],
    (2, 2, 2),
    [],
    (None, 2),
    [2**40, 2],
    (True, 2),
    (2, -1),
    {},
    object(),
]
NUMBERS += [torch.tensor(2), torch.tensor([2, 2]), (10**6, 10**6), *[1, 2, 2, 3] * 6]
SIZES = [
    (2, 4, 6, 6),
    (2, 4, 6, 6),
    (4, 6, 6),
    (2, 4, 6, 6, 6),
    (0, 4, 6, 6),
    (2, 0, 6, 6),
    (2, 4, 0, 6),
    (4,),
    (),
]
SIZES += [
    (2, 3, 4, 5, 6, 7),
    (1, 1, 1, 1),
    (2, 4),
    (2, 4, 6),
    (2, 8, 5, 5),
    (8, 1, 3, 3),
    (8, 8, 1, 1),
    (4, 3, 4),
]
DTYPES = [torch.float32] * 6 + [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32]
DTYPES += [torch.uint8, torch.bool, torch.complex64, torch.uint16, torch.float8_e4m3fn]


class Subclass(Tensor):
    pass


class Watcher(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


FORMS: list[Callable[[Tensor], Any]] = [
    *[lambda t: t] * 12,
    lambda t: t.to("meta"),
    lambda t: t.to_sparse(),
    lambda t: t.to_mkldnn(),
    lambda t: torch.randn(4, 4).to_sparse_csr(),
    lambda t: t.as_subclass(Subclass),
    lambda t: t.transpose(0, -1),
    lambda t: t[:1].expand_as(t),
    lambda t: t.as_strided(t.shape, [0] * t.dim()),
    lambda t: t.conj() if t.is_complex() else torch._neg_view(t),
    lambda t: t.contiguous(memory_format=torch.channels_last),
    lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8),
    lambda t: torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(3, 3)]),
    lambda t: torch._efficientzerotensor(t.shape, dtype=torch.float32),
    lambda t: torch.nn.Parameter(t),
    lambda t: FakeTensorMode().from_tensor(t),
    *[lambda t, v=v: v for v in (None, "x", 1, [1, 2], object())],
    lambda t: [t],
]
MODES: list[Callable[[], Any]] = [
    *[contextlib.nullcontext] * 6,
    torch.no_grad,
    torch.inference_mode,
    Watcher,
    lambda: torch.autocast("cpu", torch.bfloat16),
    lambda: torch.device("meta"),
    lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    opswap.force_reference,
]
STOCK = {name: getattr(T, name) for name in F.__all__ if hasattr(T, name) and not name.endswith("pool3d")}
del STOCK["channel_shuffle"]  # ours takes (N, C) too
STOCK["over_mean_square"] = lambda x: x / x.pow(2).mean()
STOCK["batch_norm_act_max_pool2d"] = lambda *args: F.max_pool2d(F.batch_norm_act(*args[:9]), *args[9:])
_WINDOW = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def _pooled(*args: Any) -> Tensor:
    return F.batch_norm_act_max_pool2d(*args[:9], **dict(zip(_WINDOW, args[9:], strict=True)))


# Functions with arguments that can be given by name alone.
OURS: dict[str, Callable[..., Any]] = {"batch_norm_act_max_pool2d": _pooled}


class Generator:
    """Draws calls."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed).choice

    def tensor(self) -> Any:
        dtype, t = self.choose(DTYPES), torch.randn(self.choose(SIZES)) * 3
        with contextlib.suppress(Exception):
            t = self.choose(FORMS)(t.to(dtype))
        with contextlib.suppress(Exception):
            if self.choose((True, False)):
                t.requires_grad_()
        return t

    def number(self) -> Any:
        return self.choose(NUMBERS)

    def numbers(self, count: int) -> tuple[Any, ...]:
        return tuple(self.number() for _ in range(count))

    def flag(self) -> Any:
        return self.choose([True, False] * 6 + [None, "x", 2.0])

    def weight(self) -> Any:
        """Of a 1 x 1 or a depthwise convolution, or not."""
        return self.choose([torch.randn(16, 4, 1, 1), torch.randn(4, 1, 3, 3), self.tensor()])

    def vector(self) -> Any:
        return self.choose([torch.rand(self.choose((4, 4, 4, 8, 6, 0)))] * 4 + [None] * 3 + [self.tensor()])

    def momentum(self) -> Any:
        return self.choose([0.1, 0.1, None, -1, "x", float("nan"), True, 2**70])

    def eps(self) -> Any:
        return self.choose([1e-5, 1e-5, 0, -1, None, "x", float("inf")])

    def several(self) -> Any:
        t = self.tensor()
        return self.choose([(t, t), (t, self.tensor()), [t], [], None, t])

    def call(self) -> tuple[str, tuple[Any, ...]]:
        """The name of a function and its arguments."""
        name = self.choose(F.__all__)
        if name.startswith("max_pool"):
            return name, (self.tensor(), *self.numbers(4), self.flag(), self.choose((True, False)))
        if name.startswith("avg_pool"):
            return name, (self.tensor(), *self.numbers(3), self.flag(), self.flag(), self.number())
        if name.startswith("adaptive"):
            return name, (self.tensor(), self.number(), self.choose((True, False)))
        if name.startswith("batch_norm"):
            vectors = [self.vector() for _ in range(4)]
            activation = (self.choose(["relu", "x", None, 1, b"relu", "relu\0"]),) * ("act" in name)
            window = (*self.numbers(4), self.flag()) * name.endswith("pool2d")
            settings = (self.flag(), self.momentum(), self.eps())
            return name, (self.tensor(), *vectors, *settings, *activation, *window)
        return name, {
            "channel_shuffle": lambda: (self.tensor(), self.number()),
            "cat_channel_shuffle": lambda: (self.several(), self.number()),
            "cat_channel_shuffle_split": lambda: (self.several(), *self.numbers(2)),
            "channel_permutation": lambda: (
                self.tensor(),
                self.choose(
                    [(0, 1, 2, 3), (3, 2, 1, 0), (0,), [], None, (0, 2**63), (-1, 0, 1, 2), (0.0, 1)]
                ),
            ),
            "depthwise_conv2d": lambda: (
                self.tensor(),
                self.choose([torch.randn(8, 1, 3, 3), torch.randn(4, 1, 3, 3), self.tensor()]),
                self.vector(),
                self.number(),
                self.choose([self.number(), "same", "x"]),
                self.number(),
            ),
            "conv2d": lambda: (
                self.tensor(),
                self.choose([torch.randn(8, 4, 3, 3), torch.randn(4, 2, 1, 3).bfloat16(), self.tensor()]),
                self.vector(),
                self.number(),
                self.choose([self.number(), "same", "valid", "x"]),
                *self.numbers(2),
            ),
            "group_norm": lambda: (
                self.tensor(),
                self.choose([1, 2, 4, self.number()]),
                self.vector(),
                self.vector(),
                self.eps(),
            ),
            "instance_norm": lambda: (
                self.tensor(),
                *(self.choose([None, None, self.vector()]) for _ in range(2)),
                *(self.vector() for _ in range(2)),
                self.flag(),
                self.momentum(),
                self.eps(),
            ),
            "layer_norm": lambda: (
                self.tensor(),
                self.choose([(4,), [5], (2, 3), self.number()]),
                self.vector(),
                self.vector(),
                self.eps(),
            ),
            "over_mean_square": lambda: (self.tensor(),),
            "layer_norm2d": lambda: (self.tensor(), self.vector(), self.vector(), self.eps()),
            "linear": lambda: (self.tensor(), self.choose([torch.randn(5, 4), self.tensor()]), self.vector()),
            "pointwise_conv2d": lambda: (
                self.tensor(),
                self.choose([torch.randn(8, 4, 1, 1), self.tensor()]),
                self.vector(),
            ),
            "grouped_linear": lambda: (
                *(self.tensor() for _ in range(2)),
                self.choose([None, self.tensor()]),
                self.choose([None, None, self.number(), [2, 2], [4, -4, 8]]),
            ),
            "dropout": lambda: (
                self.tensor(),
                self.choose([0.5, 0.3, 0.0, 1.0, -1.0, float("nan"), None, "x", True, torch.tensor(0.5)]),
                self.flag(),
                self.flag(),
            ),
            "global_max_pool2d": lambda: (self.tensor(),),
            "conv2d_batch_norm_act": lambda: (
                self.tensor(),
                self.weight(),
                *(self.vector() for _ in range(4)),
            ),
            "conv_chain": lambda: (
                self.tensor(),
                self.choose(
                    [(), None, [Stage(self.weight(), self.vector(), self.vector())], [self.tensor()]]
                ),
            ),
        }[name]()


def run(
    function: Callable[..., Any], args: tuple[Any, ...], mode: Callable[[], Any]
) -> tuple[Any, list[Tensor]]:
    """The error, or None and the outputs, of which the first is differentiated."""
    torch.manual_seed(5)
    try:
        with mode():
            made = function(*args)
            outputs = [
                t for t in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(t, Tensor)
            ]
            if outputs and outputs[0].requires_grad:
                outputs[0].sum().backward()
        return None, [t.detach() for t in outputs]
    except Exception as error:
        return error, []


def differ(ours: list[Tensor], stock: list[Tensor]) -> bool:
    """True where two strided tensors with data have other values."""
    for a, b in zip(ours, stock, strict=True):
        if (
            a.is_nested
            or a.layout is not torch.strided
            or a.is_meta
            or type(a) is not Tensor
            or a.is_quantized
            or (a.is_neg() and a.dtype is torch.bool)  # torch has no negative of it
        ):
            continue
        wide = torch.complex128 if a.is_complex() else torch.float64
        if a.shape != b.shape or a.dtype != b.dtype:
            return True
        if not torch.allclose(a.to(wide), b.to(wide), 1e-2, 1e-2, equal_nan=True):
            return True
    return False


def describe(value: Any) -> str:
    if isinstance(value, Tensor):
        shape = "nested" if value.is_nested else tuple(value.shape)
        return f"{type(value).__name__} {shape} {value.dtype} {value.layout} {value.device} {value.requires_grad}"
    return str([describe(v) for v in value]) if isinstance(value, (list, tuple)) else repr(value)


def is_expected(error: Any, stock: Any) -> bool:
    if error is None or type(error) is type(stock):
        return True
    # Tensors of a FakeTensorMode beside others, and what torch's own code in Python raises.
    if isinstance(error, AssertionError) and "FakeTensor" in str(error):
        return True
    return isinstance(error, EXPECTED) and "INTERNAL ASSERT" not in str(error)


def main(seed: int, calls: int) -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    generator = Generator(seed)
    torch.manual_seed(seed)
    with open(f"{seed}.log", "w") as log:
        for i in range(calls):
            (name, args), mode = generator.call(), generator.choose(MODES)
            text = f"{i} {name} {getattr(mode, '__name__', mode)} {describe(args)}"
            log.seek(0)
            log.truncate()
            log.write(text)
            log.flush()
            error, outputs = run(OURS.get(name) or getattr(F, name), args, mode)
            stock = STOCK.get(name) if mode is not opswap.force_reference else None
            expected, theirs = run(stock, args, mode) if stock else (None, [])
            if not is_expected(error, expected):
                print(f"{text}: {error!r}, torch {expected!r}")
            elif stock and error is None and expected is None and differ(outputs, theirs):
                print(f"{text}: other values than torch's")
    print(f"{calls} calls")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
