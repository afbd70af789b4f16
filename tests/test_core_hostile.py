# SPDX-License-Identifier: MIT
"""Calls that try to crash the process: each table runs in a process of its own, which must end by itself."""

from __future__ import annotations

import pytest

from surviving import survive

INTS = (
    "INTS = (2**63 - 1, 2**63, 2**64, -2**63, 2**62, 2**32, 2**31, 2**31 - 1, -1, 0, True, 2**31 + 1, 10**30)"
)


class TestNumbers:
    """Sizes that overflow: every number that an entry takes, at and beyond every edge."""

    def test_shuffles(self) -> None:
        out = survive(
            INTS
            + """
x = torch.randn(1, 8, 4, 4)
pieces = F.cat_channel_shuffle_split([x], 2, 2**63 - 1)
assert len(pieces) == 8 and all(p.shape == (1, 1, 4, 4) for p in pieces)
for n in INTS:
    for inverse in (False, True):
        attempt(f"groups {n}", lambda: F.cat_channel_shuffle([x, x], n, inverse=inverse))
        attempt(f"sections {n}", lambda: F.cat_channel_shuffle_split([x, x], 2, n, inverse=inverse))
        attempt(f"list {n}", lambda: F.cat_channel_shuffle_split([x, x], 2, [n, 16 - n], inverse=inverse))
        attempt(f"twice {n}", lambda: F.cat_channel_shuffle_split([x, x], 2, [n, n], inverse=inverse))
    attempt(f"core {n}", lambda: _core.new_shuffled((x,), n, (8,), None, False))
    attempt(f"core sections {n}", lambda: _core.new_shuffled((x,), 2, (n, 8 - n), None, False))
    attempt(f"core wraps {n}", lambda: _core.new_shuffled((x,), 2, (n, n, 8), None, False))
    attempt(f"describe {n}", lambda: _core.describe_shuffle((x,), n, n, True))
wide = torch.empty(0, 2**61, 1)
attempt("sum of channels", lambda: F.cat_channel_shuffle([wide] * 8, 2))
attempt("described", lambda: _core.describe_shuffle((wide,) * 8, 2, 2**61, False))
"""
        )
        assert "core wraps -1" in out

    @pytest.mark.parametrize("tier", ["scalar", "best"])
    def test_windows(self, tier: str) -> None:
        survive(
            INTS
            + """
x = torch.randn(1, 8, 4, 4)
v = torch.randn(1, 8, 3, 4, 4)
whole = torch.arange(128).reshape(1, 8, 4, 4)
for n in INTS:
    for name, kernel, stride, padding, dilation in (
        ("kernel", n, 1, 0, 1), ("stride", 2, n, 0, 1), ("padding", 2, 1, n, 1), ("dilation", 2, 1, 0, n),
        ("kernel and padding", n, 1, n // 2, 1), ("kernel and stride", n, n, n // 2, 1),
        ("all", n, n, n // 2, n),
    ):
        label = f"{name} {n}"
        attempt("max " + label, lambda: F.max_pool2d(x, kernel, stride, padding, dilation))
        attempt("max " + label, lambda: F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode=True))
        if not (n == 2**31 - 1 and name.startswith("kernel and")):  # torch's code runs, for 20 seconds
            attempt("indices " + label, lambda: F.max_pool2d(x, kernel, stride, padding, dilation, return_indices=True))
        attempt("volumes " + label, lambda: F.max_pool3d(v, kernel, stride, padding, dilation))
        attempt("avg " + label, lambda: F.avg_pool3d(v, kernel, stride, padding))
        for include in (False, True):
            attempt("avg " + label, lambda: _core.avg_pool(
                whole, (kernel,) * 2, (stride,) * 2, (padding,) * 2, True, include, None, 1))
        attempt("core " + label, lambda: _core.max_pool(
            x, (kernel,) * 2, (stride,) * 2, (padding,) * 2, (dilation,) * 2, True, 1, True))
    attempt(f"step {n}", lambda: _core.max_pool(x, (2, 2), (2, 2), (0, 0), (1, 1), False, n, True))
    attempt(f"step {n}", lambda: _core.avg_pool(x, (2, 2), (2, 2), (0, 0), False, True, None, n))
    attempt(f"divisor {n}", lambda: _core.avg_pool(whole, (2, 2), (2, 2), (0, 0), False, True, n, 1))
    attempt(f"divisor {n}", lambda: F.avg_pool3d(v, 2, divisor_override=n))
    attempt(f"adaptive {n}", lambda: F.adaptive_max_pool2d(x, n if abs(n) < 2**31 or n > 2**40 else 3))
    attempt(f"size {n}", lambda: _core.adaptive_max_pool(x, (1, 8, n, n), True))
    attempt(f"size {n}", lambda: _core.adaptive_max_pool_backward(
        x, torch.zeros(1, 8, 4, 4, dtype=torch.int32), (1, 8, n, 2**40), False))
    attempt(f"size {n}", lambda: _core.max_pool_backward(
        x, torch.zeros(1, 8, 4, 4, dtype=torch.uint8), (n, 8, n, 8), (2, 2), (2, 2), (0, 0), (1, 1), 1, True))
    attempt(f"indices {n}", lambda: _core.max_pool_indices(
        torch.zeros(1, 8, 1, 1, dtype=torch.int32), torch.zeros(1, 8, 1, 1, dtype=torch.int64),
        (n, n), (n, n), (n, n), (n // 2, n // 2), (n, n)))
""",
            OPSWAP_ISA="" if tier == "best" else tier,
        )

    def test_positions_stay_below_two_to_the_31st(self) -> None:
        """Planes of more elements than an int32 position can name, without their memory: every stride is 0."""
        out = survive(
            """
for size in ((2**16, 2**15), (2**31, 1), (1, 2**31), (2**15, 2**16 + 1), (2**32, 2)):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.zeros(1, dtype=dtype).as_strided((1, 1, *size), (0, 0, 0, 0))
        for with_index in (True, False):
            attempt(f"adaptive {size}", lambda: _core.adaptive_max_pool(x, (1, 1, 1, 1), with_index))
        attempt(f"amax {size}", lambda: _core.amax(x))
        y = torch.zeros(1, 1, 1, 1, dtype=dtype)
        index = torch.zeros(1, 1, 1, 1, dtype=torch.int32)
        attempt(f"backward {size}", lambda: _core.adaptive_max_pool_backward(y, index, (1, 1, *size), False))
"""
        )
        assert out.count("RuntimeError") == 5 * 3 * 4

    def test_integer_averages_do_not_trap(self) -> None:
        """The kernel's area may wrap to 0, and the least int64 divided by -1 overflows: both trap on x86."""
        survive(
            """
v = torch.ones(1, 1, 2, 2, 2, dtype=torch.int64)
sides = (2**22, 2**21, 2**21)
got = attempt("area 0", lambda: _core.avg_pool(
    v, sides, sides, tuple(s // 2 for s in sides), False, True, None, 1))
least = torch.full((1, 1, 2, 2), -2**63)
got = attempt("least", lambda: _core.avg_pool(least, (1, 1), (1, 1), (0, 0), False, True, -1, 1))
assert torch.equal(got, least)
got = attempt("backward", lambda: _core.avg_pool_backward(
    least, (1, 1, 2, 2), (1, 1), (1, 1), (0, 0), False, True, -1, 1, False))
assert torch.equal(got, least)
"""
        )

    def test_linear_maps_convolutions_and_masks(self) -> None:
        survive(
            INTS
            + """
x, w = torch.randn(2, 2, 3), torch.randn(8, 3)
image = torch.randn(1, 8, 6, 6).to(memory_format=torch.channels_last)
for n in INTS:
    attempt(f"sections {n}", lambda: _core.grouped_linear(x, w, None, (n, 8 - n)))
    attempt(f"sections {n}", lambda: _core.grouped_linear(x, w, None, (n, n)))
    attempt(f"public {n}", lambda: F.grouped_linear(x, w, None, (n, n)))
    for window in (
            (n, 1, 1), (1, n, 1), (2, n, 1), (n, n, 1), ((1, 1), (n, 0), 1), ((1, 1), (0, n), 1),
            (1, 1, n), (1, n, n), (n, n, n), (1, (0, n), (n, n))):
        attempt(f"depthwise {n}", lambda: _core.depthwise(image, torch.randn(8, 1, 3, 3), None, *window))
        attempt(f"depthwise {n}", lambda: _core.depthwise_backward(
            image, image, torch.randn(8, 1, 3, 3), *window, True, True, True))
    for window in ((n, 1, 1), (1, n, 1), (1, 1, n), (n, n, n), ((1, n), (n, 1), 1), ((n,), [n, n], (1, n))):
        attempt(f"conv {n}", lambda: _core.plain_conv_backward(
            image, image, torch.randn(8, 8, 3, 3), *window, True, True, True))
        attempt(f"output {n}", lambda: _core.plain_conv(image, torch.randn(8, 8, 3, 3), None, *window))
        wide = torch.randn(1, 8, 1, 1).to(memory_format=torch.channels_last).expand(1 << 20, 8, 1 << 18, 1 << 18)
        attempt(f"wide {n}", lambda: _core.plain_conv_backward(
            wide, wide, torch.randn(8, 8, 1, 1), *window, False, True, True))
    attempt(f"count {n}", lambda: _core.draw_mask(torch.Generator(), 0.5, n, torch.empty(1, dtype=torch.uint8)))
    attempt(f"keep {n}", lambda: _core.draw_mask(torch.Generator(), n, 8, torch.empty(1, dtype=torch.uint8)))
    attempt(f"result {n}", lambda: _core.batch_norm(
        True, 0.1, 1e-5, None, image, None, None, None, None, n, False))
"""
        )

    def test_loops_end_with_the_input(self) -> None:
        """A window of 2^31 taps over a few positions, forward and backward, in every form: at once.

        In 64 planes, so that a loop over all taps in any of them takes minutes.
        """
        survive(
            """
side = 2**31 - 1
for memory_format in (torch.contiguous_format, torch.channels_last):
    x = torch.randn(1, 64, 4, 4).to(memory_format=memory_format)
    y = F.max_pool2d(x, side, padding=2**30 - 1)
    assert torch.equal(y, x.amax((2, 3), keepdim=True))  # a window covers its plane
    x.requires_grad_()
    F.max_pool2d(x, (side, 1), padding=(2**30 - 1, 0)).sum().backward()
    assert x.grad.sum() == 256
    for kernel, padding in (((side, 1), (2**30 - 1, 0)), ((1, side), (0, 2**30 - 1)), ((side, side), (2**30 - 1,) * 2)):
        data, last = x.detach(), memory_format is torch.channels_last
        y, offsets = _core.max_pool(data, kernel, (1, 1), padding, (1, 1), False, 1, kernel[0] * kernel[1] < 2**31)
        z = _core.avg_pool(data, kernel, kernel, padding, False, False, None, 1)
        g = _core.avg_pool_backward(z, (1, 64, 4, 4), kernel, kernel, padding, False, False, None, 1, last)
        assert g.shape == x.shape
        if offsets is not None:
            g = _core.max_pool_backward(y, offsets, (1, 64, 4, 4), kernel, (1, 1), padding, (1, 1), 1, last)
            assert torch.isclose(g.sum(), y.sum(), rtol=1e-3, atol=1e-3)
            indices = torch.empty_like(offsets, dtype=torch.int64)
            _core.max_pool_indices(offsets, indices, (4, 4), kernel, (1, 1), padding, (1, 1))
            assert 0 <= indices.min() and indices.max() < 16
""",
            timeout=120,
        )


