# SPDX-License-Identifier: MIT
"""swap on maps a group that are written into slices of a result, as ML-Decoder does, scripted and not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
from grouped import IN, OUT, Body, G, Groups, N
from step import assert_near_by_kernels, outputs_and_gradients

pytestmark = pytest.mark.usefixtures("one_thread", "every_rule_applies")


def matmul(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i, :] = torch.matmul(x[:, i, :], m.w[i, :, :])
    return out.flatten(1)


def operator_and_bias(m: nn.Module, x: Tensor) -> Tensor:
    out = x.new_empty(x.size(0), G, OUT)
    for i, w in enumerate(range(G)):
        out[:, i] = x[:, i] @ m.w[w] + m.b[i]
    return out.relu()


def linear(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.empty((x.shape[0], G, OUT), dtype=x.dtype)
    for i in range(G):
        out[:, i] = T.linear(x[:, i], m.t[i], m.b[i])
    return out.sum(2)


def modules(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.size(0), G, OUT)
    for i, fc in enumerate(m.fcs):
        out[:, i, :] = fc(x[:, i])
    return out


def by_size(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], x.shape[1], OUT)
    for i in range(x.shape[1]):
        h_i = x[:, i, :]
        if len(m.w.shape) == 3:  # noqa: SIM108 (as ML-Decoder writes it)
            w_i = m.w[i, :, :]
        else:
            w_i = m.w
        out[:, i, :] = torch.matmul(h_i, w_i)
    return out


def check(stock: nn.Module, x: Tensor, calls: int = 2, example: bool = False) -> nn.Module:
    """Swapped: outputs and gradients of every parameter, by `calls` kernels."""
    inputs = (torch.empty_like(x),) if example else None
    model = opswap.swap(copy.deepcopy(stock), example_inputs=inputs, strict=True)
    assert [s.rule for s in opswap.report(model).swapped] == ["grouped_linear"]
    assert_near_by_kernels(model, stock, x, calls)
    return model


@pytest.mark.parametrize("body", [matmul, operator_and_bias, linear, modules])
def test_written_groups(body: Body) -> None:
    model = check(Groups(body), torch.randn(N, G, IN))
    assert "test_swap_groups.py:" in opswap.report(model).swapped[0].source
    x = torch.randn(2, G, IN)
    assert torch.allclose(model(x), opswap.unswap(copy.deepcopy(model))(x), atol=1e-5)


@pytest.mark.parametrize("body", [matmul, operator_and_bias, linear, modules])
@pytest.mark.parametrize("n", [2, N])
def test_verified(body: Body, n: int) -> None:
    assert all(c.holds for c in opswap.verify(Groups(body), (torch.randn(n, G, IN),)).checks)


def test_the_number_of_groups_is_taken_from_the_example() -> None:
    stock = Groups(by_size)
    (site,) = opswap.scan(stock).kept
    assert "pass example_inputs" in site.reason
    model = check(stock, torch.randn(N, G, IN), example=True)
    other = torch.randn(N, G - 1, IN)
    assert torch.equal(model(other), stock(other)), "another number of groups takes the original"


def test_few_rows_take_the_batched_product() -> None:
    """A weight in the order (in, out) would have to be copied."""
    check(Groups(matmul), torch.randn(2, G, IN), calls=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_result_has_the_dtype_that_was_asked_for(dtype: torch.dtype) -> None:
    stock = Groups(matmul).to(dtype)
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    x = torch.randn(N, G, IN, dtype=dtype)
    assert model(x).dtype == stock(x).dtype == torch.float32
    assert torch.allclose(model(x), stock(x), atol=1e-5 if dtype is torch.float64 else 5e-2)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == stock(x).dtype == torch.float32


class Written(nn.Module):
    """Writes into a tensor of the caller, as a plain module in place of ML-Decoder's scripted class."""

    def forward(self, h: Tensor, w: Tensor, out: Tensor) -> None:
        for i in range(G):
            out[:, i, :] = torch.matmul(h[:, i, :], w[i, :, :])


def test_the_caller_sees_what_is_written() -> None:
    model = opswap.swap(Written(), strict=True)
    opswap.reset_stats()
    h, w = torch.randn(N, G, IN, requires_grad=True), torch.randn(G, IN, OUT, requires_grad=True)
    results = []
    for module in (model, Written()):
        whole = torch.full((N, G + 1, OUT + 1), 7.0)
        out = whole[:, :G, :OUT]
        assert module(h, w, out) is None
        results.append((whole.detach(), *torch.autograd.grad(whole.square().sum(), (h, w))))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-4)
    assert opswap.stats()["kernel"]["grouped_linear"] == 1
    with torch.no_grad():
        short = torch.zeros(N, G, OUT - 1)
        with pytest.raises(RuntimeError):
            model(h, w, short)


@torch.jit.script
class GroupFC:
    """As ML-Decoder has it."""

    def __init__(self, embed_len_decoder: int) -> None:
        self.embed_len_decoder = embed_len_decoder

    def __call__(self, h: torch.Tensor, duplicate_pooling: torch.Tensor, out_extrap: torch.Tensor) -> None:
        for i in range(h.shape[1]):
            h_i = h[:, i, :]
            if len(duplicate_pooling.shape) == 3:  # noqa: SIM108 (as it is written there)
                w_i = duplicate_pooling[i, :, :]
            else:
                w_i = duplicate_pooling
            out_extrap[:, i, :] = torch.matmul(h_i, w_i)


