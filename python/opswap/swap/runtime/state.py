# SPDX-License-Identifier: MIT
"""The Python state of a module that its forward may read, and whether it is still as it was.

What torch keeps for a module is read by the rewritten forward itself. Everything else would be baked into it:
numbers, texts, lists, functions, constants of the class, the forward as the class has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from opswap.nn.frozen import FROZEN

from .instance_forward import set_by_user, without_links
from .members import MISSING, is_added, is_plain, is_public
from .plan_of import PLAN
from .purity import LAYERS, TORCH, owner
from .snapshot import Contents, Plain, Scalar, Wanted, is_as, snapshot

__all__ = [
    "INTERNAL",
    "Reading",
    "State",
    "forward_of",
    "names_of_tensors",
    "observe",
    "observe_call",
    "observe_read",
    "unchanged",
]

INTERNAL = frozenset(vars(nn.Module())) | {"_compiled_call_impl", PLAN, "_opswap_record", FROZEN}


@dataclass(frozen=True)
class Reading:
    """What a capture read of modules by name; None is every attribute.

    names: attributes. texts: attributes that may be looked up if there are none. modules: those that were fetched
    from their parents and neither called nor inlined. parents: those whose children were fetched or counted; `counted`
    are those of which code read all children, `listed` those of which it read all parameters or buffers.
    classes: their classes matter too. asked: (object, attribute) that were read from objects with their own look-up.
    optional: (module, name) of parameters and buffers that were fetched, which may be None.
    """

    names: frozenset[str] | None = frozenset()
    texts: frozenset[str] = frozenset()
    modules: tuple[nn.Module, ...] = ()
    parents: tuple[nn.Module, ...] = ()
    optional: tuple[tuple[nn.Module, str], ...] = ()
    counted: tuple[nn.Module, ...] = ()
    listed: tuple[nn.Module, ...] = ()
    classes: bool = False
    asked: tuple[tuple[Any, str], ...] = ()

    @property
    def every_name(self) -> frozenset[str] | None:
        """The names of all attributes that were read or looked for; None is every attribute."""
        return None if self.names is None else self.names | self.texts

    def __or__(self, other: Reading) -> Reading:
        """What either of the two read."""
        names = None if None in (self.names, other.names) else self.names | other.names
        lists = [
            tuple(dict.fromkeys((*a, *b)))
            for a, b in (
                (self.modules, other.modules),
                (self.parents, other.parents),
                (self.optional, other.optional),
                (self.counted, other.counted),
                (self.listed, other.listed),
            )
        ]
        asked = {(id(o), name): (o, name) for o, name in (*self.asked, *other.asked)}
        classes = self.classes or other.classes
        return Reading(names, self.texts | other.texts, *lists, classes, tuple(asked.values()))


@dataclass(frozen=True)
class State:
    """What a capture relied on in one module.

    cls: its class, `forward` that of the class. children: its modules, None if they do not matter, called
    `child_names`. names, values: attributes of the instance and constants of the class as snapshots. methods: names
    that the class has and the instance has not. absent: names that neither has. optional: (name, is None) of
    parameters and buffers. listed: the names of all parameters and buffers below it, each tensor once, None if they do
    not matter.
    """

    cls: type
    forward: Any
    children: tuple[nn.Module | None, ...] | None
    names: tuple[str, ...]
    values: tuple[Any, ...]
    methods: tuple[str, ...]
    absent: tuple[str, ...] = ()
    optional: tuple[tuple[str, bool], ...] = ()
    listed: tuple[str, ...] | None = None
    child_names: tuple[str, ...] = ()

    @property
    def matters(self) -> bool:
        """True if there is more to it than the class of a module."""
        held = self.names or self.methods or self.absent or self.optional
        return bool(held or self.children is not None or self.listed is not None)


def observe(module: nn.Module, reading: Reading | None = None) -> State:
    """The state of a module that its capture depends on; of everything in it if reading is None."""
    reading = Reading(None) if reading is None else reading
    cls = type(module)
    wanted = None if _is_read_by_torch(forward_of(cls)) else reading.names
    return _observe(module, reading, wanted, True)


def observe_read(module: nn.Module, reading: Reading) -> State:
    """The state of a module of which something was read and that was not inlined."""
    parent = any(m is module for m in reading.parents)
    # Code of torch iterates over these, by its own attributes.
    every = isinstance(module, (nn.ParameterList, nn.ParameterDict))
    return _observe(module, reading, None if every else reading.names, parent)


def observe_call(module: nn.Module) -> State:
    """The class and the children of a module of torch: which code a call of it runs."""
    return _observe(module, Reading(), (), True)


def _is_read_by_torch(forward: Any) -> bool:
    """True for a forward whose reads no capture follows."""
    code = getattr(forward, "__code__", None)
    return code is None or owner(code.co_filename, getattr(forward, "__module__", "") or "") in (
        LAYERS,
        TORCH,
    )


def _observe(
    module: nn.Module,
    reading: Reading,
    wanted: Collection[str] | None,
    parent: bool,
) -> State:
    """parent: its children matter."""
    cls = type(module)
    found = {
        k: v
        for k, v in without_links(vars(module)).items()
        if k not in INTERNAL and (wanted is None or k in wanted)
    }
    methods = []
    for base in cls.__mro__:
        if base is object:
            continue
        for name, value in _entries(base, wanted, reading):
            if _is_constant(snapshot(value)) and name not in found:
                found[name] = value
            elif not set_by_user(module, name):
                methods.append(name)
    kept = {k: snapshot(v, Wanted(reading.names, reading.texts, reading.asked)) for k, v in found.items()}
    optional = {n: getattr(module, n, None) is None for m, n in reading.optional if m is module}
    absent = [n for n in sorted(reading.texts) if _is_absent(module, cls, n)]
    return State(
        cls,
        forward_of(cls),
        tuple(module._modules.values()) if parent else None,
        tuple(kept),
        tuple(kept.values()),
        tuple(dict.fromkeys(methods)),
        tuple(absent),
        tuple(optional.items()),
        tuple(names_of_tensors(module)) if any(m is module for m in reading.listed) else None,
        tuple(module._modules) if parent else (),
    )


def forward_of(cls: type[nn.Module]) -> Any:
    """None for a scripted module, whose class raises an error if it is asked for it."""
    return None if issubclass(cls, torch.jit.ScriptModule) else cls.forward


def _entries(base: type, wanted: Collection[str] | None, reading: Reading) -> Iterator[tuple[str, Any]]:
    """The attributes of a class that matter; of torch's own classes those that other code has set there."""
    if base.__module__.startswith("torch."):
        for name in (reading.names or frozenset()) & vars(base).keys():
            value = vars(base)[name]
            if is_added(value) and is_public(name, value, True):
                yield name, value
        return
    for name, value in vars(base).items():
        asked = wanted is not None and name in wanted
        if (asked or wanted is None) and is_public(name, value, asked):
            yield name, value


