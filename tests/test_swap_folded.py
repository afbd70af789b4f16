# SPDX-License-Identifier: MIT
"""The rule for convolutions that are folded in evaluation: spellings, what it leaves alone, `freeze`."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
from counted import kernels
from nearness import assert_model_as_near
from opswap.models import lprnet, shufflenet_v2_x0_5
from opswap.ops import reduced_precision
from opswap.swap.rules import DEFAULT
from replay_cases import drawn
from step import assert_equal, outputs_and_gradients

LAST = torch.channels_last
RULES = [rule for rule in DEFAULT if rule.name == "conv_folded"]
OTHERS = [rule for rule in DEFAULT if rule.name != "conv_folded"]
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies", "fresh_counts"),
]


def images(channels: int = 5, size: int = 12) -> Tensor:
    return torch.randn(2, channels, size, size).contiguous(memory_format=LAST)


def block(*after: nn.Module, **options: object) -> nn.Sequential:
    convolution = nn.Conv2d(5, 20, **{"kernel_size": 3, **options})
    return nn.Sequential(convolution, *after)


class Spelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(5, 24, 3, 2, 1), nn.BatchNorm2d(24)
        self.wide, self.narrow = nn.Conv2d(24, 30, (1, 3), padding=(0, 1)), nn.Conv2d(30, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        return T.relu6(self.narrow(T.hardswish(self.wide(x))))


class Bottleneck(nn.Module):
    """Ends with a convolution, and the BatchNorm is the caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(5, 16, 3), nn.ReLU(), nn.Conv2d(16, 20, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Bottleneck(), nn.BatchNorm2d(20), nn.ReLU()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # and the number of chains
    "norm": (lambda: block(nn.BatchNorm2d(20)), 1),
    "norm and relu": (lambda: block(nn.BatchNorm2d(20), nn.ReLU(), bias=False), 1),
    "relu": (lambda: block(nn.ReLU(inplace=True), stride=2, padding=1), 1),
    "hardtanh": (lambda: block(nn.Hardtanh(-0.5, 1.5)), 1),
    "identities": (lambda: block(nn.Identity(), nn.ReLU6()), 1),
    "no running statistics": (lambda: block(nn.BatchNorm2d(20, track_running_stats=False), nn.ReLU()), 0),
    "an activation of torch": (lambda: block(nn.GELU(), nn.Conv2d(20, 16, 1), nn.ReLU()), 1),
    "forward": (Spelled, 1),
    "tall ones begin a chain": (lambda: block(nn.ReLU(), nn.Conv2d(20, 16, (3, 1)), nn.ReLU()), 2),
    "blocks in a Sequential": (lambda: nn.Sequential(Bottleneck(), nn.BatchNorm2d(20), nn.ReLU()), 1),
    "blocks in a forward": (Around, 1),
    "nothing between": (lambda: block(nn.Conv2d(20, 16, (1, 3)), nn.Conv2d(16, 24, 1), nn.ReLU()), 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_evaluation(name: str) -> None:
    make, count = MODELS[name]
    stock = drawn(make()).eval()
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    assert {s.rule for s in opswap.report(model).swapped} == {"conv_folded"}
    assert_model_as_near(model, stock, lambda: (images(),))
    opswap.reset_stats()
    with torch.no_grad():
        torch.testing.assert_close(model(images()).shape, stock(images()).shape)
    assert kernels("conv_chain") == count
    assert list(opswap.unswap(model).state_dict()) == list(stock.state_dict())


@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_the_other_rules(name: str, one_thread: None) -> None:
    """The same bits as with the rules for the parts, statistics included."""
    stock = drawn(MODELS[name][0]())
    with_rule, without = (opswap.swap(copy.deepcopy(stock), rules=r) for r in (DEFAULT, OTHERS))
    x = images()
    assert_equal(outputs_and_gradients(with_rule, x), outputs_and_gradients(without, x))
    for a, b in zip(with_rule.buffers(), without.buffers(), strict=True):
        assert torch.equal(a, b)
    assert not kernels("conv_chain")


def test_evaluation_with_a_graph() -> None:
    stock = drawn(Spelled()).eval()
    model = opswap.swap(copy.deepcopy(stock))
    assert_model_as_near(model, stock, lambda: (images().requires_grad_(),))
    model(images()).sum().backward()
    assert not kernels("conv_chain")


@pytest.mark.parametrize(
    "options",
    [
        {"dilation": 2},
        {"padding": 3},
        {"padding": "same"},
        {"padding": 1, "padding_mode": "reflect"},
        {"groups": 5},
        {"out_channels": 8},
    ],
    ids=str,
)
def test_left_alone(options: dict[str, object]) -> None:
    outputs = int(str(options.get("out_channels", 20)))
    convolution = nn.Conv2d(5, **{"out_channels": 20, "kernel_size": 3, **options})
    model = nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
    assert not opswap.scan(model, rules=RULES).swapped


def test_convolutions_alone_are_left() -> None:
    assert not opswap.scan(block(), rules=RULES).swapped
    assert not opswap.scan(block(nn.Conv2d(20, 30, 1)), rules=RULES).swapped


def test_the_report_names_the_parts_too() -> None:
    """They are what runs in training."""
    model = block(nn.BatchNorm2d(20), nn.ReLU())
    assert {s.rule for s in opswap.scan(model).swapped} == {"conv_folded", "conv2d", "batch_norm"}


def test_a_norm_with_an_activation_that_chains_lack_is_left() -> None:
    """It is one pass in training too."""
    model = block(nn.BatchNorm2d(20), nn.GELU())
    rules = {s.rule for s in opswap.scan(model).swapped}
    assert "batch_norm_act" in rules and "conv_folded" not in rules


def test_images_of_other_channels_raise_as_stock() -> None:
    """A weight of one input channel fits a depthwise convolution of as many channels as it has outputs, too."""
    stock = drawn(nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())).eval()
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    assert_model_as_near(model, stock, lambda: (images(1),))
    for m in (stock, model):
        with torch.no_grad(), pytest.raises(RuntimeError, match="to have 1 channel"):
            m(images(16))


@pytest.mark.parametrize("make", [Around, lambda: nn.Sequential(Bottleneck(), nn.BatchNorm2d(20), nn.ReLU())])
def test_a_norm_behind_a_block(make: Callable[[], nn.Module]) -> None:
    stock = drawn(make()).eval()
    model = opswap.swap(copy.deepcopy(stock))
    assert_model_as_near(model, stock, lambda: (images(),))
    opswap.reset_stats()
    with torch.no_grad():
        model(images())
    assert opswap.stats()["kernel"] == {"conv_chain": 1}
    inside = next(m for m in model.modules() if isinstance(m, Bottleneck))
    inside.register_forward_hook(lambda m, i, o: o * 2)
    next(m for m in stock.modules() if isinstance(m, Bottleneck)).register_forward_hook(lambda m, i, o: o * 2)
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)


