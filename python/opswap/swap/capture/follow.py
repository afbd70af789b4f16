# SPDX-License-Identifier: MIT
"""Follow a trace through the user's Python code, and record what that code reads outside of its arguments.

The rule: every function that runs must have been reached from the traced module by attributes, globals, closures and
containers, and everything reached on the way is either watched by the rewritten forward or refuses the capture.
A function is followed before its first line runs, so that what it writes is found and taken back.
"""

from __future__ import annotations

import builtins
import gc
import inspect
import os
import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch import Tensor, finfo, nn
from torch.fx import Proxy

from ..runtime import purity
from ..runtime.members import MISSING
from ..runtime.outside import Outside, Scope
from ..runtime.state import INTERNAL, Reading
from .bytecode import place, reads, resolved, unfaithful
from .element_writes import MUTATORS, element_writes
from .frames import fetch, has_cells
from .identity import Chain, identities
from .layer_methods import CHILDREN, DESCENDANTS, LISTS, SEEN
from .look_up import is_look_up
from .reach import Reach
from .shell import holds_modules
from .trace_frames import reads_modules
from .unseen import part_of

__all__ = ["CHECKPOINTED", "Follower"]

# From 3.12 on, a change of the profile function makes Python look at all code again.
_CHEAP = sys.version_info < (3, 12)
_MODULE = os.path.join("nn", "modules", "module.py")
_CONTAINER = os.path.join("nn", "modules", "container.py")
_CHECKPOINT = "torch.utils.checkpoint"
CHECKPOINTED = (
    f"forward passes a function to {_CHECKPOINT}; checkpointed code can be swapped if it is a module "
    "of its own: checkpoint(self.block, x)"
)
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# What torch keeps in every module, as far as a capture does not know about it anyway.
_HIDDEN = INTERNAL - {"_modules", "training"}
# Libraries that read attributes by names that are not known in advance.
_READ_ALL = frozenset({"copy", "dataclasses", "string"})


