# SPDX-License-Identifier: MIT
"""Writes of groups that swap must leave alone, or may replace only where memory, dtypes and sizes allow it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
from grouped import IN, OUT, Body, G, Groups, N
from step import outputs_and_gradients
from threads import at_once, meanwhile

pytestmark = pytest.mark.usefixtures("one_thread", "every_rule_applies")


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


def the_same_group_twice(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
    out[:, 0] = x[:, 0] @ m.w[1]
    return out


def groups_of_others(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, G - 1 - i] @ m.w[i]
    return out


def weights_of_others(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[G - 1 - i]
    return out


def biases_of_others(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i] + m.b[G - 1 - i]
    return out


def from_the_end(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(-G, 0):
        out[:, i] = x[:, i] @ m.w[i]
    return out


def only_some_rows(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[1:, i] = x[1:, i] @ m.w[i]
    return out


def base_is_read_between(m: nn.Module, x: Tensor) -> Tensor:
    base = x.new_zeros(x.shape[0], G * OUT)
    out, total = base.view(x.shape[0], G, OUT), 0.0
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
        total = total + base.sum()
    return out * total


def reads_itself(m: nn.Module, x: Tensor) -> Tensor:
    out = x.new_ones(x.shape[0], G, IN)
    out.requires_grad_(False)
    for i in range(G):
        out[:, i] = out[:, i] @ m.square[i]
    return out


TRAPS = [
    a_view_is_held,
    base_is_read_between,
    biases_of_others,
    from_the_end,
    groups_of_others,
    leaves_one_out,
    linears_of_a_changing_source,
    only_some_rows,
    other_order,
    product_of_a_changing_source,
    reads_between,
    reads_itself,
    source_changes,
    the_same_group_twice,
    transposed,
    twice,
    weights_of_others,
]


@pytest.mark.parametrize("body", TRAPS)
def test_other_writes_keep_their_code(body: Body) -> None:
    stock = Groups(body)
    stock.square = nn.Parameter(torch.randn(G, IN, IN))
    x = torch.randn(N, G, IN)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    opswap.reset_stats()
    with torch.no_grad():  # what changes its source has no gradient
        assert torch.equal(model(x), stock(x))
    assert not opswap.stats()["kernel"]


def test_a_result_of_fixed_size_is_written_at_once_if_it_fits() -> None:
    """The number of rows is a constant of the code: inputs of another one run it as it is."""
    stock = Groups(size_of_its_own)
    x = torch.randn(N, G, IN)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    opswap.reset_stats()
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x), rtol=1e-5, atol=1e-5)
        assert opswap.stats()["kernel"]
        assert torch.equal(model(x[:1]), stock(x[:1]))  # broadcast
        with pytest.raises(RuntimeError, match=r"expanded size|must match"):
            model(x[: N - 1])


def integers(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT, dtype=torch.int64)
    for i in range(G):
        out[:, i] = 100 * x[:, i] @ m.w[i]
    return out


def by_broadcast(m: nn.Module, x: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.narrow[i]
    return out


def into_a_leaf(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT, requires_grad=True)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
    return out


def into_a_view(m: nn.Module, x: Tensor) -> Tensor:
    base = x.new_zeros(x.shape[0], G * OUT)
    out = base.view(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
    return base


def into_what_was_given(m: nn.Module, x: Tensor) -> Tensor:
    kept = x.new_ones(x.shape[0], G, OUT)
    out = torch.zeros(x.shape[0], G, OUT, out=kept)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
    return kept + 1


def in_another_layout(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros_like(x.transpose(1, 2).contiguous().transpose(1, 2)[:, :, :OUT])
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
    return out.transpose(1, 2).flatten(1) if not out.is_contiguous() else out.flatten(1)


def viewed(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i] + m.b[i]
    return out.view(x.shape[0], -1)


@pytest.mark.parametrize(
    "body", [integers, by_broadcast, into_a_leaf, into_a_view, into_what_was_given, in_another_layout, viewed]
)
@pytest.mark.parametrize("n", [1, 2, N])
def test_results_are_the_same_whichever_code_runs(body: Body, n: int) -> None:
    stock = Groups(body)
    stock.narrow = nn.Parameter(torch.randn(G, IN, 1))
    x = torch.randn(n, G, IN)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    with torch.no_grad():
        ours, theirs = model(x), stock(x)
    assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
    assert torch.allclose(ours, theirs, atol=1 if body is integers else 1e-5)
    if body is into_a_leaf:
        for m in (model, stock):
            with pytest.raises(RuntimeError, match="leaf Variable"):
                m(x)


def test_other_numbers_of_groups_take_the_original() -> None:
    def fixed(m: nn.Module, x: Tensor) -> Tensor:
        out = x.new_zeros(x.shape[0], x.shape[1], OUT)
        for i in range(G):
            out[:, i] = x[:, i] @ m.w[i]
        return out

    model, stock = opswap.swap(Groups(fixed), strict=True), Groups(fixed)
    stock.load_state_dict(model.state_dict())
    more = torch.randn(N, G + 1, IN)
    assert torch.equal(model(more), stock(more)) and not model(more)[:, G].any()
    for m in (model, stock):
        with pytest.raises(IndexError):
            m(torch.randn(N, G - 1, IN))


class Into(nn.Module):
    """Writes into a tensor of the caller."""

    def forward(self, h: Tensor, w: Tensor, out: Tensor) -> None:
        for i in range(2):
            out[:, i, :] = torch.matmul(h[:, i, :], w[i, :, :])


def _overlapping(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """h (6, 2, 3), w (2, 3, 3) and out (6, 2, 3)."""
    memory = torch.randn(80)
    h, w, out = (torch.randn(s) for s in ((6, 2, 3), (2, 3, 3), (6, 2, 3)))
    if kind == "source shifted":
        h, out = memory[3:39].view(6, 2, 3), memory[:36].view(6, 2, 3)
    elif kind == "source ahead":
        h, out = memory[:36].view(6, 2, 3), memory[3:39].view(6, 2, 3)
    elif kind == "source itself":
        out = h
    elif kind == "weight":
        w, out = memory[:18].view(2, 3, 3), memory[9:45].view(6, 2, 3)
    elif kind == "groups in one place":
        out = torch.zeros(6, 1, 3).expand(6, 2, 3)
    elif kind == "memory of an array":
        h, out = (torch.from_numpy(memory.numpy()[k : k + 36]).view(6, 2, 3) for k in (3, 0))
    return h, w, out


@pytest.mark.parametrize(
    "kind",
    [
        "source shifted",
        "source ahead",
        "source itself",
        "weight",
        "groups in one place",
        "memory of an array",
    ],
)
def test_memory_that_is_read_or_shared_is_written_group_by_group(kind: str, seed: int) -> None:
    model, results = opswap.swap(Into(), strict=True), []
    opswap.reset_stats()
    for module in (model, Into()):
        torch.manual_seed(seed)
        h, w, out = _overlapping(kind)
        module(h, w, out)
        results.append(out)
    assert torch.equal(*results)
    assert not opswap.stats()["kernel"]
    model(torch.randn(20, 2, 3), torch.randn(2, 3, 3), torch.zeros(20, 2, 3))
    assert opswap.stats()["kernel"]["grouped_linear"] == 1


def test_rows_in_one_place_are_refused_as_torch_does() -> None:
    for module in (opswap.swap(Into(), strict=True), Into()):
        with pytest.raises(RuntimeError, match="single memory location"):
            module(torch.randn(6, 2, 3), torch.randn(2, 3, 3), torch.zeros(1, 2, 3).expand(6, 2, 3))


def test_autocast_leaves_the_bias_in_float32() -> None:
    def biased(m: nn.Module, x: Tensor) -> Tensor:
        out = torch.zeros(x.shape[0], G, OUT)
        for i in range(G):
            out[:, i] = x[:, i] @ m.w[i] + m.b[i]
        return out

    stock = Groups(biased)
    with torch.no_grad():
        stock.b.add_(1000.3)
    model, x = opswap.swap(copy.deepcopy(stock), strict=True), torch.randn(N, G, IN)
    with torch.autocast("cpu", torch.bfloat16):
        assert (model(x) - stock(x)).abs().max() < 0.1, "1000.3 in bfloat16 would be 1000"


def matmul(m: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], G, OUT)
    for i in range(G):
        out[:, i] = x[:, i] @ m.w[i]
    return out


def test_exact_swaps_leave_sums_alone() -> None:
    assert not opswap.scan(Groups(matmul), exact=True).swapped
    model = nn.Sequential(Groups(matmul))
    x = torch.randn(N, G, IN)
    assert torch.equal(opswap.swap(copy.deepcopy(model), exact=True)(x), model(x))


def test_a_weight_may_be_used_twice() -> None:
    def both(m: nn.Module, x: Tensor) -> Tensor:
        first, second = (torch.zeros(x.shape[0], G, OUT) for _ in range(2))
        for i in range(G):
            first[:, i] = x[:, i] @ m.w[i]
        for i in range(G):
            second[:, i] = T.linear(first[:, i], m.w[i])[:, :OUT]
        return torch.cat([first, second], 1) * m.w.sum()

    stock = Groups(both)
    model, x = opswap.swap(copy.deepcopy(stock), strict=True), torch.randn(N, G, IN)
    for a, b in zip(outputs_and_gradients(model, x), outputs_and_gradients(stock, x), strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, rtol=1e-4, atol=1e-3)


def test_swaps_in_several_threads_leave_torch_as_it_was() -> None:
    """A trace takes note of calls of torch.zeros, in its own thread."""
    stock = torch.zeros

    def make() -> None:
        assert torch.equal(torch.zeros(2, 3), torch.ones(2, 3) - 1)

    def swap() -> None:
        for _ in range(3):
            model = Groups(matmul)
            assert len(opswap.report(opswap.swap(model, strict=True)).swapped) == 1

    with meanwhile(make):
        at_once(swap, swap)
    assert torch.zeros is stock
