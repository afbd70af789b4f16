# SPDX-License-Identifier: MIT
"""The order in which recorded calls run again."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.swap.replay.calls import Call, in_order_of_memory, tensors_in
from opswap.swap.replay.recorder import record


def call(result: Any, *args: Any, writes: bool = False, **kwargs: Any) -> Call:
    return Call(None, args, kwargs, result, writes=writes)


def of(size: int) -> Tensor:
    return torch.zeros(size)


def test_what_shrinks_follows_what_it_reads() -> None:
    x, a, b, c = of(8), of(8), of(8), of(8)
    first, second, third = call(a, x), call(b, a), call(c, b)
    pool = call(of(2), a, scale=1)
    assert in_order_of_memory([first, second, third, pool]) == [first, pool, second, third]
    joined = call(of(9), [pool.result, c])
    assert in_order_of_memory([first, second, third, pool, joined]) == [first, pool, second, third, joined]
    named = call((of(1), of(1)), x, given={"a": b})
    assert in_order_of_memory([first, second, third, named]) == [first, second, named, third]


def test_what_does_not_stays() -> None:
    x, a, b = of(8), of(8), of(8)
    first, second = call(a, x), call(b, a)
    for last in (
        call(of(8), a),
        call(of(9), a),
        call(of(2), x),
        call(a, a, writes=True),
        call((of(5), of(3)), a),
    ):
        assert in_order_of_memory([first, second, last]) == [first, second, last]


def test_writes_are_not_crossed() -> None:
    x, a, b = of(8), of(8), of(8)
    first, write, other = call(a, x), call(a, a, writes=True), call(b, x)
    pool = call(of(2), a)
    assert in_order_of_memory([first, write, other, pool]) == [first, write, pool, other]
    elsewhere = call(b, b, writes=True)
    assert in_order_of_memory([first, other, elsewhere, pool]) == [first, pool, other, elsewhere]
    view = call(a[2:], a[2:], writes=True)
    assert in_order_of_memory([first, other, view, pool]) == [first, other, view, pool]


@pytest.mark.parametrize("seed", range(20))
def test_every_call_has_what_it_reads(seed: int) -> None:
    draw = random.Random(seed)
    tensors, calls = [of(8), of(8)], []
    for _ in range(30):
        writes = draw.random() < 0.1
        args = draw.sample(tensors, 2)
        result = args[0] if writes else of(draw.randint(1, 9))
        calls.append(call(result, *args, writes=writes))
        tensors.append(result)
    ordered = in_order_of_memory(calls)
    assert sorted(map(id, ordered)) == sorted(map(id, calls)) and ordered != calls
    for one in calls:
        reads = set(map(id, tensors_in(one.args)))
        at = next(i for i, other in enumerate(ordered) if other is one)
        made = {id(other.result) for other in ordered[:at]}
        assert all(key in made or key in map(id, tensors[:2]) for key in reads)
    writes = [i for i, one in enumerate(calls) if one.writes]
    for i in writes:  # what reads a tensor before a write to it does so still
        place = next(k for k, one in enumerate(ordered) if one is calls[i])
        readers = [
            [id(c) for c in part if any(calls[i].result is t for t in c.args)]
            for part in (calls[:i], ordered[:place])
        ]
        assert set(readers[0]) == set(readers[1])


class Features(nn.Module):
    """Features of several depths, pooled at the end."""

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for factor in (1.5, 2.5, 3.5):
            x = torch.sigmoid(x * factor) + 0.5
            kept.append(x)
        kept[1].clamp_(max=1.2)
        pooled = [F.avg_pool2d(f, 4) for f in kept]
        return torch.cat([p / p.pow(2).mean() for p in pooled], 1)


def test_a_recorded_call_computes_the_same() -> None:
    model, x = Features(), torch.randn(2, 3, 8, 8)
    recording = record(model, (x,), model)
    with torch.no_grad():
        assert torch.equal(recording.run(x), model(x)) and torch.equal(recording.result, model(x))
        assert torch.equal(recording.run(-x), model(-x))


def test_pools_of_features_follow_them() -> None:
    """LPRNet's, of which the last one is behind the backbone."""
    torch.manual_seed(0)
    stock = opswap.models.lprnet(num_classes=12).eval()
    model = opswap.freeze(opswap.swap(stock, memory_format=torch.channels_last))
    x = torch.randn(1, 3, 24, 94).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        results = [model(x) for _ in range(6)]
        recording = record(model.forward, (x,), model)
    names = [getattr(f, "__name__", "") for f in recording.run.__globals__.values() if callable(f)]
    assert all(torch.equal(r, results[0]) for r in results)
    pools = [name.removeprefix("plain_") for name in names if "pool" in name]
    assert [name[:3] for name in pools] == ["avg", "max", "avg", "max", "avg", "max"]
