# SPDX-License-Identifier: MIT
"""Which gradients of grouped linear maps are computed and what is kept for them; training; autocast; other dtypes."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import opswap
from nearness import Quantities, assert_as_near
from opswap import GroupedLinear, _core
from opswap import functional as F
from step import saved_by

OPERATORS = torch.ops.opswap
SECTIONS: list[tuple[int, ...] | None] = [None, (1, 4, 2)]
every_form = pytest.mark.parametrize("sections", SECTIONS)


def tensors(sections: tuple[int, ...] | None, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Input, weight and bias."""
    rows = (3, 4) if sections is None else (sum(sections),)
    sizes = ((5, 3, 6), (*rows, 6), rows)
    return [torch.randn(size, dtype=dtype, requires_grad=True) for size in sizes]


def plain(x: Tensor, weight: Tensor, bias: Tensor | None, sections: tuple[int, ...] | None) -> Tensor:
    if sections is None:
        output = torch.einsum("...gi,goi->...go", x, weight)
    else:
        parts = zip(x.unbind(-2), weight.split(list(sections)), strict=True)
        output = torch.cat([t @ w.t() for t, w in parts], -1)
    return output if bias is None else output + bias


def close(a: Any, b: Any, **options: Any) -> bool:
    return all(
        torch.allclose(p, q, **{"atol": 1e-4, "rtol": 1e-4, **options}) for p, q in zip(a, b, strict=True)
    )


@every_form
def test_double_backward_of_each_gradient(sections: Any) -> None:
    leaves = tensors(sections)
    results = []
    for function in (F.grouped_linear, plain):
        output = function(*leaves, sections)
        for wanted in range(3):
            dy = torch.ones_like(output).requires_grad_()
            (first,) = torch.autograd.grad(output, leaves[wanted], dy, create_graph=True)
            results.append(
                torch.autograd.grad(
                    first.square().sum(), (*leaves[:2], dy), allow_unused=True, materialize_grads=True
                )
            )
    for ours, theirs in zip(results[:3], results[3:], strict=True):
        assert close(ours, theirs)


