# SPDX-License-Identifier: MIT
"""Chains of contiguous images, which go into channels_last and back around the kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import opswap
from chain_cases import LAST, Part, copy_of, image, make, step, stock, three_steps
from inputs import same_bits
from modes import Names
from nearness import assert_as_near
from opswap import _core
from opswap.nn import chain as chain_module
from opswap.ops import chain as family
from opswap.ops import depthwise
from opswap.ops.chain import Stage, conv_chain
from replay_cases import compare, runs_of
from threads import same_on_any_threads

SMALL = ((2, 17, 7, 6), (Part(33), Part(side=3, stride=2, activation=None), Part(16)))
WITHOUT_KERNELS = pytest.mark.skipif(not family.chain_wins(), reason="no kernels on this tier")


def planes(*size: int) -> Tensor:
    return torch.randn(size)


# Inputs, none of them in channels_last, of this size.
INPUTS: dict[str, Callable[..., Tensor]] = {
    "contiguous": planes,
    "half of the channels": lambda n, c, h, w: planes(n, 2 * c, h, w)[:, c:],
    "every other image": lambda n, c, h, w: planes(2 * n, c, h, w)[::2],
    "part of the rows": lambda n, c, h, w: planes(n, c, h + 2, w)[:, :, 1:-1],
    "part of the columns": lambda n, c, h, w: planes(n, c, h, w + 2)[..., 1:-1],
    "turned": lambda n, c, h, w: planes(n, c, w, h).transpose(2, 3),
}
# These are left to the parts: without memory of their own, or with an output that torch makes channels_last.
LEFT: dict[str, Callable[..., Tensor]] = {
    "one image for all": lambda n, c, h, w: planes(1, c, h, w).expand(n, c, h, w),
    "one channel for all": lambda n, c, h, w: planes(n, 1, h, w).expand(n, c, h, w),
    "every other channel": lambda n, c, h, w: image(n, 2 * c, h, w)[:, ::2],
}


def chain_of(kind: str) -> tuple[Tensor, list[Stage]]:
    _, stages = make(*SMALL)
    return (INPUTS | LEFT)[kind](*SMALL[0]), stages


@WITHOUT_KERNELS
@pytest.mark.parametrize("kind", INPUTS)
def test_the_bits_of_channels_last(kind: str) -> None:
    """The same kernels run, and every result has the strides that stock gives it."""
    given, stages = chain_of(kind)
    grad = planes(*stock(given, stages).shape)
    results = []
    for x in (given, given.contiguous(memory_format=LAST)):
        x = x.detach().requires_grad_()
        opswap.reset_stats()
        results.append(step(conv_chain, x, copy_of(grad, stages, torch.float32)[1], grad))
        assert opswap.stats()["kernel"] == {"conv_chain": 1, "conv_chain_backward": 1}
    for name, one in results[0].items():
        assert same_bits(one, results[1][name]), name
    theirs = step(stock, given.detach().requires_grad_(), copy_of(grad, stages, torch.float32)[1], grad)
    for name, t in theirs.items():
        assert t.dim() != 4 or t.stride() == results[0][name].stride(), name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", LEFT)
def test_left_to_the_parts(kind: str, training: bool) -> None:
    x, stages = chain_of(kind)
    with torch.set_grad_enabled(training):
        opswap.reset_stats()
        ours = conv_chain(x, copy_of(planes(1, 1, 1, 1), stages, torch.float32)[1], training)
    assert opswap.stats()["reference"]["conv_chain"] == 1
    if training:
        theirs = stock(x, stages)
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_tall_image_without_memory() -> None:
    """Of more rows than can be cut one by one."""
    x, stages = planes(1, 1, 1, 1).expand(1, 16, 1 << 58, 1), make((1, 16, 2, 2), (Part(32),))[1]
    for rows in (x, x[:, :, : 1 << 40]):
        options, tensors = family.folded_arguments(rows, stages)
        assert _core.chain_folded_fits(options, tensors, None) is NotImplemented
        training = tuple((s.stride, s.momentum, s.eps, s.activation) for s in stages)
        assert _core.chain_fits(training, (rows, *stages[0][:5])) is NotImplemented


@WITHOUT_KERNELS
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_an_output_of_one_pixel(training: bool, last: bool) -> None:
    """A normalisation makes it contiguous, whatever the weights are."""
    x, stages = planes(3, 24, 2, 2), make((3, 24, 2, 2), (Part(32), Part(side=3, stride=2)))[1]
    if last:
        stages = [s._replace(weight=s.weight.detach().to(memory_format=LAST)) for s in stages]
    with torch.no_grad():
        opswap.reset_stats()
        ours = conv_chain(x, copy_of(x, stages, torch.float32)[1], training)
        assert opswap.stats()["kernel"]["conv_chain"] == 1
        assert ours.stride() == stock(x, stages).stride() == (32, 1, 1, 1)


def test_a_backward_that_a_mode_watches() -> None:
    x, stages = planes(2, 24, 8, 8).requires_grad_(), make((2, 24, 8, 8), (Part(32), Part(side=3)))[1]
    found = []
    for function in (stock, conv_chain):
        given, own = copy_of(x, stages, torch.float32)
        y = function(given, own)
        leaves = [given] + [t for s in own for t in s[:3]]
        with Names():
            found.append(torch.autograd.grad(y, leaves, torch.ones_like(y)))
    for a, b in zip(*found, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("chains_on_every_tier")
@pytest.mark.parametrize("size", [(1, 16, 1, 9), (1, 16, 9, 1), (3, 16, 5, 5), (1, 40, 20, 21)])
def test_as_near_as_stock(tier: str, size: tuple[int, ...]) -> None:
    def draw() -> tuple[dict[str, Tensor | None], ...]:
        x, stages = make(size, (Part(20), Part(side=3), Part(17, activation="relu6")))
        return three_steps(x.detach().contiguous().requires_grad_(), stages)

    assert_as_near(draw)


@WITHOUT_KERNELS
def test_bits_do_not_depend_on_threads() -> None:
    x, stages = make((4, 24, 20, 20), SMALL[1])
    x = x.detach().contiguous().requires_grad_()
    grad = planes(*stock(x, stages).shape)

    def run() -> list[Tensor]:
        return list(step(conv_chain, *copy_of(x, stages, torch.float32), grad).values())

    same_on_any_threads(run)


@WITHOUT_KERNELS
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
def test_weights_in_channels_last(which: tuple[int, ...]) -> None:
    """The output of stock is in channels_last then."""
    x, stages = make(*SMALL)
    x = x.detach().contiguous().requires_grad_()
    for i in which:
        weight = stages[i].weight.detach().to(memory_format=LAST).requires_grad_()
        stages[i] = stages[i]._replace(weight=weight)
    grad = planes(*stock(x, stages).shape)
    opswap.reset_stats()
    theirs, ours = (step(f, *copy_of(x, stages, torch.float32), grad) for f in (stock, conv_chain))
    assert opswap.stats()["kernel"]["conv_chain"] == 1
    for name in ("output", "gradient of input"):
        assert ours[name].stride() == theirs[name].stride(), name
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("training", [True, False])
def test_without_a_graph(training: bool) -> None:
    x, stages = make(*SMALL)
    x = x.detach().contiguous()
    results = []
    opswap.reset_stats()
    for images in (x, x.contiguous(memory_format=LAST)):
        with torch.no_grad():
            results.append(conv_chain(images, copy_of(x, stages, torch.float32)[1], training))
    kind = "kernel" if family.chain_wins() else "reference"
    assert opswap.stats()[kind]["conv_chain"] == 2
    assert same_bits(*results) and results[0].is_contiguous()


@pytest.mark.parametrize("needed", ["input", "weights"])
def test_some_gradients(needed: str) -> None:
    x, stages = make(*SMALL)
    x = x.detach().contiguous().requires_grad_(needed == "input")
    for s in stages:
        for t in s[:3]:
            t.requires_grad_(needed == "weights")
    results = []
    for images in (x, x.detach().contiguous(memory_format=LAST).requires_grad_(needed == "input")):
        given, own = copy_of(images, stages, torch.float32)
        conv_chain(given, own).pow(2).sum().backward()
        results.append([given.grad] + [t.grad for s in own for t in s[:3]])
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None) and (one is None or same_bits(one, other))


def test_double_backward() -> None:
    x, stages = make(*SMALL)
    x = x.detach().contiguous().requires_grad_()
    found = []
    for function in (stock, conv_chain):
        given, own = copy_of(x, stages, torch.float64 if function is stock else torch.float32)
        (grad,) = torch.autograd.grad(function(given, own).pow(2).sum(), given, create_graph=True)
        grad.pow(2).sum().backward()
        found.append([given.grad, own[0].weight.grad])
    for truth, ours in zip(*found, strict=True):
        assert ((ours - truth).abs().max() / truth.abs().max()).item() < 1e-3


def test_an_input_that_is_written_to() -> None:
    """The backward reads the input itself, as stock's does, so that autograd sees the change."""
    x, stages = make(*SMALL)
    given = x.detach().contiguous().requires_grad_() + 0
    y = conv_chain(given, stages)
    with torch.no_grad():
        given.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# --- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_no_copy_in_vain(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    """Where the kernels decline for another reason, images keep their format."""

    def convert(images: Tensor) -> Tensor:
        raise AssertionError("converted in vain")

    monkeypatch.setattr(family, "to_pixels", convert)
    rest = {
        "wide rows": make((1, 512, 3, 200), (Part(side=3), Part(512))),
        "a row of pixels": make((2, 15, 7, 6), (Part(16), Part(16))),
        "double": copy_of(*make(*SMALL), torch.float64),
    }
    for x, stages in rest.values():
        with torch.no_grad():
            conv_chain(x.detach().contiguous(), stages, training)


