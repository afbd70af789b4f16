# SPDX-License-Identifier: MIT
"""What a forward asks of the class of a tensor, and what it sets on one, is as in the stock model."""

from __future__ import annotations

import builtins
import collections.abc
import copy
import numbers
import sys
import typing
from abc import ABC
from collections.abc import Callable
from functools import partial, singledispatch
from typing import Any, ClassVar, Protocol, runtime_checkable

import pytest
import torch
from torch import Tensor, fx, nn

import opswap
from spellings import by_size
from swapping import images


class Sub(Tensor):
    pass


class Other(Tensor):
    pass


class Marked(Tensor):
    def __call__(self) -> None:
        pass


@runtime_checkable
class HasShape(Protocol):
    shape: Any


@runtime_checkable
class HasGroups(Protocol):
    groups: int


@runtime_checkable
class HasNode(Protocol):
    def node(self) -> Any: ...


class Registered(ABC):  # noqa: B024
    pass


Registered.register(Sub)


class ByMethod(ABC):  # noqa: B024
    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return any("tracer" in b.__dict__ or "_in_place" in b.__dict__ for b in other.__mro__)


class Asks(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return instance.__class__.__name__ == "Sub"


class Asked(metaclass=Asks):
    pass


class Passes(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance)


class Passed(metaclass=Passes):
    pass


@singledispatch
def dispatched(x: Any) -> int:
    return 2


@dispatched.register
def _(x: nn.Parameter) -> int:
    return 3


@dispatched.register
def _(x: Sub) -> int:
    return 4


KINDS = (Sub, Other)
BY_NAME = {"sub": Sub}
ask = isinstance


class Holds(nn.Module):
    kinds: ClassVar = (nn.Parameter, Sub)

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.kind = Sub
        self.register_buffer("scale", torch.tensor(2.0))


def either(s: Any, x: Tensor, kinds: Any) -> int:
    return 2 if isinstance(x, kinds) else 3


def when_taken(s: Any, x: Tensor) -> int:
    kind = Sub if x.shape[1] > 4 else Other
    return 2 if isinstance(x, kind) else 3


ASKS: dict[str, Callable[[Any, Tensor], Any]] = {
    # Classes of one dtype, whose questions are answered in C.
    "FloatTensor": lambda s, x: 2 if isinstance(x, torch.FloatTensor) else 3,
    "HalfTensor": lambda s, x: 2 if isinstance(x, torch.HalfTensor) else 3,
    "DoubleTensor": lambda s, x: 2 if isinstance(x, torch.DoubleTensor) else 3,
    "several": lambda s, x: 2 if isinstance(x, (torch.LongTensor, torch.FloatTensor)) else 3,
    "several within": lambda s, x: 2 if isinstance(x, (list, (dict, torch.FloatTensor))) else 3,
    "of a child": lambda s, x: 2 if isinstance(s.conv(x.float()), torch.FloatTensor) else 3,
    "of a result": lambda s, x: 2 if isinstance(x * 2, torch.FloatTensor) else 3,
    "of a weight": lambda s, x: 2 if isinstance(s.conv.weight, torch.FloatTensor) else 3,
    "cuda": lambda s, x: 2 if isinstance(x, torch.cuda.FloatTensor) else 3,
    "by a variable": lambda s, x: either(s, x, torch.FloatTensor),
    "by its own method": lambda s, x: 2 if type.__instancecheck__(Sub, x) else 3,
    "by a method in C": lambda s, x: 2 if torch.FloatTensor.__instancecheck__(x) else 3,
    "by a partial": lambda s, x: 1 + sum(map(partial(isinstance, x), (torch.FloatTensor, Tensor))),
    "by a map": lambda s, x: 1 + len(list(filter(None, map(isinstance, [x], [Tensor])))),
    "by an index": lambda s, x: 2 if isinstance(x, (Other, BY_NAME["sub"])) else 3,
    "by arguments": lambda s, x: 2 if isinstance(*(x, Sub)) else 3,
    # Classes that a tensor may have or not.
    "Parameter": lambda s, x: 2 if isinstance(x, nn.Parameter) else 3,
    "a subclass": lambda s, x: 2 if isinstance(x, Sub) else 3,
    "subclasses": lambda s, x: 2 if isinstance(x, KINDS) else 3,
    "of a class": lambda s, x: 2 if isinstance(x, s.kinds) else 3,
    "of a module": lambda s, x: 2 if isinstance(x, s.kind) else 3,
    "another name": lambda s, x: 2 if ask(x, Sub) else 3,
    "of builtins": lambda s, x: 2 if builtins.isinstance(x, Sub) else 3,
    "a union": lambda s, x: 2 if isinstance(x, list | Sub) else 3,
    "which one": when_taken,
    "a result": lambda s, x: 2 if isinstance(x.relu(), Sub) else 3,
    "a view": lambda s, x: 2 if isinstance(x[0], Sub) else 3,
    "data": lambda s, x: 2 if isinstance(x.data, (nn.Parameter, Sub)) else 3,
    "a sum": lambda s, x: 2 if isinstance(x * 2, Sub) else 3,
    "a result of a child": lambda s, x: 2 if isinstance(s.conv(x.float()), Sub) else 3,
    "a class by as_subclass": lambda s, x: 2 if isinstance(x.as_subclass(Sub), Sub) else 3,
    "a weight": lambda s, x: 2 if isinstance(s.conv.weight, nn.Parameter) else 3,
    "a buffer": lambda s, x: 2 if isinstance(s.scale, nn.Parameter) else 3,
    "Buffer": lambda s, x: 2 if isinstance(s.scale, nn.Buffer) else 3,
    "a class's name": lambda s, x: len(x.__class__.__name__),
    "a class": lambda s, x: 2 if x.__class__ == Tensor else 3,
    "getattr": lambda s, x: 2 if getattr(x, "__class__", None) == Sub else 3,
    "singledispatch": lambda s, x: dispatched(x),
    "an override": lambda s, x: 2 if torch.overrides.has_torch_function((x,)) else 3,
    "an override of one": lambda s, x: 2 if torch.overrides.has_torch_function_unary(x) else 3,
    "a stand-in": lambda s, x: 2 if isinstance(x, fx.Proxy) else 3,
    "a stand-in of several": lambda s, x: 2 if isinstance(x, (Sub, fx.Proxy)) else 3,
    # Abstract classes, protocols, and classes that answer for themselves.
    "Callable": lambda s, x: 2 if isinstance(x, collections.abc.Callable) else 3,
    "typing.Callable": lambda s, x: 2 if isinstance(x, typing.Callable) else 3,
    "Callable of several": lambda s, x: 2 if isinstance(x, (list, collections.abc.Callable)) else 3,
    "Callable result": lambda s, x: 2 if isinstance(x * 2, collections.abc.Callable) else 3,
    "Callable shape": lambda s, x: 2 if isinstance(x.shape, collections.abc.Callable) else 3,
    "Iterable": lambda s, x: 2 if isinstance(x, collections.abc.Iterable) else 3,
    "Iterator": lambda s, x: 2 if isinstance(x, collections.abc.Iterator) else 3,
    "Hashable": lambda s, x: 2 if isinstance(x, collections.abc.Hashable) else 3,
    "Sized": lambda s, x: 2 if isinstance(x, collections.abc.Sized) else 3,
    "Container": lambda s, x: 2 if isinstance(x, collections.abc.Container) else 3,
    "Collection": lambda s, x: 2 if isinstance(x, collections.abc.Collection) else 3,
    "Reversible": lambda s, x: 2 if isinstance(x, collections.abc.Reversible) else 3,
    "Sequence": lambda s, x: 2 if isinstance(x, collections.abc.Sequence) else 3,
    "Mapping": lambda s, x: 2 if isinstance(x, collections.abc.Mapping) else 3,
    "Number": lambda s, x: 2 if isinstance(x, numbers.Number) else 3,
    "SupportsIndex": lambda s, x: 2 if isinstance(x, typing.SupportsIndex) else 3,
    "SupportsRound": lambda s, x: 2 if isinstance(x, typing.SupportsRound) else 3,
    "Registered": lambda s, x: 2 if isinstance(x, Registered) else 3,
    "a hook of a class": lambda s, x: 2 if isinstance(x, ByMethod) else 3,
    "a protocol": lambda s, x: 2 if isinstance(x, HasShape) else 3,
    "another protocol": lambda s, x: 2 if isinstance(x, HasGroups) else 3,
    "a protocol of methods": lambda s, x: 2 if isinstance(x, HasNode) else 3,
    "a metaclass": lambda s, x: 2 if isinstance(x, Asked) else 3,
    "a metaclass that passes on": lambda s, x: 2 if isinstance(x, Passed) else 3,
}
INPUTS: dict[str, Callable[[], Tensor]] = {
    "tensor": images,
    "parameter": lambda: nn.Parameter(images()),
    "subclass": lambda: images().as_subclass(Sub),
    "another": lambda: images().as_subclass(Other),
    "callable": lambda: images().as_subclass(Marked),
    "double": lambda: images().double(),
    "half": lambda: images().half(),
}


def made(body: Callable[[Any, Tensor], Any]) -> nn.Module:
    class Made(Holds):
        def forward(self, x: Tensor) -> Any:
            return body(self, x)

    return Made()


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", ASKS)
def test_questions(name: str, kind: str) -> None:
    stock = made(lambda s, x: by_size(x) * ASKS[name](s, x))
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    x = INPUTS[kind]()
    ours, expected = model(x), stock(x)
    assert type(ours) is type(expected) and torch.equal(ours, expected)


PLAIN: dict[str, Callable[[Any, Tensor], Any]] = {
    "Tensor": lambda s, x: 2 if isinstance(x, Tensor) else 3,
    "torch.Tensor": lambda s, x: 2 if isinstance(x, torch.Tensor) else 3,
    "list": lambda s, x: 2 if isinstance(x, list) else 3,
    "list or tuple": lambda s, x: 2 if isinstance(x, (list, tuple)) else 3,
    "dict": lambda s, x: 2 if isinstance(x, dict) else 3,
    "Tensor or list": lambda s, x: 2 if isinstance(x, (Tensor, list)) else 3,
    "number": lambda s, x: 2 if isinstance(x, (int, float)) else 3,
    "text": lambda s, x: 2 if isinstance(x, str) else 3,
    "module": lambda s, x: 2 if isinstance(x, nn.Module) else 3,
    "of a child": lambda s, x: 2 if isinstance(s.conv(x), (list, tuple)) else 3,
    "by a variable": lambda s, x: either(s, x, (list, tuple)),
    "another name": lambda s, x: 2 if ask(x, Tensor) else 3,
}

if sys.version_info >= (3, 11):  # 3.10 has another instruction for it: such a question is refused there
    PLAIN["a union"] = lambda s, x: 2 if isinstance(x, Tensor | list) else 3


@pytest.mark.parametrize("name", PLAIN)
def test_harmless_questions(name: str) -> None:
    """They are answered alike for every class of tensor."""
    stock = made(lambda s, x: by_size(x) * PLAIN[name](s, x))
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)
    for kind in ("tensor", "parameter", "subclass"):
        x = INPUTS[kind]()
        ours, expected = model(x), stock(x)
        assert type(ours) is type(expected) and torch.equal(ours, expected)
    assert [o.result for o in opswap.explain(model, images()).outcomes] == ["ran"]


