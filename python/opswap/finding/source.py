# SPDX-License-Identifier: MIT
"""The user's line behind an operator: of a forward from the stack, of a backward from the node that it made."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
import weakref
from array import array
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import graph
from torch.nn.parameter import Parameter

from opswap._torch import current_node, graph_task, sequence_number

__all__ = ["Locator", "Origin", "is_user_file", "line_text", "short_path"]

_OPSWAP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Networks written in plain torch: to the finders they are user code.
_OWN_USER_CODE = tuple(os.path.join(_OPSWAP, name) + os.sep for name in ("models", "demo"))
_LIBRARIES = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    _OPSWAP + os.sep,
    f"{os.sep}einops{os.sep}",
)
_STANDARD_LIBRARY = tuple({sysconfig.get_path("stdlib") + os.sep, os.path.dirname(os.__file__) + os.sep})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_REWRITTEN = "<opswap"
_GENERATED = ("<frozen ", _REWRITTEN, "<eval_with_key>", "<torch_package")

_CALL_MODULE = nn.Module._call_impl.__code__
_RUN_BACKWARD = graph._engine_run_backward.__code__
_CHECKPOINT = os.path.join("torch", "utils", "checkpoint.py")
# Of torch, they work on parameters and their gradients: optimizers, and what sends parameters to other processes.
_OF_PARAMETERS = (
    f"{os.sep}torch{os.sep}optim{os.sep}",
    f"{os.sep}torch{os.sep}distributed{os.sep}utils.py",
)

# Autograd numbers the nodes of a thread one after the other. The last so many keep their line; memory is constant.
_REMEMBERED_NODES = 1 << 17
_MOST_FILES = 4096


@dataclass(frozen=True, eq=False)
class Origin:
    """Where an operator was called.

    module: path of the innermost module, "" outside of modules or for the model itself. file, line, function: the
    innermost frame outside torch and opswap; "" and 0 if there is none. phase: "forward", "backward", "recompute"
    (a forward that checkpointing runs again inside the backward) or "optimizer". to_leaf: autograd adds a gradient to
    the .grad of a leaf.

    A Locator makes one object for each different origin, which is equal to itself only: a cheap key.
    """

    module: str
    file: str
    line: int
    function: str
    phase: str
    to_leaf: bool = False


_USER, _CHECKPOINTS, _SWAPPED, _OPTIMIZES, _OTHER = range(5)


@functools.lru_cache(maxsize=_MOST_FILES)
def _kind_of_file(file: str) -> int:
    """What the code of a file is to a Locator."""
    if is_user_file(file):
        return _USER
    if file.endswith(_CHECKPOINT):
        return _CHECKPOINTS
    if file.startswith(_REWRITTEN):
        return _SWAPPED
    return _OPTIMIZES if any(part in file for part in _OF_PARAMETERS) else _OTHER


@functools.lru_cache(maxsize=_MOST_FILES)
def is_user_file(file: str) -> bool:
    """True if code of this file is the user's: not of torch, opswap, einops or the standard library."""
    if file.startswith(_GENERATED):
        return False
    if file.startswith(_OWN_USER_CODE):
        return True
    if any(library in file for library in _LIBRARIES):
        return False
    return not file.startswith(_STANDARD_LIBRARY) or any(part in file for part in _INSTALLED)


def short_path(file: str) -> str:
    """The path relative to the working directory if it is below it, else the last three parts."""
    if not file or file.startswith("<"):
        return file
    relative = (
        os.path.relpath(file) if os.path.splitdrive(file)[0] == os.path.splitdrive(os.getcwd())[0] else file
    )
    return relative if not relative.startswith("..") else os.path.join(*file.split(os.sep)[-3:])


def line_text(file: str, line: int) -> str:
    """The stripped source line, "" if it cannot be read."""
    return linecache.getline(file, line).strip()


