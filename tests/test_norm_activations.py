# SPDX-License-Identifier: MIT
"""The activations of batch_norm_act: values and gradients against float64 and torch, edges, parameters, derivatives."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import opswap
from inputs import LAYOUTS
from nearness import Quantities, assert_as_near, named
from norm_steps import away_from_kinks, outputs_and_gradients, parameters
from opswap import functional as F
from opswap.ops.norm import parse, reference, spell
from step import saved_by

ACTIVATIONS = (
    "relu",
    "relu6",
    "hardswish",
    "leaky_relu",
    "leaky_relu(0.2)",
    "leaky_relu(-0.5)",
    "hardtanh",
    "hardtanh(-0.25, 2.0)",
    "hardsigmoid",
    "sigmoid",
    "silu",
    "elu",
    "elu(0.7)",
    "gelu",
    "gelu_tanh",
    "mish",
    "softplus",
    "softplus(2.0, 3.0)",
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FORMATS = (torch.contiguous_format, torch.channels_last)

EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "hardsigmoid": lambda z: torch.nn.functional.relu6(z + 3) / 6,
    "gelu": lambda z: z * torch.erfc(z * -(0.5**0.5)) / 2,
    "gelu_tanh": lambda z: z * torch.sigmoid((8 / math.pi) ** 0.5 * (z + 0.044715 * z**3)),
}


def truth(input: Tensor, *arguments: Any) -> Tensor:
    """`reference`, where torch's own float64 result is not exact: differences that cancel, 1/6 rounded to float32."""
    exact = EXACT.get(arguments[-1])
    return exact(reference(input, *arguments[:-1])) if exact else reference(input, *arguments)


def step(*arguments: Any) -> Quantities:
    return named(outputs_and_gradients(*arguments))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_as_near_to_float64_as_torch(activation: str, tier: str) -> None:
    """Every dtype, both formats and modes; planes with and without whole vectors, rows that fill no pattern."""
    wide = tier.startswith("portable")
    for dtype, memory_format, training in itertools.product(DTYPES, FORMATS, (True, False)):
        for size in ((3, 5, 7, 6), (2, 3, 2, 1)) if wide else ((5, 18, 11, 7), (3, 4, 2, 1), (2, 130, 5, 3)):

            def draw(
                size: Any = size, dtype: Any = dtype, form: Any = memory_format, mode: Any = training
            ) -> Any:
                vectors = parameters(size[1], dtype if dtype == torch.float64 else torch.float32)
                x = away_from_kinks((torch.randn(size) * 2 + 1).to(dtype), vectors, mode)
                x, grad = x.contiguous(memory_format=form), torch.randn(size).to(dtype)
                exact = tuple(v.double() for v in vectors)
                want = step(truth, x.double(), grad.double(), exact, mode, activation)
                ours = step(F.batch_norm_act, x, grad, vectors, mode, activation)
                return want, step(reference, x, grad, vectors, mode, activation), ours

            assert_as_near(draw, times=2, floor=32 if dtype == torch.float64 else 8)


# --- the functions themselves ----------------------------------------------------------------------------------------

UNCHANGED = (torch.zeros(1), torch.ones(1), torch.ones(1), torch.full((1,), -0.0))


def alone(
    function: Any, x: Tensor, activation: str, grad: float = 1.0, channels: int = 2
) -> tuple[Tensor, Tensor]:
    """The activation and its gradient alone, behind statistics that change nothing."""
    vectors = (v.repeat(channels).to(x.dtype) for v in UNCHANGED)
    leaf = x.detach().requires_grad_()
    y = function(leaf, *vectors, False, 0.1, 0.0, activation)
    return y.detach(), torch.autograd.grad(y, leaf, torch.full_like(y, grad))[0]


