# SPDX-License-Identifier: MIT
"""Code in other processes: any code, code that tries to crash, and the commands of opswap."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

__all__ = ["command", "forked", "python", "survive"]

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


# Imports its arguments, then forks a process for every line: its code, arguments, environment and output files.
# A new process would import torch again, which takes longer than most of the code that runs in one.
FORKS = """
import importlib, json, os, signal, sys, time

for name in sys.argv[1:]:
    importlib.import_module(name)

def status_of(child, timeout):
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"none within {timeout} seconds"

def next_code():
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            for number, path in enumerate((os.devnull, *asked["files"])):
                os.dup2(os.open(path, os.O_RDWR), number)
            os.environ.update(asked["environment"])
            sys.argv = ["-c", *asked["args"]]
            return compile(asked["code"], "<string>", "exec")
        print(status_of(child, asked["timeout"]), flush=True)
    return ""

exec(next_code())
"""


@functools.cache
def _server(*modules: str, **environment: str) -> subprocess.Popen[str]:
    """A process that has imported the modules. It ends with this one, which closes the pipe it reads."""
    return subprocess.Popen(
        [sys.executable, "-c", FORKS, *modules],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def forked(
    code: str,
    *args: str,
    modules: tuple[str, ...],
    start: Mapping[str, str] | None = None,
    timeout: float = 300,
    **environment: str,
) -> str:
    """As `python`, in a fork of a process that has imported the modules with `start` in its environment."""
    server = _server(*modules, **start or {})
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.NamedTemporaryFile("r")) for _ in range(2)]
        asked = {
            "code": code,
            "args": args,
            "environment": {**os.environ, **(start or {}), **environment},  # a test may have changed it
            "files": [file.name for file in files],
            "timeout": timeout,
        }
        assert server.stdin is not None and server.stdout is not None
        print(json.dumps(asked), file=server.stdin, flush=True)
        status = server.stdout.readline().strip()
        printed, errors = (file.read() for file in files)
    assert status == "0", f"exit {status}\n{printed[-2000:]}\n{errors[-4000:]}"
    return printed


def survive(code: str, timeout: float = 300, **environment: str) -> str:
    """Run code that may crash the process, behind the prelude, and return what it printed."""
    # Under the sanitizers an allocation that cannot be must fail as it does without them.
    options = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1"}
    code = PRELUDE + textwrap.dedent(code)
    if any(name != "OPSWAP_ISA" for name in environment):  # which torch may read when it is imported
        return python(code, timeout=timeout, **options, **environment)
    modules = ("torch",) if environment else ("torch", "opswap")  # opswap reads its tier when it is imported
    return forked(code, modules=modules, start=options, timeout=timeout, **environment)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `python3 -m opswap` with these words in the folder."""
    run = [sys.executable, "-m", "opswap", *words]
    return subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