class _Names:
    """Names of modules, by id: the look-up of a WeakKeyDictionary takes five times as long. Keeps no module alive."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[nn.Module], str]] = {}

    def get(self, module: nn.Module) -> str | None:
        entry = self._entries.get(id(module))
        return None if entry is None or entry[0]() is not module else entry[1]

    def set(self, module: nn.Module, name: str) -> None:
        key, entries = id(module), self._entries

        def forget(gone: weakref.ref[nn.Module]) -> None:
            entry = entries.get(key)
            if entry is not None and entry[0] is gone:
                del entries[key]

        entries[key] = weakref.ref(module, forget), name


class Locator:
    """Finds the origin of operators that one dispatch mode sees, one after the other.

    Args: model: its modules and parameters are named by their path in it; those of other models are named by the
        class of the outermost module, "Net.layer1.0".

    Nothing here keeps a module, a tensor or a graph alive.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._names = _Names()
        self._parameters: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._roots: dict[str, list[weakref.ref[nn.Module]]] = {}  # by class
        self._origins: dict[tuple[Any, ...], Origin] = {}
        self._backwards: dict[Origin, Origin] = {}
        self._modules: dict[tuple[Any, ...], str] = {}  # of a line in a forward
        self._numbers = array("q", [-1]) * _REMEMBERED_NODES
        self._nodes: list[Origin | None] = [None] * _REMEMBERED_NODES
        self._last = sequence_number() - 1
        self._previous: Origin | None = None
        self.lost_nodes = 0
        if model is not None:
            self._name_all(model, "")

    def new_node(self) -> bool:
        """True if autograd made a node since `remember` was called last."""
        return sequence_number() - 1 != self._last

    def remember(self, origin: Origin) -> None:
        """Note that the nodes made since the last call are of this line."""
        newest = sequence_number() - 1
        if newest == self._last + 1:
            slot = newest % _REMEMBERED_NODES
            self._numbers[slot], self._nodes[slot] = newest, origin
            self._last, self._previous = newest, origin
            return
        between = self._previous or origin  # an in-place operator on a view makes its second node late
        for number in range(max(self._last + 1, newest - _REMEMBERED_NODES + 1), newest + 1):
            slot = number % _REMEMBERED_NODES
            self._numbers[slot] = number
            self._nodes[slot] = origin if number == newest else between
        self._last = newest
        self._previous = origin

    def locate(self, frame: FrameType | None) -> Origin:
        """The origin of the operator called from this frame."""
        in_backward = graph_task() >= 0
        user: tuple[CodeType, int] | None = None
        module: nn.Module | None = None
        generated = False
        phase = "backward" if in_backward else "forward"
        at = frame
        while at is not None:
            code = at.f_code
            if code is _RUN_BACKWARD and in_backward:
                break
            if code is _CALL_MODULE:
                if module is None or generated:
                    # Only of this frame: the dictionary that f_locals makes would keep a user's tensors alive.
                    called = at.f_locals["self"]
                    if module is None:
                        module = called
                    if generated and user is None:
                        user = _original_forward(called)
                    generated = False
                    if user is not None and not in_backward:
                        break
            else:
                kind = _kind_of_file(code.co_filename)
                if kind == _OTHER:
                    pass
                elif user is not None:
                    if kind == _CHECKPOINTS and in_backward:
                        phase = "recompute"
                elif kind == _USER:
                    user = code, at.f_lineno
                    if module is not None and not in_backward:
                        break
                elif kind == _SWAPPED:
                    generated = True
                elif kind == _OPTIMIZES:
                    phase = "optimizer"
            at = at.f_back
        if in_backward and user is None:
            return self._of_node(at)
        name = "" if module is None else self.module_name(module, frame)
        if phase == "recompute" and module is None and user is not None:
            name = self._modules.get((user[0].co_filename, user[1]), "")
        elif in_backward and module is None:
            name = self._of_node(at).module
        return self._origin(name, user, phase)

    def module_name(self, module: nn.Module, frame: FrameType | None) -> str:
        """The path of a module that is called in this frame."""
        name = self._names.get(module)  # "" of the model itself
        return self._name(module, frame) if name is None else name

    def parameter_name(self, parameter: Tensor) -> str:
        """The path of a parameter of a model seen so far, "" if it is not known."""
        reference, name = self._parameters.get(id(parameter), (None, ""))
        return name if reference is not None and reference() is parameter else ""

    def _origin(
        self, module: str, user: tuple[CodeType, int] | None, phase: str, to_leaf: bool = False
    ) -> Origin:
        if user is None:
            key: tuple[Any, ...] = (module, "", 0, phase, to_leaf)
        else:
            key = (module, user[0].co_filename, user[1], phase, to_leaf)
        origin = self._origins.get(key)
        if origin is None:
            function = "" if user is None else _function_name(user[0])
            origin = self._origins[key] = Origin(module, key[1], key[2], function, phase, to_leaf)
            if phase == "forward":
                self._modules[key[1:3]] = module
        return origin

    def _of_node(self, engine: FrameType | None) -> Origin:
        """The line whose forward made the node that runs; the line that called backward if that is not known."""
        node = current_node()
        number = -1 if node is None else node._sequence_nr()
        made = self._nodes[number % _REMEMBERED_NODES]
        if made is not None and self._numbers[number % _REMEMBERED_NODES] == number:
            origin = self._backwards.get(made)
            if origin is None:
                key = (made.module, made.file, made.line, "backward", False)
                origin = Origin(made.module, made.file, made.line, made.function, "backward")
                origin = self._backwards[made] = self._origins.setdefault(key, origin)
            return origin
        variable = getattr(node, "variable", None)  # of AccumulateGrad, which no line makes
        if variable is None and node is not None:
            self.lost_nodes += 1
        name = "" if variable is None else self.parameter_name(variable).rpartition(".")[0]
        while engine is not None and not is_user_file(engine.f_code.co_filename):
            engine = engine.f_back
        user = None if engine is None else (engine.f_code, engine.f_lineno)
        return self._origin(name, user, "backward", variable is not None)

    def _name(self, module: nn.Module, frame: FrameType | None) -> str:
        """Name a module that was not seen before, with the whole model that it is called in."""
        root, parent = module, ""
        while frame is not None:
            if frame.f_code is _CALL_MODULE:
                root = frame.f_locals["self"]
                parent = parent or self._names.get(root) or ""
            frame = frame.f_back
        prefix = self._names.get(root)
        self._name_all(root, self._new_prefix(root) if prefix is None else prefix)
        name = self._names.get(module)
        if name is None:  # made in a forward, for one call
            name = ".".join(filter(None, (parent, f"({type(module).__name__})")))
            self._names.set(module, name)
        return name

    def _new_prefix(self, root: nn.Module) -> str:
        """ "Net", or "Net#2" beside another one: a module that is made anew in every step keeps its name."""
        name = type(root).__name__
        known = self._roots.setdefault(name, [])
        place = next((i for i, other in enumerate(known) if other() is None), len(known))
        known[place : place + 1] = [weakref.ref(root)]
        return name if place == 0 else f"{name}#{place + 1}"

    def _name_all(self, root: nn.Module, prefix: str) -> None:
        for path, module in root.named_modules(prefix=prefix):
            if self._names.get(module) is None:
                self._names.set(module, path)
        self._parameters = {key: value for key, value in self._parameters.items() if value[0]() is not None}
        for path, parameter in root.named_parameters(prefix=prefix):
            if isinstance(parameter, Parameter) and not self.parameter_name(parameter):
                self._parameters[id(parameter)] = (weakref.ref(parameter), path)


def _original_forward(module: nn.Module) -> tuple[CodeType, int] | None:
    """The first line of the forward from which opswap.swap generated the one that runs."""
    code = getattr(type(module).forward, "__code__", None) if "_opswap_forward" in vars(module) else None
    if code is None:
        return None
    return (code, code.co_firstlineno) if is_user_file(code.co_filename) else None


def _function_name(code: CodeType) -> str:
    name = getattr(code, "co_qualname", code.co_name) if sys.version_info >= (3, 11) else code.co_name
    return name.replace(".<locals>", "")
