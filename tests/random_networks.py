# SPDX-License-Identifier: MIT
"""Networks drawn at random: convolutions, norms, activations, pools, shuffles and branches, in many spellings."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["random_images", "random_network"]

# Hardsigmoid is left out: torch multiplies its gradient of float64 by a sixth that was rounded to float32.
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    lambda: nn.ReLU(inplace=True),
    nn.ReLU6,
    nn.Hardswish,
    nn.SiLU,
    lambda: nn.SiLU(inplace=True),
    nn.GELU,
    lambda: nn.LeakyReLU(0.1, inplace=True),
    nn.ELU,
    nn.Mish,
    nn.Sigmoid,
    nn.Softplus,
    lambda: nn.Hardtanh(-0.5, 2.0),
    nn.PReLU,
    nn.Identity,
)

# Of images, which keep their size.
FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu,
    F.hardswish,
    F.elu,
    F.softplus,
    F.mish,
    F.instance_norm,
    lambda x: x.clamp(0, 6),
    lambda x: x.clamp_min(0),
    lambda x: x * torch.sigmoid(x),
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: torch.relu_(x.clone()),
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: torch.where(x > 0, x, x * 0.1),
    lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1),
    lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    lambda x: F.max_pool3d(x.contiguous(), (1, 3, 3), (1, 1, 1), (0, 1, 1)),
    lambda x: x + F.adaptive_max_pool2d(x, 1),
    lambda x: x * x.amax((2, 3), keepdim=True),
    lambda x: F.group_norm(x, 1),
    lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],)).permute(0, 3, 1, 2),
    lambda x: F.batch_norm(x, None, None, training=True),
)

SHUFFLES: tuple[Callable[[Tensor, int], Tensor], ...] = (
    lambda x, g: x.reshape(len(x), g, -1, *x.shape[2:]).transpose(1, 2).contiguous().reshape(x.shape),
    lambda x, g: x.reshape(len(x), g, -1, *x.shape[2:]).permute(0, 2, 1, 3, 4).reshape(x.shape),
    lambda x, g: F.channel_shuffle(x, g),
    lambda x, g: x.unflatten(1, (g, -1)).transpose(1, 2).flatten(1, 2),
    lambda x, g: torch.stack(x.chunk(g, 1), 2).flatten(1, 2),
)

HALVES: tuple[Callable[[Tensor, int], tuple[Tensor, ...]], ...] = (
    lambda x, c: x.chunk(2, 1),
    lambda x, c: x.split(c, 1),
    lambda x, c: (x[:, :c], x[:, c:]),
    lambda x, c: torch.tensor_split(x, 2, 1),
)

REDUCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.mean((2, 3)),
    lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    lambda x: F.adaptive_max_pool2d(x, 1)[:, :, 0, 0],
    lambda x: x.amax((2, 3)),
)


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Shuffle(nn.Module):
    def __init__(self, shuffle: Callable[[Tensor, int], Tensor], groups: int) -> None:
        super().__init__()
        self.shuffle, self.groups = shuffle, groups

    def forward(self, x: Tensor) -> Tensor:
        return self.shuffle(x, self.groups)


class Split(nn.Module):
    """ShuffleNetV2's block: one half as it is, the other one through a branch."""

    def __init__(
        self, halves: Callable[[Tensor, int], tuple[Tensor, ...]], branch: nn.Module, shuffle: nn.Module
    ) -> None:
        super().__init__()
        self.halves, self.branch, self.shuffle = halves, branch, shuffle

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = self.halves(x, x.shape[1] // 2)
        return self.shuffle(torch.cat((kept, self.branch(changed)), 1))


class Residual(nn.Module):
    def __init__(self, branch: nn.Module, activated: bool) -> None:
        super().__init__()
        self.branch, self.activated = branch, activated

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x) + x
        return F.relu(y) if self.activated else y