# --- modules --------------------------------------------------------------------------------------


def stage(inputs: int, outputs: int, *window: int, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, *window, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


def branch(channels: int = 24) -> nn.Sequential:
    spatial = stage(channels, channels, 3, 1, 1, groups=channels)
    return nn.Sequential(*stage(channels, channels, 1), *spatial, *stage(channels, channels, 1))


@WITHOUT_KERNELS
def test_a_swapped_model_in_training() -> None:
    model = branch()
    swapped = opswap.swap(copy.deepcopy(model))
    x = planes(2, 24, 9, 9)
    opswap.reset_stats()
    for m in (model, swapped):
        y = m(x)
        assert y.is_contiguous()
        y.pow(2).sum().backward()
    assert opswap.stats()["kernel"] == {"conv_chain": 1, "conv_chain_backward": 1}
    for p, q in zip(model.parameters(), swapped.parameters(), strict=True):
        assert p.grad.stride() == q.grad.stride()
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-2, atol=1e-2)
    for a, b in zip(model.buffers(), swapped.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    "make_model, count",
    [
        (branch, 1),
        (lambda: nn.Sequential(*stage(24, 24, 1)), 0),
        (lambda: nn.Sequential(*stage(24, 24, 3, 1, 1), *stage(24, 24, 1)), 0),
    ],
    ids=["branch", "one convolution", "a dense window"],
)
def test_a_swapped_model_in_evaluation(
    make_model: Callable[[], nn.Sequential], count: int, frozen: bool
) -> None:
    """Chains of two and more, without larger dense windows, were measured faster than their parts."""
    model = make_model()
    for buffer in model.buffers():
        if buffer.dtype.is_floating_point:
            buffer.uniform_(0.5, 1.5)
    swapped = opswap.swap(copy.deepcopy(model).eval())
    truth = copy.deepcopy(model).double().eval()
    if frozen:
        opswap.freeze(swapped)
    opswap.reset_stats()
    for _ in range(4):  # the first calls are recorded, the later ones replayed
        x = planes(2, 24, 9, 9)
        with torch.no_grad():
            y = swapped(x)
            torch.testing.assert_close(y, truth(x.double()).float(), rtol=1e-4, atol=1e-4)
        assert y.is_contiguous()
    chains = opswap.stats()["kernel"].get("conv_chain", 0)
    assert bool(chains) == bool(count and family.chain_wins())


