# SPDX-License-Identifier: MIT
"""Give one instance of a module a new forward and leave its class as it is, so that `type(m) is nn.Conv2d` holds.

What torch's Module calls is `self.forward`: a bound method on the instance comes first. It is bound to a `Link`, which
knows the module by a weak reference. Deep copies and pickles make links of their own. A module that has the link of
another one, because its dictionary is a copy, gets its own when it is called: see `called`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from .members import with_inner

__all__ = [
    "Link",
    "call_forward",
    "called",
    "fits",
    "generated_forward",
    "is_current",
    "is_rewritten",
    "link_of",
    "overridden",
    "put",
    "put_as",
    "put_back",
    "recipe_of",
    "saved",
    "set_by_user",
    "take_back",
    "without_links",
]

# The same object as "forward", as long as no code replaces it.
_FORWARD = "_opswap_forward"
_KEYS = frozenset({_FORWARD, "forward", "opswap_code", "_slow_forward"})


class Link:
    """Links a generated forward to its module.

    opswap_ref: the module, weakly: one that refers to itself would be freed by the garbage collector alone.
    cls: the class that the forward was generated for, None after `take_back`.
    """

    __slots__ = ("cls", "opswap_ref")

    recipe: Any = None

    def __init__(self, module: nn.Module, cls: type | None) -> None:
        self.opswap_ref, self.cls = weakref.ref(module), cls

    def forward(self, *args: Any) -> Any:
        """The generated forward; each recipe makes a subclass with its own."""
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        """The link of the module's copy, if one is made; else the same one, see `called`."""
        module = memo.get(id(self.opswap_ref()))
        return self if module is None else _link_of(self.recipe, module, self.cls)

    def __reduce__(self) -> Any:
        return _link_of, (self.recipe, self.opswap_ref(), self.cls)