# Calls of every entry that makes tensors, for an input `x` (1, 8, 6, 6) float32, channels_last, of any type.
CALLS = """
from torch import Tensor
g = torch.randn(1, 8, 6, 6).to(memory_format=torch.channels_last)
small = torch.randn(1, 8, 3, 3).to(memory_format=torch.channels_last)
CALLS = {
    "max_pool": lambda x: _core.max_pool(x, (2, 2), (2, 2), (0, 0), (1, 1), False, 1, True),
    "max_pool_backward": lambda x: _core.max_pool_backward(
        x, torch.zeros(x.shape, dtype=torch.uint8).to(memory_format=torch.channels_last), (1, 8, 12, 12),
        (2, 2), (2, 2), (0, 0), (1, 1), 1, True),
    "avg_pool": lambda x: _core.avg_pool(x, (2, 2), (2, 2), (0, 0), False, True, None, 1),
    "avg_pool_backward": lambda x: _core.avg_pool_backward(
        x, (1, 8, 12, 12), (2, 2), (2, 2), (0, 0), False, True, None, 1, True),
    "adaptive": lambda x: _core.adaptive_max_pool(x, (1, 8, 3, 3), True),
    "adaptive_backward": lambda x: _core.adaptive_max_pool_backward(
        x, torch.zeros(x.shape, dtype=torch.int32).to(memory_format=torch.channels_last), (1, 8, 12, 12), True),
    "amax": lambda x: _core.amax(x),
    "amax_backward": lambda x: _core.amax_backward(x, torch.randn(1, 8), torch.randn(1, 8)),
    "batch_norm": lambda x: _core.batch_norm(True, 0.1, 1e-5, None, x, None, None, None, None, 2, False),
    "batch_norm_backward": lambda x: _core.batch_norm_backward(
        True, 1e-5, None, (True, True, True), g, x, torch.ones(2, 8, dtype=torch.float64), torch.ones(8),
        torch.ones(8), False),
    "shuffle": lambda x: _core.new_shuffled((x, g), 2, (8, 8), None, True),
    "depthwise": lambda x: _core.depthwise(x, torch.randn(8, 1, 3, 3), None, 1, 1, 1),
    "depthwise_backward": lambda x: _core.depthwise_backward(
        g, x, torch.randn(8, 1, 3, 3), 1, 1, 1, True, True, True),
    "linear": lambda x: _core.grouped_linear(
        x.as_strided((6, 8, 6), (48, 6, 1)), torch.randn(8, 4, 6), None, None),
    "linear_backward": lambda x: _core.grouped_linear_backward(
        torch.randn(6, 8, 4), x.as_strided((6, 8, 6), (48, 6, 1)), torch.randn(8, 4, 6), None, True, True, True),
}
"""


