# SPDX-License-Identifier: MIT
"""Forwards that ask for sizes, types and flags: what was answered is guarded, the original runs elsewhere."""

# ruff: noqa: RUF059
from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import opswap
from spellings import Wrapped, by_size
from spellings.blocks import SmallImageUnit
from spellings.guards import (
    AfterCounted,
    FunctionalDropout,
    ModeDependent,
    NumberOfSize,
    NumbersFurtherDown,
    Only,
    Strided,
    Training,
    asks_for_dtype,
    asks_for_type,
    asserts,
    depends_on_dimensions,
    depends_on_height,
    raises,
)
from step import assert_equal, outputs_and_gradients


def images(*size: int) -> Tensor:
    return torch.randn(size or (2, 12, 4, 8))


def originals() -> int:
    """Calls that took the original forward since the last count, which starts again."""
    count = sum(opswap.stats()["original"].values())
    opswap.reset_stats()
    return count


def swapped(stock: nn.Module, **options: object) -> nn.Module:
    opswap.reset_stats()
    return opswap.swap(copy.deepcopy(stock), exact=True, strict=True, **options)


class TestAtTheDoor:
    @pytest.mark.parametrize("body", [asserts, raises, depends_on_dimensions, asks_for_type, asks_for_dtype])
    def test_taken_where_the_answer_is_the_captured_one(self, body: object) -> None:
        stock = Wrapped(body)
        model = swapped(stock)
        x = images()
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
        assert not originals()

    def test_an_assertion_fails_as_before(self) -> None:
        model = swapped(Only(asserts))
        with pytest.raises(AssertionError, match="channels"):
            model(images(2, 6, 4, 8))
        assert originals() == 1

    def test_an_error_is_raised_as_before(self) -> None:
        model = swapped(Only(raises))
        for size in ((2, 12, 1, 8), (2, 8, 4, 8)):
            with pytest.raises(ValueError, match="too small"):
                model(images(*size))
        assert originals() == 2

    def test_another_number_of_dimensions(self) -> None:
        model = swapped(Only(depends_on_dimensions))
        x = images(2, 12, 4)
        assert torch.equal(model(x), x) and originals() == 1

    def test_both_branches_are_captured(self) -> None:
        stock = Only(depends_on_height)
        model = swapped(stock)
        assert model.opswap_code.count("channel_shuffle(x0, 2)") == 1
        assert model.opswap_code.count("channel_shuffle(x0, 3)") == 1
        for height in (2, 3, 4, 9):
            x = images(2, 12, height, 8)
            assert torch.equal(model(x), stock(x))
        assert not originals()

    def test_example_inputs_choose_the_branch(self) -> None:
        model = swapped(Only(depends_on_height), example_inputs=(images(2, 12, 2, 8),))
        assert "channel_shuffle(x0, 3)" in model.opswap_code
        assert "channel_shuffle(x0, 2)" not in model.opswap_code
        x = images()
        assert torch.equal(model(x), by_size(x)) and originals() == 1

    def test_numbers_need_example_inputs(self) -> None:
        stock = NumberOfSize()
        report = opswap.scan(stock, exact=True)
        assert not report.swapped and "pass example_inputs" in report.kept[0].reason
        model = swapped(stock, example_inputs=(images(),))
        for size, missed in (((2, 12, 4, 8), 0), ((5, 12, 4, 8), 0), ((2, 12, 5, 8), 1)):
            x = images(*size)
            assert torch.equal(model(x), stock(x)) and originals() == missed

    def test_numbers_further_down_need_them_too(self) -> None:
        stock = NumbersFurtherDown()
        report = opswap.scan(stock, exact=True)
        assert not report.swapped and "pass example_inputs" in report.kept[0].reason
        model = swapped(stock, example_inputs=(images(),))
        for size, missed in (((2, 12, 4, 8), 0), ((3, 12, 4, 8), 1), ((2, 12, 5, 9), 1)):
            x = images(*size)
            assert torch.equal(model(x), stock(x)) and originals() == missed

    def test_example_inputs_join_a_cut_that_has_a_number_in_it(self) -> None:
        stock = nn.Sequential(SmallImageUnit(), SmallImageUnit())
        model = swapped(stock, example_inputs=(images(),))
        x = images()
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
        assert not originals()

    @pytest.mark.usefixtures("every_rule_applies")
    @pytest.mark.parametrize(
        "stock", [Only(asserts), Only(depends_on_height), ModeDependent()], ids=["assert", "branch", "mode"]
    )
    def test_compiles_without_a_break(self, stock: nn.Module) -> None:
        model = swapped(stock)
        torch._dynamo.reset()
        graphs: list[str] = []

        def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
            graphs.append(str(graph.code))
            return graph.forward

        x = images().contiguous(memory_format=torch.channels_last)
        y = torch.compile(model, fullgraph=True, backend=backend)(x)
        torch.testing.assert_close(y, stock(x))
        assert "autograd_function_apply" in graphs[0] or "channel_shuffle" in graphs[0]