class _SlowForward:
    """`_slow_forward`: what torch's Module calls in place of `forward` under torch.jit.trace and the ONNX exporter that
    uses it. The stock forward runs, so that the graph is that of the stock model and needs no opswap."""

    __slots__ = ("ref",)

    def __init__(self, module: nn.Module) -> None:
        self.ref = weakref.ref(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> _SlowForward:
        module = self.ref()
        return type(self)(memo.get(id(module), module))

    def __reduce__(self) -> Any:
        return type(self), (self.ref(),)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.ref()
        caller = _calling(sys._getframe(1))
        if caller is not None and vars(caller).get("_slow_forward") is self:
            module = caller
        if overridden(module):
            return type(module)._slow_forward(module, *args, **kwargs)
        return nn.Module._slow_forward(_Traced(module), *args, **kwargs)


class _Traced:
    """Represents a rewritten module in torch.nn.Module._slow_forward: equal to it, with the forward of its class."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        forward = type(module).forward.__get__(module)
        self.forward = _of_dense(forward) if type(module) in _REFUSING else forward

    def __hash__(self) -> int:
        return hash(self.module)

    def __eq__(self, other: object) -> bool:
        return other is self.module


# torch refuses a batch of images in channels_last here; opswap's kernels do not.
_REFUSING = (nn.MaxPool3d,)


def _of_dense(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: Any) -> Any:
        is_batch = isinstance(input, Tensor) and input.dim() == 4
        return forward(input.contiguous() if is_batch and not input.is_contiguous() else input)

    return call


_CALLS = frozenset(with_inner(nn.Module._call_impl.__code__))


def _calling(frame: Any) -> nn.Module | None:
    """The module that torch's Module.__call__ calls in this frame, None for a frame of other code."""
    return frame.f_locals.get("self") if frame.f_code in _CALLS else None


def called(link: Link) -> tuple[Any, Link]:
    """The module that a generated forward runs for, and its link.

    Code that copies a module's dictionary (copy.copy, `clone.__dict__ = module.__dict__.copy()`) gives the copy a
    forward that is bound to the link of the original. There are more references to the bound method or to the link
    then, and the frame of the caller shows which module is called: that module gets its own link.
    """
    module = link.opswap_ref()
    if torch.compiler.is_compiling():
        return module, link
    if module is not None:
        methods, links = _references(module, link)
        if methods <= _METHODS and links <= _LINKS:
            return module, link
    found = _calling(sys._getframe(2))
    if found is None or found is module:
        return module, link
    own = found.__dict__.get(_FORWARD)
    if own is None or own.__self__ is not link:  # a user's forward that calls that of another module
        return module, link
    _put(found, link.recipe, link.cls, overridden(found))
    return found, _own_link(found)


def _references(holder: Any, link: Any) -> tuple[int, int]:
    return sys.getrefcount(holder.__dict__.get(_FORWARD)), sys.getrefcount(link)


def _alone() -> tuple[int, int]:
    """References in a call by torch's Module if nothing else refers to the bound method and the link."""

    class Bound:
        def forward(link, x: Any) -> tuple[int, int]:
            return count(link)

    class Holder:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            forward_call = self.__dict__["forward"]
            return forward_call(*args, **kwargs)

    def count(link: Any) -> tuple[int, int]:
        return _references(holder, link)

    holder = Holder()
    vars(holder)[_FORWARD] = Bound().forward
    vars(holder)["forward"] = vars(holder)[_FORWARD]
    methods, links = holder(None)
    return methods, links


_METHODS, _LINKS = _alone()


def put(module: nn.Module, recipe: Any) -> None:
    """Put the recipe's forward on the module, unless users have put one of their own there."""
    former = _own_link(module)
    if former is not None:
        _end(former, module)  # who has kept it would run former code under the conditions of the new
    _put(module, recipe, recipe.original, "forward" in module.__dict__ and overridden(module))


def put_as(twin: nn.Module, module: nn.Module, recipe: Any) -> None:
    """Put the recipe's forward on the module or its twin if the module has one; users' changes stay."""
    _put(twin, recipe, recipe.original, overridden(module))


def take_back(module: nn.Module) -> Any:
    """Remove what `put` did; kept references to the forward run the stock one from now on. Returns: the recipe."""
    link = _own_link(module)
    for key in _KEYS - {"forward"} if overridden(module) else _KEYS:
        vars(module).pop(key, None)
    _end(link, module)
    return link.recipe


def _end(link: Link, module: nn.Module) -> None:
    """The module's forward runs stock code from now on, unless the link is another module's, see `called`."""
    if link.opswap_ref() is module:
        link.cls = None


def saved(module: nn.Module, *names: str) -> dict[str, Any]:
    """What `put` put on the module, and entries of other names, for `put_back`; None for what it lacks."""
    keys = {*_KEYS, *names}
    found = {key: value for key, value in module.__dict__.items() if key in keys}
    return {**found, **dict.fromkeys(keys - found.keys())}


def put_back(module: nn.Module, entries: dict[str, Any]) -> None:
    """Restore the module's dictionary as `saved` recorded it."""
    for key in entries:
        module.__dict__.pop(key, None)
    module.__dict__.update({key: value for key, value in entries.items() if value is not None})
    link = _own_link(module)
    if link is not None:
        link.cls = link.recipe.original


def is_rewritten(module: nn.Module) -> bool:
    """True if `put` was called for this module."""
    return _FORWARD in module.__dict__


def overridden(module: nn.Module) -> bool:
    """True if the forward of the instance is not the one of `put`; also if that was removed."""
    return module.__dict__.get("forward") is not module.__dict__.get(_FORWARD)


def set_by_user(module: nn.Module, name: str) -> bool:
    """True if the instance has an attribute that `put` did not put there."""
    return name in module.__dict__ and (name != "forward" or overridden(module))


def link_of(module: Any, recipe: Any = None) -> Any:
    """The link of a module that is passed to a generated forward itself, as by `m.forward.__func__(m, x)`.

    Args: recipe: that of the forward; a module with another one, or none, gets a link that runs the stock forward.
    """
    link = _own_link(module)
    return link if link is not None and recipe in (None, link.recipe) else Link(module, None)


def recipe_of(module: nn.Module) -> Any:
    """The recipe of a rewritten module."""
    return _own_link(module).recipe


def generated_forward(module: nn.Module) -> Any:
    """The function that was generated for a rewritten module."""
    return type(_own_link(module)).forward


def is_current(method: Any) -> bool:
    """True for a bound method that is the generated forward that its module has now."""
    link = method.__self__
    if not isinstance(link, Link):
        return False
    module = link.opswap_ref()
    return module is not None and _own_link(module) is link


def call_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the generated forward that the module has at the time of the call, else that of its class."""
    own = module.__dict__.get(_FORWARD)
    return type(module).forward(module, *args, **kwargs) if own is None else own(*args, **kwargs)


def without_links(attributes: dict[str, Any]) -> dict[str, Any]:
    """The dictionary of a module's instance without what `put` has put there."""
    own = attributes.get(_FORWARD)
    if own is None:
        return attributes
    keys = _KEYS if attributes.get("forward") is own else _KEYS - {"forward"}
    return {k: v for k, v in attributes.items() if k not in keys}


def fits(module: nn.Module | None, cls: type | None) -> bool:
    """True if the module's class is `cls`, or a subclass that adds nothing that the forward uses.

    torch makes such subclasses of parametrized and of sharded modules.
    Raises: ReferenceError for None, what is left of a module that was freed.
    """
    if module is None:
        raise ReferenceError(
            "the module of this forward has been freed; keep the module beside its bound method"
        )
    kind = type(module)
    return kind is cls or (cls is not None and _adds_nothing(kind, cls))


_LOOKED_UP = """
    _call_impl _wrapped_call_impl buffers children get_buffer get_parameter get_submodule modules named_buffers
    named_children named_modules named_parameters parameters
"""
_DESCRIBING = """
    abstractmethods annotate annotate_func annotations annotations_cache class_getitem constants copy deepcopy del dict
    doc firstlineno getnewargs getnewargs_ex getstate init init_subclass match_args module new orig_bases parameters
    qualname reduce reduce_ex setstate slots static_attributes type_params weakref
"""
# What a forward, or Python for it, may look up in any module.
_OF_EVERY_MODULE = frozenset(_LOOKED_UP.split())
# Special names that classes have for making, copying and describing objects; no forward uses them.
_UNUSED = frozenset(f"__{name}__" for name in _DESCRIBING.split())


def _adds_nothing(kind: type, cls: type) -> bool:
    """A constant for torch.compile, which warns of caches that it traces through."""
    return _names_nothing(kind, cls)


_adds_nothing.__dict__["_dynamo_marked_constant"] = True


@lru_cache(maxsize=64)
def _names_nothing(kind: type, cls: type) -> bool:
    if cls not in kind.__mro__:
        return False
    order = kind.__mro__
    own = order[: order.index(cls)]
    base = [c for c in cls.__mro__ if c not in nn.Module.__mro__]
    names = {name for c in base for name in vars(c)} | _OF_EVERY_MODULE
    added = {name for c in own for name in vars(c)} - _UNUSED
    return not any(n in names or (n.startswith("__") and n.endswith("__")) for n in added)


def _own_link(module: nn.Module) -> Any:
    own = module.__dict__.get(_FORWARD)
    return None if own is None else own.__self__


def _link_of(recipe: Any, module: nn.Module, cls: type | None) -> Link:
    known = _own_link(module)
    return known if known is not None and known.recipe is recipe else recipe.make_class()(module, cls)


def _put(module: nn.Module, recipe: Any, cls: type | None, own: bool) -> None:
    attributes = module.__dict__
    attributes[_FORWARD] = recipe.make_class()(module, cls).forward
    if not own:
        attributes["forward"] = attributes[_FORWARD]
    attributes["opswap_code"] = recipe.code
    attributes["_slow_forward"] = _SlowForward(module)
