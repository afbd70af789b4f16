# SPDX-License-Identifier: MIT
"""A merged module computes what the loop over its branches does, carries all tensors over, and gives them back."""

from __future__ import annotations

import pytest
import torch

from merge_cases import CASES, check_step, example, make, without_dropout
from opswap import merge
from opswap.merge.build import Plan, build
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


@pytest.mark.parametrize("label", ["loop", "loop_images", "follow", "chunks", "dense", "product", "recorded"])
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
    program = build(traced, merged, (True,), 3, plans.get(label, Plan(otherwise=label)))
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
