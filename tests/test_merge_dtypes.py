# SPDX-License-Identifier: MIT
"""Merged modules in another dtype than their branches had, under autocast, and measured again and again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from merge_cases import BasicBlock, Transformer, example, loop, make, without_dropout
from opswap import merge
from opswap.merge.build import build
from opswap.merge.plan import Plan
from opswap.merge.trace import trace

pytestmark = pytest.mark.usefixtures("one_thread")

SECONDS = 0.002
CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "double": nn.Module.double,
    "bfloat16": nn.Module.bfloat16,
    "half": nn.Module.half,
    "to": lambda m: m.to("cpu", torch.float64),
    "there and back": lambda m: m.double().float(),
}


def merge_sequential(name: str) -> tuple[list[nn.Module], merge.MergedBranches]:
    modules = [without_dropout(m).eval() for m in make(name, 3)]
    modules = [m if m._modules else nn.Sequential(m) for m in modules]
    return modules, merge.branches(modules)


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize(
    "name", ["bottleneck", "ragged", "transformer", "parameters", "squeeze_excite", "norms", "conv"]
)
def test_measured_in_another_dtype(name: str, cast: str, seed: int) -> None:
    modules, merged = merge_sequential(name)
    for m in (*modules, CASTS[cast](merged)):
        CASTS[cast](m)
    dtype = next(merged.parameters()).dtype
    x = example(name).to(dtype)
    for _ in range(2):
        report = merged.measure(x, seconds=SECONDS)
        assert {t.mode for t in report.timings} == {"training", "inference"}
        outputs = merged.separate(merged(x))
        for ours, theirs in zip(outputs, loop(modules, [x.clone() for _ in modules]), strict=True):
            assert ours.dtype == theirs.dtype == dtype
            tolerance = {torch.bfloat16: 0.15, torch.float16: 0.02}.get(dtype, 1e-4)
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert all(p.dtype == dtype for m in merged.split_back() for p in m.parameters())


def test_measured_after_casts_in_turn(seed: int) -> None:
    modules = make("conv_bn_relu", 3)
    merged = merge.branches(modules, shared_input=False, example_input=example("conv_bn_relu"))
    for dtype in (torch.float64, torch.bfloat16, torch.float32, torch.float64):
        xs = [example("conv_bn_relu").to(dtype) for _ in modules]
        merged.to(dtype).measure(xs, seconds=SECONDS)
        merged.measure(torch.stack(xs, 1), seconds=SECONDS)
        assert merged(xs).dtype == dtype


def test_measured_without_parameters(seed: int) -> None:
    merged = merge.branches([nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)) for _ in range(2)])
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(2, 16, 8, 8, dtype=dtype)
        merged.measure(x, seconds=SECONDS)
        assert merged(x).dtype == dtype


@pytest.mark.parametrize(
    "around", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_merged_and_measured_inside_of(around: Callable[[], object], seed: int) -> None:
    modules = [m.eval() for m in make("bottleneck", 3)]
    with around():
        x = example("bottleneck")
        merged = merge.branches(modules, example_input=x).eval()
        merged.measure(x, seconds=SECONDS)
        expected = torch.stack(loop(modules, [x] * 3), 1)
        assert merged(x).dtype == expected.dtype
        torch.testing.assert_close(merged(x), expected, rtol=0.02, atol=0.05)
    assert not any(p.is_inference() for p in merged.parameters())
    y = merged(x.clone())
    y.sum().backward()
    assert all(p.grad is not None for p in merged.parameters())


def test_inputs_that_do_not_fit_are_named(seed: int) -> None:
    merged = merge.branches(make("bottleneck", 2)).double()
    with pytest.raises(ValueError, match=r"does not run on .*torch.float32 on cpu"):
        merged.measure(example("bottleneck"), seconds=SECONDS)
    with pytest.raises(ValueError, match="weight is on the meta device: nothing can be measured there"):
        copy.deepcopy(merged).to("meta").measure(example("bottleneck"), seconds=SECONDS)
    with pytest.raises(TypeError, match="expected 1 inputs, got 2"):
        merged.measure(example("bottleneck"), example("bottleneck"))
    merged.measure(example("bottleneck").double(), seconds=SECONDS)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.rand(6, 1, 1)), nn.Parameter(torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma + self.beta


AUTOCAST: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "pointwise": (lambda: nn.Sequential(nn.Conv2d(4, 6, 1)), (4, 5, 6)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3)), (4, 5, 6)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3)), (4, 5, 6)),
    "layer_norm": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8)), (6,)),
    "layer_norm_tokens": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8)), (3, 6)),
    "layer_norm_first": (lambda: nn.Sequential(nn.LayerNorm(6)), (3, 6)),
    "group_norm": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6)), (4, 5, 6)),
    "instance_norm": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.InstanceNorm2d(6, affine=True)),
        (4, 5, 6),
    ),
    "parameters": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), Scale()), (4, 5, 6)),
    "in_place": (lambda: BasicBlock(4, 4, 1), (4, 5, 6)),
    "transformer": (lambda: Transformer(8), (5, 8)),
}


@pytest.mark.parametrize("way", ["wide", "loop", "chunks", "product"])
@pytest.mark.parametrize("name", AUTOCAST)
def test_dtypes_under_autocast_are_those_of_the_loop(name: str, way: str, seed: int) -> None:
    make_branch, sizes = AUTOCAST[name]
    modules = [make_branch() for _ in range(3)]
    traced = trace(modules, [(torch.randn(batch, *sizes),) for batch in (2, 3)])
    calls = frozenset(n.name for n in traced.graph.nodes if n.op.startswith("call"))
    plan = Plan(calls, follow=True) if way == "loop" else Plan(default=way)
    for shared in (True, False):
        merged = merge.branches(modules, shared_input=shared)
        program = build(traced, merged, (shared,), 3, plan)
        merged._merge.programs = {mode: [(0, program)] for mode in merged._merge.programs}
        for batch in (1, 3):
            x = torch.randn(batch, *sizes)
            if batch == 1 and name == "in_place":
                continue
            with torch.autocast("cpu", torch.bfloat16):
                expected = torch.stack(loop(modules, [x.clone() for _ in modules]), 1)
                actual = merged(x if shared else [x.clone() for _ in modules])
            assert actual.dtype == expected.dtype
            torch.testing.assert_close(actual.float(), expected.float(), rtol=0.05, atol=0.1)


def test_what_was_measured_is_bounded(seed: int) -> None:
    """The sizes measured last are kept, with their rows in the report."""
    merged = merge.branches(make("linear", 2))
    for batch in range(1, 41):
        merged.measure(example("linear", batch), seconds=0)
    state = merged._merge
    for mode in ("training", "inference"):
        assert [n for n, _ in state.programs[mode]] == [6 * batch for batch in range(25, 41)]
    assert {t.elements for t in merged.merge_report().timings} == {6 * batch for batch in range(25, 41)}
    merged.measure(example("linear", 25), seconds=0)
    assert state.programs["training"][-1][0] == 150 and len(state.programs["training"]) == 16


@pytest.mark.parametrize("name", ["bottleneck", "transformer", "ragged", "parameters", "basic_down", "norms"])
def test_copies_after_measure(name: str, seed: int) -> None:
    modules, merged = merge_sequential(name)
    for _ in range(2):
        merged.measure(example(name), seconds=SECONDS)
    x = example(name)
    for twin in (copy.deepcopy(merged), pickle.loads(pickle.dumps(merged))):
        assert _same(twin(x.clone()), merged(x.clone()))
        assert str(twin.merge_report()) == str(merged.merge_report())
        twin.measure(x, seconds=SECONDS)
        assert _same(twin.split_back()[1](x.clone()), modules[1](x.clone()))


def _same(a: object, b: object) -> bool:
    pairs: Sequence[tuple[Tensor, Tensor]] = list(zip(tree_leaves(a), tree_leaves(b), strict=True))
    return all(torch.equal(x, y) for x, y in pairs)
