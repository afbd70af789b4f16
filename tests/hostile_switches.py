# SPDX-License-Identifier: MIT
"""More forwards behind a shuffle: attributes that come later, switches of a process, odd questions to children."""

from __future__ import annotations

import decimal
import functools
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hostile_state
from hostile_forwards import add, put
from hostile_state import (
    ENVIRONMENT,
    LOG,
    READ,
    WRITE,
    Answers,
    Counted,
    Kind,
    Slotted,
    Switch,
    Tree,
    odd,
    with_default,
)

__all__: list[str] = []

ME = hostile_state

# --- attributes that are asked for before they are there ---


def add_more(of: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda m: setattr(of(m), "more", 3)


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "a function": lambda s: with_default,
    "an object": lambda s: s.o,
    "an object below": lambda s: s.t.below,
    "a class": lambda s: Switch,
    "the class of an object": lambda s: type(s.o),
    "a slot": lambda s: s.slotted,
    "a member of an enum": lambda s: Kind.A,
    "a method's function": lambda s: Counted.method,
    "a module of Python": lambda s: ME,
    "a namespace": lambda s: s.space,
    "a partial": lambda s: s.part,
    "a child": lambda s: s.seq,
    "a layer": lambda s: s.conv,
    "the model": lambda s: s,
    "a parameter": lambda s: s.conv.weight,
    "a result": lambda s: s.conv(torch.ones(1, 12, 1, 1)),
}


def holders(m: Any) -> None:
    m.o, m.t, m.slotted, m.space = (
        type("Own", (Answers,), {})(),
        Tree(below=Tree()),
        Slotted(),
        types.SimpleNamespace(),
    )
    m.part = functools.partial(with_default)


for _name, _holder in HOLDERS.items():
    add(
        f"no attribute yet of {_name}",
        lambda s, x, of=_holder: x * getattr(of(s), "more", 2),
        add_more(_holder),
        setup=holders,
    )
add("a list in a closure", lambda s, x: x * READ(), lambda m: WRITE(3))
add(
    "a name that comes later",
    lambda s, x: x * (3 if "NEW" in vars(ME) else 2),
    lambda m: setattr(ME, "NEW", 3),
)
add("getattr of a module", lambda s, x: x * getattr(ME, "NEW", 2), lambda m: setattr(ME, "NEW", 3))

add(
    "an attribute of a partial",
    lambda s, x: x * s.part.k,
    lambda m: setattr(m.part, "k", 3),
    setup=lambda m: holders(m) or setattr(m.part, "k", 2),
)
add("an attribute of a member", lambda s, x: x * Kind.B.groups, lambda m: setattr(Kind.B, "groups", 3))
add(
    "an attribute of a method",
    lambda s, x: x * s.o.hidden.groups,
    lambda m: setattr(Answers.hidden, "groups", 3),
    setup=odd,
)
add("a slot that is set", lambda s, x: x * s.slotted.k, lambda m: setattr(m.slotted, "k", 3), setup=holders)
add("no attribute of a tensor", lambda s, x: x * getattr(x, "groups", 2))
add(
    "no interface of a tensor",
    lambda s, x: x * (2 if getattr(x, "__cuda_array_interface__", None) is None else 3),
)
add("an attribute that a tensor has", lambda s, x: x * getattr(x, "ndim", 2))

# --- switches of the process ---
add(
    "the environment",
    lambda s, x: x * int(os.environ.get(ENVIRONMENT, 2)),
    lambda m: os.environ.update({ENVIRONMENT: "3"}),
)
add(
    "getenvb",
    lambda s, x: x * (2 if os.getenv(ENVIRONMENT) is None else 3),
    lambda m: os.environ.update({ENVIRONMENT: "3"}),
)
add(
    "decimals",
    lambda s, x: x * float(decimal.Decimal(1) / 3),
    lambda m: setattr(decimal.getcontext(), "prec", 3),
)
add(
    "the level of a log",
    lambda s, x: x * (2 if LOG.isEnabledFor(logging.INFO) else 3),
    lambda m: LOG.setLevel(logging.INFO),
)
add("its number", lambda s, x: x * LOG.level, lambda m: LOG.setLevel(logging.INFO))
add(
    "filters of warnings",
    lambda s, x: x * len(warnings.filters),
    lambda m: warnings.filterwarnings("ignore", "opswap hostile"),
)
add(
    "precision of products",
    lambda s, x: x * len(torch.get_float32_matmul_precision()),
    lambda m: torch.set_float32_matmul_precision("medium"),
)
add("while compiling", lambda s, x: x * (3 if torch.compiler.is_compiling() else 2))
add("while scripting", lambda s, x: x * (3 if torch.jit.is_scripting() else 2))
add("while tracing", lambda s, x: x * (3 if torch.jit.is_tracing() else 2))
add("in inference mode", lambda s, x: x * (3 if torch.is_inference_mode_enabled() else 2))
add("the dtype of autocast", lambda s, x: x.to(torch.get_autocast_dtype("cpu")))
add(
    "modules of Python",
    lambda s, x: x * (3 if "opswap_nowhere" in sys.modules else 2),
    lambda m: sys.modules.pop("opswap_nowhere", None) and None,
)

# --- what children are, by other ways to ask ---
add(
    "extra_repr",
    lambda s, x: x * len(s.conv.extra_repr()),
    put(stride=2),
    lambda m: setattr(m.conv, "stride", (2, 2)),
)
add(
    "a padding",
    lambda s, x: F.pad(x, s.free._reversed_padding_repeated_twice[:2]),
    lambda m: setattr(m.free, "_reversed_padding_repeated_twice", [1, 1, 1, 1]),
)
add(
    "a name of a class",
    lambda s, x: x * len(s.seq[0]._get_name()),
    lambda m: setattr(m.seq[0], "__class__", nn.Tanh),
)
add(
    "state_dict",
    lambda s, x: x * len(s.state_dict()),
    lambda m: m.register_parameter("more", nn.Parameter(torch.ones(1))),
)
add("training of all", lambda s, x: x * sum(m.training for m in s.modules()), lambda m: m.seq.eval() and None)
add("a version", lambda s, x: x * (1 + s.conv.weight._version), lambda m: m.conv.weight.data.mul_(2) is None)


def version_of_result(s: Any, x: Tensor) -> Tensor:
    y = F.relu_(s.bn(x))
    return y * (1 + y._version)


add("a version of a result", version_of_result, setup=put(bn=lambda: nn.BatchNorm2d(12)))
add(
    "a gradient that is there",
    lambda s, x: x * (2 if s.conv.weight.grad is None else 3),
    lambda m: setattr(m.conv.weight, "grad", torch.zeros_like(m.conv.weight)),
)
add("an eps", lambda s, x: x * s.bn.eps, lambda m: setattr(m.bn, "eps", 0.5))
add(
    "statistics that are counted",
    lambda s, x: x * float(s.bn.num_batches_tracked),
    lambda m: m.bn.num_batches_tracked.add_(3) is None,
)
add("a sum of a weight", lambda s, x: x * s.free.weight.sum(), lambda m: m.free.weight.data.mul_(2) is None)
add(
    "a child by an attribute of a child",
    lambda s, x: getattr(s, s.name)(x),
    put(name="seq2"),
    setup=put(name="seq", seq2=lambda: nn.Tanh()),
)
