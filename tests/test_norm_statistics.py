# SPDX-License-Identifier: MIT
"""Running statistics of batch normalisation in programs and under torch.func; its operators with every option."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import opswap
from modes import Names
from opswap import functional as F
from opswap.ops.norm import reference

ACTIVATIONS = (None, "relu", "relu6", "hardswish")
OPERATORS = torch.ops.opswap
SIZE = (4, 3, 5, 6)

every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def running(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)


def loss_of(function: Callable[..., Tensor], activation: str | None, training: bool) -> Callable[..., Tensor]:
    """Of input, weight, bias and the running statistics."""

    def loss(x: Tensor, weight: Tensor, bias: Tensor, *statistics: Tensor) -> Tensor:
        given = statistics or (None, None)
        return function(x.sin(), *given, weight, bias, training, 0.1, 1e-5, activation).square().sum()

    return loss


def step(f: Callable[..., Tensor], tensors: tuple[Tensor, ...], *statistics: Tensor) -> list[Tensor]:
    """Value, gradients, running statistics afterwards."""
    moving = [s.clone() for s in statistics]
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    value = f(*leaves, *moving)
    return [value.detach(), *torch.autograd.grad(value, leaves), *moving]


def some_tensors(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(SIZE, dtype=dtype), torch.rand(3, dtype=dtype) + 0.5, torch.randn(3, dtype=dtype)


def assert_all_close(got: Any, want: Any, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    for g, w in zip(got, want, strict=True):
        assert torch.allclose(g, w, rtol, atol)


@pytest.mark.parametrize("absent", [(0,), (1,), (0, 1)])
def test_second_derivatives_without_parameters(absent: tuple[int, ...]) -> None:
    x, *affine = (t.requires_grad_() for t in some_tensors(torch.float64))
    given = [t for i, t in enumerate(affine) if i not in absent]

    def f(x: Tensor, *some: Tensor) -> Tensor:
        present = iter(some)
        weight, bias = (None if i in absent else next(present) for i in range(2))
        return F.batch_norm_act(x, None, None, weight, bias, True, activation="hardswish")

    assert torch.autograd.gradgradcheck(f, (x, *given), fast_mode=True)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 1)
        self.norm = torch.nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm
        statistics = (n.running_mean, n.running_var)
        return F.batch_norm_relu(self.conv(x), *statistics, n.weight, n.bias, self.training)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_export_with_dynamic_batch(training: bool, strict: bool) -> None:
    net = Net().train(training)
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    program = torch.export.export(net, (torch.randn(SIZE),), dynamic_shapes=shapes, strict=strict)
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    assert any(n.target is OPERATORS.batch_norm_act.default for graph in graphs for n in graph.nodes)
    exported, stock, x = program.module(), copy.deepcopy(net), torch.randn(9, *SIZE[1:])
    assert torch.allclose(exported(x), stock(x))
    buffers = dict(exported.named_buffers())
    for name in ("running_mean", "running_var"):
        assert torch.allclose(buffers[f"norm.{name}"], getattr(stock.norm, name), 1e-5)
    lowered = program.run_decompositions()
    assert not any(str(n.target).split(".")[1:2] in (["mul_"], ["add_"]) for n in lowered.graph.nodes)


@pytest.mark.parametrize("size", [SIZE, (4, 3), (2, 3, 4, 5, 3)], ids=str)
def test_opcheck(size: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(size), torch.ones(3), torch.zeros(3)
    statistics = torch.stack(running(torch.float64))
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for given in ((None, None), running()):
        arguments = (x, *given, weight, bias, 1e-5, "relu6")
        torch.library.opcheck(OPERATORS.batch_norm_act.default, arguments, test_utils=tests)
    for mask in ([True, True, True], [False, True, False]):
        arguments = (torch.randn(size), x, statistics, weight, bias, True, 1e-5, "relu", mask)
        torch.library.opcheck(OPERATORS.batch_norm_act_backward.default, arguments, test_utils=tests)


def test_running_statistics_move_under_func_grad() -> None:
    x, weight, bias = some_tensors()
    ours, theirs = running(), running()
    torch.func.grad(loss_of(F.batch_norm_act, "relu", True))(x, weight, bias, *ours)
    loss_of(reference, "relu", True)(x, weight, bias, *theirs)
    assert_all_close(ours, theirs)


def test_running_statistics_move_under_functionalize() -> None:
    norms = [nn.BatchNorm2d(8).double() for _ in range(2)]
    x = torch.randn(4, 8, 5, 5, dtype=torch.float64)
    expected = torch.func.functionalize(lambda x: norms[0](x).relu())(x)

    def ours(x: Tensor) -> Tensor:
        n = norms[1]
        return F.batch_norm_act(
            x, n.running_mean, n.running_var, n.weight, n.bias, training=True, activation="relu"
        )

    torch.testing.assert_close(torch.func.functionalize(ours)(x), expected)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(norms[1], name), getattr(norms[0], name))


def test_a_batch_without_data_leaves_real_running_statistics_alone() -> None:
    mean, var = torch.randn(8), torch.rand(8)
    before = mean.clone(), var.clone()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        F.batch_norm_act(mode.from_tensor(torch.randn(4, 8, 5, 5)), mean, var, training=True)
    assert torch.equal(mean, before[0]) and torch.equal(var, before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("place", [(0, 1, 0, 0), (3, 1, 4, 5)], ids=["first value", "last value"])
@pytest.mark.parametrize(
    "values", [("inf",), ("-inf",), ("nan",), ("inf", "inf"), ("inf", "-inf")], ids=" ".join
)
def test_a_value_that_is_not_finite_moves_the_mean_as_torchs(
    values: tuple[str, ...],
    place: tuple[int, ...],
    memory_format: torch.memory_format,
    dtype: torch.dtype,
    tier: str,
) -> None:
    x = torch.randn(SIZE).to(dtype)
    for value, at in zip(values, (place, (2, 1, 3, 3)), strict=False):
        x[at] = float(value)
    x = x.contiguous(memory_format=memory_format)
    kind = torch.promote_types(dtype, torch.float32)
    results = []
    for function in (F.batch_norm_act, reference):
        mean, var = running(kind)
        parameters = torch.ones(3, dtype=kind), torch.zeros(3, dtype=kind)
        y = function(x, mean, var, *parameters, True, 0.1, 1e-5, None)
        results.append((y, mean, var))
    for got, want in zip(*results, strict=True):
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.allclose(got, want, 1e-2, 1e-2, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("act", [None, "relu", "silu"])
def test_running_means_that_are_infinite(
    act: str | None, grad: bool, memory_format: torch.memory_format, dtype: torch.dtype, tier: str
) -> None:
    kind = torch.promote_types(dtype, torch.float32)
    mean = torch.tensor([0.5, math.inf, -math.inf], dtype=kind)
    x = torch.randn(SIZE).to(dtype).contiguous(memory_format=memory_format)
    parameters = torch.linspace(0.5, 1.5, 3, dtype=kind), torch.linspace(-1, 1, 3, dtype=kind)
    results = []
    for function in (F.batch_norm_act, reference):
        given = x.clone().requires_grad_(grad)
        results.append(function(given, mean, torch.ones(3, dtype=kind), *parameters, False, 0.1, 1e-5, act))
    got, want = results
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.allclose(got, want, 1e-2, 1e-2, equal_nan=True)


def overflowing_step(
    function: Callable[..., Tensor], x: Tensor, grad: Tensor, act: str | None
) -> list[Tensor]:
    """Output, running statistics, gradients of weight, bias and input."""
    kind = torch.promote_types(x.dtype, torch.float32)
    mean, var = running(kind)
    parameters = torch.linspace(0.5, 1.5, 3, dtype=kind), torch.linspace(2, 3, 3, dtype=kind)
    x, weight, bias = (t.detach().requires_grad_() for t in (x, *parameters))
    y = function(x, mean, var, weight, bias, True, 0.1, 1e-5, act)
    y.backward(grad)
    return [t.detach() for t in (y, mean, var, weight.grad, bias.grad, x.grad)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("value", ["inf", "-inf"])
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_an_infinite_gradient_makes_gradients_infinite_as_torchs(
    activation: str | None, value: str, memory_format: torch.memory_format, dtype: torch.dtype, tier: str
) -> None:
    """Whatever sign the rounding of the mean has, and also if there is none, as in float64."""
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randn(SIZE).to(dtype).contiguous(memory_format=memory_format)
        x[1, 1, 2, 3] = 1  # above the mean: dy passes the activation
        grad = torch.ones_like(x)
        grad[1, 1, 2, 3] = float(value)
        got, want = (overflowing_step(f, x, grad, activation) for f in (F.batch_norm_act, reference))
        for ours, theirs in zip(got[:5], want[:5], strict=True):
            assert torch.allclose(ours, theirs, 2e-2, 2e-2), seed
        assert got[3][1] == got[4][1] == float(value)
        spoiled = ~got[5].isfinite()
        assert spoiled[:, 1].all() and not spoiled[:, ::2].any()
        # a value next to the mean may fall on either side of it
        assert (got[5].isnan() != want[5].isnan()).sum() <= 2, seed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("every", [False, True], ids=["one value", "every value"])
def test_a_variance_that_overflows_is_infinite_as_torchs(
    every: bool, activation: str | None, memory_format: torch.memory_format, dtype: torch.dtype, tier: str
) -> None:
    large = 1e160 if dtype == torch.float64 else 1e30
    x = torch.randn(SIZE, dtype=torch.float64)
    if every:
        x[:, 1] *= large
    else:
        x[1, 1, 2, 3] = large
    x = x.to(dtype).contiguous(memory_format=memory_format)
    grad = torch.ones_like(x)
    got, want = (overflowing_step(f, x, grad, activation) for f in (F.batch_norm_act, reference))
    assert got[2][1] == float("inf")
    # in float32 and bfloat16, sums in double do not overflow: the output may be the exact one
    compared = slice(None) if dtype == torch.float64 else slice(1, 3)
    for ours, theirs in zip(got[compared], want[compared], strict=True):
        assert torch.allclose(ours, theirs, 2e-2, 2e-2)
    assert all(t.isfinite().all() for t in (got[0], *got[3:]))


def test_vmap_over_running_statistics_of_an_ensemble() -> None:
    x, weight, bias = torch.randn(SIZE), torch.rand(5, 3) + 0.5, torch.randn(5, 3)
    statistics = torch.randn(5, 3), torch.rand(5, 3) + 0.5
    got = torch.vmap(lambda m, v, w, b: F.batch_norm_relu(x, m, v, w, b))(*statistics, weight, bias)
    for i, y in enumerate(got):
        want = reference(x, *(s[i] for s in statistics), weight[i], bias[i], activation="relu")
        assert torch.allclose(y, want, atol=1e-5)


@pytest.mark.parametrize("mapped", [(0,), (1,), (0, 1), (2, 3), (0, 1, 2, 3)])
@every_activation
def test_vmap_over_parameters_in_training_moves_shared_statistics_once(
    activation: str | None, mapped: tuple[int, ...]
) -> None:
    """mapped: of weight, bias, running_mean and running_var; the input is one for all examples."""
    x = torch.randn(SIZE)
    one = torch.rand(3) + 0.5, torch.randn(3), torch.randn(3), torch.rand(3)
    dims = tuple(0 if i in mapped else None for i in range(4))
    tensors = [torch.stack((t, t * 2)) if i in mapped else t for i, t in enumerate(one)]
    results = []
    for function in (F.batch_norm_act, reference):
        weight, bias, mean, var = (t.clone() for t in tensors)

        def run(w: Tensor, b: Tensor, m: Tensor, v: Tensor, f: Callable[..., Tensor] = function) -> Tensor:
            return f(x, m, v, w, b, True, activation=activation)

        y = torch.vmap(run, dims)(weight, bias, mean, var)
        results.append([y, mean, var])
    assert_all_close(*results)


def test_gradients_of_an_ensemble_that_shares_its_statistics() -> None:
    x, weight, bias = torch.randn(SIZE), torch.rand(2, 3) + 0.5, torch.randn(2, 3)
    results = []
    for function in (F.batch_norm_act, reference):
        loss = loss_of(function, "relu", True)
        gradients = torch.func.grad(loss, (0, 1, 2))
        results.append(torch.vmap(gradients, (None, 0, 0))(x, weight, bias))
    assert_all_close(*results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_torchs(dtype: torch.dtype) -> None:
    net = torch.nn.Conv2d(3, 3, 3)
    images, weight, bias = some_tensors()
    results = []
    for function in (F.batch_norm_act, reference):
        statistics = running()
        with torch.autocast("cpu", dtype):
            x = net(images)
            y = function(x, *statistics, weight, bias, True, activation="relu")
        assert x.dtype == y.dtype == dtype
        results.append((y.float(), *statistics))
    assert_all_close(*results, 2e-2, 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("forced", [False, True])
def test_a_training_step_under_a_mode_is_one_operator(dtype: torch.dtype, forced: bool) -> None:
    """The same bits as without the mode, running statistics included."""
    torch.manual_seed(0)
    x = torch.randn(4, 5, 6, 7, dtype=dtype)
    weight, bias = torch.rand(5, dtype=dtype), torch.randn(5, dtype=dtype)

    def step(mode: Any) -> list[Tensor]:
        mean, var = torch.zeros(5, dtype=dtype), torch.ones(5, dtype=dtype)
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
        with mode:
            out = F.batch_norm_act(leaves[0], mean, var, *leaves[1:], True, 0.3, 1e-3, "relu")
            out.square().sum().backward()
        return [out, mean, var, *(leaf.grad for leaf in leaves)]

    mode = Names()
    with opswap.force_reference() if forced else contextlib.nullcontext():
        plain, watched = step(contextlib.nullcontext()), step(mode)
    if not forced:
        assert all(map(torch.equal, plain, watched))
        names = [name for name in mode.names if "batch_norm" in name]
        assert names == ["opswap.batch_norm_act_moving.default", "opswap.batch_norm_act_backward.default"]
        assert not {"aten.mul_.Tensor", "aten.zeros.default", "aten.unbind.int"} & set(mode.names)
    torch.testing.assert_close(plain, watched)


def test_what_the_mode_s_operator_refuses() -> None:
    """The same errors as without a mode, and nothing is moved."""
    x, zeros, ones = torch.randn(4, 5, 3, 3), torch.zeros(5), torch.ones(5)
    wrong: list[tuple[tuple[Any, ...], type[Exception]]] = [
        ((x, torch.zeros(4), ones, None, None, True), RuntimeError),
        ((x[:1, :, :1, :1], zeros, ones, None, None, True), ValueError),
        ((x, zeros, ones, None, None, True, 0.1, 0.0), ValueError),
        ((x, zeros.double(), ones, None, None, True), RuntimeError),
        ((x, zeros.clone().requires_grad_(), ones, None, None, True), RuntimeError),
        ((x, zeros, ones, torch.ones(3), None, True), RuntimeError),
    ]
    for arguments, error in wrong:
        texts = []
        for mode in (contextlib.nullcontext(), Names()):
            with mode, pytest.raises(error) as caught:
                F.batch_norm_act(*arguments)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
    assert not zeros.any() and torch.equal(ones, torch.ones(5))


def test_a_gradient_that_is_none() -> None:
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:
            return None

    weight = torch.ones(5, requires_grad=True)
    for mode in (contextlib.nullcontext(), Names()):
        with mode:
            Stop.apply(
                F.batch_norm_act(torch.randn(2, 5, 3, 3), None, None, weight, None, True)
            ).sum().backward()
    assert weight.grad is None or not weight.grad.any()


def test_opcheck_of_the_moving_form() -> None:
    x, weight = torch.randn(3, 5, 4, 4), torch.rand(5)
    arguments = (x, torch.zeros(5), torch.ones(5), weight, None, 0.1, 1e-5, "relu")
    torch.library.opcheck(
        torch.ops.opswap.batch_norm_act_moving.default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("saved", [[], [torch.ops.aten.convolution.default]], ids=["none", "convolutions"])
def test_selective_checkpoints_move_them_twice(early_stop: bool, saved: list[Any]) -> None:
    """As torch's do: the forward that runs again ends early only after they have moved."""
    stock = nn.Sequential(
        *(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8, momentum=0.5), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, momentum=0.5), nn.Hardswish()),
    ).to(torch.float64, memory_format=torch.channels_last)
    swapped = opswap.swap(copy.deepcopy(stock))
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    contexts = partial(create_selective_checkpoint_contexts, saved)
    found = []
    for model in (swapped, stock):
        leaf = x.clone().requires_grad_()
        with set_checkpoint_early_stop(early_stop):
            output = checkpoint(model, leaf, use_reentrant=False, context_fn=contexts)
            output.sin().sum().backward()
        found.append([*model.buffers(), leaf.grad, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found)