def names_of_tensors(module: nn.Module) -> list[str]:
    """The names of all parameters and buffers below a module; a tensor that is there twice has one name."""
    names = [name for name, _ in module.named_parameters()]
    for name, _ in module.named_buffers():
        names.append(name)
    return names


def _is_absent(module: nn.Module, cls: type, name: str) -> bool:
    tensors_and_modules = (module._parameters, module._buffers, module._modules)
    return not hasattr(cls, name) and not any(name in d for d in (vars(module), *tensors_and_modules))


def _is_constant(kept: Any) -> bool:
    """True for a snapshot without objects, which a copy of the module would not share with the class."""
    if type(kept) is Contents:
        return all(map(_is_constant, kept.values))
    return type(kept) in (Plain, Scalar) or is_plain(kept)


def unchanged(module: nn.Module, state: State) -> bool:
    """True if the module is as it was observed; torch.compile traces through it."""
    if state.forward is not None and state.cls.forward is not state.forward:
        return False
    if state.children is not None:
        own, children = module.__dict__, module._modules
        if tuple(children) != state.child_names:
            return False
        # An entry of this name in the dictionary of the instance hides the child. (strict= is not traceable.)
        for name, now, then in zip(state.child_names, children.values(), state.children):  # noqa: B905
            if now is not then or name in own:
                return False
    for name, value in zip(state.names, state.values):  # noqa: B905
        now = getattr(module, name, MISSING)
        if now is not value and not is_as(now, value):
            return False
    for name in state.methods:
        if set_by_user(module, name):
            return False
    for name, none in state.optional:
        if (getattr(module, name, None) is None) is not none:
            return False
    for name in state.absent:
        if name in module.__dict__ or name in module._parameters:
            return False
        if name in module._buffers or name in module._modules:
            return False
    return state.listed is None or tuple(names_of_tensors(module)) == state.listed
