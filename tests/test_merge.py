# SPDX-License-Identifier: MIT
"""A merged module computes what the loop over its branches does, carries all tensors over, and gives them back."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from merge_cases import CASES, assert_near, check_step, example, loop, make, take_loop, without_dropout
from opswap import merge
from opswap.merge import measure
from opswap.merge.build import build
from opswap.merge.plan import Plan
from opswap.merge.trace import trace

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("name", CASES)
def test_same_as_the_loop(name: str, shared: bool, seed: int) -> None:
    modules = [without_dropout(m) for m in make(name, 3)]
    merged = merge.branches(modules, shared_input=shared)
    for training in (True, False):
        for m in (merged, *modules):
            m.train(training)
            m.zero_grad()
        for channels_last in (False, True):
            xs = [example(name) for _ in range(1 if shared else 3)]
            if channels_last and xs[0].dim() == 4:
                xs = [x.contiguous(memory_format=torch.channels_last) for x in xs]
                for m in (merged, *modules):
                    m.to(memory_format=torch.channels_last)
            for m in (merged, *modules):
                m.zero_grad()
            check_step(merged, modules, xs, shared)


@pytest.mark.parametrize("label", ["loop", "loop_images", "follow", "chunks", "product", "recorded"])
@pytest.mark.parametrize(
    "name", ["bottleneck", "basic_down", "shuffle", "attention", "norms", "head", "parameters", "conv3d"]
)
def test_every_way_to_run_is_the_same(name: str, label: str, seed: int) -> None:
    modules = [without_dropout(m) for m in make(name, 3)]
    merged = merge.branches(modules)
    traced = trace(modules, [(example(name, 2),), (example(name, 3),)])
    called = [n for n in traced.graph.nodes if n.op.startswith("call")]
    everything = frozenset(n.name for n in called)
    convolutions = frozenset(n.name for n in called if "conv" in n.name or n.op == "call_module")
    images = frozenset(n.name for n in called if len(traced.values[n] or ()) == 4)
    plans = {
        "loop": Plan(everything, follow=True),
        "loop_images": Plan(images),
        "follow": Plan(frozenset(sorted(convolutions)[:1]), follow=True),
    }
    program = build(traced, merged, (True,), 3, plans.get(label, Plan(default=label)))
    merged._merge.programs = {mode: [(0, program)] for mode in merged._merge.programs}
    for batch in (1, 3):
        x = example(name, batch)
        for memory_format in (torch.contiguous_format, torch.channels_last):
            if batch == 1 and name in ("norms", "head"):
                continue  # one value a channel cannot be normalised
            if x.dim() == 4:
                x = x.contiguous(memory_format=memory_format)
            for m in (merged, *modules):
                m.zero_grad()
            check_step(merged, modules, [x], True)


@pytest.mark.parametrize("number", [1, 2, 12])
def test_number_of_branches(number: int, seed: int) -> None:
    modules = make("bottleneck", number)
    check_step(merge.branches(modules), modules, [example("bottleneck")], True)


@pytest.mark.parametrize("looped", [False, True], ids=["merged", "loop"])
@pytest.mark.parametrize("name", ["bottleneck", "ragged", "head", "conv1d", "two_outputs", "linear_tokens"])
def test_a_list_as_the_loop_gives_it(name: str, looped: bool, seed: int) -> None:
    modules = [without_dropout(m).double() for m in make(name, 3)]
    merged = merge.branches(modules, stacked=False)
    if looped:
        take_loop(merged, partial(example, name), stacked=False)
    x = example(name).double()
    outputs, expected = merged(x), loop(modules, [x.clone() for _ in modules])
    assert isinstance(outputs, list) and len(outputs) == 3 and merged.separate(outputs) is outputs
    for ours, theirs in zip(outputs, expected, strict=True):
        (leaves, form), (wanted, wanted_form) = tree_flatten(ours), tree_flatten(theirs)
        assert form == wanted_form
        for a, b in zip(leaves, wanted, strict=True):
            assert_near(a.detach(), b.detach())
    for side in (outputs, expected):
        sum((i + 1) * y.square().sum() for i, y in enumerate(tree_flatten(side)[0])).backward()
    for a, b in zip(merged.split_back(), modules, strict=True):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert_near(p.grad, q.grad)


@pytest.mark.parametrize("stacked", [True, False])
def test_a_list_is_measured_too(stacked: bool, seed: int) -> None:
    merged = merge.branches(make("bottleneck", 3), example_input=example("bottleneck", 2), stacked=stacked)
    with torch.no_grad():
        assert isinstance(merged(example("bottleneck", 2)), Tensor if stacked else list)


def test_a_loop_goes_branch_by_branch(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """What a branch has made is read, and forgotten, before the next branch begins."""
    layers = (partial(nn.BatchNorm2d, 4), nn.ReLU, partial(nn.BatchNorm2d, 4), partial(nn.Conv2d, 4, 6, 3))
    merged = merge.branches([nn.Sequential(*(make_layer() for make_layer in layers)) for _ in range(3)])
    take_loop(merged, partial(example, "norm_first"))
    done: list[str] = []
    alive: list[Any] = []
    normalise, relu = torch.nn.functional.batch_norm, torch.nn.functional.relu

    def watched_normalise(*args: Any) -> Tensor:
        assert not any(made() is not None for made in alive)
        done.append("norm")
        y = normalise(*args)
        alive.append(weakref.ref(y))
        return y

    def watched_relu(x: Tensor, inplace: bool = False) -> Tensor:
        done.append("relu")
        return relu(x, inplace)

    monkeypatch.setattr(torch.nn.functional, "batch_norm", watched_normalise)
    monkeypatch.setattr(torch.nn.functional, "relu", watched_relu)
    with torch.no_grad():
        merged(example("norm_first"))
    assert done == ["norm", "relu", "norm"] * 3


def test_results_of_a_loop_keep_their_memory_format(seed: int) -> None:
    modules = make("bottleneck", 3)
    merged = merge.branches(modules).to(memory_format=torch.channels_last)
    take_loop(merged, partial(example, "bottleneck"))
    x = example("bottleneck").contiguous(memory_format=torch.channels_last)
    output = merged(x)
    assert output.shape == (3, 3, 8, 7, 7)
    for own, module in zip(output.unbind(1), modules, strict=True):
        assert own.is_contiguous(memory_format=torch.channels_last)
        assert_near(own.detach(), module(x).detach())
    assert merged(x.contiguous()).shape == output.shape


def _nodes(outputs: Iterable[Tensor]) -> set[Any]:
    """Everything that autograd has recorded behind these tensors."""
    found: set[Any] = set()
    waiting = [y.grad_fn for y in outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [n for n, _ in node.next_functions]
    return found


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_of_what_is_merged_keep_their_memory_format(batch: int, stacked: bool, seed: int) -> None:
    """One in another format makes torch's BatchNorm walk memory by single elements, 25 times as long."""
    merged = merge.branches(make("bottleneck", 3), stacked=stacked).to(memory_format=torch.channels_last)
    x = example("bottleneck", batch).contiguous(memory_format=torch.channels_last).requires_grad_()
    result = merged(x)
    outputs = [result] if stacked else result
    norms = [n for n in _nodes(outputs) if n.name().startswith("NativeBatchNorm")]
    seen: list[Tensor] = []
    for node in norms:
        node.register_prehook(lambda gradients: seen.append(gradients[0]))
    torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    assert len(seen) == len(norms) == 3
    for gradient in (*seen, x.grad):
        assert gradient.stride() == gradient.clone(memory_format=torch.channels_last).stride()


