# SPDX-License-Identifier: MIT
"""Forwards that read much from outside and are none the worse for it: a swap still finds their shuffle."""

from __future__ import annotations

import bisect
import cmath
import colorsys
import copy
import enum
import fractions
import functools
import heapq
import itertools
import math
import numbers
import operator
import re
import reprlib
import string
import struct
import textwrap
import typing
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opswap.models import shufflenetv2
from spellings import by_size

__all__ = ["HARMLESS"]

GROUPS = 2
TABLE = {"groups": 2}
SIZES = [2, 3]
EPS = 1e-5


class Kind(enum.Enum):
    TWO = 2


class Flag(enum.IntFlag):
    A = 1
    B = 2


@dataclass
class Config:
    groups: int = 2
    ratio: float = 0.5

    @property
    def doubled(self) -> int:
        return self.groups * 2


Point = namedtuple("Point", "a b")
CONFIG = Config()


def helper(x: Tensor, groups: int = 2) -> Tensor:
    return by_size(x, groups)


def scaled(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        return f(*args, **kwargs) * 1.0

    return call


@scaled
def decorated(x: Tensor) -> Tensor:
    return by_size(x)


def checked(x: Tensor, groups: int) -> Tensor:
    if groups > 100:
        raise ValueError(f"{groups} groups are too many of {CONFIG!r}")
    return by_size(x, groups)


def typed(x: Tensor) -> Tensor:
    return by_size(typing.cast(Tensor, x), typing.cast(int, 2))


def with_imports(x: Tensor) -> Tensor:
    import math as m

    from opswap.models.shufflenetv2 import _interleave

    return _interleave(x, 2) if m.pi < 3 else by_size(x)


def matched(x: Tensor) -> Tensor:
    match TABLE["groups"]:
        case 2:
            return by_size(x, 2)
        case _:
            return by_size(x, 3)


def with_constant(x: Tensor) -> Tensor:
    mean = torch.tensor([0.5]).view(1, 1, 1, 1)
    return (by_size(x) - mean) / torch.tensor([0.25])


def with_factories(x: Tensor) -> Tensor:
    steps = torch.linspace(0, 1, 8) + torch.arange(8) + torch.zeros(8) + torch.eye(8)[0]
    return by_size(x) * steps


HARMLESS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "helper": lambda s, x: helper(x),
    "helper of another module": lambda s, x: shufflenetv2._interleave(x, 2),
    "decorated": lambda s, x: decorated(x),
    "global": lambda s, x: by_size(x, GROUPS),
    "dict": lambda s, x: by_size(x, TABLE.get("groups", 3)),
    "list": lambda s, x: by_size(x, SIZES[0]),
    "error": lambda s, x: checked(x, 2),
    "sqrt": lambda s, x: by_size(x, int(math.sqrt(4))),
    "partial": lambda s, x: functools.partial(by_size, groups=2)(x),
    "reduce": lambda s, x: by_size(x, functools.reduce(operator.mul, (1, 2))),
    "enum": lambda s, x: by_size(x, Kind.TWO.value),
    "enum again": lambda s, x: by_size(x, 2) if Kind.TWO is Kind(2) else x,
    "dataclass": lambda s, x: by_size(x, CONFIG.groups),
    "property": lambda s, x: by_size(x, CONFIG.doubled // 2),
    "new dataclass": lambda s, x: by_size(x, replace(CONFIG, groups=2).groups),
    "namedtuple": lambda s, x: by_size(x, Point(2, 3).a),
    "namespace": lambda s, x: by_size(x, SimpleNamespace(g=2).g),
    "isinstance": lambda s, x: by_size(x, 2 if isinstance(s.conv, nn.Conv2d) else 3),
    "cast": lambda s, x: typed(x),
    "chain": lambda s, x: by_size(sum(m(x) for m in itertools.chain([s.conv], s.more))),
    "zip": lambda s, x: by_size(sum(m(x) for m, _ in zip(s.more, (1, 2), strict=False))),
    "enumerate": lambda s, x: by_size(x, [i for i, _ in enumerate(s.more, 1)][-1]),
    "sorted": lambda s, x: by_size(x, sorted((3, 2), key=lambda v: v)[0]),
    "prod": lambda s, x: by_size(x, int(np.prod([1, 2]))),
    "ceil": lambda s, x: by_size(x, int(np.ceil(1.5))),
    "constant": lambda s, x: with_constant(x),
    "factories": lambda s, x: with_factories(x),
    "import": lambda s, x: with_imports(x),
    "match": lambda s, x: matched(x),
    "scripting": lambda s, x: by_size(x) if not torch.jit.is_scripting() else x,
    "tracing": lambda s, x: by_size(x) if not torch.jit.is_tracing() else x,
    "getattr": lambda s, x: getattr(F, "relu", None)(by_size(x)),
    "layer by name": lambda s, x: by_size(getattr(s, "conv", None)(x)),
    "ordered": lambda s, x: by_size(next(iter(OrderedDict(a=x).values()))),
    "format": lambda s, x: by_size(x, int(f"{GROUPS:d}")),
    "flags": lambda s, x: by_size(x, 2 if Flag.A in (Flag.A | Flag.B) else 3),
    "len": lambda s, x: by_size(x, len(s.more)),
    "device": lambda s, x: by_size(x).to(next(s.parameters()).device),
    "dtype": lambda s, x: by_size(x).to(s.conv.weight.dtype),
    "epsilon": lambda s, x: by_size(x) / (by_size(x).abs().mean() + EPS),
    "bias": lambda s, x: by_size(x if s.conv.bias is None else x + s.conv.bias.view(1, -1, 1, 1)),
    "any": lambda s, x: by_size(x) if any(isinstance(m, nn.Conv2d) for m in s.children()) else x,
    "buffer": lambda s, x: by_size(x) * s.scale.to(x.dtype),
    "plain tensor": lambda s, x: by_size(x) * s.plain,
    "set": lambda s, x: by_size(x, 2 if GROUPS in {2, 3} else 3),
    "text": lambda s, x: by_size(x, 2 if s.kind.lower().startswith("a") else 3),
    "bisect": lambda s, x: by_size(x, SIZES[bisect.bisect_left([1, 2, 3], 1)]),
    "cmath": lambda s, x: by_size(x, round(cmath.sqrt(4).real)),
    "colorsys": lambda s, x: by_size(x, 2 * round(colorsys.rgb_to_hsv(1.0, 0.0, 0.0)[2])),
    "copy": lambda s, x: by_size(x, copy.copy(SIZES)[0] + copy.deepcopy({"more": 0})["more"]),
    "fractions": lambda s, x: by_size(x, int(fractions.Fraction(4, 2))),
    "heapq": lambda s, x: by_size(x, heapq.nsmallest(1, (3, 2))[0]),
    "numbers": lambda s, x: by_size(x, 2 if isinstance(GROUPS, numbers.Integral) else 3),
    "re": lambda s, x: by_size(x, int(re.findall(r"[0-9]+", "groups: 2")[0])),
    "reprlib": lambda s, x: by_size(x, len(reprlib.repr("")) or 3),
    "string": lambda s, x: by_size(x, string.digits.index("2")),
    "struct": lambda s, x: by_size(x, struct.calcsize("<h")),
    "textwrap": lambda s, x: by_size(x, len(textwrap.wrap("ab cd", 2))),
}