# Functions that make other tensors than they are asked for.
BEHAVIOURS = """
def other_size(make, like, size, stride, **k): return torch.empty(1, dtype=like.dtype)
def no_dimension(make, like, size, stride, **k): return torch.empty(())
def shorter(make, like, size, stride, **k): return make(like, (*size[:-1], max(size[-1] - 1, 0)), stride, **k)
def other_strides(make, like, size, stride, **k): return torch.empty(size, **k).t() if len(size) == 2 else (
    torch.empty(*size, 3)[..., 0])
def all_one_place(make, like, size, stride, **k): return make(like, (1,) * len(size), stride, **k).expand(size)
def other_dtype(make, like, size, stride, **k): return torch.empty_strided(size, stride, dtype=torch.float16)
def no_memory(make, like, size, stride, **k): return torch.empty_strided(size, stride, device="meta")
def a_list(make, like, size, stride, **k): return [1]
def nothing(make, like, size, stride, **k): return None
def resizes(make, like, size, stride, **k):
    Tensor.resize_(like, (0,))
    return make(like, size, stride, **k)
def moves(make, like, size, stride, **k):
    Tensor.set_(like, torch.empty(0))
    return make(like, size, stride, **k)
"""
# A sequence that makes its items on the fly.
MADE = """
class Made:
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i):
        if i >= self.n: raise IndexError
        return tuple([1, 1])
"""
# In a loop over `behaviour`: a subclass of which new tensors are made by that function.
ODD = """
    class Odd(Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                if function is Tensor.new_empty_strided:
                    return behaviour(function, *args, **(kwargs or {}))
                return function(*args, **(kwargs or {}))
"""


