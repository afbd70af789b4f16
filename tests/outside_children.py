# SPDX-License-Identifier: MIT
"""Forwards that read children which they do not call, tensors that are there, and torch's own state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, finfo, nn

from outside import Net
from outside_values import CASES, Case
from spellings import by_size

__all__ = ["CASES", "Case", "tree"]

FINFO = [torch.finfo]

# --- children that are read, not called ---


class Tree(Net):
    """Has children of many kinds, of which its forward reads something."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.0)
        self.bn = nn.BatchNorm2d(12)
        self.other = nn.Conv2d(12, 12, 1, groups=2)
        self.blocks = nn.ModuleList()
        self.named = nn.ModuleDict()
        self.seq = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv2d(12, 12, 1, groups=2)))
        self.down = None
        self.free = nn.Conv2d(12, 12, (1, 3), bias=False)
        self.register_buffer("scale", None)
        self.register_parameter("shift", None)


def tree(kind: str, body: Callable[[Any, Tensor], Tensor], change: Callable[[nn.Module], None]) -> None:
    class Made(Tree):
        pass

    Made.forward = lambda self, x: body(self, by_size(self.conv(x)))
    name = f"{kind} {len(CASES.setdefault(kind, []))} {','.join(body.__code__.co_names[:4])}"
    CASES[kind].append(Case(name, Made, change))


def strided(m: nn.Module) -> None:
    m.other.stride = (2, 2)


def _dropout(s: Any, x: Tensor) -> Tensor:
    return F.dropout(x, s.drop.p, s.training)


def _all_children(s: Any, x: Tensor) -> Tensor:
    for m in s.children():
        if isinstance(m, nn.Conv2d):
            x = by_size(x, m.groups + 1)
    return x


def _all_modules(s: Any, x: Tensor) -> Tensor:
    for m in s.modules():
        if isinstance(m, nn.Conv2d):
            x = by_size(x, m.groups + 1)
    return x


def _blocks(s: Any, x: Tensor) -> Tensor:
    for m in s.blocks:
        x = m(x)
    return x


def _named(s: Any, x: Tensor) -> Tensor:
    for m in s.named.values():
        x = m(x)
    return x


def _add_block(m: nn.Module) -> None:
    m.blocks.append(nn.ReLU())


def _bias(m: nn.Module) -> None:
    m.free.bias = nn.Parameter(torch.ones(12))


tree("child", _dropout, lambda m: setattr(m.drop, "p", 1.0))
tree(
    "child",
    lambda s, x: F.batch_norm(x, s.bn.running_mean, s.bn.running_var, eps=s.bn.eps),
    lambda m: setattr(m.bn, "eps", 9.0),
)
tree("child", lambda s, x: F.conv2d(x, s.free.weight, s.free.bias, s.other.stride, (0, 1)), strided)
tree("child", lambda s, x: by_size(x, s.other.groups), lambda m: setattr(m.other, "groups", 3))
tree("child", lambda s, x: by_size(x, s.seq[1][0].groups), lambda m: setattr(m.seq[1][0], "groups", 3))
tree(
    "child",
    lambda s, x: by_size(x, s.get_submodule("seq.1.0").groups),
    lambda m: setattr(m.seq[1][0], "groups", 3),
)
tree("child", lambda s, x: by_size(x, s._modules["other"].groups), lambda m: setattr(m.other, "groups", 3))
tree(
    "child",
    lambda s, x: by_size(x, getattr(s, "other", None).groups),
    lambda m: setattr(m.other, "groups", 3),
)
tree("child", _all_children, lambda m: setattr(m.other, "groups", 3))
tree("child", _all_modules, lambda m: setattr(m.seq[1][0], "groups", 3))
tree(
    "child", lambda s, x: by_size(x, 2 + isinstance(s.drop, nn.ReLU)), lambda m: setattr(m, "drop", nn.ReLU())
)
tree(
    "child",
    lambda s, x: by_size(x, 2 + (s.other.padding_mode == "circular")),
    lambda m: setattr(m.other, "padding_mode", "circular"),
)
tree("none", _blocks, _add_block)
tree("none", _named, lambda m: m.named.update({"a": nn.ReLU()}))
tree("none", lambda s, x: by_size(x, 2 + len(s.blocks)), _add_block)
tree("none", lambda s, x: by_size(x, 3 if s.blocks else 2), _add_block)
tree("none", lambda s, x: by_size(x, 3 if "a" in s.named else 2), lambda m: m.named.update({"a": nn.ReLU()}))
tree("none", lambda s, x: x if s.down is None else s.down(x), lambda m: setattr(m, "down", nn.ReLU()))
tree("none", lambda s, x: x if s.free.bias is None else x + s.free.bias.sum(), _bias)
tree(
    "none",
    lambda s, x: x if s.scale is None else x * s.scale,
    lambda m: setattr(m, "scale", torch.tensor(2.0)),
)
tree(
    "none",
    lambda s, x: x if s.shift is None else x + s.shift,
    lambda m: setattr(m, "shift", nn.Parameter(torch.ones(()))),
)
tree("none", lambda s, x: by_size(x, len(list(s.children())) - 5), lambda m: m.add_module("more", nn.ReLU()))
tree("none", lambda s, x: by_size(x, 2 + (len(s.seq) > 2)), lambda m: m.seq.append(nn.ReLU()))
tree("none", lambda s, x: x.relu() if s.conv.bias is None else x, lambda m: setattr(m.conv, "bias", None))

# --- tensors that are there, and torch's own state ---


