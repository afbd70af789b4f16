# SPDX-License-Identifier: MIT
"""opswap's kernels appear in torch.profiler by name, in training and in inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import opswap
import opswap.functional as F

LAST = torch.channels_last


def images(*size: int) -> Tensor:
    return torch.randn(size or (2, 8, 9, 8)).to(memory_format=LAST)


def vectors(*sizes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(size) + 0.5 for size in sizes]


# name of the kernel: a call, and the tensors that a gradient is taken of
FAMILIES: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "channel_shuffle": (lambda x: F.cat_channel_shuffle((x, x), 2), [images()]),
    "batch_norm": (
        lambda x, w, b: F.batch_norm_relu(x, None, None, w, b, True),
        [images(), *vectors((8,), (8,))],
    ),
    "max_pool": (lambda x: F.max_pool2d(x, 2), [images()]),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), [images()]),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, 2), [images()]),
    "amax": (lambda x: F.global_max_pool2d(x, ties="split"), [images()]),
    "grouped_linear": (F.grouped_linear, vectors((7, 3, 5), (3, 4, 5), (3, 4))),
    "pointwise_conv2d": (F.pointwise_conv2d, [images(), *vectors((12, 8, 1, 1), (12,))]),
    "depthwise_conv2d": (
        lambda x, w: F.depthwise_conv2d(x, w, None, 1, 1),
        [images(), *vectors((8, 1, 3, 3))],
    ),
    "dropout": (lambda x: F.dropout(x, 0.5), [images(4, 64, 32, 32)]),
}
# A dropout's backward applies the mask of the forward by the same kernel.
BACKWARDS = {"channel_shuffle": "channel_shuffle", "dropout": "dropout"}


def profiled(run: Callable[[], Any]) -> dict[str, int]:
    """The calls of opswap's kernels that the profiler saw."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return {e.key: e.count for e in seen.key_averages() if e.key.startswith("opswap.")}


def counted(run: Callable[[], Any]) -> int:
    opswap.reset_stats()
    run()
    return sum(opswap.stats()["kernel"].values())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_kernel_is_seen_in_inference(name: str) -> None:
    call, tensors = FAMILIES[name]
    with torch.inference_mode():
        if not counted(lambda: call(*tensors)):
            pytest.skip(f"no kernel for {name} on {opswap.isa.current()}")
        seen = profiled(lambda: call(*tensors))
    assert seen[f"opswap.{name}"] == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_kernel_is_seen_in_a_step(name: str) -> None:
    call, tensors = FAMILIES[name]
    tensors = [t.clone().requires_grad_() for t in tensors]
    if not counted(lambda: call(*tensors)):
        pytest.skip(f"no kernel for {name} on {opswap.isa.current()}")
    output = call(*tensors)
    gradient = torch.ones_like(output)
    assert profiled(lambda: call(*tensors))[f"opswap.{name}"] == 1
    assert (
        profiled(lambda: output.backward(gradient))[f"opswap.{BACKWARDS.get(name, name + '_backward')}"] >= 1
    )


def test_the_gradient_of_a_dense_convolution_is_seen() -> None:
    x, weight = torch.randn(8, 32, 24, 24).contiguous(memory_format=LAST), torch.randn(32, 32, 3, 3)
    output = F.conv2d(x, weight.requires_grad_())
    if not counted(lambda: F.conv2d(x, weight)):
        pytest.skip(f"no kernel for conv2d on {opswap.isa.current()}")
    assert profiled(lambda: output.sum().backward())["opswap.conv2d_backward"] == 1


def test_kernels_behind_the_dispatcher_are_seen_once() -> None:
    x = images()
    seen = profiled(lambda: torch.ops.opswap.cat_channel_shuffle_split([x], 2, [4, 4]))
    assert seen == {"opswap.channel_shuffle": 1}


def test_a_swapped_model_shows_where_its_time_goes() -> None:
    first = (nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    net = opswap.swap(nn.Sequential(*first, nn.Conv2d(8, 8, 3), nn.MaxPool2d(2)), memory_format=LAST)
    apart = {"batch_norm", "batch_norm_backward", "max_pool", "max_pool_backward"}
    joined = {"batch_norm_max_pool", "batch_norm_max_pool_backward"}
    assert profiled(lambda: net(images()).sum().backward()).keys() >= {f"opswap.{name}" for name in apart}
    net = opswap.swap(nn.Sequential(*first, nn.MaxPool2d(2)), memory_format=LAST)
    seen = profiled(lambda: net(images()).square().sum().backward())
    assert seen.keys() >= {f"opswap.{name}" for name in joined}


def test_results_and_errors_are_as_without_a_profiler() -> None:
    x, seen = images(), []
    expected = F.max_pool2d(x, 2, return_indices=True)
    profiled(lambda: seen.extend(F.max_pool2d(x, 2, return_indices=True)))
    assert all(map(torch.equal, seen, expected))
    with pytest.raises(RuntimeError), profile(activities=[ProfilerActivity.CPU]):
        F.max_pool2d(x, 20)
    assert not profiled(lambda: None)


def test_the_older_profiler_sees_them_too() -> None:
    with torch.autograd.profiler.profile() as seen:
        F.max_pool2d(images(), 2)
    assert "opswap.max_pool" in {e.key for e in seen.key_averages()}
