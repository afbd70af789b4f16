# SPDX-License-Identifier: MIT
"""Batch normalisation against float64 and against torch: values, statistics, layouts, gradients, memory kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import opswap
from inputs import LAYOUTS, channels_last_of, same_bits
from nearness import Quantities, assert_as_near, named
from norm_steps import DISTANCES, assert_close, away_from_kinks, outputs_and_gradients, parameters
from opswap import _core
from opswap import functional as F
from opswap.ops._layout import suggest_memory_format
from opswap.ops.norm import infer, reference
from step import saved_bytes
from threads import same_on_any_threads

ACTIVATIONS = (None, "relu", "relu6", "hardswish")
# Planes and rows around the widths of vectors, channels that divide no vector, wide patterns, odd leftovers.
SIZES = (
    (9, 8),
    (3, 4, 7),
    (4, 58, 7, 7),
    (3, 2, 3, 3),
    (2, 1, 9, 9),
    (3, 17, 5, 1),
    (2, 3, 50, 47),
    (2, 1027, 2, 3),
    (2, 3, 4, 5, 6),
)


@pytest.mark.parametrize("dtype", DISTANCES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_float64(size: tuple[int, ...], dtype: torch.dtype, tier: str) -> None:
    vector_dtype = dtype if dtype == torch.float64 else torch.float32
    formats = {torch.contiguous_format, channels_last_of(len(size))}
    for memory_format, activation, training in itertools.product(formats, ACTIVATIONS, (True, False)):
        vectors = parameters(size[1], vector_dtype)
        x = away_from_kinks((torch.randn(size) * 2 + 1).to(dtype), vectors, training)
        x = x.contiguous(memory_format=memory_format)
        grad = torch.randn(size).to(dtype)
        got = outputs_and_gradients(F.batch_norm_act, x, grad, vectors, training, activation)
        exact = tuple(v.double() for v in vectors)
        want = outputs_and_gradients(reference, x.double(), grad.double(), exact, training, activation)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w)
        assert [g.dtype for g in got] == [dtype, dtype, *(vector_dtype for _ in range(4))]


@pytest.mark.parametrize("name", sorted(_core.norm_variants()))
def test_every_variant_runs(name: str, tier: str) -> None:
    _, form, dtype = name.split("_")
    dtype = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    x = torch.randn(2, 3, 4, 5).to(dtype)
    if form == "pixels":
        x = x.contiguous(memory_format=torch.channels_last)
    before = _core.norm_variants()[name]
    F.batch_norm_relu(x.requires_grad_(), None, None, training=True).sum().backward()
    assert _core.norm_variants()[name] == before + 1


# --- statistics ------------------------------------------------------------------------------------------------------


def statistics_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance as the running statistics receive them in float64's place."""
    output, statistics = torch.ops.opswap.batch_norm_act(x, None, None, None, None, 1e-5, None)
    assert output.shape == x.shape
    return statistics[0], statistics[1]


def hard_inputs() -> Iterator[tuple[str, Tensor]]:
    yield "normal", torch.randn(8, 24, 40, 40)
    yield "large mean", torch.randn(8, 24, 30, 30) * 0.01 + 1000
    yield "first value far off", torch.randn(8, 24, 17, 17).index_fill_(0, torch.tensor([0]), 30.0)
    yield "sparse", torch.randn(8, 24, 25, 25).sub(2).relu()
    yield "constant", torch.full((4, 24, 9, 9), 0.1)
    outlier = torch.randn(8, 24, 25, 25)
    outlier[0, :, 0, 0] = 1e5
    yield "outlier among the samples", outlier


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_statistics_are_good_to_1e_6(memory_format: torch.memory_format, tier: str) -> None:
    for name, x in hard_inputs():
        x = x.contiguous(memory_format=memory_format)
        mean, var = statistics_of(x)
        exact = x.double()
        want_mean, want_var = exact.mean((0, 2, 3)), exact.var((0, 2, 3), correction=0)
        invstd, want_invstd = (v.add(1e-5).rsqrt() for v in (var, want_var))
        std = want_var.sqrt()
        assert (mean - want_mean).abs().le(1e-6 * std + 1e-12).all(), name
        assert (invstd / want_invstd - 1).abs().max() <= 1e-6, name


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_sums_of_the_backward_are_good_to_1e_6(memory_format: torch.memory_format, tier: str) -> None:
    x = (torch.randn(8, 24, 40, 40) * 0.01 + 1000).contiguous(memory_format=memory_format)
    grad = torch.randn(x.shape)
    _, statistics = torch.ops.opswap.batch_norm_act(x, None, None, None, None, 1e-5, None)
    weight = torch.ones(24)
    options = (weight, weight, True, 1e-5, None, [False, True, True])
    got = torch.ops.opswap.batch_norm_act_backward(grad, x, statistics, *options)
    normalised = reference(x.double(), None, None, training=True)
    for g, w in zip(got, ((grad * normalised).sum((0, 2, 3)), grad.double().sum((0, 2, 3))), strict=True):
        assert (g - w).abs().max() <= 1e-6 * x[:, 0].numel() ** 0.5


