# SPDX-License-Identifier: MIT
"""What training code does to a model by the types and sizes of its layers, done to a merged module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from merge_cases import assert_near, make, take_loop, with_random_values
from opswap import merge

pytestmark = pytest.mark.usefixtures("one_thread")

N = 3


class Block(nn.Module):
    """Every kind of norm, parameters of their own, attention and a slope per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.prelu = nn.PReLU(6)
        self.gn = nn.GroupNorm(2, 6)
        self.inn = nn.InstanceNorm2d(6, affine=True)
        self.ln = nn.LayerNorm(6)
        self.gamma = nn.Parameter(torch.rand(6))
        self.temperature = nn.Parameter(torch.rand(()))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inn(self.gn(self.prelu(self.bn(self.conv(x)))))
        x = self.ln(x.flatten(2).transpose(1, 2)) * self.gamma
        x = x + self.attention(x, x, x, need_weights=False)[0] * self.temperature
        return self.fc(x.mean(1))


def randomised(modules: list[nn.Module]) -> list[nn.Module]:
    return [m.double() for m in with_random_values(modules)]


@pytest.fixture
def blocks(seed: int) -> list[nn.Module]:
    return randomised([Block() for _ in range(N)])


@pytest.fixture
def nets(seed: int) -> list[nn.Module]:
    """With a BatchNorm that reads the shared input, and one behind a convolution."""
    layers: Callable[[], nn.Module] = lambda: nn.Sequential(  # noqa: E731
        nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()
    )
    return randomised([layers() for _ in range(N)])


def image(batch: int = 4) -> Tensor:
    return torch.randn(batch, 4, 7, 6, dtype=torch.float64)


