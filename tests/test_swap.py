# SPDX-License-Identifier: MIT
"""swap on whole networks: what must stay as it was, what a swapped model must survive, when it steps back."""

from __future__ import annotations

import copy
import inspect
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import kernels
from nearness import assert_model_as_near
from opswap.models import ShuffleNetV2, shufflenet_v2_x0_5, shufflenet_v2_x1_0
from spellings import Shuffle, Split, Wrapped, by_size
from step import assert_equal, outputs_and_gradients
from twins import twins

pytestmark = pytest.mark.usefixtures("one_thread", "every_rule_applies")

STAGES = ("stage2", "stage3", "stage4")
CHANNELS = (24, 48, 96, 192, 128)
SHUFFLES = 7
SITES = SHUFFLES + 1  # and the pool of the stem


@cache
def analysed() -> tuple[nn.Module, nn.Module]:
    stock = ShuffleNetV2((2, 3, 2), CHANNELS, 10)
    return stock, opswap.swap(copy.deepcopy(stock), exact=True, strict=True)


@pytest.fixture
def stock() -> nn.Module:
    return copy.deepcopy(analysed()[0])


@pytest.fixture
def model() -> nn.Module:
    return copy.deepcopy(analysed()[1])


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 64, 64)


def fused_calls(model: nn.Module, x: Tensor) -> int:
    """Replaced calls of one forward, which leaves the running statistics as they are.

    A shuffle of one contiguous tensor is torch.channel_shuffle, which no kernel counts.
    """
    training = model.training
    model.eval()
    opswap.reset_stats()
    with torch.no_grad(), mock.patch.object(torch, "channel_shuffle", wraps=torch.channel_shuffle) as plain:
        model(x)
    model.train(training)
    return kernels() + plain.call_count


def chain(blocks: int = 3) -> nn.Sequential:
    return nn.Sequential(*(Split() for _ in range(blocks)))


def blocks_input() -> Tensor:
    return torch.randn(2, 12, 4, 8)


class TestShuffleNet:
    def test_sites(self) -> None:
        model = shufflenet_v2_x1_0()
        report = opswap.scan(model, exact=True)
        counts = Counter(s.rule for s in report.swapped)
        assert counts == {"cat_channel_shuffle_split": 13, "cat_channel_shuffle": 3, "max_pool2d": 1}
        ends = [s.path for s in report.swapped if s.rule == "cat_channel_shuffle"]
        assert ends == ["stage2.3", "stage3.7", "stage4.3"]
        assert len({s.path for s in report.swapped}) == 17 and not report.kept
        shuffles = [s for s in report.swapped if s.rule != "max_pool2d"]
        assert all("shufflenetv2.py:" in s.source and s.exact for s in shuffles)
        assert opswap.report(opswap.swap(model, exact=True)) == report

    @pytest.mark.parametrize("training", [True, False])
    def test_bit_equal_in_contiguous_layout(self, x: Tensor, training: bool) -> None:
        stock = shufflenet_v2_x0_5(10)
        model = opswap.swap(copy.deepcopy(stock), exact=True).train(training)
        opswap.reset_stats()
        ours = outputs_and_gradients(model, x)
        assert kernels() == 34 and not opswap.stats()["reference"]
        assert_equal(ours, outputs_and_gradients(stock.train(training), x))
        assert_equal(list(model.buffers()), list(stock.buffers()))

    @pytest.mark.parametrize("training", [True, False])
    def test_channels_last_is_as_near_to_float64_as_stock(
        self, stock: nn.Module, x: Tensor, training: bool
    ) -> None:
        stock.train(training)
        model = opswap.swap(copy.deepcopy(stock), memory_format=torch.channels_last)
        assert model.conv1[0].weight.is_contiguous(memory_format=torch.channels_last)
        stock.to(memory_format=torch.channels_last)
        assert_model_as_near(
            model,
            stock,
            lambda: (torch.randn_like(x).contiguous(memory_format=torch.channels_last),),
        )

    def test_many_steps_stay_bit_equal(self, stock: nn.Module, model: nn.Module, x: Tensor) -> None:
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (stock, model)]
        for _ in range(4):
            for m, optimizer in zip((stock, model), optimizers, strict=True):
                optimizer.zero_grad()
                m(x).square().mean().backward()
                optimizer.step()
        assert_equal(list(model.state_dict().values()), list(stock.state_dict().values()))

    def test_bf16_autocast(self, stock: nn.Module, model: nn.Module, x: Tensor) -> None:
        results = []
        for m in (stock, model):
            opswap.reset_stats()
            with torch.autocast("cpu", torch.bfloat16):
                y = m(x)
            y.float().square().mean().backward()
            results.append([y, *(p.grad for p in m.parameters())])
        assert kernels() == 2 * SITES
        assert_equal(*results)


