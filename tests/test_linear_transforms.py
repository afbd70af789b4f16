# SPDX-License-Identifier: MIT
"""Grouped linear maps under everything that torch puts around an operator."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import opswap
from nearness import Quantities, assert_as_near
from opswap import GroupedLinear, _core
from opswap import functional as F

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


def loss(function: Callable[..., Tensor], sections: Any) -> Callable[..., Tensor]:
    return lambda x, weight, bias: function(x.sin(), weight, bias, sections).square().sum()


def gradients(f: Callable[..., Tensor], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(f(*leaves), leaves)


def close(a: Any, b: Any, **options: Any) -> bool:
    return all(
        torch.allclose(p, q, **{"atol": 1e-4, "rtol": 1e-4, **options}) for p, q in zip(a, b, strict=True)
    )


@every_form
@pytest.mark.parametrize("bias", [True, False])
def test_derivatives(sections: Any, bias: bool) -> None:
    """First and second order, forward mode, batched gradients."""
    leaves = tensors(sections, torch.float64)
    leaves = leaves if bias else leaves[:2]

    def f(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.grouped_linear(x, weight, bias, sections)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no batching rule of its own for an operator
        assert torch.autograd.gradcheck(
            f, leaves, check_forward_ad=True, check_batched_grad=True, fast_mode=True
        )
    assert torch.autograd.gradgradcheck(f, leaves, check_fwd_over_rev=True, fast_mode=True)


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


@every_form
def test_compile_fullgraph(sections: Any) -> None:
    torch._dynamo.reset()
    leaves = tensors(sections)
    opswap.reset_stats()
    compiled = torch.compile(loss(F.grouped_linear, sections), fullgraph=True, backend="aot_eager")
    assert close(gradients(compiled, leaves), gradients(loss(plain, sections), leaves))
    assert opswap.stats()["kernel"] == {"grouped_linear": 1, "grouped_linear_backward": 1}
    with torch.no_grad():
        assert torch.allclose(compiled(*leaves), loss(plain, sections)(*leaves), rtol=1e-4)


def test_compile_with_changing_batch() -> None:
    torch._dynamo.reset()
    layer = GroupedLinear(6, [1, 4, 2])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (2, 5, 9):
        x = torch.randn(n, 3, 6)
        assert torch.allclose(compiled(x), layer(x))
        compiled(x).sum().backward()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("build", [lambda: GroupedLinear(6, 4, 3), lambda: GroupedLinear(6, [1, 4, 2])])
def test_export_with_dynamic_batch(build: Callable[[], nn.Module], strict: bool) -> None:
    layer = build()
    batch = torch.export.Dim("batch", min=2, max=64)
    x = torch.randn(5, 3, 6)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: batch},), strict=strict)
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    targets = {str(node.target) for graph in graphs for node in graph.nodes}
    assert "opswap.grouped_linear.default" in targets
    x = torch.randn(9, 3, 6)
    assert torch.allclose(program.module()(x), layer(x))


@every_form
def test_opcheck(sections: Any) -> None:
    x, weight, bias = (t.detach() for t in tensors(sections))
    dy = torch.randn(5, *weight.shape[:-1])
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    forward, backward = OPERATORS.grouped_linear.default, OPERATORS.grouped_linear_backward.default
    for b in (bias, None):
        torch.library.opcheck(forward, (x, weight, b, sections), test_utils=tests)
    for mask in ([True, True, True], [False, True, False]):
        torch.library.opcheck(backward, (dy, x, weight, sections, mask), test_utils=tests)


@every_form
@pytest.mark.parametrize("dims", [(0, None, None), (2, None, None), (0, 0, 0), (None, 1, None), (1, None, 0)])
def test_vmap(sections: Any, dims: tuple[int | None, ...]) -> None:
    leaves = [t.detach() for t in tensors(sections)]
    many = [
        t if d is None else torch.stack([t, 2 * t, t.flip(0)], d) for t, d in zip(leaves, dims, strict=True)
    ]

    def mine(*args: Tensor) -> Tensor:
        return F.grouped_linear(*args, sections)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = torch.vmap(mine, in_dims=dims)(*many)
        gradient = torch.func.grad(loss(F.grouped_linear, sections), argnums=(0, 1, 2))
        per_sample = torch.vmap(gradient, in_dims=dims)(*many)
    singles = [
        [t if d is None else t.select(d, k) for t, d in zip(many, dims, strict=True)] for k in range(3)
    ]
    assert torch.allclose(got, torch.stack([plain(*s, sections) for s in singles]), atol=1e-5)
    want = [gradients(loss(plain, sections), [t.clone().requires_grad_() for t in s]) for s in singles]
    assert close(per_sample, [torch.stack(ts) for ts in zip(*want, strict=True)])


@every_form
def test_func_transforms(sections: Any) -> None:
    leaves = [t.detach() for t in tensors(sections)]
    mine, theirs = (loss(f, sections) for f in (F.grouped_linear, plain))
    tangents = tuple(torch.randn_like(t) for t in leaves)
    got, want = (torch.func.jvp(f, tuple(leaves), tangents)[1] for f in (mine, theirs))
    assert torch.allclose(got, want, rtol=1e-4)
    got, want = (torch.func.hessian(f, argnums=1)(*leaves) for f in (mine, theirs))
    assert torch.allclose(got, want, atol=1e-3)


@every_form
def test_vmap_of_the_operators(sections: Any) -> None:
    x, weight, bias = (t.detach() for t in tensors(sections))
    dy = torch.randn(2, 5, *weight.shape[:-1])
    forward, backward = OPERATORS.grouped_linear.default, OPERATORS.grouped_linear_backward.default
    mask = [True, True, False]
    with torch.no_grad():
        got = torch.vmap(lambda t: forward(t, weight, bias, sections))(torch.stack([x, -x]))
        assert torch.allclose(got[1], plain(-x, weight, bias, sections), atol=1e-5)
        got = torch.vmap(lambda t: backward(t, x, weight, sections, mask)[:2])(dy)
        for k in range(2):
            want = backward(dy[k], x, weight, sections, mask)[:2]
            assert close([t[k] for t in got], want)


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


@every_form
def test_the_form_for_other_devices_gives_the_same(sections: Any) -> None:
    leaves = tensors(sections)
    opswap.reset_stats()
    with opswap.force_reference():
        got = gradients(loss(F.grouped_linear, sections), leaves)
        raw = OPERATORS.grouped_linear.default(*(t.detach() for t in leaves), sections)
    assert opswap.stats()["reference"]["grouped_linear"] == 2 and not opswap.stats()["kernel"]
    assert close(got, gradients(loss(plain, sections), leaves))
    assert torch.allclose(raw, plain(*leaves, sections), atol=1e-5)
    dy = torch.randn_like(raw)
    backward = OPERATORS.grouped_linear_backward.default
    arguments = (dy, *(t.detach() for t in leaves[:2]), sections, [True, True, True])
    with opswap.force_reference():
        reference = backward(*arguments)
    assert close(reference, backward(*arguments))


@every_form
def test_meta_and_fake_tensors(sections: Any) -> None:
    x, weight, bias = (t.detach() for t in tensors(sections))
    size = plain(x, weight, bias, sections).shape
    y = F.grouped_linear(x.to("meta"), weight.to("meta"), bias.to("meta"), sections)
    assert y.device.type == "meta" and y.shape == size
    with FakeTensorMode() as mode:
        y = F.grouped_linear(*(mode.from_tensor(t) for t in (x, weight, bias)), sections)
        assert y.shape == size and y.is_contiguous()


def test_tracing_modes_see_the_operator() -> None:
    x, weight, bias = (t.detach() for t in tensors(None))
    graph = make_fx(lambda *t: F.grouped_linear(*t))(x, weight, bias)
    assert OPERATORS.grouped_linear.default in {node.target for node in graph.graph.nodes}


def test_subclasses_and_views_of_complex_numbers() -> None:
    class Marked(Tensor):
        pass

    x, weight, bias = (t.detach() for t in tensors(None))
    want = F.grouped_linear(x, weight, bias)
    marked = F.grouped_linear(x.as_subclass(Marked), weight, bias)
    assert isinstance(marked, Marked) and torch.equal(marked.as_subclass(Tensor), want)
    negative = torch.complex(x, -x).conj().imag
    assert negative.is_neg() and torch.equal(F.grouped_linear(negative, weight, bias), want)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_other_dtypes_run_as_plain_torch(dtype: torch.dtype) -> None:
    x, weight, bias = ((3 * t.detach()).to(dtype) for t in tensors(None))
    opswap.reset_stats()
    got = F.grouped_linear(x, weight, bias)
    counts = opswap.stats()
    assert counts["kernel"] == {} and counts["reference"] == {"grouped_linear": 1}
    assert torch.allclose(got, plain(x, weight, bias, None))


def test_checkpoint_copies_and_pickle() -> None:
    layer = GroupedLinear(6, [1, 4, 2])
    x = torch.randn(5, 3, 6, requires_grad=True)
    want = torch.autograd.grad(layer(x).square().sum(), (x, *layer.parameters()))
    y = checkpoint(layer, x, use_reentrant=False)
    assert close(torch.autograd.grad(y.square().sum(), (x, *layer.parameters())), want)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), layer(x))
    other = GroupedLinear(6, [1, 4, 2])
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))


def test_no_grad_and_inference_mode_make_no_graph() -> None:
    x, weight, bias = tensors(None)
    with torch.no_grad():
        assert F.grouped_linear(x, weight, bias).grad_fn is None
    with torch.inference_mode():
        assert F.grouped_linear(x, weight, bias).is_inference()
    assert "GroupedLinear" in type(F.grouped_linear(x, weight, bias).grad_fn).__name__


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
