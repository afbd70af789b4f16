# SPDX-License-Identifier: MIT
"""Channel shuffles as modules."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from opswap import functional as F
from opswap.ops._function import concrete_size

__all__ = ["CatChannelShuffle", "ChannelShuffle", "IndexSelectFull", "IndexSelectHalf"]

_INDEX_BUFFERS = ("fp_index", "fp_index1", "fp_index2", "bp_index", "bp_index1", "bp_index2")


class _Shuffle(nn.Module):
    """A shuffle of channels; drops the index buffers that hand-written forms of it keep in their checkpoints."""

    def __init__(self, groups: int = 2, *, inverse: bool = False) -> None:
        super().__init__()
        if isinstance(groups, bool) or not isinstance(groups, int):
            raise TypeError(f"{type(self).__name__}: groups must be an int, got {groups!r}")
        if groups <= 0:
            raise ValueError(f"{type(self).__name__}: groups must be positive, got {groups}")
        self.groups = groups
        self.inverse = inverse

    def extra_repr(self) -> str:
        return f"groups={self.groups}" + (", inverse=True" if self.inverse else "")

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name in _INDEX_BUFFERS:
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class ChannelShuffle(_Shuffle):
    """Shuffle the channels of one tensor, as torch.nn.ChannelShuffle.

    Args:
        groups: number of groups, divides C.
        inverse: undo the shuffle with the same groups (the direction in which ShuffleNetV2's authors split a block).
    Shape: (N, C, *) -> (N, C, *), any dtype, memory format kept.
    Raises: as `opswap.functional.channel_shuffle`.
    """

    def __init__(self, groups: int, *, inverse: bool = False) -> None:
        super().__init__(groups, inverse=inverse)

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups, inverse=self.inverse)


class IndexSelectFull(_Shuffle):
    """Concatenate and shuffle: the end of a ShuffleNetV2 block that is not followed by a split.

    Shape: (N, C_1, *), (N, C_2, *), ... -> (N, C, *) with C the sum of the C_i, divisible by groups.
    Raises: as `opswap.functional.cat_channel_shuffle`.
    """

    def forward(self, *tensors: Tensor) -> Tensor:
        return F.cat_channel_shuffle(tensors, self.groups, inverse=self.inverse)


class IndexSelectHalf(_Shuffle):
    """Concatenate, shuffle and cut in two: the end of a ShuffleNetV2 block and the channel split of the next.

    Shape: (N, C_1, *), (N, C_2, *), ... -> two tensors (N, ceil(C / 2), *) and (N, floor(C / 2), *).
    Raises: as `opswap.functional.cat_channel_shuffle_split`.
    """

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        first, second = F.cat_channel_shuffle_split(tensors, self.groups, 2, inverse=self.inverse)
        return first, second


class CatChannelShuffle(_Shuffle):
    """Concatenate two tensors, shuffle, and cut in two if requested: constructor and call of Ascend's contrib module.

    Args:
        channels: C, the channels of both inputs together; checked on every call.
        groups: number of groups, divides C.
        split_shuffle: return the two halves of the result instead of the whole.
    Shape: (N, C_1, *), (N, C_2, *) with C_1 + C_2 = C -> (N, C, *), or two tensors as `IndexSelectHalf`.
    Raises: ValueError in the constructor if groups does not divide channels; in the call RuntimeError if C_1 + C_2 is
        not channels, else as `opswap.functional.cat_channel_shuffle_split`.
    """

    def __init__(self, channels: int, groups: int = 2, split_shuffle: bool = True) -> None:
        super().__init__(groups)
        if channels <= 0 or channels % groups:
            raise ValueError(f"CatChannelShuffle: {channels} channels cannot be split into {groups} groups")
        self.channels = channels
        self.split_shuffle = split_shuffle

    def extra_repr(self) -> str:
        return f"{self.channels}, groups={self.groups}, split_shuffle={self.split_shuffle}"

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        first, second = concrete_size(x1), concrete_size(x2)
        if len(first) > 1 and len(second) > 1 and first[1] + second[1] != self.channels:
            raise RuntimeError(
                f"CatChannelShuffle: expected {self.channels} channels, got {first[1]} + {second[1]}"
            )
        if self.split_shuffle:
            left, right = F.cat_channel_shuffle_split((x1, x2), self.groups, 2)
            return left, right
        return F.cat_channel_shuffle((x1, x2), self.groups)
