# SPDX-License-Identifier: MIT
"""Which code a trace is in, and which code raised an error."""

from __future__ import annotations

import dis
import inspect
import os
import sys
from collections.abc import Iterator
from types import FrameType

from torch import fx

from ..runtime import purity
from ..runtime.purity import SWAP_FOLDER, TORCH_FOLDER
from .patches import Patches

__all__ = ["frames", "raised_by_user", "reads_modules"]

# The frame below the user's own; torch.compile wraps the method once it has been imported.
_TRACE = inspect.unwrap(fx.Tracer.trace).__code__


def raised_by_user(error: BaseException) -> bool:
    """True if a raise or assert statement outside of torch threw the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename.startswith((TORCH_FOLDER, SWAP_FOLDER)):
        return False
    code = trace.tb_frame.f_code
    return code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def reads_modules(frame: FrameType | None) -> bool:
    """True for code of the user, or of a layer that is inlined, which may read a module's child."""
    while frame is not None and frame.f_code.co_filename == Patches.__init__.__code__.co_filename:
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.endswith(os.path.join("nn", "modules", "module.py")):
        return False
    return purity.owner_of_frame(frame) in (purity.LAYERS, purity.USER)


def frames() -> Iterator[FrameType]:
    """The frames of the trace, the innermost first."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code is not _TRACE:
        yield frame
        frame = frame.f_back