class TestNothingElseChanges:
    def test_parameters_buffers_flags_and_keys(self, stock: nn.Module) -> None:
        stock.stage3.eval()
        stock.stage4[1].branch2.requires_grad_(False)
        before = {k: id(v) for k, v in [*stock.named_parameters(), *stock.named_buffers()]}
        modules = {k: (id(m), m.training) for k, m in stock.named_modules()}
        frozen = [p.requires_grad for p in stock.parameters()]
        keys = list(stock.state_dict())
        model = opswap.swap(stock)
        assert model is stock
        assert {k: id(v) for k, v in [*model.named_parameters(), *model.named_buffers()]} == before
        assert {k: (id(m), m.training) for k, m in model.named_modules()} == modules
        assert [p.requires_grad for p in model.parameters()] == frozen
        assert list(model.state_dict()) == keys

    def test_no_class_is_patched(self, stock: nn.Module) -> None:
        other = ShuffleNetV2((2, 3, 2), CHANNELS, 10)
        block = type(stock.stage2[0])
        watched = (nn.Sequential, nn.Module, block, type(stock))
        before = [dict(vars(c)) for c in watched]
        model = opswap.swap(stock)
        assert [dict(vars(c)) for c in watched] == before
        assert type(other.stage2) is nn.Sequential and type(other.stage2[0]) is block
        assert isinstance(model.stage2, nn.Sequential) and isinstance(model.stage2[0], block)
        assert repr(model) == repr(other)

    def test_signature(self, stock: nn.Module, model: nn.Module) -> None:
        for name in STAGES:
            for a, b in zip(getattr(stock, name).modules(), getattr(model, name).modules(), strict=True):
                assert inspect.signature(a.forward) == inspect.signature(b.forward)

    def test_scan_changes_nothing(self, stock: nn.Module) -> None:
        before = [(type(m), list(vars(m))) for m in stock.modules()]
        opswap.scan(stock)
        assert [(type(m), list(vars(m))) for m in stock.modules()] == before

    def test_second_swap_changes_nothing(self, model: nn.Module) -> None:
        before = [type(m) for m in model.modules()]
        report = opswap.report(model)
        opswap.swap(model, exact=True)
        assert [type(m) for m in model.modules()] == before
        assert opswap.report(model) == report == opswap.scan(model, exact=True)

    def test_unswap_brings_the_classes_back(self, stock: nn.Module, model: nn.Module, x: Tensor) -> None:
        objects = list(model.modules())
        assert opswap.unswap(model) is model
        assert all(a is b for a, b in zip(model.modules(), objects, strict=True))
        assert [type(m) for m in model.modules()] == [type(m) for m in stock.modules()]
        assert [list(vars(m)) for m in model.modules()] == [list(vars(m)) for m in stock.modules()]
        assert not opswap.report(model).swapped and fused_calls(model, x) == 0
        assert fused_calls(opswap.swap(model, exact=True), x) == SITES


class TestCopies:
    def test_every_kind(self, model: nn.Module, x: Tensor) -> None:
        copies, expected = twins(model), outputs_and_gradients(model, x)
        for twin in copies:
            assert opswap.report(twin) == opswap.report(model) and fused_calls(twin, x) == SITES
            assert_equal(outputs_and_gradients(twin, x), expected)
            assert torch.equal(twin.eval()(x), model.eval()(x))
        opswap.unswap(model)
        for twin in copies:
            assert fused_calls(twin, x) == SITES
            opswap.unswap(twin)
            assert type(twin.stage2) is nn.Sequential

    def test_state_dict_both_ways(self, stock: nn.Module, model: nn.Module, x: Tensor) -> None:
        fresh = ShuffleNetV2((2, 3, 2), CHANNELS, 10)
        fresh.load_state_dict(model.state_dict(), strict=True)
        assert torch.equal(fresh.eval()(x), model.eval()(x))
        torch.manual_seed(5)
        other = ShuffleNetV2((2, 3, 2), CHANNELS, 10)
        model.load_state_dict(other.state_dict(), strict=True)
        assert torch.equal(other.eval()(x), model.eval()(x))

    def test_moving_average(self, model: nn.Module, x: Tensor) -> None:
        average = torch.optim.swa_utils.AveragedModel(model)
        average.update_parameters(model)
        assert fused_calls(average, x) == SITES and torch.equal(average.eval()(x), model.eval()(x))

    def test_data_parallel_replica(self, model: nn.Module) -> None:
        replica = model.stage2[0]._replicate_for_data_parallel()
        y = torch.randn(2, 24, 8, 8)
        assert torch.equal(replica(y), model.stage2[0](y))