@WITHOUT_KERNELS
@pytest.mark.usefixtures("every_rule_applies")
def test_calls_are_recorded() -> None:
    """Of a model with chains and depthwise convolutions of contiguous images: the conversions are part of it."""
    torch.manual_seed(0)
    alone = nn.Conv2d(24, 24, 5, padding=2, groups=24)
    stock = nn.Sequential(branch(), nn.Sequential(alone, nn.Sigmoid()), branch()).eval()
    model = opswap.swap(copy.deepcopy(stock))
    for _ in range(4):
        compare(stock, model, planes(2, 24, 9, 9))
    with torch.no_grad():
        assert runs_of(depthwise.depthwise_conv2d, lambda: model(planes(2, 24, 9, 9))) == 0
        assert runs_of(chain_module.apply_chain, lambda: model(planes(2, 24, 9, 9))) == 0
    opswap.reset_stats()
    compare(stock, model, planes(2, 24, 9, 9))
    kernels = opswap.stats()["kernel"]
    assert kernels["conv_chain"] == 2 and kernels["depthwise_conv2d"] == 1
    compare(stock, model, image(2, 24, 9, 9))  # another format, for which nothing was recorded


@WITHOUT_KERNELS
@pytest.mark.parametrize("window", [(24, 24, 1), (24, 24, 3, 1, 1)])
def test_single_convolutions_in_channels_last_still_fold(window: tuple[int, ...]) -> None:
    swapped = opswap.swap(nn.Sequential(*stage(*window)).eval())
    opswap.reset_stats()
    with torch.no_grad():
        swapped(image(2, 24, 9, 9))
    assert opswap.stats()["kernel"].get("conv_chain") == 1