def test_values_at_a_large_mean_are_exact(tier: str) -> None:
    """float32 cannot hold the mean to what the values are apart: what it lacks is not lost."""
    x = torch.randn(4, 6, 20, 20) * 0.01 + 1000
    want = reference(x.double(), None, None, training=True, eps=1e-8)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        dense = x.contiguous(memory_format=memory_format)
        got = F.batch_norm(dense, None, None, training=True, eps=1e-8)
        assert (got - want).abs().max() < 2e-6


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_bits_do_not_depend_on_threads(memory_format: torch.memory_format, tier: str) -> None:
    for size in ((16, 3, 80, 80), (9, 70, 15, 15), (40, 24, 31, 29)):
        x = torch.randn(size).contiguous(memory_format=memory_format)
        arguments = (x, torch.randn(size), parameters(size[1], torch.float32), True, "relu")
        same_on_any_threads(partial(outputs_and_gradients, F.batch_norm_act, *arguments), 5)


# --- activations -----------------------------------------------------------------------------------------------------

EDGES = (
    float("nan"),
    -0.0,
    0.0,
    float("inf"),
    -float("inf"),
    -3.0,
    3.0,
    6.0,
    -3.0000002,
    2.9999998,
    5.9999995,
    7.0,
    -7.0,
)


@pytest.mark.skipif(opswap._torch._version() < (2, 12), reason="this torch refuses an eps of 0 in evaluation")
@pytest.mark.parametrize("dtype", DISTANCES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_edges_of_activations_are_torchs(activation: str | None, dtype: torch.dtype, tier: str) -> None:
    """Statistics that change nothing, so that the activation sees the edges themselves."""
    row = torch.tensor(EDGES * 3).to(dtype)
    vectors = (torch.zeros(2), torch.ones(2), torch.ones(2), torch.full((2,), -0.0))
    vectors = tuple(v.to(dtype) for v in vectors)
    for size in ((3, 2, 13), (39, 2)):
        x = row.view(3, 1, 13).expand(3, 2, 13) if len(size) == 3 else row.view(39, 1).expand(39, 2)
        got, want = [], []
        for function, results in ((F.batch_norm_act, got), (reference, want)):
            leaf = x.contiguous().requires_grad_()
            y = function(leaf, *vectors, False, 0.1, 0.0, activation)
            (gradient,) = torch.autograd.grad(y, leaf, torch.full_like(y, 2.0))
            results += [y.detach(), gradient]
        # torch's own answer for relu6 depends on where in the tensor the NaN is.
        want[1] = torch.where(x.isnan(), 2.0, want[1]).to(dtype)
        for g, w in zip(got, want, strict=True):
            assert torch.equal(g.isnan(), w.isnan())
            assert torch.allclose(
                g.nan_to_num(9.0), w.nan_to_num(9.0), rtol=1e-6 if dtype.itemsize > 2 else 1e-2
            )
            assert torch.equal(g.signbit()[~g.isnan()], w.signbit()[~w.isnan()])


def test_a_gradient_that_is_not_finite_stays_behind_the_activation(tier: str) -> None:
    x = torch.tensor([[-1.0, 2.0], [-2.0, 3.0]] * 8).requires_grad_()
    grad = torch.full_like(x, 1.0)
    grad[:, 0] = float("nan")
    y = F.batch_norm_relu(x, torch.zeros(2), torch.ones(2))
    assert torch.autograd.grad(y, x, grad)[0][:, 0].eq(0).all()


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(4, 6), (4, 6, 10), (4, 6, 5, 7), (2, 3, 2, 5, 3)], ids=str)
def test_every_layout(size: tuple[int, ...], layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(size))
    vectors, grad = parameters(size[1], torch.float32), LAYOUTS[layout](torch.randn(size))
    before = x.clone()
    got = outputs_and_gradients(F.batch_norm_act, x, grad, vectors, True, "hardswish")
    want = outputs_and_gradients(reference, x, grad, vectors, True, "hardswish")
    assert torch.equal(x, before)
    for g, w in zip(got, want, strict=True):
        assert torch.allclose(g, w, rtol=1e-3, atol=1e-4)
    assert got[0].stride() == want[0].stride() or 1 in size


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "size", [(4, 6, 1, 1), (1, 6, 1, 1), (3, 1, 4, 5), (2, 1, 1, 1), (3, 1, 2, 2, 3)], ids=str
)
def test_strides_that_fit_two_formats(size: tuple[int, ...], last: bool, training: bool) -> None:
    x = torch.empty(size, memory_format=channels_last_of(len(size)) if last else torch.contiguous_format)
    x.normal_()
    vectors = parameters(size[1], torch.float32)
    if training and x.numel() == size[1]:
        pytest.skip("one value per channel")
    want = T.batch_norm(x, *vectors, training=training)
    fixed = (None, None) if training else vectors[:2]
    operator = torch.ops.opswap.batch_norm_act.default
    with FakeTensorMode() as fake:
        arguments = [None if t is None else fake.from_tensor(t) for t in (x, *fixed, *vectors[2:])]
        told, _ = operator(*arguments, 1e-5, None)
    made = {
        "kernel": F.batch_norm_act(x, *vectors, training),
        "graph": F.batch_norm_act(x.clone().requires_grad_(), *vectors, training),
        "operator": operator(x, *fixed, *vectors[2:], 1e-5, None)[0],
        "fake": told,
        "over": infer(x.clone(), *vectors, training, inplace=True),
    }
    assert {k: v.stride() for k, v in made.items()} == dict.fromkeys(made, want.stride())