@pytest.mark.parametrize("name", ["Parameter", "a subclass", "Iterable", "Sequence", "a class"])
def test_a_question_is_asked_again(name: str) -> None:
    """A plain tensor takes the fast path, others the original."""
    model = opswap.swap(made(lambda s, x: by_size(x) * ASKS[name](s, x)), exact=True, strict=True)
    opswap.reset_stats()
    model(images())
    assert not opswap.stats()["original"]
    model(nn.Parameter(images()))
    assert sum(opswap.stats()["original"].values()) == 1
    found = [opswap.explain(model, x).outcomes[0].result for x in (images(), nn.Parameter(images()))]
    assert found[0] == "ran" != found[1]


# --- what is set on a tensor, and classes that a forward makes of one ---


class Pair(tuple):
    __slots__ = ()


class Point(typing.NamedTuple):
    a: Any
    b: Any


def set_data(s: Any, x: Tensor) -> Any:
    z = x * 1
    z.data = x.detach() * 5
    return by_size(z)


def set_own(s: Any, x: Tensor) -> Any:
    y = by_size(x)
    y.aux_loss = 3
    return y


def set_of_argument(s: Any, x: Tensor) -> Any:
    x.seen = True
    return by_size(x)


def set_requires_grad(s: Any, x: Tensor) -> Any:
    z = x.detach()
    z.requires_grad = True
    return by_size(z)


