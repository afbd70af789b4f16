# SPDX-License-Identifier: MIT
"""swap on maps a group that are written into slices of a result, as ML-Decoder does, scripted and not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
from step import outputs_and_gradients

G, IN, OUT, N = 4, 6, 3, 20

Body = Callable[[nn.Module, Tensor], Tensor]


class Groups(nn.Module):
    """Parameters of all groups in either order, and a Linear a group; the body is a method's."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.w = nn.Parameter(torch.randn(G, IN, OUT))
        self.t = nn.Parameter(torch.randn(G, OUT, IN))
        self.b = nn.Parameter(torch.randn(G, OUT))
        self.fcs = nn.ModuleList(nn.Linear(IN, OUT) for _ in range(G))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


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
    assert list(model.state_dict()) == list(stock.state_dict())
    opswap.reset_stats()
    ours, theirs = outputs_and_gradients(model, x), outputs_and_gradients(stock, x)
    assert sum(opswap.stats()["kernel"].values()) == calls and not opswap.stats()["reference"]
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, atol=1e-5, rtol=1e-4)
    return model


@pytest.mark.parametrize("body", [matmul, operator_and_bias, linear, modules])
def test_written_groups(body: Body) -> None:
    model = check(Groups(body), torch.randn(N, G, IN))
    assert "test_swap_groups.py:" in opswap.report(model).swapped[0].source
    x = torch.randn(2, G, IN)
    assert torch.allclose(model(x), opswap.unswap(copy.deepcopy(model))(x), atol=1e-5)


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


def twice(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
        if i == 1:
            x = x + out.sum()
    return out


def source_changes(m: nn.Module, x: Tensor) -> Tensor:
    x = x.clone()
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
        x.add_(1.0)
    return out


def reads_between(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    total = 0
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
        total = total + out.sum()
    return out * total


def other_order(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, G - 1 - i] = x[:, i] @ m.w[i]
    return out


def leaves_one_out(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G - 1):
        out[:, i] = x[:, i] @ m.w[i]
    return out


def transposed(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(G, x.shape[0], OUT)
    for i in range(G):
        out[i] = x[:, i] @ m.w[i]
    return out


def a_view_is_held(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    first = out[:, 0]
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
    return out + first.sum()


def linears_of_a_changing_source(m: nn.Module, x: Tensor) -> Tensor:
    x, parts = x.clone(), []
    for i, fc in enumerate(m.fcs):
        parts.append(fc(x[:, i]))
        x.mul_(0.5)
    return torch.cat(parts, 1)


def product_of_a_changing_source(m: nn.Module, x: Tensor) -> Tensor:
    x = x.clone()
    product = m.t[:1, :1] * x
    x.zero_()
    return product.sum(-1)


def size_of_its_own(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(N, G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
    return out


TRAPS = [
    size_of_its_own,
    twice,
    source_changes,
    reads_between,
    other_order,
    leaves_one_out,
    transposed,
    a_view_is_held,
]
TRAPS += [linears_of_a_changing_source, product_of_a_changing_source]


@pytest.mark.parametrize("body", TRAPS)
def test_other_writes_keep_their_code(body: Body) -> None:
    stock = Groups(body)
    x = torch.randn(N, G, IN)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    opswap.reset_stats()
    with torch.no_grad():  # what changes its source has no gradient
        assert torch.equal(model(x), stock(x))
    assert not opswap.stats()["kernel"]


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