# --- new_format -----------------------------------------------------------------------------------

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128)
SIZES = [
    (1, 1, 1, 1),
    (2, 1, 3, 5),
    (1, 5, 1, 1),
    (3, 17, 5, 7),
    (2, 33, 8, 8),
    (1, 64, 3, 31),
    (5, 3, 20, 21),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_new_format(tier: str, size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(size) * 100).to(dtype)
    pixels = _core.new_format(x, True)
    assert torch.equal(pixels, x) and pixels.is_contiguous(memory_format=LAST)
    back = _core.new_format(pixels, False)
    assert torch.equal(back, x) and back.is_contiguous() and back.data_ptr() != pixels.data_ptr()


def test_new_format_on_threads() -> None:
    x = planes(7, 40, 31, 33)
    (pixels,) = same_on_any_threads(lambda: [_core.new_format(x, True)])
    (back,) = same_on_any_threads(lambda: [_core.new_format(pixels, False)])
    assert torch.equal(back, x)


@pytest.mark.parametrize("kind", INPUTS | LEFT)
def test_new_format_of_slices(kind: str) -> None:
    """Planes that are dense wherever they lie; all else is declined."""
    x = (INPUTS | LEFT)[kind](3, 6, 4, 5)
    made = _core.new_format(x, True)
    if x.stride()[2:] == (5, 1):
        assert torch.equal(made, x) and made.is_contiguous(memory_format=LAST)
    else:
        assert made is NotImplemented


def test_new_format_declines() -> None:
    x = planes(2, 6, 4, 5)
    pixels = x.contiguous(memory_format=LAST)
    declined = partial(map, lambda call: call() is NotImplemented)
    assert all(
        declined(
            [
                lambda: _core.new_format(x, False),
                lambda: _core.new_format(pixels, True),
                lambda: _core.new_format(pixels[:, :-1], False),
                lambda: _core.new_format(pixels[:, :, :, ::2], False),
                lambda: _core.new_format(planes(2, 6, 20), True),
                lambda: _core.new_format(planes(0, 6, 4, 5), True),
                lambda: _core.new_format(x.to_mkldnn(), True),
                lambda: _core.new_format(torch.empty(2, 6, 4, 5, device="meta"), True),
                lambda: _core.new_format("text", True),
            ]
        )
    )
