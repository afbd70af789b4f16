# SPDX-License-Identifier: MIT
"""timm's training loop in forty lines, stock against swapped, and what timm wraps models in."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near
from opswap.ops.depthwise import depthwise_wins

BENCHMARKS = str(Path(__file__).parent.parent / "benchmarks")
sys.path.insert(0, BENCHMARKS)
import networks  # noqa: E402

sys.path.remove(BENCHMARKS)

try:
    networks.make(
        "torchvision", "resnet18"
    )  # with a stand-in for operators that are not built for this torch
    timm = pytest.importorskip("timm")
except (ImportError, RuntimeError) as error:
    pytest.skip(
        f"timm and torchvision are not installed, or not for this torch: {error}", allow_module_level=True
    )
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


def scaled() -> nn.Module:
    from timm.layers import ScaledStdConv2d, ScaledStdConv2dSame

    return nn.Sequential(
        ScaledStdConv2d(3, 16, 3, padding=1),
        nn.SiLU(),
        ScaledStdConv2dSame(16, 24, 3, stride=2),
        nn.ReLU(),
        ScaledStdConv2d(24, 24, 3, padding=1, groups=24),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "scaled convolutions": scaled,
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


def test_zeros_as_in_tensorflow() -> None:
    """`Conv2dSame` counts the zeros from the size of its input: in every forward, of any size."""
    if not depthwise_wins():
        pytest.skip("torch is as fast on this tier")
    stock = network("tf_mobilenetv3_small_minimal_100")
    model = opswap.swap(stock, memory_format=torch.channels_last)
    windows = sum(type(m).__name__ == "Conv2dSame" and m.groups > 1 for m in stock.modules())
    assert windows > 2  # the others are in chains
    for side in (64, 65, 75):
        opswap.reset_stats()
        model(torch.randn(2, 3, side, side))
        assert opswap.stats()["kernel"]["depthwise_conv2d"] == windows


def test_features() -> None:
    stock = timm.create_model("mobilenetv2_050", features_only=True)
    images = torch.randn(2, 3, 64, 64)
    model = opswap.swap(copy.deepcopy(stock), exact=True, example_inputs=(images,))
    assert all(map(torch.equal, model(images), stock(images)))
    assert stock.feature_info.channels() == model.feature_info.channels()


def frozen_later(model: nn.Module) -> nn.Module:
    from timm.layers import freeze_batch_norm_2d

    return freeze_batch_norm_2d(model)


def in_checkpoints_later(model: nn.Module) -> nn.Module:
    model.set_grad_checkpointing()
    return model


def merged_later(model: nn.Module) -> nn.Module:
    from timm.utils import reparameterize_model

    return reparameterize_model(model)


def averaged(model: nn.Module) -> nn.Module:
    from timm.utils import ModelEmaV3

    return ModelEmaV3(model, decay=0.9).module


CHANGES: dict[str, tuple[str, Callable[[nn.Module], nn.Module]]] = {
    "frozen": ("mobilenetv2_050", frozen_later),
    "checkpoints": ("mobilenetv2_050", in_checkpoints_later),
    "merged branches": ("repvgg_a0", merged_later),
    "averaged": ("resnet10t", averaged),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_changed_after_the_swap(kind: str) -> None:
    """timm's own functions replace modules of a swapped model, or wrap them."""
    name, change = CHANGES[kind]
    stock = network(name).eval()
    images = torch.randn(2, 3, 64, 64)
    exact = opswap.swap(copy.deepcopy(stock), exact=True, example_inputs=(images,))
    model = opswap.swap(copy.deepcopy(stock), memory_format=torch.channels_last, example_inputs=(images,))
    stock, exact, model = (change(m).eval() for m in (stock, exact, model))
    assert torch.equal(exact(images), stock(images))
    assert_model_as_near(model, stock, lambda: (torch.randn(2, 3, 64, 64),))
    opswap.swap(model, memory_format=torch.channels_last, example_inputs=(images,))
    assert opswap.report(model).swapped
    assert_model_as_near(model, stock, lambda: (torch.randn(2, 3, 64, 64),))


@pytest.fixture
def fast_norm() -> Iterator[Callable[[], None]]:
    from timm.layers import set_fast_norm

    yield set_fast_norm
    set_fast_norm(False)


@pytest.mark.parametrize("name", ["convnext_atto", "poolformerv2_s12"])
@pytest.mark.parametrize("later", [False, True], ids=["before", "after"])
def test_fast_norm(name: str, later: bool, fast_norm: Callable[[], None]) -> None:
    stock = network(name).eval()
    images = torch.randn(2, 3, 64, 64)
    if not later:
        fast_norm()
    model = opswap.swap(copy.deepcopy(stock), memory_format=torch.channels_last, example_inputs=(images,))
    fast_norm()
    assert_model_as_near(model, stock, lambda: (torch.randn(2, 3, 64, 64),))


def test_counts_of_operations() -> None:
    """By torch's counter, by hooks on types, and in a traced graph, as fvcore counts."""
    from torch.utils.flop_counter import FlopCounterMode

    stock = network("mobilenetv2_050").eval()
    images = torch.randn(2, 3, 64, 64)
    model = opswap.swap(copy.deepcopy(stock), memory_format=torch.channels_last, example_inputs=(images,))

    def counted(m: nn.Module) -> int:
        with FlopCounterMode(display=False) as counter:
            m(images)
        return counter.get_total_flops()

    def by_type(m: nn.Module) -> dict[str, int]:
        found: dict[str, int] = {}

        def count(module: nn.Module, _: object, output: Tensor) -> None:
            name = type(module).__name__
            found[name] = found.get(name, 0) + output.numel()

        handles = [k.register_forward_hook(count) for k in m.modules() if type(k) in (nn.Conv2d, nn.Linear)]
        m(images)
        for handle in handles:
            handle.remove()
        return found

    def traced(m: nn.Module) -> list[str]:
        graph = torch.jit.trace(m, images, check_trace=False).inlined_graph
        kinds = {"aten::_convolution", "aten::batch_norm", "aten::linear"}
        return sorted(n.kind() for n in graph.nodes() if n.kind() in kinds)

    for count in (counted, by_type, traced):
        assert count(model) == count(stock) and count(stock)
