# SPDX-License-Identifier: MIT
"""The paths of one forward in train() and in eval(), and which training flags decide about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import fx, nn

from ..runtime.guards import one_mode
from ..runtime.outside import join
from .flags import fingerprint, lines, read_flags
from .tracer import BorrowedModuleError, CaptureError

if TYPE_CHECKING:
    from .paths import Explorer

__all__ = ["capture_modes"]


def capture_modes(explorer: Explorer) -> list[Any]:
    """The paths in both modes; a guard compares the flags of other modules that the forward reads."""
    modules = (m for m in explorer.root.modules() if "training" in m.__dict__)  # a scripted one has none
    flags = {m: m.training for m in modules}
    paths, errors = {}, {}
    try:
        for training in (True, False):
            try:
                paths[training] = _explore(explorer, training, training)
            except CaptureError as error:
                errors[training] = error
        borrowed = next((e for e in errors.values() if isinstance(e, BorrowedModuleError)), None)
        if borrowed is not None or not paths:
            raise borrowed or errors[flags[explorer.root]]
        alone = _is_alone(explorer, paths)
        joined = None if errors or not alone else _join_modes(explorer, paths[True], paths[False])
    finally:
        _set_flags(flags)
    guarded = tuple(explorer.flags) if alone else tuple(dict.fromkeys((explorer.root, *explorer.flags)))
    if joined is not None:
        found = _read_by_both(joined, paths[False])
    else:
        modes = (flags[explorer.root], not flags[explorer.root])
        refused = "".join(map(str, errors.values()))
        found = [replace(c, training=mode, refused=refused) for mode in modes for c in paths.get(mode, ())]
    return [_guarded(c, guarded, explorer.flags) for c in found] if len(guarded) > 1 else found


def _explore(explorer: Explorer, own: bool, others: bool) -> list[Any]:
    """The paths with these flags of root and `inlined`, and of the others that count."""
    modules = (explorer.root, *explorer.inlined)
    while True:
        known = set(explorer.flags)
        _set_flags({**dict.fromkeys(known, others), **dict.fromkeys(modules, own)})
        found, failed = [], None
        try:
            found = explorer.explore()
        except CaptureError as error:
            failed = error
        if all(m.training is others for m in explorer.flags if m not in known and m not in modules):
            if failed is not None:
                raise failed
            return found


def _is_alone(explorer: Explorer, paths: Mapping[bool, list[Any]]) -> bool:
    """True if the flags of other modules, as long as these agree, do not decide about the paths.

    What the forward reads outside if they are in the other mode is added to the paths.
    """
    if not explorer.flags or _reads_own(explorer):
        return not explorer.flags
    for training, known in paths.items():
        try:
            mixed = _explore(explorer, training, not training)
        except CaptureError:
            return False
        if _reads_own(explorer) or list(map(_words, mixed)) != list(map(_words, known)):
            return False
        known[:] = _read_by_both(known, mixed)
    return True


def _read_by_both(paths: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The paths, with what the others, their twins in another mode, read too."""
    both = zip(paths, others, strict=True)
    return [replace(a, reading=a.reading | b.reading, outside=join((a.outside, b.outside))) for a, b in both]


def _reads_own(explorer: Explorer) -> bool:
    """True if one of the modules of the capture reads the flag of another one of them."""
    return any(m in explorer.flags for m in (explorer.root, *explorer.inlined))


def _words(capture: Any) -> list[Any]:
    return [*_guards(capture), lines(capture.graph)]


def _guards(capture: Any) -> list[list[str]]:
    return [list(map(str, capture.guards)), list(map(str, capture.size_guards))]


def _guarded(capture: Any, modules: Sequence[nn.Module], where: Mapping[nn.Module, str]) -> Any:
    """The path with a guard: these modules are in one mode."""
    names = {id(m): path for path, m in capture.root.named_modules()}
    guard = fx.Graph()
    for node in capture.graph.nodes:
        if node.op == "placeholder":
            guard.node_copy(node)
    flags = [guard.get_attr(".".join(filter(None, (names[id(m)], "training")))) for m in modules]
    value = guard.call_function(one_mode, tuple(flags))
    value.meta["source"] = next(filter(None, map(where.get, modules)))
    guard.output(value)
    return replace(capture, guards=(*capture.guards, guard))


def _set_flags(flags: Mapping[nn.Module, bool]) -> None:
    for module, training in flags.items():
        module.__dict__["training"] = training


def _join_modes(explorer: Explorer, trains: list[Any], evaluates: list[Any]) -> list[Any] | None:
    """The paths that are valid in both modes, which may read the training flag; None if the modes differ in more."""
    if len(trains) != len(evaluates):
        return None
    read = False
    for a, b in zip(trains, evaluates, strict=True):
        if _guards(a) != _guards(b):
            return None
        reads = read_flags(a.graph, b.graph)
        if reads is None:
            return None
        read = read or reads
    if read and explorer.inlined and not _reads_owners(explorer, trains):
        return None
    return trains


def _reads_owners(explorer: Explorer, joined: list[Any]) -> bool:
    """True if every flag read is that of the module whose forward reads it, shown by mixed flags."""
    modules = (explorer.root, *explorer.inlined)
    names = {id(m): path for path, m in explorer.root.named_modules()}
    for first in (True, False):
        flags = dict(zip(modules, [first] + [not first] * len(explorer.inlined), strict=True))
        _set_flags(flags)
        try:
            mixed = explorer.explore()
        except CaptureError:
            return False
        known = {names[id(m)]: flag for m, flag in flags.items()}
        if len(mixed) != len(joined):
            return False
        for a, b in zip(joined, mixed, strict=True):
            if fingerprint(a.graph, known) != fingerprint(b.graph, known):
                return False
    return True
