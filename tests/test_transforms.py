# SPDX-License-Identifier: MIT
"""Every public function under what torch puts around an eager call: derivatives, torch.func, autocast, threads, ..."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import opswap
from functional_cases import Case, as_tuple, modules
from threads import at_once
from transforms import (
    argnums,
    assert_near,
    each_function,
    every_case,
    leaves,
    loss,
    make,
    operators_of,
    seeded,
    step,
)
from twins import twins

MODULES = modules()


def test_every_function_has_a_case() -> None:
    assert {case.name for case in each_function.args[1]} == set(opswap.functional.__all__)


@every_case
def test_derivatives(case: Case) -> None:
    """First and second order, forward mode, forward over reverse, gradients in a batch."""
    tensors = make(case, torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no batching rule of its own for an operator
        first = {"check_forward_ad": True, "check_batched_grad": True, "fast_mode": True}
        assert torch.autograd.gradcheck(seeded(case.ours), tensors, **first)
        assert torch.autograd.gradgradcheck(
            seeded(case.ours), tensors, check_fwd_over_rev=case.name != "conv2d", fast_mode=True
        )


@every_case
def test_batched_gradients(case: Case) -> None:
    tensors = make(case)
    output = as_tuple(seeded(case.ours)(*tensors))[0]
    batch = torch.randn(3, *output.shape)
    given = leaves(case, tensors)
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = torch.autograd.grad(output, given, batch, is_grads_batched=True, **options)
    each = [torch.autograd.grad(output, given, g, **options) for g in batch]
    assert_near(got, tuple(torch.stack(ts) for ts in zip(*each, strict=True)))


@every_case
@pytest.mark.parametrize("place", [0, -1])
def test_vmap(case: Case, place: int) -> None:
    """Over each argument alone and over all; outputs, and gradients per example, in any dimension."""
    if case.operators == ("dropout",):
        pytest.skip("random numbers of vmap are torch's own: its operator runs")
    numbers = argnums(case)
    gradient = torch.func.grad(loss(case.ours), numbers)
    for mapped in dict.fromkeys([*((n,) for n in numbers), numbers]):
        tensors = make(case, grad=False)
        dims = tuple(place if i in mapped else 0 if i in case.fixed else None for i in range(len(tensors)))
        many = [
            t if d is None else torch.stack([t, 0.5 * t, 2 * t + 0.25], d)
            for t, d in zip(tensors, dims, strict=True)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = as_tuple(torch.vmap(case.ours, in_dims=dims)(*many))
            per_example = torch.vmap(gradient, in_dims=dims)(*many)
        singles = [
            [t if d is None else t.select(d, k) for t, d in zip(many, dims, strict=True)] for k in range(3)
        ]
        want = [step(case.stock, case, s) for s in singles]
        assert_near((*got, *per_example), tuple(torch.stack(ts) for ts in zip(*want, strict=True)), 1e-3)


@every_case
def test_func_transforms(case: Case) -> None:
    """Of the arguments that have a gradient."""
    made, numbers = make(case, torch.float64, grad=False), argnums(case)
    tensors = tuple(made[i] for i in numbers)
    tangents, every = tuple(map(torch.randn_like, tensors)), tuple(range(len(tensors)))

    def results(called: Any) -> tuple[Tensor, ...]:
        drawn = seeded(called)

        def function(*given: Tensor) -> Any:
            changed = dict(zip(numbers, given, strict=True))
            return drawn(*(changed.get(i, t) for i, t in enumerate(made)))

        first = torch.func.grad(loss(function), every)
        value, slope = torch.func.jvp(function, tensors, tangents)
        _, twice = torch.func.jvp(first, tensors, tangents)
        _, pull = torch.func.vjp(first, *tensors)
        rows = torch.func.jacrev(lambda *t: as_tuple(function(*t))[0].flatten()[:3], every)
        columns = torch.func.jacfwd(lambda s: loss(function)(tensors[0] * s, *tensors[1:]), randomness="same")
        parts = (as_tuple(value), as_tuple(slope), first(*tensors), twice, rows(*tensors), pull(tangents))
        return (*(t for part in parts for t in part), columns(torch.ones((), dtype=torch.float64)))

    assert_near(results(case.ours), results(case.stock), 1e-6)


@every_case
def test_forward_mode_of_forward_mode(case: Case) -> None:
    """A second derivative along one direction, against that of two backward passes: torch's own batch_norm is wrong."""
    made, numbers = make(case, torch.float64, grad=False), argnums(case)
    tangents = {i: torch.randn_like(made[i]) for i in numbers}
    drawn = seeded(case.ours)

    def along(s: Tensor) -> Tensor:
        return loss(drawn)(*(t + s * tangents[i] if i in tangents else t for i, t in enumerate(made)))

    one, start = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    _, forward = torch.func.jvp(lambda s: torch.func.jvp(along, (s,), (one,))[1], (start,), (one,))
    backward = torch.func.grad(torch.func.grad(along))(start)
    assert_near((forward,), (backward,), 1e-6)