def set_grad(s: Any, x: Tensor) -> Any:
    x.grad = None
    return by_size(x)


def delete_grad(s: Any, x: Tensor) -> Any:
    del x.grad
    return by_size(x)


def delete_own(s: Any, x: Tensor) -> Any:
    del x.known
    return by_size(x)


def set_by_setattr(s: Any, x: Tensor) -> Any:
    setattr(x, "seen", 1)  # noqa: B010
    return by_size(x)


def set_past_it(s: Any, x: Tensor) -> Any:
    y = by_size(x)
    object.__setattr__(y, "aux_loss", 3)
    return y


def set_of_weight(s: Any, x: Tensor) -> Any:
    s.conv.weight.seen = 1
    return by_size(x)


def set_data_of_weight(s: Any, x: Tensor) -> Any:
    s.scale.data = s.scale * 2
    return by_size(x) * s.scale


def set_of_element(s: Any, x: Tensor) -> Any:
    a, b = by_size(x).chunk(2, 1)
    a.seen = 1
    return a, b


def set_of_child(s: Any, x: Tensor) -> Any:
    y = s.conv(by_size(x).float())
    y.seen = 1
    return y


WRITES: dict[str, Callable[[Any, Tensor], Any]] = {
    "data": set_data,
    "its own": set_own,
    "of an argument": set_of_argument,
    "requires_grad": set_requires_grad,
    "grad": set_grad,
    "deleted grad": delete_grad,
    "deleted": delete_own,
    "setattr": set_by_setattr,
    "object.__setattr__": set_past_it,
    "of a weight": set_of_weight,
    "data of a buffer": set_data_of_weight,
    "of an element": set_of_element,
    "of a child's result": set_of_child,
}
MAKES: dict[str, Callable[[Any, Tensor], Any]] = {
    "Parameter": lambda s, x: nn.Parameter(by_size(x)),
    "Parameter without gradient": lambda s, x: nn.Parameter(by_size(x), requires_grad=False),
    "Parameter of a new tensor": lambda s, x: (by_size(x), nn.Parameter(torch.zeros(2))),
    "Parameter of a weight": lambda s, x: (by_size(x), nn.Parameter(s.conv.weight)),
    "Parameter on the way": lambda s, x: by_size(nn.Parameter(x)),
    "Buffer": lambda s, x: nn.Buffer(by_size(x)),
    "a subclass": lambda s, x: by_size(x).as_subclass(Sub),
    "a subclass by its name": lambda s, x: Sub(by_size(x)),
    "max": lambda s, x: torch.return_types.max((x, by_size(x))),
    "topk": lambda s, x: torch.return_types.topk((by_size(x), x)),
    "sort in a list": lambda s, x: [torch.return_types.sort((by_size(x), x))],
    "max that torch makes": lambda s, x: by_size(x).max(1),
    "a tuple": lambda s, x: Pair((x, by_size(x))),
    "a tuple in a dict": lambda s, x: {"a": Pair((x, by_size(x)))},
    "a named tuple": lambda s, x: Point(x, by_size(x)),
}


def shown(value: Any) -> Any:
    """All that a caller may see of what a forward returns."""
    if isinstance(value, Tensor):
        return type(value), value.tolist(), value.requires_grad, sorted(vars(value))
    if isinstance(value, dict):
        return {k: shown(v) for k, v in value.items()}
    return type(value), [shown(v) for v in value]


@pytest.mark.parametrize("name", [*WRITES, *MAKES])
def test_what_a_caller_sees(name: str) -> None:
    stock = made({**WRITES, **MAKES}[name])
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    start = images()
    seen = []
    for m in (stock, model):
        x = start.clone().requires_grad_()
        x.grad, x.known = torch.ones_like(x), 1
        for p in m.parameters():
            p.seen = 0
        result = shown(m(x))
        seen.append((result, x.grad is None, vars(x), [vars(p) for p in m.parameters()], m.scale))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ["data", "its own", "requires_grad", "grad", "deleted grad"])
def test_a_reason_names_what_is_set(name: str) -> None:
    (kept,) = opswap.scan(made(WRITES[name]), exact=True).kept
    assert __file__ in kept.reason and "attribute" in kept.reason
