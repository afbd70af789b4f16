# SPDX-License-Identifier: MIT
"""Chains under everything that may call them: autograd's other ways, transforms, compilers, threads."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import opswap
from chain_cases import Part, copy_of, image, make, step, stock
from inputs import same_bits
from nearness import Quantities, assert_as_near, named
from opswap.ops.chain import Stage, conv_chain
from step import saved_by
from surviving import survive
from threads import at_once

pytestmark = pytest.mark.usefixtures("chains_on_every_tier")
SMALL = ((2, 17, 7, 6), (Part(33), Part(side=3, stride=2, activation=None), Part(16, activation="hardswish")))
CLOSE = {"rtol": 1e-3, "atol": 1e-3}
Chain = Callable[[Tensor, Sequence[Stage]], Tensor]


def both() -> tuple[tuple[Tensor, list[Stage]], ...]:
    """Copies of one chain for stock and for ours."""
    x, stages = make(*SMALL)
    return copy_of(x, stages, torch.float32), copy_of(x, stages, torch.float32)


def tensors_of(x: Tensor, stages: Sequence[Stage]) -> list[Tensor]:
    """Those that ask for gradients."""
    return [x, *(t for s in stages for t in s[:3] if t is not None)]


def on_tensors(function: Chain, stages: Sequence[Stage]) -> Callable[..., Tensor]:
    """The function of `tensors_of`, without running statistics."""

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        made = [Stage(*parameters[3 * i : 3 * i + 3], None, None, *s[5:]) for i, s in enumerate(stages)]
        return function(x, made)

    return call


def assert_reference(calls: int) -> None:
    stats = opswap.stats()
    assert stats["reference"].get("conv_chain") == calls and "conv_chain" not in stats["kernel"], stats


def test_gradcheck_by_the_parts() -> None:
    x, stages = copy_of(
        *make((2, 16, 3, 2), (Part(16, activation="hardswish"), Part(side=3, activation=None))), torch.float64
    )
    call = on_tensors(conv_chain, stages)
    leaves = [t.detach().requires_grad_() for t in tensors_of(x, stages)]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


def second_gradients(function: Chain, x: Tensor, stages: Sequence[Stage]) -> list[Tensor]:
    leaves = tensors_of(x, stages)
    y = function(x, stages)
    firsts = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
    return [*firsts, *torch.autograd.grad(sum(g.square().sum() for g in firsts), leaves)]


def assert_same_scale(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Sums of large terms that cancel, as those of a gradient before a batch normalisation, round as the largest."""
    largest = max([1.0, *(t.abs().max().item() for t in theirs)])
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= 2e-3 * b.abs().max() + 1e-3 * largest


def assert_gradients_as_near(
    draw: Callable[[], tuple[Tensor, list[Stage]]], gradients: Callable[..., Sequence[Tensor]]
) -> None:
    """`gradients(function, x, stages)` of chains that `draw` makes, of ours and of stock."""

    def results() -> tuple[Quantities, ...]:
        x, stages = draw()
        cases = ((stock, torch.float64), (stock, torch.float32), (conv_chain, torch.float32))
        return tuple(named(gradients(f, *copy_of(x, stages, dtype))) for f, dtype in cases)

    assert_as_near(results)


def test_double_backward() -> None:
    """The kernels forward, the operators one by one for both backwards."""
    opswap.reset_stats()
    assert_gradients_as_near(lambda: make(*SMALL), second_gradients)
    calls = opswap.stats()["kernel"]["conv_chain"]
    assert calls and opswap.stats()["reference"] == {"conv_chain_backward": calls}


@pytest.mark.parametrize("create_graph", [False, True])
def test_double_backward_of_tensors_that_depend_on_each_other(create_graph: bool) -> None:
    """A weight that two stages share, and that the input is made of, gets each share once."""

    def gradients(function: Chain, base: Tensor, stages: Sequence[Stage]) -> list[Tensor]:
        w = stages[0].weight
        shared = [s._replace(weight=w, running_mean=None, running_var=None) for s in stages]
        y = function(base * w.mean((1, 2, 3)).view(1, -1, 1, 1), shared)
        (first,) = torch.autograd.grad(y.sin().sum(), w, create_graph=create_graph)
        return [first, *(torch.autograd.grad(first.square().sum(), w) if create_graph else ())]

    parts = (Part(17, activation="hardswish"), Part(17, activation=None))
    assert_gradients_as_near(lambda: make((2, 17, 7, 6), parts), gradients)


