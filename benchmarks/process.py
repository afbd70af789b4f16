# SPDX-License-Identifier: MIT
"""A row of a benchmark in a process of its own, so that a network that ends the process ends one row."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

__all__ = ["first_line", "row_of"]

_TIMEOUT = 900  # seconds a row


def row_of(script: str, *arguments: object) -> dict[str, Any]:
    """The JSON object that `script --one arguments` prints last; {"error": why} if it prints none."""
    command = [sys.executable, script, "--one", *map(str, arguments)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took over {_TIMEOUT} s"}
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    if lines:
        return json.loads(lines[-1])
    return {"error": f"exit status {ran.returncode}: {ran.stderr[-200:]}"}


def first_line(error: Exception) -> str:
    """The class of an error and its first line, for a cell of a table."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:200]
