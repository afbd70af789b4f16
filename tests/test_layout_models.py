# SPDX-License-Identifier: MIT
"""The layout checker on networks: the very line that loses the format, and nothing where it is kept."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import Tensor, nn

import opswap
from layout_models import (
    Attention,
    BroadPooling,
    Chunks,
    ConvNeXt,
    Flattened,
    Indexed,
    MeanHead,
    NonLocal,
    SqueezeExcite,
    UNet,
    Volume,
    Windows,
    conv,
    in_channels_last,
    line_of,
    only,
    step,
)
from opswap.models import LPRNet, ShuffleNetV2, lprnet, shufflenetv2
from opswap.swap.rules import DEFAULT
from step import assert_equal, outputs_and_gradients

_SIZE = (2, 3, 8, 12)


def shufflenet() -> tuple[ShuffleNetV2, Tensor]:
    return in_channels_last(ShuffleNetV2((2, 2, 2), (24, 48, 96, 192, 64), 10), 2, 3, 64, 64)


def _shuffle_line(text: str) -> int:
    lines, first = inspect.getsourcelines(shufflenetv2._interleave)
    return next(first + i for i, line in enumerate(lines) if text in line)


def test_stock_shufflenet_loses_it_in_the_very_line_of_the_copy() -> None:
    model, x = shufflenet()
    with opswap.layout.check(model) as report:
        step(model, x)
    forward = [s for s in report.findings if s.phase == "forward"]
    assert {(s.status, s.op, s.line) for s in forward} == {
        ("lost", "aten.clone", _shuffle_line("transpose(1, 2).contiguous()"))
    }
    assert all(s.file == shufflenetv2.__file__ and s.function == "_interleave" for s in forward)
    assert forward[0].module == "stage2.0" and forward[0].shapes == ((2, 48, 8, 8),)
    assert forward[0].bytes == 2 * 4 * 2 * 48 * 8 * 8
    assert "opswap.functional.channel_shuffle(x, 2)" in forward[0].hint
    backward = [s for s in report.findings if s.phase == "backward"]
    assert {s.line for s in backward} == {_shuffle_line("x.view(n, groups")}
    assert all("opswap.functional.channel_shuffle(x, 2)" in s.hint for s in backward)
    assert backward[0].module.startswith("stage")


def test_the_first_of_a_chain_is_charged_with_what_follows() -> None:
    model, x = shufflenet()
    with opswap.layout.check(model) as report, torch.no_grad():
        model(x)
    sites = {s.module: s for s in report.findings}
    first = sites["stage2.0"]
    # Its victims: the second block's cat and shuffle, and the convolutions that bring the format back.
    assert "stage2.1" not in sites and first.downstream_count >= 4
    assert first.downstream_bytes > first.bytes and first.downstream_seconds > 0
    assert first.cost == first.bytes + first.downstream_bytes
    assert [s.cost for s in report.sites] == sorted((s.cost for s in report.sites), reverse=True)
    assert report.summary["contiguous_bytes"] > 0


@pytest.mark.parametrize("exact", [False, True])
def test_swapped_shufflenet_loses_nothing_with_the_same_kernels_and_bits(exact: bool) -> None:
    model, x = shufflenet()
    # Not registered operators are convolutions alone, which run torch's code under any dispatch mode, and a pool behind
    # a BatchNorm (of a folded convolution too), which runs as two operators there and adds its sums in another order.
    apart = ("_conv", "_max_pool", "_folded")
    rules = None if exact else [r for r in DEFAULT if not r.name.endswith(apart)]
    opswap.swap(model, exact=exact, rules=rules)
    watched = copy.deepcopy(model)
    opswap.reset_stats()
    expected = outputs_and_gradients(model, x)
    kernels = opswap.stats()
    opswap.reset_stats()
    with opswap.layout.check(watched) as report:
        got = outputs_and_gradients(watched, x)
    assert opswap.stats() == kernels
    assert_equal(got, expected)
    assert not report.findings, str(report)
    assert any(s.op.startswith("opswap.") for s in report.sites)


def test_swapped_shufflenet_learns_without_a_loss() -> None:
    model, x = shufflenet()
    opswap.swap(model)
    with opswap.layout.check(model, mode="raise") as report:
        nn.functional.cross_entropy(model(x), torch.tensor([1, 2])).backward()
    sources = {(s.file, s.function.split(".")[-1]) for s in report.sites}
    assert sources == {(shufflenetv2.__file__, "forward")}, "a generated forward is shown as the original's"


def test_swap_hint_is_true_for_every_finding_of_the_stock_model() -> None:
    model, x = shufflenet()
    with opswap.layout.check(model) as report:
        step(model, x)
    assert report.findings
    opswap.swap(model)
    with opswap.layout.check(model) as report:
        step(model, x)
    assert not report.findings, str(report)


def test_lprnet_is_refused_at_its_pool() -> None:
    model, x = in_channels_last(lprnet(10), 2, 3, 24, 94)
    with opswap.layout.check(model) as report, pytest.raises(RuntimeError, match="memory format"):
        model(x)
    site = only(report, "refused")
    assert site.op == "aten.max_pool3d_with_indices" and site.module == "backbone.3"
    assert site.function.endswith("LPRNet.forward") or site.function == "forward"
    assert inspect.getsourcelines(LPRNet.forward)[1] <= site.line
    assert "rule max_pool3d" in site.hint and "memory format" in site.hint


def test_swapped_lprnet_keeps_it() -> None:
    model, x = in_channels_last(lprnet(10), 2, 3, 24, 94)
    opswap.swap(model)
    with opswap.layout.check(model) as report:
        step(model, x)
    assert not [s for s in report.findings if s.phase == "forward"], str(report)


@pytest.mark.parametrize(
    "make",
    [UNet, lambda: Attention(copies=False), ConvNeXt, Windows, Chunks, SqueezeExcite],
    ids=["unet", "attention", "convnext", "windows", "chunks", "squeeze-excite"],
)
def test_nothing_is_found_where_nothing_is_lost(make: type[nn.Module]) -> None:
    model, x = in_channels_last(make(), *_SIZE)
    with opswap.layout.check(model) as report:
        y = step(model, x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not report.findings, str(report)
    assert "kept throughout" in str(report)


@pytest.mark.parametrize(
    ("make", "op", "hint"),
    [
        (lambda: Attention(copies=True), "aten.clone", "unflatten"),
        (NonLocal, "aten.clone", "unflatten"),
        (Indexed, "aten.index", "channel_permutation"),
        (Flattened, "aten.clone", "reshape copies"),
    ],
    ids=["attention", "non-local", "index", "flatten"],
)
def test_the_line_that_loses_it(make: type[nn.Module], op: str, hint: str) -> None:
    model, x = in_channels_last(make(), *_SIZE)
    with opswap.layout.check(model) as report:
        step(model, x)
    site = only(report, "lost")
    assert (site.op, site.line) == (op, line_of(type(model)))
    assert site.file == __file__.replace("test_layout_models", "layout_models")
    assert hint in site.hint
    assert f"layout_models.py:{site.line}" in str(report)


def test_a_pixel_spread_over_an_image() -> None:
    model, x = in_channels_last(BroadPooling(), *_SIZE)
    with opswap.layout.check(model) as report, torch.no_grad():
        model(x)
    lost = only(report, "lost")
    assert lost.line == line_of(BroadPooling) and "one pixel" in lost.hint
    (ambiguous,) = [s for s in report.sites if s.status == "ambiguous"]
    assert ambiguous.op == "aten.amax" and ambiguous.cost == 0


def test_the_backward_of_a_mean_is_contiguous() -> None:
    model, x = in_channels_last(MeanHead(), *_SIZE)
    with opswap.layout.check(model) as report:
        step(model, x)
    assert not [s for s in report.findings if s.phase == "forward"]
    lost = only(report, "lost", "backward")
    assert (lost.op, lost.line) == ("aten.div", line_of(MeanHead))
    assert "opswap.functional.avg_pool2d(x, x.shape[2:]) in its place" in lost.hint
    assert lost.downstream_count >= 1


def test_the_hint_on_a_mean_is_true() -> None:
    model, x = in_channels_last(MeanHead(), *_SIZE)
    wanted = outputs_and_gradients(model, x)

    def forward(x: Tensor) -> Tensor:
        x = nn.functional.silu(model.entry(x))
        return opswap.functional.avg_pool2d(x, x.shape[2:])

    model.forward = forward
    with opswap.layout.check(model) as report:
        got = outputs_and_gradients(model, x)
    assert not report.findings, str(report)
    torch.testing.assert_close(got, wanted)


def test_volumes() -> None:
    model, x = in_channels_last(Volume(), 2, 3, 4, 6, 8)
    with opswap.layout.check(model) as report:
        step(model, x)
    for phase, op in (("forward", "aten.avg_pool3d"), ("backward", "aten.avg_pool3d_backward")):
        site = only(report, "lost", phase)
        assert (site.op, site.line) == (op, line_of(Volume))
        assert "rule avg_pool3d" in site.hint
    restored = [s for s in report.sites if s.status == "restored"]
    assert {s.module for s in restored} == {"exit"}


class BoxHead(nn.Module):
    """Pooled features to boxes (N, K, 4), whose coordinates are stacked to (N, K, 2, 2) and back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = conv(3, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        deltas = self.fc(self.conv(x).mean((2, 3)))
        x1, y1 = deltas[:, 0::4], deltas[:, 1::4]
        boxes = torch.stack((x1, y1, x1 + 1, y1 + 1), dim=2)
        return torch.stack((boxes[..., 0::2], boxes[..., 1::2]), dim=3).reshape(boxes.shape)


def test_coordinates_of_boxes_are_no_image() -> None:
    model, x = in_channels_last(BoxHead(), *_SIZE)
    with opswap.layout.check(model) as report, torch.no_grad():
        model(x)
    assert not report.findings, report


class InPlace(nn.Module):
    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.conv, self.other, self.in_place = conv(3, 8), conv(3, 8), in_place

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = torch.cat([y, y], 1)[:, :8]
        if self.in_place:
            y += self.other(x)  # here
            return y
        return y + self.other(x)


def test_the_hint_on_a_slice_written_in_place_is_true() -> None:
    model, x = in_channels_last(InPlace(in_place=True), *_SIZE)
    with opswap.layout.check(model) as report:
        step(model, x)
    site = only(report, "needless", "backward")
    assert site.line == line_of(InPlace) and "x = x + y" in site.hint
    model, x = in_channels_last(InPlace(in_place=False), *_SIZE)
    with opswap.layout.check(model) as report:
        step(model, x)
    assert not [s for s in report.findings if s.status == "needless"], report


class Standardized(nn.Module):
    """A weight that is normalised in every step, as in BiT and NFNet."""

    def __init__(self, *, converts: bool) -> None:
        super().__init__()
        self.conv, self.converts = conv(3, 8), converts

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight
        weight = nn.functional.layer_norm(weight.reshape(8, -1), (27,)).reshape_as(weight)
        if self.converts:
            weight = weight.contiguous(memory_format=torch.channels_last)
        return nn.functional.conv2d(x, weight)


@pytest.mark.parametrize("converts", [True, False])
def test_the_gradient_of_a_computed_weight_is_no_image(converts: bool) -> None:
    model, x = in_channels_last(Standardized(converts=converts), *_SIZE)
    with opswap.layout.check(model) as report:
        step(model, x)
    assert {s.status for s in report.findings} == (set() if converts else {"copied inside"}), report


class OwnWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.conv.weight * 2).contiguous()
        return nn.functional.conv2d(x, weight)


def test_a_weight_that_the_forward_computes_is_not_said_to_be_the_model_s() -> None:
    model, x = in_channels_last(OwnWeight(), *_SIZE)
    with opswap.layout.check(model) as report, torch.no_grad():
        model(x)
    assert "weight.contiguous(memory_format=torch.channels_last)" in only(report, "copied inside").hint


class Tokens(nn.Module):
    """As Segformer's stages: tokens (N, H * W, C) to an image, which a needless copy makes contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = conv(3, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        n, _, h, w = x.shape
        x = self.norm(x.flatten(2).transpose(1, 2))
        return x.reshape(n, h, w, -1).permute(0, 3, 1, 2).contiguous()  # here


def test_the_hint_on_a_copy_behind_a_reshape_names_the_copy() -> None:
    model, x = in_channels_last(Tokens(), *_SIZE)
    with opswap.layout.check(model) as report, torch.no_grad():
        model(x)
    site = only(report, "lost")
    assert site.line == line_of(Tokens) and site.hint.startswith("drop .contiguous()")
