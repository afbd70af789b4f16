# SPDX-License-Identifier: MIT
"""swap on linear maps a group that are written by hand, and what the report says of those that it keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import kernels
from step import assert_near_by_kernels

pytestmark = pytest.mark.usefixtures("every_rule_applies")

G, IN, OUT, N = 4, 6, 3, 20


class GroupWiseLinear(nn.Module):
    """As Query2Label has it."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.bias = bias
        self.W = nn.Parameter(torch.randn(1, G, IN))
        if bias:
            self.b = nn.Parameter(torch.randn(1, G))

    def forward(self, x: Tensor) -> Tensor:
        x = (self.W * x).sum(-1)
        if self.bias:
            x = x + self.b
        return x


class Product(nn.Module):
    """A body over a parameter w and a bias b."""

    def __init__(self, size: tuple[int, ...], body: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(size)), nn.Parameter(torch.randn(1, G))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x, self.w, self.b)


SUMS = [
    lambda x, w, b: torch.sum(torch.mul(x, w), dim=-1) + b,
    lambda x, w, b: b + x.mul(w).sum(dim=(-1,)),
    lambda x, w, b: torch.add((w * x).sum((-1,)), b).relu(),
    lambda x, w, b: (w * x).sum(-1),
]
EINSUMS = [
    ((G, IN, OUT), lambda x, w, b: torch.einsum("bgi,gio->bgo", x, w)),
    ((G, OUT, IN), lambda x, w, b: torch.einsum("bgi,goi->bgo", x, w)),
    ((G, IN, OUT), lambda x, w, b: torch.einsum("n k d, k d f -> n k f", x, w)),
    ((G, OUT, IN), lambda x, w, b: torch.einsum("goi,bgi->bgo", w, x)),
]


def check(stock: nn.Module, x: Tensor, calls: int = 2) -> nn.Module:
    """Swapped: outputs and gradients of every parameter, under their own names, by the kernels."""
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    assert_near_by_kernels(model, stock, x, calls)
    return model


@pytest.mark.parametrize("bias", [True, False])
def test_group_wise_linear(bias: bool) -> None:
    stock = GroupWiseLinear(bias)
    model = check(stock, torch.randn(N, G, IN))
    (site,) = opswap.report(model).swapped
    assert site.rule == "grouped_linear" and not site.exact and "test_swap_linear.py:" in site.source
    x = torch.randn(N, G, IN)
    with torch.no_grad():
        assert torch.allclose(model(x), stock(x), atol=1e-5)
    assert list(opswap.unswap(model).state_dict()) == list(stock.state_dict())


@pytest.mark.parametrize("body", SUMS)
def test_summed_products(body: Callable[..., Tensor]) -> None:
    check(Product((1, G, IN), body), torch.randn(N, G, IN))


@pytest.mark.parametrize("size, body", EINSUMS)
def test_einsum(size: tuple[int, ...], body: Callable[..., Tensor]) -> None:
    check(Product(size, body), torch.randn(N, G, IN))


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).view(-1, x.shape[-1])


class Behind(nn.Module):
    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


@pytest.mark.parametrize("join", [nn.Sequential, Behind])
@pytest.mark.parametrize("last", [nn.Dropout(0.5), Rows()], ids=["dropout", "view"])
@pytest.mark.parametrize("features, form", [(IN, 0), (IN, 1), (1, 1), (IN, 3)])
def test_code_that_depends_on_the_order_of_einsum_in_memory(
    form: int, features: int, last: nn.Module, join: Callable[..., nn.Module]
) -> None:
    """A view that only that order allows, and the mask of a dropout. A weight in front is left to torch."""
    size, body = EINSUMS[form]
    stock = join(Product(tuple(features if n == IN else n for n in size), body), last)
    x = torch.randn(N, G, features)
    if (form == 3 or features == 1) and isinstance(last, Rows):
        pytest.skip("the stock model raises")
    results = []
    for model in (stock, opswap.swap(copy.deepcopy(stock))):
        opswap.reset_stats()
        torch.manual_seed(7)
        results.append(model(x))
    assert kernels("grouped_linear") == int(features > 1 and form != 3)
    assert results[0].stride() == results[1].stride()
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)


def test_the_order_in_memory_is_kept_only_if_code_depends_on_it() -> None:
    product = Product(*EINSUMS[1])
    behind = nn.Sequential(nn.Linear(OUT, OUT), nn.Dropout(0.5))
    for stock in (product, nn.Sequential(product, nn.Dropout(0.0)), nn.Sequential(product, *behind)):
        model = opswap.swap(copy.deepcopy(stock), strict=True)
        first = model if stock is product else model[0]
        assert first(torch.randn(N, G, IN)).is_contiguous()


def test_sizes_that_do_not_fit_run_the_original() -> None:
    wide = Product((G, IN, 40), EINSUMS[0][1])
    check(wide, torch.randn(N, G, IN), calls=0)  # the copy of the weight would cost more than einsum
    check(Product((G, IN, OUT), EINSUMS[0][1]), torch.randn(2, G, IN), calls=0)  # too few rows for it
    check(GroupWiseLinear(), torch.randn(N, 1, IN), calls=0)  # the input is broadcast
    check(Product((1, G, IN), lambda x, w, b: (w * x).sum(-1)), torch.randn(2, N, G, IN), calls=0)
    check(Product((N, G, IN), lambda x, w, b: (w * x).sum(-1)), torch.randn(N, G, IN), calls=0)