def test_only_the_gradients_asked_for_are_computed() -> None:
    x, weight, bias = tensors(None)
    for frozen in (x, weight, bias):
        leaves = [t.detach().requires_grad_(t is not frozen) for t in (x, weight, bias)]
        wanted = [t for t in leaves if t.requires_grad]
        got = torch.autograd.grad(F.grouped_linear(*leaves).square().sum(), wanted)
        assert close(got, torch.autograd.grad(plain(*leaves, None).square().sum(), wanted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_that_of_linear(dtype: torch.dtype) -> None:
    layer = GroupedLinear(6, 4, 3)
    linears = layer.to_linears()
    x = torch.randn(5, 3, 6)
    with torch.autocast("cpu", dtype):
        got = layer(x)
        want = torch.stack([m(x[:, g]) for g, m in enumerate(linears)], 1)
        double = F.grouped_linear(x.double(), layer.weight.detach().double())
    assert got.dtype == want.dtype == dtype and double.dtype is torch.float64
    assert torch.allclose(got, want, rtol=2e-2, atol=2e-2)
    got.float().sum().backward()
    assert layer.weight.grad.dtype is torch.float32 and layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_other_dtypes_run_as_plain_torch(dtype: torch.dtype) -> None:
    x, weight, bias = ((3 * t.detach()).to(dtype) for t in tensors(None))
    opswap.reset_stats()
    got = F.grouped_linear(x, weight, bias)
    counts = opswap.stats()
    assert counts["kernel"] == {} and counts["reference"] == {"grouped_linear": 1}
    assert torch.allclose(got, plain(x, weight, bias, None))


def test_repeated_steps_train_as_linears_do() -> None:
    """Twenty steps of SGD; float64 tells which rounding is nearer."""

    def train(module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, target: Tensor) -> None:
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        for _ in range(20):
            optimizer.zero_grad()
            (forward(x) - target).square().mean().backward()
            optimizer.step()

    def draw() -> tuple[Quantities, Quantities, Quantities]:
        layer = GroupedLinear(12, 5, 4)
        linears = nn.ModuleList(layer.to_linears())
        exact = copy.deepcopy(linears).double()
        x, target = torch.randn(32, 4, 12), torch.randn(32, 4, 5)
        train(layer, layer, x, target)
        for modules, dtype in ((linears, torch.float32), (exact, torch.float64)):

            def loop(t: Tensor, modules: nn.ModuleList = modules) -> Tensor:
                return torch.stack([m(t[:, g]) for g, m in enumerate(modules)], 1)

            train(modules, loop, x.to(dtype), target.to(dtype))
        ours = nn.ModuleList(layer.to_linears())
        return tuple(dict(m.named_parameters()) for m in (exact, linears, ours))

    assert_as_near(draw)


def test_the_extension_leaves_what_it_must_not_see() -> None:
    """The short way of ordinary tensors ends where anything but autograd watches."""
    x, weight, bias = (t.detach() for t in tensors(None))

    class Marked(Tensor):
        pass

    def taken(*arguments: Any) -> bool:
        return _core.plain_grouped_linear(*arguments, None) is not NotImplemented

    assert taken(x, weight, bias) == (opswap.isa.current() not in ("scalar", "neon"))
    refused = [(x.as_subclass(Marked), weight, bias), (x.to("meta"), weight, bias), (x, weight.half(), bias)]
    refused += [(torch.complex(x, -x).conj().imag, weight, bias), (x, weight, bias[:1]), (x[0], weight, bias)]
    refused += [(x, weight, 3), (x[:0], weight, bias), (x.transpose(0, 2), weight, bias)]
    for arguments in refused:
        assert not taken(*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        assert not taken(x, weight, bias)
    with torch.autograd.forward_ad.dual_level():
        assert not taken(x, weight, bias)
    with FakeTensorMode():
        assert not taken(x, weight, bias)
    with opswap.isa.limit("scalar"):
        assert not taken(x, weight, bias)
    assert torch.equal(torch.vmap(lambda t: 2 * t if taken(x, weight, bias) else t)(x), x)


def test_hooks_on_saved_tensors_see_what_is_kept() -> None:
    leaves = tensors(None)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t.clone(), lambda t: t):
        output = F.grouped_linear(*leaves)
    assert [t is u for t, u in zip(kept, leaves[:2], strict=True)] == [True, True]
    got = torch.autograd.grad(output.square().sum(), leaves)
    assert close(got, torch.autograd.grad(plain(*leaves, None).square().sum(), leaves))


class Subclass(Tensor):
    """Whose calls go through the dispatcher."""


@every_form
@pytest.mark.parametrize("kind", [Tensor, Subclass])
@pytest.mark.parametrize("needed", [n for n in itertools.product((False, True), repeat=3) if any(n)], ids=str)
def test_what_no_gradient_reads_may_change(needed: Any, kind: type[Tensor], sections: Any) -> None:
    """As with torch's products: the input is kept for the gradient of the weight only, and the other way round."""
    leaves = [t.detach().requires_grad_(n) for t, n in zip(tensors(sections), needed, strict=True)]
    wanted = [t for t in leaves if t.requires_grad]
    want = torch.autograd.grad(plain(*leaves, sections).square().sum(), wanted)
    of_input, of_weight, _ = needed
    kept = saved_by(lambda: F.grouped_linear(leaves[0].as_subclass(kind), *leaves[1:], sections))
    assert len(kept) == of_input + of_weight
    for changed, is_read in ((leaves[0], of_weight), (leaves[1], of_input)):
        output = F.grouped_linear(leaves[0].as_subclass(kind), *leaves[1:], sections)
        value = output.square().sum()
        with torch.no_grad():
            changed.mul_(1)
        if is_read:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                value.backward()
        else:
            assert close(torch.autograd.grad(value, wanted), want)


@every_form
@pytest.mark.parametrize("needed", [n for n in itertools.product((False, True), repeat=3) if any(n)], ids=str)
def test_double_backward_of_frozen_parts(needed: Any, sections: Any, fresh_is_nan: None) -> None:
    """Gradients of gradients do not read what the first backward got without values."""
    leaves = [t.detach().requires_grad_(n) for t, n in zip(tensors(sections), needed, strict=True)]
    wanted, results = [t for t in leaves if t.requires_grad], []
    for function in (F.grouped_linear, plain):
        output = function(*leaves, sections)
        dy = torch.ones_like(output).requires_grad_()
        first = torch.autograd.grad(output, wanted, dy, create_graph=True)
        for gradient in first:
            value = gradient.pow(3).sum()
            results.append(
                torch.autograd.grad(value, (*wanted, dy), retain_graph=True, materialize_grads=True)
            )
    half = len(results) // 2
    for ours, theirs in zip(results[:half], results[half:], strict=True):
        assert close(ours, theirs, rtol=1e-3, atol=1e-3)


@every_form
def test_an_expanded_gradient_in_a_checkpoint(sections: Any) -> None:
    """The kernel may decline such a gradient; what is kept may be unpacked once only."""
    leaves = tensors(sections)
    output = checkpoint(F.grouped_linear, *leaves, sections, use_reentrant=False)
    got = torch.autograd.grad(output.sum(), leaves)
    assert close(got, torch.autograd.grad(plain(*leaves, sections).sum(), leaves))
