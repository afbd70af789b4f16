# SPDX-License-Identifier: MIT
"""As near to float64 as stock: how `verify` compares results that are rounded differently.

Stock and swapped code round at other places. A value on the kink of an activation, or two values that tie in a maximum,
may fall on either side in either model, and the results far behind it differ by more than rounding. A single run
proves nothing. So each quantity (an output, a gradient, a buffer) that is farther from float64 than allowed gets a
sequential sign test: a lost round adds 1 to its score, a round in which it holds subtracts 1. It holds at `_PASS`, and
fails at `_FAIL`. If both models fall on the wrong side with probability p, a round is lost with p * (1 - p) <= 1/4:
then a score reaches `_FAIL` first in 1 of 2,500 tests at most (the gambler's ruin: (3**2 - 1) / (3**9 - 1)). A wrong
replacement loses each round.

Behind a million activations, several values may lie at a kink, and more than half of the rounds may be lost. So a
quantity that has reached `_FAIL`, but held in some round, goes on, and holds as soon as the sum of its errors and the
least of them are both within what is allowed for the sum and the least of stock's. A wrong replacement has an error in
its best round too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from opswap._table import short_name

__all__ = ["FACTOR", "Difference", "Score", "Terms", "difference", "same", "spread"]

FACTOR = 4.0  # times the stock model's own error
_FLOOR = 32.0  # times the dtype's epsilon, below which a difference is not an error
_PASS, _FAIL, _ROUNDS = -1, 8, 40
# Nodes of autograd's graph whose gradients of one value per channel are sums of the gradient that they get, or of its
# products with normalised values.
_SUMS = ("BatchNorm", "Convolution", "Addmm", "LayerNorm", "GroupNorm")


@dataclass(frozen=True)
class Difference:
    """How far a quantity is from float64.

    share: the error as a share of what is allowed, above 1 too much; error, bound: of the swapped and of the stock
    model, as a share of the largest value, infinite where shapes differ; allowed: the largest error that holds.
    problem: another shape or dtype. final: another number of dimensions or dtype, which no round changes.
    """

    name: str
    share: float
    error: float = 0.0
    bound: float = 0.0
    problem: str = ""
    allowed: float = 0.0
    final: bool = False


def difference(
    name: str,
    ours: Tensor,
    stock: list[Tensor],
    truth: Tensor,
    magnitude: float = 0.0,
    error_of_terms: float = 0.0,
) -> Difference:
    """How far ours is from the truth, which is in float64, against the farthest of some runs of stock.

    magnitude: the least one that errors are compared with. error_of_terms: an error of stock besides.
    """
    final = ours.dtype != stock[0].dtype or ours.dim() != stock[0].dim()
    # A detector may find as many boxes as in float64, and stock another number.
    differs = final or ours.shape not in (stock[0].shape, truth.shape)
    scale = max(_largest(truth), _largest(stock[0]), magnitude, 1e-30)
    error = float("inf") if differs else _error(ours, truth) / scale
    bound = max(error_of_terms, *(_error(t, truth) for t in stock)) / scale
    allowed = FACTOR * bound
    if ours.dtype.is_floating_point:
        allowed += _FLOOR * torch.finfo(ours.dtype).eps
    share = error / allowed if allowed and error < float("inf") else float("inf")
    problem = f"{name} is {_kind(ours)}, was {_kind(stock[0])}" if differs else ""
    return Difference(name, share, error, bound, problem, allowed, final)


@dataclass
class _Trial:
    """The rounds of one quantity."""

    score: int = 0
    rounds: list[Difference] = field(default_factory=list)

    def add(self, found: Difference) -> None:
        self.rounds.append(found)
        self.score += 1 if found.share > 1.0 else -1

    @property
    def holds(self) -> bool:
        rounds = len(self.rounds)
        undecided = _FAIL <= self.score < rounds or rounds >= _ROUNDS > self.score
        return self.score <= _PASS or (undecided and self._is_near())

    @property
    def last_held(self) -> Difference:
        """The last round that was not lost."""
        return next(d for d in reversed(self.rounds) if d.share <= 1.0)

    @property
    def fails(self) -> bool:
        lost_each = self.score == len(self.rounds) >= _FAIL
        return self.rounds[-1].final or lost_each or len(self.rounds) >= _ROUNDS

    def _is_near(self) -> bool:
        """Whether the errors of all rounds are allowed together, and the least one is."""
        errors, allowed = [d.error for d in self.rounds], [d.allowed for d in self.rounds]
        return sum(errors) <= sum(allowed) and min(errors) <= min(allowed)


class Score:
    """The sign test of all quantities: rounds are added while it is `open`.

    What held in the first round is not tested again.
    """

    def __init__(self, first: list[Difference]) -> None:
        self.pending = {d.name: _Trial() for d in first}
        self.failed: Difference | None = None
        self._held: list[Difference] = []
        self.add(first)

    @property
    def open(self) -> bool:
        return bool(self.pending) and self.failed is None

    def add(self, found: list[Difference]) -> None:
        by_name = {d.name: d for d in found}
        for name, trial in list(self.pending.items()):
            trial.add(by_name.get(name, Difference(name, 0.0)))
            if trial.holds:
                del self.pending[name]
                self._held.append(trial.last_held)
            elif trial.fails:
                self.failed = trial.rounds[-1]

    @property
    def worst(self) -> Difference:
        """The quantity that failed, or else the one nearest to what is allowed."""
        return self.failed or max(self._held, key=lambda d: d.share)


def spread(name: str, truth: Mapping[str, Tensor]) -> float:
    """Of a running mean, the standard deviation of what it averages, which may be 0 but for rounding; else 0."""
    if not name.endswith("running_mean"):
        return 0.0
    variance = truth.get(f"{name.removesuffix('mean')}var")
    return 0.0 if variance is None else _largest(variance) ** 0.5


class Terms:
    """What gradients of one value per channel are sums of: how large it is, and how far from float64 in stock.

    The gradient of a bias in front of a BatchNorm is 0 but for rounding. If the values of two images are opposite, it
    is exactly 0 in stock too, however far from float64 the two terms are. So its error is compared with its terms: the
    root of the sum of their squares, the largest of all channels. Parameters of more than one dimension are left out.

    magnitude, error: by the name of the gradient, after a backward of stock and one in float64.
    """

    def __init__(self) -> None:
        self.magnitude: dict[str, float] = {}
        self.error: dict[str, float] = {}
        self._stock: dict[str, list[Tensor]] = {}

    def watch(self, model: nn.Module, outputs: Iterable[Tensor]) -> None:
        """Look at the next backward of the outputs: of stock if their graph is not in float64."""
        names = {p: f"gradient of {name}" for name, p in model.named_parameters() if p.dim() == 1}
        stack = [y.grad_fn for y in outputs if y.grad_fn is not None]
        seen = set(stack)
        while stack:
            node = stack.pop()
            following = [n for n, _ in node.next_functions if n is not None]
            found = [names[n.variable] for n in following if getattr(n, "variable", None) in names]
            if found and any(kind in node.name() for kind in _SUMS):
                node.register_prehook(partial(self._note, found, -1 if "LayerNorm" in node.name() else 1))
            new = {n for n in following if n not in seen}
            seen |= new
            stack += new

    def _note(self, names: list[str], dim: int, gradients: tuple[Tensor | None, ...]) -> None:
        gradient = gradients[0]
        if gradient is None or gradient.dim() < 2:
            return
        rows = gradient.detach().movedim(dim, 0).flatten(1)
        for name in names:
            if rows.dtype is not torch.float64:
                self._stock.setdefault(name, []).append(rows)
                continue
            stock = self._stock.get(name)
            theirs = stock.pop(0) if stock else rows
            error = rows - theirs if theirs.shape == rows.shape else torch.zeros_like(rows)
            for found, t in ((self.magnitude, rows), (self.error, error)):
                found[name] = max(_largest(t.norm(dim=1)), found.get(name, 0.0))


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _kind(t: Tensor) -> str:
    return f"{short_name(t.dtype)}{tuple(t.shape)}"


def _largest(t: Tensor) -> float:
    """The largest finite magnitude."""
    return float(t.double().nan_to_num(0, 0, 0).abs().max()) if t.numel() else 0.0


def _error(t: Tensor, truth: Tensor) -> float:
    """The largest difference; NaN and infinities must be at the same places."""
    t, truth = t.double(), truth.double()
    if not torch.equal(t.isfinite(), truth.isfinite()):
        return float("inf")
    return _largest(t - truth)
