# SPDX-License-Identifier: MIT
"""Pools as modules."""

from __future__ import annotations

from torch import Tensor, nn

from opswap import functional as F

__all__ = ["AvgPool3dAsPool2d", "GlobalMaxPool2d", "Pool3dAsPool2d"]


class Pool3dAsPool2d(nn.MaxPool3d):
    """torch.nn.MaxPool3d that needs no 3-D pooling for windows of depth 1, and keeps every memory format.

    torch reads a batch of images (N, C, H, W) as one volume with N channels and depth C. A window of depth 1
    with stride s over the depth is therefore 2-D pooling of every s-th channel, input[:, ::s]; of a batch of
    volumes, it is 2-D pooling of input[:, :, ::s].

    Args: as torch.nn.MaxPool3d: kernel_size, stride, padding, dilation, return_indices, ceil_mode.
    Shape: (N, C, D, H, W) or (N, C, H, W) -> the same with the last three dimensions pooled; channels_last
        stays channels_last, which torch refuses in 4-D.
    Raises: as `opswap.functional.max_pool3d`.
    """

    @classmethod
    def from_module(cls, module: nn.MaxPool3d) -> Pool3dAsPool2d:
        """The same pool with the same settings, in the same training mode."""
        pool = cls(
            module.kernel_size,
            module.stride,
            module.padding,
            module.dilation,
            module.return_indices,
            module.ceil_mode,
        )
        return pool.train(module.training)

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return F.max_pool3d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )


class AvgPool3dAsPool2d(nn.AvgPool3d):
    """torch.nn.AvgPool3d in the manner of `Pool3dAsPool2d`.

    Args: as torch.nn.AvgPool3d: kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override.
    Shape: (N, C, D, H, W) or (N, C, H, W) -> the same with the last three dimensions pooled, memory format
        kept.
    Raises: as `opswap.functional.avg_pool3d`.
    """

    @classmethod
    def from_module(cls, module: nn.AvgPool3d) -> AvgPool3dAsPool2d:
        """The same pool with the same settings, in the same training mode."""
        pool = cls(
            module.kernel_size,
            module.stride,
            module.padding,
            module.ceil_mode,
            module.count_include_pad,
            module.divisor_override,
        )
        return pool.train(module.training)

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool3d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class GlobalMaxPool2d(nn.Module):
    """The maximum of every plane, in one pass.

    Args:
        ties: "first" sends the gradient to the first maximum, as torch.nn.AdaptiveMaxPool2d(1); "split"
            shares it among all, as input.amax((2, 3)).
        keepdim: return (N, C, 1, 1) instead of (N, C).
    Shape: (N, C, H, W) -> (N, C, 1, 1) or (N, C).
    Raises: ValueError for another rule; in the call as `opswap.functional.global_max_pool2d`.
    """

    def __init__(self, *, ties: str = "first", keepdim: bool = True) -> None:
        super().__init__()
        if ties not in ("first", "split"):
            raise ValueError(f"GlobalMaxPool2d: ties must be 'first' or 'split', got {ties!r}")
        self.ties = ties
        self.keepdim = keepdim

    def extra_repr(self) -> str:
        return f"ties={self.ties!r}, keepdim={self.keepdim}"

    def forward(self, input: Tensor) -> Tensor:
        return F.global_max_pool2d(input, ties=self.ties, keepdim=self.keepdim)