def laid_out(size: tuple[int, ...]) -> Iterator[Tensor]:
    """Of this size in every order of memory, and with strides that mean nothing in dimensions of size 1."""
    for order in itertools.permutations(range(len(size))):
        x = torch.randn([size[d] for d in order]).permute([order.index(d) for d in range(len(size))])
        yield x
        for odd in (1, 7, 100):
            yield x.as_strided(size, [odd if n == 1 else s for n, s in zip(size, x.stride(), strict=True)])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "size",
    [(2, 3, 4, 1), (2, 3, 1, 4), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (2, 3, 4, 5), (2, 3, 2, 4, 1)],
    ids=str,
)
def test_memory_formats_are_torchs(size: tuple[int, ...], training: bool) -> None:
    """Of the output and of the gradient of the input, whatever the formats of the input and the gradient."""
    vectors = parameters(size[1], torch.float32)
    operator = torch.ops.opswap.batch_norm_act.default
    backward = torch.ops.opswap.batch_norm_act_backward.default
    fixed = (None, None) if training else vectors[:2]
    settings = (*vectors[2:], training, 1e-5, None, (True, False, False))
    for x in itertools.islice(laid_out(size), 0, None, 1 if len(size) == 4 else 7):
        leaf = x.detach().requires_grad_()
        want, ours = (
            T.batch_norm(leaf, *vectors, training=training),
            F.batch_norm_act(leaf, *vectors, training),
        )
        with FakeTensorMode() as fake:
            told, statistics = operator(
                *(None if t is None else fake.from_tensor(t) for t in (x, *fixed, *vectors[2:])), 1e-5, None
            )
        with opswap.force_reference():
            plain = operator(x, *fixed, *vectors[2:], 1e-5, None)[0]
        made = {
            "kernel": F.batch_norm_act(x, *vectors, training),
            "graph": ours,
            "fake": told,
            "plain": plain,
        }
        assert {k: v.stride() for k, v in made.items()} == dict.fromkeys(made, want.stride()), x.stride()
        over = infer(torch.empty_strided(size, x.stride()).copy_(x), *vectors, training, inplace=True)
        assert suggest_memory_format(over) is suggest_memory_format(want), x.stride()
        statistics = operator(x, *fixed, *vectors[2:], 1e-5, None)[1]
        token = torch.empty(size[0], *size[2:], size[1]).movedim(-1, 1)
        for grad in (torch.ones_like(want), torch.ones(size), token, torch.ones(()).expand(size)):
            stride = torch.autograd.grad(want, leaf, grad, retain_graph=True)[0].stride()
            with FakeTensorMode() as fake:
                tensors = [fake.from_tensor(t) for t in (grad, x, statistics, *vectors[2:])]
                told = backward(*tensors, *settings[2:])[0]
            with opswap.force_reference():
                plain = backward(grad, x, statistics, *settings)[0]
            made = {
                "graph": torch.autograd.grad(ours, leaf, grad, retain_graph=True)[0],
                "operator": backward(grad, x, statistics, *settings)[0],
                "fake": told,
                "plain": plain,
            }
            assert {k: v.stride() for k, v in made.items()} == dict.fromkeys(made, stride), x.stride()


