# SPDX-License-Identifier: MIT
"""Chains under dispatch modes: one operator forward, one backward, and the bits of a call without a mode."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import opswap
from chain_cases import Part, copy_of, image, make, step, stock
from inputs import same_bits
from modes import Names
from opswap.ops.chain import Stage, conv_chain

pytestmark = pytest.mark.usefixtures("chains_on_every_tier")
SMALL = ((2, 17, 7, 6), (Part(33), Part(side=3, stride=2, activation=None), Part(16, activation="hardswish")))
FORWARD, BACKWARD = "opswap.conv_chain_moving.default", "opswap.conv_chain_backward.default"


def both(x: Tensor, stages: list[Stage]) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None], Names]:
    """A step without a mode and one under it, of copies."""
    with torch.no_grad():
        grad = torch.randn_like(conv_chain(*copy_of(x, stages, x.dtype)))
    mode = Names()
    plain = step(conv_chain, *copy_of(x, stages, x.dtype), grad)
    with mode:
        watched = step(conv_chain, *copy_of(x, stages, x.dtype), grad)
    return plain, watched, mode


def assert_equal_bits(plain: dict[str, Tensor | None], watched: dict[str, Tensor | None]) -> None:
    assert plain.keys() == watched.keys()
    for name, want in plain.items():
        assert same_bits(watched[name], want), name


@pytest.mark.parametrize("frozen", [(), ("weight",), ("norm_weight", "norm_bias"), ("input",)], ids=str)
def test_a_step_is_two_operators_of_equal_bits(tier: str, frozen: tuple[str, ...]) -> None:
    x, stages = make(*SMALL)
    for name in frozen:
        for owner in [x] if name == "input" else [getattr(s, name) for s in stages]:
            owner.requires_grad_(False)
    opswap.reset_stats()
    plain, watched, mode = both(x, stages)
    assert_equal_bits(plain, watched)
    assert [name for name in mode.names if "opswap" in name] == [FORWARD, BACKWARD]
    assert not any("convolution" in name or "batch_norm" in name for name in mode.names)
    assert opswap.stats()["kernel"] == {"conv_chain": 3, "conv_chain_backward": 2}
    assert not opswap.stats()["reference"]


def test_without_a_graph_and_without_affine_parameters() -> None:
    x, stages = make(*SMALL)
    stages = [s._replace(norm_weight=None, norm_bias=None) for s in stages]
    assert_equal_bits(*both(x, stages)[:2])
    mode, copies = Names(), [copy_of(x, stages, torch.float32) for _ in range(2)]
    with torch.no_grad():
        want = conv_chain(*copies[0])
        with mode:
            got = conv_chain(*copies[1])
    assert same_bits(got, want) and mode.names == [FORWARD]
    for ours, theirs in zip(copies[1][1], copies[0][1], strict=True):
        assert same_bits(ours.running_mean, theirs.running_mean)
        assert same_bits(ours.running_var, theirs.running_var)


LEFT_ALONE = {
    "contiguous input": lambda x, s: (x.detach().contiguous().requires_grad_(), s),
    "float64": lambda x, s: copy_of(x, s, torch.float64),
    "without statistics": lambda x, s: (x, [t._replace(running_mean=None, running_var=None) for t in s]),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_the_parts_show(name: str) -> None:
    """A mode sees every operator of what the chain's operator does not take."""
    x, stages = LEFT_ALONE[name](*make(*SMALL))
    plain, watched, mode = both(x, list(stages))
    for key, want in plain.items():
        torch.testing.assert_close(watched[key], want, rtol=1e-3, atol=1e-3)
    assert not {FORWARD, BACKWARD} & set(mode.names)
    assert sum(n in ("aten.convolution.default", "opswap.pointwise_conv2d.default") for n in mode.names) == 3


@pytest.mark.parametrize(
    "context", [FlopCounterMode(display=False), torch.autocast("cpu"), opswap.force_reference()]
)
def test_other_watchers_see_the_parts(context: Any) -> None:
    mode, (x, stages) = Names(), make(*SMALL)
    with context, mode:
        conv_chain(x, stages).sum().backward()
    assert not {FORWARD, BACKWARD} & set(mode.names) and "aten.convolution.default" in mode.names


