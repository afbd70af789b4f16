# SPDX-License-Identifier: MIT
"""The registered operators of pools with every option; indices under vmap and autocast; ties in second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

from inputs import LAYOUTS, same_bits
from opswap import functional as F

OPERATORS = torch.ops.opswap
IMAGES, VOLUMES = (2, 4, 6, 7), (2, 3, 4, 5, 6)


def _split(x: Tensor) -> Tensor:
    return F.global_max_pool2d(x, ties="split", keepdim=False)


# name: ours, torch's
POOLS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "max": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: T.max_pool2d(x, 3, 2, 1)),
    "adaptive": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), lambda x: T.adaptive_max_pool2d(x, (2, 3))),
    "global": (_split, lambda x: x.amax((2, 3))),
}


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


@pytest.mark.parametrize("name", POOLS)
def test_second_order_and_forward_mode_keep_the_rule_for_ties(name: str) -> None:
    x = torch.randint(0, 3, IMAGES).double()
    tangent = torch.randn_like(x)
    results = []
    for pool in POOLS[name]:
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


@pytest.mark.parametrize("kernel", [1, 2, (1, 2, 2)], ids=str)
def test_vmap_over_volumes_without_a_batch(kernel: Any) -> None:
    """(C, D, H, W) in the strides of channels_last, within vmap alone and with gradients."""
    x = torch.randn(3, *IMAGES).permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert x[0].is_contiguous(memory_format=torch.channels_last)
    for ours, theirs in ((F.max_pool3d, T.max_pool3d), (F.avg_pool3d, T.avg_pool3d)):
        got, want = (
            (
                torch.vmap(lambda t, f=f: f(t, kernel))(x),
                torch.vmap(torch.func.grad(lambda t, f=f: f(t, kernel).square().sum()))(x),
                torch.func.jvp(torch.vmap(lambda t, f=f: f(t, kernel)), (x,), (x.cos(),))[1],
            )
            for f in (ours, lambda t, k, f=theirs: f(t.contiguous(), k))
        )
        for a, b in zip(got, want, strict=True):
            assert torch.allclose(a, b, atol=1e-6)
    got = torch.vmap(lambda t: F.max_pool3d(t, kernel, return_indices=True))(x)
    want = torch.vmap(lambda t: T.max_pool3d(t.contiguous(), kernel, return_indices=True))(x)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_autocast_of_max_pool3d_with_indices_keeps_the_dtype() -> None:
    x = torch.randn(VOLUMES).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        got, want = (f(x, 2, return_indices=True)[0] for f in (F.max_pool3d, T.max_pool3d))
    assert got.dtype == want.dtype == torch.bfloat16 and same_bits(got, want)
