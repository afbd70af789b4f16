# SPDX-License-Identifier: MIT
"""Forwards that read modules: hooks, weights, dictionaries, identity, abstract classes; see hostile_forwards."""

from __future__ import annotations

import abc
import collections.abc
import functools
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from hostile_forwards import (
    add,
    add_block,
    put,
)

# --- modules, hooks and weights ---

add(
    "another child",
    lambda s, x: s.seq(x),
    put(seq=lambda: nn.Sequential(nn.Tanh())),
    lambda m: m.seq.append(nn.Sigmoid()),
)
add("a hook", lambda s, x: s.seq(x), lambda m: m.seq.register_forward_hook(lambda *a: a[-1] * 2) and None)
add(
    "a hook with keywords",
    lambda s, x: s.seq(x),
    lambda m: m.seq.register_forward_hook(lambda m, a, k, y: y * 2, with_kwargs=True) and None,
)
add(
    "a hook before",
    lambda s, x: x,
    lambda m: m.conv.register_forward_pre_hook(lambda m, a: (a[0] * 2,)) and None,
)
add("a forward", lambda s, x: s.seq(x), lambda m: put(forward=lambda: lambda x: x * 3)(m.seq))
add("a class", lambda s, x: s.seq[0](x), lambda m: put(__class__=nn.Tanh)(m.seq[0]))
add(
    "a class that is asked for",
    lambda s, x: x * (2 if isinstance(s.seq[0], nn.ReLU) else 3),
    lambda m: put(__class__=nn.Tanh)(m.seq[0]),
)
add(
    "a parametrization",
    lambda s, x: s.free(x),
    lambda m: parametrize.register_parametrization(m.free, "weight", nn.Tanh()) and None,
    lambda m: parametrize.remove_parametrizations(m.free, "weight") and None,
)
add(
    "a norm of weights",
    lambda s, x: F.conv2d(x, s.free.weight),
    lambda m: parametrizations.weight_norm(m.free) and None,
)
add(
    "tied at last",
    lambda s, x: F.conv2d(x, s.free.weight) + s.conv(x),
    lambda m: put(weight=m.conv.weight)(m.free),
)
add(
    "modules in a list",
    lambda s, x: s.ml[0](x),
    lambda m: m.ml.insert(0, nn.Tanh()),
    setup=put(ml=lambda: [nn.ReLU()]),
)
add(
    "functions in a list",
    lambda s, x: reduce(lambda y, f: f(y), s.fs, x),
    lambda m: m.fs.append(torch.tanh),
    setup=put(fs=lambda: [torch.relu]),
)
add(
    "a tensor in a list",
    lambda s, x: x * s.ts[0],
    lambda m: m.ts[0].mul_(2) and None,
    setup=put(ts=lambda: [torch.tensor(2.0)]),
)
add(
    "parameters by key",
    lambda s, x: x * s.pd["a"],
    lambda m: m.pd.update({"a": nn.Parameter(torch.full((1,), 5.0))}),
    setup=put(pd=lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(1))})),
)
add(
    "requires_grad",
    lambda s, x: x * (2 if s.conv.weight.requires_grad else 3),
    lambda m: m.conv.requires_grad_(False) and None,
)
add("out_channels", lambda s, x: x * s.conv.out_channels, lambda m: put(out_channels=13)(m.conv))
add(
    "hooks that are counted",
    lambda s, x: x * (1 + len(s._forward_hooks)),
    lambda m: m.register_forward_hook(lambda *a: None) and None,
)


# --- names of children ---


def renamed(names: str, of: Callable[[Any], Any] = lambda m: m.seq) -> Callable[[Any], None]:
    """The children in their order, by new names."""

    def change(m: Any) -> None:
        children = list(of(m)._modules.values())
        of(m)._modules.clear()
        for name, child in zip(names.split(), children, strict=True):
            of(m).add_module(name, child)

    return change


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Tanh(), nn.Softmax(1))


def by_name() -> nn.Module:
    return nn.ModuleDict({"first": nn.Tanh(), "second": nn.Softmax(1)})


exchanged = renamed("1 0"), renamed("first last")
add("children by other names", lambda s, x: s.seq(x), *exchanged, setup=put(seq=two_layers))
add("an index of other names", lambda s, x: s.seq[0](x), *exchanged, setup=put(seq=two_layers))
add(
    "a list of other names",
    lambda s, x: s.seq[1](x),
    *exchanged,
    setup=put(seq=lambda: nn.ModuleList(two_layers())),
)
of_a_dict = renamed("second first"), renamed("first more")
add(
    "a name in a ModuleDict",
    lambda s, x: x * (2 if "second" in s.seq else 3),
    *of_a_dict,
    setup=put(seq=by_name),
)
add("keys of a ModuleDict", lambda s, x: x * len("".join(s.seq.keys())), *of_a_dict, setup=put(seq=by_name))
add("items of a ModuleDict", lambda s, x: dict(s.seq.items())["first"](x), *of_a_dict, setup=put(seq=by_name))
add(
    "names of children",
    lambda s, x: x * len("".join(name for name, _ in s.seq.named_children())),
    *of_a_dict,
    setup=put(seq=by_name),
)
add(
    "names of modules",
    lambda s, x: x * len("".join(name for name, _ in s.named_modules())),
    *of_a_dict,
    setup=put(seq=by_name),
)


