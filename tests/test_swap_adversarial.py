# SPDX-License-Identifier: MIT
"""Code written to make a rewrite wrong: parameters from elsewhere, odd classes, callers and inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import opswap
from nearness import assert_model_as_near
from spellings import Joined, Shuffle, Split, Wrapped, by_size
from spellings.guards import Only
from spellings.shuffles import by_permute
from swapping import images, same, swapped


class ShuffledConv(nn.Conv2d):
    """A convolution by class, with a shuffle behind it."""

    def forward(self, input: Tensor) -> Tensor:
        return by_size(super().forward(input))


def test_functional_call_with_other_parameters() -> None:
    stock = nn.Sequential(Split(), Split())
    model = swapped(stock)
    other = {k: torch.randn_like(v) for k, v in stock.named_parameters()}
    x = images()
    expected = torch.func.functional_call(stock, other, (x,))
    assert torch.equal(torch.func.functional_call(model, other, (x,)), expected)
    ours, theirs = (
        torch.func.grad(lambda p, m=m: torch.func.functional_call(m, p, (x,)).square().sum())(other)
        for m in (model, stock)
    )
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


def test_tied_parameters() -> None:
    stock = nn.Sequential(ShuffledConv(12, 12, 1), nn.ReLU(), ShuffledConv(12, 12, 1))
    stock[2].weight = stock[0].weight
    model = swapped(stock)
    assert model[2].weight is model[0].weight and list(model.state_dict()) == list(stock.state_dict())
    same(model, stock)
    for m in (model, stock):
        torch.optim.SGD(m.parameters(), lr=0.1).step()
    same(model, stock)
    again = opswap.unswap(model)
    assert again[2].weight is again[0].weight


def test_parametrized_before_the_swap() -> None:
    stock = parametrizations.weight_norm(ShuffledConv(12, 12, 1))
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    report = opswap.report(model)
    assert not report.swapped and "parametrized" in report.kept[0].reason
    same(model, stock)


def test_parametrized_after_the_swap() -> None:
    stock = ShuffledConv(12, 12, 1)
    model = swapped(stock)
    for m in (stock, model):
        parametrizations.weight_norm(m)
    same(model, stock)
    for m in (stock, model):
        parametrize.remove_parametrizations(m, "weight")
    same(model, stock)
    assert isinstance(opswap.unswap(model), ShuffledConv) and type(model) is ShuffledConv


def test_load_then_unswap_then_swap() -> None:
    stock = nn.Sequential(Split(), Split())
    model = swapped(nn.Sequential(Split(), Split()))
    model.load_state_dict(stock.state_dict(), strict=True, assign=True)
    same(model, copy.deepcopy(stock))
    opswap.unswap(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in stock.modules()]
    same(opswap.swap(model, exact=True, strict=True), stock)


def test_swapped_inside_swapped() -> None:
    inner = nn.Sequential(Split(), Split())
    stock = nn.Sequential(copy.deepcopy(inner), Split())
    model = nn.Sequential(opswap.swap(inner, exact=True), copy.deepcopy(stock[1]))
    opswap.swap(opswap.swap(model, exact=True), exact=True)
    assert len(opswap.report(model).swapped) == 3
    same(model, stock)
    opswap.unswap(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in stock.modules()]


@pytest.mark.parametrize("change", [nn.Module.double, nn.Module.bfloat16], ids=["double", "bfloat16"])
def test_another_dtype(change: Callable[[nn.Module], nn.Module]) -> None:
    stock = nn.Sequential(Split(), Split())
    model = change(swapped(stock))
    same(model, change(stock), images().to(next(model.parameters()).dtype))


# --- odd classes and callers -----------------------------------------------------------------------------------------


class Loud(Wrapped):
    """Its call does more than its forward."""

    def __call__(self, *args: Tensor) -> Tensor:
        return super().__call__(*args) * 2


class TakesNames(Wrapped):
    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return super().forward(x) * scale


class Listed(Wrapped):
    """Takes a list."""

    def forward(self, xs: list[Tensor]) -> Tensor:
        return super().forward(torch.cat(xs, 1))


class Counted(Tensor):
    """A tensor that counts what is called on it."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> object:
        cls.calls.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


