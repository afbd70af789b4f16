# SPDX-License-Identifier: MIT
"""Copies of a model to analyse and to run, without any effect on the live model.

A `Shell` has a twin of every module: an instance of the stock class with the same attributes. Planning sets flags,
traces forwards and calls modules on twins alone.
"""

from __future__ import annotations

import copy
import random
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..runtime.instance_forward import (
    Link,
    call_forward,
    is_current,
    is_rewritten,
    put_as,
    recipe_of,
    without_links,
)
from ..runtime.members import static_base
from ..runtime.plan_of import PLAN, keep_plan, plan_of

__all__ = ["Shell", "computes", "holds_modules", "own_hooks"]

_ATOMS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
)
_ATOMS += (torch.dtype, torch.device, torch.memory_format)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_HOOKS = frozenset(k for k in vars(nn.Module()) if k.endswith(("_hooks", "_hooks_with_kwargs")))
# What a swap or Module.compile put on the live instance.
_DROPPED = frozenset(("_opswap_record", PLAN, "_compiled_call_impl"))
_CALL = "_compiled_call_impl"  # what torch.nn.Module.__call__ runs in place of forward and hooks
# By twin: the keys of the hooks that its original had. torch gives each hook of the process another key.
_hooks_of_originals: weakref.WeakKeyDictionary[nn.Module, frozenset[int]] = weakref.WeakKeyDictionary()
# The Python modules whose hooks a model computes by; those of the last two collect features for its forward.
_COMPUTING = (
    "torch.nn.",
    "torch.ao.",
    "opswap.",
    "timm.models._features",
    "transformers.utils.output_capturing",
)
_OWN_PROTOCOL = ("__deepcopy__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")


