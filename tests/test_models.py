# SPDX-License-Identifier: MIT
"""The networks have the published checkpoints' state_dict and compute what the published code computes."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from opswap import models

CHANNELS = {
    "x0_5": (24, 48, 96, 192, 1024),
    "x1_0": (24, 116, 232, 464, 1024),
    "x1_5": (24, 176, 352, 704, 1024),
    "x2_0": (24, 244, 488, 976, 2048),
}
PARAMETERS = {"x0_5": 1366792, "x1_0": 2278604, "x1_5": 3503624, "x2_0": 7393996}
SIZES = sorted(CHANNELS)


def conv(name: str, out: int, per_group: int, kernel: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, per_group, kernel, kernel)


def norm(name: str, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for key in ("weight", "bias", "running_mean", "running_var"):
        yield f"{name}.{key}", (channels,)
    yield f"{name}.num_batches_tracked", ()


def block(name: str, channels: int, half: int, stride: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    if stride == 2:
        yield from conv(f"{name}.branch1.0", channels, 1, 3)
        yield from norm(f"{name}.branch1.1", channels)
        yield from conv(f"{name}.branch1.2", half, channels, 1)
        yield from norm(f"{name}.branch1.3", half)
    yield from conv(f"{name}.branch2.0", half, channels if stride == 2 else half, 1)
    yield from norm(f"{name}.branch2.1", half)
    yield from conv(f"{name}.branch2.3", half, 1, 3)
    yield from norm(f"{name}.branch2.4", half)
    yield from conv(f"{name}.branch2.5", half, half, 1)
    yield from norm(f"{name}.branch2.6", half)


def published(size: str) -> list[tuple[str, tuple[int, ...]]]:
    """Keys and shapes of the published checkpoint, in its order."""
    stem, *stages, head = CHANNELS[size]
    entries = [*conv("conv1.0", stem, 3, 3), *norm("conv1.1", stem)]
    width = stem
    for stage, repeats, out in zip((2, 3, 4), (4, 8, 4), stages, strict=True):
        for i in range(repeats):
            entries += block(f"stage{stage}.{i}", width, out // 2, 2 if i == 0 else 1)
            width = out
    entries += [*conv("conv5.0", head, width, 1), *norm("conv5.1", head)]
    return [*entries, ("fc.weight", (1000, head)), ("fc.bias", (1000,))]


@pytest.mark.parametrize("size", SIZES)
def test_state_dict_is_the_published_one(size: str) -> None:
    model = getattr(models, f"shufflenet_v2_{size}")()
    assert [(k, tuple(v.shape)) for k, v in model.state_dict().items()] == published(size)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[size]


def test_num_classes() -> None:
    model = models.shufflenet_v2_x0_5(num_classes=7).eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"3 repeats and 5 channels, got \(4, 8\)"):
        models.ShuffleNetV2(repeats=(4, 8))
    with pytest.raises(ValueError, match=r"even, got \(48, 97, 192\)"):
        models.ShuffleNetV2(channels=(24, 48, 97, 192, 1024))


def torchvision_models() -> ModuleType:
    """torchvision.models; skips where torchvision is absent or was built for another torch."""
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")
    return torchvision.models


@pytest.mark.parametrize("size", SIZES)
def test_same_network_as_torchvision(size: str) -> None:
    make = getattr(torchvision_models(), f"shufflenet_v2_{size}")
    torch.manual_seed(0)
    theirs = make()
    torch.manual_seed(0)
    ours = getattr(models, f"shufflenet_v2_{size}")()
    assert all(
        torch.equal(a, b)
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    )
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(x), theirs(x))
