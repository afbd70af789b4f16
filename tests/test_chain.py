# SPDX-License-Identifier: MIT
"""Chains of convolutions, normalisations and activations: as near to float64 as the operators one by one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from torch import Tensor

import opswap
from chain_cases import LAST, NAMES, Part, copy_of, image, make, step, stock, three_steps
from inputs import same_bits
from nearness import assert_as_near
from opswap import _core
from opswap import functional as F
from opswap.ops import chain as family
from opswap.ops.chain import Stage, conv_chain
from step import assert_same_error
from threads import same_on_any_threads

pytestmark = pytest.mark.usefixtures("chains_on_every_tier")
SEED = os.environ.get("OPSWAP_TEST_SEED", "")
WIDTHS = (16, 17, 31, 32, 33, 47, 58, 61, 97, 127)
SMALL = ((2, 17, 7, 6), (Part(33), Part(side=3, stride=2, activation=None), Part(16)))


def assert_near(size: Sequence[int], parts: Sequence[Part], times: float = 4.0) -> None:
    assert_as_near(lambda: three_steps(*make(size, parts)), times)


def geometries(count: int, seed: int) -> list[tuple[tuple[int, ...], list[Part]]]:
    """Chains of one to four stages over images from two pixels on."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 4)):
            side, activation = draw.choice((1, 3, 5)), draw.choice(NAMES)
            stride = draw.choice((1, 2)) if side > 1 else 1
            parts.append(Part(draw.choice(WIDTHS), side, stride, activation))
        found.append(((draw.randint(2, 4), draw.choice(WIDTHS), *(draw.randint(1, 13) for _ in "hw")), parts))
    return found


@pytest.mark.parametrize("seed", range(2))
def test_small_maps(tier: str, seed: int) -> None:
    for size, parts in geometries(10, seed):
        assert_near(size, parts)


@pytest.mark.parametrize("activation", NAMES)
def test_every_activation(tier: str, activation: str | None) -> None:
    parts = (Part(33, 1, 1, activation), Part(0, 3, 2, activation), Part(17, 1, 1, activation))
    assert_near((3, 17, 9, 8), parts)


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        ((3, 24, 28, 29), (Part(40), Part(side=3, activation=None), Part(24))),  # several parts and bands
        ((4, 58, 21, 20), (Part(side=3, stride=2, activation=None), Part(58))),
        ((2, 16, 61, 44), (Part(side=5), Part(31))),
        ((9, 17, 8, 8), (Part(300), Part(16))),  # sums in pieces
        ((1, 24, 56, 56), (Part(96), Part(side=3, stride=2), Part(24, activation=None))),
    ],
)
def test_larger_maps(tier: str, size: tuple[int, ...], parts: tuple[Part, ...]) -> None:
    """The kernels of 64 bytes are slow on a CPU with less."""
    assert_near(size, parts)


@pytest.mark.parametrize(
    "size", [(2, 16, 1, 1), (64, 33, 1, 1), (1, 17, 1, 2), (1, 17, 7, 1), (65, 16, 1, 1)]
)
@pytest.mark.parametrize("side", [1, 3, 5])
def test_few_pixels(tier: str, size: tuple[int, ...], side: int) -> None:
    assert_near(size, (Part(16, side), Part(17)))


def test_many_channels(tier: str) -> None:
    assert_near((3, 1024, 3, 2), (Part(side=3), Part(127)))
    assert_near((3, 127, 3, 2), (Part(1024),))


def test_eight_stages(tier: str) -> None:
    parts = [Part(16 + i) if i % 2 else Part(side=3) for i in range(8)]
    assert_near((2, 16, 9, 9), parts, times=6)


@pytest.mark.parametrize("far", [1e3, -1e4])
def test_means_far_from_zero(tier: str, far: float) -> None:
    """The variance is about a value of the part."""

    def draw() -> tuple[dict[str, Tensor | None], ...]:
        x, stages = make((4, 16, 9, 31), (Part(side=3), Part(33)))
        return three_steps((x.detach() + far).requires_grad_(), stages)

    assert_as_near(draw)