class Gate(nn.Module):
    """Squeeze and excite."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        few = max(1, channels // 4)
        self.squeeze, self.excite = nn.Conv2d(channels, few, 1), nn.Conv2d(few, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))


class Heads(nn.Module):
    """One Linear, or several side by side."""

    def __init__(self, channels: int, reduction: Callable[[Tensor], Tensor], count: int) -> None:
        super().__init__()
        self.reduction = reduction
        self.heads = nn.ModuleList(nn.Linear(channels, 3) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        x = self.reduction(x)
        return torch.cat([head(x) for head in self.heads], 1)


class _Draw:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def convolution(self, c: int) -> nn.Module:
        pick = self.random.choice
        kernel, dilation = pick((1, 1, 3, 3, 5, (1, 3), (3, 1))), pick((1, 1, 1, 2))
        groups = pick((1, 1, c, 2 if c % 2 == 0 else 1))
        mode = pick(("zeros", "zeros", "zeros", "circular"))
        bias = pick((True, False))
        return nn.Conv2d(c, c, kernel, 1, "same", dilation, groups, bias, mode)

    def norm(self, c: int) -> nn.Module:
        pick = self.random.choice
        kind = pick(("batch", "batch", "batch", "group", "instance"))
        if kind == "group":
            return nn.GroupNorm(pick((1, 2 if c % 2 == 0 else 1)), c, affine=pick((True, False)))
        options = {"affine": pick((True, False)), "track_running_stats": pick((True, False))}
        if kind == "instance":
            return nn.InstanceNorm2d(c, **options)
        return nn.BatchNorm2d(c, pick((1e-5, 1e-3)), pick((0.1, 0.01, None)), **options)

    def activation(self) -> nn.Module:
        return self.random.choice(ACTIVATIONS)()

    def pool(self) -> nn.Module:
        pick = self.random.choice
        kernel, stride, padding = pick((2, 3, (2, 3))), pick((1, 2)), pick((0, 1))
        return pick(
            (
                nn.MaxPool2d(kernel, stride, padding, ceil_mode=pick((True, False))),
                nn.AvgPool2d(
                    kernel, stride, padding, pick((True, False)), pick((True, False)), pick((None, 3))
                ),
                nn.AvgPool3d((1, 2, 3), (1, 1, 1)),
                nn.Upsample(scale_factor=2),
            )
        )

    def shuffle(self, c: int) -> nn.Module:
        return Shuffle(self.random.choice(SHUFFLES), 2 if c % 2 == 0 else 1)

    def part(self, c: int, depth: int = 0) -> nn.Module:
        kind = self.random.randrange(12)
        if kind < 4:
            return nn.Sequential(self.convolution(c), self.norm(c), self.activation())
        if kind == 4 and c % 2 == 0 and depth < 2:
            return Split(self.random.choice(HALVES), self.parts(c // 2, depth + 1), self.shuffle(c))
        if kind == 5 and depth < 2:
            return Residual(self.parts(c, depth + 1), self.random.random() < 0.5)
        if kind == 6:
            return Gate(c)
        if kind in (7, 8):
            return Function(self.random.choice(FUNCTIONS))
        if kind == 9:
            return self.shuffle(c)
        if kind == 10:
            return nn.Sequential(
                self.convolution(c), self.norm(c), self.activation(), self.convolution(c), self.norm(c)
            )
        return nn.Sequential(self.norm(c), self.activation())

    def parts(self, c: int, depth: int) -> nn.Module:
        return nn.Sequential(*(self.part(c, depth) for _ in range(self.random.choice((1, 2)))))


def random_network(seed: int) -> nn.Module:
    """A network for images (N, 3, H, W) of at least 7 x 8 pixels, without random numbers of its own, in float64.

    Biases of norms are not zero: a channel that is constant then lies beside the kinks of activations.
    """
    draw = _Draw(seed)
    c = draw.random.choice((4, 6, 8, 12, 5))
    parts: list[nn.Module] = [nn.Conv2d(3, c, 3, draw.random.choice((1, 2)), 1)]
    for _ in range(draw.random.randrange(2, 7)):
        parts.append(draw.part(c))
        if draw.random.random() < 0.2:
            parts.append(draw.pool())
    parts.append(Heads(c, draw.random.choice(REDUCTIONS), draw.random.choice((1, 4))))
    model = nn.Sequential(*parts).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(
                torch.randn(p.shape, generator=generator, dtype=torch.float64) / max(p[0].numel(), 4) ** 0.5
            )
    if draw.random.random() < 0.2:
        for p in list(model.parameters())[:-1]:
            p.requires_grad_(draw.random.random() < 0.5)
    return model


def random_images(seed: int) -> Tensor:
    """(N, 3, H, W) of few small images."""
    random = Random(seed)
    sizes = random.choice((1, 2, 3)), 3, random.choice((7, 8, 12)), random.choice((8, 9, 12))
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