class TestOutputs:
    """A tensor that a subclass makes is compared with what was asked for, and inputs with what they were."""

    def test_what_a_subclass_makes(self) -> None:
        out = survive(
            CALLS
            + BEHAVIOURS
            + """
refused = 0
for behaviour in (other_size, no_dimension, shorter, other_strides, all_one_place, other_dtype, no_memory, a_list,
                  nothing, resizes, moves):
"""
            + ODD
            + """
    for name, call in CALLS.items():
        x = torch.randn(1, 8, 6, 6).to(memory_format=torch.channels_last).as_subclass(Odd)
        refused += isinstance(attempt(f"{behaviour.__name__} {name}", lambda: call(x)), Exception)
print("refused", refused)
"""
        )
        assert int(out.split()[-1]) > 100

    def test_attributes_of_one_tensor_are_not_asked(self) -> None:
        survive(
            CALLS
            + """
for name, call in CALLS.items():
    x = torch.randn(1, 8, 6, 6).to(memory_format=torch.channels_last)
    expected = call(x)
    x.new_empty_strided = lambda *a, **k: torch.empty(1)
    x.is_neg = x.is_conj = lambda: 1 / 0
    made = call(x)
    assert type(made) is type(expected), (name, made)
x = torch.randn(8, 64, 56, 56)
expected = F.batch_norm(x, None, None, training=True)
x.new_empty_strided = lambda *a, **k: torch.empty(1)
assert torch.equal(F.batch_norm(x, None, None, training=True), expected)
"""
        )