@hypothesis_seed(SEED)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_sizes(data: st.DataObject) -> None:
    part = st.builds(
        lambda outputs, side, stride, activation: Part(outputs, side, stride if side > 1 else 1, activation),
        st.integers(16, 70),
        st.sampled_from((1, 3, 5)),
        st.integers(1, 2),
        st.sampled_from(NAMES),
    )
    size = [data.draw(st.integers(*b)) for b in ((2, 5), (16, 70), (1, 20), (1, 20))]
    assert_near(size, data.draw(st.lists(part, min_size=1, max_size=4)))


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        ((5, 24, 20, 21), (Part(40), Part(side=3, activation=None), Part(24))),
        ((9, 58, 14, 14), (Part(side=5, stride=2), Part(33))),
        ((16, 16, 31, 30), (Part(17),)),
    ],
)
def test_bits_do_not_depend_on_threads(tier: str, size: tuple[int, ...], parts: tuple[Part, ...]) -> None:
    x, stages = make(size, parts)
    grad = image(*stock(*copy_of(x, stages, torch.float32)).shape)
    same_on_any_threads(lambda: list(step(conv_chain, *copy_of(x, stages, torch.float32), grad).values()))


def test_every_variant_was_run(tier: str) -> None:
    before = _core.chain_variants()
    three_steps(*make(*SMALL))
    after = _core.chain_variants()
    assert {name: after[name] - before[name] for name in after} == {
        "pack": 4,
        "pointwise_forward": 2,
        "pointwise_backward": 2,
        "depthwise_forward": 1,
        "depthwise_backward": 1,
        "reduce": 1,
        "apply": 1,
        "pointwise_folded": 0,
        "depthwise_folded": 0,
        "dense_folded": 0,
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["input", "weight 0", "weight 1", "norm_weight 0", "norm_bias 1"])
def test_values_that_are_not_finite(tier: str, value: float, where: str) -> None:
    """NaN in the same places as stock."""
    x, stages = make((3, 17, 9, 8), (Part(33), Part(side=3), Part(16)))
    with torch.no_grad():
        field, _, i = where.partition(" ")
        t = x if field == "input" else getattr(stages[int(i)], field)
        t[(1, 3, 4, 5) if field == "input" else 5] = value
    _, theirs, ours = three_steps(x, stages)
    for name in theirs:
        assert torch.equal(theirs[name].isnan(), ours[name].isnan()), name
        infinite = theirs[name].isinf()
        assert torch.equal(theirs[name][infinite], ours[name][infinite]), name


@pytest.mark.parametrize("seed", range(4))
def test_an_infinite_gradient(tier: str, seed: int) -> None:
    """The weights of the last norm get infinite gradients, as of stock, whatever sign the rounding of the mean has."""
    torch.manual_seed(seed)
    x, stages = make((3, 17, 9, 8), (Part(33), Part(side=3), Part(16, activation=None)))
    grad = torch.ones(3, 16, 9, 8).contiguous(memory_format=LAST)
    grad[1, :, 4, 5] = float("inf")
    theirs, ours = (step(f, *copy_of(x, stages, torch.float32), grad) for f in (stock, conv_chain))
    for name in ("gradient of norm_weight 2", "gradient of norm_bias 2"):
        assert theirs[name].isinf().all()
        assert torch.equal(ours[name], theirs[name]), name


def without(stages: Sequence[Stage], i: int, *fields: str) -> list[Stage]:
    return [s._replace(**dict.fromkeys(fields)) if k == i else s for k, s in enumerate(stages)]


@pytest.mark.parametrize("i", range(3))
@pytest.mark.parametrize(
    ("fields", "kernels"),
    [
        (("running_mean", "running_var"), True),
        (("norm_weight", "norm_bias"), True),
        (("norm_bias",), True),
        (("norm_weight",), False),
        (("norm_weight", "norm_bias", "running_mean", "running_var"), True),
    ],
)
def test_arguments_left_out(i: int, fields: tuple[str, ...], kernels: bool) -> None:
    def draw() -> tuple[dict[str, Tensor | None], ...]:
        x, stages = make(*SMALL)
        return three_steps(x, without(stages, i, *fields), kernels)

    assert_as_near(draw)