def hidden(name: str, value: Any, of: Callable[[Any], Any] = lambda m: m) -> Callable[[Any], None]:
    return lambda m: of(m).__dict__.update({name: value})


add("a hidden child", lambda s, x: s.seq(x), hidden("seq", torch.tanh), setup=put(seq=two_layers))
add(
    "hidden in a Sequential",
    lambda s, x: s.seq(x),
    hidden("0", torch.tanh, lambda m: m.seq),
    setup=put(seq=two_layers),
)


# --- what an object holds, by its dictionary ---


def loop_over_dict(s: Any, x: Tensor) -> Tensor:
    n = 0
    for _ in s.__dict__:
        n += 1
    return x * n


def helped(s: Any) -> int:
    return len(vars(s.seq))


def in_parts(s: Any, x: Tensor) -> Tensor:
    return x * sum(len(vars(m)) for m in s.modules())


def another(m: Any) -> None:
    m.another = 1


def in_functools(m: Any) -> None:
    functools.another_ = 1  # type: ignore[attr-defined]


def mark(m: Any) -> None:
    m.conv.weight.mark = 1


def another_below(m: Any) -> None:
    m.seq.another = m.conv.another = 1


# --- what something has ---


def remove_another(m: Any) -> None:
    del m.another


class Meter:
    """An object whose property may fail."""

    factor: float

    @property
    def doubled(self) -> float:
        return 2 * self.factor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("any_"):
            return self.__dict__["of_any"]
        raise AttributeError(name)


def meter(m: Any) -> None:
    m.meter = Meter()


def on_the_class(m: Any) -> None:
    type(m).another = 1


def off_the_class(m: Any) -> None:
    del type(m).another


def on_the_meter(name: str) -> Callable[[Any], None]:
    return lambda m: setattr(m.meter, name, 1.5)


add("hasattr of a child", lambda s, x: x * (2 if hasattr(s.seq, "another") else 3), another_below)
add("hasattr, then removed", lambda s, x: x * (2 if hasattr(s, "another") else 3), another, remove_another)
add(
    "hasattr and its value",
    lambda s, x: x * (s.another if hasattr(s, "another") else 3),
    another,
    put(another=4),
)
add(
    "hasattr of a layer",
    lambda s, x: x * (2 if hasattr(s, "more") else 3),
    lambda m: m.add_module("more", nn.ReLU()),
)
add("hasattr by a variable", lambda s, x: x * sum(hasattr(s, n) for n in ("another", "conv")), another)
add("hasattr in a map", lambda s, x: x * sum(map(hasattr, [s, s.conv], ["another", "bias"])), another)
add("hasattr under a name", lambda s, x: (lambda has: x * (1 + has(s, "another")))(hasattr), another)
add(
    "hasattr of the class",
    lambda s, x: x * (1 + hasattr(type(s), "another")),
    on_the_class,
    off_the_class,
)
add(
    "hasattr through the class",
    lambda s, x: x * (1 + hasattr(s, "another")),
    on_the_class,
    off_the_class,
)
add(
    "getattr by a variable",
    lambda s, x: x * sum(getattr(s, n, 0.5) for n in ("another", "that")),
    put(another=4),
)
add("getattr in a map", lambda s, x: x * sum(map(getattr, [s], ["another"], [3])), put(another=4))
add("hasattr of an object", lambda s, x: x * (1 + hasattr(s.meter, "k")), on_the_meter("k"), setup=meter)
add(
    "hasattr of a property",
    lambda s, x: x * (1 + hasattr(s.meter, "doubled")),
    on_the_meter("factor"),
    setup=meter,
)
add(
    "hasattr of any name",
    lambda s, x: x * (1 + hasattr(s.meter, "any_k")),
    on_the_meter("of_any"),
    setup=meter,
)
add("hasattr of a module of Python", lambda s, x: x * (1 + hasattr(functools, "another_")), in_functools)
add("hasattr of a tensor", lambda s, x: x * (2 if hasattr(x, "shape") else 3), another)
add("hasattr of a tensor, not there", lambda s, x: x * (2 if hasattr(x, "scale_of_mine") else 3), another)
add("hasattr of a parameter", lambda s, x: x * (2 if hasattr(s.conv.weight, "mark") else 3), mark)
add("vars(self)", lambda s, x: x * len(vars(s)), another)
add("self.__dict__", lambda s, x: x * len(s.__dict__), another)
add("a loop over self.__dict__", loop_over_dict, another)
add("names in vars(self)", lambda s, x: x * sum(map(len, vars(s))), another)
add("dir(self)", lambda s, x: x * len(dir(s)), another)
add("getattr __dict__", lambda s, x: x * len(getattr(s, "__dict__")), another)  # noqa: B009
add("object's __dict__", lambda s, x: x * len(object.__getattribute__(s, "__dict__")), another)
add("vars(self.conv)", lambda s, x: x * len(vars(s.conv)), another_below)
add("the __dict__ of a child", lambda s, x: x * len(s.seq.__dict__), another_below)
add("vars() of a child in a variable", lambda s, x: x * len((lambda m: vars(m))(s.conv)), another_below)
add("vars() of a child in a function", lambda s, x: x * helped(s), another_below)
add("vars() of all modules", in_parts, another_below)
add("dir() of a child", lambda s, x: x * len(dir(s.conv)), another_below)


