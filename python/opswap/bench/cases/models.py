# SPDX-License-Identifier: MIT
"""Training step and inference of whole networks, stock and swapped, in both layouts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.bench.case import LAYOUTS, Case, shape_text
from opswap.memory.switches import reuses_freed

__all__ = ["NETWORKS", "Network", "cases", "compiled_cases", "step"]

Function = Callable[[], Tensor]
Forms = Mapping[str, tuple[nn.Module, Tensor]]

_OURS = {"exact NCHW": "NCHW", "exact NHWC": "NHWC", "swapped NCHW": "NCHW", "swapped NHWC": "NHWC"}
_OURS_COMPILED = {"swapped NHWC": "NHWC", "swapped NHWC compiled": "NHWC"}
_OURS_FLUSHED = {"swapped NHWC flushed": "NHWC"}
_OURS_USED = {"optimize": "NHWC"}
# Relative difference of loss or logits: convolutions round differently in the two layouts.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Network:
    """loss(output, labels); `labels` are what classes makes them, `steps` characters an image.

    tolerance: relative difference of the loss that is allowed. A dropout drops other elements in the other layout,
        since it draws in the order of memory.
    """

    make: Callable[[], nn.Module]
    size: tuple[int, int]
    batches: int
    loss: Callable[[Tensor, Tensor], Tensor]
    labels: tuple[int, tuple[int, ...]]
    tolerance: float = _TOLERANCE


def _ctc(logits: Tensor, labels: Tensor) -> Tensor:
    """Of (N, C, T) logits and (N, characters) labels, class 0 being the blank."""
    times, images = logits.shape[2], logits.shape[0]
    scores = logits.permute(2, 0, 1).log_softmax(2)
    return F.ctc_loss(scores, labels + 1, [times] * images, [labels.shape[1]] * images)


NETWORKS: Mapping[str, Network] = {
    "ShuffleNetV2 x0.5": Network(
        opswap.models.shufflenet_v2_x0_5, (224, 224), 1, F.cross_entropy, (1000, ())
    ),
    "ShuffleNetV2 x1.0": Network(
        opswap.models.shufflenet_v2_x1_0, (224, 224), 1, F.cross_entropy, (1000, ())
    ),
    "LPRNet": Network(opswap.models.lprnet, (24, 94), 2, _ctc, (67, (7,)), 0.1),
}


def cases(batch: int) -> Iterator[Case]:
    """A step is zero_grad, forward, loss, backward and plain SGD; LPRNet processes two batches of images at once."""
    for name, network in NETWORKS.items():
        yield from _pair(name, network, batch, _forms, _OURS)
    yield from _pair("LPRNet, denormals", NETWORKS["LPRNet"], batch, _flushed_forms, _OURS_FLUSHED)
    for name, network in NETWORKS.items():
        yield from _pair(f"{name}, as used", network, batch, _used_forms, _OURS_USED)


def compiled_cases(batch: int) -> Iterator[Case]:
    """The same with torch.compile, which takes minutes to compile."""
    for name, network in NETWORKS.items():
        yield from _pair(name, network, batch, _compiled_forms, _OURS_COMPILED)
    for name, network in NETWORKS.items():
        yield from _pair(f"{name}, as used", network, batch, _used_compiled_forms, _OURS_USED)


def _pair(
    name: str,
    network: Network,
    batch: int,
    forms: Callable[[Network, int], Forms],
    ours: Mapping[str, str],
) -> Iterator[Case]:
    images = batch * network.batches
    shape = shape_text((images, 3, *network.size))
    for direction, build in (("step", _steps), ("inference", _inferences)):
        run = partial(build, network, images, forms)
        training = direction == "step"
        tolerance = network.tolerance if training else _TOLERANCE
        profile = training and ours is not _OURS_USED
        yield Case(name, shape, "float32", direction, run, ours, tolerance=tolerance, profile=profile)


def _forms(network: Network, images: int) -> Forms:
    """Equal weights and images in stock and swapped models of both layouts."""
    model, x = network.make(), torch.randn(images, 3, *network.size)
    found = {}
    for layout, memory_format in LAYOUTS.items():
        y = x.contiguous(memory_format=memory_format)
        found[f"stock {layout}"] = copy.deepcopy(model).to(memory_format=memory_format), y
        for kind, exact in (("exact", True), ("swapped", False)):
            twin = opswap.swap(copy.deepcopy(model), exact=exact, memory_format=memory_format, strict=True)
            found[f"{kind} {layout}"] = twin, y
    return found


def _compiled_forms(network: Network, images: int) -> Forms:
    forms = {name: form for name, form in _forms(network, images).items() if not name.startswith("exact")}
    del forms["swapped NCHW"]
    compiled = {}
    for name, (model, x) in forms.items():
        compiled[f"{name} compiled"] = torch.compile(copy.deepcopy(model)), x
    return {**forms, **compiled}


class _Flushed(nn.Module):
    """A model that runs with denormals flushed to zero."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def _decay(weight: Tensor) -> None:
    """What weight decay makes of the weights of dead channels: all but the first sixth become denormal."""
    dead = weight.detach()[len(weight) // 6 :]
    while dead.abs().max() > torch.finfo(weight.dtype).tiny / 8:
        dead.mul_(0.9)


def _flushed_forms(network: Network, images: int) -> Forms:
    """LPRNet with a layer of denormals, as in its published weights, as they are and flushed."""
    model, x = network.make(), torch.randn(images, 3, *network.size)
    _decay(model.backbone[8].block[6].weight)
    # At a bias of zero, the sign of a rounding error would decide whether a dead channel passes the ReLU.
    nn.init.normal_(model.backbone[9].bias)
    last = x.contiguous(memory_format=torch.channels_last)
    swapped = opswap.swap(copy.deepcopy(model), memory_format=torch.channels_last)
    return {
        "stock NCHW": (model, x),
        "stock NCHW flushed": (_Flushed(copy.deepcopy(model)), x),
        "swapped NHWC flushed": (_Flushed(swapped), last),
    }


class _Used(nn.Module):
    """A model that runs with freed memory reused, or returned to the system."""

    def __init__(self, model: nn.Module, reuse: bool) -> None:
        super().__init__()
        self.model, self.reuse = model, reuse


def _used_forms(network: Network, images: int) -> Forms:
    """What a user has without opswap, with one line for the allocator, and with `optimize`. Inputs are contiguous."""
    model, x = network.make(), torch.randn(images, 3, *network.size)
    optimized = opswap.optimize(model, reuse_memory=False, flush_denormals=False, inplace=False)
    return {
        "stock as it comes": (_Used(model, False), x),
        "stock with reused memory": (_Used(copy.deepcopy(model), True), x),
        "optimize": (_Used(optimized, True), x),
    }


def _used_compiled_forms(network: Network, images: int) -> Forms:
    """The same, and the stock model compiled, with reused memory too."""
    forms = dict(_used_forms(network, images))
    stock, x = forms["stock as it comes"]
    compiled = torch.compile(copy.deepcopy(stock.model))
    return {**forms, "torch.compile": (_Used(compiled, True), x)}


class _Reusing:
    """A function, and the switch of the allocator that belongs to it."""

    def __init__(self, function: Function, reuse: bool) -> None:
        self.function, self.reuse = function, reuse

    def __call__(self) -> Tensor:
        return self.function()

    def prepare(self) -> None:
        """Turn the switch, and run once if that changed it: the first call after a change is of neither kind."""
        if reuses_freed() != self.reuse:
            opswap.memory.reuse_freed(self.reuse)
            self.function()


def _switched(model: nn.Module, make: Callable[[nn.Module], Function]) -> Function:
    """The function that `make` makes of the model, with the switches of the form."""
    if isinstance(model, _Used):
        return _Reusing(make(model.model), model.reuse)
    if not isinstance(model, _Flushed):
        return make(model)
    function = make(model.model)

    def run() -> Tensor:
        opswap.memory.flush_denormals(True)
        try:
            return function()
        finally:
            opswap.memory.flush_denormals(False)

    return run


def _steps(network: Network, images: int, forms: Callable[[Network, int], Forms]) -> dict[str, Function]:
    classes, characters = network.labels
    labels = torch.randint(classes, (images, *characters))
    return {
        name: _switched(model, partial(step, x=x, labels=labels, loss_of=network.loss))
        for name, (model, x) in forms(network, images).items()
    }


def step(
    model: nn.Module, x: Tensor, labels: Tensor, loss_of: Callable[[Tensor, Tensor], Tensor]
) -> Function:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def run() -> Tensor:
        torch.default_generator.manual_seed(0)
        optimizer.zero_grad()
        loss = loss_of(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return run


def _inferences(network: Network, images: int, forms: Callable[[Network, int], Forms]) -> dict[str, Function]:
    return {
        name: _switched(model.eval(), lambda m, x=x: torch.no_grad()(partial(m, x)))
        for name, (model, x) in forms(network, images).items()
    }
