# SPDX-License-Identifier: MIT
"""Every spelling is found and stays bit-equal; what only looks like one is left alone, with the reason."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near
from opswap.ops import channels
from opswap.swap.runtime.guards import replaces
from spellings import SPELLINGS, TRAPS, Cut, Spelling, Split, Wrapped, all_constants, by_size, chunk
from step import assert_equal, outputs_and_gradients
from threads import meanwhile


@pytest.fixture(params=["shipped", "contiguous", "channels_last"])
def gains(request: pytest.FixtureRequest, lose: Callable[[str], None]) -> str:
    """The gains as users have them, and all rules slower than torch in one memory format."""
    if request.param != "shipped":
        lose(request.param)
    return request.param


class Torch:
    """torch as one module of opswap sees it; a function replaced in torch itself would be noticed by the forwards."""

    def __init__(self, channel_shuffle: object) -> None:
        self.channel_shuffle = channel_shuffle

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
def test_spelling_is_swapped_and_bit_equal(spelling: Spelling, gains: str) -> None:
    stock = spelling.make()
    model = copy.deepcopy(stock)
    scanned = opswap.scan(model, exact=True)
    assert sorted(s.rule for s in scanned.swapped) == sorted(spelling.rules), str(scanned)
    opswap.swap(model, exact=True, strict=True)
    assert opswap.report(model).swapped == scanned.swapped
    # torch's and einops' own modules are their own source.
    assert all(s.exact and ("spellings" in s.source or "." in s.path or s.source) for s in scanned.swapped)
    for shape in (spelling.shape, (1, *spelling.shape[1:])):
        x = torch.randn(shape)
        for training in (True, False):
            opswap.reset_stats()
            plain = mock.Mock(wraps=torch.channel_shuffle)
            with mock.patch.object(channels, "torch", Torch(plain)):
                ours = outputs_and_gradients(model.train(training), x)
            # A shuffle of one contiguous tensor is torch's, which no kernel counts.
            kernels = sum(opswap.stats()["kernel"].values())
            shuffles = [r for r in spelling.rules if "shuffle" in r]
            if gains == "contiguous":
                assert not kernels, "tensors in a format that loses must take their own code"
            elif shuffles:
                assert kernels + 2 * plain.call_count == 2 * len(shuffles)
            assert not opswap.stats()["original"] and not opswap.stats()["reference"]
            theirs = outputs_and_gradients(stock.train(training), x)
            if spelling.strided:
                assert_model_as_near(model, stock, lambda s=shape: (torch.randn(s),))
            else:
                assert_equal(ours, theirs)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
def test_spelling_without_elements(spelling: Spelling) -> None:
    """A view raises for a size -1 that it cannot find; so does the swapped model, by the same sentence."""
    stock = spelling.make()
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)
    for shape in ((0, *spelling.shape[1:]), (*spelling.shape[:-1], 0)):
        x = torch.randn(shape)
        try:
            expected = outputs_and_gradients(stock, x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=f"^{re.escape(str(error))}$"):
                model(x)
        else:
            assert_equal(outputs_and_gradients(model, x), expected)


@pytest.mark.parametrize("spelling", [s for s in SPELLINGS if len(s.shape) in (4, 5)], ids=repr)
def test_spelling_in_channels_last(spelling: Spelling, gains: str) -> None:
    """Where stock loses the format, and ours does not, later layers round otherwise."""
    memory_format = torch.channels_last if len(spelling.shape) == 4 else torch.channels_last_3d
    stock = spelling.make()
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)

    def inputs() -> tuple[Tensor]:
        return (torch.randn(spelling.shape).contiguous(memory_format=memory_format),)

    opswap.reset_stats()
    try:
        copy.deepcopy(stock)(*inputs())
    except RuntimeError:  # a view that needs another format
        model(*inputs())
    else:
        assert_model_as_near(model, stock, inputs)
    if gains == "channels_last" and spelling.name.startswith("plain-"):  # a convolution keeps it
        assert not opswap.stats()["kernel"]


@pytest.mark.parametrize(("trap", "reason"), TRAPS, ids=[repr(t) for t, _ in TRAPS])
def test_trap_is_left_alone(trap: Spelling, reason: str) -> None:
    stock = trap.make()
    model = trap.make()
    model.load_state_dict(stock.state_dict())
    classes = [type(m) for m in model.modules()]
    before = {k: v for k, v in vars(model).items() if not isinstance(v, dict)}
    report = opswap.scan(model, exact=True)
    assert not report.swapped, str(report)
    assert any(reason in s.reason for s in report.kept) or (not reason and not report.kept), str(report)
    opswap.swap(model, exact=True)
    assert [type(m) for m in model.modules()] == classes
    after = {k: v for k, v in vars(model).items() if not isinstance(v, dict)}
    assert after == before and opswap.report(model).kept == report.kept
    with pytest.raises(RuntimeError, match="nothing to replace"):
        opswap.swap(model, exact=True, strict=True)
    x = torch.randn(trap.shape)
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))


def test_constant_sizes_need_example_inputs() -> None:
    model = Wrapped(all_constants)
    stock = copy.deepcopy(model)
    x = torch.randn(2, 12, 4, 8)
    assert not opswap.scan(model, exact=True).swapped
    assert "does not run" in opswap.scan(model).kept[0].reason
    opswap.swap(model, example_inputs=(x,), strict=True)
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
    opswap.reset_stats()
    other = torch.randn(2, 12, 8, 4)
    assert torch.equal(model(other), stock(other))
    assert not opswap.stats()["kernel"], "sizes outside of the proof must take the original code"


def test_example_inputs_must_run() -> None:
    with pytest.raises(ValueError, match="does not run on example_inputs"):
        opswap.swap(Wrapped(by_size), example_inputs=(torch.randn(2, 5, 4, 8),))
    with pytest.raises(TypeError, match="must be a tuple, got Tensor"):
        opswap.swap(Wrapped(by_size), example_inputs=torch.randn(2, 12, 4, 8))


def test_channels_that_do_not_divide_fail_as_before() -> None:
    model = opswap.swap(nn.Sequential(Wrapped(by_size, channels=7)), strict=True)
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        model(torch.randn(2, 7, 4, 8))


def test_dimensions_outside_of_the_proof_fail_as_before() -> None:
    model = opswap.swap(nn.Sequential(Wrapped(by_size)), strict=True)
    with pytest.raises(ValueError, match="not enough values to unpack"):
        model(torch.randn(12, 4, 8))


def test_dtypes_that_torch_promotes_take_the_original_code() -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return by_size(torch.cat((x, x.double()), 1))

    x = torch.randn(2, 6, 4, 8)
    expected = Mixed()(x)
    model = opswap.swap(Mixed(), strict=True)
    opswap.reset_stats()
    assert torch.equal(model(x), expected) and model(x).dtype == torch.float64
    assert not opswap.stats()["kernel"]


def test_sizes_used_elsewhere_keep_cat_outside() -> None:
    class Sized(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            z = torch.cat((x, y), 1)
            b, c, h, w = z.size()
            return z.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w) * c

    x, y = torch.randn(2, 6, 4, 8), torch.randn(2, 6, 4, 8)
    model = opswap.swap(Sized())
    assert [s.rule for s in opswap.report(model).swapped] == ["channel_shuffle"]
    assert torch.equal(model(x, y), Sized()(x, y))


def test_cat_along_another_dimension_stays_outside() -> None:
    class Tall(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return by_size(torch.cat((x, y), 2))

    x, y = torch.randn(2, 12, 4, 8), torch.randn(2, 12, 3, 8)
    model = opswap.swap(Tall())
    assert [s.rule for s in opswap.report(model).swapped] == ["channel_shuffle"]
    assert torch.equal(model(x, y), Tall()(x, y))


def test_the_smallest_module_is_rewritten() -> None:
    model = opswap.swap(nn.Sequential(nn.Sequential(Split(), Split()), nn.ReLU(), Split()))
    assert not replaces(model) and "channel_shuffle" in model[0].opswap_code
    assert [s.path for s in opswap.report(model).swapped] == ["0.0", "0.1", "2"]


def test_capture_leaves_other_threads_alone() -> None:
    other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3).eval())
    results: list[type] = []
    with meanwhile(lambda: results.append(type(other(torch.ones(1, 3))))):
        found = [len(opswap.scan(Wrapped(by_size), exact=True).swapped) for _ in range(20)]
    assert set(found) == {1} and set(results) == {Tensor}


def test_rules_can_be_chosen() -> None:
    from opswap.swap.rules import DEFAULT

    plain = [r for r in DEFAULT if r.name == "channel_shuffle"]
    model = Cut(chunk)
    assert [s.rule for s in opswap.scan(model, rules=plain).swapped] == ["channel_shuffle"]
    assert not opswap.scan(model, rules=[]).swapped
    assert len(opswap.scan(model, exact=True).swapped) == 1
