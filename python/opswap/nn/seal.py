# SPDX-License-Identifier: MIT
"""What a module holds, in the form that is compared with it later."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from opswap import _core

__all__ = ["FROZEN", "Kinds", "Seal", "Seals", "seal", "seal_forward"]

FROZEN = "_opswap_frozen"  # an attribute of a module
_FORWARD = "_opswap_forward"  # the same object as "forward", unless the user put a forward of his own there

# class; for each entry of the module's dictionary a letter, its name, what it is compared with.
Seal = tuple[type, bytes, tuple[str, ...], tuple[Any, ...]]

_EMPTY = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSORS = ("_parameters", "_buffers")
# Not read by a call without hooks; or as old as the forward that was put beside it.
_ANY = frozenset(vars(nn.Module())) - {*_EMPTY, *_TENSORS, "_modules", "training"} | {
    FROZEN,
    "_opswap_plan",
    "_opswap_record",
    "_slow_forward",
    "opswap_code",
}
_PADDING = "_reversed_padding_repeated_twice"  # a list; zeros are padded without it
_MOST_MODULES = 4096
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size, torch.memory_format)


class Seals:
    """Seals of some modules, and behind these those of the modules below them."""

    def __init__(self, seals: tuple[Seal, ...]) -> None:
        self.seals = seals
        self._packed = _core.pack_seals(seals)

    def hold(self, modules: tuple[nn.Module, ...]) -> bool:
        """True if nothing of these modules has changed: neither options, tensors, hooks nor classes."""
        return _core.unaltered(modules, self._packed)


class Kinds:
    """What tensors may get with other memory and still be the same objects: dtype, sizes, strides.

    Args: placed: their addresses too.
    Raises: RuntimeError or TypeError for a tensor that is not on the CPU, or has no memory of its own.
    """

    def __init__(self, tensors: tuple[Tensor, ...], *, placed: bool) -> None:
        self._tensors = tensors
        self._packed = _core.pack_kinds(tensors, placed)

    def hold(self) -> bool:
        """True if they have not."""
        return _core.are_as(self._tensors, self._packed)


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def seal(module: nn.Module) -> Seal | None:
    """What decides about a call of the module.

    Neither a module nor a method of one is held: a cycle would keep the model alive.
    Returns: None if an attribute is neither torch's own nor a plain value, or if the forward is the user's.
    """
    return _seal(module, True, None)


def seal_forward(module: nn.Module, read: Mapping[int, Collection[str]]) -> tuple[Seal, ...] | None:
    """What decides about a run of the module's forward: the module without its hooks, and all modules below it.

    Args: read: the attributes that code reads, by the id of each module of which that is known. Others of its own
        may hold anything.
    Returns: as `seal`, the module's seal first; None also if a module is below itself.
    """
    modules, seals = [module], []
    for i, m in enumerate(modules):  # which grows meanwhile
        if i > _MOST_MODULES:
            return None
        made = _seal(m, i > 0, modules, read.get(id(m)))
        if made is None:
            return None
        seals.append(made)
    return tuple(seals)


def _seal(
    module: nn.Module, hooks: bool, modules: list[nn.Module] | None, read: Collection[str] | None = None
) -> Seal | None:
    """modules: those that have a seal; the children are added. read: see `seal_forward`."""
    entries = vars(module)
    kinds, values = [], []
    for name, value in entries.items():
        held: Any = None
        if name in _ANY or (name == _PADDING and entries.get("padding_mode") == "zeros"):
            kind = "a"
        elif name in _EMPTY:
            kind = "e" if hooks else "a"
        elif name in _TENSORS:
            kind, held = "t", _flat(value)
        elif name == "_modules":
            kind, held = ("a", None) if modules is None else ("m", _number(value, modules))
        elif _is_plain(value) or (name in ("forward", _FORWARD) and value is entries.get(_FORWARD)):
            kind, held = "v", value
        elif read is not None and name not in read and not hasattr(type(module), name):
            kind = "a"
        else:
            return None
        kinds.append(kind)
        values.append(held)
    if entries.get("forward") is not entries.get(_FORWARD):
        return None
    text, names = "".join(kinds).encode(), tuple(entries)
    shared = _shared(text, names)
    if all(map(is_, shared[1], names)):  # not in an unpickled module, which has other texts for its names
        text, names = shared
    return type(module), text, names, tuple(values)


def _number(children: dict[str, nn.Module | None], modules: list[nn.Module]) -> tuple[Any, ...]:
    """Names and numbers of children, a new number for each: a module may be there twice."""
    numbers: dict[str, int | None] = {}
    for name, child in children.items():
        numbers[name] = None if child is None else len(modules)
        if child is not None:
            modules.append(child)
    return _flat(numbers)


def _flat(entries: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(x for pair in entries.items() for x in pair)


@lru_cache(maxsize=256)
def _shared(kinds: bytes, names: tuple[str, ...]) -> tuple[bytes, tuple[str, ...]]:
    """The same objects for all modules of a kind: they are in the caches then."""
    return kinds, names
