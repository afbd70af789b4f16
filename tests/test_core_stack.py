# SPDX-License-Identifier: MIT
"""Kernels and what they call leave room on a stack of 64 KiB: read from the machine code, in which nothing is missed.

-Wframe-larger-than in setup.py looks at one function at a time. Here the frames along direct calls are summed. The
tiers that wheels lack (portable16, portable32, portable64) are compiled with little optimization and spill far more.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections import defaultdict

import pytest

from opswap import _core

_LIMIT = 56 << 10  # the callers of a kernel need little beside
_FUNCTION = re.compile(r"([0-9a-f]+) <(.+)>:$")
_ALLOCATION = re.compile(r"sub\s+\$0x([0-9a-f]+),%rsp")
_CALL = re.compile(r"call\s+([0-9a-f]+) <[^+>@]+>")


def read_functions(text: str) -> tuple[dict[int, str], dict[int, int], dict[int, set[int]]]:
    """Of each function by its address: its name, the bytes of its frame, and what it calls directly."""
    names: dict[int, str] = {}
    frames: dict[int, int] = {}
    calls: dict[int, set[int]] = defaultdict(set)
    address = -1
    for line in text.splitlines():
        started = _FUNCTION.match(line)
        if started:
            address = int(started.group(1), 16)
            names[address], frames[address] = started.group(2), 8  # the return address
        fields = line.split("\t")
        if len(fields) < 2:
            continue
        allocated, called = _ALLOCATION.match(fields[1]), _CALL.match(fields[1])
        if allocated:
            size = int(allocated.group(1), 16)
            frames[address] += size if size < 1 << 63 else (1 << 64) - size  # sub -128 is add 128
        elif fields[1].startswith("push"):
            frames[address] += 8
        elif called:
            calls[address].add(int(called.group(1), 16))
    return names, frames, calls


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the machine code of x86-64")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is missing")
def test_no_chain_of_direct_calls_is_deep() -> None:
    command = ["objdump", "-d", "--no-show-raw-insn", _core.__file__]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "__asan" in text or "__ubsan" in text:
        pytest.skip("sanitizers make frames larger")
    names, frames, calls = read_functions(text)
    if not any("gradient_units" in name for name in names.values()):
        pytest.skip("the extension has no symbols")
    hidden = min((a for a, name in names.items() if "__portable" in name), default=1 << 63)
    assert not [n for a, n in names.items() if a > hidden and re.search("__(scalar|avx2|avx512)$", n)]
    deepest: dict[int, tuple[int, str]] = {}

    def depth(address: int, above: frozenset[int] = frozenset()) -> tuple[int, str]:
        if address not in frames or address in above:
            return 0, ""
        if address not in deepest:
            below = max((depth(c, above | {address}) for c in calls[address]), default=(0, ""))
            deepest[address] = frames[address] + below[0], f"{names[address]} {frames[address]}, {below[1]}"
        return deepest[address]

    found = sorted((depth(a) for a in names if a < hidden), reverse=True)
    assert found[0][0] > 32 << 10, "frames were not read"
    assert found[0][0] <= _LIMIT, found[:5]
