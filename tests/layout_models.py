# SPDX-License-Identifier: MIT
"""Small networks that keep or lose channels_last in one known line each, marked `# here`."""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opswap.finding import Report, Site

__all__ = [
    "Attention",
    "BroadPooling",
    "Chunks",
    "ConvNeXt",
    "Flattened",
    "Indexed",
    "MeanHead",
    "NonLocal",
    "SqueezeExcite",
    "UNet",
    "Volume",
    "Windows",
    "conv",
    "in_channels_last",
    "line_of",
    "only",
    "step",
]

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def conv(channels: int, out_channels: int, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(channels, out_channels, size, padding=size // 2)


def in_channels_last(model: nn.Module, *size: int) -> tuple[nn.Module, Tensor]:
    """The model, and a random input of this size, both converted."""
    return model.to(memory_format=_LAST[len(size)]), torch.randn(size).to(memory_format=_LAST[len(size)])


def step(model: nn.Module, x: Tensor) -> Tensor:
    """Forward, and a backward whose gradient arrives in the format of the output."""
    y = model(x)
    y.backward(torch.randn_like(y))
    return y


def line_of(model: type | object, mark: str = "# here") -> int:
    """The number of the line of a class, or of a function, that ends with the mark."""
    lines, first = inspect.getsourcelines(model)
    return next(first + i for i, text in enumerate(lines) if text.rstrip().endswith(mark))


def only(report: Report, status: str, phase: str = "forward") -> Site:
    """The only finding of this status and phase."""
    (site,) = [s for s in report.findings if (s.status, s.phase) == (status, phase)]
    return site


class UNet(nn.Module):
    """GroupNorm and interpolation: kept throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(conv(3, 16), nn.GroupNorm(4, 16), nn.SiLU())
        self.deep = nn.Sequential(conv(16, 32), nn.GroupNorm(4, 32), nn.SiLU())
        self.up = conv(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down(x)
        deep = self.deep(F.max_pool2d(wide, 2))
        deep = F.interpolate(deep, size=wide.shape[2:], mode="bilinear")
        return self.up(torch.cat((wide, deep), 1))


class Attention(nn.Module):
    """Self-attention over pixels; `copies` returns to an image by a copy in place of views."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.entry, self.exit = conv(3, 24), conv(24, 8)
        self.qkv = nn.Linear(24, 72)
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        n, c, h, w = x.shape
        q, k, v = self.qkv(x.flatten(2).transpose(1, 2)).view(n, h * w, 3, 4, 6).permute(2, 0, 3, 1, 4)
        tokens = ((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).reshape(n, h * w, c)
        if self.copies:
            image = tokens.transpose(1, 2).contiguous()  # here
            return self.exit(image.view(n, c, h, w))
        return self.exit(tokens.transpose(1, 2).unflatten(2, (h, w)))


class SqueezeExcite(nn.Module):
    """The gate is one pixel per channel; the gradient of its mean joins one that decides: kept."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.gate, self.exit = conv(3, 16), conv(16, 16, 1), conv(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        pixel = F.adaptive_avg_pool2d(x, 1)
        return self.exit(x * self.gate(pixel).sigmoid())


class MeanHead(nn.Module):
    """The backward of the mean is contiguous, and the activation's follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = conv(3, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.entry(x))
        return x.mean((2, 3), keepdim=True)  # here


class BroadPooling(nn.Module):
    """One pixel, made contiguous by hand, spread over an image that then joins another."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = conv(3, 16), conv(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        pixel = x.amax((2, 3), keepdim=True)
        spread = F.interpolate(pixel, size=x.shape[2:])  # here
        return self.exit(torch.cat((x, spread), 1))


class ConvNeXt(nn.Module):
    """LayerNorm and Linear over permuted views, which keep the memory as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = conv(3, 24), conv(24, 8)
        self.norm, self.grow, self.shrink = nn.LayerNorm(24), nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        y = self.shrink(F.gelu(self.grow(self.norm(x.permute(0, 2, 3, 1)))))
        return self.exit(x + y.permute(0, 3, 1, 2))


class Windows(nn.Module):
    """Attention in windows: copies, which leave the channels innermost."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = conv(3, 24), conv(24, 8)
        self.mix = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        y = x.view(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        y = self.mix(y)
        y = torch.softmax(y @ y.transpose(1, 2), -1) @ y
        y = y.view(n, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return self.exit((x + y).permute(0, 3, 1, 2))


class NonLocal(nn.Module):
    """Matrix products over pixels, whose result is copied before it is an image again."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.value, self.exit = conv(3, 16), conv(16, 8, 1), conv(8, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        n, _, h, w = x.shape
        flat = self.value(x).view(n, 8, -1)
        scores = F.softmax(flat.permute(0, 2, 1) @ flat, -1)
        y = scores @ flat.permute(0, 2, 1)
        y = y.permute(0, 2, 1).contiguous()  # here
        return x + self.exit(y.view(n, 8, h, w))


class Volume(nn.Module):
    """avg_pool3d has no channels_last kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = nn.Conv3d(3, 8, 3, padding=1), nn.Conv3d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        x = F.avg_pool3d(x, 2)  # here
        return self.exit(x)


class Chunks(nn.Module):
    """Tuples of views, and operators on lists: kept."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = conv(3, 16), conv(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.entry(x).chunk(2, 1)
        third, fourth = second.split([3, 5], 1)
        joined = torch.cat((fourth, third), 1)
        a, b = torch._foreach_add([first, joined], 1.0)
        return self.exit(a + b)


class Indexed(nn.Module):
    """Channels picked by an index tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = conv(3, 8), conv(8, 8)
        self.order = torch.tensor([3, 1, 0, 2, 7, 5, 4, 6])

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        x = x[:, self.order]  # here
        return self.exit(x)


class Flattened(nn.Module):
    """An image through one Linear and back."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = conv(3, 8), conv(8, 8)
        self.dense = nn.Linear(8 * 8 * 12, 8 * 8 * 12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        x = x.flatten(1)  # here
        return self.exit(self.dense(x).view(-1, 8, 8, 12))