def test_a_second_backward() -> None:
    _, (x, stages) = both()
    leaves = tensors_of(x, stages)
    y = conv_chain(x, stages)
    grad = torch.randn_like(y)
    first, second = (torch.autograd.grad(y, leaves, grad, retain_graph=keep) for keep in (True, False))
    assert all(same_bits(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, leaves, grad)


@pytest.mark.parametrize("which", range(10))
def test_a_saved_tensor_that_was_overwritten_is_noticed(which: int) -> None:
    _, (x, stages) = both()
    y = conv_chain(x, stages)
    with torch.no_grad():
        tensors_of(x, stages)[which].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_output_and_running_statistics_may_be_overwritten() -> None:
    theirs, ours = both()
    grads = []
    for function, (x, stages) in ((stock, theirs), (conv_chain, ours)):
        y = function(x, stages)
        if function is stock:
            y = y.clone()
        else:
            for s in stages:
                s.running_mean.zero_()
        grads.append(torch.autograd.grad(y.mul_(2).sum(), tensors_of(x, stages)))
    assert_same_scale(grads[1], grads[0])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(use_reentrant: bool) -> None:
    once, again = both()
    conv_chain(*once).sin().sum().backward()
    opswap.reset_stats()
    x, stages = again
    leaves = tensors_of(x, stages)
    call = on_tensors(conv_chain, stages)
    checkpoint(call, *leaves, use_reentrant=use_reentrant).sin().sum().backward()
    # Without reentry a checkpoint stops its second forward when all that it keeps is there.
    calls = {"conv_chain": 2 if use_reentrant else 1, "conv_chain_backward": 1}
    assert opswap.stats()["kernel"] == calls
    for a, b in zip(tensors_of(*once), leaves, strict=True):
        assert same_bits(a.grad, b.grad)


def test_saved_tensors_hooks() -> None:
    once, again = both()
    grads = [torch.autograd.grad(conv_chain(*once).sin().sum(), tensors_of(*once))]
    for unpack in (lambda t: t.clone(), lambda t: t.contiguous()):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            y = conv_chain(*again)
            grads.append(torch.autograd.grad(y.sin().sum(), tensors_of(*again)))
    assert all(same_bits(a, b) for a, b in zip(*grads[:2], strict=True))
    assert_same_scale(grads[2], grads[0])  # by the parts


def test_what_is_kept() -> None:
    """The input, the parameters, and what the convolutions computed."""
    _, (x, stages) = both()
    sizes = [t.numel() for t in saved_by(lambda: conv_chain(x, stages))]
    given = sum(t.numel() for t in tensors_of(x, stages))
    assert sum(sizes) == given + 2 * (33 + 33 + 16) + 2 * (33 * 42 + 33 * 12 + 16 * 12)


def test_a_graph_is_freed() -> None:
    _, (x, stages) = both()
    y = conv_chain(x, stages)
    node = weakref.ref(y.grad_fn)
    gc.disable()
    try:
        del y
        assert node() is None
    finally:
        gc.enable()


def test_autocast() -> None:
    theirs, ours = both()
    opswap.reset_stats()
    with torch.autocast("cpu", torch.bfloat16):
        results = [f(*t) for f, t in ((stock, theirs), (conv_chain, ours))]
    assert_reference(1)
    assert results[0].dtype is results[1].dtype
    torch.testing.assert_close(results[1], results[0], rtol=0.1, atol=0.1)
    results[1].float().sum().backward()
    assert ours[1][0].weight.grad.dtype is torch.float32


def test_a_backward_under_other_rules_than_its_forward() -> None:
    once, again = both()
    wanted = torch.autograd.grad(conv_chain(*once).sin().sum(), tensors_of(*once))
    for context, kind in ((opswap.force_reference, "reference"), (opswap.disabled, "kernel")):
        loss = conv_chain(*again).sin().sum()
        opswap.reset_stats()
        with context():
            found = torch.autograd.grad(loss, tensors_of(*again))
        assert opswap.stats()[kind]["conv_chain_backward"] == 1
        assert_same_scale(found, wanted)


def test_func_transforms() -> None:
    _, ours = both()
    ours_of, stocks = (on_tensors(f, ours[1]) for f in (conv_chain, stock))
    tensors = [t.detach() for t in tensors_of(*ours)]
    opswap.reset_stats()
    count = tuple(range(len(tensors)))
    grads = [torch.func.grad(lambda *t, f=f: f(*t).sin().sum(), count)(*tensors) for f in (ours_of, stocks)]
    assert_same_scale(*grads)
    assert_reference(1)
    tangents = [torch.randn_like(t) for t in tensors]
    assert_same_scale(*(torch.func.jvp(f, tuple(tensors), tuple(tangents)) for f in (ours_of, stocks)))
    stack = torch.stack([tensors[0], 2 * tensors[0], tensors[0] + 1])
    mapped = [
        torch.func.vmap(f, (0, *[None] * (len(tensors) - 1)))(stack, *tensors[1:]) for f in (ours_of, stocks)
    ]
    torch.testing.assert_close(*mapped, **CLOSE)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, u) for t, u in zip(tensors, tangents, strict=True)]
        found = [forward_ad.unpack_dual(f(*duals)) for f in (ours_of, stocks)]
        assert_same_scale(*found)
    assert_reference(4)


