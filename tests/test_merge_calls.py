# SPDX-License-Identifier: MIT
"""Calls with other inputs than the example, and branches that return more than tensors of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from merge_cases import assert_near, make
from opswap import merge

pytestmark = pytest.mark.usefixtures("one_thread")

N = 3


class Forward(nn.Module):
    """A Linear, a parameter, and a forward that is given."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], out_features: int = 8) -> None:
        super().__init__()
        self.fc = nn.Linear(6, out_features)
        self.gain = nn.Parameter(torch.randn(out_features))
        self.compute = forward

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def gated(m: Any, x: Tensor) -> Tensor:
    a, b = m.fc(x).chunk(2, -1)
    return a * b.sigmoid()


FORWARDS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "cat": lambda m, x: torch.cat([m.fc(x), m.fc(x) * 2], -1),
    "chunk": gated,
    "split": lambda m, x: m.fc(x).split(4, -1)[1],
    "flatten": lambda m, x: m.fc(x).unflatten(-1, (2, 4)).flatten(-2),
    "parameter": lambda m, x: m.fc(x) * m.gain,
    "mean": lambda m, x: m.fc(x) - m.fc(x).mean(-1, keepdim=True),
    "softmax": lambda m, x: m.fc(x).softmax(-1),
}


def same_step(merged: Any, modules: list[nn.Module], x: Any) -> None:
    inputs = [x] * len(modules) if isinstance(x, Tensor) else x
    wanted = [m(own) for m, own in zip(modules, inputs, strict=True)]
    found = merged.separate(merged(x))
    for module in (merged, *modules):
        module.zero_grad()
    for own, other in zip(found, wanted, strict=True):
        assert own.shape == other.shape
        assert_near(own.detach(), other.detach())
    torch.autograd.backward([y.square().sum() for y in found])
    torch.autograd.backward([y.square().sum() for y in wanted])
    back = merged.split_back()
    for own, other in zip(back, modules, strict=True):
        for p, q in zip(own.parameters(), other.parameters(), strict=True):
            if q.grad is None:
                assert p.grad is None or not p.grad.any()
            else:
                assert_near(p.grad, q.grad)


@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize("shared", [True, False])
def test_inputs_of_other_dimensions_than_the_guess(name: str, shared: bool, seed: int) -> None:
    """Merged with a guess of (B, C) and called with (B, T, C), T the number of branches too, and again."""
    modules: list[nn.Module] = [Forward(FORWARDS[name]) for _ in range(N)]
    merged = merge.branches(modules, shared_input=shared)
    for sizes in ((2, 6), (2, N, 6), (2, 8, 6), (2, 2, 5, 6), (3, 6)):
        x = [torch.randn(sizes) for _ in range(N)]
        same_step(merged, modules, x[0] if shared else x)
    if not shared:
        x = torch.randn(2, N, 4, 6)
        assert_near(merged(x), torch.stack([m(x[:, i]) for i, m in enumerate(modules)], 1))


def test_what_was_measured_for_other_dimensions(seed: int) -> None:
    modules: list[nn.Module] = [Forward(FORWARDS["cat"]) for _ in range(N)]
    merged = merge.branches(modules)
    merged.measure(torch.randn(2, N, 6), seconds=0)
    same_step(merged, modules, torch.randn(2, N, 6))
    same_step(merged, modules, torch.randn(2, 6))


def test_other_dimensions_under_compile(seed: int) -> None:
    modules: list[nn.Module] = [Forward(FORWARDS["cat"]) for _ in range(N)]
    merged: Any = merge.branches(modules)
    compiled = torch.compile(merged, backend="eager", fullgraph=True)
    x = torch.randn(2, N, 6)
    with pytest.raises(Exception, match=r"call the module once without torch\.compile"):
        compiled(x)
    torch._dynamo.reset()
    expected = merged(x)
    assert_near(compiled(x), expected)


def test_dimensions_that_no_branch_takes_raise(seed: int) -> None:
    merged = merge.branches([nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)) for _ in range(N)])
    with pytest.raises(ValueError, match="does not run on inputs of size"):
        merged(torch.randn(2, 5, 7, 6))


class TestSeparate:
    """Which output a tensor is, where the branches have several."""

    def modules(self, sizes: list[tuple[int, int]]) -> list[nn.Module]:
        class Heads(nn.Module):
            def __init__(self, labels: int, others: int) -> None:
                super().__init__()
                self.labels, self.others = nn.Linear(6, labels), nn.Linear(6, others)

            def forward(self, x: Tensor) -> dict[str, Any]:
                return {"labels": self.labels(x), "more": (self.others(x), None)}

        return [Heads(*own) for own in sizes]

    @pytest.mark.parametrize("sizes", [[(1, 3), (2, 2), (3, 1)], [(1, 6), (2, 6), (3, 6)], [(4, 4)] * 3])
    def test_the_whole_output(self, sizes: list[tuple[int, int]], seed: int) -> None:
        modules, x = self.modules(sizes), torch.randn(4, 6)
        merged: Any = merge.branches(modules)
        for found, module in zip(merged.separate(merged(x)), modules, strict=True):
            wanted = module(x)
            assert found.keys() == wanted.keys() and found["more"][1] is None
            assert_near(found["labels"], wanted["labels"])
            assert found["labels"].shape == wanted["labels"].shape
            assert found["more"][0].shape == wanted["more"][0].shape
            assert_near(found["more"][0], wanted["more"][0])

    def test_one_tensor_of_several(self, seed: int) -> None:
        x = torch.randn(4, 6)
        merged: Any = merge.branches(self.modules([(1, 3), (2, 2), (3, 1)]))
        with pytest.raises(ValueError, match="may be one of several outputs; pass all"):
            merged.separate(merged(x)["labels"])
        merged = merge.branches(modules := self.modules([(1, 5), (2, 5), (4, 5)]))
        out = merged(x)
        for i, module in enumerate(modules):
            assert_near(merged.separate(out["labels"])[i], module(x)["labels"])
            assert_near(merged.separate(out["more"][0])[i], module(x)["more"][0])

    def test_sizes_of_no_output(self, seed: int) -> None:
        merged: Any = merge.branches(self.modules([(1, 5), (2, 5), (4, 5)]))
        with pytest.raises(ValueError, match=r"\(B, \*, 7\) or \(B, 3, \*\), got one of size \(4, 2, 9\)"):
            merged.separate(torch.zeros(4, 2, 9))