class TestFurtherDown:
    def test_an_assertion_after_a_module_stays_one(self) -> None:
        stock = Wrapped(asserts)
        model = swapped(stock)
        assert "AssertionError" in model.opswap_code
        x = images()
        assert torch.equal(model(x), stock(x)) and not originals()
        model.before = nn.Conv2d(12, 6, 1)
        model = swapped(model)
        with pytest.raises(AssertionError, match="channels"):
            model(x)

    def test_a_branch_is_foreseen_without_a_trace(self) -> None:
        stock = Strided()
        model = swapped(stock)
        for height in (8, 3, 8, 3):
            x = images(2, 12, height, 8)
            assert torch.equal(model(x), stock(x))
        assert originals() == 2
        assert_equal(list(model.buffers()), list(stock.buffers()))
        assert model.bn.num_batches_tracked == 4

    def test_a_module_of_the_user_is_not_called_to_foresee(self) -> None:
        model = opswap.swap(AfterCounted(), exact=True)
        report = opswap.report(model)
        assert not report.swapped
        assert any("size of what a module returns" in s.reason for s in report.kept)
        model(images())
        assert model.conv.calls == 1


class TestModes:
    def test_both_modes_are_captured(self) -> None:
        stock = ModeDependent()
        model = swapped(stock)
        assert len(opswap.report(model).swapped) >= 1
        for training in (True, False, True):
            x = images()
            ours = outputs_and_gradients(model.train(training), x)
            assert_equal(ours, outputs_and_gradients(stock.train(training), x))
        assert not originals()

    def test_a_mode_without_a_shuffle_takes_the_original(self) -> None:
        stock = Training()
        model = swapped(stock)
        x = images()
        assert torch.equal(model(x), stock(x)) and not originals()
        assert torch.equal(model.eval()(x), stock.eval()(x)) and originals() == 1

    def test_a_flag_that_is_handed_on(self) -> None:
        stock = FunctionalDropout()
        model = swapped(stock)
        x = images()
        for training in (True, False):
            torch.manual_seed(3)
            ours = model.train(training)(x)
            torch.manual_seed(3)
            assert torch.equal(ours, stock.train(training)(x))
        assert not originals()

    def test_a_frozen_block_keeps_its_mode(self) -> None:
        stock = nn.Sequential(FunctionalDropout(), FunctionalDropout())
        model = swapped(stock)
        model[1].eval()
        stock[1].eval()
        x = images()
        torch.manual_seed(3)
        ours = model(x)
        torch.manual_seed(3)
        assert torch.equal(ours, stock(x)) and not originals()


def two_names_of_split(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = torch.nn.functional.max_pool2d(x, 3).split(6, 1)
    return a * 2, b


def two_names_of_chunk(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = by_size(x, 3).chunk(2, 1)
    return a, b


def four_names_of_a_size(x: Tensor) -> Tensor:
    y = torch.relu(x)
    b, c, h, w = y.shape
    return torch.nn.functional.max_pool2d(y, 3) + c


def unused_names_of_a_joined_size(x: Tensor) -> Tensor:
    x = torch.cat((x, x + 1), 1)
    b, c, h, w = x.size()
    return x.view(-1, 2, 12, *x.shape[2:]).transpose(1, 2).reshape(-1, 24, *x.shape[2:])


def two_names_of_a_tensor(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = by_size(x, 3).unflatten(0, (-1, 1))
    return a, b


@pytest.mark.parametrize(
    "body",
    [
        two_names_of_split,
        two_names_of_chunk,
        four_names_of_a_size,
        unused_names_of_a_joined_size,
        two_names_of_a_tensor,
    ],
)
def test_as_many_values_as_names(body: object) -> None:
    stock = Only(body)
    model = swapped(stock)
    raised = []
    for size in (
        (2, 12, 4, 8),
        (2, 18, 4, 8),
        (2, 6, 4, 8),
        (3, 12, 4, 8),
        (1, 12, 4, 8),
        (12, 4, 8),
        (2, 12, 2, 4, 8),
    ):
        x = torch.randn(size)
        try:
            expected = stock(x)
        except (RuntimeError, ValueError) as error:
            raised.append(type(error))
            with pytest.raises(type(error)):
                model(x)
        else:
            assert_equal(model(x), expected)
    assert ValueError in raised and len(raised) < 7