def floats(step: int) -> Tensor:
    """Floats of all sizes, as (1, 2, *)."""
    bits = torch.arange(torch.randint(step, ()).item() - 2**31, 2**31, step)
    x = bits.to(torch.int32).view(torch.float32)
    x = x[x.abs() < 1e30]
    return x[: len(x) // 2 * 2].view(1, 2, -1).contiguous()


def units(got: Tensor, want: Tensor) -> Tensor:
    """Errors in units of the last place of a float32 of the truth's size."""
    exponent = want.abs().clamp(min=2.0**-126).log2().floor()
    error = torch.where(got.double() == want, 0.0, got.double() - want).abs()
    return torch.where(got.double() == want.float(), 0.0, error / torch.exp2(exponent - 23))


# Of our values, in units of the last place. Where e^z is denormal, z times its rounding is up to 52 units of a result
# that is denormal too; the argument of gelu_tanh is rounded before its exponential is taken.
LARGEST = {
    "silu": 54,
    "elu": 2,
    "elu(0.7)": 3,
    "gelu": 8,
    "gelu_tanh": 400,
    "mish": 54,
    "softplus": 2,
}
# Computed by torch, whose result is 0 where e^-z overflows.
LARGEST |= {"sigmoid": math.inf}
LARGEST |= {"softplus(2.0, 3.0)": 5, "hardswish": 4, "hardsigmoid": 3, "hardtanh(-0.25, 2.0)": 0}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_errors_of_values(activation: str, tier: str) -> None:
    """At most one unit more than torch's largest, over floats of all sizes; slow tiers are asked for some of them."""
    x = floats(20011)
    want, _ = alone(truth, x.double(), activation)
    theirs = units(alone(reference, x, activation)[0], want).max().item()
    if tier.startswith("portable") or tier == "scalar":
        x, want = (v[..., ::300].contiguous() for v in (x, want))
    for channels_last in (False, True):
        made = x.transpose(1, 2).contiguous().transpose(1, 2) if channels_last else x
        ours = units(alone(F.batch_norm_act, made, activation)[0], want).max().item()
        assert ours <= theirs + 1
        assert ours <= LARGEST.get(activation, 1)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_errors_of_derivatives(activation: str, tier: str) -> None:
    """At most twice torch's largest error, plus four roundings of 1."""
    x = floats(6000011 if tier.startswith("portable") or tier == "scalar" else 20011).clamp(-30, 30)
    _, want = alone(truth, x.double(), activation)
    ours, theirs = (alone(f, x, activation)[1].double() for f in (F.batch_norm_act, reference))
    allowed = 2 * (theirs - want).abs().max() + 2.0**-21
    assert (ours - want).abs().max() <= allowed


EDGES = (float("nan"), -0.0, 0.0, float("inf"), -float("inf"), -3.0, 3.0, 6.0, -1.0, 1.0, 2.0, 1e30, -1e30)
EDGES = (*EDGES, 1.5, -0.25, 1e-40, -1e-40, 20.0, -20.0, 21.0, -88.0, -104.0, 89.0, 104.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_edges_are_torchs(activation: str, dtype: torch.dtype, tier: str) -> None:
    row = torch.tensor(EDGES * 3).to(dtype)
    for shape in ((1, 1, -1), (-1, 1)):
        x = row.view(shape).expand(*(2 if i == 1 else -1 for i in range(len(shape)))).contiguous()
        ours, stock, exact = (
            alone(f, v, activation, 2.0)
            for f, v in ((F.batch_norm_act, x), (reference, x), (truth, x.double()))
        )
        for i, (got, theirs, want) in enumerate(zip(ours, stock, exact, strict=True)):
            # torch's own gradients of a NaN depend on where in the tensor it is.
            same = ~x.isnan() if i else torch.ones_like(x, dtype=torch.bool)
            # At 1e30, float32 overflows in torch's gradient of gelu_tanh; ours does on some tiers, float64 nowhere.
            assert not (got[same].isnan() & ~theirs[same].isnan()).any()
            assert got[same][theirs[same].isnan() & want[same].isnan()].isnan().all()
            same &= ~theirs.isnan()
            if i and activation == "sigmoid":  # of the rounded output, as torch's
                want = theirs
            close = {
                "rtol": 1e-5 if dtype.itemsize > 2 else 1e-2,
                "atol": 1e-4 if dtype.itemsize == 2 else 1e-30,
            }
            torch.testing.assert_close(got[same], want[same].to(dtype), **close)


# --- derivatives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivatives(activation: str, training: bool) -> None:
    vectors = parameters(2, torch.float64)
    x = away_from_kinks(torch.randn(3, 2, 3, dtype=torch.float64), vectors, training)
    mean, var, *affine = vectors
    leaves = [t.requires_grad_() for t in (x, *affine)]

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.batch_norm_act(x, mean.clone(), var.clone(), weight, bias, training, 0.1, 1e-5, activation)

    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def test_the_input_is_all_that_is_kept() -> None:
    x = torch.randn(4, 6, 8, 8, requires_grad=True)
    kept = saved_by(lambda: F.batch_norm_act(x, None, None, training=True, activation="silu"))
    assert [t.data_ptr() for t in kept if t.numel() == x.numel()] == [x.data_ptr()]


@pytest.mark.parametrize("activation", ["silu", "sigmoid", "leaky_relu(0.2)", "gelu_tanh"])
def test_compiled(activation: str) -> None:
    module = opswap.nn.BatchNormAct2d(6, activation=activation)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 6, 5, 4)
    results = []
    for m in (module, compiled):
        leaf = x.clone().requires_grad_()
        y = m(leaf)
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
        results.append((y.detach(), leaf.grad, m.weight.grad, m.running_var))
    torch.testing.assert_close(*results)


# --- sigmoid, whose output is kept ------------------------------------------------------------------------------------


def sigmoid(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return F.batch_norm_act(x, None, None, weight, bias, True, activation="sigmoid")


def stock_sigmoid(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return reference(x, None, None, weight, bias, True, activation="sigmoid")


def by_the_operator(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return torch.ops.opswap.batch_norm_act(x, None, None, weight, bias, 1e-5, "sigmoid")[0]


WAYS = {"eager": sigmoid, "operator": by_the_operator}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sigmoid_keeps_no_more_than_torch(dtype: torch.dtype, way: str) -> None:
    x = torch.randn(4, 6, 8, 8).to(dtype).requires_grad_()
    weight, bias = (v.requires_grad_() for v in parameters(6, max(dtype, torch.float32, key=_size))[2:])
    totals = []
    for function in (WAYS[way], stock_sigmoid):
        kept: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: kept.setdefault(t.data_ptr(), t.nbytes) and t, lambda t: t
        ):
            y = function(x, weight, bias)
        assert {x.data_ptr(), y.data_ptr()} <= kept.keys() and bias.data_ptr() not in kept
        totals.append(sum(n for n in kept.values() if n >= x.nbytes))
    assert totals[0] == totals[1] == 2 * x.nbytes


def _size(dtype: torch.dtype) -> int:
    return dtype.itemsize


@pytest.mark.parametrize("way", WAYS)
def test_changes_before_the_backward_of_sigmoid(way: str) -> None:
    """Of the output they raise, as with torch's; the bias is not read."""
    x, (weight, bias) = torch.randn(4, 6, 5, 5, requires_grad=True), parameters(6, torch.float32)[2:]
    leaves = [x, weight.requires_grad_(), bias.requires_grad_()]
    y = WAYS[way](*leaves)
    want = torch.autograd.grad(y.square().sum(), leaves, retain_graph=True)
    with torch.no_grad():
        bias.add_(1)
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), leaves, retain_graph=True), want)
    for function in (WAYS[way], stock_sigmoid):
        y = function(*leaves)
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        twice = function(*leaves)
        twice.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            twice.sum().backward()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(4, 6), (4, 6, 10), (4, 6, 5, 7), (2, 3, 2, 5, 3)], ids=str)
