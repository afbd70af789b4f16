# SPDX-License-Identifier: MIT
"""The text of a generated forward: the original's parameters, its conditions, and the call of the original."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ..runtime.lists import Listed, as_arguments

__all__ = ["ENABLED", "defaulted", "entry_text", "fits_text", "forward_text"]

ENABLED = "not (opswap_active and opswap_disabled())"


def defaulted(forward: Any) -> list[inspect.Parameter]:
    """The parameters that have a default."""
    return [p for p in inspect.signature(forward).parameters.values() if p.default is not p.empty]


def forward_text(
    forward: Any, captured: Sequence[str], lists: dict[str, Listed], paths: Sequence[str]
) -> str:
    """A forward with the original's parameters, which calls the original if no captured path holds.

    paths: the condition of each path, "" for one that always holds.
    """
    first, *rest = inspect.signature(forward).parameters.values()
    declared, passed, conditions = [first.name], [first.name], []
    starred = False
    for i, p in enumerate(rest):
        if p.kind is p.KEYWORD_ONLY and not starred:
            declared.append("*")
        starred = starred or p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY)
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        default = "" if p.default is p.empty else f"=opswap_default_{p.name}"
        declared.append(prefix + p.name + default)
        passed.append(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else prefix + p.name)
        if prefix:
            conditions.append(f"not {p.name}")
        elif default:
            conditions.append(f"{p.name} is opswap_default_{p.name}")
        if p.kind is p.POSITIONAL_ONLY and (i + 1 == len(rest) or rest[i + 1].kind is not p.kind):
            declared.append("/")
    conditions += [f"opswap_listed({n}, {known.kind.__name__}, {known.number})" for n, known in lists.items()]
    inputs = ", ".join((first.name, *as_arguments(captured, lists)))
    condition = " and ".join([fits_text(first.name), ENABLED, *conditions, f"opswap_holds({inputs})"])
    declared[0] = "opswap_link"
    lines = [f"def forward({', '.join(declared)}):", *entry_text(first.name), f"    if {condition}:"]
    for i, path in enumerate(paths):
        indent = "        "
        if path:
            lines.append(f"{indent}if {path}:")
            indent += "    "
        lines.append(f"{indent}return opswap_fused_{i}({inputs})")
        if not path:
            break
    call = ", ".join(passed)
    lines += [
        f"    opswap_missed({call})",
        f"    return type({first.name}).forward({_given_text(first.name, rest, call)})",
    ]
    return "\n".join(lines) + "\n"


def _given_text(me: str, parameters: list[inspect.Parameter], call: str) -> str:
    """The arguments of a call of the original forward, which may have other defaults by now: without the old ones."""
    left_out = [p for p in parameters if p.default is not p.empty and p.kind is not p.POSITIONAL_ONLY]
    if not left_out or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return call
    passed = [me, *(p.name for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD)]
    passed += [p.name for p in parameters if p.default is not p.empty and p.kind is p.POSITIONAL_ONLY]
    passed += [f"{p.name}={p.name}" for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    pairs = ", ".join(f"{p.name}=({p.name}, opswap_default_{p.name})" for p in left_out)
    passed += [f"**opswap_given({pairs})", *(f"**{p.name}" for p in parameters if p.kind is p.VAR_KEYWORD)]
    return ", ".join(passed)


def entry_text(module: str) -> list[str]:
    """The lines that get the module of the link; others than torch's Module pass the module itself."""
    return [
        "    try:",
        f"        {module}, opswap_link = opswap_called(opswap_link)",
        "    except AttributeError:",
        f"        {module}, opswap_link = opswap_link, opswap_link_of(opswap_link, opswap_recipe)",
    ]


def fits_text(module: str) -> str:
    """The condition that the module still is of the class that its forward was generated for."""
    return f"(type({module}) is opswap_link.cls or opswap_fits({module}, opswap_link.cls))"