@pytest.mark.parametrize("momentum", [0.0, 1.0, 0.3, 1])
@pytest.mark.parametrize("eps", [1e-5, 1e-3])
def test_momentum_and_eps(momentum: float, eps: float) -> None:
    def draw() -> tuple[dict[str, Tensor | None], ...]:
        x, stages = make(*SMALL)
        return three_steps(x, [s._replace(momentum=momentum, eps=eps) for s in stages])

    assert_as_near(draw)


FIELDS = [None, *((i, f) for i in range(3) for f in ("weight", "norm_weight", "norm_bias"))]


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("which", FIELDS, ids=str)
def test_frozen_parts(which: tuple[int, str] | None, only: bool) -> None:
    """One tensor, None for the input, is frozen, or all the others are. A bias without its weight trains in parts."""
    bias_alone = which is not None and which[1] == ("norm_bias" if only else "norm_weight")

    def draw() -> tuple[dict[str, Tensor | None], ...]:
        x, stages = make(*SMALL)
        for name in FIELDS:
            t = x if name is None else getattr(stages[name[0]], name[1])
            t.requires_grad_((name == which) == only)
        return three_steps(x, stages, kernels=not bias_alone)

    assert_as_near(draw)


def test_all_frozen_makes_no_graph() -> None:
    x, stages = make(*SMALL)
    for name in FIELDS:
        (x if name is None else getattr(stages[name[0]], name[1])).requires_grad_(False)
    assert not conv_chain(x, stages).requires_grad
    assert_as_near(lambda: three_steps(x, stages))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_a_graph(context: Callable[[], object]) -> None:
    x, stages = make(*SMALL)
    want, other = stock(*copy_of(x, stages, torch.float32)), copy_of(x, stages, torch.float32)[1]
    opswap.reset_stats()
    with context():  # type: ignore[attr-defined]
        got = conv_chain(x, other)
    assert opswap.stats()["kernel"] == {"conv_chain": 1} and not got.requires_grad
    torch.testing.assert_close(got.clone(), want, rtol=1e-3, atol=1e-4)


def test_running_statistics_of_two_stages() -> None:
    """As stock moves them: one stage after the other."""
    x, stages = make((3, 17, 6, 5), (Part(17), Part(17)))

    def shared(stages: Sequence[Stage]) -> list[Stage]:
        first = stages[0]
        return [s._replace(running_mean=first.running_mean, running_var=first.running_var) for s in stages]

    copies = [copy_of(x, stages, torch.float32) for _ in range(2)]
    opswap.reset_stats()
    for (x, own), function in zip(copies, (stock, conv_chain), strict=True):
        function(x, shared(own))
    assert opswap.stats()["kernel"] == {"conv_chain": 1}
    for field in ("running_mean", "running_var"):
        torch.testing.assert_close(*(getattr(own[0], field) for _, own in copies), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["mean and var", "norm_weight", "partly", "input"])
def test_running_statistics_that_overlap(kind: str) -> None:
    """The operators one by one say what comes of it."""
    results = []
    for function in (stock, conv_chain):
        torch.manual_seed(3)
        x, stages = make((3, 17, 6, 5), (Part(17), Part(17)))
        first, room = stages[0], torch.rand(18) + 0.5
        if kind == "mean and var":
            stages[0] = first._replace(running_var=first.running_mean)
        elif kind == "norm_weight":
            stages[0] = first._replace(running_mean=first.norm_weight.detach())
        elif kind == "partly":
            stages[0] = first._replace(running_mean=room[1:])
            stages[1] = stages[1]._replace(running_mean=room[:-1])
        else:
            stages[1] = stages[1]._replace(running_mean=x.detach().permute(0, 2, 3, 1).reshape(-1)[:17])
        opswap.reset_stats()
        with torch.no_grad():
            results.append([function(x, stages), *(t for s in stages for t in s[3:5])])
    assert opswap.stats()["reference"]["conv_chain"] == 1
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_one_convolution() -> None:
    for part in (Part(33, activation="hardswish"), Part(side=5, stride=2)):
        x, stages = make((2, 17, 9, 8), (part,))
        want = conv_chain(*copy_of(x, stages, torch.float32))
        ours = copy_of(x, stages, torch.float32)
        opswap.reset_stats()
        got = F.conv2d_batch_norm_act(ours[0], *ours[1][0])
        assert same_bits(got, want) and opswap.stats()["kernel"] == {"conv_chain": 1}
        assert got.is_contiguous(memory_format=LAST)