class TestReturned:
    """What branches may return beside a tensor of the batch."""

    @pytest.mark.parametrize("stacked", [True, False])
    @pytest.mark.parametrize("aux", [None, 3, 2.5, "text"])
    def test_what_is_no_tensor(self, aux: Any, stacked: bool, seed: int) -> None:
        modules: list[nn.Module] = [Forward(lambda m, x: (m.fc(x), aux)) for _ in range(N)]
        x = torch.randn(2, 6)
        merged: Any = merge.branches(modules, stacked=stacked)
        merged.measure(x, seconds=0)
        for (y, other), module in zip(merged.separate(merged(x)), modules, strict=True):
            assert_near(y, module(x)[0])
            assert other == aux

    def test_a_number_per_branch(self, seed: int) -> None:
        """squeeze() of one image leaves a number, of which the merged module has a vector."""
        modules: list[nn.Module] = [Forward(lambda m, x: m.fc(x).squeeze(), 1) for _ in range(N)]
        merged: Any = merge.branches(modules)
        for batch in (1, 4):
            x = torch.randn(batch, 6)
            assert merged(x).shape == ((N,) if batch == 1 else (batch, N))
            for own, module in zip(merged.separate(merged(x)), modules, strict=True):
                assert own.shape == module(x).shape
                assert_near(own, module(x))

    def test_a_hidden_state_that_nothing_reads(self, seed: int) -> None:
        class Recurrent(nn.Module):
            def __init__(self, kind: Any) -> None:
                super().__init__()
                self.rnn, self.fc = kind(6, 8, batch_first=True), nn.Linear(8, 3)

            def forward(self, x: Tensor) -> Tensor:
                y, _ = self.rnn(x)
                return self.fc(y[:, -1])

        for kind in (nn.LSTM, nn.GRU):
            modules: list[nn.Module] = [Recurrent(kind) for _ in range(N)]
            merged = merge.branches(modules, example_input=torch.randn(2, 5, 6))
            assert [s.path for s in merged.merge_report().kept] == ["rnn"]
            x = torch.randn(4, 5, 6)
            assert_near(merged(x), torch.stack([m(x) for m in modules], 1))

    def test_a_hidden_state_that_is_read(self) -> None:
        class Hidden(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn = nn.GRU(6, 8, batch_first=True)

            def forward(self, x: Tensor) -> Tensor:
                return self.rnn(x)[1]

        with pytest.raises(ValueError, match="must keep the batch in its first dimension"):
            merge.branches([Hidden() for _ in range(N)], example_input=torch.randn(2, 5, 6))


def test_a_dropout_in_place_on_the_shared_input(seed: int) -> None:
    for kind in (nn.Dropout, nn.RReLU):
        modules: list[nn.Module] = [nn.Sequential(kind(inplace=True), nn.Linear(6, 4)) for _ in range(N)]
        merged = merge.branches(modules)
        x = torch.randn(64, 6)
        before = x.clone()
        assert merged(x).shape == (64, N, 4) and torch.equal(x, before)
        merged(x).sum().backward()
        y = merged.eval()(x)
        assert_near(y, torch.stack([m.eval()(x.clone()) for m in modules], 1))


class Maximum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(6, 6, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).max(1, keepdim=True).values * x


class Unbound(Maximum):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(self.conv(x).unbind(1)[::-1], 1)


class Scaled(Maximum):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) * (self.weight * 2).mean()


@pytest.mark.parametrize("cls", [Maximum, Unbound, Scaled])
def test_a_way_that_cannot_run_is_not_measured(cls: type[nn.Module], seed: int) -> None:
    """What has no loop, or no wide way, is merged as without an example."""
    modules, x = [cls() for _ in range(N)], torch.randn(2, 6, 8, 8)
    merged = merge.branches(modules, example_input=x)
    assert merged.merge_report().timings
    same_step(merged, modules, x)


def test_one_branch_with_an_inf_leaves_the_others_finite(seed: int) -> None:
    """In every way that is measured, forward and backward."""
    modules = make("conv_bn_relu", N)
    convolutions = [m[0] for m in modules]
    merged: Any = merge.branches(convolutions, shared_input=False)
    layer = merged.get_submodule("0")
    x = torch.randn(2, N * 4, 9, 7)
    x[0, 0, 4, 4] = torch.inf
    for way in ("wide", *layer.ways):
        layer.zero_grad()
        y = layer(x, way)
        assert y[:, 6:].isfinite().all() and not y[:, :6].isfinite().all()
        y[:, 6:].sum().backward()
        assert layer.weight.grad[6:].isfinite().all()
