# SPDX-License-Identifier: MIT
"""As near to float64 as stock: the one way in which the tests compare rounded results.

Stock and swapped code round differently, and on every CPU at other places. In a small batch a value on the kink of a
ReLU, or two values that tie in a maximum, may fall on either side in either model. From there on that model is far
from the truth, and in the next run it may be the other one. A single run proves nothing, neither good nor bad.

So every quantity (an output, a gradient, a buffer) gets a sequential sign test. A round draws new inputs and computes
the quantity three times: by stock code in float64 (the truth), by stock code, and by ours. A round is lost if our error
is larger than `times` the error of stock plus FLOOR roundings of the values. A lost round adds 1 to a score, a won
round subtracts 1. The quantity is good when its score reaches PASS, and bad when it reaches FAIL.

If both models fall on the wrong side with the same probability p, a round is lost with p * (1 - p), at most 1/4. Then
a score reaches FAIL before PASS once in 7000 tests (the gambler's ruin: (3**2 - 1) / (3**10 - 1)). An error of the
code loses nearly every round, and a single one that it wins by chance changes nothing. Usually two rounds are run.

A kernel that adds up products needs no such comparison: how far its sums may be from the truth is known. That is
`assert_within_roundings`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

__all__ = [
    "Quantities",
    "assert_as_near",
    "assert_model_as_near",
    "assert_trains_as_near",
    "assert_within_roundings",
    "named",
    "step",
]

COMPILED = "_orig_mod."  # the prefix of names in a compiled module
PASS, FAIL, LAST_ROUND = -2, 8, 60
FLOOR = 8  # roundings: stock may be exact by luck

Quantities = Mapping[str, Tensor | None]
Draw = Callable[[], tuple[Quantities, Quantities, Quantities]]


def assert_as_near(draw: Draw, times: float = 4.0, floor: float = FLOOR) -> None:
    """Fail if a quantity is farther from the truth than `times` stock's distance, in a sign test over many rounds.

    Args:
        draw: makes new inputs and returns the quantities in float64, by stock code and by ours, under equal names.
        times: the factor by which our error may be larger.
        floor: roundings of the largest value, or of the mean square, that our error may be larger besides.
    Raises: AssertionError that names the bad quantities, with the errors of the last round.
    """
    scores: dict[str, int] = {}
    pending: set[str] = set()
    for number in range(LAST_ROUND):
        truth, stock, ours = draw()
        assert list(truth) == list(stock) == list(ours), (list(truth), list(stock), list(ours))
        scores = scores or dict.fromkeys(truth, 0)
        pending = pending if number else set(truth)
        lost: dict[str, str] = {}
        for name in sorted(pending):
            complaint = _worse(truth[name], stock[name], ours[name], times, floor, name)
            scores[name] += 1 if complaint else -1
            if complaint:
                lost[name] = complaint
        failed = [f"{name}: {lost[name]}" for name in lost if scores[name] >= FAIL]
        assert not failed, f"farther from float64 than stock, in round {number + 1} again: " + "; ".join(
            failed
        )
        pending = {name for name in pending if scores[name] > PASS}
        if not pending:
            return


def _worse(
    truth: Tensor | None, stock: Tensor | None, ours: Tensor | None, times: float, floor: float, name: str
) -> str:
    """How our error compares with stock's if it is too large, else ""."""
    kinds = [None if t is None else (t.dtype, t.shape) for t in (stock, ours)]
    assert kinds[0] == kinds[1], f"{name}: stock is {kinds[0]}, ours {kinds[1]}"
    if truth is None or stock is None or ours is None or not stock.numel():
        assert (truth is None) == (stock is None), f"{name}: missing in one of stock and float64"
        return ""
    if not stock.dtype.is_floating_point:
        return "" if torch.equal(stock, ours) else f"stock is {stock}, ours {ours}"
    assert torch.equal(stock.isnan(), ours.isnan()), f"{name}: NaN elsewhere than in stock"
    unit = floor * torch.finfo(stock.dtype).eps
    exact = truth.detach().double().nan_to_num(0.0, 0.0, 0.0)
    a, b = (_error(t, truth) for t in (ours, stock))
    for kind, size in (("largest", _largest), ("mean square", _mean_square)):
        if not size(a) <= times * size(b) + unit * size(exact):
            return (
                f"{kind} error {size(a):.3g} against {size(b):.3g} of stock, of values of {size(exact):.3g}"
            )
    return ""


def _error(t: Tensor, truth: Tensor) -> Tensor:
    """Distance to the truth; none if both are the same infinity or NaN."""
    t, truth = t.detach().double(), truth.detach().double()
    return torch.where((t == truth) | t.isnan() & truth.isnan(), 0.0, t - truth)


def _largest(t: Tensor) -> float:
    return t.abs().max().item()


def _mean_square(t: Tensor) -> float:
    return t.square().mean().sqrt().item()


