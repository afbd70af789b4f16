# SPDX-License-Identifier: MIT
"""What a forward says: errors of its checks, warnings, and lines for a log, as the original forward says them."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

from opswap import _core

__all__ = ["LEVELS", "find_class", "log_line", "require", "warn"]

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
# Places of arguments that show values, and their pieces: plain ones, and values with how they become text.
_Texts = tuple[tuple[int, tuple[Any, ...]], ...]


def require(
    fact: Any, answer: bool, module: str, name: str, args: tuple[Any, ...], texts: _Texts = ()
) -> None:
    """Raise what the original forward raises, the class `name` of `module`, if a fact is not as captured."""
    if bool(fact) is not answer:
        raise find_class(module, name)(*_with_texts(args, texts))


def warn(category: tuple[str, str], place: tuple[str, int, str], message: str, texts: _Texts = ()) -> None:
    """warnings.warn in the user's code. Args: category: module and name. place: file, line, module."""
    _require_unrecorded()
    (text,) = _with_texts((message,), texts)
    file, line, module = place
    registry = vars(sys.modules[module]).setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, find_class(*category), file, line, module, registry)


def log_line(
    name: str | None, level: int, place: tuple[str, int, str], args: tuple[Any, ...], texts: _Texts = ()
) -> None:
    """A method of the log of this name, or for None the function of `logging`.

    Args: place: file, line, function. args: the message and what it is formatted with.
    """
    _require_unrecorded()
    log = logging.getLogger(name)
    if name is None and not log.handlers:
        logging.basicConfig()
    if log.isEnabledFor(level):
        message, *values = _with_texts(args, texts)
        file, line, function = place
        log.handle(log.makeRecord(log.name, level, file, line, message, tuple(values), None, function))


def _require_unrecorded() -> None:
    """A recording holds calls on tensors alone; see `replay`."""
    if _core.recording():
        raise RuntimeError("it warns, or writes to a log")


def _with_texts(args: tuple[Any, ...], texts: _Texts) -> tuple[Any, ...]:
    known = dict(texts)
    return tuple(_joined(known[i]) if i in known else a for i, a in enumerate(args))


def _joined(pieces: tuple[Any, ...]) -> str:
    shown = ""
    for piece in pieces:
        if isinstance(piece, str):
            shown += piece
            continue
        value, how, specification = piece
        shown += (
            format(value, specification) if how == "format" else repr(value) if how == "repr" else str(value)
        )
    return shown


def find_class(module: str, name: str) -> Any:
    """The object of this qualified name, None if there is none."""
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
