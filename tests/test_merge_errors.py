# SPDX-License-Identifier: MIT
"""What cannot be merged is refused with the first difference by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from merge_cases import conv_bn_relu, make
from opswap import merge
from opswap.models.multi_branch import Bottleneck

pytestmark = pytest.mark.usefixtures("one_thread")


def change(index: int, edit: Callable[[nn.Sequential], object]) -> list[nn.Sequential]:
    """Three equal branches, of which one is edited."""
    modules = [conv_bn_relu(4, 6) for _ in range(3)]
    edit(modules[index])
    return modules


def replace(path: str, module: nn.Module) -> Callable[[nn.Sequential], object]:
    return lambda m: m.__setitem__(int(path), module)


DIFFERENCES: dict[str, tuple[int, Callable[[nn.Sequential], object], str]] = {
    "eps": (
        2,
        lambda m: setattr(m[1], "eps", 1e-3),
        r"branches\[2\]\.1 has eps 0.001, branches\[0\]\.1 has 1e-05",
    ),
    "momentum": (
        1,
        lambda m: setattr(m[1], "momentum", None),
        r"branches\[1\]\.1 has momentum None, .* has 0\.1",
    ),
    "training": (1, lambda m: m[1].eval(), r"branches\[1\]\.1 has training False, branches\[0\]\.1 has True"),
    "dtype": (
        2,
        lambda m: m[0].double(),
        r"branches\[2\]\.0 has weight of dtype torch.float64, .* torch.float32",
    ),
    "type": (1, replace("2", nn.GELU()), r"branches\[1\]\.2 has type GELU, branches\[0\]\.2 has ReLU"),
    "shape": (
        1,
        replace("0", nn.Conv2d(4, 8, 3, padding=1, bias=False)),
        r"\.0 has out_channels 8, .* has 6",
    ),
    "bias": (1, replace("0", nn.Conv2d(4, 6, 3, padding=1)), r"branches\[1\]\.0 has bias of size \(6,\)"),
    "stride": (
        1,
        lambda m: setattr(m[0], "stride", (2, 2)),
        r"stride \(2, 2\), branches\[0\]\.0 has \(1, 1\)",
    ),
    "affine": (
        2,
        replace("1", nn.BatchNorm2d(6, affine=False)),
        r"branches\[2\]\.1 has affine False, .* has True",
    ),
    "requires_grad": (
        1,
        lambda m: m[0].requires_grad_(False),
        r"\.0 has weight.requires_grad False, .* has True",
    ),
    "more": (
        1,
        lambda m: m.append(nn.ReLU()),
        r"branches\[1\] has children \['0', '1', '2', '3'\], .* \['0', '1', '2'\]",
    ),
    "fewer": (
        2,
        lambda m: m.__delitem__(2),
        r"branches\[2\] has children \['0', '1'\], .* \['0', '1', '2'\]",
    ),
    "hook": (1, lambda m: m[1].register_forward_hook(lambda *a: None), r"branches\[1\]\.1 has hooks"),
    "gradient": (
        1,
        lambda m: m(torch.ones(2, 4, 5, 5)).sum().backward(),
        r"weight with a gradient True, .* has False",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_first_difference_is_named(name: str) -> None:
    index, edit, message = DIFFERENCES[name]
    with pytest.raises(ValueError, match=message):
        merge.branches(change(index, edit))


def test_none_at_all() -> None:
    with pytest.raises(ValueError, match="at least one branch, got an empty list"):
        merge.branches([])


def test_no_modules() -> None:
    with pytest.raises(
        TypeError, match=r"branches\[1\] must be a torch.nn.Module, got builtin_function_or_method"
    ):
        merge.branches([nn.Linear(2, 2), torch.relu])
    with pytest.raises(TypeError, match="expected a list of modules, got a Linear"):
        merge.branches(nn.Linear(2, 2))


def test_shared_modules_and_tensors() -> None:
    one = conv_bn_relu(4, 6)
    with pytest.raises(ValueError, match=r"branches\[1\] and branches\[0\] are the same module"):
        merge.branches([one, one])
    a, b = conv_bn_relu(4, 6), conv_bn_relu(4, 6)
    b[2] = a[2]
    with pytest.raises(ValueError, match=r"branches\[1\]\.2 and branches\[0\]\.2 are the same module"):
        merge.branches([a, b])
    a, b = conv_bn_relu(4, 6), conv_bn_relu(4, 6)
    b[0].weight = a[0].weight
    with pytest.raises(
        ValueError, match=r"branches\[1\]\.0\.weight and branches\[0\]\.0\.weight are the same tensor"
    ):
        merge.branches([a, b])


class Choice(nn.Module):
    """The same layers in two orders."""

    def __init__(self, order: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.act = torch.relu if order else torch.sigmoid

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


def test_other_computation() -> None:
    with pytest.raises(
        ValueError, match=r"branches\[1\] computes .*sigmoid.*, branches\[0\] computes .*relu"
    ):
        merge.branches([Choice(True), Choice(False)])


class Forward(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


REFUSED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "control_flow": (
        lambda m, x: m.conv(x) if x.sum() > 0 else x,
        "control flow depends on the elements of a tensor",
    ),
    "batch": (lambda m, x: m.conv(x).flatten(0, 1), "must keep the batch in its first dimension"),
    "mean": (lambda m, x: m.conv(x) - m.conv(x).mean(), "must keep the batch in its first dimension"),
    "random": (lambda m, x: nn.functional.dropout(m.conv(x), 0.5), "differ by"),
    "over_batch": (lambda m, x: m.conv(x) - m.conv(x).mean(0, keepdim=True), "must keep the batch"),
    "rolled": (lambda m, x: m.conv(x).roll(1, 0), "differ by"),
    "number": (lambda m, x: m.conv(x) * x.numel(), "reads a number from a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        merge.branches([Forward(function) for _ in range(2)], example_input=torch.randn(2, 4, 5, 5))


def test_ragged_heads_inside_a_branch() -> None:
    modules = [nn.Sequential(nn.Linear(4, i + 2), nn.Softmax(1)) for i in range(3)]
    with pytest.raises(ValueError, match="follows Linears of different out_features"):
        merge.branches(modules)


def test_cumulative_averages_of_different_numbers() -> None:
    modules = [nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=None)) for _ in range(2)]
    modules[1](torch.randn(2, 3, 4, 4))
    with pytest.raises(ValueError, match=r"cumulative averages over different numbers of batches: \[0, 1\]"):
        merge.branches(modules)


def test_example_inputs() -> None:
    modules = [Bottleneck(8, 4) for _ in range(2)]
    with pytest.raises(ValueError, match=r"does not run on inputs of size \[\(2, 5, 4, 4\)\]"):
        merge.branches(modules, example_input=torch.randn(2, 5, 4, 4))
    with pytest.raises(ValueError, match=r"1 inputs, but shared_input has 2: \[True, False\]"):
        merge.branches(modules, shared_input=(True, False))
    with pytest.raises(ValueError, match="no input size could be guessed"):
        merge.branches([nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Conv2d(1, 1, 1))])


def test_inputs_of_a_call() -> None:
    separate = merge.branches(make("conv", 3), shared_input=False)
    with pytest.raises(ValueError, match=r"expected an input \(B, 3, \*\), got one of size \(2, 4, 7, 8\)"):
        separate(torch.randn(2, 4, 7, 8))
    with pytest.raises(ValueError, match="expected 3 inputs in the list, got 2"):
        separate([torch.randn(2, 4, 7, 8)] * 2)
    with pytest.raises(TypeError, match="expected 1 inputs, got 2"):
        separate(torch.randn(2, 3, 4, 7, 8), torch.randn(2))
    shared = merge.branches(make("conv", 3))
    with pytest.raises(TypeError, match="expected one shared tensor, got a list"):
        shared([torch.randn(2, 4, 7, 8)] * 3)
    with pytest.raises(ValueError, match=r"expected an output \(B, 3, \*\), got one of size \(2, 5\)"):
        shared.separate(torch.randn(2, 5))
    with pytest.raises(ValueError, match="expected 3 branches, got 2"):
        shared.parameter_moves(make("conv", 2))


class AsksInTraining(nn.Module):
    """Asks for elements of a tensor, which no graph can have, in one of the modes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x * float(x.flatten()[0]) if self.training else x)


