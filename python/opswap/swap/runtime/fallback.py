# SPDX-License-Identifier: MIT
"""What generated code calls when the original code runs: it counts, notifies a listener, and writes to the log once.

Under torch.compile and torch.export these calls do nothing.
"""

from __future__ import annotations

import logging
import sys
import warnings
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn

from opswap._torch import any_global_hook, functions_overridden
from opswap.ops._stats import count_original
from opswap.ops._switch import disabled_here

from .guards import Record, capture_is_valid
from .instance_forward import fits, generated_forward, link_of, recipe_of
from .plan_of import plan_of
from .reasons import call_reason, failure, site_reason

__all__ = [
    "Listener",
    "arguments",
    "checked",
    "declined",
    "listener",
    "report_fallback",
    "why_declined",
    "why_missed",
]

_DISABLED = "opswap.disabled() is in force"
_OVERRIDDEN = "a TorchFunctionMode is active, or __torch_function__ is disabled"
_UNKNOWN = "a condition failed, and the values in it could not be read: {}"
_log = logging.getLogger("opswap")


class Listener(Protocol):
    """Is called for every fallback in its own thread and context."""

    def module_missed(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call of the module runs the original forward."""

    def site_declined(self, name: str, values: dict[str, Any]) -> None:
        """A function of the generated code runs the stock operators."""


listener: ContextVar[Listener | None] = ContextVar("opswap_listener", default=None)


def report_fallback(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Record that a call of the module runs the original forward."""
    if torch.compiler.is_compiling():
        return
    count_original(type(module).__qualname__)
    heard = listener.get()
    if heard is not None:
        heard.module_missed(module, args, kwargs)
    elif _log.isEnabledFor(logging.INFO) and _is_first(module, "forward"):
        _log.info("%s: the original forward runs: %s", _name(module), why_missed(module, args, kwargs))


def checked(module: nn.Module, result: Any) -> Any:
    """The result, if what the forward read before it called other modules is still so.

    Else code of the user has changed it meanwhile: the original forward runs from the next call on.
    """
    record = module.__dict__.get("_opswap_record")
    if record is None or torch.compiler.is_compiling() or any_global_hook():
        return result
    others = record.later is not None and record.later.runs_others
    if others and not record.moved and not capture_is_valid(module):
        _note_change(module, record)
    return result


def _note_change(module: nn.Module, record: Record) -> None:
    try:
        reason = failure(module) or "something that forward reads changed"
    except Exception as error:
        reason = _UNKNOWN.format(error)
    record.moved.append(f"{reason}, while forward ran")
    text = (
        f"opswap: in {_name(module)}, {reason}, while its forward ran: by a module that it calls, or in another "
        "thread. This call has used what forward read before. From now on the original forward runs."
    )
    try:
        warnings.warn(text, stacklevel=4)
    except Warning:  # as errors: stock code returns its result
        _log.warning(text)


def arguments(bind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """What `bind` returns for the arguments of a call, None if it does not have such parameters."""
    try:
        return bind(*args, **kwargs)
    except TypeError:
        return None


def declined(name: str, values: dict[str, Any]) -> None:
    """Record that the function `name` of generated code runs the stock operators. `values`: its arguments."""
    if torch.compiler.is_compiling():
        return
    heard = listener.get()
    if heard is not None:
        heard.site_declined(name, values)
    elif _log.isEnabledFor(logging.INFO):
        caller = sys._getframe(2)  # the generated forward, for the module
        module = values.get("m0") if name == "forward" else caller.f_locals.get("self")
        if isinstance(module, nn.Module) and _is_first(module, name):
            _log.info("%s: the original operators run: %s", _name(module), why_declined(module, name, values))


def _switched_off() -> str:
    """Why no generated code runs in this context, or ""."""
    if disabled_here():
        return _DISABLED
    return _OVERRIDDEN if functions_overridden() else ""


def why_missed(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a call runs the original forward. An error on the way to a reason never reaches that forward."""
    if switched_off := _switched_off():
        return switched_off
    try:
        return call_reason(module, args, kwargs)
    except Exception as error:
        return _UNKNOWN.format(error)


def why_declined(module: nn.Module, name: str, values: dict[str, Any]) -> str:
    """Why a function of the module's generated code runs the stock operators."""
    if switched_off := _switched_off():
        return switched_off
    try:
        link = link_of(module)
        if not fits(module, link.cls):
            return f"its class is now {type(module).__name__}, was {link.recipe.original.__name__}"
        scope = {
            **generated_forward(module).__globals__,
            **values,
            "opswap_link": link,
            "opswap_module": module,
        }
        return site_reason(recipe_of(module).code, name, scope)
    except Exception as error:
        return _UNKNOWN.format(error)


def _is_first(module: nn.Module, name: str) -> bool:
    """True once for each module and function; replicas and threads share the record. Never within `disabled`."""
    if disabled_here():
        return False
    record = vars(module).get("_opswap_record")
    token = object()
    return record is not None and record.logged.setdefault(name, token) is token


def _name(module: nn.Module) -> str:
    planned = plan_of(module)
    path = planned.path if planned is not None else ""
    return f"{path} ({type(module).__name__})" if path else type(module).__name__