# A number whose conversion takes the memory of every tensor in `tensors`.
NUMBERS = """
tensors = []

class Number:
    def __init__(self, value, spoil):
        self.value, self.spoil = value, spoil
    def act(self):
        for t in tensors:
            try:
                t.resize_(0) if self.spoil == "resize" else t.set_(torch.empty(0, dtype=t.dtype))
            except RuntimeError:
                pass
        return self.value
    __index__ = act
    def __float__(self):
        return float(self.act())
    def __bool__(self):
        return bool(self.act())
"""


class TestNumbersThatRunCode:
    """Numbers are parsed first: an __index__ or a __float__ may do anything to a tensor of the call."""

    def test_every_entry(self) -> None:
        survive(
            NUMBERS
            + """
def fresh(*shape, dtype=torch.float32):
    # In a mapping of its own: reading it after it is freed is a fault.
    tensors.append(torch.ones(*shape, dtype=dtype))
    return tensors[-1]

BIG = (1, 64, 256, 256)
for spoil in ("resize", "set"):
    def n(value):
        return Number(value, spoil)
    def each(values):
        for i in range(len(values)):
            yield tuple(n(v) if i == j else v for j, v in enumerate(values))
    def numbers():
        for i in range(8):
            yield i
    def call(name, make):
        tensors.clear()
        attempt(f"{spoil} {name}", make)
    for k in each((2, 2)):
        call("max", lambda: _core.max_pool(fresh(*BIG), k, (2, 2), (0, 0), (1, 1), False, 1, True))
        call("max", lambda: _core.max_pool(fresh(*BIG), (2, 2), k, (0, 0), (1, 1), False, 1, True))
        call("avg", lambda: _core.avg_pool(fresh(*BIG), k, (2, 2), (0, 0), False, True, None, 1))
        call("avgb", lambda: _core.avg_pool_backward(
            fresh(1, 64, 128, 128), BIG, k, (2, 2), (0, 0), False, True, None, 1, False))
        call("maxb", lambda: _core.max_pool_backward(
            fresh(1, 64, 128, 128), fresh(1, 64, 128, 128, dtype=torch.uint8), BIG, k, (2, 2), (0, 0), (1, 1), 1,
            False))
        call("plain maxb", lambda: _core.plain_max_pool_backward(
            (k, (2, 2), (0, 0), (1, 1), False), 1, BIG, torch.contiguous_format,
            fresh(1, 64, 128, 128, dtype=torch.uint8), fresh(1, 64, 128, 128)))
        call("plain avgb", lambda: _core.plain_avg_pool_backward(
            (k, (2, 2), (0, 0), False, True, None, 1), BIG, torch.contiguous_format, fresh(1, 64, 128, 128)))
        call("indices", lambda: _core.max_pool_indices(
            fresh(1, 64, 128, 128, dtype=torch.uint8), fresh(1, 64, 128, 128, dtype=torch.int64), (256, 256), k,
            (2, 2), (0, 0), (1, 1)))
    call("step", lambda: _core.max_pool(fresh(*BIG), (2, 2), (2, 2), (0, 0), (1, 1), False, n(1), True))
    call("step", lambda: _core.avg_pool(fresh(*BIG), (2, 2), (2, 2), (0, 0), False, True, None, n(1)))
    call("divisor", lambda: _core.avg_pool(fresh(*BIG), (2, 2), (2, 2), (0, 0), False, True, n(4), 1))
    for size in each((1, 64, 3, 3)):
        call("adaptive", lambda: _core.adaptive_max_pool(fresh(*BIG), size, True))
        call("adaptiveb", lambda: _core.adaptive_max_pool_backward(
            fresh(1, 64, 3, 3), fresh(1, 64, 3, 3, dtype=torch.int32), size, False))
    call("momentum", lambda: _core.batch_norm(True, n(0.1), 1e-5, None, fresh(*BIG), None, None, None, None, 2, False))
    call("eps", lambda: _core.batch_norm(True, 0.1, n(1), None, fresh(*BIG), None, None, None, None, 2, False))
    call("result", lambda: _core.batch_norm(True, 0.1, 1, None, fresh(*BIG), None, None, None, None, n(2), False))
    call("groups", lambda: _core.new_shuffled((fresh(*BIG),), n(2), (64,), None, False))
    call("wanted", lambda: _core.new_shuffled((fresh(*BIG),), 2, (64,), (n(1),), False))
    call("last", lambda: _core.new_shuffled((fresh(*BIG),), 2, (64,), None, n(0)))
    for sections in each((2000, 2000)):
        call("sections", lambda: _core.grouped_linear(
            fresh(500, 2, 500), fresh(4000, 500), None, sections))
    call("count", lambda: _core.draw_mask(torch.Generator(), 0.5, n(2**20), fresh(2**17, dtype=torch.uint8)))
    call("keep", lambda: _core.draw_mask(torch.Generator(), n(1), 2**20, fresh(2**17, dtype=torch.uint8)))
    call("scale", lambda: _core.apply_mask(
        fresh(2**20), fresh(2**17, dtype=torch.uint8), n(2.0), fresh(2**20)))
"""
        )

    def test_what_is_no_tuple(self) -> None:
        """Sequences that make their items on the fly, hold too few, or change while they are read."""
        survive(
            MADE
            + """
x = torch.randn(1, 8, 4, 4)
offsets = torch.zeros(1, 8, 4, 4, dtype=torch.uint8)
size = (1, 8, 4, 4)
for odd in (Made(5), Made(7), [1] * 5, [1] * 7, (), (1,), None, 5, "12345", {1: 2}, iter(()), range(5), x, Made(2**31)):
    attempt("max", lambda: _core.plain_max_pool_backward(odd, 1, size, torch.contiguous_format, offsets, x))
    attempt("avg", lambda: _core.plain_avg_pool_backward(odd, size, torch.contiguous_format, x))
    attempt("kernel", lambda: _core.max_pool(x, odd, (1, 1), (0, 0), (1, 1), False, 1, True))
    attempt("stride", lambda: _core.max_pool(x, (1, 1), odd, (0, 0), (1, 1), False, 1, True))
    attempt("size", lambda: _core.adaptive_max_pool(x, odd, True))
    attempt("size", lambda: _core.adaptive_max_pool_backward(x, offsets.int(), odd, True))
    attempt("size", lambda: _core.max_pool_backward(
        x, offsets, odd, (1, 1), (1, 1), (0, 0), (1, 1), 1, False))
    attempt("shuffle", lambda: _core.new_shuffled(odd, 2, (8,), None, False))
    attempt("sections", lambda: _core.new_shuffled((x,), 2, odd, None, False))
    attempt("wanted", lambda: _core.new_shuffled((x,), 2, (8,), odd, False))
    attempt("needed", lambda: _core.batch_norm_backward(
        True, 1e-5, None, odd, x, x, torch.ones(2, 8, dtype=torch.float64), None, None, False))
    attempt("linear", lambda: _core.grouped_linear(torch.ones(2, 2, 3), torch.ones(8, 3), None, odd))
    attempt("plain", lambda: _core.plain_tensors(odd))
    attempt("depthwise", lambda: _core.depthwise(x, torch.ones(8, 1, 3, 3), None, odd, odd, odd))
attempt("three dimensions", lambda: _core.adaptive_max_pool_backward(
    torch.ones(3), torch.zeros(3, dtype=torch.int32), (3,), True))
for ndim in range(9):
    t = torch.ones((1,) * ndim)
    for last in (False, True):
        attempt("ndim", lambda: _core.adaptive_max_pool_backward(t, t.int(), tuple(t.shape), last))
        attempt("ndim", lambda: _core.new_shuffled((t,), 1, (1,), None, last))
    attempt("ndim", lambda: _core.adaptive_max_pool(t, tuple(t.shape), True))
    attempt("ndim", lambda: _core.amax(t))
    attempt("ndim", lambda: _core.amax_backward(t, torch.ones(1, 1), torch.ones(1, 1)))
    attempt("ndim", lambda: _core.batch_norm(True, 0.1, 1e-5, None, t, None, None, None, None, 2, False))
items = []
class Spoils:
    pass
c = torch.ones(3, dtype=torch.complex64)
c.is_neg = lambda: items.clear()
items.extend([c, torch.ones(1)])
del c
attempt("list", lambda: _core.plain_tensors(items))
"""
        )