class AsksInEvaluation(AsksInTraining):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x if self.training else x * float(x.flatten()[0]))


@pytest.mark.parametrize(("kind", "mode"), [(AsksInTraining, "train"), (AsksInEvaluation, "eval")])
@pytest.mark.parametrize("training", [True, False])
def test_the_mode_that_cannot_be_captured_is_named_with_its_reason(
    kind: type[nn.Module], mode: str, training: bool
) -> None:
    modules = [kind().train(training) for _ in range(2)]
    with pytest.raises(ValueError, match=rf"forward differs .*, in {mode}\(\): .* a tensor"):
        merge.branches(modules)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(4, 4, 3, padding=1),
        lambda: nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU()),
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 6, 1)),
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 2), nn.ReLU()),
        lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(1)),
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_images_without_a_batch(layer: Callable[[], nn.Module], shared: bool) -> None:
    """torch's layers take one image too; the branches would lie at the place of its channels."""
    model = merge.branches([layer() for _ in range(3)], shared_input=shared)
    rank = 3 if isinstance(layer(), nn.Sequential) and isinstance(layer()[0], nn.Conv1d) else 4
    size = (4, 6, 6)[: rank - 1]
    with pytest.raises(ValueError, match=r"expected an input \(B, "):
        model(torch.ones(size if shared else (3, *size)))


