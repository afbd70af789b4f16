# SPDX-License-Identifier: MIT
"""A module in evaluation: while nothing has changed, the kernels of a former call run, and no other code.

The third call for inputs of one kind (dtype, sizes, strides) is recorded, see `recorder`: for small inputs, or if the
module is frozen. From then on one comparison of everything that the call read replaces all conditions of the generated
forwards below: the modules with their options, tensors and hooks, by identity (`nn.seal`); forwards and constants of
classes; what code reads outside of the model; the weights that were folded, by the count of writes to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, is_
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opswap import _core
from opswap._torch import any_global_hook
from opswap.nn.frozen import FEWEST_SEEN, FROZEN, Frozen, Replay
from opswap.nn.seal import Kinds, Seals, seal_forward
from opswap.ops._stats import count_again, counted_by
from opswap.ops._switch import active

from ..runtime.fallback import listener
from ..runtime.guards import SET_METHODS
from ..runtime.instance_forward import is_rewritten
from ..runtime.members import MISSING
from ..runtime.outside import Outside, is_unchanged, join
from ..runtime.purity import LAYERS, TORCH, owner
from ..runtime.state import State
from .recorder import NotRecordedError, Recording, record
from .watched import Watched

__all__ = ["is_recording", "replay"]

_MOST = 8  # kinds of inputs that have a plan
_WORTH = 64  # runs that repay a recording
# While it is made, a recording holds every result of the call at once; what is not frozen has asked for nothing.
_SMALL = 1 << 18  # elements of an input
_MOST_BYTES = 1 << 28
_ANY = 1 << 62
_WALK = ("forward", "__iter__")  # how a Sequential runs its layers
_version_of, _kept_by = attrgetter("_version"), attrgetter("kept")
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_default_dtype = torch.get_default_dtype  # that of integers divided by integers, which code may read


@dataclass
class _Plan:
    """A recording, and what has to be as it was.

    watched: also of what would hide a module's own value, and the forwards of all classes. outside: what is asked of
    torch.
    weights, writes: that were folded, and how often they were written to. placed: with their vectors, which kernels
    compare by value where they lie. held: other parameters and buffers.
    frozen, kept: and the weights that they held, folded.
    """

    recording: Recording
    seals: Seals
    placed: Kinds
    held: Kinds
    weights: tuple[Tensor, ...]
    writes: list[int]
    watched: Watched
    outside: Outside | None
    frozen: tuple[Frozen, ...]
    kept: tuple[Any, ...]

    def is_unchanged(self, module: nn.Module) -> bool:
        """True if everything is as it was."""
        return (
            self.seals.hold((module,))
            and self.placed.hold()
            and self.held.hold()
            and list(map(_version_of, self.weights)) == self.writes
            and self.watched.is_unchanged()
            and (self.outside is None or is_unchanged(self.outside))
            and all(map(is_, map(_kept_by, self.frozen), self.kept))
        )


def is_recording() -> bool:
    """True while a call is being recorded in this thread."""
    return not _compiling() and _core.recording()


def replay(module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
    """The result of a call of a module with a generated forward, in a tuple; None if that forward has to run."""
    if _compiling() or module is None:  # it was freed, and the generated forward says so
        return None
    if kwargs or _grad_enabled():
        return None
    swapped, kept = module.__dict__.get("_opswap_record"), module.__dict__.get(FROZEN)
    if swapped is None:
        return None
    limits = _ANY, _ANY
    if swapped.follows or type(kept) is not Replay:
        kept, limits = swapped.replay, (_SMALL, _MOST_BYTES)
    kind = _kind(args, limits[0])
    if kind is None or not _is_ordinary():
        return None
    plan = kept.plans.get(kind)
    if plan is not None:
        made = NotImplemented
        if plan.is_unchanged(module):
            try:
                made = plan.recording.run(*args)
            except Exception:  # the forward raises it again, or does not
                made = NotImplemented
        if made is not NotImplemented:
            kept.ran += 1
            count_again(plan.recording.counts)
            return (made,)
        _forget(kept)
        return None
    return _record_if_due(kept, module, args, kind, limits[1])


def _is_ordinary() -> bool:
    """True if nobody watches the call, and no context says that other code shall run."""
    return not (
        active
        or any_global_hook()
        or listener.get() is not None
        or _core.recording()
        or not _core.plain_eager_without_autocast()
    )


def _kind(args: tuple[Any, ...], most: int) -> tuple[Any, ...] | None:
    """What the recorded calls may depend on; None for what is no plain tensor on the CPU, or has more elements."""
    found = [_default_dtype()]
    for x in args:
        kind = _core.kind_of(x, most) if type(x) is Tensor else None
        if kind is None:
            return None
        found.append(kind)
    return tuple(found)


def _forget(kept: Replay) -> None:
    """Something has changed. If that goes on, recording again and again would cost more than it brings."""
    kept.plans.clear()
    kept.seen.clear()
    _wait(kept)


def _wait(kept: Replay) -> None:
    """A plan was dropped: the next one is made later, unless plans have been worth their recordings."""
    kept.due = FEWEST_SEEN if kept.ran >= _WORTH else min(2 * kept.due, 1 << 20)
    kept.ran = 0


def _record_if_due(
    kept: Replay, module: nn.Module, args: tuple[Any, ...], kind: Any, most: int
) -> tuple[Any] | None:
    seen = kept.seen.get(kind, 0)
    if len(kept.seen) >= 2 * _MOST:
        kept.seen.clear()
    kept.seen[kind] = seen + 1
    if seen < kept.due or len({id(x) for x in args}) < len(args):
        return None
    try:
        with counted_by() as counted:
            plan = _plan(module, args, most)
        plan.recording.counts = tuple((*what, calls) for what, calls in counted.items())
        made = plan.recording.run(*args) if plan.is_unchanged(module) else None
        if made is None or not _is_equal(made, plan.recording.result):
            raise NotRecordedError("what was recorded gives another result")
    except NotRecordedError as error:
        count_again((*what, -calls) for what, calls in counted.items())
        kept.refused = str(error)
        _forget(kept)
        return None
    plan.recording.result = None
    kept.seen.pop(kind, None)
    while len(kept.plans) >= _MOST:
        kept.plans.pop(next(iter(kept.plans)), None)
        _wait(kept)
    kept.plans[kind] = plan
    return (made,)


def _plan(module: nn.Module, args: tuple[Any, ...], most: int) -> _Plan:
    modules = list(module.modules())
    states = _states(modules)
    seals = seal_forward(module, _read(states))
    if seals is None or any(m.training for m in modules):
        raise NotRecordedError("it has attributes that cannot be compared, or is in training")
    _check_known(modules, states)
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}
    try:
        before = Kinds(tuple(tensors.values()), placed=True)
    except (RuntimeError, TypeError) as error:
        raise NotRecordedError("a parameter or buffer is no plain tensor on the CPU") from error
    recording = record(module.forward, args, module, most)
    kept = tuple(f.kept for f in recording.frozen)
    if any(made is None for made in kept):
        raise NotRecordedError("folded weights were dropped meanwhile")
    if not before.hold():
        raise NotRecordedError("a parameter or buffer was replaced meanwhile")
    placed = {id(t): t for t in recording.prepared}
    held = tuple(t for key, t in tensors.items() if key not in placed)
    weights = tuple(w for made in kept if made is not None for w in made[3])
    outside = join(vars(m)["_opswap_record"].outside for m in modules if "_opswap_record" in vars(m))
    return _Plan(
        recording,
        Seals(seals),
        Kinds(tuple(placed.values()), placed=True),
        Kinds(held, placed=False),
        weights,
        [w._version for w in weights],
        Watched([*_constants(states), *_calls(modules), *outside.watches], outside.shadows),
        replace(outside, watches=(), shadows=()) if outside.queries or outside.lost else None,
        recording.frozen,
        kept,
    )


def _states(modules: Sequence[nn.Module]) -> list[tuple[nn.Module, State]]:
    """What the generated forwards of these modules watch."""
    found = []
    for module in modules:
        record = vars(module).get("_opswap_record")
        if record is not None:
            found += [(module, record.root), *record.inlined, *record.containers, *record.read]
    return found


def _read(states: Sequence[tuple[nn.Module, State]]) -> dict[int, set[str]]:
    """The attributes of which these states know, by the id of the module."""
    found: dict[int, set[str]] = {}
    for module, state in states:
        found.setdefault(id(module), set()).update(state.names)
    return found


def _check_known(modules: Sequence[nn.Module], states: Sequence[tuple[nn.Module, State]]) -> None:
    """Every module has a generated forward, is read by one, or is a layer of torch."""
    below = {id(m) for m in modules}
    watched = {id(m) for m, _ in states}
    if not watched <= below:
        raise NotRecordedError("a forward reads a module from elsewhere")
    for module in modules:
        cls = type(module)
        if isinstance(module, torch.jit.ScriptModule):
            raise NotRecordedError(f"{cls.__name__} is scripted")
        known = _is_of_torch(cls) or _is_sequential(cls) or is_rewritten(module) or id(module) in watched
        if not known or cls.__call__ is not nn.Module.__call__ or cls._call_impl is not nn.Module._call_impl:
            raise NotRecordedError(f"what a call of {cls.__name__} does has not been followed")


def _is_sequential(cls: type[nn.Module]) -> bool:
    """True for a class of a user that runs its modules as torch.nn.Sequential does."""
    return issubclass(cls, nn.Sequential) and all(getattr(cls, n) is getattr(nn.Sequential, n) for n in _WALK)


def _is_of_torch(cls: type[nn.Module]) -> bool:
    """True for a layer of torch or opswap with its own forward."""
    code = getattr(cls.forward, "__code__", None)
    if code is None or cls.__module__.partition(".")[0] not in ("torch", "opswap"):
        return False
    return owner(code.co_filename, cls.forward.__module__ or "") in (LAYERS, TORCH)


def _constants(states: Sequence[tuple[nn.Module, State]]) -> list[tuple[type, str, Any]]:
    """What is read of classes, and what these have by the names that are read of modules, which are sealed."""
    found: dict[tuple[type, str], tuple[type, str, Any]] = {}
    for module, state in states:
        own = (vars(module), module._parameters, module._buffers, module._modules)
        for name, value in zip(state.names, state.values, strict=True):
            hidden = any(name in entries for entries in own)
            held = getattr(type(module), name, MISSING) if hidden else value
            found[type(module), name] = (type(module), name, held)
    return list(found.values())


def _calls(modules: Sequence[nn.Module]) -> list[tuple[Any, str, Any]]:
    """What a call of a module runs before its forward, and the functions that the forwards of layers call."""
    classes = dict.fromkeys(map(type, modules))
    found: list[tuple[Any, str, Any]] = []
    for cls in classes:
        names = ("__call__", "_call_impl", *(_WALK if _is_sequential(cls) else ()))
        found += [(cls, name, getattr(cls, name)) for name in names]
    methods = [
        getattr(cls, name, None) for cls in classes if _is_of_torch(cls) for name in ("forward", *SET_METHODS)
    ]
    names = {name for method in methods if method is not None for name in method.__code__.co_names}
    return [*found, *((F, name, getattr(F, name)) for name in sorted(names) if hasattr(F, name))]


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        return alike and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    if isinstance(a, (tuple, list)) and type(a) is type(b) and len(a) == len(b):
        return all(map(_is_equal, a, b))
    return False
