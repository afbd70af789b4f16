# SPDX-License-Identifier: MIT
"""Grouped linear maps: the kernels of every tier against float64, the module, and the way to Linears and back."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.prune import l1_unstructured

import opswap
from nearness import assert_within_roundings
from opswap import GroupedLinear, _core
from opswap import functional as F
from opswap.ops.linear import _run
from surviving import survive
from threads import same_on_any_threads

# (rows, groups, in_features, out_features or a list): around the sizes of vectors, tiles and blocks.
SHAPES: list[tuple[int, int, int, int | tuple[int, ...]]] = [
    *((5, 3, i, 4) for i in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 65)),
    *((7, 2, 12, o) for o in (1, 2, 3, 5, 8, 9, 15, 16, 17, 33)),
    *((n, 2, 20, 9) for n in (1, 2, 3, 4, 6, 8, 13, 24, 25)),
    (300, 2, 9, 11),  # more rows than are summed at once
    (3, 1, 270, 300),  # more outputs, one group cut into parts
    (70, 1, 40, 24),
    (150, 2, 40, 150),  # more than a piece of rows, of outputs
    (9, 2, 1030, 2),  # more features than a strip
    *((72, 1, i, 20) for i in (256, 257, 270)),  # one or two passes over a packed weight
    (140, 1, 521, 12),
    (28, 2, 300, 20),  # so few that tiers without wide vectors do not pack the weight
    (64, 20, 840, 10),  # beyond the second cache, in rows that lie in pages of their own
    (64, 17, 40, 1),  # blocks that span all groups
    (2, 300, 5, 1),
    (4, 5, 24, (1, 20, 3, 0, 7)),
    (40, 4, 8, (2, 17, 1, 9)),
    (1, 20, 33, tuple(range(1, 21))),
    *((1100, 1, 5, o) for o in (1, 2, 26)),  # rows in parts, whose gradients of the weight are added up
    (1100, 3, 9, (4, 0, 27)),
]
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float64, *HALVES)


def sections_of(shape: tuple[Any, ...]) -> tuple[int, ...] | None:
    return shape[3] if isinstance(shape[3], tuple) else None


def make(shape: tuple[Any, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Input, weight and bias."""
    n, g, i, o = shape
    rows = (sum(o),) if isinstance(o, tuple) else (g, o)
    weight = (torch.randn(*rows, i) / math.sqrt(i)).to(dtype)
    return torch.randn(n, g, i, dtype=dtype), weight, torch.randn(rows, dtype=dtype)


def exact(x: Tensor, weight: Tensor, bias: Tensor | None, sections: Sequence[int] | None) -> Tensor:
    """The definition, group by group, in the dtype of the arguments."""
    weights = weight.unbind(0) if sections is None else weight.split(list(sections))
    parts = [x[:, g] @ w.t() for g, w in enumerate(weights)]
    output = torch.stack(parts, 1) if sections is None else torch.cat(parts, 1)
    return output if bias is None else output + bias