def test_a_block_with_hooks_is_left_closed() -> None:
    model = Around()
    model.layers[0].register_forward_hook(lambda m, i, o: o * 2)
    rules = {
        s.path: s.rule for s in opswap.scan(model).swapped if s.rule.startswith(("conv_folded", "batch_norm"))
    }
    assert rules == {"layers.0.body.0": "conv_folded", "layers.1": "batch_norm_act"}


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(5, 20, 3), nn.BatchNorm2d(20)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y + self.norm(y)


def test_an_output_that_is_used_twice() -> None:
    assert not opswap.scan(UsedTwice(), rules=RULES).swapped


# What a user may do to a swapped model, and how many of its two calls then run a chain.
CHANGES: dict[str, tuple[Callable[[nn.Module], object], int]] = {
    "hook": (lambda m: m[0].register_forward_hook(lambda m, i, o: o * 2), 0),
    "activation": (lambda m: m.__setitem__(2, nn.Sigmoid()), 0),
    "dilation": (lambda m: setattr(m[0], "dilation", (2, 2)), 0),
    "no bias": (lambda m: setattr(m[0], "bias", None), 2),
    "padding": (lambda m: setattr(m[0], "padding", (1, 2)), 2),
    "same": (lambda m: setattr(m[0], "padding", "same"), 0),
    "statistics": (lambda m: [setattr(m[1], f"running_{s}", None) for s in ("mean", "var")], 0),
    "double": (lambda m: m.double(), 0),
}


