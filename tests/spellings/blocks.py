# SPDX-License-Identifier: MIT
"""Blocks of networks with a shuffle in them: where it stands, what is before and after it, and who calls whom."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from .base import CAT, PLAIN, SPLIT, Joined, Spelling, whole
from .shuffles import Shuffle, by_permute, by_size

T = TypeVar("T")


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


class Halves(nn.Module):
    """Returns every second channel, and the others."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, ::2], x[:, 1::2]


class CallsHalves(nn.Module):
    """The slices are returned by a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(12, 12, 1)
        self.halves = Halves()
        self.branch = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        even, odd = self.halves(self.before(x))
        return torch.cat((self.branch(even), odd), 1)


class CallsOneAfterTheOther(nn.Module):
    """Its forward calls the blocks, no Sequential does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Split(), Split()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).relu()


class CallsInALoop(nn.Module):
    """Blocks in a ModuleList."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(12, 12, 1)
        self.blocks = nn.ModuleList(Split() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


class ChunkedBranches(nn.Module):
    """Chunks meet their branches in a comprehension, each is shuffled there."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(12, 12, 1)
        self.branches = nn.ModuleList(nn.Conv2d(6, 6, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.stem(x).chunk(2, 1)
        return torch.cat([by_size(b(p)) for b, p in zip(self.branches, parts, strict=True)], 1)


class FirstVersionUnit(nn.Module):
    """A unit of the first ShuffleNet: grouped convolutions with the shuffle between them, and a residual."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.groups = stride, 3
        self.squeeze = nn.Sequential(
            nn.Conv2d(12, 12, 1, groups=3), nn.BatchNorm2d(12), nn.ReLU(inplace=True)
        )
        self.expand = nn.Sequential(nn.Conv2d(12, 12, 3, stride, 1, groups=12), nn.BatchNorm2d(12))

    def forward(self, old_x: Tensor) -> Tensor:
        x = self.squeeze(old_x)
        if self.groups > 1:
            x = self.channel_shuffle(x)
        x = self.expand(x)
        if self.stride == 1:
            return F.relu(old_x + x)
        return torch.cat((F.avg_pool2d(old_x, 3, 2, 1), F.relu(x)), 1)

    def channel_shuffle(self, x: Tensor) -> Tensor:
        batchsize, num_channels, height, width = x.data.size()
        assert num_channels % self.groups == 0
        group_channels = num_channels // self.groups
        x = x.reshape(batchsize, group_channels, self.groups, height, width)
        x = x.permute(0, 2, 1, 3, 4)
        return x.reshape(batchsize, num_channels, height, width)


class SecondVersionUnit(nn.Module):
    """A unit of the second ShuffleNet as its authors published it: shuffle and split at the start."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        width = channels if stride == 2 else channels // 2
        self.branch_main = nn.Sequential(
            nn.Conv2d(width, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
            nn.BatchNorm2d(width),
        )
        if stride == 2:
            self.branch_proj = nn.Sequential(nn.Conv2d(width, width, 3, stride, 1), nn.ReLU(inplace=True))
        else:
            self.branch_proj = None

    def forward(self, old_x: Tensor) -> Tensor:
        if self.stride == 1:
            x_proj, x = self.channel_shuffle(old_x)
            return torch.cat((x_proj, self.branch_main(x)), 1)
        return torch.cat((self.branch_proj(old_x), self.branch_main(old_x)), 1)

    def channel_shuffle(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batchsize, num_channels, height, width = x.data.size()
        assert num_channels % 4 == 0
        x = x.reshape(batchsize * num_channels // 2, 2, height * width)
        x = x.permute(1, 0, 2)
        x = x.reshape(2, -1, num_channels // 2, height, width)
        return x[0], x[1]


class SplitByRatio(nn.Module):
    """The cut of a block as some small-image networks spell it: a module of its own, with an int() in it."""

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c = int(x.size(1) * self.ratio)
        return x[:, :c, :, :], x[:, c:, :, :]


class SmallImageUnit(nn.Module):
    """Splits, convolves one half, joins, shuffles: each step a module."""

    def __init__(self) -> None:
        super().__init__()
        self.split = SplitByRatio(0.5)
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.shuffle = Shuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = self.split(x)
        return self.shuffle(torch.cat([x1, F.relu(self.bn(self.conv(x2)))], 1))


class Base(nn.Module, metaclass=ABCMeta):
    """The abstract base of a tool box, whose train() returns nothing."""

    def train(self, mode: bool = True) -> None:
        super().train(mode)


class ToolboxUnit(Base):
    """The forward is a function inside the forward, for a checkpoint that is not asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.with_checkpoint = False
        self.branch = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            c = x.shape[1] // 2 + x.shape[1] % 2
            out = torch.cat((x[:, :c, :, :], self.branch(x[:, c:, :, :])), dim=1)
            batch, channels, height, width = out.size()
            assert channels % 2 == 0, "channels should be divisible by groups"
            out = out.view(batch, 2, channels // 2, height, width)
            return torch.transpose(out, 1, 2).contiguous().view(batch, -1, height, width)

        if self.with_checkpoint and x.requires_grad:
            return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
        return inner(x)


class Typed(nn.Module, Generic[T]):
    """A generic class."""

    def __init__(self, shuffle: T) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.shuffle = shuffle

    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.conv(x))


BLOCKS = (
    whole(StartOfBlock, (SPLIT,), "start of block"),
    whole(CallsHalves, (SPLIT,), "slices of a module"),
    whole(Method, (CAT,), "method"),
    whole(Three, (CAT,), "three inputs"),
    whole(Looped, (PLAIN, PLAIN), "comprehension"),
    whole(ChunkedBranches, (PLAIN, PLAIN), "chunks in a comprehension"),
    whole(lambda: Cut(chunk), (SPLIT,), "chunk"),
    whole(lambda: Cut(chunk_in_three), (SPLIT,), "torch.chunk"),
    whole(lambda: Cut(split), (SPLIT,), "split by sizes"),
    whole(lambda: Cut(lambda x: (x[:, :6], x[:, 6:])), (CAT,), "slices by constants"),
    whole(lambda: Cut(lambda x: (x[:, 6:], x[:, :6])), (CAT,), "slices out of order"),
    whole(
        lambda: Cut(lambda x: (x[:, : x.size(1) // 2], x[:, x.size(1) // 2 :])),
        (SPLIT,),
        "slices at the half",
    ),
    whole(lambda: nn.Sequential(Split(), Split(), Split()), (SPLIT, SPLIT, CAT), "blocks"),
    whole(lambda: nn.Sequential(Split(Shuffle(2)), Split(Shuffle(2))), (SPLIT, CAT), "blocks with modules"),
    whole(lambda: nn.Sequential(nn.Sequential(Split()), nn.Sequential(Split())), (SPLIT, CAT), "nested"),
    whole(lambda: nn.Sequential(Split(), nn.ReLU(), Split()), (CAT, CAT), "blocks apart"),
    whole(CallsOneAfterTheOther, (SPLIT, CAT), "blocks called by a forward"),
    whole(CallsInALoop, (SPLIT, SPLIT, CAT), "blocks called in a loop"),
    whole(FirstVersionUnit, (PLAIN,), "unit of ShuffleNet"),
    whole(lambda: FirstVersionUnit(2), (PLAIN, "avg_pool2d"), "last unit of ShuffleNet"),
    Spelling(
        "units of ShuffleNetV2",
        lambda: nn.Sequential(SecondVersionUnit(12, 2), SecondVersionUnit(24, 1), SecondVersionUnit(24, 1)),
        (2, 12, 4, 8),
        (SPLIT, SPLIT),
        strided=True,
    ),
    whole(lambda: nn.Sequential(ToolboxUnit(), ToolboxUnit()), (SPLIT, CAT), "units of a tool box"),
    whole(lambda: Typed[int](3), (PLAIN,), "generic class"),
    whole(lambda: nn.Sequential(SmallImageUnit(), SmallImageUnit()), (CAT, CAT), "units for small images"),
)