# --- which of its modules it is ---


def all_but_the_last(s: Any, x: Tensor) -> Tensor:
    for layer in s.blocks:
        x = layer(x)
        if layer is not s.blocks[-1]:
            x = x * 2
    return x


def one_of_them(s: Any, x: Tensor) -> Tensor:
    last = s.blocks[-1]
    for layer in s.blocks:
        x = layer(x) * 3 if layer is last else layer(x)
    return x


def last_or_given(s: Any, x: Tensor, last: Any = None) -> Tensor:
    if x.dim() == 4:
        last = s.blocks[-1]
    return x * 2 if s.blocks[0] is last else x


def result_or_module(s: Any, x: Tensor) -> Tensor:
    y = s.aux(x)
    return x * 2 if y is s.blocks[-1] else x


class Odd(nn.Module):
    """Returns a module, or its input."""

    given: Any = ()

    def forward(self, x: Tensor) -> Any:
        return self.given[0] if self.given else x


def give(m: Any) -> None:
    m.aux.given = (m.blocks[-1],)


def new_last(m: Any) -> None:
    m.blocks[-1] = nn.Sequential(m.blocks[-1])


def same_twice(m: Any) -> None:
    m.blocks[0] = m.blocks[-1]


def two_blocks(m: Any) -> None:
    m.blocks.extend([nn.Tanh(), nn.Tanh()])
    m.named["a"] = nn.Tanh()
    m.aux = Odd()


add("is not the last layer", all_but_the_last, add_block, new_last, same_twice, setup=two_blocks)
add("is the layer in a variable", one_of_them, add_block, same_twice, setup=two_blocks)
add("is the layer of a written argument", last_or_given, add_block, same_twice, setup=two_blocks)
add("is the same child", lambda s, x: x * 2 if s.seq is s.blocks else x, lambda m: put(seq=m.blocks)(m))
add(
    "is not in a comprehension",
    lambda s, x: x * len([b for b in s.blocks if b is not s.blocks[-1]]),
    add_block,
    same_twice,
    setup=two_blocks,
)
add(
    "is the layer of a name",
    lambda s, x: x * 2 if s.named["a"] is s.blocks[0] else x,
    lambda m: m.named.update({"a": m.blocks[0]}),
    setup=two_blocks,
)
add("a result is a module", result_or_module, give, setup=two_blocks)


# --- classes that are registered with an abstract class ---


def abstract(m: Any) -> None:
    class Base(abc.ABC):  # noqa: B024
        pass

    class Below(Base):
        pass

    class Own:
        pass

    m.base, m.below, m.cfg = Base, Below, Own()
    m.act = type("Act", (nn.ReLU,), {})()


def register(which: str, of: Callable[[Any], type]) -> Callable[[Any], None]:
    def change(m: Any) -> None:
        getattr(m, which).register(of(m))

    return change


def registers(s: Any, x: Tensor) -> Tensor:
    s.base.register(type(s.cfg))
    return x * (2 if isinstance(s.cfg, s.base) else 3)


own, act = (lambda m: type(m.cfg)), (lambda m: type(m.act))
is_base = lambda s, x: x * (2 if isinstance(s.cfg, s.base) else 3)  # noqa: E731
add("an abstract class", is_base, register("base", own), setup=abstract)
add("registered with a class below", is_base, register("below", own), setup=abstract)
add(
    "a registered child",
    lambda s, x: x * (2 if isinstance(s.act, s.base) else 3),
    register("base", act),
    setup=abstract,
)
add(
    "one of several classes",
    lambda s, x: x * (2 if isinstance(s.cfg, (int, s.base)) else 3),
    register("base", own),
    setup=abstract,
)
add("registers for itself", registers, setup=abstract)
add(
    "a Sequence",
    lambda s, x: x * (2 if isinstance(s.v, collections.abc.Sequence) else 3),
    put(v=2),
    lambda m: put(v=lambda: [1])(m),
    setup=put(v=lambda: [2]),
)