def test_layouts_of_sigmoid(size: tuple[int, ...], layout: str) -> None:
    """Gradients in every layout and expanded ones."""
    x = LAYOUTS[layout](torch.randn(size)).detach().requires_grad_()
    affine = parameters(size[1], torch.float32)[2:]
    leaves = [x, *(v.requires_grad_() for v in affine)]
    # Of equal images the variance is 0 and the gradient 0, as a difference of terms that are 316 times as large.
    atol = 1e-4 if layout == "expanded_batch" and len(size) == 2 else 1e-5
    outputs = sigmoid(*leaves), stock_sigmoid(*leaves)
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)
    for grad in (LAYOUTS[layout](torch.randn(size)), torch.randn(size), torch.ones(()).expand(size)):
        ours, theirs = (torch.autograd.grad(y, leaves, grad, retain_graph=True) for y in outputs)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=atol)
        assert ours[0].stride() == theirs[0].stride()


@pytest.mark.parametrize("way", WAYS)
def test_transforms_of_sigmoid(way: str) -> None:
    x, tangent = torch.randn(2, 3, 4, 2, 3, dtype=torch.float64).unbind()
    affine = parameters(4, torch.float64)[2:]
    function, stock = (lambda x, f=f: f(x, *affine) for f in (WAYS[way], stock_sigmoid))
    results = []
    for f in (function, stock):
        once = torch.func.jvp(f, (x,), (tangent,))
        mapped = torch.func.vmap(torch.func.grad(lambda x, f=f: f(x).square().sum()))(
            torch.stack((x, tangent))
        )
        hessian = torch.func.hessian(lambda x, f=f: f(x).square().sum())(x)
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(leaf).square().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        y = f(leaf)
        batched = torch.autograd.grad(y, leaf, torch.stack((tangent, x)), is_grads_batched=True)
        results.append((*once, mapped, hessian, second, *batched))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("selective", [False, True])
