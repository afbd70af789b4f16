# SPDX-License-Identifier: MIT
"""A channel shuffle as a function of one tensor."""

from __future__ import annotations

from typing import ClassVar

import einops
import torch
import torch.nn.functional as F
from einops.layers.torch import Rearrange
from torch import Tensor, nn

from .base import CAT, IDENTITY, PLAIN, SPLIT, Joined, Spelling, Wrapped, joined, whole, wrapped


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


def by_stack(x: Tensor) -> Tensor:
    return torch.stack(x.chunk(2, 1), 2).flatten(1, 2)


def by_stack_of_split(x: Tensor) -> Tensor:
    return torch.stack(tensors=torch.split(x, x.size(1) // 2, dim=1), dim=2).reshape(x.shape)


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


def slices_out_of_order(x: Tensor) -> Tensor:
    odd, even = x[:, 1::2], x[:, ::2]
    return torch.cat((even, odd), dim=1)


def by_rearrange(x: Tensor) -> Tensor:
    return einops.rearrange(x, "b (g c) h w -> b (c g) h w", g=3)


def by_rearrange_back(x: Tensor) -> Tensor:
    return einops.rearrange(x, "b (c g) h w -> b (g c) h w", g=2)


def by_star_of_shape(x: Tensor) -> Tensor:
    b, c = x.shape[:2]
    return x.reshape(b, 2, c // 2, *x.shape[2:]).transpose(1, 2).reshape(b, c, *x.shape[2:])


def by_len_of_shape(x: Tensor) -> Tensor:
    plane = [x.shape[i] for i in range(2, len(x.shape))]
    return x.view(x.shape[0], 3, -1, *plane).transpose(1, 2).reshape(x.shape)


def after_assertions(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    torch._assert(c % 3 == 0, "channels")
    torch._assert(x.dim() == 4, "dimensions")
    return x.reshape(b, 3, c // 3, h * w).swapaxes(1, 2).reshape(b, c, h, w)


def then_viewed(x: Tensor) -> Tensor:
    return by_size(x).view(x.size(0), -1).view(x.size())


class Shuffle(nn.Module):
    """A shuffle as a module of its own."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.g = groups

    def forward(self, x: Tensor) -> Tensor:
        return by_size(x, self.g)


class Registered(Wrapped):
    """Its class keeps a list of its subclasses."""

    known: ClassVar[list[type]] = []

    def __init_subclass__(cls) -> None:
        cls.known.append(cls)


class Meta(type):
    """A metaclass that does nothing yet."""


class WithMeta(Wrapped, metaclass=Meta):
    """Its class may do anything when a class is derived from it."""


def one_group(x: Tensor) -> Tensor:
    return by_size(x, 1)


def one_group_of_torch(x: Tensor) -> Tensor:
    return F.channel_shuffle(x, 1)


def almost(x: Tensor) -> Tensor:
    """All channels but the last two."""
    return torch.cat((by_size(x[:, :-2]), x[:, -2:]), 1)


def halves_swapped(x: Tensor) -> Tensor:
    """A shuffle of three groups, and then the halves change places."""
    a, b = by_size(x, 3).chunk(2, 1)
    return torch.cat((b, a), 1)


_BODIES = (
    by_size,
    by_data_size,
    by_shape_flatten,
    by_permute,
    by_unflatten,
    by_movedim,
    by_stack,
    by_stack_of_split,
    inverse,
    merged_plane,
    start_of_block,
    constants,
    every_second,
    by_rearrange,
    by_star_of_shape,
)

SHUFFLES = (
    *map(wrapped, _BODIES),
    *map(joined, _BODIES),
    wrapped(slices_out_of_order),
    wrapped(by_rearrange_back),
    wrapped(by_len_of_shape),
    wrapped(after_assertions),
    wrapped(then_viewed),
    wrapped(one_group, IDENTITY),
    wrapped(one_group_of_torch, IDENTITY),
    joined(by_size, "axis"),
    joined(by_size, "positional"),
    whole(lambda: Joined(lambda x: F.channel_shuffle(x, 3)), (CAT,), "lambda of F.channel_shuffle"),
    whole(lambda: Joined(lambda x: torch.channel_shuffle(x, groups=3)), (CAT,), "torch.channel_shuffle"),
    whole(lambda: Joined(nn.ChannelShuffle(4)), (CAT,), "nn.ChannelShuffle after cat"),
    whole(lambda: Wrapped(nn.ChannelShuffle(4)), (PLAIN,), "nn.ChannelShuffle"),
    whole(lambda: Wrapped(nn.ChannelShuffle(1)), (IDENTITY,), "nn.ChannelShuffle of one group"),
    whole(lambda: Joined(Rearrange("b (g c) h w -> b (c g) h w", g=2)), (CAT,), "Rearrange after cat"),
    whole(lambda: Wrapped(Rearrange("b (g c) h w -> b (c g) h w", g=2)), (PLAIN,), "Rearrange"),
    whole(lambda: Joined(Shuffle(3)), (CAT,), "module of its own after cat"),
    whole(lambda: Wrapped(Shuffle(3)), (PLAIN,), "module of its own"),
    whole(lambda: Wrapped(Shuffle(1)), (IDENTITY,), "module of its own with one group"),
    whole(lambda: nn.Sequential(nn.Conv2d(12, 12, 1), Shuffle(2)), (PLAIN,), "Sequential"),
    whole(lambda: Registered(by_size), (PLAIN,), "class that lists its subclasses"),
    whole(lambda: WithMeta(by_size), (PLAIN,), "metaclass"),
    whole(lambda: Wrapped(almost), (PLAIN,), "all channels but two"),
    whole(lambda: Wrapped(halves_swapped), (SPLIT,), "halves swapped"),
    Spelling("1-d", lambda: Wrapped(one_dimensional, dims=1), (2, 12, 16), (PLAIN,)),
    Spelling("3-d", lambda: Wrapped(three_dimensional, dims=3), (2, 12, 2, 2, 8), (PLAIN,)),
)