def check(merged: merge.MergedBranches, modules: list[nn.Module]) -> None:
    """One step of both, on the same input."""
    x = image()
    for m in (merged, *modules):
        m.zero_grad()
    expected, actual = torch.stack([m(x) for m in modules], 1), merged(x)
    assert_near(actual.detach(), expected.detach())
    for y in (actual, expected):
        if y.requires_grad:
            (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    for own, m in zip(merged.split_back(), modules, strict=True):
        for (name, p), q in zip(own.named_parameters(), m.parameters(), strict=True):
            assert p.requires_grad == q.requires_grad and (p.grad is None) == (q.grad is None), name
            if p.grad is not None:
                assert_near(p.grad, q.grad)
        for a, b in zip(own.buffers(), m.buffers(), strict=True):
            torch.testing.assert_close(a, b)


def freeze_by_class(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.eval()
            m.weight.requires_grad = False
            m.bias.requires_grad = False


def freeze_by_base(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, _BatchNorm):
            m.eval()
            for p in m.parameters():
                p.requires_grad_(False)


def freeze_by_name(model: nn.Module) -> None:
    def fix(m: nn.Module) -> None:
        if type(m).__name__.find("BatchNorm") != -1:
            m.eval()

    model.apply(fix)


def freeze_every_norm(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)):
            m.eval().requires_grad_(False)


def set_momentum(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum, m.eps = 0.01, 1e-3


def reset_statistics(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, _BatchNorm):
            m.reset_running_stats()


def reset_parameters(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, (_BatchNorm, nn.GroupNorm, nn.LayerNorm)):
            m.reset_parameters()


def initialise(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.constant_(m.weight, 1.5)
            nn.init.constant_(m.bias, 0.1)


def stop_tracking(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.track_running_stats = False


def cumulative(model: nn.Module) -> None:
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = None


IDIOMS = [
    freeze_by_class,
    freeze_by_base,
    freeze_by_name,
    freeze_every_norm,
    set_momentum,
    reset_statistics,
    reset_parameters,
    initialise,
    stop_tracking,
    cumulative,
]


@pytest.mark.parametrize("looped", [False, True], ids=["merged", "loop"])
@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms(
    idiom: Callable[[nn.Module], None], looped: bool, blocks: list[nn.Module], nets: list[nn.Module]
) -> None:
    for modules in (blocks, nets):
        merged = merge.branches(modules)
        if looped:
            take_loop(merged, image)
        for m in (merged, *modules):
            idiom(m.train())
        for _ in range(2):
            check(merged, modules)
        for m in (merged, *modules):
            m.eval()
        check(merged, modules)


def test_statistics_of_averaged_weights(nets: list[nn.Module]) -> None:
    """torch's update_bn takes BatchNorms by isinstance, resets them and averages over the batches."""
    merged = merge.branches(nets)
    batches = [image() for _ in range(3)]
    for m in (merged, *nets):
        torch.optim.swa_utils.update_bn(batches, m.train())
    for own, m in zip(merged.split_back(), nets, strict=True):
        for a, b in zip(own.buffers(), m.buffers(), strict=True):
            torch.testing.assert_close(a, b)
    assert merged.get_submodule("2").momentum == 0.1


def test_cumulative_averages_over_different_numbers_of_batches(nets: list[nn.Module]) -> None:
    nets[1][2].num_batches_tracked.fill_(7)
    merged = merge.branches(nets)
    cumulative(merged)
    with pytest.raises(ValueError, match=r"different numbers of batches: \[4, 8, 4\]"):
        merged(image())


def by_dimensions(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if p.ndim <= 1]


def by_name(model: nn.Module) -> list[nn.Parameter]:
    """timm's."""
    return [p for name, p in model.named_parameters() if p.ndim <= 1 or name.endswith(".bias")]


def by_class(model: nn.Module) -> list[nn.Parameter]:
    """YOLOv5's."""
    norms = tuple(v for k, v in nn.__dict__.items() if "Norm" in k)
    found = []
    for m in model.modules():
        for name, p in m.named_parameters(recurse=False):
            if name == "bias" or (name == "weight" and isinstance(m, norms)):
                found.append(p)
    return found


def by_blacklist(model: nn.Module) -> list[nn.Parameter]:
    """detectron2's, whose list is of classes."""
    kinds = (
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm),
        *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.LayerNorm, nn.LocalResponseNorm),
    )
    return [p for m in model.modules() if isinstance(m, kinds) for p in m.parameters(recurse=False)]


def by_exclusion(model: nn.Module) -> list[nn.Parameter]:
    """What is neither the weight of a product nor of a norm."""
    norms = {id(p) for p in by_blacklist(model)}
    return [p for p in model.parameters() if p.ndim < 2 and id(p) not in norms]


@pytest.mark.parametrize("grouping", [by_dimensions, by_name, by_class, by_blacklist, by_exclusion])
def test_weight_decay_groups(
    grouping: Callable[[nn.Module], list[nn.Parameter]], blocks: list[nn.Module]
) -> None:
    """The merged module's parameters are in the group that those of a branch are in."""
    merged = merge.branches(blocks)
    names = {id(p): name for name, p in merged.named_parameters()}
    first = {id(p): name for name, p in blocks[0].named_parameters()}
    assert {names[id(p)] for p in grouping(merged)} == {first[id(p)] for p in grouping(blocks[0])}


def test_sizes_that_torchs_layers_tell(blocks: list[nn.Module]) -> None:
    merged = merge.branches(blocks)
    for name in ("bn", "inn"):
        assert merged.get_submodule(name).num_features == N * 6
        assert merged.get_submodule(name).weight.shape == (N * 6,)
    group_norm = merged.get_submodule("gn")
    assert (group_norm.num_groups, group_norm.num_channels) == (N * 2, N * 6)
    assert merged.gamma.shape == (N * 6,) and merged.temperature.shape == (N,)
    assert merged.get_submodule("attention.out_proj").bias.shape == (N * 6,)
    assert not isinstance(merged.get_submodule("conv"), nn.Conv2d)
    assert not isinstance(merged.get_submodule("fc"), nn.Linear)
    loaded = merge.branches([Block().double() for _ in range(N)])
    loaded.load_state_dict(merged.state_dict())
    x = image()
    assert torch.equal(loaded.eval()(x), merged.eval()(x))


class FrozenBatchNorm2d(nn.Module):
    """detectron2's and torchvision's: only buffers."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.eps = norm.eps
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        bias = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)

    @classmethod
    def convert(cls, module: nn.Module) -> nn.Module:
        if isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm)):
            return cls(module)
        for name, child in module.named_children():
            module.add_module(name, cls.convert(child))
        return module


class LocalSync(nn.BatchNorm2d):
    """Stands for torch's SyncBatchNorm, which runs on GPUs alone: of another class, with one count for all."""

    @classmethod
    def convert(cls, module: nn.Module) -> nn.Module:
        if isinstance(module, _BatchNorm):
            found = cls(module.num_features, module.eps, module.momentum).double().train(module.training)
            for name in ("weight", "bias", "running_mean", "running_var"):
                setattr(found, name, getattr(module, name))
            return found
        for name, child in module.named_children():
            module.add_module(name, cls.convert(child))
        return module


@pytest.mark.parametrize("looped", [False, True], ids=["merged", "loop"])
@pytest.mark.parametrize("convert", [FrozenBatchNorm2d.convert, LocalSync.convert])
def test_batch_norms_that_others_replace(
    convert: Callable[[nn.Module], nn.Module], looped: bool, nets: list[nn.Module]
) -> None:
    merged = merge.branches(nets)
    if looped:
        take_loop(merged, image)
    merged = convert(merged)
    modules = [convert(m) for m in nets]
    assert not any(type(m).__name__ == "BranchBatchNorm2d" for m in merged.modules())
    for training in (True, True, False):
        for m in (merged, *modules):
            m.train(training).zero_grad()
        x = image()
        expected, actual = torch.stack([m(x) for m in modules], 1), merged(x)
        assert_near(actual.detach(), expected.detach())
        for y in (actual, expected):
            y.square().sum().backward()
        for name, buffer in merged.named_buffers():
            parts = [dict(m.named_buffers())[name] for m in modules]
            whole = torch.cat(parts) if buffer.dim() else parts[0]
            torch.testing.assert_close(buffer, whole)
        for name, p in merged.named_parameters():
            grads = [dict(m.named_parameters())[name].grad for m in modules]
            assert_near(p.grad, torch.cat(grads))
    with pytest.raises(ValueError, match=r"0 was a BatchNorm2d in each branch and now is a"):
        merged.measure(image(), seconds=0.01)
    with pytest.raises(ValueError, match=r"0 was a BatchNorm2d in each branch and now is a"):
        merged.reset_parameters()


def test_converted_statistics_come_back(nets: list[nn.Module]) -> None:
    """torch's own conversion keeps the tensors; the branches get BatchNorms of their class."""
    merged = nn.SyncBatchNorm.convert_sync_batchnorm(merge.branches(nets))
    assert type(merged.get_submodule("2")) is nn.SyncBatchNorm
    x = image()
    for a, b in zip(merged.eval().split_back(), [m.eval() for m in nets], strict=True):
        assert type(a[2]) is nn.BatchNorm2d
        for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
            assert torch.equal(p, q)
    assert_near(merged(x).detach(), torch.stack([m(x) for m in nets], 1).detach())
    frozen = FrozenBatchNorm2d.convert(merge.branches(nets))
    with pytest.raises(
        ValueError, match="FrozenBatchNorm2d has no num_batches_tracked, which BatchNorm2d has"
    ):
        frozen.split_back()


def test_layers_that_would_mix_branches_are_refused(nets: list[nn.Module]) -> None:
    merged = merge.branches(nets)
    norm: Any = merged.get_submodule("2")
    merged.add_module("2", nn.GroupNorm(3, norm.num_features).double())
    with pytest.raises(TypeError, match=r"a GroupNorm took the place of the merged layer '2'"):
        merged(image())
    merged.add_module("2", norm)
    merged.add_module("1", nn.Conv2d(4, 18, 3).double())
    with pytest.raises(TypeError, match=r"a Conv2d took the place of the merged layer '1'"):
        merged(image())


def test_the_report_names_the_layers() -> None:
    modules = make("norms", 2)
    became = {s.became for s in merge.branches(modules).merge_report().merged}
    assert {"BranchGroupNorm", "BranchInstanceNorm2d", "BranchPReLU"} <= became


def test_copies_are_layers_of_torch_too(blocks: list[nn.Module]) -> None:
    twin = copy.deepcopy(merge.branches(blocks))
    assert isinstance(twin.get_submodule("bn"), nn.BatchNorm2d)
    check(twin, blocks)


class OfMmengine(nn.Module):
    """Its `train`, and so `eval`, does not return the module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


@pytest.mark.parametrize("training", [True, False])
def test_train_that_returns_nothing(training: bool) -> None:
    branches = [OfMmengine() for _ in range(N)]
    for branch in branches:
        branch.train(training)
    merged = merge.branches(copy.deepcopy(branches), shared_input=True)
    x = torch.randn(5, 4, 3, 3)
    for ours, branch in zip(merged(x).unbind(1), branches, strict=True):
        assert_near(ours, branch(x))