class _Memo(dict[Any, Any]):
    """The copies by the ids of their originals, as copy.deepcopy has them. added: keys in the order they came."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[Any] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self:
            self.added.append(key)
        super().__setitem__(key, value)


class Shell:
    """Twins of a module and of everything below it.

    Containers, functools.partial, bound methods, closures, weak references and plain objects that hold modules are
    rebuilt to hold the twins. Plain lists, dicts and sets, random generators and tensors that are neither parameters
    nor buffers are always copies, so that a forward that writes to them or draws from them is not noticed. Parameters,
    buffers and other objects are shared.

    Args:
        model: what to copy.
        own: the twins get parameters, buffers and other objects of their own, and may be run.
        stock: the twins have the stock classes and no record of a swap; else those of the model.
        call: runs in place of `Module.__call__` of every twin; None is torch's own call.
    Attributes: root: the twin of the model. rigid: modules that have no twin of their parts: they are copied as a
        whole or, without `own`, shared.
    Raises: what copy.deepcopy raises of such a module.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        own: bool = False,
        stock: bool = True,
        call: Callable[..., Any] | None = None,
    ) -> None:
        self.rigid: list[nn.Module] = []
        self._own, self._stock, self._call = own, stock, call
        self._copies = _Memo()
        self._originals: dict[int, Any] = {}
        self._alive: list[Any] = []
        self._registered: set[int] = set()  # parameters and buffers, which the twins share
        self.root: nn.Module = self._module(model)

    def copy_of(self, module: nn.Module) -> nn.Module:
        """The copy of a module of the model, the module itself if it has none."""
        return self._copies.get(id(module), module)

    def live(self, twin: Any) -> Any:
        """The object of the model of which this is the copy, the object itself if it is shared."""
        return self._originals.get(id(twin), twin)

    def originals(self) -> list[nn.Module]:
        """The modules of the model that have a copy."""
        return [m for m in self._originals.values() if isinstance(m, nn.Module) and self.copy_of(m) is not m]

    def _note(self, value: Any, twin: Any) -> Any:
        self._copies[id(value)] = twin
        self._originals[id(twin)] = value
        self._alive += (value, twin)  # ids of what is gone are used again
        return twin

    def _module(self, module: nn.Module) -> nn.Module:
        """The twins of a module and its descendants: all are made before the first is filled."""
        made = [m for m in _descendants(module) if id(m) not in self._copies and self._make(m)]
        for m in made:
            self._registered.update(map(id, [*m._parameters.values(), *m._buffers.values()]))
        for m in made:
            self._fill(m, self._copies[id(m)])
            _hooks_of_originals[self._copies[id(m)]] = frozenset(_hook_keys(m))
        return self._copies[id(module)]

    def _make(self, module: nn.Module) -> bool:
        cls = type(module)
        if isinstance(module, torch.jit.ScriptModule) or static_base(cls) is not object:
            self.rigid.append(self._note(module, self._rigid(module) if self._own else module))
            return False
        self._note(module, object.__new__(cls))
        return True

    def _rigid(self, module: nn.Module) -> nn.Module:
        """A copy as a whole. Copied under autograd, a scripted module would pass gradients on to the original."""
        with torch.no_grad():
            copied = copy.deepcopy(module, self._copies)
        for original, parameter in zip(module.parameters(), copied.parameters(), strict=True):
            parameter.requires_grad_(original.requires_grad)
        return copied

    def _fill(self, module: nn.Module, twin: nn.Module) -> None:
        if self._own and _copies_itself(type(module)):
            self._fill_by_protocol(module, twin)
            return
        own = without_links(vars(module))
        for name, value in _attributes(module):
            if name in _DROPPED and (self._stock or name == _CALL):
                continue
            if name in vars(module) and name not in own:
                continue
            if name.startswith("_opswap_"):
                copied = self._deepcopy(value)
            elif name in _HOOKS:
                copied = type(value)((k, self._hook(h)) for k, h in value.items())
            else:
                copied = self.value(value)
            if name in vars(module):
                vars(twin)[name] = copied
            else:
                object.__setattr__(twin, name, copied)
        if not self._stock:
            keep_plan(twin, plan_of(module))
        if is_rewritten(module) and not self._stock:
            put_as(twin, module, recipe_of(module))
        if self._call is not None:
            vars(twin)[_CALL] = partial(self._call, twin)

    def _hook(self, hook: Any) -> Any:
        """What a twin has in place of a hook: one by which a model computes writes to objects of the twins."""
        if not computes(hook):
            return hook
        return self._deepcopy(hook) if self._own and not _holds_modules(hook) else self.value(hook)

    def _fill_by_protocol(self, module: nn.Module, twin: nn.Module) -> None:
        """A class that controls how it is copied may hold what must not be copied; its children have twins already."""
        del self._copies[id(module)]
        copied = self._deepcopy(module)
        self._copies[id(module)] = twin
        if copied is module:
            vars(twin).update({k: self.value(v) for k, v in vars(module).items() if k not in _DROPPED})
        else:
            vars(twin).update(vars(copied))
        if self._call is not None:
            vars(twin)[_CALL] = partial(self._call, twin)

    def _deepcopy(self, value: Any) -> Any:
        """What copy.deepcopy makes of it with the twins that are known; the value itself if it cannot be copied."""
        self._copies.added = []
        try:
            return copy.deepcopy(value, self._copies)
        except Exception:
            for key in self._copies.added:  # what was copied by halves
                del self._copies[key]
            return value

    def value(self, value: Any) -> Any:
        """What a twin holds in place of this attribute."""
        if type(value) in _ATOMS:
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        if type(value) in weakref.ProxyTypes and isinstance(value, nn.Module):
            return weakref.proxy(self.value(value.__repr__.__self__))
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, Tensor):
            shared = not self._own and id(value) in self._registered
            return value if shared else self._note(value, self._tensor(value))
        if isinstance(value, torch.Generator):
            return self._note(value, value.clone_state())
        if isinstance(value, random.Random) or type(value).__module__.startswith("numpy.random"):
            return self._note(value, copy.deepcopy(value))
        if isinstance(value, _CONTAINERS) and (_is_copied(type(value)) or _holds_modules(value)):
            return self._container(value)
        if isinstance(value, (partial, types.MethodType, types.FunctionType, weakref.ref)):
            return self._callable(value) if _holds_modules(value) else value
        if _is_object(value) and holds_modules(value):
            return self._object(value)
        return self._deepcopy(value) if self._own else value

    def _tensor(self, tensor: Tensor) -> Tensor:
        copied = self._deepcopy(tensor) if tensor.is_leaf else tensor
        if copied is not tensor:
            return copied
        twin = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin

    def _container(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, (tuple, frozenset)):
            items = [self.value(v) for v in value]
            if all(map(_is, items, value)):
                return value
            made = kind._make(items) if hasattr(kind, "_make") else _base(kind).__new__(kind, items)
            return self._note(value, made)
        base = _base(kind)
        made = self._note(value, base.__new__(kind))
        if base is deque:
            deque.__init__(made, maxlen=value.maxlen)
        if isinstance(value, defaultdict):
            made.default_factory = self.value(value.default_factory)
        if isinstance(value, dict):
            for k, v in list(base.items(value)):
                base.__setitem__(made, k, self.value(v))
        elif isinstance(value, set):
            base.update(made, map(self.value, list(value)))
        else:
            base.extend(made, map(self.value, list(value)))
        for name, attribute in _attributes(value):
            object.__setattr__(made, name, self.value(attribute))
        return made

    def _callable(self, value: Any) -> Any:
        if isinstance(value, partial):
            keywords = {k: self.value(v) for k, v in value.keywords.items()}
            made = type(value)(self.value(value.func), *map(self.value, value.args), **keywords)
            return self._note(value, made)
        if isinstance(value, types.MethodType):
            return self._note(value, self._method(value))
        if isinstance(value, weakref.ref):
            twin = self.value(value())
            return self._note(value, weakref.ref(twin))
        return self._function(value)

    def _method(self, value: types.MethodType) -> Any:
        """A bound forward of a swapped module runs the forward of the twin."""
        holder = value.__self__
        twin = self.value(holder.opswap_ref() if isinstance(holder, Link) else holder)
        if is_current(value) and not self._stock:
            return partial(call_forward, twin)
        if is_current(value) or isinstance(holder, Link):
            return types.MethodType(type(twin).forward, twin)
        return types.MethodType(self.value(value.__func__), twin)

    def _function(self, value: types.FunctionType) -> Any:
        """The same code with the twins; a variable without modules stays the caller's own."""
        cells = tuple(map(self._cell, value.__closure__ or ()))
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, cells or None)
        self._note(value, made)
        for cell, own in zip(value.__closure__ or (), cells, strict=True):
            if own is not cell and not _is_set(own):
                own.cell_contents = self.value(cell.cell_contents)
                self._note(cell, own)
        made.__defaults__ = self.value(value.__defaults__)
        made.__kwdefaults__ = self.value(value.__kwdefaults__)
        made.__qualname__, made.__module__ = value.__qualname__, value.__module__
        made.__annotations__, made.__doc__ = value.__annotations__, value.__doc__
        vars(made).update({k: self.value(v) for k, v in vars(value).items()})
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        """An empty one for a cell that holds modules; functions that share a variable share it again."""
        if id(cell) in self._copies or not _holds_modules(cell):
            return self._copies.get(id(cell), cell)
        return self._note(cell, types.CellType())

    def _object(self, value: Any) -> Any:
        made = self._note(value, static_base(type(value)).__new__(type(value)))
        for name, attribute in _attributes(value):
            object.__setattr__(made, name, self.value(attribute))
        return made