class TestCompilers:
    @pytest.fixture
    def stock(self) -> nn.Module:
        return ShuffleNetV2((1, 2, 1), CHANNELS, 10)

    @pytest.fixture
    def model(self, stock: nn.Module) -> nn.Module:
        return opswap.swap(copy.deepcopy(stock), exact=True, strict=True)

    @pytest.fixture
    def x(self) -> Tensor:
        return torch.randn(2, 3, 32, 32)

    def test_compile_full_graph(self, stock: nn.Module, model: nn.Module, x: Tensor) -> None:
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        opswap.reset_stats()
        ours = outputs_and_gradients(compiled, x)
        assert kernels() == 2 * len(opswap.report(model).swapped) == 2 * 5
        assert_equal(ours, outputs_and_gradients(stock, x))

    def test_inductor(self) -> None:
        stock = chain(2)
        model = opswap.swap(copy.deepcopy(stock))
        x = blocks_input()
        compiled = torch.compile(model, fullgraph=True)
        opswap.reset_stats()
        ours = outputs_and_gradients(compiled, x)
        assert kernels() == 4
        for a, b in zip(ours, outputs_and_gradients(stock, x), strict=True):
            torch.testing.assert_close(a, b)

    @pytest.mark.parametrize("method", [lambda a, b: a is b, tuple.__eq__], ids=["Python", "C"])
    def test_a_class_that_got_a_special_method(self, monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
        """What compiled code asks of methods that every class has, as uncompiled code does."""
        model, x = opswap.swap(chain(2)), blocks_input()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        with monkeypatch.context() as patch:
            patch.setattr(type(chain(1)[0]), "__eq__", method)
            opswap.reset_stats()
            compiled(x), model(x)
            assert kernels() == 0
        torch._dynamo.reset()
        compiled(x), model(x)
        assert kernels() == 4

    @pytest.mark.parametrize("strict", [False, True])
    def test_export(self, model: nn.Module, x: Tensor, strict: bool) -> None:
        model.eval()
        program = torch.export.export(model, (x,), strict=strict)
        graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
        fused = [n for g in graphs for n in g.nodes if "cat_channel_shuffle_split" in str(n.target)]
        assert len(fused) == 4
        assert torch.equal(program.module()(x), model(x))


class TestStepsBack:
    """The captured forward no longer holds: the original one runs."""

    def check(self, model: nn.Module, stock: nn.Module, fused: int) -> None:
        x = blocks_input()
        assert fused_calls(model, x) == fused
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))

    def test_slice_of_a_sequential(self) -> None:
        stock = chain()
        model = opswap.swap(copy.deepcopy(stock))
        self.check(model, stock, 3)
        self.check(model[:2], stock[:2], 2)
        assert not opswap.stats()["reference"]

    def test_appended_replaced_and_deleted_blocks(self) -> None:
        stock = chain()
        model = opswap.swap(copy.deepcopy(stock))
        for m in (stock, model):
            m.append(nn.ReLU())
        self.check(model, stock, 3)
        for m in (stock, model):
            m[1] = nn.Identity()
        self.check(model, stock, 2)
        for m in (stock, model):
            del m[0]
        self.check(model, stock, 1)

    def test_swap_again_after_surgery(self) -> None:
        stock = chain(2)
        model = opswap.swap(copy.deepcopy(stock))
        for m in (stock, model):
            m.append(copy.deepcopy(stock[0]))
        opswap.swap(model)
        rules = [s.rule for s in opswap.report(model).swapped]
        assert rules == ["cat_channel_shuffle_split"] * 2 + ["cat_channel_shuffle"]
        self.check(model, stock, 3)

    @pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
    def test_hook_on_an_opened_block(self, kind: str) -> None:
        stock = chain()
        model = opswap.swap(copy.deepcopy(stock))
        seen: list[str] = []
        for m in (stock, model):
            handle = getattr(m[1], f"register_{kind}_hook")(lambda *_: seen.append(kind))
        self.check(model, stock, 3)
        assert len(seen) >= 2
        handle.remove()
        self.check(model, stock, 3)

    def test_global_hook(self) -> None:
        model = opswap.swap(chain())
        seen: list[type] = []
        handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m))
        try:
            model(blocks_input())
        finally:
            handle.remove()
        assert all(block in seen for block in model)

    def test_hooks_before_the_swap(self) -> None:
        stock = chain()
        seen: list[int] = []
        stock[1].register_forward_hook(lambda *_: seen.append(1))
        model = opswap.swap(stock)
        report = opswap.report(model)
        assert [s.rule for s in report.swapped] == ["cat_channel_shuffle"] * 3
        assert [s.path for s in report.kept] == ["1"] and "hooks" in report.kept[0].reason
        model(blocks_input())
        assert seen == [1]

    def test_forward_on_the_instance(self) -> None:
        model = opswap.swap(chain())
        model[1].forward = lambda x: x
        x = blocks_input()
        assert fused_calls(model, x) == 2
        assert torch.equal(model(x), model[2](model[0](x)))

    def test_attribute_that_the_forward_reads(self) -> None:
        class Optional(Wrapped):
            on = True

            def __init__(self) -> None:
                super().__init__(by_size)
                self.on = True

            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) if self.on else x

        stock = Optional()
        model = opswap.swap(copy.deepcopy(stock))
        self.check(model, stock, 1)
        stock.on = model.on = False
        x = blocks_input()
        assert torch.equal(model(x), x)

    def test_attribute_that_becomes_a_tensor(self) -> None:
        model = opswap.swap(chain())
        model[1].note = model.note = 1.0
        opswap.swap(model)
        model[1].note = torch.ones(3)
        model(blocks_input())

    def test_arguments_that_were_not_captured(self) -> None:
        class Scaled(Wrapped):
            def forward(
                self, x: Tensor, scale: Tensor | None = None, *more: Tensor, flag: bool = True
            ) -> Tensor:
                x = super().forward(x)
                return (x if scale is None else x * scale) if flag else -x

        stock = Scaled(by_size)
        model = opswap.swap(copy.deepcopy(stock), strict=True)
        x = blocks_input()
        self.check(model, stock, 1)
        for args, options in (((x, torch.tensor(2.0)), {}), ((x,), {"flag": False}), ((x, None, x), {})):
            assert torch.equal(model(*args, **options), stock(*args, **options))
        assert inspect.signature(model.forward) == inspect.signature(stock.forward)

    def test_input_that_is_no_tensor(self) -> None:
        model = opswap.swap(nn.Sequential(Wrapped(by_size)))
        with pytest.raises(TypeError, match="str"):
            model("text")