def assert_within_roundings(
    ours: Tensor, truth: Tensor, magnitude: Tensor, terms: Tensor, what: object = ""
) -> None:
    """Fail if a sum of products, made in ours' dtype or in float32 for half precision, is off by more than rounding.

    The bound is the probabilistic one of Higham and Mary 2019, "A new approach to probabilistic rounding error
    analysis", theorem 2.4: each of `terms` roundings is as likely up as down, so that their sum grows with the
    square root of their number,

        |ours - truth| <= 4 * sqrt(terms) * u * magnitude,

    with u half the distance of 1 to the next number. Half precision adds one rounding of the result.

    Args:
        ours: the sums.
        truth: the same in float64; of float64 sums it is as far off as ours may be, so that the bound counts twice.
        magnitude: the sums of the absolute values of the products, in float64.
        terms: how many products each sum has, such as the same computation on ones gives it.
        what: named in the message.
    Raises: AssertionError that tells the element with the largest excess.
    """
    assert ours.shape == truth.shape, f"{what}: ours is {tuple(ours.shape)}, the truth {tuple(truth.shape)}"
    info = torch.finfo(ours.dtype)
    half = ours.dtype.itemsize == 2
    unit = torch.finfo(torch.float32).eps / 2 if half else info.eps / 2
    allowed = 4 * terms.double().sqrt() * unit * magnitude * (2 if ours.dtype is torch.float64 else 1)
    if half:
        allowed = allowed + (truth.abs() + allowed) * info.eps / 2 + info.smallest_normal * info.eps / 2
    excess = ((ours.double() - truth).abs() - allowed).flatten()
    if excess.numel() and not bool((excess <= 0).all()):
        i = int(excess.nan_to_num(float("inf")).argmax())
        a, b, bound = (t.flatten()[i].item() for t in (ours, truth, allowed))
        raise AssertionError(f"{what}: element {i} is {a}, the truth {b}, which allows {bound:.3g}")


def named(tensors: Iterable[Tensor | None]) -> dict[str, Tensor | None]:
    """A list of quantities by their numbers."""
    return {str(i): t for i, t in enumerate(tensors)}


def step(model: nn.Module, *inputs: Tensor) -> dict[str, Tensor | None]:
    """Outputs, gradients of inputs and parameters, and buffers after one forward and backward.

    The model, which may be a compiled one, gets its gradients and buffers back.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    before = [p.grad for p in parameters.values()], [b.detach().clone() for b in buffers.values()]
    model.zero_grad()
    found = _forward_and_backward(model, inputs)
    found |= {f"gradient of {k.removeprefix(COMPILED)}": p.grad for k, p in parameters.items()}
    found |= {k.removeprefix(COMPILED): b.detach().clone() for k, b in buffers.items()}
    for p, grad in zip(parameters.values(), before[0], strict=True):
        p.grad = grad
    with torch.no_grad():
        for b, value in zip(buffers.values(), before[1], strict=True):
            b.copy_(value)
    return found


def losses(model: nn.Module, x: Tensor, **options: float) -> dict[str, Tensor | None]:
    """Of five steps of SGD with these options, on a copy of the model in the dtype of the input."""
    model, found = copy.deepcopy(model).to(x.dtype), {}
    optimizer = torch.optim.SGD(model.parameters(), **options)
    for i in range(5):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        found[f"loss {i}"] = loss.detach()
    return found


def assert_trains_as_near(
    model: nn.Module, stock: nn.Module, draw: Callable[[], Tensor], **options: float
) -> None:
    """`assert_as_near` for the losses of both models in training."""

    def draw_all() -> tuple[Quantities, Quantities, Quantities]:
        x = draw()
        return tuple(losses(*which, **options) for which in ((stock, x.double()), (stock, x), (model, x)))

    assert_as_near(draw_all)


def _forward_and_backward(model: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor | None]:
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = tree_leaves(model(*leaves))
    loss = sum((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs)
    if loss.requires_grad:
        loss.backward()
    found: dict[str, Tensor | None] = {f"output {i}": y.detach() for i, y in enumerate(outputs)}
    return found | {f"gradient of input {i}": x.grad for i, x in enumerate(leaves)}


def assert_model_as_near(
    ours: nn.Module, stock: nn.Module, inputs: Callable[[], tuple[Tensor, ...]], times: float = 4.0
) -> None:
    """`assert_as_near` for all quantities of one step of two models, in the mode that they are in.

    Args:
        ours, stock: models with equal parameters and buffers, which stay unchanged.
        inputs: draws new inputs.
        times: the factor by which our error may be larger.
    """
    exact = copy.deepcopy(stock).double()

    def draw() -> tuple[Quantities, Quantities, Quantities]:
        drawn = inputs()
        wide = tuple(x.double() if x.is_floating_point() else x for x in drawn)
        return step(exact, *wide), step(stock, *drawn), step(ours, *drawn)

    assert_as_near(draw, times)