def test_a_chunk_of_channels_is_read_in_place() -> None:
    x = torch.randn(3, 8, 5, 5).chunk(2, 1)[1]
    vectors = parameters(4, torch.float32)
    output = _core.batch_norm(False, 0.1, 1e-5, "relu", x, *vectors, 0, True)
    assert torch.allclose(output, reference(x, *vectors, activation="relu"), atol=1e-5)


def test_expanded_gradients_and_parameters_with_strides() -> None:
    x = torch.randn(4, 6, 5, 5)
    wide = torch.rand(4, 12).add(0.5)
    vectors = tuple(row[::2] for row in wide)
    leaf = x.clone().requires_grad_()
    F.batch_norm_relu(leaf, *vectors, training=True).mean().backward()
    other = x.clone().requires_grad_()
    reference(other, *(v.clone() for v in vectors), training=True, activation="relu").mean().backward()
    assert torch.allclose(leaf.grad, other.grad, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_expanded_gradient_in_a_checkpoint(activation: str | None, training: bool) -> None:
    """The kernel declines such a gradient; what is kept may be unpacked once only."""
    x = torch.randn(4, 6, 5, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    leaves = [x, *(v.requires_grad_() for v in parameters(6, torch.float32)[2:])]
    fixed = (None, None) if training else parameters(6, torch.float32)[:2]

    def run(x: Tensor, *affine: Tensor) -> Tensor:
        return F.batch_norm_act(x, *fixed, *affine, training, activation=activation)

    results = []
    for y in (run(*leaves), checkpoint(run, *leaves, use_reentrant=False)):
        results.append(torch.autograd.grad(y.mean((2, 3)).square().sum(), leaves))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_empty_batches_and_no_channels() -> None:
    for size in ((0, 3, 4, 4), (2, 3, 0, 4), (2, 0, 4, 4)):
        mean, var = torch.zeros(size[1]), torch.ones(size[1])
        leaf, weight = torch.randn(size).requires_grad_(), torch.ones(size[1]).requires_grad_()
        y = F.batch_norm_relu(leaf, mean, var, weight, training=True)
        y.sum().backward()
        assert y.shape == leaf.grad.shape == size
        assert mean.eq(0).all() and var.eq(1).all() and weight.grad.eq(0).all()


# --- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.75, 1.0])
def test_running_statistics_move_as_torchs(momentum: float, dtype: torch.dtype) -> None:
    def moved(function: Callable[..., Tensor], x: Tensor) -> Quantities:
        statistics = torch.zeros(3, dtype=x.dtype), torch.ones(3, dtype=x.dtype)
        for _ in range(3):
            function(x, *statistics, training=True, momentum=momentum)
        return named(statistics)

    def draw() -> tuple[Quantities, Quantities, Quantities]:
        x = (torch.randn(4, 3, 5, 5) * 3 + 2).to(dtype)
        return moved(T.batch_norm, x.double()), moved(T.batch_norm, x), moved(F.batch_norm, x)

    assert_as_near(draw, times=2, floor=1 if dtype is torch.bfloat16 else 8)


def test_only_the_gradients_needed_are_computed() -> None:
    x, grad = torch.randn(3, 4, 5, 5), torch.randn(3, 4, 5, 5)
    mean, var, weight, bias = parameters(4, torch.float32)
    for needed in itertools.product((True, False), repeat=3):
        if not any(needed):
            continue
        for training in (True, False):
            full = [t.clone().requires_grad_() for t in (x, weight, bias)]
            some = [t.clone().requires_grad_(n) for t, n in zip((x, weight, bias), needed, strict=True)]
            results = []
            for a, w, b in (full, some):
                y = F.batch_norm_relu(a, mean.clone(), var.clone(), w, b, training)
                leaves = [t for t in (a, w, b) if t.requires_grad]
                results.append(torch.autograd.grad(y, leaves, grad))
            wanted = [g for g, n in zip(results[0], needed, strict=True) if n]
            assert all(same_bits(a, b) for a, b in zip(wanted, results[1], strict=True))
    before = _core.norm_variants()["reduce_planes_f32"]
    leaf = x.clone().requires_grad_()
    F.batch_norm_relu(leaf, mean, var, weight, bias).backward(grad)
    assert _core.norm_variants()["reduce_planes_f32"] == before


def test_neither_output_nor_mask_is_kept() -> None:
    x = torch.randn(4, 6, 8, 8, requires_grad=True)
    weight = torch.ones(6, requires_grad=True)
    call = partial(F.batch_norm_act, x, None, None, weight, weight, True, activation="hardswish")
    assert saved_bytes(call) <= x.untyped_storage().nbytes() + 6 * (4 + 2 * 8)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "chunk", "offset"])