class Checkpointed(nn.Module):
    """Checkpoints a module of its own."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.block, self.reentrant = Split(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


class ViewsItsInput(nn.Module):
    """A head that needs the tensor before it to be contiguous, which a spelled-out shuffle returns."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12 * 32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.view(x.size(0), -1))


def test_calls_of_its_own() -> None:
    stock = nn.Sequential(Loud(by_size), Loud(by_size))
    same(opswap.swap(copy.deepcopy(stock), exact=True), stock)


class CalledNorm(nn.BatchNorm2d):
    def __call__(self, input: Tensor) -> Tensor:
        return super().__call__(input) * 2


class CalledInsideNorm(nn.BatchNorm2d):
    def _call_impl(self, *args: Tensor) -> Tensor:
        return super()._call_impl(*args) * 2


class CalledInsideConv(nn.Conv2d):
    def _call_impl(self, *args: Tensor) -> Tensor:
        return super()._call_impl(*args) * 2


class CalledInsideReLU(nn.ReLU):
    def _call_impl(self, *args: Tensor) -> Tensor:
        return super()._call_impl(*args) - 1


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "layers",
    [
        lambda: (CalledNorm(12), nn.ReLU(), nn.ChannelShuffle(3)),
        lambda: (CalledInsideNorm(12), nn.ReLU(), Shuffle(3)),
        lambda: (nn.BatchNorm2d(12), CalledInsideReLU(), Shuffle(3)),
        lambda: (CalledInsideConv(12, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), Shuffle(3)),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_calls_of_layers_of_its_own(
    layers: Callable[[], tuple[nn.Module, ...]], exact: bool, training: bool
) -> None:
    """What the class does around the forward is done once, not never and not twice."""
    stock = nn.Sequential(*layers()).train(training)
    model = opswap.swap(copy.deepcopy(stock), exact=exact)
    x = images()
    torch.testing.assert_close(model(x), stock(x), rtol=1e-3, atol=1e-4)


class Reader(nn.Module):
    """Calls a child, which may be scripted, before layers that a swap joins."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child, self.norm, self.act, self.shuffle = child, nn.BatchNorm2d(12), nn.ReLU(), Shuffle(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.shuffle(self.act(self.norm(self.child(x))))


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize(
    "of",
    [torch.jit.script, lambda m: torch.jit.trace(m, images()), torch.fx.symbolic_trace],
    ids=["script", "trace", "graph"],
)
def test_a_compiled_child_beside_what_is_joined(of: Callable[[nn.Module], nn.Module]) -> None:
    stock = Reader(of(nn.Sequential(nn.Conv2d(12, 12, 1), nn.Sigmoid()))).eval()
    model = opswap.swap(copy.deepcopy(stock))
    assert {s.path for s in opswap.report(model).swapped} >= {"norm"}
    x = images()
    opswap.freeze(model)
    with torch.no_grad():
        for _ in range(4):  # later calls may be recorded ones
            torch.testing.assert_close(model(x), stock(x), rtol=1e-3, atol=1e-4)
    model.norm.momentum = 0.5
    opswap.explain(model, x)


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_module(reentrant: bool) -> None:
    stock = Checkpointed(reentrant)
    model = swapped(stock)
    report = opswap.report(model)
    assert [s.path for s in report.swapped] == ["block"] and "checkpoint" in report.kept[0].reason
    opswap.reset_stats()
    same(model, stock)
    again = int(reentrant)  # the other kind stops before the shuffle, of which autograd needs nothing
    assert opswap.stats()["kernel"] == {"cat_channel_shuffle_split": 2 + again}


def test_names_of_arguments() -> None:
    stock = TakesNames(by_size)
    model = swapped(stock)
    x = images()
    for call in ({"x": x}, {"x": x, "scale": 3.0}):
        assert torch.equal(model(**call), stock(**call))


def test_arguments_that_are_no_tensors() -> None:
    stock = Listed(by_size)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    xs = [images(2, 6, 4, 8), images(2, 6, 4, 8)]
    assert torch.equal(model(xs), stock(xs))


def test_subclass_of_tensor() -> None:
    stock = nn.Sequential(Shuffle(3))
    model = swapped(stock)
    x = images().as_subclass(Counted)
    y, expected = model(x), stock(x)
    assert type(y) is type(expected) is Counted and torch.equal(y, expected)


@pytest.mark.parametrize("size", [(0, 12, 4, 8), (2, 12, 0, 8), (1, 12, 1, 1)], ids=str)
def test_empty_and_tiny(size: tuple[int, ...]) -> None:
    same(swapped(Only(by_permute)), Only(by_permute), images(*size))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x = images().to(dtype)
    assert torch.equal(swapped(nn.Sequential(Only(by_size)))(x), by_size(x))


def test_modes_of_autograd() -> None:
    stock = nn.Sequential(Split(), Split())
    model = swapped(stock)
    x = images()
    with torch.inference_mode():
        assert torch.equal(model(x), stock(x))
    with torch.no_grad():
        assert torch.equal(model(x), stock(x)) and not model(x).requires_grad
    model.requires_grad_(False)
    assert not model(x).requires_grad
    ours, theirs = (
        torch.autograd.functional.hvp(lambda t, m=m: m(t).pow(3).sum(), x, x) for m in (model, stock)
    )
    torch.testing.assert_close(ours, theirs)


class ViewsAtTheEnd(nn.Module):
    """Its own forward views what comes out of a convolution, or of a pool."""

    def __init__(self, pool: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Split(), Split())
        self.conv = nn.Conv2d(12, 12, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1) if pool else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.conv(self.blocks(x)))
        return x.view(x.size(0), -1)


HEADS = {
    "a shuffle": lambda: nn.Sequential(Shuffle(3), ViewsItsInput()),
    "blocks": lambda: nn.Sequential(nn.Sequential(Split(), Split()), nn.ReLU(), ViewsItsInput()),
    "nested": lambda: nn.Sequential(Joined(by_size), Shuffle(2), nn.Sequential(ViewsItsInput())),
    "convolution": lambda: nn.Sequential(Split(), Split(), nn.Conv2d(12, 12, 3, padding=1), ViewsItsInput()),
    "own forward": lambda: ViewsAtTheEnd(pool=False),
    "pool": lambda: ViewsAtTheEnd(pool=True),
}


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_a_head_that_views_what_it_gets(make: Callable[[], nn.Module]) -> None:
    """The images of a data loader are often in channels_last, the weights not."""
    stock = make()
    model = swapped(stock)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        assert_model_as_near(model, stock, lambda f=memory_format: (images().contiguous(memory_format=f),))


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize(("pool", "meant"), [(True, False), (False, False), (False, True)])
def test_channels_last_is_kept_where_nothing_views_it(pool: bool, meant: bool) -> None:
    model = swapped(ViewsAtTheEnd(pool))
    if meant:
        model.to(memory_format=torch.channels_last)
    opswap.reset_stats()
    inside = model.blocks(images().contiguous(memory_format=torch.channels_last))
    kept = inside.is_contiguous(memory_format=torch.channels_last)
    assert kept is (pool or meant)
    assert sum(opswap.stats()["kernel"].values()) == (2 if kept else 1)


# --- the function of batch normalisation -----------------------------------------------------------------------------


class Normalised(nn.Module):
    """Calls the function with buffers of its own."""

    def __init__(self, momentum: float = 0.1, affine: bool = True, tracked: bool = True) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.randn(12) if tracked else None)
        self.register_buffer("var", torch.rand(12) + 0.5 if tracked else None)
        self.scale = nn.Parameter(torch.randn(12)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        training = self.training or self.mean is None
        return F.relu(F.batch_norm(x, self.mean, self.var, self.scale, None, training, self.momentum))


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"tracked": False}, {"momentum": 1.0}], ids=str)
def test_batch_norm_as_a_function(options: dict[str, object]) -> None:
    stock = Normalised(**options)
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    assert [s.rule for s in opswap.report(model).swapped] == ["batch_norm_act"]
    for training in (True, False):
        opswap.reset_stats()
        assert_model_as_near(model.train(training), stock.train(training), lambda: (images(),))
        assert opswap.stats()["kernel"] and not opswap.stats()["original"]
    for bad in (torch.ones(2, 12, 4, 8, dtype=torch.int64), torch.ones(2, 5, 4, 8), torch.ones(1, 12)):
        for training in (True, False):
            errors = []
            for m in (stock.train(training), model.train(training)):
                try:
                    m(bad)
                    errors.append(None)
                except Exception as error:
                    errors.append(type(error))
            assert errors[0] is errors[1], (bad.shape, errors)
