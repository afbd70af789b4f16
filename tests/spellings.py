# SPDX-License-Identifier: MIT
"""Small models that spell a channel shuffle as people do, and models that only look as if they did."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SPLIT, CAT, PLAIN = "cat_channel_shuffle_split", "cat_channel_shuffle", "channel_shuffle"


@dataclass(frozen=True)
class Spelling:
    """A model, the shape it takes, and the rules that must apply (none for a trap)."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rules: tuple[str, ...]

    def __repr__(self) -> str:
        return self.name


class Wrapped(nn.Module):
    """conv -> body -> conv, so that gradients flow through whatever is under test."""

    def __init__(self, body: Callable[[Tensor], Tensor], channels: int = 12, dims: int = 2) -> None:
        super().__init__()
        conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
        self.before = conv(channels, channels, 1)
        self.after = conv(channels, channels, 1)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.body(self.before(x)))


class Joined(nn.Module):
    """Two branches, joined by torch.cat, then the body."""

    def __init__(self, body: Callable[[Tensor], Tensor], channels: int = 12, axis: str = "dim") -> None:
        super().__init__()
        self.left = nn.Conv2d(channels, channels // 2, 1)
        self.right = nn.Conv2d(channels, channels // 2, 1)
        self.after = nn.Conv2d(channels, channels, 1)
        self.body, self.axis = body, axis

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.left(x), self.right(x)]
        if self.axis == "dim":
            x = torch.cat(parts, dim=1)
        elif self.axis == "axis":
            x = torch.concat(tuple(parts), axis=1)
        else:
            x = torch.cat(parts, 1)
        return self.after(self.body(x))


def by_size(x: Tensor, groups: int = 2) -> Tensor:
    b, c, h, w = x.size()
    x = x.view(b, groups, c // groups, h, w)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(b, -1, h, w)


def by_data_size(x: Tensor) -> Tensor:
    b, c, h, w = x.data.size()
    return x.view(b, 3, c // 3, h, w).transpose(1, 2).contiguous().view(b, c, h, w)


def by_shape_flatten(x: Tensor) -> Tensor:
    return x.view(x.shape[0], 2, x.shape[1] // 2, x.shape[2], x.shape[3]).transpose(1, 2).flatten(1, 2)


def by_permute(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.reshape(b, 3, c // 3, h, w).permute(0, 2, 1, 3, 4).reshape(b, c, h, w)


def by_unflatten(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, -1)).swapaxes(1, 2).flatten(1, 2)


def by_movedim(x: Tensor) -> Tensor:
    return torch.movedim(torch.unflatten(x, 1, (4, -1)), 1, 2).reshape(x.shape)


def inverse(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    return x.reshape(b, c // 2, 2, h, w).permute(0, 2, 1, 3, 4).reshape(b, c, h, w)


def merged_plane(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    return x.view(b, 2, c // 2, h * w).permute(0, 2, 1, 3).contiguous().view(b, c, h, w)


def start_of_block(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    x = x.reshape(b * c // 2, 2, h * w).permute(1, 0, 2).reshape(2, -1, c // 2, h, w)
    return torch.cat((x[0], x[1]), 1)


class StartOfBlock(nn.Module):
    """The two halves of an inverse shuffle go different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(12, 12, 1)
        self.branch = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        b, c, h, w = x.data.size()
        x = x.reshape(b * c // 2, 2, h * w)
        x = x.permute(1, 0, 2)
        x = x.reshape(2, -1, c // 2, h, w)
        return torch.cat((x[0], self.branch(x[1])), 1)


def every_second(x: Tensor) -> Tensor:
    return torch.cat((x[:, ::2], x[:, 1::2]), 1)


def constants(x: Tensor) -> Tensor:
    b, _, h, w = x.size()
    return x.view(b, 2, 6, h, w).transpose(1, 2).reshape(b, 12, h, w)


def all_constants(x: Tensor) -> Tensor:
    return x.view(-1, 2, 6, 4, 8).transpose(1, 2).reshape(-1, 12, 4, 8)


def one_dimensional(x: Tensor) -> Tensor:
    b, c, length = x.size()
    return x.view(b, 2, c // 2, length).transpose(1, 2).contiguous().view(b, c, length)


def three_dimensional(x: Tensor) -> Tensor:
    b, c, t, h, w = x.size()
    return x.view(b, 3, c // 3, t, h, w).transpose(1, 2).contiguous().view(b, c, t, h, w)


class Shuffle(nn.Module):
    """A shuffle as a module of its own."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.g = groups

    def forward(self, x: Tensor) -> Tensor:
        return by_size(x, self.g)


class Method(Joined):
    """The shuffle is a method of the block."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())

    def mix(self, x: Tensor) -> Tensor:
        return by_permute(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.mix(torch.cat([self.left(x), self.right(x)], 1)))


class Three(nn.Module):
    """Three inputs of unequal width, shuffled in two groups that both span an input."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(12, n, 1) for n in (2, 7, 3))

    def forward(self, x: Tensor) -> Tensor:
        return by_size(torch.cat([p(x) for p in self.parts], 1))


class Cut(nn.Module):
    """Shuffle, then cut in the same forward."""

    def __init__(self, cut: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.left = nn.Conv2d(12, 6, 1)
        self.right = nn.Conv2d(12, 6, 1)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        shuffled = by_size(torch.cat((self.left(x), self.right(x)), 1))
        return torch.cat([p * (i + 1) for i, p in enumerate(self.cut(shuffled))], 1)


def chunk(x: Tensor) -> tuple[Tensor, ...]:
    a, b = x.chunk(2, 1)
    return a, b


def chunk_in_three(x: Tensor) -> tuple[Tensor, ...]:
    a, b, c = torch.chunk(x, 3, dim=1)
    return a, b, c


def split(x: Tensor) -> tuple[Tensor, ...]:
    a, b = x.split([5, 7], 1)
    return a, b


class Split(nn.Module):
    """A block of ShuffleNetV2 with an odd number of channels per branch."""

    def __init__(self, shuffle: Callable[[Tensor], Tensor] = by_size) -> None:
        super().__init__()
        self.branch = nn.Conv2d(6, 6, 3, padding=1)
        self.shuffle = shuffle

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return self.shuffle(torch.cat((a, self.branch(b)), 1))


class Looped(nn.Module):
    """Branches in a ModuleList, each chunk shuffled in a comprehension."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(12, 12, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([by_size(b(x)) for b in self.branches], 1)


def _whole(body: Callable[[], nn.Module], rules: tuple[str, ...], name: str) -> Spelling:
    return Spelling(name, body, (2, 12, 4, 8), rules)


def _wrapped(body: Callable[[Tensor], Tensor], rule: str = PLAIN) -> Spelling:
    name = getattr(body, "__name__", type(body).__name__)
    return _whole(lambda: Wrapped(body), (rule,), f"plain-{name}")


def _joined(body: Callable[[Tensor], Tensor], axis: str = "dim") -> Spelling:
    name = getattr(body, "__name__", type(body).__name__)
    return _whole(lambda: Joined(body, axis=axis), (CAT,), f"cat-{axis}-{name}")


_BODIES = (
    by_size,
    by_data_size,
    by_shape_flatten,
    by_permute,
    by_unflatten,
    by_movedim,
    inverse,
    merged_plane,
    start_of_block,
    constants,
    every_second,
)

SPELLINGS = (
    *map(_wrapped, _BODIES),
    *map(_joined, _BODIES),
    _joined(by_size, "axis"),
    _joined(by_size, "positional"),
    _whole(lambda: Joined(lambda x: F.channel_shuffle(x, 3)), (CAT,), "lambda of F.channel_shuffle"),
    _whole(lambda: Joined(lambda x: torch.channel_shuffle(x, groups=3)), (CAT,), "torch.channel_shuffle"),
    _whole(lambda: Joined(nn.ChannelShuffle(4)), (CAT,), "nn.ChannelShuffle after cat"),
    _whole(lambda: Wrapped(nn.ChannelShuffle(4)), (PLAIN,), "nn.ChannelShuffle"),
    _whole(lambda: Joined(Shuffle(3)), (CAT,), "module of its own after cat"),
    _whole(lambda: Wrapped(Shuffle(3)), (PLAIN,), "module of its own"),
    _whole(lambda: nn.Sequential(nn.Conv2d(12, 12, 1), Shuffle(2)), (PLAIN,), "Sequential"),
    _whole(Method, (CAT,), "method"),
    _whole(Three, (CAT,), "three inputs"),
    _whole(Looped, (PLAIN, PLAIN), "comprehension"),
    _whole(lambda: Cut(chunk), (SPLIT,), "chunk"),
    _whole(lambda: Cut(chunk_in_three), (SPLIT,), "torch.chunk"),
    _whole(lambda: Cut(split), (SPLIT,), "split by sizes"),
    _whole(lambda: Cut(lambda x: (x[:, :6], x[:, 6:])), (CAT,), "slices by constants"),
    _whole(lambda: Cut(lambda x: (x[:, 6:], x[:, :6])), (CAT,), "slices out of order"),
    _whole(lambda: Wrapped(almost), (PLAIN,), "all channels but two"),
    _whole(lambda: Wrapped(halves_swapped), (SPLIT,), "halves swapped"),
    _whole(
        lambda: Cut(lambda x: (x[:, : x.size(1) // 2], x[:, x.size(1) // 2 :])),
        (SPLIT,),
        "slices at the half",
    ),
    _whole(lambda: nn.Sequential(Split(), Split(), Split()), (SPLIT, SPLIT, CAT), "blocks"),
    _whole(lambda: nn.Sequential(Split(Shuffle(2)), Split(Shuffle(2))), (SPLIT, CAT), "blocks with modules"),
    _whole(lambda: nn.Sequential(nn.Sequential(Split()), nn.Sequential(Split())), (SPLIT, CAT), "nested"),
    _whole(lambda: nn.Sequential(Split(), nn.ReLU(), Split()), (CAT, CAT), "blocks apart"),
    Spelling("1-d", lambda: Wrapped(one_dimensional, dims=1), (2, 12, 16), (PLAIN,)),
    Spelling("3-d", lambda: Wrapped(three_dimensional, dims=3), (2, 12, 2, 2, 8), (PLAIN,)),
)


def almost(x: Tensor) -> Tensor:
    """All channels but the last two."""
    return torch.cat((by_size(x[:, :-2]), x[:, -2:]), 1)


def halves_swapped(x: Tensor) -> Tensor:
    """A shuffle of three groups, and then the halves change places."""
    a, b = by_size(x, 3).chunk(2, 1)
    return torch.cat((b, a), 1)


def mixes_batch(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    return x.reshape(2, b * c // 2, h * w).permute(1, 0, 2).reshape(b, c, h, w)


def mixes_plane(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    return x.transpose(1, 2).reshape(b, c, h, w)


def turns_planes(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    return x.view(b, 2, c // 2, h, w).permute(0, 2, 1, 4, 3).reshape(b, c, h, w)


def identity(x: Tensor) -> Tensor:
    return by_size(x, 1)


def views(x: Tensor) -> Tensor:
    even, odd = x[:, ::2], x[:, 1::2]
    return torch.cat((even * 2, odd), 1)


def looks_inside(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    y = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous()
    return y.view(b, c, h, w) * y.mean()


def detached(x: Tensor) -> Tensor:
    return by_size(x.data) + x


def writes_between(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    y = x.view(b, 2, c // 2, h, w).transpose(1, 2)
    x.mul_(2)
    return y.contiguous().view(b, c, h, w)


def size_of_another(x: Tensor) -> Tensor:
    small = x[:, :6]
    b, c, h, w = small.size()
    return (small + 1).relu().view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w).repeat(1, 2, 1, 1)


def depends_on_data(x: Tensor) -> Tensor:
    return by_size(x) if x.mean() > 0 else x


def depends_on_size(x: Tensor) -> Tensor:
    return by_size(x) if x.shape[-1] > 3 else x


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = by_size(x)
    return x + y


@torch.no_grad()
def decorated(x: Tensor) -> Tensor:
    return by_size(x)


def without_grad_by_decorator(x: Tensor) -> Tensor:
    return x + decorated(x)


class Doubling(torch.autograd.Function):
    """A shuffle with a gradient of its own."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return by_size(x)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return 2 * grad


def own_gradient(x: Tensor) -> Tensor:
    return Doubling.apply(x)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(by_size, x, use_reentrant=False)


def quietly_without_grad(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    y = by_size(x)
    torch.set_grad_enabled(True)
    return x + y


def asks_for_type(x: Tensor) -> Tensor:
    return by_size(x) if isinstance(x, Tensor) else x[0]


def draws(x: Tensor) -> Tensor:
    return by_size(x) * random.choice((1.0, 1.0))


def swallows(x: Tensor) -> Tensor:
    try:
        return x if bool(x.sum() > 1e9) else by_size(x)
    except Exception:
        return x


class Training(Wrapped):
    """Shuffles in training only."""

    def forward(self, x: Tensor) -> Tensor:
        return self.after(by_size(self.before(x)) if self.training else self.before(x))


class Counting(Wrapped):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Remembering(Wrapped):
    """Keeps its features in a list."""

    def __init__(self) -> None:
        super().__init__(by_size)
        self.features: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.features.append(x)
        return super().forward(x)


class Registered(Wrapped):
    """Its class keeps a list of its subclasses."""

    known: ClassVar[list[type]] = []

    def __init_subclass__(cls) -> None:
        cls.known.append(cls)


class Meta(type):
    """A metaclass that does nothing yet."""


class WithMeta(Wrapped, metaclass=Meta):
    """Its class may do anything when it is subclassed."""


def _trap(body: Callable[[Tensor], Tensor], reason: str) -> tuple[Spelling, str]:
    return _whole(lambda: Wrapped(body), (), body.__name__), reason


TRAPS = (
    _trap(mixes_batch, "no channel shuffle"),
    _trap(mixes_plane, "no channel shuffle"),
    _trap(turns_planes, "no channel shuffle"),
    _trap(identity, "leaves every channel where it is"),
    _trap(views, ""),
    _trap(looks_inside, "an intermediate result is used elsewhere"),
    _trap(detached, ""),
    _trap(writes_between, "may write"),
    _trap(size_of_another, "sizes come from another tensor"),
    _trap(depends_on_data, "control flow"),
    _trap(depends_on_size, "control flow"),
    _trap(without_grad, "gradient"),
    _trap(quietly_without_grad, "gradient"),
    _trap(without_grad_by_decorator, "gradient"),
    _trap(own_gradient, "gradient"),
    _trap(checkpointed, "checkpoint.py"),
    _trap(asks_for_type, "isinstance"),
    _trap(draws, "random"),
    _trap(swallows, "control flow"),
    (_whole(StartOfBlock, (), "start of block"), "views of its input"),
    (_whole(lambda: Training(by_size), (), "training"), "train()"),
    (_whole(lambda: Counting(by_size), (), "counting"), "'calls'"),
    (_whole(Remembering, (), "remembering"), "'features'"),
    (_whole(lambda: Registered(by_size), (), "registered"), "subclassed"),
    (_whole(lambda: WithMeta(by_size), (), "metaclass"), "subclassed"),
    (_whole(lambda: torch.jit.script(Wrapped(nn.Identity())), (), "scripted"), "ScriptModule"),
    (_whole(lambda: torch.fx.symbolic_trace(Wrapped(by_size)), (), "traced"), "GraphModule"),
)
