# SPDX-License-Identifier: MIT
"""What other libraries do with the type of a module, done to swapped ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from spellings import Split
from test_swap_types import RULES

pytestmark = [
    pytest.mark.usefixtures("one_thread", "seed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        nn.MaxPool2d(3, 2, 1),
        nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
        nn.Conv2d(8, 16, 1),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def by_type(model: nn.Module, x: Tensor) -> dict[str, int]:
    """thop, ptflops, torch-pruning: a hook for each class in a table."""
    count: dict[str, int] = {}

    def counted(module: nn.Module, inputs: Any, output: Tensor) -> None:
        name = type(module).__name__
        count[name] = count.get(name, 0) + output.numel()

    table = {
        nn.Conv2d: counted,
        nn.BatchNorm2d: counted,
        nn.ReLU: counted,
        nn.ReLU6: counted,
        nn.MaxPool2d: counted,
        nn.AdaptiveAvgPool2d: counted,
        nn.Dropout: counted,
        nn.Linear: counted,
        nn.Sequential: counted,
    }
    handles = [m.register_forward_hook(table[type(m)]) for m in model.modules() if type(m) in table]
    model(x)
    for handle in handles:
        handle.remove()
    return count


def leaves(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Opacus: modules with parameters whose class has no sampler are not entered."""
    samplers = {nn.Conv2d, nn.BatchNorm2d, nn.Linear}

    def entered(m: nn.Module) -> Iterator[str]:
        own = next(m.parameters(recurse=False), None) is not None
        if own:
            yield type(m).__name__
        if not own or type(m) in samplers:
            for child in m.children():
                yield from entered(child)

    found = list(entered(model))
    return {name: found.count(name) for name in found}


def non_linear(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Captum: containers by their name, non-linear layers by their class."""
    supported = {nn.ReLU, nn.ReLU6, nn.MaxPool2d}
    names = [type(m).__name__ for m in model.modules() if type(m) in supported]
    names += [str(type(m)) for m in model.modules() if "nn.modules.container" in str(type(m))]
    return {name: names.count(name) for name in names}


def initialised(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Initialisation loops."""
    found = 0
    for m in model.modules():
        if type(m) is nn.Conv2d or type(m) == nn.BatchNorm2d or type(m) in (nn.Linear,):  # noqa: E721
            nn.init.ones_(m.weight)
            found += 1
    return {"initialised": found}


def flops(model: nn.Module, x: Tensor) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    return {k: sum(v.values()) for k, v in counter.get_flop_counts().items()}


@pytest.mark.parametrize("idiom", [by_type, leaves, non_linear, initialised, flops])
@pytest.mark.parametrize("memory_format", [None, torch.channels_last])
def test_idioms(idiom: Callable[[nn.Module, Tensor], Any], memory_format: Any) -> None:
    stock = network()
    model = opswap.swap(copy.deepcopy(stock), memory_format=memory_format)
    assert len(opswap.report(model).swapped) >= 4
    x = torch.randn(2, 3, 16, 16)
    assert idiom(model, x) == idiom(stock, x)


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ngi,goi->ngo", x, self.weight)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(8, 3 + i) for i in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x[:, i]) for i, head in enumerate(self.heads)], 1)


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("cls", [Einsum, Heads])
def test_flops_of_linear_maps(cls: type[nn.Module], requires_grad: bool) -> None:
    stock = cls()
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    x = torch.randn(32, 4, 8, requires_grad=requires_grad)
    opswap.reset_stats()
    model(x)
    assert opswap.stats()["kernel"]["grouped_linear"] == 1
    ours, theirs = flops(model, x), flops(stock, x)
    assert ours["Global"] == theirs["Global"] > 0
    layer = opswap.GroupedLinear(8, 6, 4)
    assert flops(layer, x)["Global"] == (3 if requires_grad else 2) * 2 * 32 * 4 * 6 * 8


def test_models_of_opswap_have_the_flops_of_stock() -> None:
    for make in (opswap.models.shufflenet_v2_x0_5, opswap.models.multi_branch):
        stock = make()
        x = torch.randn(2, 3, 64, 64)
        assert flops(opswap.swap(copy.deepcopy(stock)), x)["Global"] == flops(stock, x)["Global"]


def test_quantisation_looks_layers_up() -> None:
    """prepare_qat exchanges layers whose exact class is in its table, fuse_modules fuses such rows."""
    quantization = pytest.importorskip("torch.ao.quantization")
    x = torch.randn(2, 3, 16, 16)
    stock = network()
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    prepared = []
    for m in (model, stock):
        twin = copy.deepcopy(m).train()
        twin.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        for i, names in ((0, ["0", "1", "2"]), (2, ["0", "1"])):
            quantization.fuse_modules_qat(twin[i], names, inplace=True)
        prepared.append(quantization.prepare_qat(twin))
    ours, theirs = ([type(m).__name__ for m in p.modules()] for p in prepared)
    assert ours == theirs and "ConvBnReLU2d" in ours
    torch.manual_seed(0)
    first = prepared[0](x)
    torch.manual_seed(0)
    torch.testing.assert_close(first, prepared[1](x), rtol=1e-3, atol=1e-4)
    fused = [quantization.fuse_modules(m.eval()[0], ["0", "1", "2"]) for m in (model, stock)]
    torch.testing.assert_close(fused[0](x), fused[1](x))
    assert [type(m) for m in fused[0]] == [type(m) for m in fused[1]]


def test_fused_by_torch() -> None:
    model = opswap.swap(network(), rules=RULES).eval()
    stock, x = opswap.unswap(copy.deepcopy(model)), torch.randn(2, 3, 16, 16)
    fused = [torch.nn.utils.fusion.fuse_conv_bn_eval(m[0][0], m[0][1]) for m in (model, stock)]
    torch.testing.assert_close(fused[0](x), fused[1](x))
    assert type(fused[0]) is nn.Conv2d and fused[0].bias is not None


def test_parts_of_a_sequential() -> None:
    model = opswap.swap(network())
    part = model[:3]
    assert type(part) is nn.Sequential and "opswap_code" not in vars(part)
    stock, x = opswap.unswap(copy.deepcopy(model)), torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(part.eval()(x), stock.eval()[:3](x), rtol=1e-4, atol=1e-5)


def test_blocks_of_users_keep_their_class() -> None:
    model = opswap.swap(nn.Sequential(Split()), strict=True)
    assert type(model[0]) is Split and type(opswap.unswap(model)[0]) is Split


def test_train_that_returns_nothing() -> None:
    """As mmengine's modules."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def train(self, mode: bool = True) -> None:  # type: ignore[override]
            super().train(mode)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.body(x)
            return y

    x = torch.randn(4, 3, 24, 24)
    opswap.verify(Block(), (x,))
    model = opswap.optimize(Block(), example_inputs=(x,))
    assert opswap.report(model).swapped
    with opswap.layout.check(model), opswap.shapes.detect(model):
        model(x.contiguous(memory_format=torch.channels_last))
