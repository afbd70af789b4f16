# SPDX-License-Identifier: MIT
"""What the graph of the branches relies on besides their tensors, and whether that still holds.

The loop reads globals, closures, constants of classes and shared objects anew on every call. The merged module has them
in its programs, so it looks on every call whether they are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

from ..swap.capture.paths import Capture
from ..swap.runtime.differences import difference, outside_change
from ..swap.runtime.guards import hooked
from ..swap.runtime.instance_forward import without_links
from ..swap.runtime.members import MISSING, is_plain
from ..swap.runtime.outside import Outside, is_unchanged, join
from ..swap.runtime.snapshot import Wanted, is_as, snapshot
from ..swap.runtime.state import INTERNAL, Reading, names_of_tensors
from .layers import Unmerged

__all__ = ["Watch", "failure", "holds", "watch"]

# What a folder has in place of a forward.
_NO_FORWARD = nn.Module.forward
_BY_IDENTITY = (BuiltinFunctionType, FunctionType, ModuleType, nn.Module, Tensor, type)


@dataclass(frozen=True)
class Place:
    """What was read of one module of the merged tree.

    path: its names below the root. values: (name, snapshot) of attributes; MISSING for those that only a branch has or
    that nobody has yet. children: the names of its children, None if no code reads all of them. optional: (name, is
    None) of parameters and buffers. listed: the names of all below it, None if no code reads them.
    """

    path: tuple[str, ...]
    values: tuple[tuple[str, Any], ...]
    children: tuple[str, ...] | None
    optional: tuple[tuple[str, bool], ...]
    listed: tuple[str, ...] | None


@dataclass(frozen=True)
class Watch:
    """What the programs depend on.

    outside: what belongs to no module. shared: (where, object, snapshot) of objects that several branches hold.
    folders: paths of modules of the tree that only hold others: nothing calls them, or their hooks.
    """

    outside: Outside = field(default_factory=Outside)
    shared: tuple[tuple[str, Any, Any], ...] = ()
    places: tuple[Place, ...] = ()
    folders: tuple[tuple[str, ...], ...] = ()

    @property
    def objects(self) -> tuple[Any, ...]:
        """The shared objects."""
        return tuple(o for _, o, _ in self.shared)


def watch(root: nn.Module, modules: Sequence[nn.Module], captures: Sequence[Capture]) -> Watch:
    """What the captures of copies of `modules` read; `root` is the merged tree that replaces all of them."""
    reading = reduce(or_, (c.reading for c in captures))
    first = {m: tuple(path.split(".")) if path else () for path, m in captures[0].root.named_modules()}
    places = [_place(root, first[m], m, reading) for m in first if m in _read(captures[0])]
    shared = _shared(modules, captures, reading)
    folders = (tuple(path.split(".")) for path, m in root.named_modules() if path and type(m) is nn.Module)
    outside = join(c.outside for c in captures)
    return Watch(outside, shared, tuple(p for p in places if p is not None), tuple(folders))


def _read(capture: Capture) -> set[nn.Module]:
    reading = capture.reading
    found = {
        capture.root,
        *capture.inlined,
        *reading.modules,
        *reading.parents,
        *reading.counted,
        *reading.listed,
    }
    return found | {m for m, _ in reading.optional}


def _place(root: nn.Module, path: tuple[str, ...], own: nn.Module, reading: Reading) -> Place | None:
    """None for a module of which nothing was read, or that every branch has for itself."""
    merged = root
    for name in path:
        merged = merged._modules[name]
        if isinstance(merged, Unmerged):
            return None
    held = without_links(vars(own))
    names = [k for k in held if k not in INTERNAL and (reading.names is None or k in reading.names)]
    names += [k for k in sorted(reading.texts) if k not in names and not hasattr(own, k)]
    values = tuple((k, snapshot(vars(merged).get(k, MISSING))) for k in names)
    children = tuple(merged._modules) if own in reading.counted else None
    optional = tuple((n, getattr(merged, n, None) is None) for m, n in reading.optional if m is own)
    listed = tuple(names_of_tensors(merged)) if own in reading.listed else None
    found = Place(path, values, children, optional, listed)
    return found if values or optional or not (children is None and listed is None) else None


def _shared(
    modules: Sequence[nn.Module], captures: Sequence[Capture], reading: Reading
) -> tuple[tuple[str, Any, Any], ...]:
    """Objects that the forwards read as attributes of more than one branch."""
    seen: dict[int, tuple[int, str, Any]] = {}
    found: dict[int, tuple[str, Any, Any]] = {}
    wanted = Wanted(reading.names, reading.texts, reading.asked)
    for i, (branch, capture) in enumerate(zip(modules, captures, strict=True)):
        for where, value in _objects(branch, capture, reading):
            other = seen.setdefault(id(value), (i, where, value))
            if other[0] != i:
                found[id(value)] = where, value, snapshot(value, wanted)
    return tuple(found.values())


def _objects(branch: nn.Module, capture: Capture, reading: Reading) -> Iterator[tuple[str, Any]]:
    live = dict(branch.named_modules())
    read = _read(capture)
    for path, m in capture.root.named_modules():
        if m not in read or path not in live:
            continue
        for name, value in without_links(vars(live[path])).items():
            wanted = reading.names is None or name in reading.names
            if (
                wanted
                and name not in INTERNAL
                and not is_plain(value)
                and not isinstance(value, _BY_IDENTITY)
            ):
                yield ".".join(filter(None, (path, name))), value


def holds(watched: Watch, root: nn.Module) -> bool:
    """True if everything is as it was; torch.compile traces through it."""
    for _, value, then in watched.shared:
        if not is_as(value, then):
            return False
    for place in watched.places:
        module = root
        for name in place.path:
            module = module._modules[name]
        for name, then in place.values:
            if then is MISSING:
                if name in module.__dict__ or name in module._parameters:
                    return False
                if name in module._buffers or name in module._modules:
                    return False
            elif not is_as(module.__dict__.get(name, MISSING), then):
                return False
        for name, none in place.optional:
            if (getattr(module, name, None) is None) is not none:
                return False
        if place.children is not None and tuple(module._modules) != place.children:
            return False
        if place.listed is not None and tuple(names_of_tensors(module)) != place.listed:
            return False
    for path in watched.folders:
        module = root
        for name in path:
            module = module._modules[name]
        if hooked(module) or type(module).forward is not _NO_FORWARD:
            return False
    return is_unchanged(watched.outside)


def failure(watched: Watch, root: nn.Module) -> str:
    """What changed, in words; "" if nothing did. It checks what `holds` checks."""
    for where, value, then in watched.shared:
        changed = difference(value, then, where)
        if changed:
            return changed
    return changed_place(watched, root) or outside_change(watched.outside)


def changed_place(watched: Watch, root: nn.Module) -> str:
    """What changed in the merged tree, in words."""
    for place in watched.places:
        module = root.get_submodule(".".join(place.path))
        prefix = ".".join((*place.path, ""))
        held = (vars(module), module._parameters, module._buffers, module._modules)
        for name, then in place.values:
            if then is MISSING and any(name in values for values in held):
                return f"{prefix}{name} was set, which the forward of the branches reads"
            changed = (
                "" if then is MISSING else difference(held[0].get(name, MISSING), then, f"{prefix}{name}")
            )
            if changed:
                return changed
        for name, none in place.optional:
            if (getattr(module, name, None) is None) is not none:
                return f"{prefix}{name} is {'a Tensor' if none else 'None'}, was {'None' if none else 'a Tensor'}"
        if place.children is not None and tuple(module._modules) != place.children:
            now, then = list(module._modules), list(place.children)
            return f"the children of {prefix.rstrip('.') or 'the module'} are {now}, were {then}"
        if place.listed is not None and tuple(names_of_tensors(module)) != place.listed:
            return f"the parameters and buffers of {prefix.rstrip('.') or 'the module'} changed"
    for path in watched.folders:
        module = root.get_submodule(".".join(path))
        if type(module).forward is not _NO_FORWARD:
            return f"{'.'.join(path)} is now a {type(module).__name__}, which a merged module does not call"
        if hooked(module):
            return f"{'.'.join(path)} has hooks, or a forward of its own, which a merged module does not call"
    return ""
