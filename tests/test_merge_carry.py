# SPDX-License-Identifier: MIT
"""Tensors, flags and formats are carried over and back; what a merged module is beside its results."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from merge_cases import (
    CASES,
    TwoInputs,
    assert_near,
    check_step,
    conv_bn_relu,
    example,
    loop,
    make,
)
from opswap import merge
from opswap.merge.build import build
from opswap.merge.plan import Plan
from opswap.merge.trace import trace
from opswap.models.multi_branch import Bottleneck

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", CASES)
def test_split_back_is_bit_equal(name: str, seed: int) -> None:
    modules = make(name, 3)
    before = copy.deepcopy(modules)
    back = merge.branches(modules).split_back()
    for ours, theirs, untouched in zip(back, modules, before, strict=True):
        assert type(ours) is type(theirs) and str(ours) == str(theirs)
        ours_state, state, old = ours.state_dict(), theirs.state_dict(), untouched.state_dict()
        assert list(ours_state) == list(state)
        for key, value in state.items():
            assert torch.equal(ours_state[key], value) and torch.equal(old[key], value), key
            assert ours_state[key].dtype == value.dtype and ours_state[key].stride() == value.stride(), key
    storages = [p.untyped_storage().data_ptr() for m in (*back, *modules) for p in m.parameters()]
    assert len(set(storages)) == len(storages)


def test_state_dict_has_the_keys_of_one_branch() -> None:
    modules = make("bottleneck", 3)
    state, one = merge.branches(modules).state_dict(), modules[0].state_dict()
    assert list(state) == list(one)
    assert state["residual.0.weight"].shape == (12, 8, 1, 1)
    assert state["residual.1.num_batches_tracked"].tolist() == [3, 3, 3]


def test_flags_and_gradients_are_carried(seed: int) -> None:
    modules = make("bottleneck", 2)
    for m in modules:
        m.residual[1].eval()
        m.residual[0].weight.requires_grad_(False)
        m(example("bottleneck")).sum().backward()
    merged = merge.branches(modules)
    assert not merged.residual.get_submodule("1").training and merged.residual.get_submodule("4").training
    assert not merged.residual.get_submodule("0").weight.requires_grad
    for ours, theirs in zip(merged.split_back(), modules, strict=True):
        assert [m.training for m in ours.modules()] == [m.training for m in theirs.modules()]
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert p.requires_grad == q.requires_grad and (p.grad is None) == (q.grad is None)
            assert p.grad is None or torch.equal(p.grad, q.grad)


def test_memory_format_of_weights_is_kept() -> None:
    modules = [m.to(memory_format=torch.channels_last) for m in make("conv_bn_relu", 3)]
    merged = merge.branches(modules)
    assert merged.get_submodule("0").weight.is_contiguous(memory_format=torch.channels_last)
    assert merged.split_back()[1][0].weight.is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 7, 8).contiguous(memory_format=torch.channels_last)
    wide = merged(x).flatten(1, 2)
    assert wide.is_contiguous(memory_format=torch.channels_last)


def test_shared_input_is_one_wide_convolution() -> None:
    """The first layer reads the input as it is, in a single ungrouped convolution."""
    merged = merge.branches(make("conv_bn_relu", 5))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        merged(torch.randn(2, 4, 9, 9))
    calls = [e for e in profile.events() if e.name == "aten::conv2d"]
    assert [e.input_shapes[:2] for e in calls] == [[[2, 4, 9, 9], [30, 4, 3, 3]]]


def test_two_inputs(seed: int) -> None:
    modules = [TwoInputs() for _ in range(3)]
    x, skip = torch.randn(2, 4, 5, 5), torch.randn(2, 6, 5, 5)
    merged = merge.branches(modules, shared_input=(False, True), example_input=(x, skip))
    xs = [torch.randn_like(x) for _ in modules]
    expected = torch.stack([m(own, skip) for m, own in zip(modules, xs, strict=True)], 1)
    assert_near(merged(torch.stack(xs, 1), skip).detach(), expected.detach())
    assert_near(merged(xs, skip).detach(), expected.detach())


def test_separate(seed: int) -> None:
    modules = make("ragged", 3)
    merged, x = merge.branches(modules), example("ragged")
    for a, b in zip(merged.separate(merged(x)), loop(modules, [x] * 3), strict=True):
        assert_near(a.detach(), b.detach())
    modules = make("conv", 2)
    merged, x = merge.branches(modules), example("conv")
    assert [y.shape for y in merged.separate(merged(x))] == [m(x).shape for m in modules]


def test_every_branch_draws_its_own_dropout_mask(seed: int) -> None:
    for modules in (
        [nn.Sequential(nn.Dropout(0.5)) for _ in range(2)],
        [nn.Sequential(nn.Dropout2d(0.5)) for _ in range(2)],
    ):
        y = merge.branches(modules, example_input=torch.ones(2, 16, 8, 8))(torch.ones(2, 16, 8, 8))
        assert set(y.unique().tolist()) == {0.0, 2.0}
        assert not torch.equal(y[:, 0], y[:, 1])


def test_input_is_not_modified(seed: int) -> None:
    x = example("norm_first")
    before = x.clone()
    relu_first = [nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)) for _ in range(2)]
    merge.branches(relu_first)(x)
    assert torch.equal(x, before)


def test_what_does_not_merge_is_kept_and_named(seed: int) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 6, 3, padding=1)
            self.sized = Sized()

        def forward(self, x: Tensor) -> Tensor:
            return self.sized(self.conv(x))

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(6, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale if x.shape[0] > 100 else x + self.scale

    modules = [Recurrent() for _ in range(3)]
    merged = merge.branches(modules)
    report = merged.merge_report()
    assert [s.path for s in report.kept] == ["sized"] and "control flow" in report.kept[0].became
    assert [s.path for s in report.merged] == ["conv"]
    check_step(merged, modules, [torch.randn(2, 4, 9)], True)


def test_measure_takes_a_plan_for_each_size(seed: int) -> None:
    modules = make("bottleneck", 3)
    x = example("bottleneck", 1)
    merged = merge.branches(modules, example_input=x)
    assert {t.mode for t in merged.merge_report().timings} == {"training", "inference"}
    state = torch.get_rng_state()
    features = example("bottleneck", 4).requires_grad_() * 1
    report = merged.measure(features, seconds=0.05)
    features.sum().backward()  # its own graph was left alone
    assert not torch.equal(torch.get_rng_state(), state)  # by `example` alone
    whole = [t for t in report.timings if not t.path]
    assert len(whole) == 4 and all(t.chosen in t.ms and "loop" in t.ms for t in whole)
    assert all(p.grad is None for p in merged.parameters())
    assert "whole" in str(report) and '"timings"' in report.to_json()
    for m in (merged, *modules):
        m.zero_grad()
    check_step(merged, modules, [example("bottleneck", 4)], True)


def test_reset_parameters_initialises_every_branch_by_itself(seed: int) -> None:
    modules = [nn.Sequential(nn.Conv2d(64, 8, 3), nn.BatchNorm2d(8)) for _ in range(16)]
    merged = merge.branches(modules)
    before = merged.get_submodule("0").weight.clone()
    merged.reset_parameters()
    weight = merged.get_submodule("0").weight
    assert not torch.equal(weight, before)
    # uniform in +-1 / sqrt(fan-in of one branch)
    assert 0.95 < weight.abs().max().item() * (64 * 9) ** 0.5 <= 1.0
    assert torch.equal(merged.get_submodule("1").weight, torch.ones(128))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype, seed: int) -> None:
    modules = [m.to(dtype) for m in make("bottleneck", 3)]
    x = example("bottleneck").to(dtype)
    merged = merge.branches(modules)
    expected = torch.stack([m.eval()(x) for m in modules], 1)
    actual = merged.eval()(x)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected)


def test_momentum_none(seed: int) -> None:
    modules = [nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=None)) for _ in range(3)]
    merged = merge.branches(modules)
    for _ in range(3):
        for m in (merged, *modules):
            m.zero_grad()
        check_step(merged, modules, [torch.randn(4, 3, 5, 5)], True)


@pytest.mark.parametrize("name", ["head", "functional"])
def test_pickle_and_deepcopy(name: str, seed: int, tmp_path: object) -> None:
    merged, x = merge.branches(make(name, 3)).eval(), example(name)
    torch.save(merged, f"{tmp_path}/merged.pt")
    loaded = torch.load(f"{tmp_path}/merged.pt", weights_only=False)
    for twin in (copy.deepcopy(merged), loaded):
        assert torch.equal(twin(x), merged(x))
        assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), merged.parameters(), strict=True))
        assert len(twin.split_back()) == 3
        twin.measure(x, seconds=0.01)


def test_autocast(seed: int) -> None:
    modules = [m.eval() for m in make("bottleneck", 3)]
    merged, x = merge.branches(modules).eval(), example("bottleneck")
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = merged(x), torch.stack(loop(modules, [x] * 3), 1)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.05)


def test_compile_and_export(seed: int) -> None:
    modules = [m.eval() for m in make("bottleneck", 2)]
    merged, x = merge.branches(modules).eval(), example("bottleneck")
    with torch.no_grad():
        expected = merged(x)
        compiled = torch.compile(merged, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), expected)
        exported = torch.export.export(merged, (x,))
        torch.testing.assert_close(exported.module()(x), expected)


def test_a_merged_branch_is_smaller_in_calls() -> None:
    """One call a layer, not one a branch: a convolution or, of a single pixel, a product of matrices."""
    merged = merge.branches([nn.Sequential(*conv_bn_relu(4, 6), Bottleneck(6, 3)) for _ in range(4)])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        merged(torch.randn(2, 4, 9, 9))
    names = [e.name for e in profile.events()]
    products = names.count("aten::matmul")
    assert names.count("aten::conv2d") + products == 4 and products in (0, 2)
    assert names.count("aten::batch_norm") == 4


def test_each_mode_and_size_runs_its_own_program() -> None:
    """Programs are told apart by the number of convolutions that they call."""
    modules = make("conv_bn_relu", 3)
    merged = merge.branches(modules)
    traced = trace(modules, [(example("conv_bn_relu", 2),), (example("conv_bn_relu", 3),)])
    everything = frozenset(n.name for n in traced.graph.nodes if n.op == "call_module")
    loop_program = build(traced, merged, (True,), 3, Plan(everything, follow=True))
    wide = merged._merge.programs["training"][0][1]
    small, large = example("conv_bn_relu", 1), example("conv_bn_relu", 64)
    merged._merge.programs["inference"] = [(small.numel(), loop_program), (large.numel(), wide)]

    def convolutions(x: Tensor) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            merged(x)
        return [e.name for e in profile.events()].count("aten::conv2d")

    assert convolutions(small) == 1
    with torch.no_grad():
        assert convolutions(small) == 3 and convolutions(small.repeat(2, 1, 1, 1)) == 3
        assert convolutions(large) == 1


def test_options_set_on_merged_layers_come_back(seed: int) -> None:
    """Schedules set momentum, eps and p on every norm and dropout; measure proves what runs now."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
            self.gn, self.rnn = nn.GroupNorm(2, 4), nn.LSTM(6, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(self.drop(self.gn(self.bn(self.conv(x)))).mean(1))[0]

    merged = merge.branches(modules := [Net() for _ in range(3)])
    for m in (*merged.modules(), *(m for own in modules for m in own.modules())):
        if isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
            m.eps = 0.02
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = None
        if isinstance(m, nn.Dropout):
            m.p = 0.1
        if isinstance(m, nn.LSTM):
            m.dropout = 0.5
    back = merged.split_back()
    assert str(back[2]) == str(modules[2]) and (back[1].bn.num_features, back[1].gn.num_groups) == (4, 2)
    assert [m.rnn.dropout for m in back] == [0.5] * 3
    x = torch.randn(4, 3, 8, 8)
    merged.measure(x, seconds=0)
    for a, b in zip(merged.eval().split_back(), modules, strict=True):
        assert_near(a(x).detach(), b.eval()(x).detach())


def test_a_layer_under_two_names(seed: int) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
            self.again = self.first
            self.act = self.same = nn.PReLU(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.same(self.again(self.act(self.first(x))))

    merged = merge.branches(modules := [Twice() for _ in range(3)])
    assert list(merged.state_dict()) == list(modules[0].state_dict())
    assert merged.get_submodule("again.0") is merged.get_submodule("first.0")
    check_step(merged, modules, [torch.randn(4, 6)], True)
    for own, module in zip(merged.split_back(), modules, strict=True):
        assert own.again is own.first and list(own.state_dict()) == list(module.state_dict())


def test_measure_of_separate_parts_that_have_children(seed: int) -> None:
    """Below such a part the merged tree is that of the parts themselves."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) if float(x.detach().sum()) > 1e9 else self.fc(x) * 2

    modules = [nn.Sequential(nn.Linear(6, 6), Inner()) for _ in range(3)]
    merged = merge.branches(modules)
    assert [s.path for s in merged.merge_report().kept] == ["1"]
    merged.measure(torch.randn(4, 6), seconds=0)
    check_step(merged, modules, [torch.randn(4, 6)], True)
    merged.reset_parameters()