def test_a_checkpoint_of_sigmoid(selective: bool) -> None:
    context: dict[str, Any] = {}
    if selective:
        policy = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mul.Tensor])
        context = {"context_fn": policy}
    leaves = [torch.randn(4, 6, 5, 5), *parameters(6, torch.float32)]
    leaves = [t.requires_grad_(i not in (1, 2)) for i, t in enumerate(leaves)]

    def run(x: Tensor, mean: Tensor, var: Tensor, *affine: Tensor) -> Tensor:
        return x * F.batch_norm_act(x * 2, mean, var, *affine, True, activation="sigmoid")

    results = []
    for y in (run(*leaves), checkpoint(run, *leaves, use_reentrant=False, **context)):
        results.append((y, *torch.autograd.grad(y.mean((2, 3)).square().sum(), [leaves[0], *leaves[3:]])))
    torch.testing.assert_close(*results)


# --- texts -----------------------------------------------------------------------------------------------------------


def test_texts() -> None:
    assert parse("leaky_relu") == ("leaky_relu", (0.01,)) and parse("hardtanh") == ("hardtanh", (-1.0, 1.0))
    for activation in ((("elu"), 0.1), ("hardtanh", -1e-05, 3e7), ("softplus", 2, 1 / 3), ("gelu",)):
        name, *parameters = activation
        assert parse(spell(*activation)) == (name, tuple(parameters) or parse(name)[1])
        F.batch_norm_act(torch.randn(3, 2), None, None, training=True, activation=spell(*activation))


BAD = ("", "selu", "relu(", "relu()", "relu6(0.0, 6.0)", "leaky_relu(", "leaky_relu()", "leaky_relu(a)")
BAD = (
    *BAD,
    "leaky_relu(1.0",
    "leaky_relu(1.0, 2.0)",
    "hardtanh(1.0)",
    "hardtanh(1.0 2.0)",
    "elu(1.0)x",
    "GELU",
)


@pytest.mark.parametrize("activation", BAD)
@pytest.mark.parametrize("graph", [False, True])
def test_texts_that_are_none(activation: str, graph: bool) -> None:
    x = torch.randn(3, 2, requires_grad=graph)
    with pytest.raises(ValueError, match="activation"):
        F.batch_norm_act(x, None, None, training=True, activation=activation)
    with pytest.raises(ValueError, match=r"batch_norm.*activation"):
        opswap._core.batch_norm(True, 0.1, 1e-5, activation, x, None, None, None, None, 2, False)
    with pytest.raises(ValueError, match="BatchNormAct2d: activation must be"):
        opswap.nn.BatchNormAct2d(2, activation=activation)


MODULES = {
    "leaky_relu(0.2)": nn.LeakyReLU(0.2),
    "hardtanh(-0.25, 2.0)": nn.Hardtanh(-0.25, 2.0),
    "hardsigmoid": nn.Hardsigmoid(),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
    "elu(0.7)": nn.ELU(0.7),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "mish": nn.Mish(),
    "softplus(2.0, 3.0)": nn.Softplus(2.0, 3.0),
}


@pytest.mark.parametrize("activation", MODULES)
def test_modules(activation: str) -> None:
    """The module, a copy of it, and what SyncBatchNorm's conversion makes of it."""
    ours = opswap.nn.BatchNormAct2d(6, activation=activation)
    nn.init.normal_(ours.weight)
    norm = nn.BatchNorm2d(6)
    norm.load_state_dict(ours.state_dict())
    stock = nn.Sequential(norm, MODULES[activation])
    x = 3 * torch.randn(4, 6, 5, 3)
    torch.testing.assert_close(ours(x), stock(x), rtol=1e-4, atol=1e-5)
    want = stock.eval()(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(ours)).eval()
    for twin in (ours.eval(), pickle.loads(pickle.dumps(ours)), converted):
        torch.testing.assert_close(twin(x), want, rtol=1e-4, atol=1e-5)
    assert repr(ours.act) == repr(MODULES[activation])


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_sigmoid_without_a_weight_or_a_bias(scaled: bool, shifted: bool, training: bool) -> None:
    """The output takes the place of the bias among the tensors that are kept, also of one that is not there."""
    results = []
    for function in (
        lambda x, *v: F.batch_norm_act(x, *v, training, activation="sigmoid"),
        lambda x, *v: torch.sigmoid(torch.nn.functional.batch_norm(x, *v, training)),
    ):
        torch.manual_seed(0)
        x = torch.randn(3, 5, 4, 6).requires_grad_()
        weight, bias = (torch.rand(5).requires_grad_() if given else None for given in (scaled, shifted))
        y = function(x, torch.zeros(5), torch.ones(5), weight, bias)
        leaves = [t for t in (x, weight, bias) if t is not None]
        results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