def test_second_derivatives_under_a_mode() -> None:
    """The backward that records a graph runs the parts."""
    found = []
    for mode in (contextlib.nullcontext(), Names()):
        torch.manual_seed(0)
        x, stages = make(*SMALL)
        with mode:
            (grad,) = torch.autograd.grad(conv_chain(x, stages).square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(grad.square().sum(), stages[0].weight)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


def arguments_of(x: Tensor, stages: list[Stage]) -> tuple[Any, ...]:
    running = [t for s in stages for t in (s.running_mean, s.running_var)]
    affine = [t for s in stages for t in (s.norm_weight, s.norm_bias)]
    columns = [s.stride for s in stages], [s.momentum for s in stages], [s.eps for s in stages]
    return x, [s.weight for s in stages], affine, running, *columns, [s.activation or "" for s in stages]


def without_graph(x: Tensor, stages: list[Stage]) -> tuple[Tensor, list[Stage]]:
    x, stages = copy_of(x, stages, torch.float32)
    return x.detach(), [Stage(*(t.detach() if isinstance(t, Tensor) else t for t in s)) for s in stages]


def test_opcheck_and_the_operators_where_no_kernel_runs() -> None:
    """The operators are right as they stand: their schema, their shapes, and their parts in place of the kernels."""
    x, stages = without_graph(*make(*SMALL))
    operators = torch.ops.opswap
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        operators.conv_chain_moving.default, arguments_of(*without_graph(x, stages)), test_utils=checks
    )
    results = []
    for context in (contextlib.nullcontext(), opswap.force_reference()):
        arguments = arguments_of(*without_graph(x, stages))
        with context:
            output, statistics, zs = operators.conv_chain_moving.default(*arguments)
            results.append([output, statistics, *zs, *arguments[3]])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    output, statistics, *zs = results[0][: 2 + len(stages)]
    x, weights, affine, _, *columns = arguments_of(x, stages)
    needed = [True, *[True, True, True, False, False] * len(stages)]
    arguments = (image(*output.shape), x, weights, affine, statistics, zs, *columns, needed)
    torch.library.opcheck(operators.conv_chain_backward.default, arguments, test_utils=checks)
    kernels = operators.conv_chain_backward.default(*arguments)
    with opswap.force_reference():
        parts = operators.conv_chain_backward.default(*arguments)
    assert len(kernels) == sum(needed)
    for ours, theirs, source in zip(kernels, parts, [x, *(t for s in stages for t in s[:3])], strict=True):
        assert ours.shape == theirs.shape == source.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_swapped_network_counts_its_batches_under_a_mode() -> None:
    layers = [nn.Conv2d(17, 17, 3, 1, 1, groups=17, bias=False), nn.BatchNorm2d(17)]
    layers += [nn.Conv2d(17, 33, 1, bias=False), nn.BatchNorm2d(33, momentum=None), nn.ReLU()]
    nets, x = [], image(3, 17, 6, 5)
    for mode in (contextlib.nullcontext(), Names()):
        torch.manual_seed(0)
        net = nn.Sequential(*layers)
        for layer in net:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        net = opswap.swap(net)
        with mode:
            for _ in range(3):
                net(x).sum().backward()
        nets.append([t.clone() for t in net.state_dict().values()])
        opswap.unswap(net)
    assert all(map(torch.equal, *nets)) and nets[0][5] == 3
    assert mode.names.count(FORWARD) == 3


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("activation", [None, "relu", "hardswish"])
def test_a_bias_that_is_trained_alone_may_change_before_the_backward(
    activation: str | None, watched: bool
) -> None:
    """As in torch, whose batch norm does not keep it."""
    x, stages = make((2, 17, 7, 6), (Part(33, activation=activation), Part(16, activation=activation)))
    for stage in stages:
        assert stage.norm_weight is not None
        stage.norm_weight.requires_grad_(False)
    want = torch.autograd.grad(stock(x, stages).square().sum(), [s.norm_bias for s in stages])
    with Names() if watched else contextlib.nullcontext():
        out = conv_chain(x, stages)
    with torch.no_grad():
        for stage in stages:
            assert stage.norm_bias is not None
            stage.norm_bias.add_(1.0)
    got = torch.autograd.grad(out.square().sum(), [s.norm_bias for s in stages])
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)