class _Viewing(nn.Module):
    """The usual end of a net, whose view of a convolution's output fails in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(4, 6, 3, padding=1), nn.Linear(6 * 5 * 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.fc(x.view(x.size(0), -1))


@pytest.mark.parametrize("shared", [True, False])
def test_branches_that_take_contiguous_inputs_alone(shared: bool, seed: int) -> None:
    modules = [_Viewing() for _ in range(3)]
    xs = [torch.randn(2, 4, 5, 5)] * 3
    merged = merge.branches(modules, shared_input=shared, example_input=xs[0])
    output = merged(xs[0] if shared else xs)
    for own, module in zip(output.unbind(1), modules, strict=True):
        assert_near(own.detach(), module(xs[0]).detach())
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        modules[0](xs[0].contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("ms, chosen", [(0.96, "loop"), (0.9, "wide"), (1.5, "loop")])
def test_only_what_is_faster_than_the_loop_is_taken(
    ms: float, chosen: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    def timed(calls: Any, seconds: float) -> dict[str, float]:
        return {name: ms if name == "wide" else 1.0 for name in calls}

    monkeypatch.setattr(measure, "medians_in_turn", timed)
    merged = merge.branches(make("bottleneck", 3), example_input=example("bottleneck", 2))
    assert {t.chosen for t in merged.merge_report().timings if not t.path} == {chosen}