class Follower:
    """Follows what runs between `start` and `stop` in this thread.

    refuse: makes the exception that ends the trace. While `paused`, nothing is followed. asks_none: code asked whether
    something is None that may be the result of a module. `meet` is called with each code before it runs first,
    `check_class` with each frame that runs an isinstance check which a stand-in does not see. `given` has the
    lists of stand-ins that are arguments of the forward.
    """

    meet: Callable[[CodeType], None]
    check_class: Callable[[FrameType], None]
    given: Container[Any]

    def __init__(
        self, root: nn.Module, inlined: Iterable[nn.Module], refuse: Callable[[str], Exception]
    ) -> None:
        self.root, self.refuse = root, refuse
        self.reached = Reach(root, refuse)
        self._inlined = tuple(inlined)
        self.inlined = {id(m) for m in (root, *self._inlined)}
        self.paused = self.asks_none = False
        self.flags: dict[nn.Module, str] = {}  # where `training` of another module is read, by the module
        self._calls: list[tuple[FrameType, Any]] = []  # of functions in C that have not returned
        self._owners: dict[int, tuple[str, CodeType]] = {}
        self._ran: dict[CodeType, None] = {}
        self._inner: set[CodeType] = set()  # of functions that are made while the trace runs
        self._followed: set[int] = set()
        self._scopes: dict[int, Any] = {}
        self._shadows: dict[int, tuple[Any, dict[str, None]]] = {}
        self._optional: dict[tuple[nn.Module, str], None] = {}
        self._asked: dict[tuple[int, str], tuple[Any, str]] = {}
        self._previous: Any = None
        self._started = False
        self._writes_elements = False  # of any container
        self._variables: dict[int, frozenset[str]] = {}  # by the ids of functions that ran
        self._written: set[int] = set()  # else of these, by their ids, which the ledger keeps alive
        self._thresholds: tuple[int, ...] = ()  # of the garbage collector, while it is off

    def start(self) -> None:
        self._previous = sys.getprofile()
        if not (self._previous is None or callable(self._previous) or hasattr(self._previous, "enable")):
            raise self.refuse("a profiler is active: a capture needs its place to see the calls of a forward")
        for module in (self.root, *self._inlined):
            self.reached.reach(module, "self")
        self._started = True
        # It may run code that has nothing to do with the forward. Other threads may switch it off permanently
        # meanwhile.
        self._thresholds = gc.get_threshold()
        gc.set_threshold(0)
        sys.setprofile(self._event)

    def stop(self) -> None:
        if not self._started:
            return
        self._started = False
        sys.setprofile(None)
        self._calls.clear()
        if self._thresholds and not gc.get_threshold()[0]:
            gc.set_threshold(*self._thresholds)
        if hasattr(self._previous, "enable"):  # cProfile
            self._previous.enable()
        elif self._previous is not None:
            sys.setprofile(self._previous)

    def undo(self) -> tuple[list[str], list[str]]:
        """Undo what the traced code wrote.

        Returns: in words, what it wrote to, and what another thread wrote to that it reads.
        """
        return self.reached.undo(self._writes_elements, self._written)

    def wrote(self) -> list[str]:
        """What the traced code wrote by now and has not put back, in words."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self._note_variables(frame)
            frame = frame.f_back
        return self.reached.wrote(self._writes_elements, self._written)

    def moved(self) -> list[str]:
        """What another thread wrote to after `undo`, in words."""
        return self.reached.moved()

    def read_flag(self, module: nn.Module, owner: nn.Module, frame: FrameType) -> None:
        """Code reads `training` of a module, in the forward of `owner`."""
        if not self.listens or module is owner or not reads_modules(frame):
            return
        if id(module) not in self.reached.tree:
            raise self.refuse(f"{place(frame.f_code)} reads .training of a module that is not a submodule")
        if "training" not in module.__dict__:
            raise self.refuse(f"{place(frame.f_code)} reads .training of a scripted module")
        self.flags[module] = _line(frame)

    def outside(self) -> Outside:
        """What to watch that belongs to no module."""
        shadows = tuple((h, tuple(ns)) for h, ns in self._shadows.values())
        return replace(self.reached.outside(self._ran, tuple(self._asked.values())), shadows=shadows)

    def reading(self) -> Reading:
        """What was read of modules by name."""
        found = self.reached.reading(self.inlined)
        return replace(found, optional=tuple(self._optional), asked=tuple(self._asked.values()))

    def fetched(self, module: nn.Module, name: str, value: Any) -> None:
        """torch's Module.__getattr__ found a child, a parameter or a buffer for code of the user or of a layer."""
        if id(module) not in self.reached.tree:
            return
        if isinstance(value, nn.Module):
            self.reached.parents[module] = None
            self.reached.reach(module, "self")
            self.reached.reach(value, name)
        else:
            self._optional[module, name] = None

    @property
    def listens(self) -> bool:
        """True while calls are followed."""
        return self._started and not self.paused

    # --- what runs ---------------------------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Follow nothing until `go_on`; returns the argument for `go_on`."""
        before, self.paused = self.paused, True
        if _CHEAP and self._started and not before:
            sys.setprofile(None)
        return before

    def go_on(self, before: bool) -> None:
        """Follow again, if that was so before `pause`."""
        self.paused = before
        if _CHEAP and self._started and not before:
            sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.paused:
            return
        if event == "call":
            try:
                self._enter(frame)
            except Exception:
                # Python may be closing a generator, and crashes if that fails; the refusal remains.
                if not frame.f_code.co_flags & _GENERATOR:
                    raise
        elif event == "c_call":
            self._calls.append((frame, argument))
            self._enter_c(frame, argument)
        elif event == "return":
            self._note_variables(frame)
        elif event in ("c_return", "c_exception"):
            while self._calls and self._calls.pop()[0] is not frame:
                pass

    def called_by(self, frame: FrameType) -> Any:
        """The function in C that the code of this frame calls and that has not returned; None if there is none."""
        return next((called for caller, called in reversed(self._calls) if caller is frame), None)

    def _note_variables(self, frame: FrameType) -> None:
        """Which objects a local variable reaches whose elements the function has written to."""
        names = self._variables.get(id(frame.f_code))
        if names:
            variables = frame.f_locals
            self._written.update(id(variables[name]) for name in names if name in variables)

    def _enter_c(self, frame: FrameType, argument: Any) -> None:
        if getattr(argument, "__name__", "") in MUTATORS:
            self._written.add(id(getattr(argument, "__self__", None)))
        if self._owner(frame) is purity.USER:
            name = purity.refused_builtin(argument)
            if name is not None:
                raise self.refuse(f"{name}() is called at {_line(frame)}, which a capture cannot follow")
            if purity.is_query(argument):
                self.reached.ask(argument)
            if argument is isinstance:
                self.check_class(frame)
            if argument is getattr:
                self._look_up_by_attributes(frame)

    def _enter(self, frame: FrameType) -> None:
        kind = self._owner(frame)
        if kind is purity.USER:
            self._follow(frame)
        elif kind is purity.LAYERS:
            self._enter_layer(frame, self._owner(frame.f_back) is purity.USER)
        elif kind is not purity.OWN and frame.f_back is not None:
            # As the methods of UserDict, by which a dict of another object is written.
            writes = kind is purity.LIBRARY and frame.f_code.co_name in MUTATORS
            self._writes_elements = self._writes_elements or writes
            caller = self._owner(frame.f_back)
            if frame.f_code.co_name == "__instancecheck__" and caller in (purity.USER, purity.LIBRARY):
                self.check_class(frame)
            if kind is purity.STATEFUL and caller in (purity.USER, purity.LIBRARY):
                raise self.refuse(
                    f"{_name(frame)}() is called at {_line(frame.f_back)}, whose results may change"
                )
            if kind is purity.LIBRARY and (_module(frame), frame.f_code.co_name) == ("abc", "register"):
                raise self.refuse(f"register() of an abstract class is called at {_line(frame.f_back)}")
            if kind is purity.LIBRARY and caller is purity.USER and _module(frame) in _READ_ALL:
                self.reached.look_everywhere()
            if kind is purity.LIBRARY and caller is purity.USER:
                self._enter_library(frame)
            if kind is purity.TORCH and caller is purity.USER:
                self._enter_torch(frame)

    def _owner(self, frame: FrameType) -> str:
        """The owner of the code that runs; looking up a code object by value is slow."""
        code = frame.f_code
        known = self._owners.get(id(code))
        if known is None:
            self.meet(code)
            kind = purity.owner_of_frame(frame)
            known = self._owners[id(code)] = kind, code
        return known[0]

    def _enter_library(self, frame: FrameType) -> None:
        if frame.f_code.co_name == "get_type_hints":
            self.reached.look_for(("__annotations__", "__bases__"))
        if _module(frame).startswith("namedtuple_"):  # its defaults are the user's
            self._ran[frame.f_code] = None
            for function in self.reached.functions.get(frame.f_code, ()):
                self._follow_function(function)

    def _enter_torch(self, frame: FrameType) -> None:
        code = frame.f_code
        function = frame.f_locals.get("fn") if code.co_name == "inner" else None
        if _CHECKPOINT in (_module(frame), getattr(function, "__module__", None)):
            raise self.refuse(CHECKPOINTED)
        if code.co_name == "decorate_context":
            raise self.refuse(
                f"a decorator changes the gradient mode, or another one, at {_line(frame.f_back)}"
            )
        if purity.is_pure_torch(code.co_filename, code.co_name):
            return
        function = getattr(sys.modules.get(_module(frame)), code.co_name, None)
        if not purity.is_query(function):
            raise self.refuse(
                f"{_name(frame)}() is called at {_line(frame.f_back)}, which a capture cannot follow"
            )
        self.reached.ask(function)

    def _enter_layer(self, frame: FrameType, by_user: bool) -> None:
        """A method of one of torch's or opswap's modules runs."""
        code = frame.f_code
        me = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if not code.co_filename.endswith((_MODULE, _CONTAINER)):
            self.reached.look_for(reads(code).attributes)
        if not isinstance(me, nn.Module) or id(me) not in self.reached.tree:
            return
        if code.co_name in CHILDREN and (by_user or id(me) in self.inlined):
            self.reached.count_children(me)
        elif not by_user:
            return
        elif code.co_name == "forward" and id(me) not in self.inlined:
            name = f"{type(me).__name__}.forward"
            raise self.refuse(f"{name}() is called directly at {_line(frame.f_back)}, whose mode may change")
        elif code.co_name in DESCENDANTS:
            if code.co_name in LISTS:
                self.reached.reach(me, "self")
                self.reached.listed[me] = None
            for m in tuple(nn.Module.modules(me)):
                self.reached.count_children(m)
                self._optional.update(dict.fromkeys((m, n) for n in (*m._parameters, *m._buffers)))
        elif code.co_name in ("__repr__", "extra_repr") or (
            code.co_filename.endswith(_MODULE) and code.co_name not in SEEN
        ):
            name = f"{type(me).__name__}.{code.co_name}"
            raise self.refuse(f"{name}() is called at {_line(frame.f_back)}, which a capture cannot follow")

    # --- the user's functions ----------------------------------------------------------------------------------------

    def _follow(self, frame: FrameType) -> None:
        code = frame.f_code
        self._compare(frame)
        if is_look_up(code):
            self._note_question(frame)
        if code in self._ran and not code.co_freevars:
            return
        functions = self._functions_of(frame)
        if code not in self._ran:
            self._follow_code(frame)
        for function in functions:
            if id(function) not in self._followed:
                self._followed.add(id(function))
                self._follow_function(function)

    def _look_up_by_attributes(self, frame: FrameType) -> None:
        """getattr() runs next: maybe with the first argument of the code, and a text that this argument holds."""
        code = frame.f_code
        for name in reads(code).indirect:
            me = frame.f_locals.get(code.co_varnames[0])
            text = part_of(me, name) if isinstance(me, nn.Module) and name in vars(me) else MISSING
            if type(text) is str:
                self.reached.texts.add(text)
                self.reached.look_for((text,))
            elif text is not None:
                self.reached.look_everywhere()

    def _note_question(self, frame: FrameType) -> None:
        """Code reads an attribute through an object's own `__getattribute__`; the rewritten forward reads it again."""
        me, key = (frame.f_locals.get(name) for name in frame.f_code.co_varnames[:2])
        own = any(_code_of(vars(c).get("__getattribute__")) is frame.f_code for c in type(me).__mro__)
        if isinstance(me, nn.Module) or not own or type(key) is not str or holds_modules(me):
            raise self.refuse(f"{place(frame.f_code)} runs, which a capture cannot follow")
        # What a look-up itself reads from the object is part of its answer.
        if not is_look_up(frame.f_back.f_code):
            self._asked[id(me), key] = me, key

    def _compare(self, frame: FrameType) -> None:
        """The code compares arguments by identity; a stand-in for a tensor is not what the tensor would be."""
        found = identities(frame.f_code)
        if found.unknown or not all(self._are_modules(frame, sides) for sides in found.chains):
            what = "compares two values by identity, which a capture cannot follow"
            raise self.refuse(f"{place(frame.f_code)} {what}")
        self.asks_none = self.asks_none or found.asks_none
        if not found.arguments and not found.others:
            return
        variables = frame.f_locals
        for name in found.others:
            value = variables.get(name)
            if isinstance(value, (Proxy, Tensor)) or value in self.given:
                raise self.refuse(
                    f"{place(frame.f_code)} compares {name}, a tensor, with another object by identity"
                )
        proxies = any(isinstance(variables.get(name), Proxy) for name in found.arguments)
        self.asks_none = self.asks_none or proxies

    def _are_modules(self, frame: FrameType, sides: tuple[Chain, ...]) -> bool:
        """True if one side of a comparison is a module of the model, and the other is not a stand-in for a tensor."""
        clear = False
        for side in sides:
            value = fetch(frame.f_locals, side)
            if side[-1] == "*" and not isinstance(value, (nn.ModuleList, nn.Sequential)):
                return False
            one = side[-1] != "*" and isinstance(value, nn.Module) and id(value) in self.reached.tree
            clear = clear or one
        return clear

    def _functions_of(self, frame: FrameType) -> list[FunctionType]:
        """The functions of which one may be running; refuses a function that was not reached."""
        code = frame.f_code
        known = self.reached.functions.get(code, [])
        if code.co_freevars:
            known = [f for f in known if has_cells(f, frame.f_locals)]
        if not known and code not in self._inner:
            raise self.refuse(f"{place(code)} was reached in a way that a capture cannot watch")
        return known

    def _follow_code(self, frame: FrameType) -> None:
        code = frame.f_code
        self._ran[code] = None
        self._inner.update(c for c in code.co_consts if isinstance(c, CodeType))
        reason = unfaithful(code)
        if reason:
            raise self.refuse(reason)
        writes = element_writes(code)
        self._writes_elements = self._writes_elements or writes.anywhere
        self._variables[id(code)] = writes.variables
        found = reads(code)
        hidden = sorted((found.attributes | found.texts) & _HIDDEN)
        if hidden:
            raise self.refuse(f"{place(code)} reads {hidden[0]}, which a capture cannot follow")
        self.reached.texts |= found.texts
        self.reached.look_for(found.attributes | found.texts, found.stored, found.unread)
        if found.dynamic and not self.reached.dynamic:
            self.reached.look_everywhere()
        if found.dynamic or "finfo" in found.attributes | found.texts:
            self.reached.reach(finfo, "finfo")
        scope = self._scope(frame.f_globals)
        self.reached.classes = self.reached.classes or "isinstance" in found.names
        for name in found.names:
            if name in frame.f_globals:
                self.reached.watch(scope, name, name)
            elif hasattr(builtins, name):
                self._shadows.setdefault(id(scope), (scope, {}))[1][name] = None
                self.reached.reach(getattr(builtins, name), name)
        for name, level in found.imports:
            self._import(name, level, frame.f_globals)

    def _scope(self, variables: dict[str, Any]) -> Any:
        """The module whose global variables these are, or what represents it."""
        module = sys.modules.get(variables.get("__name__", ""))
        if module is not None and getattr(module, "__dict__", None) is variables:
            return module
        if id(variables) not in self._scopes:
            self._scopes[id(variables)] = Scope(variables)
        return self._scopes[id(variables)]

    def _import(self, name: str, level: int, variables: dict[str, Any]) -> None:
        parts = resolved(name, level, variables).split(".")
        for i in range(1, len(parts) + 1):
            self.reached.reach(sys.modules.get(".".join(parts[:i])), name)

    def _follow_function(self, function: FunctionType) -> None:
        name = function.__qualname__
        self.reached.watch(function, "__code__", name)
        for defaults in ("__defaults__", "__kwdefaults__"):
            if getattr(function, defaults):
                self.reached.watch(function, defaults, f"a default of {name}")
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if variable != "__class__":
                self.reached.watch(cell, "cell_contents", variable)
        for cls, member in self.reached.members.get(id(function), ()):
            self.reached.watch(cls, member, f"{cls.__qualname__}.{member}")


def _code_of(value: Any) -> CodeType | None:
    return value.__code__ if isinstance(value, FunctionType) else None


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__", "")
    return name if isinstance(name, str) else ""


def _name(frame: FrameType) -> str:
    return f"{_module(frame)}.{frame.f_code.co_name}"


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
