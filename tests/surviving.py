# SPDX-License-Identifier: MIT
"""Code in other processes: any code, code that tries to crash, and the commands of opswap."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["command", "python", "survive"]

PRELUDE = """
import faulthandler, sys, threading
faulthandler.enable()
import torch, opswap
from opswap import _core
F = opswap.functional
torch.manual_seed(0)

def on_small_stacks(run):
    # On every tier, in a thread with a stack of 192 KiB, in which the interpreter's own calls lie too.
    torch.set_num_threads(1)
    threading.stack_size(192 << 10)
    for tier in opswap.isa.available():
        with opswap.isa.limit(tier):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()

def while_the_tier_changes(work, count, tiers):
    # In so many threads, while one more changes the tier all the time.
    stop = threading.Event()
    def limit():
        while not stop.is_set():
            for tier in tiers:
                _core.isa_limit(tier)
    threads = [threading.Thread(target=work) for _ in range(count)]
    limiter = threading.Thread(target=limit)
    for t in (*threads, limiter):
        t.start()
    for t in threads:
        t.join()
    stop.set()
    limiter.join()

def attempt(name, call):
    print(name, flush=True)
    try:
        return call()
    except Exception as error:
        print("   ", type(error).__name__, str(error)[:200], flush=True)
        return error
"""


def python(
    code: str | Path, *args: str, cwd: Path | None = None, timeout: float = 300, **environment: str
) -> str:
    """Run the code, or the file, in another process; return what it printed, or fail with the end of its errors."""
    run = [sys.executable, *([str(code)] if isinstance(code, Path) else ["-c", code]), *args]
    env = {**os.environ, **environment}
    done = subprocess.run(run, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def survive(code: str, timeout: float = 300, **environment: str) -> str:
    """Run code that may crash the process, behind the prelude, and return what it printed."""
    # Under the sanitizers an allocation that cannot be must fail as it does without them.
    options = os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1"
    return python(PRELUDE + textwrap.dedent(code), timeout=timeout, ASAN_OPTIONS=options, **environment)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `python3 -m opswap` with these words in the folder."""
    run = [sys.executable, "-m", "opswap", *words]
    return subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