@pytest.mark.parametrize("dtype", DISTANCES, ids=str)
def test_in_place(dtype: torch.dtype, layout: str, tier: str) -> None:
    vectors = tuple(v.to(dtype) for v in parameters(13, torch.float32))
    for training in (False, True):
        x = LAYOUTS[layout](torch.randn(3, 13, 5, 11).to(dtype))
        want = F.batch_norm_act(x, *(v.clone() for v in vectors), training, activation="relu6")
        version = x._version
        got = infer(x, *vectors, training, activation="relu6", inplace=True)
        assert got is x and x._version > version and same_bits(x, want)


def test_in_place_gives_way() -> None:
    vectors = parameters(4, torch.float32)
    x = torch.randn(3, 4, 5, 5)
    for other in (x.clone().requires_grad_(), x.permute(2, 1, 0, 3), x[:1].expand(3, 4, 5, 5)):
        before = other.detach().clone()
        got = infer(other, *vectors, activation="relu", inplace=True)
        assert got is not other and torch.equal(other, before)
        assert torch.allclose(got, reference(before, *vectors, activation="relu"), atol=1e-5)
    with opswap.force_reference():
        assert infer(x, *vectors, inplace=True) is not x


def test_the_form_for_other_devices_is_torchs() -> None:
    x, vectors, grad = torch.randn(4, 3, 5, 5), parameters(3, torch.float32), torch.randn(4, 3, 5, 5)
    want = outputs_and_gradients(reference, x, grad, vectors, True, "relu6")
    opswap.reset_stats()
    with opswap.force_reference():
        got = outputs_and_gradients(F.batch_norm_act, x, grad, vectors, True, "relu6")
    assert opswap.stats()["reference"] == {"batch_norm_act": 1} and not opswap.stats()["kernel"]
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
    meta = F.batch_norm_relu(x.to("meta"), None, None, training=True)
    assert meta.is_meta and meta.shape == x.shape


def test_the_operators_on_plain_code() -> None:
    """What the operators do on a device without kernels agrees with the kernels."""
    for training, activation in itertools.product((True, False), ACTIVATIONS):
        x, grad = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
        mean, var, weight, bias = parameters(3, torch.float32)
        given = (None, None) if training else (mean, var)
        results = []
        for forced in (False, True):
            with opswap.force_reference() if forced else torch.no_grad():
                y, s = torch.ops.opswap.batch_norm_act(x, *given, weight, bias, 1e-5, activation)
                options = (weight, bias, training, 1e-5, activation, [True, True, True])
                results.append([y, s, *torch.ops.opswap.batch_norm_act_backward(grad, x, s, *options)])
        for a, b in zip(*results, strict=True):
            assert a.dtype == b.dtype and a.stride() == b.stride() and torch.allclose(a, b, 1e-3, 1e-4)


@pytest.mark.parametrize("activation", [None, "relu", "silu", "sigmoid"])
def test_a_bias_that_is_trained_alone_may_change_before_the_backward(activation: str | None) -> None:
    """As in torch, which does not keep it; a weight that changes raises."""
    x, vectors = torch.randn(3, 6, 4, 5), parameters(6, torch.float32)
    vectors[3].requires_grad_()
    out = F.batch_norm_act(x, *vectors, True, activation=activation)
    want = torch.autograd.grad(out.square().sum(), vectors[3], retain_graph=True)[0]
    with torch.no_grad():
        vectors[3].add_(1.0)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), vectors[3])[0], want)
    vectors[2].requires_grad_()
    out = F.batch_norm_act(x, *vectors, True, activation=activation)
    with torch.no_grad():
        vectors[2].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
