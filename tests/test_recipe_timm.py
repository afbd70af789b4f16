# SPDX-License-Identifier: MIT
"""timm's training loop in forty lines, stock against swapped, and what timm wraps models in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near

timm = pytest.importorskip("timm", exc_type=Exception, reason="timm is not installed, or not for this torch")
CLASSES, STEPS = 5, 4


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        yield (
            torch.randn(4, 3, 64, 64, generator=generator),
            torch.randint(CLASSES, (4,), generator=generator),
        )


def train(model: nn.Module, seed: int = 0) -> tuple[list[float], nn.Module]:
    """The losses of some steps, and the averaged model."""
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.utils import ModelEmaV3, dispatch_clip_grad

    model.train()
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4)
    schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=STEPS)
    average = ModelEmaV3(model, decay=0.9)
    criterion = SoftTargetCrossEntropy()
    losses = []
    for step, (images, labels) in enumerate(batches(seed)):
        targets = nn.functional.one_hot(labels, CLASSES) * 0.9 + 0.1 / CLASSES
        loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        average.update(model, step=step)
        schedule.step(step + 1)
        losses.append(loss.item())
    return losses, average.module.eval()


def network(name: str, **options: object) -> nn.Module:
    return timm.create_model(name, num_classes=CLASSES, **options)


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "resnet10t"])
def test_training(name: str) -> None:
    stock = network(name)
    model = opswap.swap(copy.deepcopy(stock), memory_format=torch.channels_last)
    ours, average = train(model)
    theirs, expected = train(stock)
    # Rounding grows from step to step, in the stock model too.
    assert ours[0] == pytest.approx(theirs[0], rel=1e-3)
    assert all(a == pytest.approx(b, rel=0.2) for a, b in zip(ours, theirs, strict=True))
    with torch.no_grad():
        images = next(batches(1))[0]
        assert average(images).shape == expected(images).shape
    assert list(average.state_dict()) == list(expected.state_dict())


def frozen() -> nn.Module:
    from timm.layers import freeze_batch_norm_2d

    return freeze_batch_norm_2d(network("mobilenetv2_050"))


def in_checkpoints() -> nn.Module:
    model = network("mobilenetv2_050")
    model.set_grad_checkpointing()
    return model


def merged() -> nn.Module:
    from timm.utils import reparameterize_model

    return reparameterize_model(network("repvgg_a0").eval())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "frozen": frozen,
    "checkpoints": in_checkpoints,
    "merged branches": merged,
    "drop path": lambda: network("resnet10t", drop_path_rate=0.2),
    "padding as in TensorFlow": lambda: network("tf_mobilenetv3_small_minimal_100"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_wrappers(kind: str) -> None:
    """Each is analysed, finds what there is, and is bit-equal where it promises that."""
    stock = MODELS[kind]().eval()
    images = torch.randn(2, 3, 64, 64)
    exact = opswap.swap(copy.deepcopy(stock), exact=True, example_inputs=(images,))
    assert torch.equal(exact(images), stock(images))
    model = opswap.swap(copy.deepcopy(stock), memory_format=torch.channels_last, example_inputs=(images,))
    assert opswap.report(model).swapped
    assert_model_as_near(model, stock, lambda: (torch.randn(2, 3, 64, 64),))


def test_features() -> None:
    stock = timm.create_model("mobilenetv2_050", features_only=True)
    images = torch.randn(2, 3, 64, 64)
    model = opswap.swap(copy.deepcopy(stock), exact=True, example_inputs=(images,))
    assert all(map(torch.equal, model(images), stock(images)))
    assert stock.feature_info.channels() == model.feature_info.channels()
