# SPDX-License-Identifier: MIT
"""Every operator that a swap leaves to torch has a reason: which, where, and what would help."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.swap.rules import DEFAULT

pytestmark = pytest.mark.usefixtures("one_thread", "seed")
LAST = torch.channels_last


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class Gate(nn.Module):
    """CBAM: a sigmoid behind a block of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.act = Block(), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.act(self.block(x))


class ReadTwice(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return self.act(y) + y


class Direct(nn.Module):
    """GhostNetV2: function and norm in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.bn(x))


class DirectTwice(Direct):
    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(x)
        return torch.sigmoid(y) + y


@pytest.mark.parametrize(
    ("model", "path", "text"),
    [
        (ReadTwice(), "act", "test_swap_reasons.py:"),
        (nn.Sequential(ReadTwice()), "0.act", "test_swap_reasons.py:"),
        (DirectTwice(), "bn", "test_swap_reasons.py:"),
    ],
)
def test_activations_apart(model: nn.Module, path: str, text: str) -> None:
    (site,) = opswap.scan(model).kept
    assert (site.rule, site.exact) == ("batch_norm_act", False) and text in site.reason
    assert site.path in (path, "") and site.source
    assert not opswap.scan(model, exact=True).kept


class Calls(nn.BatchNorm2d):
    """timm's BatchNormAct2d without an activation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training)


class Once(Gate):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.act = block, nn.ReLU()


def hooked(module: nn.Module, inner: str = "") -> nn.Module:
    module.get_submodule(inner).register_forward_hook(lambda module, args, result: result + 1)
    return module


@pytest.mark.parametrize(
    ("model", "path", "text"),
    [
        (Once(hooked(Calls(8))), "block", "block has hooks"),
        (Once(hooked(Block())), "act", "block has hooks"),
        (Once(hooked(Block(), "bn")), "act", "the normalisation at the end of block has hooks"),
        (
            Once(hooked(nn.Sequential(Calls(8)), "0")),
            "act",
            "the normalisation at the end of block has hooks",
        ),
    ],
)
def test_reasons_behind_blocks(model: nn.Module, path: str, text: str) -> None:
    found = [s for s in opswap.scan(model).kept if s.rule == "batch_norm_act"]
    assert any(text in s.reason and s.path in (path, "") for s in found), str(opswap.scan(model))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(Calls(8), nn.ReLU()),
        nn.Sequential(Block(), nn.ReLU()),
        nn.Sequential(Block(), nn.Sigmoid()),
        nn.Sequential(Gate()),
        Direct(),
        nn.Sequential(nn.BatchNorm2d(8), nn.Identity(), nn.SiLU()),
        nn.Sequential(nn.Conv2d(8, 8, 1), nn.Sigmoid()),
    ],
)
def test_what_is_joined_or_reads_no_norm_has_none(model: nn.Module) -> None:
    assert not [s for s in opswap.scan(model).kept if s.rule == "batch_norm_act"]


def why(layer: nn.Module, x: Tensor, grad: bool = True) -> str:
    model = opswap.swap(nn.Sequential(layer))
    with torch.set_grad_enabled(grad):
        (outcome,) = (o for o in opswap.explain(model, x).outcomes if not o.ran)
    return outcome.reason


class Channels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout2d(x, 0.3, self.training)


def test_dropouts() -> None:
    found = {
        s.path: s.reason
        for s in opswap.scan(
            nn.Sequential(nn.Dropout2d(), nn.AlphaDropout(), Channels(), nn.Dropout2d(0.0))
        ).kept
    }
    assert list(found) == ["0", "1", "2"]
    assert found["0"].startswith("torch is as fast: Dropout2d") and "no kernel for AlphaDropout" in found["1"]
    assert found["2"].startswith("torch is as fast: dropout2d")
    assert (
        why(nn.Dropout(), torch.randn(4, 16))
        == "torch is faster on fewer than 1024 elements: the input has 64"
    )


def test_norms() -> None:
    x = torch.randn(2, 8, 4, 4, requires_grad=True)
    for groups, fewest in ((2, 16384), (1, 131072)):
        norm = nn.GroupNorm(groups, 8).requires_grad_(False)  # else torch's backward may end the process
        text = why(norm, x.contiguous(memory_format=LAST))
        assert f"fewer than {fewest} elements: the input has 256" in text
    assert "contiguous; there torch is as fast" in why(nn.GroupNorm(2, 8), x)
    assert "fewer than 524288 elements: the input has 256" in why(nn.LayerNorm(4), x)
    assert "rows that are dense" in why(nn.LayerNorm(8), x.permute(0, 2, 3, 1))


@pytest.mark.skipif(
    opswap.isa.current() not in ("avx2", "avx512"), reason="torch's convolutions run on this tier"
)
def test_convolutions() -> None:
    x = torch.randn(2, 16, 4, 4)
    large = why(nn.Conv2d(16, 16, 3, padding=1, groups=16), torch.randn(2, 16, 128, 128))
    assert "torch is as fast on contiguous images of this size" in large
    assert "memory_format=torch.channels_last" in large
    assert "contiguous images without a stride: it is (2, 1)" in why(nn.Conv2d(16, 16, 1, (2, 1)), x)
    one = torch.randn(2, 512, 1, 1)
    assert "torch is faster on 2 pixels" in why(nn.Conv2d(512, 512, 1), one)
    last = torch.randn(2, 64, 8, 8).contiguous(memory_format=LAST)
    assert "products" in why(nn.Conv2d(64, 64, 3), last)
    assert "memory_format=torch.channels_last" in why(nn.Conv2d(64, 64, 3), last.contiguous())
    assert "none is needed" in why(nn.Conv2d(64, 64, 3), last, grad=False)
    few = nn.Conv2d(4, 4, 3, groups=4)
    assert "fewer than 8 channels" in why(few, torch.randn(2, 4, 8, 8).contiguous(memory_format=LAST))
    assert "batch of images" in why(nn.Conv2d(16, 16, 1), torch.randn(16, 4, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_few_channels_in_16_bits(dtype: torch.dtype) -> None:
    """Unless it is computed in float32 there, as on CPUs without instructions for the dtype."""
    rules = [r for r in DEFAULT if r.name == "depthwise_conv"]
    model = opswap.swap(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4)), rules=rules).to(dtype)
    x = torch.randn(2, 4, 8, 8, dtype=dtype).contiguous(memory_format=LAST)
    kept = [o.reason for o in opswap.explain(model, x).outcomes if not o.ran]
    assert all("fewer than 8 channels" in reason for reason in kept)


def test_rules_of_inference_say_so() -> None:
    model = opswap.swap(Block())
    names = {r.name for r in DEFAULT if r.inference}
    found = [o for o in opswap.explain(model, torch.randn(2, 8, 6, 6)).outcomes if o.rule in names]
    assert found and all(o.reason == "it is for evaluation: self.bn.training is True" for o in found)
