# SPDX-License-Identifier: MIT
"""The text of a generated forward: its arguments, its conditions, and the call of the original."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ..runtime.lists import Listed, as_arguments

__all__ = [
    "ENABLED",
    "PARAMETERS",
    "arguments_text",
    "bind_text",
    "defaulted",
    "entry_text",
    "fits_text",
    "forward_text",
    "original_text",
    "required",
]

PARAMETERS = "opswap_link, *opswap_args, **opswap_kwargs"
ENABLED = "not (opswap_active and opswap_disabled()) and not opswap_overridden()"


def defaulted(forward: Any) -> list[inspect.Parameter]:
    """The parameters that have a default."""
    return [p for p in inspect.signature(forward).parameters.values() if p.default is not p.empty]


def forward_text(
    forward: Any,
    captured: Sequence[str],
    lists: dict[str, Listed],
    paths: Sequence[str],
    first: str,
    follows: bool,
    replays: bool,
) -> str:
    """A forward of any arguments, which calls the original with the same if no captured path holds.

    paths: the condition of each path, "" for one that always holds. first: a cheap condition of all, or "".
    follows: the original runs elsewhere than in a recorded call. replays: this call may be recorded for itself.
    """
    me, *_ = inspect.signature(forward).parameters
    conditions = [f"opswap_listed({n}, {known.kind.__name__}, {known.number})" for n, known in lists.items()]
    inputs = ", ".join((me, *as_arguments(captured, lists)))
    conditions += [first] * bool(first)
    condition = " and ".join([fits_text(me), ENABLED, *conditions, f"opswap_holds({inputs})"])
    lines = [
        *bind_text(forward, captured),
        "",
        f"def forward({PARAMETERS}):",
        *entry_text(me),
        *(replay_text(me) if replays else ()),
        *(followed_text(me) if follows else ()),
        *arguments_text(forward, captured),
    ]
    lines += ["    if opswap_bound is not None:"]
    if captured:
        lines.append(f"        {', '.join(captured)}, = opswap_bound")
    lines.append(f"        if {condition}:")
    for i, path in enumerate(paths):
        indent = " " * 12
        if path:
            lines.append(f"{indent}if {path}:")
            indent += "    "
        lines.append(f"{indent}return opswap_checked({me}, opswap_fused_{i}({inputs}))")
        if not path:
            break
    return "\n".join([*lines, *original_text(me)]) + "\n"


def required(forward: Any) -> list[str]:
    """The parameters after the first that a call must have, those that a captured path knows.

    None of them is keyword-only: a capture refuses such a forward.
    """
    _, *rest = inspect.signature(forward).parameters.values()
    return [p.name for p in rest if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def bind_text(forward: Any, captured: Sequence[str]) -> list[str]:
    """A function that returns the captured arguments of a call, None if there are others that are not defaults."""
    _, *rest = inspect.signature(forward).parameters.values()
    declared, conditions = [], []
    starred = False
    for i, p in enumerate(rest):
        if p.kind is p.KEYWORD_ONLY and not starred:
            declared.append("*")
        starred = starred or p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY)
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        default = "" if p.default is p.empty else f"=opswap_default_{p.name}"
        declared.append(prefix + p.name + default)
        if prefix:
            conditions.append(f"not {p.name}")
        elif default and p.name not in captured:
            conditions.append(f"{p.name} is opswap_default_{p.name}")
        if p.kind is p.POSITIONAL_ONLY and (i + 1 == len(rest) or rest[i + 1].kind is not p.kind):
            declared.append("/")
    result = f"({''.join(f'{name}, ' for name in captured)})"
    otherwise = f" if {' and '.join(conditions)} else None" if conditions else ""
    return [f"def opswap_bind({', '.join(declared)}):", f"    return {result}{otherwise}", ""]


def arguments_text(forward: Any, captured: Sequence[str]) -> list[str]:
    """The lines that set `opswap_bound` to the captured arguments or None, most often without a call.

    The class may have another forward by now, of other parameters: it gets the arguments as they were given.
    """
    binds = "opswap_bound = opswap_arguments(opswap_bind, opswap_args, opswap_kwargs)"
    _, *rest = inspect.signature(forward).parameters
    if rest[: len(captured)] != list(captured):  # others come between
        return [f"    {binds}"]
    return [
        "    opswap_bound = opswap_args",
        f"    if opswap_kwargs or len(opswap_args) != {len(captured)}:",
        f"        {binds}",
    ]


def original_text(module: str) -> list[str]:
    """The lines that call the forward of the class with the arguments of the call."""
    return [
        f"    opswap_report_fallback({module}, *opswap_args, **opswap_kwargs)",
        f"    return type({module}).forward({module}, *opswap_args, **opswap_kwargs)",
    ]


def entry_text(module: str) -> list[str]:
    """The lines that get the module of the link; others than torch's Module pass the module itself."""
    return [
        "    try:",
        f"        {module}, opswap_link = opswap_called(opswap_link)",
        "    except AttributeError:",
        f"        {module}, opswap_link = opswap_link, opswap_link_of(opswap_link, opswap_recipe)",
    ]


def replay_text(module: str) -> list[str]:
    """The lines that return what a frozen module computes while nothing has changed."""
    return [
        f"    opswap_made = opswap_replay({module}, opswap_args, opswap_kwargs)",
        "    if opswap_made is not None:",
        "        return opswap_made[0]",
    ]


def followed_text(module: str) -> list[str]:
    """The lines that call the original forward if no call is being recorded."""
    return [
        "    if not opswap_recording():",
        f"        return type({module}).forward({module}, *opswap_args, **opswap_kwargs)",
    ]


def fits_text(module: str) -> str:
    """The condition that the module still is of the class that its forward was generated for."""
    return f"(type({module}) is opswap_link.cls or opswap_fits({module}, opswap_link.cls))"