class TestReleasedMemory:
    """Tensors whose memory was released: torch's own operators would crash on them."""

    def test_tensors_and_gradients(self) -> None:
        out = survive(
            """
def gone(*size):
    t = torch.randn(*size)
    t.untyped_storage().resize_(0)
    return t

calls = {
    "shuffle": lambda x: F.channel_shuffle(x, 2),
    "cat": lambda x: F.cat_channel_shuffle([x, x], 2),
    "max pool": lambda x: F.max_pool2d(x, 2),
    "indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "adaptive": lambda x: F.adaptive_max_pool2d(x, 1),
    "norm": lambda x: F.batch_norm(x, None, None, training=True),
    "dropout": lambda x: F.dropout(x, 0.5),
}
for name, call in calls.items():
    attempt(name, lambda: call(gone(2, 8, 16, 16)))
    x = torch.randn(2, 8, 16, 16, requires_grad=True)
    y = call(x)
    if name != "dropout":
        attempt(f"{name} backward", lambda: y.backward(gone(*y.shape)))
    empty = torch.empty(2, 8, 4, 4, device="meta", requires_grad=True)
    attempt(f"{name} on meta", lambda: call(empty).sum().backward())
x = torch.randn(2, 8, 4, 4)
for training in (True, False):
    attempt("running statistics", lambda: F.batch_norm(x, gone(8), gone(8), training=training))
    attempt("weight", lambda: F.batch_norm(x, torch.zeros(8), torch.ones(8), gone(8), gone(8), training=training))
"""
        )
        assert out.count("RuntimeError") >= 2 * 7
