# SPDX-License-Identifier: MIT
"""The detector over steps: modules with several inputs, modules that a step makes, inference, numbers that are read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from opswap import shapes


class Pyramid(nn.Module):
    """One head on features of two sizes, and one activation on two numbers of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.relu, self.head = nn.ReLU(), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.relu(self.wide(self.relu(self.stem(x))))
        return [self.head(x), self.head(x[..., ::2, ::2])]


@pytest.mark.parametrize("named", [True, False])
def test_several_inputs_of_one_step_are_no_change(named: bool) -> None:
    net = Pyramid()
    with shapes.detect(net if named else None) as report:
        for _ in range(3):
            net(torch.randn(2, 3, 8, 8))
    assert not report.findings, report
    assert len(report.inputs["head" if named else "Pyramid.head"].shapes) == 2


def test_an_input_that_later_steps_change_is_a_finding() -> None:
    net = Pyramid()
    with shapes.detect(net) as report:
        net(torch.randn(2, 3, 8, 8))
        net.head(torch.randn(1, 8, 4, 4))
        net(torch.randn(2, 3, 8, 8))
        net.head(torch.randn(1, 8, 5, 5))
    assert [s.module for s in report.findings] == ["head"]


def test_the_hint_on_an_input_is_for_images_or_for_rows() -> None:
    with shapes.detect() as report:
        for n in (3, 4):
            nn.Identity()(torch.zeros(2, n))
            nn.ReLU()(torch.zeros(1, 3, n, 8))
    words, images = sorted(report.findings, key=lambda s: s.module)
    assert "pad it to one length" in words.hint and "pad_images" not in words.hint
    assert "pad_images" in images.hint


def test_modules_that_each_step_makes_keep_their_name() -> None:
    with shapes.detect() as report:
        for _ in range(20):
            loss = nn.CrossEntropyLoss()(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))
            nn.Sequential(nn.ReLU())(loss.reshape(1))
    assert set(report.inputs) == {"CrossEntropyLoss", "Sequential", "Sequential.0"}
    assert report.inputs["CrossEntropyLoss"].count == 20 and not report.findings
    first, second = nn.ReLU(), nn.ReLU()
    with shapes.detect() as report:
        for relu in (first, second, first):
            relu(torch.ones(2))
    assert {name: found.count for name, found in report.inputs.items()} == {"ReLU": 2, "ReLU#2": 1}


def where(x: Tensor) -> object:
    return torch.where(x > 0)


def argwhere(x: Tensor) -> object:
    return torch.argwhere(x > 0)


def first_rows(x: Tensor) -> object:
    return x[: (x[:, 0] > 0).sum().item()]


def branch(x: Tensor) -> object:
    return x if (x > 0).any() else -x


@pytest.mark.parametrize("function", [where, argwhere, first_rows, branch])
def test_inference_mode_shows_what_other_modes_show(function: Callable[[Tensor], object]) -> None:
    def found(mode: Callable[[], AbstractContextManager[object]]) -> list[tuple[object, ...]]:
        with mode(), shapes.detect() as report:
            function(torch.randn(8, 3))
        return [(s.status, s.op, s.line, s.hint) for s in report.findings]

    want = found(torch.no_grad)
    assert len(want) == 1 and found(torch.inference_mode) == want


def test_a_whole_number_that_is_read_has_its_histogram() -> None:
    def step(x: Tensor, n: int) -> Tensor:
        k = torch.tensor(n).item()
        return x[:k]

    with shapes.detect() as report:
        for n in (2, 5, 2):
            step(torch.randn(8), n)
    (site,) = report.findings
    assert site.status == "size" and site.sizes == ((2, 2), (5, 1)) and "sizes: 2 (2x), 5 (1x)" in str(report)


def test_numbers_on_lines_that_cannot_be_read_are_noted() -> None:
    with shapes.detect() as report:
        exec(compile("x[: int(x.sum())]", "<typed>", "exec"), {"x": torch.ones(3)})
    assert [s.status for s in report.sites] == ["value"]
    assert report.notes == [
        "the source of <typed> cannot be read: what becomes of numbers there is not known"
    ]


def test_operators_of_other_libraries_that_declare_such_an_output() -> None:
    @torch.library.custom_op("opswap_test::kept", mutates_args=(), tags=(torch.Tag.dynamic_output_shape,))
    def kept(x: Tensor) -> Tensor:
        return x[x > 0].clone()

    with shapes.detect() as report:
        kept(torch.tensor([1.0, -1, 2]))
    assert [(s.status, s.op, s.sizes) for s in report.findings if s.op != "aten.index"] == [
        ("size", "opswap_test.kept", ((2, 1),))
    ]


def test_a_store_of_selected_values_is_not_rewritten_with_them() -> None:
    """torch.where needs a value for each element; a store of one number has one, with the dtype of the target."""

    def step(x: Tensor, n: int) -> Tensor:
        labels, kept = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.bool)
        mask = torch.arange(4) < n
        values = torch.ones(n)
        x[mask] = values
        labels[mask] = -1.0
        kept[mask] = 0
        return x

    with shapes.detect() as report:
        for n in (1, 2):
            step(torch.randn(4), n)
    hints = [s.hint for s in sorted(report.findings, key=lambda s: s.line)]
    assert hints == [
        "`x = torch.where(mask, value, x)`, with a value for every element",
        "`labels = labels.masked_fill(mask, -1.0)`",
        "`kept = kept.masked_fill(mask, 0)`",
    ]
