# SPDX-License-Identifier: MIT
"""Code that tries to crash the process, run in a process of its own, which must end by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

__all__ = ["survive"]

PRELUDE = """
import faulthandler, sys, threading
faulthandler.enable()
import torch, opswap
from opswap import _core
F = opswap.functional
torch.manual_seed(0)

def attempt(name, call):
    print(name, flush=True)
    try:
        return call()
    except Exception as error:
        print("   ", type(error).__name__, str(error)[:200], flush=True)
        return error
"""


def survive(code: str, timeout: float = 300, **environment: str) -> str:
    """Run the code in a process of its own and return what it printed; fail if the process did not end well."""
    env = {**os.environ, **environment}
    # Under the sanitizers an allocation that cannot be must fail as it does without them.
    env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1"
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
