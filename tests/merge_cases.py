# SPDX-License-Identifier: MIT
"""Branches as people write them, and the loop over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from opswap import merge
from opswap.merge.build import build
from opswap.merge.plan import Plan
from opswap.merge.trace import trace
from opswap.models.multi_branch import Bottleneck, GlobalMaxPool, SelfAttention

# Of the largest value: sums are taken in another order.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}


class BasicBlock(nn.Module):
    """torchvision's, with its in-place addition and its optional downsampling."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample = None
        if stride != 1 or channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ShuffleBlock(nn.Module):
    """ShuffleNetV2's block of stride 1 with the shuffle of the original code."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch2 = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False),
            nn.BatchNorm2d(half),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, x = x.chunk(2, dim=1)
        out = torch.cat((kept, self.branch2(x)), dim=1)
        n, channels, height, width = out.size()
        out = out.view(n, 2, channels // 2, height, width)
        out = torch.transpose(out, 1, 2).contiguous()
        return out.view(n, -1, height, width)


class SqueezeExcite(nn.Module):
    """With Linears and views, as Hu et al. 2018 is usually written."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // 2),
            nn.ReLU(inplace=True),
            nn.Linear(channels // 2, channels),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = self.fc(self.pool(x).view(b, c)).view(b, c, 1, 1)
        return x * y.expand_as(x)


class LayerScale(nn.Module):
    """Parameters used by themselves, of one channel each, of one value, and as a weight."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(channels, 1, 1))
        self.beta = nn.Parameter(torch.randn(()))
        self.mix = nn.Parameter(torch.randn(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.gamma + self.beta
        return torch.einsum("oc,bchw->bohw", self.mix, x)


class Transformer(nn.Module):
    """A block of a pre-norm transformer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.attention = nn.MultiheadAttention(channels, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(channels, 12), nn.GELU(), nn.Linear(12, channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y, _ = self.attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.mlp(self.norm(x))


class TwoOutputs(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.conv(x)
        return {"map": y, "mean": y.mean((2, 3))}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 1)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.conv(x) + skip


class FunctionalNet(nn.Module):
    """Functions and methods in place of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.fc = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.conv(x))
        x = nn.functional.max_pool2d(x, 2)
        x = nn.functional.adaptive_avg_pool2d(x, 2)
        x = torch.flatten(x, 1)
        return nn.functional.normalize(torch.sigmoid(self.fc(x)) / x.size(1))


def conv_bn_relu(channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def norms() -> nn.Sequential:
    return nn.Sequential(
        nn.GroupNorm(2, 8),
        nn.Conv2d(8, 8, 3, groups=4, padding=1, padding_mode="reflect"),
        nn.PReLU(8),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.PReLU(),
        nn.ConvTranspose2d(8, 6, 2, 2, groups=2),
        nn.Flatten(),
        nn.Linear(6 * 14 * 14, 3),
    )


def head(i: int) -> nn.Sequential:
    return nn.Sequential(*conv_bn_relu(8, 6), GlobalMaxPool(), nn.Dropout(0.5), nn.Linear(6, i + 2))


# Name, how to make branch i, sizes of its input behind the batch.
CASES: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "conv": (lambda i: nn.Conv2d(4, 6, 3), (4, 7, 8)),
    "conv1d": (lambda i: nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.MaxPool1d(2)), (4, 12)),
    "conv3d": (lambda i: nn.Sequential(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), nn.AvgPool3d(2)), (2, 5, 6, 7)),
    "depthwise": (lambda i: nn.Conv2d(4, 8, 3, groups=4), (4, 7, 8)),
    "conv_bn_relu": (lambda i: conv_bn_relu(4, 6), (4, 7, 8)),
    "norm_first": (lambda i: nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(True), nn.Conv2d(4, 6, 3)), (4, 7, 8)),
    "linear": (lambda i: nn.Linear(6, 5), (6,)),
    "linear_tokens": (lambda i: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 4), nn.GELU()), (5, 6)),
    "ragged": (lambda i: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, i + 1), nn.Sigmoid()), (6,)),
    "basic": (lambda i: BasicBlock(6, 6, 1), (6, 7, 8)),
    "basic_down": (lambda i: BasicBlock(6, 8, 2), (6, 7, 8)),
    "bottleneck": (lambda i: Bottleneck(8, 4), (8, 7, 7)),
    "shuffle": (lambda i: ShuffleBlock(8), (8, 6, 7)),
    "squeeze_excite": (lambda i: SqueezeExcite(8), (8, 6, 7)),
    "attention": (lambda i: nn.Sequential(nn.Conv2d(8, 8, 1), SelfAttention(8, 4)), (8, 5, 6)),
    "attention_shared": (lambda i: SelfAttention(8, 4), (8, 5, 6)),
    "parameters": (lambda i: nn.Sequential(nn.Conv2d(4, 6, 1), LayerScale(6)), (4, 5, 6)),
    "norms": (lambda i: norms(), (8, 7, 7)),
    "functional": (lambda i: FunctionalNet(), (4, 8, 9)),
    "transformer": (lambda i: Transformer(8), (5, 8)),
    "two_outputs": (lambda i: TwoOutputs(3), (3, 6, 6)),
    "head": (head, (8, 6, 7)),
}


def make(name: str, number: int) -> list[nn.Module]:
    """Branches of a case, with random values."""
    return with_random_values([CASES[name][0](i) for i in range(number)])


def with_random_values(modules: list[nn.Module]) -> list[nn.Module]:
    """The same modules with random values in every tensor, so that no layer starts as a zero or an identity."""
    with torch.no_grad():
        for m in modules:
            for p in m.parameters():
                p.add_(torch.randn_like(p) * 0.3)
            for b in m.buffers():
                if b.is_floating_point():
                    b.copy_(torch.rand_like(b) + 0.5)
                else:
                    b.fill_(3)
    return modules


def without_dropout(module: nn.Module) -> nn.Module:
    for m in module.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    return module


def example(name: str, batch: int = 3) -> Tensor:
    return torch.randn(batch, *CASES[name][1])


def take_loop(merged: merge.MergedBranches, input_of: Callable[[int], Tensor], stacked: bool = True) -> None:
    """Let everything run one branch after another; input_of: an input for a batch size."""
    modules = merged.split_back()
    dtype = next(merged.parameters()).dtype
    traced = trace(modules, [(input_of(batch).to(dtype),) for batch in (2, 3)])
    everything = frozenset(n.name for n in traced.graph.nodes if n.op.startswith("call"))
    program = build(traced, merged, (True,), len(modules), Plan(everything, follow=True), stacked)
    merged._merge.programs = {mode: [(0, program)] for mode in merged._merge.programs}


def loop(modules: Sequence[nn.Module], inputs: Sequence[Tensor]) -> list[Tensor]:
    return [m(x) for m, x in zip(modules, inputs, strict=True)]


def together(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(parts, 1) if len({p.shape for p in parts}) == 1 else torch.cat(parts, -1)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    scale = max(expected.abs().max().item(), 1.0)
    assert (actual - expected).abs().max().item() <= TOLERANCE[actual.dtype] * scale


def check_step(
    merged: merge.MergedBranches, modules: Sequence[nn.Module], xs: Sequence[Tensor], shared: bool
) -> None:
    """Outputs, input gradients, parameter gradients and buffers of one call of each, all made float64 first."""
    for module in (merged, *modules):
        module.double()
    xs = [x.double() for x in xs]
    theirs = [x.clone().requires_grad_() for x in xs]
    # Copies, for the first layer may work in place.
    outputs = loop(modules, [x.clone() for x in (theirs * len(modules) if shared else theirs)])
    expected = [together(parts) for parts in zip(*map(tree_leaves, outputs), strict=True)]
    ours = [x.clone().requires_grad_() for x in xs]
    copies = [x.clone(memory_format=torch.preserve_format) for x in ours]
    actual = tree_leaves(merged(copies[0] if shared else copies))
    for a, b in zip(actual, expected, strict=True):
        assert_near(a.detach(), b.detach())
    for group in (actual, expected):
        sum((y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum() for y in group).backward()
    for a, b in zip(ours, theirs, strict=True):
        assert_near(a.grad, b.grad)
    for mine, own in zip(merged.split_back(), modules, strict=True):
        for (name, p), q in zip(mine.named_parameters(), own.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None, name
            assert_near(p.grad, q.grad)
        for a, b in zip(mine.buffers(), own.buffers(), strict=True):
            assert_near(a, b) if a.is_floating_point() else torch.testing.assert_close(a, b)