def gradients(
    x: Tensor, weight: Tensor, dy: Tensor, sections: Sequence[int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    bias = torch.zeros(weight.shape[:-1], dtype=x.dtype, requires_grad=True)
    leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_(), bias]
    return torch.autograd.grad(exact(*leaves, sections), leaves, dy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("fresh_is_nan")
def test_kernels(tier: str, shape: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Outputs and gradients against float64; every element is written."""
    x, weight, bias = make(shape, dtype)
    sections = sections_of(shape)
    assert x.new_empty(1).isnan()
    output = _core.grouped_linear(x, weight, bias, sections)
    dy = torch.randn_like(output)
    made = _core.grouped_linear_backward(dy, x, weight, sections, True, True, True)
    expected = []
    for change in (lambda t: t, torch.abs, torch.ones_like):  # the truth, its magnitudes, its number of terms
        a, w, b, d = (change(t.double()) for t in (x, weight, bias, dy))
        expected.append((exact(a, w, b, sections), *gradients(a, w, d, sections)))
    names = ("output", "gradient of the input", "gradient of the weight", "gradient of the bias")
    for name, *quantity in zip(names, (output, *made), *expected, strict=True):
        assert_within_roundings(*quantity, name)


@pytest.mark.usefixtures("fresh_is_nan")
def test_no_variant_is_left_out(tier: str) -> None:
    before = _core.linear_variants()
    for dtype in DTYPES:
        test_kernels(tier, SHAPES[0], dtype)
    assert all(count > before[name] for name, count in _core.linear_variants().items())


@pytest.mark.parametrize("shape", [(64, 17, 40, 1), (30, 2, 100, 40), (4, 5, 24, (1, 20, 3, 0, 7))])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_the_result_does_not_depend_on_threads(tier: str, shape: tuple[Any, ...], dtype: torch.dtype) -> None:
    shape = (shape[0] * 8, shape[1], shape[2] * 8, shape[3])
    x, weight, bias = make(shape, dtype)
    dy = torch.randn(shape[0], *bias.shape).to(dtype)

    def both_directions() -> tuple[Tensor, ...]:
        output = _core.grouped_linear(x, weight, bias, sections_of(shape))
        made = _core.grouped_linear_backward(dy, x, weight, sections_of(shape), True, True, True)
        return (output, *made)

    same_on_any_threads(both_directions)


def test_a_group_without_outputs_and_an_expanded_gradient(tier: str) -> None:
    """As of a sum over the rows: all rows of the gradient are one, and a group has no terms to prefetch."""
    x, weight, _ = make((48, 3, 20, (4, 0, 5)))
    dy = torch.randn(1, 9).expand(48, 9)
    made = _core.grouped_linear_backward(dy, x, weight, (4, 0, 5), True, True, True)
    for ours, want in zip(made, gradients(x, weight, dy, (4, 0, 5)), strict=True):
        torch.testing.assert_close(ours, want)


def test_strided_input_is_read_in_place(tier: str) -> None:
    x, weight, bias = make((6, 3, 20, 9))
    want = _core.grouped_linear(x, weight, bias, None)
    dy = torch.randn(6, 3, 9)
    gradient = _core.grouped_linear_backward(dy, x, weight, None, True, True, True)
    for view in (
        x.transpose(0, 1).contiguous().transpose(0, 1),
        torch.cat((x, x), 2)[..., :20],
        torch.cat((x, x), 1)[:, 3:],
    ):
        assert not view.is_contiguous()
        assert torch.equal(_core.grouped_linear(view, weight, bias, None), want)
        again = _core.grouped_linear_backward(dy, view, weight, None, True, True, True)
        assert all(torch.equal(a, b) for a, b in zip(again, gradient, strict=True))
    one = x[:, :1].expand(6, 3, 20)
    assert torch.allclose(
        F.grouped_linear(one, weight, bias), F.grouped_linear(one.contiguous(), weight, bias)
    )
    assert _core.grouped_linear(x.transpose(1, 2).contiguous().transpose(1, 2), weight, bias, None) is (
        NotImplemented
    )


def test_what_cannot_be_read_in_place_is_copied() -> None:
    x, weight, bias = make((6, 3, 20, 9))
    want = F.grouped_linear(x, weight, bias)
    odd = x.transpose(1, 2).contiguous().transpose(1, 2)
    other = weight.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(F.grouped_linear(odd, other, bias.t().contiguous().t()), want)
    leaf = odd.detach().requires_grad_()
    F.grouped_linear(leaf, other, bias).sum().backward()  # the gradient of a sum has strides of zero
    assert torch.allclose(leaf.grad, weight.sum(1).expand(6, 3, 20), atol=1e-5)


def test_gradients_that_are_not_asked_for_are_not_made() -> None:
    x, weight, _ = make((4, 3, 8, 5))
    dy = torch.randn(4, 3, 5)
    full = _core.grouped_linear_backward(dy, x, weight, None, True, True, True)
    for mask in ((True, None, None), (None, True, None), (False, None, True), (None, None, False)):
        made = _core.grouped_linear_backward(dy, x, weight, None, *mask)
        for got, want, wanted in zip(made, full, mask, strict=True):
            assert torch.equal(got, want) if wanted else got is None


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_sums_in_float32(dtype: torch.dtype) -> None:
    """No error beyond that of rounding the result once."""
    check_halves(*(t.to(dtype) for t in make((9, 3, 257, 20))))


def check_halves(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    got = F.grouped_linear(*leaves)
    dy = torch.randn_like(got)
    results = (got.detach(), *torch.autograd.grad(got, leaves, dy))
    expected = []
    for change in (lambda t: t, torch.abs, torch.ones_like):
        a, w, b, d = (change(t.double()) for t in (x, weight, bias, dy))
        expected.append((exact(a, w, b, None), *gradients(a, w, d, None)))
    for ours, *quantity in zip(results, *expected, strict=True):
        assert ours.dtype is x.dtype
        assert_within_roundings(ours, *quantity)


@pytest.mark.parametrize("tiles", [False, True])
def test_large_groups_of_16_bits_that_the_cpu_multiplies_go_to_the_library(
    monkeypatch: pytest.MonkeyPatch, tiles: bool
) -> None:
    calls = []
    for name in ("baddbmm", "bmm"):
        function = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, f=function, n=name, **k: calls.append(n) or f(*a, **k))
    monkeypatch.setattr(_run, "_matrix_units", lambda dtype: dtype is torch.bfloat16)
    monkeypatch.setattr(_run, "_multiplies_tiles", lambda dtype: tiles)
    backward = ["bmm", "bmm"] if tiles or not _core.linear_leads() else []
    x, weight, bias = (t.bfloat16() for t in make((64, 2, 128, 128)))
    check_halves(x, weight, bias)
    assert calls == ["baddbmm", *backward]
    with torch.no_grad():
        output = F.grouped_linear(x, weight, bias)
    assert output.is_contiguous() and torch.equal(output, _run.reference(x, weight, bias))
    without = F.grouped_linear(x, weight)
    assert without.is_contiguous() and torch.equal(without, _run.reference(x, weight))
    calls.clear()
    check_halves(*(t.bfloat16() for t in make((64, 2, 64, 64))))
    assert calls == ["baddbmm", *([] if _core.linear_leads() else backward)]


@pytest.mark.parametrize("tier_name", ["scalar", "avx512"])
def test_large_groups_go_to_the_library_elsewhere(monkeypatch: Any, tier_name: str) -> None:
    """Another tier than avx2 may leave work to the library; here the scalar one stands for each."""
    calls = []
    monkeypatch.setattr(_core, "isa_current", lambda: tier_name)
    monkeypatch.setattr(torch, "baddbmm", lambda *a, f=torch.baddbmm, **k: calls.append(1) or f(*a, **k))
    with opswap.isa.limit("scalar"):
        check_library_calls(calls)


def check_library_calls(calls: list[int]) -> None:
    for shape, library in (((40, 2, 40, 40), 1), ((40, 2, 40, 1), 0), ((4, 2, 8, 8), 0)):
        x, weight, bias = (t.requires_grad_() for t in make(shape))
        calls.clear()
        output = F.grouped_linear(x, weight, bias)
        assert len(calls) == library
        want = exact(x, weight, bias, None)
        assert torch.allclose(output, want, atol=1e-5) and output.is_contiguous()
        dy = torch.randn_like(want)
        pairs = zip(
            torch.autograd.grad(output, (x, weight, bias), dy),
            torch.autograd.grad(want, (x, weight, bias), dy),
            strict=True,
        )
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in pairs)


def test_nan_and_infinity_pass() -> None:
    x, weight, bias = make((3, 2, 10, 3))
    x[0, 0, 0], x[1, 1, 9] = math.nan, math.inf
    output = F.grouped_linear(x, weight, bias)
    assert output[0, 0].isnan().all() and output[1, 1].isinf().all()
    assert output[0, 1].isfinite().all() and output[2].isfinite().all()


@pytest.mark.parametrize("sections", [None, (2, 4)])
def test_empty(sections: tuple[int, ...] | None) -> None:
    size = (2, 3) if sections is None else (6,)
    for n, i in ((0, 5), (4, 0), (0, 0)):
        x, weight = torch.zeros(n, 2, i, requires_grad=True), torch.zeros(*size, i, requires_grad=True)
        bias = torch.arange(6.0).view(size).requires_grad_()
        output = F.grouped_linear(x, weight, bias, sections)
        assert torch.equal(output, bias.detach().expand(n, *size))
        output.sum().backward()
        assert torch.equal(bias.grad, torch.full(size, float(n))) and x.grad.shape == x.shape
        assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_shapes_of_input_and_output() -> None:
    layer = GroupedLinear(8, 5, 3)
    for lead in ((), (4,), (2, 4), (2, 1, 4)):
        x = torch.randn(*lead, 3, 8)
        assert layer(x).shape == (*lead, 3, 5)
        assert torch.equal(layer(x.flatten(-2)), layer(x).flatten(-2))
    ragged = GroupedLinear(8, [1, 4, 2], 3)
    x = torch.randn(2, 4, 3, 8)
    assert ragged(x).shape == ragged(x.flatten(-2)).shape == (2, 4, 7)
    assert torch.equal(ragged(x.flatten(-2)), ragged(x))
    want = torch.cat([m(x[..., g, :]) for g, m in enumerate(ragged.to_linears())], -1)
    assert torch.allclose(ragged(x), want, atol=1e-6)


def test_classes_per_group() -> None:
    layer = GroupedLinear(6, 4, classes_per_group=[3, 1, 2])
    linears = layer.to_linears()
    assert len(linears) == 6 and layer.weight.shape == (6, 4, 6) and layer.groups == 3
    x = torch.randn(5, 3, 6)
    group = [0, 0, 0, 1, 2, 2]
    want = torch.stack([m(x[:, g]) for m, g in zip(linears, group, strict=True)], 1)
    assert layer(x).shape == (5, 6, 4) and torch.allclose(layer(x), want, atol=1e-6)
    again = GroupedLinear.from_linears(linears, classes_per_group=[3, 1, 2])
    assert torch.equal(again.weight, layer.weight) and torch.equal(again(x), layer(x))


def test_one_output_a_class() -> None:
    linears = [nn.Linear(6, 1) for _ in range(4)]
    x = torch.randn(5, 4, 6)
    want = torch.cat([m(x[:, i]) for i, m in enumerate(linears)], 1)
    assert torch.allclose(GroupedLinear.from_linears(linears, ragged=True)(x), want, atol=1e-6)
    assert torch.allclose(GroupedLinear.from_linears(linears)(x).flatten(1), want, atol=1e-6)


def test_initialised_as_every_linear() -> None:
    """Uniform within 1 / sqrt(in_features), whatever the number of groups or of outputs."""
    for layer in (GroupedLinear(400, 30, 20), GroupedLinear(400, [1] * 300 + [300])):
        for p in (layer.weight, layer.bias):
            assert p.abs().max() <= 1 / 20
            assert abs(p.std().item() * 20 - 1 / math.sqrt(3)) < 0.05
    assert GroupedLinear(4, 2, 3, bias=False).bias is None


def test_activation_and_repr() -> None:
    layer = GroupedLinear(4, 2, 3, activation=nn.ReLU())
    x = torch.randn(9, 3, 4)
    assert (layer(x) >= 0).all() and (layer(x) == 0).any()
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert "in_features=4, out_features=2, groups=3, bias=True" in repr(layer)
    assert opswap.GroupedLinear is opswap.nn.GroupedLinear is GroupedLinear
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x)) and twin.weight is not layer.weight


@pytest.mark.parametrize("sizes", [(4, 4, 4), (1, 5, 2), (7,)])
@pytest.mark.parametrize("bias", [True, False])
def test_from_linears_and_back(sizes: tuple[int, ...], bias: bool) -> None:
    linears = [nn.Linear(6, o, bias).eval() for o in sizes]
    for m in linears:
        for p in m.parameters():
            p.grad = torch.randn_like(p)
    layer = GroupedLinear.from_linears(linears)
    assert not layer.training and (layer.bias is not None) == bias
    for a, b in zip(layer.to_linears(), linears, strict=True):
        assert not a.training and (a.in_features, a.out_features) == (b.in_features, b.out_features)
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert torch.equal(p, q) and torch.equal(p.grad, q.grad) and p is not q
            assert p.untyped_storage().data_ptr() != layer.weight.untyped_storage().data_ptr()
    for p in layer.parameters():
        p.requires_grad_(False)
    assert not any(p.requires_grad for m in layer.to_linears() for p in m.parameters())


CONSTRUCTOR: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((0, 4, 3), {}, ValueError, "in_features must be positive, got 0"),
    ((4, -1, 3), {}, ValueError, "out_features must be positive, got -1"),
    ((4, 2, 0), {}, ValueError, "groups must be positive, got 0"),
    ((4.0, 2, 3), {}, TypeError, "in_features must be an int, got 4.0"),
    ((4, True, 3), {}, TypeError, "out_features must be an int, got True"),
    ((4, 2), {}, ValueError, "groups is needed"),
    ((4, [1, 2], 3), {}, ValueError, r"3 groups, but the list has 2: \[1, 2\]"),
    ((4, []), {}, ValueError, "out_features must not be empty"),
    ((4, [1, 0]), {}, ValueError, r"out_features\[1\] must be positive, got 0"),
    ((4, 2, 3), {"classes_per_group": [1, 2]}, ValueError, "3 groups, but the list has 2"),
    ((4, [2], 1), {"classes_per_group": [1]}, ValueError, "must be one number with classes_per_group"),
    ((4, 2), {"classes_per_group": 3}, TypeError, "classes_per_group must be a list of ints, got int"),
    ((4, 2, 3), {"activation": "relu"}, TypeError, "activation must be callable, got 'relu'"),
]


@pytest.mark.parametrize("args, options, error, message", CONSTRUCTOR)
def test_constructor_errors(args: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GroupedLinear(*args, **options)


def _linears() -> list[nn.Linear]:
    return [nn.Linear(4, 2) for _ in range(3)]


def _changed(change: Any) -> list[nn.Linear]:
    linears = _linears()
    linears[1] = change(linears)
    return linears


def _with(**attributes: Any) -> nn.Linear:
    linear = nn.Linear(4, 2)
    for name, value in attributes.items():
        setattr(linear, name, value)
    return linear


def _hooked(register: str) -> nn.Linear:
    linear = nn.Linear(4, 2)
    getattr(linear, register)(lambda *_: None)
    return linear


def _with_hook_of_bias() -> nn.Linear:
    linear = nn.Linear(4, 2)
    linear.bias.register_hook(lambda grad: grad)
    return linear


FROM_LINEARS: list[tuple[Any, type[Exception], str]] = [
    (lambda m: nn.Linear(5, 2), ValueError, r"linears\[1\] has in_features 5, linears\[0\] has 4"),
    (lambda m: nn.Linear(4, 2, False), ValueError, r"linears\[1\] has bias False"),
    (lambda m: nn.Linear(4, 2).double(), ValueError, r"weight.dtype torch.float64, .* torch.float32"),
    (lambda m: nn.Linear(4, 2).eval(), ValueError, r"linears\[1\] has training False"),
    (lambda m: m[0], ValueError, r"linears\[1\] and linears\[0\] share their weight"),
    (lambda m: nn.Identity(), TypeError, r"linears\[1\] must be a torch.nn.Linear, got Identity"),
    (lambda m: nn.Linear(4, 2).requires_grad_(False), ValueError, "weight.requires_grad False"),
    (lambda m: _with(bias=m[0].bias), ValueError, r"linears\[1\] and linears\[0\] share their bias"),
    (lambda m: _hooked("register_forward_hook"), ValueError, r"linears\[1\] has hooks"),
    (lambda m: _hooked("register_forward_pre_hook"), ValueError, r"linears\[1\] has hooks"),
    (lambda m: _hooked("register_full_backward_hook"), ValueError, r"linears\[1\] has hooks"),
    (lambda m: torch.nn.utils.weight_norm(nn.Linear(4, 2)), ValueError, r"linears\[1\] has hooks"),
    (lambda m: l1_unstructured(nn.Linear(4, 2), "weight", 0.5), ValueError, r"linears\[1\] has hooks"),
    (lambda m: _with(forward=torch.tanh), ValueError, "a forward of its own"),
    (lambda m: _with_hook_of_bias(), ValueError, r"linears\[1\].bias has hooks"),
]


@pytest.mark.parametrize("change, error, message", FROM_LINEARS)
def test_from_linears_names_the_first_difference(change: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GroupedLinear.from_linears(_changed(change))


def test_from_linears_of_wrong_numbers() -> None:
    with pytest.raises(ValueError, match="got an empty list"):
        GroupedLinear.from_linears([])
    with pytest.raises(ValueError, match=r"\[1, 1\] sums to 2, but there are 3 Linears"):
        GroupedLinear.from_linears(_linears(), classes_per_group=[1, 1])
    with pytest.raises(ValueError, match=r"the classes differ in out_features: \[2, 3, 2\]"):
        GroupedLinear.from_linears(_changed(lambda m: nn.Linear(4, 3)), classes_per_group=[1, 2])


def _call(**changes: Any) -> dict[str, Any]:
    x, weight, bias = make((4, 3, 5, 2))
    return {"input": x, "weight": weight, "bias": bias, **changes}


CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    (_call(input=torch.randn(4, 3, 6)), RuntimeError, r"\(4, 3, 6\) must end in \(3, 5\) or \(15,\)"),
    (_call(input=torch.randn(4, 2, 5)), RuntimeError, r"\(4, 2, 5\) must end in \(3, 5\)"),
    (_call(input=torch.tensor(1.0)), RuntimeError, r"input of size \(\) must end in"),
    (_call(weight=torch.randn(3, 5, 2)), RuntimeError, r"does not fit|must end in"),
    (_call(weight=torch.randn(6, 5)), RuntimeError, r"weight must be \(groups, out, in\).*got \(6, 5\)"),
    (_call(bias=torch.randn(2, 3)), RuntimeError, r"bias of size \(2, 3\) does not fit the weight"),
    (_call(bias=torch.randn(6)), RuntimeError, r"bias of size \(6,\) does not fit"),
    (_call(input=torch.randn(4, 3, 5).double()), RuntimeError, "weight is torch.float32 .* torch.float64"),
    (_call(bias=torch.randn(3, 2).double()), RuntimeError, "bias is torch.float64"),
    (_call(input=[1.0]), TypeError, "input must be a tensor, got list"),
    (_call(bias=0), TypeError, "bias must be a tensor, got int"),
    (_call(weight=torch.randn(6, 5), out_features=[1, 2]), RuntimeError, r"\[1, 2\] must .* sum to the 6"),
    (_call(weight=torch.randn(6, 5), out_features=[7, -1]), RuntimeError, r"\[7, -1\] must be non-negative"),
    (_call(weight=torch.randn(6, 5), out_features=6), TypeError, "must be a list of ints, got 6"),
    (_call(weight=torch.randn(6, 5), out_features=[6.0]), TypeError, r"list of ints, got \[6.0\]"),
    (
        _call(weight=torch.randn(6, 5), bias=None, out_features=[2, 4]),
        RuntimeError,
        r"must end in \(2, 5\) or \(10,\)",
    ),
]


@pytest.mark.parametrize("arguments, error, message", CALLS)
@pytest.mark.parametrize("forced", [False, True])
def test_call_errors(arguments: Any, error: type[Exception], message: str, forced: bool) -> None:
    with pytest.raises(error, match=message):
        if forced:
            with opswap.force_reference():
                F.grouped_linear(**arguments)
        else:
            F.grouped_linear(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"bias": torch.zeros(3, 2).double()},
        {"bias": torch.zeros(2, 3)},
        {"sections": (3, 3)},
        {"sections": [2, 2, 2]},
        {"input": torch.zeros(4, 15)},
        {"input": torch.zeros(4, 3, 5).half()},
    ],
)
def test_the_extension_checks_for_itself(arguments: dict[str, Any]) -> None:
    given = {**_call(), "sections": None, **arguments}
    with pytest.raises((RuntimeError, TypeError), match="grouped_linear: "):
        _core.grouped_linear(*given.values())


def test_released_memory_is_an_error() -> None:
    """Each tensor in turn, dense and strided, with a graph and without: torch would read it to make it dense."""
    out = survive(
        """
def strided(*size):
    return torch.randn(*size[::-1]).permute(*reversed(range(len(size))))

calls = 0
for make in (torch.randn, strided):
    for dtype in (torch.float32, torch.bfloat16):
        for lead in ((8,), (8, 8)):
            for gone in range(3):
                for grad in (False, True):
                    sizes = (*lead, 8, 8), (8, 4, 8), (8, 4)
                    tensors = [make(*size).to(dtype).requires_grad_(grad) for size in sizes]
                    tensors[gone].untyped_storage().resize_(0)
                    calls += 1
                    attempt("call", lambda: F.grouped_linear(*tensors))
print("calls", calls)
"""
    )
    assert "calls 48" in out and out.count("RuntimeError") == 48