def test_hessian() -> None:
    x = torch.randn(1, 4, 2, 2)
    for function, stock in (
        (lambda t: opswap.functional.channel_shuffle(t, 2), lambda t: torch.channel_shuffle(t, 2)),
        (lambda t: opswap.functional.max_pool2d(t, 2), lambda t: torch.nn.functional.max_pool2d(t, 2)),
    ):
        got, want = (torch.func.hessian(lambda t, f=f: loss(f)(t.sin()))(x) for f in (function, stock))
        assert_near(got, want)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_is_torchs(case: Case, dtype: torch.dtype) -> None:
    tensors = make(case, dtype, grad=False)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (as_tuple(seeded(f)(*tensors)) for f in (case.ours, case.stock))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype is b.dtype or case.name == "grouped_linear"  # stock there: a product and a sum
        largest = max(1.0, b.abs().max().item())  # sums cancel: what is small has errors of what is large
        torch.testing.assert_close(a.float(), b.float(), rtol=3e-2, atol=3e-2 * largest)


@every_case
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(case: Case, use_reentrant: bool) -> None:
    results = []
    for run in (case.ours, lambda *t: checkpoint(case.ours, *t, use_reentrant=use_reentrant)):
        torch.manual_seed(1)
        tensors = make(case)
        sum(y.sin().sum() for y in as_tuple(run(*tensors))).backward()
        results.append(tuple(t.grad for t in leaves(case, tensors)))
    assert_near(*results, 1e-6)


@every_case
def test_hooks_on_saved_tensors(case: Case) -> None:
    tensors, want = make(case), step(case.ours, case, make(case, grad=False))
    torch.manual_seed(0)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t.clone(), lambda t: t):
        got = step(case.ours, case, tensors)
    assert kept and len(got) == len(want)
    assert_near(got, step(case.ours, case, tensors), 1e-6)


@every_case
def test_hooks_that_return_other_strides(case: Case) -> None:
    """The values of what was saved, two elements apart."""
    tensors = make(case)
    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: torch.stack((t.detach(), t.detach()), -1), lambda t: t[..., 0]
    ):
        got = step(case.ours, case, tensors)
    assert_near(got, step(case.ours, case, tensors), 1e-5)


@every_case
def test_subclasses_parameters_and_negative_views(case: Case) -> None:
    calls = []

    class Marked(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    tensors, function = make(case, grad=False), seeded(case.ours)
    want = as_tuple(function(*tensors))
    marked = as_tuple(function(tensors[0].as_subclass(Marked), *tensors[1:]))
    assert all(isinstance(y, Marked) for y in marked)
    assert any(f.__name__ in opswap.functional.__all__ for f in calls)
    assert_near([y.as_subclass(Tensor) for y in marked], want)
    parameters = [t if i in case.fixed else torch.nn.Parameter(t) for i, t in enumerate(tensors)]
    assert_near([y.detach() for y in as_tuple(function(*parameters))], want)
    first = tensors[0]
    negative = torch.complex(torch.zeros_like(first), -first).conj().imag
    assert negative.is_neg()
    assert_near(as_tuple(function(negative, *tensors[1:])), want)


@every_case
def test_no_grad_and_inference_mode_make_no_graph(case: Case) -> None:
    tensors = make(case)
    with torch.no_grad():
        assert all(y.grad_fn is None for y in as_tuple(case.ours(*tensors)))
    with torch.inference_mode():
        assert all(y.is_inference() for y in as_tuple(case.ours(*tensors)))
    assert all(y.grad_fn is not None for y in as_tuple(case.ours(*tensors)))
    assert all(y.grad_fn is None for y in as_tuple(case.ours(*(t.detach() for t in tensors))))


@every_case
def test_the_form_for_other_devices_gives_the_same(case: Case) -> None:
    tensors = make(case, grad=False)
    opswap.reset_stats()
    with opswap.force_reference():
        got = step(case.ours, case, tensors)
        strides = [y.stride() for y in as_tuple(case.ours(*tensors))]
    counts = opswap.stats()
    assert counts["reference"] and not counts["kernel"]
    assert_near(got, step(case.stock, case, tensors))
    if tensors[0].dim() < 5:  # torch's own pools of volumes, which run here, return contiguous tensors
        assert strides == [y.stride() for y in as_tuple(case.ours(*tensors))]


@each_function
def test_two_threads_at_once(case: Case) -> None:
    if case.operators == ("dropout",):
        pytest.skip("threads share the generator: test_dropout.py")
    tensors = make(case, grad=False)
    want, wrong = step(case.ours, case, tensors), []

    def work() -> None:
        for i in range(10):
            if not all(map(torch.equal, step(case.ours, case, tensors), want)):
                wrong.append(i)

    at_once(work, work)
    assert not wrong


@each_function
def test_the_profiler_sees_each_kernel(case: Case) -> None:
    tensors = make(case)
    opswap.reset_stats()
    outputs = as_tuple(case.ours(*tensors))
    sum(y.sum() for y in outputs).backward()
    if not opswap.stats()["kernel"] or not operators_of(case):
        pytest.skip(f"no kernel for {case} on {opswap.isa.current()}")
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        outputs = as_tuple(case.ours(*tensors))
        sum(y.sum() for y in outputs).backward()
    assert sum(e.count for e in seen.key_averages() if e.key.startswith("opswap.")) >= 2


@pytest.mark.parametrize("case", MODULES, ids=lambda case: case.name)
def test_modules_copy_pickle_and_save(case: Case) -> None:
    if not isinstance(case.ours, torch.nn.Module):
        pytest.skip("called by a function")
    tensors = case.inputs()
    want = as_tuple(case.ours(*tensors))
    for twin in twins(case.ours):
        assert repr(twin) == repr(case.ours) and twin.state_dict().keys() == case.ours.state_dict().keys()
        assert all(map(torch.equal, as_tuple(twin(*tensors)), want))
