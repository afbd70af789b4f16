# SPDX-License-Identifier: MIT
"""Chains in evaluation: normalisations folded into the weights, and `opswap.freeze`, which keeps these."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn

import opswap
from chain_cases import ACTIVATIONS
from opswap import _core
from opswap.functional import conv_chain
from opswap.nn.frozen import FROZEN
from opswap.ops.chain import Stage, folded_arguments
from threads import same_on_any_threads
from twins import twins

needs_kernels = pytest.mark.skipif(not _core.chain_leads(), reason="the tier in use has no chains")

# Per stage: outputs, side, stride, activation; then the size of the input.
CASES: dict[str, tuple[tuple[tuple[int, int, int, str | None], ...], tuple[int, ...]]] = {
    "branch": (((58, 1, 1, "relu"), (58, 3, 1, None), (58, 1, 1, "relu")), (1, 58, 28, 28)),
    "first branch": (((58, 3, 2, None), (61, 1, 1, "hardswish")), (2, 58, 27, 31)),
    "inverted": (((96, 1, 1, "relu6"), (96, 3, 2, "relu6"), (24, 1, 1, None)), (3, 16, 56, 56)),
    "wide windows": (((40, 5, 1, "relu"), (17, 1, 1, None), (17, 5, 2, "relu")), (1, 40, 33, 65)),
    "many channels": (((300, 1, 1, "relu"), (131, 1, 1, "hardtanh(-1.0, 2.0)")), (2, 97, 7, 7)),
    "a pixel": (((16, 1, 1, "relu"), (16, 3, 1, "relu")), (3, 16, 1, 1)),
    "a row": (((33, 3, 1, "relu"), (33, 3, 2, None), (33, 3, 1, None)), (1, 33, 1, 50)),
    "rows in bands": (((64, 1, 1, "relu"), (64, 3, 1, "relu"), (16, 1, 1, None)), (1, 32, 64, 48)),
}


def made(name: str) -> tuple[Tensor, list[Stage]]:
    """(input, stages) with running statistics far from 0 and 1."""
    rows, size = CASES[name]
    stages, channels = [], size[1]
    for outputs, side, stride, activation in rows:
        inner = channels if side == 1 else 1
        weight = torch.randn(outputs, inner, side, side) / (inner * side * side) ** 0.5
        vectors = (
            torch.rand(outputs) + 0.5,
            torch.randn(outputs),
            torch.randn(outputs),
            torch.rand(outputs) + 0.5,
        )
        stages.append(Stage(weight, *vectors, activation=activation, stride=stride))
        channels = outputs
    return torch.randn(size).to(memory_format=torch.channels_last), stages


arguments = folded_arguments


def reference(input: Tensor, stages: list[Stage], dtype: torch.dtype) -> Tensor:
    """torch's operators, one by one."""
    x = input.to(dtype)
    for s in stages:
        weight, scale, shift, mean, var = (t.to(dtype) for t in s[:5])
        side = weight.shape[2]
        x = torch_functional.conv2d(x, weight, None, s.stride, side // 2, 1, len(weight) if side > 1 else 1)
        x = ACTIVATIONS[s.activation](
            torch_functional.batch_norm(x, mean, var, scale, shift, False, 0.0, s.eps)
        )
    return x


@pytest.mark.parametrize("name", CASES)
def test_as_near_to_float64_as_torch(name: str, tier: str) -> None:
    """Of five inputs, one at least is as near as torch's, but for a factor of 2."""
    ratios = []
    for _ in range(5):
        input, stages = made(name)
        exact = reference(input, stages, torch.float64)
        theirs = (reference(input, stages, torch.float32) - exact).abs().max()
        output, _ = _core.plain_chain_folded(*arguments(input, stages), None)
        assert output.shape == exact.shape and output.is_contiguous(memory_format=torch.channels_last)
        ratios.append(float((output - exact).abs().max() / theirs))
    assert min(ratios) <= 2, ratios


@pytest.mark.parametrize("name", CASES)
def test_same_bits_on_any_number_of_threads(name: str, tier: str) -> None:
    input, stages = made(name)
    same_on_any_threads(lambda: _core.plain_chain_folded(*arguments(input, stages), None)[:1], 7)


def test_folded_weights_are_used_again(tier: str) -> None:
    input, stages = made("branch")
    counts = [_core.chain_variants()]
    output, folded = _core.plain_chain_folded(*arguments(input, stages), None)
    counts.append(_core.chain_variants())
    again, same = _core.plain_chain_folded(*arguments(input, stages), folded)
    counts.append(_core.chain_variants())
    for before, after, packs in zip(counts, counts[1:], (2, 0), strict=False):
        ran = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        assert ran == {"pointwise_folded": 2, "depthwise_folded": 1} | ({"pack": packs} if packs else {})
    assert same is folded and torch.equal(output, again)
    smaller = input[:, :, :13, :9].contiguous(memory_format=torch.channels_last)
    shared = _core.plain_chain_folded(*arguments(smaller, stages), folded)
    assert shared[1] is folded
    assert torch.equal(shared[0], _core.plain_chain_folded(*arguments(smaller, stages), None)[0])


@pytest.mark.parametrize(
    "wrong", [torch.zeros(5), torch.zeros(5, 5), 3, "folded", torch.zeros(9999, dtype=torch.int32)]
)
def test_what_are_no_folded_weights(wrong: Any, tier: str) -> None:
    input, stages = made("branch")
    output, folded = _core.plain_chain_folded(*arguments(input, stages), wrong)
    assert folded is not wrong and torch.equal(
        output, _core.plain_chain_folded(*arguments(input, stages), None)[0]
    )


@pytest.mark.parametrize("name", CASES)
def test_prepared(name: str, tier: str) -> None:
    """The same bits and counts as those of the whole call, for all inputs of one kind."""
    input, stages = made(name)
    options, (_, *rest) = arguments(input, stages)
    _, folded = _core.plain_chain_folded(options, (input, *rest), True)
    prepared = _core.prepare_chain(options, (input, *rest), folded)
    for x in (input, torch.randn_like(input)):
        counts = [_core.chain_variants()]
        expected, _ = _core.plain_chain_folded(options, (x, *rest), folded)
        counts.append(_core.chain_variants())
        output = _core.run_prepared_chain(prepared, x)
        counts.append(_core.chain_variants())
        assert torch.equal(output, expected) and output.stride() == expected.stride()
        assert type(output) is Tensor and output.dtype is torch.float32
        before, between, after = (list(c.values()) for c in counts)
        assert [b - a for a, b in zip(before, between, strict=True)] == [
            b - a for a, b in zip(between, after, strict=True)
        ]
    same_on_any_threads(lambda: (_core.run_prepared_chain(prepared, input),), 7)


def test_what_is_not_as_it_was_prepared(tier: str) -> None:
    input, stages = made("branch")
    options, (_, *rest) = arguments(input, stages)
    output, folded = _core.plain_chain_folded(options, (input, *rest), True)
    prepared = _core.prepare_chain(options, (input, *rest), folded)
    others = (
        input.double(), input.contiguous(), input[:, :, 1:], input[:, :57], torch.cat((input, input)), input[0],
        input.to("meta"), torch._neg_view(input), input.to_sparse(), input.as_subclass(nn.Buffer), None, 1,
    )  # fmt: skip
    for other in others:
        assert _core.run_prepared_chain(prepared, other) is NotImplemented
    vectors = [t for t in rest if t is not None and t.dim() == 1]
    for vector in vectors:
        kept = vector.clone()
        vector.data[-1] += 1
        assert _core.run_prepared_chain(prepared, input) is NotImplemented
        vector.data.copy_(kept)
        assert torch.equal(_core.run_prepared_chain(prepared, input), output)
    del rest, stages, vectors, vector, folded  # what was prepared holds their memory
    assert torch.equal(_core.run_prepared_chain(prepared, input), output)
    with opswap.isa.limit("scalar") as limited:
        assert (_core.run_prepared_chain(prepared, input) is NotImplemented) is (limited != tier)


def test_what_cannot_be_prepared() -> None:
    input, stages = made("branch")
    options, tensors = arguments(input, stages)
    folded = torch.zeros(10)
    for wrong in (None, True, folded, folded.double(), "folded"):
        assert _core.prepare_chain(options, tensors, wrong) is NotImplemented
    assert _core.prepare_chain((), tensors, None) is NotImplemented
    assert _core.prepare_chain(options, tensors[:-1], None) is NotImplemented
    for wrong in (None, (), _core.pack_seals(())):
        with pytest.raises(TypeError, match="prepared"):
            _core.run_prepared_chain(wrong, input)


def test_what_kernels_leave_to_torch() -> None:
    input, stages = made("branch")

    def declined(x: Tensor, given: list[Stage]) -> bool:
        return _core.plain_chain_folded(*arguments(x, given), None) is NotImplemented

    assert not declined(input, stages)
    assert declined(input.contiguous(), stages)
    assert declined(input.double(), stages)
    assert declined(input[:0], stages)
    assert declined(input, [stages[0]._replace(running_mean=None, running_var=None), *stages[1:]])
    assert declined(input, [stages[0]._replace(activation="gelu"), *stages[1:]])
    assert declined(input, [stages[0]._replace(running_mean=torch.zeros(3)), *stages[1:]])


@pytest.mark.parametrize("name", CASES)
def test_public_function(name: str) -> None:
    input, stages = made(name)
    before = copy.deepcopy(stages)
    torch.testing.assert_close(
        conv_chain(input, stages, training=False), reference(input, stages, torch.float32)
    )
    assert all(
        torch.equal(a, b)
        for s, t in zip(stages, before, strict=True)
        for a, b in zip(s[:5], t[:5], strict=True)
    )


def test_public_function_with_a_graph() -> None:
    input, stages = made("branch")
    ours, theirs = (input.clone().requires_grad_() for _ in range(2))
    conv_chain(ours, stages, training=False).square().sum().backward()
    reference(theirs, stages, torch.float32).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    with pytest.raises(RuntimeError, match="must be defined in evaluation mode"):
        conv_chain(input, [stages[0]._replace(running_mean=None, running_var=None)], training=False)


def small_net() -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels, side in ((32, 1), (32, 3), (48, 1)):
        groups = 32 if side == 3 else 1
        layers += [
            nn.Conv2d(32, channels, side, 1, side // 2, groups=groups, bias=False),
            nn.BatchNorm2d(channels),
        ]
        layers += [nn.ReLU()]
    net = nn.Sequential(*layers)
    for norm in net[1::3]:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    return net.to(memory_format=torch.channels_last)


def frozen_net() -> tuple[nn.Sequential, nn.Module, Tensor]:
    """(stock, swapped and frozen, input), both in evaluation and called once."""
    stock = small_net().eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    x = torch.randn(2, 32, 14, 14).to(memory_format=torch.channels_last)
    compare(model, stock, x)
    return stock, model, x


@torch.no_grad()
def compare(model: nn.Module, stock: nn.Module, x: Tensor) -> None:
    opswap.reset_stats()
    torch.testing.assert_close(model(x), stock(x))
    assert opswap.stats()["kernel"].get("conv_chain") == 1


def kept(model: nn.Module) -> Any:
    """The folded weights of the model's chain."""
    held = vars(next(m for m in model.modules() if isinstance(m, nn.Conv2d)))[FROZEN].kept
    return held and held[2]


def double_in_place(m: nn.Module) -> None:
    with torch.no_grad():
        m[3].weight.mul_(2)


def load(m: nn.Module) -> None:
    m.load_state_dict({k: v * 2 if v.dtype.is_floating_point else v for k, v in m.state_dict().items()})


def new_data(m: nn.Module) -> None:
    m[0].weight.data = m[0].weight.data * 3


def new_parameter(m: nn.Module) -> None:
    m[7].bias = nn.Parameter(torch.full((48,), 2.0))


def other_statistics(m: nn.Module) -> None:
    m[1].running_var.fill_(7.0)


def other_eps(m: nn.Module) -> None:
    m[4].eps = 0.5


def trained(m: nn.Module) -> None:
    m.train()
    torch.manual_seed(3)
    m(torch.randn(4, 32, 9, 9).to(memory_format=torch.channels_last))
    m.eval()


def adapted(m: nn.Module) -> None:
    """Statistics of other images, the rest of the model in evaluation."""
    for norm in m.modules():
        norm.train(isinstance(norm, nn.BatchNorm2d))
    torch.manual_seed(3)
    with torch.no_grad():
        m(torch.randn(4, 32, 9, 9).to(memory_format=torch.channels_last))
    m.eval()


def adapted_by_torch(m: nn.Module) -> None:
    norm = m[4].train()
    torch.manual_seed(3)
    torch.nn.functional.batch_norm(
        torch.randn(4, 32, 9, 9), norm.running_mean, norm.running_var, training=True
    )
    norm.eval()


def uncounted_vector(m: nn.Module) -> None:
    m[4].weight.data.mul_(3)
    m[7].running_var.numpy()[:] = 0.25


def no_weights_of_norm(m: nn.Module) -> None:
    m[1].weight = m[1].bias = None


def fine_tuned(m: nn.Module, optimizer: type[torch.optim.Optimizer], between: bool = False) -> None:
    """In evaluation, by an optimizer that moves no versions; `between`: the model is called before the step."""
    o = optimizer(m.parameters(), lr=0.05, fused=True)
    torch.manual_seed(3)
    x = torch.randn(4, 32, 9, 9).to(memory_format=torch.channels_last)
    for _ in range(2):
        loss = m(x).square().mean()
        if between:
            with torch.no_grad():
                m(x)
        loss.backward()
        o.step()
        o.zero_grad()


def fine_tuned_by_sgd(m: nn.Module) -> None:
    fine_tuned(m, torch.optim.SGD)


def called_before_the_step(m: nn.Module) -> None:
    fine_tuned(m, torch.optim.SGD, between=True)


def convolution_fine_tuned(m: nn.Module) -> None:
    """Without the model's forward."""
    with torch.no_grad():
        m(torch.randn(1, 32, 9, 9).to(memory_format=torch.channels_last))
    o = torch.optim.SGD([m[6].weight], lr=0.1, fused=True)
    m[6].weight.square().sum().backward()
    o.step()


CHANGES: tuple[Callable[[nn.Module], None], ...] = (
    double_in_place, load, new_data, new_parameter, other_statistics, other_eps, trained, adapted, adapted_by_torch,
    uncounted_vector, no_weights_of_norm, fine_tuned_by_sgd, called_before_the_step, convolution_fine_tuned,
)  # fmt: skip


@needs_kernels
class TestFreeze:
    def test_weights_are_folded_once(self) -> None:
        stock, model, x = frozen_net()
        folded = kept(model)
        assert folded is not None
        compare(model, stock, x)
        compare(model, stock, x[:1])
        assert kept(model) is folded
        assert model.state_dict().keys() == stock.state_dict().keys()

    @pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
    def test_changes_are_noticed(self, change: Callable[[nn.Module], None]) -> None:
        stock, model, x = frozen_net()
        folded = kept(model)
        for m in (stock, model):
            change(m)
        compare(model, stock, x)
        assert kept(model) is not folded

    def test_other_optimizers_leave_them(self) -> None:
        """A frozen teacher keeps its weights while a student learns."""
        stock, model, x = frozen_net()
        folded = kept(model)
        student = nn.Conv2d(32, 4, 1)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1, fused=True)
        with torch.no_grad():
            model(x)
        student(x).square().sum().backward()
        optimizer.step()
        compare(model, stock, x)
        assert kept(model) is folded

    def test_steps_over_parameters_of_any_kind(self) -> None:
        stock, model, x = frozen_net()
        table = nn.Embedding(5, 3, sparse=True)
        strange = nn.Parameter(torch.ones(3).to_sparse())
        optimizer = torch.optim.SparseAdam([table.weight])
        optimizer.param_groups.append({**optimizer.param_groups[0], "params": [strange]})
        table(torch.tensor([1])).sum().backward()
        optimizer.step()
        compare(model, stock, x)

    def test_a_compiled_step_drops_them(self) -> None:
        stock, model, x = frozen_net()
        for m in (stock, model):
            optimizer = torch.optim.SGD(m.parameters(), lr=0.05, fused=True)
            m(x).square().mean().backward()
            with torch.no_grad():
                m(x)
            for _ in range(2):
                torch.compile(lambda o=optimizer: o.step(), backend="eager")()
                with torch.no_grad():
                    m(x)
        compare(model, stock, x)

    def test_training_drops_them(self) -> None:
        _, model, x = frozen_net()
        model.train()(x).sum().backward()
        assert kept(model) is None

    def test_other_dtypes_drop_them(self) -> None:
        stock, model, x = frozen_net()
        with torch.no_grad():
            torch.testing.assert_close(model.double()(x.double()), stock.double()(x.double()))
        assert kept(model) is None

    def test_another_tier_folds_anew(self) -> None:
        stock, model, x = frozen_net()
        lower = [t for t in opswap.isa.available() if t in ("avx2", "portable16")][-1:]
        for name in lower:
            with opswap.isa.limit(name), torch.no_grad():
                torch.testing.assert_close(model(x), stock(x))
        compare(model, stock, x)

    def test_copies_fold_their_own(self) -> None:
        stock, model, x = frozen_net()
        for other in twins(model):
            assert kept(other) is None
            double_in_place(other)
            changed = copy.deepcopy(stock)
            double_in_place(changed)
            compare(other, changed, x)
            assert kept(other) is not None
        compare(model, stock, x)

    def test_a_graph_runs_the_parts(self) -> None:
        stock, model, x = frozen_net()
        for m in (stock, model):
            m(x).sum().backward()
        for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)

    def test_inference_mode(self) -> None:
        stock, model, x = frozen_net()
        with torch.inference_mode():
            torch.testing.assert_close(model(x), stock(x))
            made_there = opswap.freeze(opswap.swap(small_net().eval()))
            before = made_there(x)
            made_there[0].weight.mul_(2)
            assert not torch.equal(made_there(x), before)

    def test_unfreeze(self) -> None:
        stock, model, x = frozen_net()
        assert opswap.unfreeze(model) is model
        assert all(FROZEN not in vars(m) for m in model.modules())
        compare(model, stock, x)

    def test_unswapped_models_stay_stock(self) -> None:
        stock, model, x = frozen_net()
        with torch.no_grad():
            assert torch.equal(opswap.unswap(model)(x), stock(x))

    def test_frozen_before_the_swap(self) -> None:
        stock = small_net().eval()
        model = opswap.swap(opswap.freeze(copy.deepcopy(stock)))
        compare(model, stock, torch.randn(2, 32, 14, 14).to(memory_format=torch.channels_last))
        assert kept(model) is not None


@pytest.mark.parametrize("function", [opswap.freeze, opswap.unfreeze])
def test_what_is_no_module(function: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got int"):
        function(3)


def test_a_network() -> None:
    model = opswap.models.shufflenet_v2_x0_5()
    assert opswap.verify(model, (torch.randn(2, 3, 64, 64),)).swapped