@pytest.mark.parametrize(
    "body",
    [
        lambda x, w, b: (w * x).sum(-2),
        lambda x, w, b: (w * x).sum(-1, keepdim=True),
        lambda x, w, b: (w * x).sum(-1, dtype=torch.float64),
        lambda x, w, b: (x * x).sum(-1),
        lambda x, w, b: (w + x).sum(-1),
        lambda x, w, b: torch.einsum("bgi,hgi->bg", x, w),
        lambda x, w, b: torch.einsum("bgi,hgi->bhg", x, w),
        lambda x, w, b: torch.einsum("bgi,bgi->bgi", x, x),
    ],
)
def test_other_products_are_left_alone(body: Callable[..., Tensor]) -> None:
    report = opswap.scan(Product((1, G, IN), body))
    assert not report.swapped and not report.kept


def test_a_product_that_is_used_twice_is_kept() -> None:
    def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        product = w * x
        return product.sum(-1) + product.amax(-1)

    report = opswap.scan(Product((1, G, IN), body))
    assert not report.swapped and "an intermediate result is used elsewhere" in report.kept[0].reason


def test_exact_takes_no_rounding() -> None:
    assert not opswap.scan(GroupWiseLinear(), exact=True).swapped


class Heads(nn.Module):
    def __init__(
        self,
        body: Callable[[nn.ModuleList, Tensor], Tensor],
        bias: bool = True,
        sizes: tuple[int, ...] = (OUT,) * G,
    ) -> None:
        super().__init__()
        self.fcs = nn.ModuleList(nn.Linear(IN, n, bias) for n in sizes)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.fcs, x)


LISTS = [
    (lambda fcs, x: torch.cat([fc(x[:, i]) for i, fc in enumerate(fcs)], 1), (N, G, IN)),
    (lambda fcs, x: torch.cat([fc(x[:, i, :]) for i, fc in enumerate(fcs)], dim=-1), (N, G, IN)),
    (lambda fcs, x: torch.stack([fc(x[:, i]) for i, fc in enumerate(fcs)], 1), (N, G, IN)),
    (lambda fcs, x: torch.cat([fcs[i](x.unbind(1)[i]) for i in range(G)], 1), (N, G, IN)),
    (lambda fcs, x: torch.cat([fcs[i](x.chunk(G, 1)[i]) for i in range(G)], dim=1), (N, G * IN)),
]


@pytest.mark.parametrize("body, size", LISTS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_list_of_linears(body: Callable[..., Tensor], size: tuple[int, ...], bias: bool) -> None:
    check(Heads(body, bias), torch.randn(size))


def test_ragged_heads_train_as_the_stock_ones() -> None:
    stock = Heads(LISTS[0][0], sizes=(1, 5, 2, 7))
    model = check(stock, torch.randn(N, G, IN))
    x, target = torch.randn(N, G, IN), torch.randn(N, 15)
    for m in (stock, model):
        optimizer = torch.optim.Adam(m.parameters(), 0.01)
        for _ in range(10):
            optimizer.zero_grad()
            (m(x) - target).square().mean().backward()
            optimizer.step()
    for a, b in zip(stock.parameters(), model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_linears_that_are_no_longer_plain_run_the_original() -> None:
    x = torch.randn(N, G, IN)
    model = opswap.swap(Heads(LISTS[0][0]), strict=True)
    twin = copy.deepcopy(model)
    calls = []
    handle = model.fcs[1].register_forward_hook(lambda *_: calls.append(1))
    check_calls(model, x, 0)
    assert calls
    handle.remove()
    check_calls(model, x, 1)
    twin.fcs[2] = nn.Sequential(nn.Linear(IN, OUT), nn.ReLU())
    check_calls(twin, x, 0)
    wide = opswap.swap(Heads(LISTS[0][0], sizes=(9000,) * G))  # joining would cost more than it gains
    check_calls(wide, x, 0)
    check_calls(model, torch.randn(N, G + 1, IN), 0)


def check_calls(model: nn.Module, x: Tensor, calls: int) -> None:
    opswap.reset_stats()
    with torch.no_grad():
        model(x)
    assert kernels("grouped_linear") == calls


@pytest.mark.parametrize(
    "body",
    [
        lambda fcs, x: torch.cat([fc(x[:, 0]) for fc in fcs], 1),
        lambda fcs, x: torch.cat([fc(x[:, G - 1 - i]) for i, fc in enumerate(fcs)], 1),
        lambda fcs, x: torch.cat([fc(x[i]) for i, fc in enumerate(fcs)], 1),
        lambda fcs, x: torch.cat([fc(x[:, i]) for i, fc in enumerate(fcs)], 0),
        lambda fcs, x: torch.cat([fc(x[:, i]).relu() for i, fc in enumerate(fcs)], 1),
    ],
)
def test_other_lists_are_left_alone(body: Callable[..., Tensor]) -> None:
    assert not opswap.scan(Heads(body)).swapped


def test_heads_of_one_input_are_no_groups() -> None:
    report = opswap.scan(Heads(lambda fcs, x: torch.cat([fc(x) for fc in fcs], 1)))
    assert not report.swapped and not report.kept
