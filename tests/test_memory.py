# SPDX-License-Identifier: MIT
"""opswap.memory: denormals on every thread of the pool, freed blocks, and the count of denormal parameters."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import opswap
from opswap import memory
from surviving import python
from threads import elsewhere, on_threads

SMALL, TINY = 1e-30, 1e-10


@pytest.fixture
def threads() -> Iterator[int]:
    """Four threads, with denormals as they are by default, before and after."""
    with on_threads(4):
        memory.flush_denormals(False)
        yield 4
        memory.flush_denormals(False)


def flushed() -> int:
    """Of 2 ** 18 products that are denormal, computed in a parallel region, those that came out as zero."""
    product = torch.full((1 << 18,), SMALL) * torch.full((1 << 18,), TINY)
    return int((product.view(torch.int32) == 0).sum())


class TestFlushDenormals:
    def test_reaches_every_thread(self, threads: int) -> None:
        assert flushed() == 0
        memory.flush_denormals(True)
        assert flushed() == 1 << 18
        memory.flush_denormals(False)
        assert flushed() == 0

    def test_torch_alone_reaches_one(self, threads: int) -> None:
        """What the switch is for; where torch reaches them all, it can go."""
        torch.set_flush_denormal(True)
        try:
            assert 0 < flushed() < 1 << 18
        finally:
            torch.set_flush_denormal(False)

    def test_operands_too(self, threads: int) -> None:
        memory.flush_denormals(True)
        denormal = torch.full((1 << 18,), 1, dtype=torch.int32).view(torch.float32)
        assert not (denormal * 1e38).any()

    def test_in_a_thread_of_its_own(self, threads: int) -> None:
        def work() -> int:
            memory.flush_denormals(True)
            return flushed()

        assert elsewhere(work) == 1 << 18 and flushed() == 0

    def test_training_step(self, threads: int) -> None:
        model = decayed()
        x = torch.randn(2, 8, 6, 6)
        expected = model(x)
        memory.flush_denormals(True)
        torch.testing.assert_close(model(x), expected)


def decayed() -> nn.Module:
    """A network with a channel that weight decay alone has been at for 2,000 steps."""
    model = nn.Sequential(nn.Conv2d(8, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with torch.no_grad():
        model[0].weight[1:] = 0
        model[2].weight.zero_()
    while model[0].weight.abs().max() > 1e-39:
        optimizer.step()
    return model


class TestDenormalParameters:
    def test_after_weight_decay(self) -> None:
        assert memory.denormal_parameters(nn.Linear(4, 4)) == {}
        counts = memory.denormal_parameters(decayed())
        assert 60 <= counts["0.weight"] <= 72 and "2.weight" not in counts

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_bounds(self, dtype: torch.dtype) -> None:
        info = torch.finfo(dtype)
        values = [0.0, -0.0, 1.0, info.tiny, -info.tiny, info.tiny / 2, -info.smallest_normal / 4]
        values += [float("inf"), float("nan"), info.max]
        layer = nn.Linear(len(values), 1, bias=False, dtype=dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(values, dtype=dtype))
        assert memory.denormal_parameters(layer) == {"weight": 2}

    def test_is_not_fooled_by_flushing(self, threads: int) -> None:
        model = decayed()
        expected = memory.denormal_parameters(model)
        memory.flush_denormals(True)
        assert memory.denormal_parameters(model) == expected

    def test_other_parameters(self) -> None:
        layer = nn.Linear(2, 2, device="meta")
        layer.step = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
        layer.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        assert memory.denormal_parameters(layer) == {}

    def test_scan_and_report(self) -> None:
        model = decayed()
        counts = memory.denormal_parameters(model)
        for report in (opswap.scan(model), opswap.report(opswap.swap(model))):
            assert report.denormals == counts
            assert "0.weight" in str(report) and "denormal" in str(report)


# In a process of its own: in the heap of a long test run, a hole that is large enough may serve either way.
# Without huge pages, of which the kernel gives as many as it has: one fault for 512 pages or for one.
_COUNT_PAGE_FAULTS = """
import ctypes
from pathlib import Path
import torch
from opswap import memory

PR_SET_THP_DISABLE = 41
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

def faults():
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[7])

for kept, size in (False, 48), (True, 48), (False, 400):  # the last one fits into no hole that was kept
    memory.reuse_freed(kept)
    before = faults()
    for _ in range(6):
        torch.ones(size << 20, dtype=torch.uint8)
    print((faults() - before) / size)
"""


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer has replaced malloc")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_blocks_are_kept() -> None:
    before, kept, after = map(float, python(_COUNT_PAGE_FAULTS).split())
    assert kept < before / 2
    assert after > before / 2


def test_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opswap._core, "memory_reuse", lambda on: False)
    with pytest.raises(RuntimeError, match="only glibc"):
        memory.reuse_freed()


def test_threads_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opswap._core, "threads", lambda: 99)
    with pytest.raises(RuntimeError, match="of 99 threads"):
        memory.flush_denormals(False)
    monkeypatch.setattr(opswap._core, "memory_flush", lambda on: 0)
    with pytest.raises(RuntimeError, match="no switch"):
        memory.flush_denormals(False)


# Every reading of a clock that can be set is an hour later than the one before.
JUMPS = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static _Atomic long hours;
    long result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME)
        now->tv_sec += 3600 * ++hours;
    return (int)result;
}

int timespec_get(struct timespec *now, int base)
{
    clock_gettime(CLOCK_REALTIME, now);
    return base;
}
"""
EVERY_THREAD = """
import torch
from opswap import _core
torch.set_num_threads(4)
for _ in range(50):
    assert _core.memory_flush(True) == 4 and _core.memory_flush(False) == 4
print("ran")
"""


@pytest.mark.once
@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"), reason="no C compiler, or another linker"
)
def test_the_wait_for_threads_does_not_follow_a_clock_that_is_set(tmp_path: Path) -> None:
    source, library = tmp_path / "jumps.c", tmp_path / "jumps.so"
    source.write_text(JUMPS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    preload = " ".join(filter(None, (os.environ.get("LD_PRELOAD"), str(library))))
    assert python(EVERY_THREAD, LD_PRELOAD=preload) == "ran\n"
