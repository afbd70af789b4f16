# SPDX-License-Identifier: MIT
"""The pools under everything that torch puts around an operator."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import opswap
from inputs import LAYOUTS, same_bits
from opswap import functional as F

OPERATORS = torch.ops.opswap
IMAGES, VOLUMES = (2, 4, 6, 7), (2, 3, 4, 5, 6)


def _split(x: Tensor) -> Tensor:
    return F.global_max_pool2d(x, ties="split", keepdim=False)


# name: ours, torch's, size of the input
POOLS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "max2d": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: T.max_pool2d(x, 3, 2, 1), IMAGES),
    "max3d": (lambda x: F.max_pool3d(x, 2, 1, 1), lambda x: T.max_pool3d(x, 2, 1, 1), VOLUMES),
    "max3d_images": (
        lambda x: F.max_pool3d(x, (1, 3, 3), (2, 1, 2)),
        lambda x: T.max_pool3d(x, (1, 3, 3), (2, 1, 2)),
        IMAGES,
    ),
    "avg2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda x: T.avg_pool2d(x, 3, 2, 1), IMAGES),
    "avg3d": (lambda x: F.avg_pool3d(x, 2, 1, 1), lambda x: T.avg_pool3d(x, 2, 1, 1), VOLUMES),
    "avg3d_images": (
        lambda x: F.avg_pool3d(x, (1, 3, 3), (2, 1, 2)),
        lambda x: T.avg_pool3d(x, (1, 3, 3), (2, 1, 2)),
        IMAGES,
    ),
    "adaptive1d": (
        lambda x: F.adaptive_max_pool1d(x, 3),
        lambda x: T.adaptive_max_pool1d(x, 3),
        (2, 3, 7),
    ),
    "adaptive2d": (
        lambda x: F.adaptive_max_pool2d(x, (2, 3)),
        lambda x: T.adaptive_max_pool2d(x, (2, 3)),
        IMAGES,
    ),
    "adaptive3d": (
        lambda x: F.adaptive_max_pool3d(x, 2),
        lambda x: T.adaptive_max_pool3d(x, 2),
        VOLUMES,
    ),
    "global": (_split, lambda x: x.amax((2, 3)), IMAGES),
}
every_pool = pytest.mark.parametrize("name", sorted(POOLS))


def loss_of(pool: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: pool(x.sin()).square().sum()


def value_and_gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    value = f(leaf)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


@every_pool
def test_derivatives(name: str) -> None:
    """First and second order, forward mode, batched gradients; inputs without ties, where max has a derivative."""
    ours, _, size = POOLS[name]
    count = torch.Size(size).numel()
    x = (torch.randperm(count).double() / 8).view(size).requires_grad_()
    x = x[:, :2, ..., :5].detach().requires_grad_()
    options = {"fast_mode": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no batching rule of its own for an operator
        assert torch.autograd.gradcheck(ours, x, check_forward_ad=True, check_batched_grad=True, **options)
    assert torch.autograd.gradgradcheck(ours, x, **options)


@every_pool
def test_compile_fullgraph(name: str) -> None:
    ours, theirs, size = POOLS[name]
    torch._dynamo.reset()
    x = torch.randn(size)
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    opswap.reset_stats()
    compiled = torch.compile(loss_of(ours), fullgraph=True, backend="aot_eager")
    got, want = (value_and_gradient(f, x) for f in (compiled, loss_of(ours)))
    assert all(torch.allclose(g, w) for g, w in zip(got, want, strict=True))
    assert opswap.stats()["kernel"] and not opswap.stats()["reference"]
    with torch.no_grad():
        assert torch.allclose(compiled(x), loss_of(theirs)(x.contiguous()))


def test_compiled_inference_writes_no_offsets() -> None:
    torch._dynamo.reset()
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    with torch.no_grad():
        torch.compile(lambda x: F.max_pool2d(x, 2), fullgraph=True, backend=keep)(torch.randn(IMAGES))
    targets = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert targets == ["opswap.max_pool.default"]


def test_compile_with_changing_sizes() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(loss_of(POOLS["max2d"][0]), fullgraph=True, backend="aot_eager", dynamic=True)
    for batch, width in ((2, 7), (3, 8), (4, 11)):
        x = torch.randn(batch, 4, 6, width)
        got, want = (value_and_gradient(f, x) for f in (compiled, loss_of(POOLS["max2d"][1])))
        assert all(torch.allclose(g, w) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["max2d", "max3d_images", "avg2d", "adaptive2d", "global"])
def test_export_with_dynamic_batch(name: str, strict: bool) -> None:
    ours, _, size = POOLS[name]

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return ours(self.conv(x))

    net = Net()
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = ({0: batch},)
    program = torch.export.export(net, (torch.randn(size),), dynamic_shapes=shapes, strict=strict)
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    assert any(str(node.target).startswith("opswap.") for graph in graphs for node in graph.nodes)
    x = torch.randn(9, *size[1:])
    assert torch.allclose(program.module()(x), net(x))


def _operator_calls(x: Tensor) -> list[tuple[Any, tuple[Any, ...]]]:
    geometry = ([3, 2], [2, 1], [1, 0], [1, 2])
    output, offsets = OPERATORS.max_pool_with_offsets(x, *geometry, True, 2)
    pooled, index = OPERATORS.adaptive_max_pool_with_index(x, [2, 3])
    average = ([3, 2], [2, 1], [1, 0], True, False, None, 2)
    largest = OPERATORS.global_amax(x)
    last = torch.channels_last
    mean = OPERATORS.avg_pool(x, *average)
    return [
        (OPERATORS.max_pool, (x, *geometry, True, 2)),
        (OPERATORS.max_pool_with_offsets, (x, *geometry, True, 2)),
        (OPERATORS.max_pool_backward, (torch.randn_like(output), offsets, x.shape, *geometry, 2, last)),
        (OPERATORS.max_pool_indices, (offsets, x.shape[2:], *geometry)),
        (OPERATORS.avg_pool, (x, *average)),
        (OPERATORS.avg_pool_backward, (torch.randn_like(mean), x.shape, *average, last)),
        (OPERATORS.adaptive_max_pool, (x, [2, 3])),
        (OPERATORS.adaptive_max_pool_with_index, (x, [2, 3])),
        (OPERATORS.adaptive_max_pool_backward, (torch.randn_like(pooled), index, x.shape, last)),
        (OPERATORS.global_amax, (x,)),
        (OPERATORS.global_amax_backward, (torch.randn_like(largest), x, largest)),
    ]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "chunk", "spatial_slice"])
def test_opcheck(layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(IMAGES))
    for operator, arguments in _operator_calls(x):
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(operator.default, arguments, test_utils=tests)


@every_pool
def test_func_transforms(name: str) -> None:
    ours, theirs, size = POOLS[name]
    x = torch.randn(3, *size)
    mine, stock = loss_of(ours), loss_of(theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = torch.vmap(ours)(x)
        gradients = torch.vmap(torch.func.grad(mine))(x)
        assert torch.allclose(torch.func.grad(mine)(x[0]), value_and_gradient(stock, x[0])[1])
        moved = torch.vmap(ours, in_dims=2, out_dims=1)(x.movedim(0, 2))
    want = torch.stack([theirs(t) for t in x])
    assert torch.allclose(got, want) and torch.allclose(moved, want.movedim(0, 1))
    want = torch.stack([value_and_gradient(stock, t)[1] for t in x])
    assert torch.allclose(gradients, want)
    tangent = torch.randn_like(x[0])
    _, derivative = torch.func.jvp(mine, (x[0],), (tangent,))
    assert torch.allclose(derivative, (want[0] * tangent).sum(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["max2d", "avg2d", "adaptive2d", "global"])
def test_hessian(name: str) -> None:
    ours, theirs, _ = POOLS[name]
    x = torch.randn(1, 1, 3, 4)
    got, want = (torch.func.hessian(lambda t, f=f: f(t.sin()).square().sum())(x) for f in (ours, theirs))
    assert torch.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("name", ["global", "adaptive2d", "max2d"])
def test_second_order_and_forward_mode_keep_the_rule_for_ties(name: str) -> None:
    x = torch.randint(0, 3, IMAGES).double()
    tangent = torch.randn_like(x)
    results = []
    for pool in POOLS[name][:2]:
        leaf = x.clone().requires_grad_()
        output = pool(leaf)
        grad = torch.ones_like(output).requires_grad_()
        (first,) = torch.autograd.grad(output, leaf, grad, create_graph=True)
        results.append(
            (torch.autograd.grad(first, grad, tangent)[0], torch.func.jvp(pool, (x,), (tangent,))[1])
        )
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs)


def test_vmap_with_indices() -> None:
    x = torch.randn(3, *IMAGES)
    for ours, theirs in ((F.max_pool2d, T.max_pool2d), (F.adaptive_max_pool2d, T.adaptive_max_pool2d)):
        output, indices = torch.vmap(lambda t, f=ours: f(t, 2, return_indices=True))(x)
        for i, t in enumerate(x):
            want = theirs(t, 2, return_indices=True)
            assert same_bits(output[i], want[0]) and torch.equal(indices[i], want[1])


@every_pool
def test_autocast_is_torchs(name: str) -> None:
    ours, theirs, size = POOLS[name]
    for dtype in (torch.bfloat16, torch.float16):
        for x in (torch.randn(size).to(dtype), torch.randn(size), torch.randn(size).double()):
            with torch.autocast("cpu", dtype):
                got, want = ours(x), theirs(x)
            assert got.dtype == want.dtype and torch.allclose(got, want)


def test_autocast_of_max_pool3d_with_indices_keeps_the_dtype() -> None:
    x = torch.randn(VOLUMES).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        got, want = (f(x, 2, return_indices=True)[0] for f in (F.max_pool3d, T.max_pool3d))
    assert got.dtype == want.dtype == torch.bfloat16 and same_bits(got, want)


def test_tracing_modes_see_the_operator() -> None:
    x = torch.randn(IMAGES)
    graph = make_fx(lambda t: F.max_pool2d(t, 2))(x)
    assert OPERATORS.max_pool.default in {node.target for node in graph.graph.nodes}
    last = x.contiguous(memory_format=torch.channels_last)
    with FakeTensorMode() as mode:
        y = F.max_pool2d(mode.from_tensor(last), 2)
        assert y.shape == (2, 4, 3, 3) and y.is_contiguous(memory_format=torch.channels_last)


@every_pool
def test_meta_tensors(name: str) -> None:
    ours, theirs, size = POOLS[name]
    got, want = (f(torch.empty(size, device="meta")) for f in (ours, theirs))
    assert got.device.type == "meta" and got.shape == want.shape


def test_subclasses() -> None:
    class Marked(Tensor):
        pass

    x = torch.randn(IMAGES)
    for ours, _, size in POOLS.values():
        x = torch.randn(size)
        marked = ours(x.as_subclass(Marked))
        assert isinstance(marked, Marked) and same_bits(marked.as_subclass(Tensor), ours(x))
        assert same_bits(ours(torch.nn.Parameter(x)).detach(), ours(x))


def test_negative_views() -> None:
    x = torch.randn(IMAGES, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert same_bits(F.max_pool2d(x, 2), T.max_pool2d(x.resolve_neg(), 2))


def test_checkpointing() -> None:
    mine, stock = loss_of(POOLS["max2d"][0]), loss_of(POOLS["max2d"][1])
    x = torch.randn(IMAGES)
    got = value_and_gradient(lambda t: checkpoint(mine, t, use_reentrant=False), x)
    assert all(torch.allclose(g, w) for g, w in zip(got, value_and_gradient(stock, x), strict=True))


@every_pool
def test_the_form_for_other_devices_gives_the_same(name: str) -> None:
    ours, theirs, size = POOLS[name]
    x = torch.randn(size)
    opswap.reset_stats()
    with opswap.force_reference():
        got = value_and_gradient(loss_of(ours), x)
    assert opswap.stats()["reference"] and not opswap.stats()["kernel"]
    assert all(torch.allclose(g, w) for g, w in zip(got, value_and_gradient(loss_of(theirs), x), strict=True))


def test_no_grad_and_inference_mode_make_no_graph() -> None:
    for ours, _, size in POOLS.values():
        x = torch.randn(size, requires_grad=True)
        with torch.no_grad():
            assert ours(x).grad_fn is None
        with torch.inference_mode():
            assert ours(x).is_inference()
        assert ours(x).grad_fn is not None and ours(x.detach()).grad_fn is None