class Squeezed(nn.Module):
    def __init__(self, squeeze: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.squeeze = nn.Conv2d(4, 5, 3, padding=1), squeeze

    def forward(self, x: Tensor) -> Tensor:
        return self.squeeze(self.conv(x).mean((2, 3), keepdim=True))


@pytest.mark.parametrize(
    "squeeze",
    [
        lambda x: x.squeeze(),
        torch.squeeze,
        lambda x: x.squeeze((0, 2, 3)),
        lambda x: x.squeeze(-1).squeeze(0).squeeze(-1),
        lambda x: x.squeeze().relu(),
        lambda x: x.squeeze((2, 3)),
    ],
)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_squeezes(squeeze: Callable[[Tensor], Tensor], batch: int) -> None:
    branches = [Squeezed(squeeze) for _ in range(3)]
    model, x = merge.branches(branches, stacked=False), torch.randn(batch, 4, 6, 6)
    for ours, branch in zip(model.separate(model(x)), branches, strict=True):
        torch.testing.assert_close(ours, branch(x))


def test_hooks_of_tensors() -> None:
    """A hook on a gradient, as pruning and clipping have them, and one that runs behind its accumulation."""
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        modules = [conv_bn_relu(4, 6) for _ in range(3)]
        getattr(modules[1][0].weight, register)(lambda g: None)
        with pytest.raises(
            ValueError, match=r"branches\[1\]\.0\.weight has hooks, which a merged tensor would"
        ):
            merge.branches(modules)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int64, np.bool_, np.array])
def test_options_that_are_numbers_of_numpy(kind: Callable[[float], object]) -> None:
    modules = [nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(kind(i % 2))) for i in range(3)]
    with pytest.raises(ValueError, match=r"branches\[1\]\.1 has negative_slope .*, branches\[0\]\.1 has"):
        merge.branches(modules)


def test_a_tensor_that_is_a_plain_attribute() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.shift = nn.Linear(6, 4), torch.tensor(2.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * self.shift

    with pytest.raises(
        ValueError, match=r"shift, which a forward reads at .*register_buffer\('shift', ...\)"
    ):
        merge.branches([Shifted() for _ in range(3)])