def tensor(kind: str, body: Callable[[Any, Tensor], Tensor], change: Any = None, **attributes: Any) -> None:
    class Made(Net):
        pass

    Made.forward = lambda self, x: body(self, by_size(self.conv(x)))
    name = f"{kind} {len(CASES.setdefault(kind, []))} {','.join(body.__code__.co_names[:4])}"
    CASES[kind].append(Case(name, lambda: Made(**{k: v() for k, v in attributes.items()}), change))


def two() -> Tensor:
    return torch.tensor([2.0, 3.0])


MEAN = torch.tensor([1.0])
tensor("tensor", lambda s, x: x * 2 if s.t[0] > 1 else x, lambda m: m.t.zero_(), t=two)
tensor("tensor", lambda s, x: x * float(s.t[0]), lambda m: m.t.zero_(), t=two)
tensor("tensor", lambda s, x: x * s.t[0].item(), lambda m: m.t.zero_(), t=two)
tensor("tensor", lambda s, x: by_size(x, int(s.t[0])), lambda m: m.t.add_(1), t=two)
tensor("tensor", lambda s, x: by_size(x, int(s.t.tolist()[0])), lambda m: m.t.add_(1), t=two)
tensor("tensor", lambda s, x: by_size(x, int(s.t.numpy()[0])), lambda m: m.t.add_(1), t=two)
tensor("tensor", lambda s, x: x + s.t.sum(), lambda m: m.t.zero_(), t=two)
tensor("tensor", lambda s, x: by_size(x, s.t.shape[0]), lambda m: setattr(m, "t", torch.ones(3)), t=two)
tensor("tensor", lambda s, x: by_size(x, len(s.t)), lambda m: setattr(m, "t", torch.ones(3)), t=two)
tensor(
    "tensor",
    lambda s, x: x * 2 if s.t.dtype == torch.float32 else x,
    lambda m: setattr(m, "t", m.t.double()),
    t=two,
)
tensor("tensor", lambda s, x: x * 2 if s.t.requires_grad else x, lambda m: m.t.requires_grad_(), t=two)
tensor(
    "tensor",
    lambda s, x: x * 2 if s.t.is_contiguous() else x,
    lambda m: setattr(m, "t", torch.ones(4)[::2]),
    t=two,
)
tensor(
    "tensor", lambda s, x: x * 2 if torch.equal(s.t, s.t + 0) else x, lambda m: m.t.fill_(float("nan")), t=two
)
tensor("tensor", lambda s, x: x - MEAN, lambda m: MEAN.add_(1))
tensor("tensor", lambda s, x: x if s.t is None else x + s.t.mean(), lambda m: setattr(m, "t", None), t=two)
tensor("tensor", lambda s, x: sum((x * v for v in s.t), x), lambda m: m.t.zero_(), t=two)
tensor("tensor", lambda s, x: x * 2 if s.conv.weight.requires_grad else x, lambda m: m.requires_grad_(False))
tensor(
    "tensor",
    lambda s, x: x * 2 if s.conv.weight.dtype == torch.float64 else x,
    lambda m: m.conv.double() and None,
)

tensor(
    "torch",
    lambda s, x: x * 2 if torch.get_default_dtype() == torch.float32 else x,
    lambda m: torch.set_default_dtype(torch.float64),
)
for _finfo in (
    lambda s, x: x * torch.finfo().bits,
    lambda s, x: x + torch.finfo().eps,
    lambda s, x: x.clamp(max=torch.finfo().max).exp(),
    lambda s, x: x * finfo().bits,
    lambda s, x: x * getattr(torch, "finfo")().bits,  # noqa: B009
    lambda s, x: x * getattr(torch, "".join(("fin", "fo")))().bits,
    lambda s, x: x * attrgetter("finfo")(torch)().bits,
    lambda s, x: x * partial(torch.finfo)().bits,
    lambda s, x: x * FINFO[0]().bits,
    lambda s, x: x * torch.tensor(1.0).element_size(),
    lambda s, x: x * 2 if torch.empty(0).dtype == torch.float32 else x,
    lambda s, x: x * torch.Tensor(2).element_size(),
):
    tensor("torch", _finfo, lambda m: torch.set_default_dtype(torch.float64))
tensor("torch", lambda s, x: x * torch.finfo(torch.float32).bits)
tensor(
    "torch",
    lambda s, x: x * torch.get_num_threads(),
    lambda m: torch.set_num_threads(2 if torch.get_num_threads() == 1 else 1),
)
tensor(
    "torch",
    lambda s, x: x * 2 if torch.are_deterministic_algorithms_enabled() else x,
    lambda m: torch.use_deterministic_algorithms(True),
)
tensor(
    "torch",
    lambda s, x: x * 2 if torch.backends.cudnn.benchmark else x,
    lambda m: setattr(torch.backends.cudnn, "benchmark", True),
)
tensor("torch", lambda s, x: x * 2 if torch.backends.mkldnn.is_available() else x)
tensor("torch", lambda s, x: x * 2 if torch.cuda.is_available() else x)
tensor("torch", lambda s, x: x * (torch.initial_seed() % 7), lambda m: torch.manual_seed(3))
tensor(
    "torch", lambda s, x: x + torch.tensor([1.0, 2.0]).sum(), lambda m: torch.set_default_dtype(torch.float64)
)
tensor("torch", lambda s, x: x * torch.get_rng_state().float().mean(), lambda m: torch.manual_seed(3))
tensor("torch", lambda s, x: x * 2 if torch.is_grad_enabled() else x)
tensor(
    "torch",
    lambda s, x: x * sum(f() for f in [torch.get_num_threads]),
)
tensor("torch", lambda s, x: x * partial(torch.get_num_threads)())