class TestModelsThatShare:
    def test_one_block_twice(self) -> None:
        block = Split()
        stock = nn.Sequential(block, block)
        model = opswap.swap(copy.deepcopy(stock))
        x = blocks_input()
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
        assert fused_calls(model, x) == 2

    def test_one_block_in_two_parents(self) -> None:
        block = Split()
        stock = nn.Sequential(nn.Sequential(block, Split()), nn.Sequential(nn.ReLU(), block))
        model = opswap.swap(copy.deepcopy(stock))
        x = blocks_input()
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))

    def test_one_block_at_two_sizes(self) -> None:
        shuffle = Shuffle(2)
        stock = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), shuffle, nn.Conv2d(12, 16, 2), shuffle)
        model = opswap.swap(copy.deepcopy(stock))
        x = blocks_input()
        assert fused_calls(model, x) == 2
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))


class TestReport:
    def test_table_and_json(self, model: nn.Module) -> None:
        report = opswap.report(model)
        lines = str(report).splitlines()
        assert lines[0] == "8 swapped" and len(lines) == 10
        assert lines[2].split()[:3] == ["maxpool", "max_pool2d", "exact"]
        assert lines[3].split()[:3] == ["stage2.0", "cat_channel_shuffle_split", "exact"]
        parsed = json.loads(report.to_json())
        assert len(parsed["swapped"]) == SITES and parsed["kept"] == []
        assert parsed["memory_format"] == "" and parsed["denormals"] == {}
        assert set(parsed["swapped"][0]) == {"path", "rule", "source", "exact", "reason", "gain"}

    def test_of_a_part(self, model: nn.Module) -> None:
        assert [s.path for s in opswap.report(model.stage2).swapped] == ["0", "1"]

    def test_kept_sites_say_why(self) -> None:
        report = opswap.report(
            opswap.swap(nn.Sequential(Wrapped(lambda x: by_size(x) if x.mean() > 0 else x)))
        )
        assert "control flow" in report.kept[0].reason and report.kept[0].reason in str(report)

    def test_generated_code_can_be_read(self, model: nn.Module) -> None:
        assert "cat_channel_shuffle_split((x0, x1), 2, 2)" in model.stage2.opswap_code
        assert "shufflenetv2.py:" in model.stage2.opswap_code


class TestBadArguments:
    @pytest.mark.parametrize("call", [opswap.swap, opswap.scan, opswap.report, opswap.unswap])
    def test_no_module(self, call: object) -> None:
        with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got int"):
            call(3)

    def test_strict(self) -> None:
        with pytest.raises(RuntimeError, match="nothing to replace was found in Linear"):
            opswap.swap(nn.Linear(2, 2), strict=True)

    @pytest.mark.parametrize("make", [Split, chain])
    def test_class_derived_after_the_swap(self, make: Callable[[], nn.Module]) -> None:
        """Modules keep their class, so that one derived from it is nothing new."""
        model, stock = opswap.swap(make()), make()
        derived = model.__class__ = type("Derived", (type(model),), {})
        assert derived.__mro__[1] is type(stock)
        assert opswap.unswap(model) is model and type(model) is derived
        assert list(vars(model)) == list(vars(stock))