@pytest.mark.parametrize(("how", "count"), [(how, count) for how, (_, count) in CHANGES.items()])
@pytest.mark.parametrize("frozen", [False, True])
def test_changes_after_the_swap(how: str, count: int, frozen: bool) -> None:
    stock = drawn(block(nn.BatchNorm2d(20), nn.ReLU())).eval()
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    if frozen:
        opswap.freeze(model)
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x))
        for m in (stock, model):
            CHANGES[how][0](m)
        opswap.reset_stats()
        x = x.double() if how == "double" else x
        for _ in range(2):
            torch.testing.assert_close(model(x), stock(x))
    assert kernels("conv_chain") == count


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("groups", [1, 20])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("stride", v) for v in (1, (2,), [1, 2], [2])),
        *(("padding", v) for v in (0, 1, (1,), [1], [0, 1])),
        *(("dilation", v) for v in (1, (1,), 2)),
        *(("kernel_size", v) for v in (3, (3,), [3, 3])),
    ],
    ids=str,
)
def test_options_that_are_no_pairs(option: str, value: object, groups: int, before: bool) -> None:
    """torch takes them; the links of a training chain are asked, too."""
    layers = [nn.Conv2d(20, 20, 3, 2, 1, groups=groups, bias=False), nn.BatchNorm2d(20), nn.ReLU()]
    stock = drawn(nn.Sequential(*layers, nn.Conv2d(20, 20, 1, bias=False), nn.BatchNorm2d(20))).eval()
    if before:
        setattr(stock[0], option, value)
    model = opswap.swap(copy.deepcopy(stock))
    setattr(stock[0], option, value)
    setattr(model[0], option, value)
    with torch.no_grad():
        for training in (False, True):
            x = images(20)
            torch.testing.assert_close(
                model.train(training)(x), stock.train(training)(x), rtol=1e-4, atol=1e-4
            )


def test_frozen_weights_are_dropped() -> None:
    stock = drawn(block(nn.ReLU())).eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock), rules=RULES))
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x))
        for m in (stock, model):
            m[0].bias.mul_(3)
        torch.testing.assert_close(model(x), stock(x))
    assert not vars(model[0])["_opswap_frozen"].is_empty
    model.train()(x).sum().backward()
    assert vars(model[0])["_opswap_frozen"].is_empty


def test_statistics_that_move_while_the_convolution_evaluates() -> None:
    stock = drawn(block(nn.BatchNorm2d(20), nn.ReLU())).eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    x = images()
    with torch.no_grad():
        for m in (stock, model):
            m(x)
            m[1].train()
            m(x)
            m.eval()
        opswap.reset_stats()
        torch.testing.assert_close(model(x), stock(x))
    assert kernels("conv_chain") == 1


def test_a_view_of_the_same_weights_is_folded_anew() -> None:
    """Same address and same version, other strides."""
    stock = drawn(block(nn.ReLU())).eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock), rules=RULES))
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x))
        for m in (stock, model):
            m[0].weight = nn.Parameter(m[0].weight.detach().transpose(2, 3))
        opswap.reset_stats()
        torch.testing.assert_close(model(x), stock(x))
    assert kernels("conv_chain") == 1


def test_large_weights_need_freeze() -> None:
    model = nn.Sequential(nn.Conv2d(300, 600, 1), nn.BatchNorm2d(600), nn.ReLU())
    stock = drawn(model).eval()
    ours = opswap.swap(copy.deepcopy(stock))
    x = images(300, 4)
    for counted in (0, 1):
        opswap.reset_stats()
        with torch.no_grad():
            torch.testing.assert_close(ours(x), stock(x))
        assert kernels("conv_chain") == counted
        opswap.freeze(ours)


def test_chains_of_training_stay_chains() -> None:
    """The rule takes what is around them: the stem and the last convolution of ShuffleNetV2."""
    found = [s.rule for s in opswap.scan(shufflenet_v2_x0_5()).swapped]
    assert found.count("conv_chain") == 19
    model = opswap.freeze(opswap.swap(shufflenet_v2_x0_5().eval())).to(memory_format=LAST)
    with torch.no_grad():
        model(images(3, 64))
    counts = opswap.stats()["kernel"]
    assert counts["conv_chain"] == found.count("conv_chain") + found.count("conv_folded")
    assert "batch_norm" not in counts


def test_lprnet() -> None:
    stock = drawn(lprnet(68)).to(memory_format=torch.contiguous_format).eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)).to(memory_format=LAST))
    assert_model_as_near(model, stock, lambda: (torch.randn(2, 3, 24, 94),))
    opswap.reset_stats()
    with torch.no_grad():
        x = torch.randn(1, 3, 24, 94)
        torch.testing.assert_close(model(x.contiguous(memory_format=LAST)), stock(x), rtol=1e-4, atol=1e-4)
    counts = opswap.stats()["kernel"]
    assert (
        counts["conv_chain"] == 9
    )  # those behind the bottlenecks are joined with what follows; the head's own
    assert "batch_norm" not in counts


def test_compiled_traced_and_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced_precision, "SLOW", frozenset())  # else see test_chain_autocast.py
    stock = drawn(Spelled()).eval()
    model = opswap.swap(copy.deepcopy(stock))
    x = images()
    with torch.no_grad():
        compiled = torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), stock(x), rtol=1e-4, atol=1e-4)
        traced = torch.jit.trace(model, (x,), check_trace=False)
        torch.testing.assert_close(traced(x), stock(x), rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(x), stock(x), rtol=0.05, atol=0.1)
    assert not kernels("conv_chain")