class Decoder(nn.Module):
    def __init__(self, size: tuple[int, ...]) -> None:
        super().__init__()
        self.duplicate_pooling = nn.Parameter(torch.randn(size))
        self.group_fc = GroupFC(G)

    def forward(self, h: Tensor) -> Tensor:
        out = torch.zeros(h.shape[0], h.shape[1], OUT)
        self.group_fc(h, self.duplicate_pooling, out)
        return out.flatten(1)[:, : G * OUT - 1]


class Loop(nn.Module):
    def forward(self, h: Tensor, weight: Tensor) -> Tensor:
        out = torch.zeros(h.shape[0], h.shape[1], weight.shape[2])
        for i in range(h.shape[1]):
            out[:, i, :] = torch.matmul(h[:, i, :], weight[i])
        return out


class PlainGroupFC:
    """The same without torch.jit.script: a callable that is no module."""

    def __call__(self, h: Tensor, pooling: Tensor, out: Tensor) -> None:
        for i in range(h.shape[1]):
            rows = h[:, i, :]
            weight = pooling[i, :, :] if len(pooling.shape) == 3 else pooling
            out[:, i, :] = torch.matmul(rows, weight)


class ModuleGroupFC(nn.Module):
    forward = PlainGroupFC.__call__


class PlainDecoder(nn.Module):
    """The end of ML-Decoder: groups of queries through a map of their own, cut to the number of classes, and a bias."""

    def __init__(self, group_fc: object) -> None:
        super().__init__()
        self.embed = nn.Linear(IN, IN)
        self.duplicate_pooling = nn.Parameter(torch.randn(G, IN, OUT))
        self.duplicate_pooling_bias = nn.Parameter(torch.randn(G * OUT - 1))
        self.group_fc = group_fc

    def forward(self, h: Tensor) -> Tensor:
        h = self.embed(h).relu()
        out = torch.zeros(h.shape[0], h.shape[1], OUT, device=h.device, dtype=h.dtype)
        self.group_fc(h, self.duplicate_pooling, out)
        return out.flatten(1)[:, : G * OUT - 1] + self.duplicate_pooling_bias


@pytest.mark.parametrize("group_fc", [PlainGroupFC, ModuleGroupFC])
def test_the_loop_of_ml_decoder_without_script(group_fc: type) -> None:
    stock, x = PlainDecoder(group_fc()), torch.randn(N, G, IN)
    check(stock, x, example=True)
    assert all(c.holds for c in opswap.verify(stock, (x,)).checks)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,), strict=True)
    half = torch.randn(N // 2, G, IN)
    assert torch.allclose(model(half), stock(half), atol=1e-5), "any number of rows"


@pytest.mark.parametrize("size", [(G, IN, OUT), (IN, OUT)])
def test_the_report_names_what_replaces_group_fc(size: tuple[int, ...]) -> None:
    stock = Decoder(size)
    (site,) = opswap.scan(stock).kept
    assert "the loop over groups in group_fc" in site.reason and "opswap.nn.GroupFC()" in site.reason
    model = copy.deepcopy(stock)
    model.group_fc = opswap.nn.GroupFC()
    assert list(model.state_dict()) == list(stock.state_dict())
    x = torch.randn(N, G, IN)
    for a, b in zip(outputs_and_gradients(model, x), outputs_and_gradients(stock, x), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_loops_in_a_forward_and_in_a_script() -> None:
    for module in (Loop(), torch.jit.script(Loop())):
        (site,) = opswap.scan(module).kept
        assert "opswap.functional.grouped_linear(h, weight.transpose(1, 2))" in site.reason
    inputs = torch.randn(N, G, IN), torch.randn(G, IN, OUT)
    model = opswap.swap(Loop(), example_inputs=inputs, strict=True)
    assert torch.allclose(model(*inputs), Loop()(*inputs), atol=1e-5)
    (site,) = opswap.scan(torch.jit.script(nn.Linear(2, 2))).kept
    assert site.reason == "is a ScriptModule"


@pytest.mark.parametrize("body", [matmul, operator_and_bias])
def test_compiled(body: Body) -> None:
    """A swapped module compiles whole; the backend finds the same loop in Dynamo's graph."""
    stock, x = Groups(body), torch.randn(N, G, IN)
    torch.compiler.reset()
    whole = torch.compile(opswap.swap(copy.deepcopy(stock), strict=True), backend="eager", fullgraph=True)
    assert torch.allclose(whole(x), stock(x), atol=1e-5)
    backend = opswap.dynamo_backend()
    assert torch.allclose(torch.compile(stock, backend=backend)(x), stock(x), atol=1e-5)
    assert [s.rule for r in backend.reports for s in r.swapped] == ["grouped_linear"]
    caller = torch.compile(opswap.swap(Written(), strict=True), backend="eager", fullgraph=True)
    out = torch.zeros(N, G, OUT)
    caller(x, stock.w.detach(), out)
    assert torch.allclose(out, torch.einsum("ngi,gio->ngo", x, stock.w), atol=1e-5)