def own_hooks(module: nn.Module) -> set[int]:
    """The keys of hooks that were put on a twin since it was made; none of another module."""
    known = _hooks_of_originals.get(module)
    return set() if known is None else set(_hook_keys(module)) - known


def _hook_keys(module: nn.Module) -> list[int]:
    return [key for name in _HOOKS for key in vars(module).get(name, ())]


def computes(hook: Any) -> bool:
    """True for a hook by which a model computes: of torch, such as that of weight_norm, of a lazy module or of an
    observer; or of a library whose forwards read what their hooks have collected.
    """
    while isinstance(hook, partial):
        hook = hook.func
    hook = getattr(hook, "__func__", hook)
    found = (hook,) if isinstance(hook, types.FunctionType) else type(hook).__mro__
    return any((c.__module__ or "").startswith(_COMPUTING) for c in found)


def _is(a: Any, b: Any) -> bool:
    return a is b


def _descendants(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its children by torch's own table, independent of what its class returns for them."""
    seen: set[int] = set()
    stack = [module]
    while stack:
        m = stack.pop()
        if id(m) in seen or not isinstance(m, nn.Module):
            continue
        seen.add(id(m))
        yield m
        if not isinstance(m, torch.jit.ScriptModule):
            stack += reversed(list(vars(m).get("_modules", {}).values()))


def _copies_itself(cls: type) -> bool:
    """True if the class controls how it is copied."""
    own = (c for c in cls.__mro__[:-1] if not c.__module__.startswith("torch.nn.modules."))
    names = {k for c in own for k in vars(c)}
    return not names.isdisjoint(_OWN_PROTOCOL)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """What an instance holds in its dict and in the slots of its classes."""
    found = list(getattr(value, "__dict__", {}).items())
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = f"_{cls.__name__.lstrip('_')}{slot}" if slot[:2] == "__" != slot[-2:] else slot
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found.append((name, getattr(value, name)))
    return found


def _base(kind: type) -> type:
    """The class of the standard library that keeps the elements."""
    kinds = (OrderedDict, defaultdict, *_CONTAINERS)
    return next(c for c in kind.__mro__ if c in kinds)


def _is_copied(kind: type) -> bool:
    """True for containers that code may write to, and that can be copied."""
    return kind in (list, dict, set, deque, OrderedDict, defaultdict, tuple)


def _is_object(value: Any) -> bool:
    """True for an instance of an ordinary class outside of torch."""
    cls = type(value)
    ordinary = type(cls) is type and isinstance(getattr(value, "__dict__", None), dict)
    known = static_base(cls) in (object, types.SimpleNamespace)
    return ordinary and known and cls.__module__.partition(".")[0] not in ("torch", "opswap")


def _holds_modules(value: Any) -> bool:
    """True if a module is reached through containers and callables, but not through attributes of objects."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        v = stack.pop()
        if isinstance(v, nn.Module):
            return True
        if type(v) in _ATOMS or id(v) in seen:
            continue
        seen.add(id(v))
        stack += _parts(v)
    return False


def holds_modules(value: Any) -> bool:
    """True if a module is reached from an attribute of the object; its twin is another object."""
    return any(_holds_modules(v) for _, v in _attributes(value))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(dict.values(value))
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        holder = value.__self__
        return [holder.opswap_ref() if isinstance(holder, Link) else holder, value.__func__]
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, types.CellType):
        return [value.cell_contents] if _is_set(value) else []
    if isinstance(value, types.FunctionType) and not (value.__module__ or "").startswith("torch."):
        return list(
            chain(value.__closure__ or (), value.__defaults__ or (), (value.__kwdefaults__ or {}).values())
        )
    return []


def _is_set(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