ERRORS: dict[str, Callable[[Tensor, Stage], tuple[Tensor, Stage]]] = {
    "channels": lambda x, s: (x[:, :16].contiguous(memory_format=LAST), s),
    "norm_weight": lambda x, s: (x, s._replace(norm_weight=s.norm_weight[:5])),
    "running_mean": lambda x, s: (x, s._replace(running_mean=s.running_mean[:5])),
    "norm_bias": lambda x, s: (x, s._replace(norm_bias=s.norm_bias.repeat(2))),
    "one value": lambda x, s: (x[:1, :, :1, :1].contiguous(memory_format=LAST), s),
    "dtype": lambda x, s: (x.double(), s),
    "weight of 3 dimensions": lambda x, s: (x, s._replace(weight=s.weight[0])),
    "dense weight": lambda x, s: (x, s._replace(weight=torch.randn(4, 17, 3, 3))),
    "stride": lambda x, s: (x, s._replace(stride=0)),
    "input": lambda x, s: (x.flatten(), s),
    "no input": lambda x, s: (None, s),
    "weight": lambda x, s: (x, s._replace(weight=None)),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("grad", [False, True])
def test_errors_are_those_of_the_parts(name: str, grad: bool) -> None:
    x, stages = make((2, 17, 9, 8), (Part(33),))
    x, stage = ERRORS[name](x.detach(), stages[0])
    moved = [t.clone() for t in stages[0][3:5]]
    with torch.set_grad_enabled(grad):
        options = ((stage.stride, stage.momentum, stage.eps, stage.activation),)
        stock = partial(family._reference, options, x, *stage[:5])
        assert_same_error(lambda: conv_chain(x, (stage,)), stock)
    assert all(same_bits(a, b) for a, b in zip(moved, stages[0][3:5], strict=True))


def test_errors_of_its_own() -> None:
    x, stages = make(*SMALL)
    with pytest.raises(ValueError, match="expected at least one stage, got none"):
        conv_chain(x, ())
    with pytest.raises(ValueError, match="sigmoidal"):
        conv_chain(x, [stages[0]._replace(activation="sigmoidal")])
    for call in ((), ((), ()), (1, 2), (((1, 0.1, 1e-5, None),), (x,))):
        assert _core.plain_chain(*call) is NotImplemented
        assert _core.plain_chain_backward(*call) is NotImplemented


REST: dict[str, Callable[[], tuple[Tensor, list[Stage]]]] = {
    "nine stages": lambda: make((2, 16, 4, 4), [Part(16)] * 9),
    "slice of channels": lambda: (lambda x, s: (x.detach()[:, :17].requires_grad_(), s))(
        make((2, 19, 7, 6), ())[0], make(*SMALL)[1]
    ),
    "15 channels": lambda: make((2, 15, 7, 6), (Part(16),)),
    "15 outputs": lambda: make((2, 16, 7, 6), (Part(15),)),
    "1025 channels": lambda: make((2, 1025, 3, 2), (Part(side=3),)),
    "too many weights": lambda: make((2, 512, 3, 2), (Part(257),)),
    "wide rows": lambda: make((1, 512, 3, 40), (Part(side=3),)),
    "side 7": lambda: make((2, 16, 9, 8), (Part(side=7),)),
    "stride of 1 x 1": lambda: make((2, 16, 9, 8), (Part(17, 1, 2),)),
    "stride 3": lambda: make((2, 16, 9, 8), (Part(side=3, stride=3),)),
    "weight with steps": lambda: (
        lambda x, s: (x, [s[0]._replace(weight=torch.randn(17, 66, 1, 1)[:, ::2].requires_grad_())])
    )(*make((2, 33, 9, 8), (Part(17),))),
    "bias with steps": lambda: (
        lambda x, s: (x, [s[0]._replace(norm_bias=torch.randn(34)[::2].requires_grad_())])
    )(*make((2, 33, 9, 8), (Part(17),))),
}


@pytest.mark.parametrize("name", REST)
def test_the_parts_run_the_rest(name: str) -> None:
    assert_as_near(lambda: three_steps(*REST[name](), kernels=False), times=6)


def test_other_activations() -> None:
    x, stages = make(*SMALL)
    opswap.reset_stats()
    got = conv_chain(x, [s._replace(activation="silu") for s in stages])
    got.sum().backward()
    assert opswap.stats()["reference"]["conv_chain"] == 1 and x.grad is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x, stages = make(*SMALL)
    results = []
    for function in (stock, conv_chain):
        x, stages = copy_of(x, stages, dtype)
        opswap.reset_stats()
        results.append(function(x, stages))
    assert opswap.stats()["reference"]["conv_chain"] == 1
    loose = {} if dtype is torch.float64 else {"rtol": 0.1, "atol": 0.1}
    torch.testing.assert_close(*results, **loose)


def test_slices_of_images() -> None:
    """Dense ones, that begin within a larger tensor, and shorter last ones."""

    def draw() -> tuple[dict[str, Tensor | None], ...]:
        x, stages = make((5, *SMALL[0][1:]), SMALL[1])
        return three_steps(x.detach()[1:4].requires_grad_(), stages)

    assert_as_near(draw)
    wide, stages = make((5, *SMALL[0][1:]), SMALL[1])
    opswap.reset_stats()
    conv_chain(wide[1:4], stages).sum().backward()
    assert opswap.stats()["kernel"]["conv_chain"] == 1
    assert not wide.grad[0].any() and wide.grad[1:4].abs().amax((1, 2, 3)).all()


GRADS: dict[str, Callable[[Sequence[int]], Tensor]] = {
    "expanded": lambda size: torch.randn(1).expand(*size),
    "contiguous": lambda size: torch.randn(*size),
    "slice": lambda size: image(2 * size[0], size[1] + 3, *size[2:])[::2, 3:],
    "transposed": lambda size: torch.randn(*size[:2], size[3], size[2]).transpose(2, 3),
    "offset": lambda size: image(size[0] + 1, *size[1:])[1:],
}


@pytest.mark.parametrize("kind", GRADS)
@pytest.mark.parametrize("size", [SMALL[0], (5, 17, 1, 1)])
def test_gradients_of_other_layouts(kind: str, size: tuple[int, ...]) -> None:
    x, stages = make(size, SMALL[1])
    grad = GRADS[kind](stock(*copy_of(x, stages, torch.float32)).shape)
    opswap.reset_stats()
    results = [
        step(conv_chain, *copy_of(x, stages, torch.float32), g)
        for g in (grad, grad.clone().contiguous(memory_format=LAST))
    ]
    assert opswap.stats()["kernel"] == {"conv_chain": 2, "conv_chain_backward": 2}
    for name, one in results[0].items():
        assert same_bits(one, results[1][name]), name


def test_gradients_have_the_layout_of_stock() -> None:
    x, stages = make(*SMALL)
    grad = image(*stock(*copy_of(x, stages, torch.float32)).shape)
    theirs, ours = (step(f, *copy_of(x, stages, torch.float32), grad) for f in (stock, conv_chain))
    for name, t in theirs.items():
        if t.dim() != 4 or "weight" not in name:
            assert t.stride() == ours[name].stride(), name