def test_batched_gradients() -> None:
    _, (x, stages) = both()
    y = conv_chain(x, stages)
    leaves, grads = tensors_of(x, stages), torch.randn(3, *y.shape)
    batched = torch.autograd.grad(y, leaves, grads, retain_graph=True, is_grads_batched=True)
    for i in range(3):
        single = torch.autograd.grad(y, leaves, grads[i], retain_graph=True)
        assert_same_scale([g[i] for g in batched], single)


class Layer(nn.Module):
    """A chain as a module."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.options = [s[5:] for s in stages]
        for i, s in enumerate(stages):
            for name, t in zip(("weight", "scale", "shift"), s[:3], strict=True):
                self.register_parameter(f"{name}{i}", nn.Parameter(t.detach().clone()))

    def forward(self, x: Tensor) -> Tensor:
        made = []
        for i, options in enumerate(self.options):
            tensors = (getattr(self, f"{name}{i}") for name in ("weight", "scale", "shift"))
            made.append(Stage(*tensors, None, None, *options))
        return conv_chain(x, made)


def test_compile_and_export() -> None:
    x, stages = make(*SMALL)
    layer = Layer(stages)
    want = stock(x, [s._replace(running_mean=None, running_var=None) for s in stages])
    grads = torch.autograd.grad(want.sin().sum(), [s.weight for s in stages])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), want, **CLOSE)
    compiled(x).sin().sum().backward()
    assert_same_scale([getattr(layer, f"weight{i}").grad for i in range(3)], grads)
    for strict in (True, False):
        exported = torch.export.export(layer, (x,), strict=strict)
        torch.testing.assert_close(exported.module()(x), want, **CLOSE)


def test_traces() -> None:
    x, stages = make(*SMALL)
    x, layer = x.detach(), Layer(stages).requires_grad_(False)
    want = layer(x)
    opswap.reset_stats()
    traced = torch.jit.trace(layer, x, check_trace=False)
    assert str(traced.inlined_graph).count("aten::_convolution") == 3
    torch.testing.assert_close(traced(x), want, **CLOSE)
    graph = make_fx(layer)(x)
    torch.testing.assert_close(graph(x), want, **CLOSE)
    assert_reference(2)


def test_tensors_without_values() -> None:
    x, stages = make(*SMALL)
    opswap.reset_stats()
    meta = [Stage(*(t.to("meta") if isinstance(t, Tensor) else t for t in s)) for s in stages]
    y = conv_chain(x.to("meta"), meta)
    assert y.is_meta and y.shape == (2, 16, 4, 3)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = conv_chain(
            mode.from_tensor(x.detach()), [s._replace(running_mean=None, running_var=None) for s in stages]
        )
    assert fake.shape == (2, 16, 4, 3)
    assert_reference(2)


def test_subclasses_are_asked_once_and_change_nothing() -> None:
    asked = []

    class Seen(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x, stages = make(*SMALL)
    given = x.detach().as_subclass(Seen)
    asked.clear()
    y = conv_chain(given, stages)
    assert type(y) is Seen and asked == [conv_chain]
    assert torch.equal(y.detach().as_subclass(Tensor), conv_chain(x.detach(), stages).detach())


def test_inference_tensors() -> None:
    x, stages = make(*SMALL)
    with torch.inference_mode():
        inner = x.detach().clone(memory_format=torch.channels_last)
    moved = [t.clone() for s in stages for t in s[3:5]]
    errors = []
    for function in (stock, conv_chain):
        with pytest.raises(RuntimeError) as error:
            function(inner, stages)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert all(same_bits(a, b) for a, b in zip(moved, (t for s in stages for t in s[3:5]), strict=True))
    with torch.no_grad():
        want = conv_chain(x, copy_of(x, stages, torch.float32)[1])
        assert same_bits(conv_chain(inner, stages), want)


def test_versions_are_those_of_stock() -> None:
    """Of running statistics, which both move, and of all else, which neither does."""
    versions = []
    for function, (x, stages) in zip((stock, conv_chain), both(), strict=True):
        function(x, stages)
        versions.append([t._version for t in (x, *(t for s in stages for t in s[:5]))])
    assert versions[0] == versions[1]


def test_anomaly_and_hooks() -> None:
    theirs, ours = both()
    found: list[list[Tensor]] = []
    for function, (x, stages) in ((stock, theirs), (conv_chain, ours)):
        found.append([])
        for t in tensors_of(x, stages):
            t.register_hook(lambda g, to=found[-1]: to.append(g) or 2 * g)
        with torch.autograd.detect_anomaly(check_nan=True):
            function(x, stages).sin().sum().backward()
        found[-1] = [t.grad for t in tensors_of(x, stages)]
    assert_same_scale(found[1], found[0])


def test_many_threads() -> None:
    cases = [make((2, 17 + i, 9, 8), SMALL[1]) for i in range(4)]
    grads = [image(*stock(*copy_of(*c, torch.float32)).shape) for c in cases]
    want = [step(conv_chain, *copy_of(*c, torch.float32), g) for c, g in zip(cases, grads, strict=True)]
    wrong: list[str] = []

    def work(i: int) -> None:
        for _ in range(20):
            got = step(conv_chain, *copy_of(*cases[i], torch.float32), grads[i])
            wrong.extend(name for name in got if not same_bits(got[name], want[i][name]))

    at_once(*(partial(work, i) for i in range(4)))
    assert not wrong


def test_the_tier_may_change_while_chains_run() -> None:
    """Weights that one tier has packed are not read by another."""
    survive(
        """
