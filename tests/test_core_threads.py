# SPDX-License-Identifier: MIT
"""Kernels while another thread changes the tier, and on threads with small stacks."""

from __future__ import annotations

import os

import pytest

import opswap
from surviving import survive


class TestThreads:
    def test_the_tier_may_change_while_kernels_run(self) -> None:
        """Results are those of one tier or the other, which maxima and copies make the same; no count is lost."""
        survive(
            """
torch.set_num_threads(2)
x = torch.randn(4, 32, 64, 64)
images = x.to(memory_format=torch.channels_last)
expected = [F.max_pool2d(t, 3, 2, 1) for t in (x, images)]
shuffled = F.channel_shuffle(images, 4)
wrong = []

def work():
    for _ in range(40):
        for t, y in zip((x, images), expected):
            if not torch.equal(F.max_pool2d(t, 3, 2, 1), y):
                wrong.append("max")
            F.batch_norm(t, None, None, training=True)
        if not torch.equal(F.channel_shuffle(images, 4), shuffled):
            wrong.append("shuffle")

before = sum(_core.norm_variants().values())
while_the_tier_changes(work, 3, opswap.isa.available())
assert not wrong, wrong
# Two of the calls have a sampling pass, a pass of sums and one that writes each.
assert sum(_core.norm_variants().values()) - before == 3 * 40 * 2 * 3, sum(_core.norm_variants().values()) - before
"""
        )

    def test_no_family_loses_a_count(self) -> None:
        """Each counts its calls under Python's lock: calls of several threads are as many as of one."""
        survive(
            """
x = torch.randn(2, 64, 32, 32).to(memory_format=torch.channels_last)
wide, taps = torch.randn(64, 64, 3, 3), torch.randn(64, 1, 3, 3)
rows, weight = torch.randn(512, 2, 96), torch.randn(2, 80, 96)
stage, options = (torch.randn(64, 64, 1, 1), *(torch.ones(64) for _ in range(4))), ((1, 0.1, 1e-5, "relu"),)
folded, planes = ((1, 1, 0, 0, 1, 1e-5, "relu"),), x.contiguous()
CALLS = {
    "pool": lambda: _core.max_pool(x, (3, 3), (2, 2), (1, 1), (1, 1), False, 1, True),
    "norm": lambda: _core.batch_norm(True, 0.1, 1e-5, None, x, None, None, None, None, 2, False),
    "norm of groups": lambda: _core.group_norm(8, 1e-5, x, None, None),
    "layer_norm": lambda: _core.layer_norm(1e-5, rows, None, None),
    "channels": lambda: _core.new_shuffled((x,), 4, (32, 32), None, True),
    "linear": lambda: _core.grouped_linear(rows, weight, None, None),
    "depthwise": lambda: _core.depthwise(x, taps, None, 1, 1, 1),
    "conv": lambda: _core.plain_conv_backward(x, x, wide, 1, 1, 1, True, True, True),
    "pointwise": lambda: _core.plain_pointwise(planes, stage[0], None, 1),
    "chain": lambda: _core.plain_chain(options, (x, *stage)),
    "chain folded": lambda: _core.plain_chain_folded(folded, (x, *stage, None), None),
}
assert {name.partition(" ")[0] for name in CALLS} == {
    name.removesuffix("_variants") for name in dir(_core) if name.endswith("_variants")}

def count(name):
    return sum(getattr(_core, name.partition(" ")[0] + "_variants")().values())

sys.setswitchinterval(1e-5)
for name, call in CALLS.items():
    before = count(name)
    call()
    once = count(name) - before
    def repeat():
        for _ in range(50):
            call()
    threads = [threading.Thread(target=repeat) for _ in range(4)]
    before = count(name)
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(name, once, flush=True)
    assert once or opswap.isa.current() == "scalar", name
    assert count(name) - before == 200 * once, (name, once, count(name) - before)
"""
        )

    @pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="sanitizers make frames larger")
    def test_small_stacks(self) -> None:
        """Every kernel fits a thread of 192 KiB, in which the interpreter's own calls lie too."""
        out = survive(
            """
def run():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for last in (False, True):
            x = torch.randn(2, 64, 48, 48).to(dtype)
            x = x.to(memory_format=torch.channels_last) if last else x
            for numbers in ((3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 1), (5, 3, 2, 1), (3, 1, 1, 2)):
                window = [(n, n) for n in numbers]
                y, offsets = _core.max_pool(x, *window, False, 1, True)
                _core.max_pool_backward(y, offsets, tuple(x.shape), *window, 1, last)
                y = _core.avg_pool(x, *window[:3], False, True, None, 1)
                _core.avg_pool_backward(y, tuple(x.shape), *window[:3], False, True, None, 1, last)
            y, index = _core.adaptive_max_pool(x, (2, 64, 7, 7), True)
            _core.adaptive_max_pool_backward(y, index, tuple(x.shape), last)
            _core.max_pool(x, (3, 3), (2, 2), (1, 1), (1, 1), False, 2, True)
            y = _core.amax(x)
            _core.amax_backward(x, y, y)
            if last and dtype is not torch.float64:
                y, statistics = _core.group_norm(8, 1e-5, x, None, None)
                _core.group_norm_backward(8, 1e-5, (True,) * 3, y, x, statistics, None, None)
            odd = torch.empty_like(x[:, :47]).normal_()  # for the tier below, too
            _core.batch_norm(True, 0.1, 1e-5, "gelu", odd, None, None, None, None, 2, False)
            _core.new_shuffled((odd,), 47, (40, 7), None, last)
            made = _core.batch_norm(True, 0.1, 1e-5, "relu", x, None, None, None, None, 2, False)
            _core.batch_norm_backward(True, 1e-5, "relu", (True,) * 3, x, x, made[1], None, None, False)
            _core.new_shuffled((x,), 4, (32, 32), None, last)
        rows, weight = torch.randn(300, 2, 96, dtype=dtype), torch.randn(2, 80, 96, dtype=dtype)
        y, statistics = _core.layer_norm(1e-5, rows, None, None)
        _core.layer_norm_backward(1e-5, (True,) * 3, y, rows, statistics, None, None)
        y = _core.grouped_linear(rows, weight, None, None)
        _core.grouped_linear_backward(y, rows, weight, None, True, True, True)
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(2, 64, 48, 48, dtype=dtype).to(memory_format=torch.channels_last)
        for side in (3, 5):
            w = torch.randn(64, 1, side, side, dtype=dtype)
            y = _core.depthwise(x, w, None, 1, 1, 1)
            _core.depthwise_backward(y, x, w, 1, 1, 1, True, True, True)
            square = torch.randn(64, 64, side, side, dtype=dtype)
            _core.plain_conv(x, square, None, 1, side // 2, 1)
            _core.plain_conv_backward(x, x, square, 1, side // 2, 1, True, True, True)
        w = torch.randn(64, 64, 1, 1, dtype=dtype)
        for images in (x.contiguous(), x[:, :, :3, :5].contiguous()):
            y = _core.plain_pointwise(images, w, None, 1)
            _core.plain_pointwise_backward(y, images, w, 1, True, True, True)
    print("done", flush=True)

on_small_stacks(run)
"""
        )
        assert out.split() == ["done"] * len(opswap.isa.available())