torch.set_num_threads(2)
opswap.ops.chain.chain_wins = lambda: True
x = torch.randn(4, 20, 20, 24).permute(0, 3, 1, 2).requires_grad_()
weights = [(torch.randn(n, c, s, s) * 0.2).requires_grad_() for n, c, s in ((40, 24, 1), (40, 1, 3), (24, 40, 1))]
stages = [opswap.ops.chain.Stage(w) for w in weights]
leaves = [x, *weights]

def run():
    y = opswap.ops.chain.conv_chain(x, stages)
    return [y, *torch.autograd.grad(y.sin().sum(), leaves)]

want, wrong = run(), []

def work():
    for _ in range(60):
        for a, b in zip(run(), want):
            if not (a - b).abs().max() <= 1e-3 * b.abs().max():
                wrong.append((a - b).abs().max().item())

while_the_tier_changes(work, 2, (*opswap.isa.available(), *opswap.isa.hidden()))
assert not wrong, wrong
assert opswap.stats()["kernel"]["conv_chain_backward"] == 121
"""
    )


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="sanitizers make frames larger")
def test_small_stacks() -> None:
    """A chain fits a thread of 192 KiB, in which the interpreter's own calls lie too."""
    out = survive(
        """
opswap.ops.chain.chain_wins = lambda: True
from opswap.ops.chain import Stage, conv_chain

def run():
    x = torch.randn(2, 5, 4, 127).permute(0, 3, 1, 2)
    w = torch.randn(1024, 127, 1, 1, requires_grad=True)
    conv_chain(x, [Stage(w, activation="relu"), Stage(torch.randn(1024, 1, 5, 5))]).sum().backward()
    assert opswap.stats()["kernel"]["conv_chain_backward"]
    print("done", flush=True)

on_small_stacks(run)
"""
    )
    assert out.split() == ["done"] * len(opswap.isa.available())
