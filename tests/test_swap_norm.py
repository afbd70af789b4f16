# SPDX-License-Identifier: MIT
"""swap on BatchNorm, alone and with an activation behind it: where it is found, and that models train as before."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

import opswap
from nearness import Quantities, assert_as_near, assert_model_as_near, assert_trains_as_near, named
from opswap.models import LPRNet, ShuffleNetV2, shufflenet_v2_x1_0
from opswap.swap.rules import DEFAULT
from step import outputs_and_gradients
from test_swap_pool import PublishedLPRNet
from twins import twins

pytestmark = pytest.mark.usefixtures("one_thread", "every_rule_applies")

SIZE = (4, 6, 5, 7)


class Pair(nn.Module):
    """A normalisation, and what `body` makes of it."""

    def __init__(self, body: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(6)
        self.act = nn.ReLU(inplace=True)
        self.sigmoid = nn.Sigmoid()
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


FOUND: list[tuple[str, Callable[[nn.Module, Tensor], Tensor]]] = [
    ("module", lambda m, x: m.act(m.norm(x))),
    ("F.relu", lambda m, x: F.relu(m.norm(x))),
    ("F.relu in place", lambda m, x: F.relu(m.norm(input=x), inplace=True)),
    ("torch.relu", lambda m, x: torch.relu(m.norm(x))),
    ("relu", lambda m, x: m.norm(x).relu()),
    ("relu_", lambda m, x: m.norm(x).relu_() * 2),
    ("torch.relu_", lambda m, x: torch.relu_(m.norm(x))),
    ("relu6", lambda m, x: F.relu6(m.norm(3 * x))),
    ("hardtanh", lambda m, x: F.hardtanh(m.norm(3 * x), 0, 6)),
    ("hardtanh by name", lambda m, x: F.hardtanh(m.norm(3 * x), max_val=6.0, min_val=0.0, inplace=True)),
    ("hardswish", lambda m, x: F.hardswish(m.norm(3 * x))),
    ("hardtanh of other bounds", lambda m, x: F.hardtanh(m.norm(x), -0.5, 2)),
    ("hardtanh_", lambda m, x: F.hardtanh_(m.norm(x)) * 2),
    ("hardsigmoid", lambda m, x: F.hardsigmoid(m.norm(3 * x))),
    ("leaky_relu", lambda m, x: F.leaky_relu(m.norm(x), 0.2)),
    ("leaky_relu by name", lambda m, x: F.leaky_relu(input=m.norm(x), negative_slope=0.2, inplace=True)),
    ("leaky_relu_", lambda m, x: F.leaky_relu_(m.norm(x)) * 2),
    ("elu", lambda m, x: F.elu(m.norm(x), alpha=0.7)),
    ("elu_", lambda m, x: F.elu_(m.norm(x), 0.7)),
    ("F.silu", lambda m, x: F.silu(m.norm(x))),
    ("F.silu in place", lambda m, x: F.silu(m.norm(x), inplace=True)),
    ("x * sigmoid(x)", lambda m, x: (lambda y: y * torch.sigmoid(y))(m.norm(x))),
    ("sigmoid(x) * x", lambda m, x: (lambda y: y.sigmoid() * y)(m.norm(x))),
    ("torch.special.expit", lambda m, x: (lambda y: torch.special.expit(y) * y)(m.norm(x))),
    ("nn.Sigmoid", lambda m, x: (lambda y: y * m.sigmoid(y))(m.norm(x))),
    ("x.mul(sigmoid(x))", lambda m, x: (lambda y: y.mul(F.sigmoid(y)) + 1)(m.norm(x))),
    ("sigmoid", lambda m, x: x * m.norm(x).sigmoid()),
    ("sigmoid_", lambda m, x: m.norm(x).sigmoid_() * 2),
    ("torch.sigmoid", lambda m, x: torch.sigmoid(m.norm(x)) * 2),
    ("torch.sigmoid_", lambda m, x: torch.sigmoid_(m.norm(x))),
    ("F.sigmoid", lambda m, x: F.sigmoid(m.norm(x))),
    ("nn.Sigmoid alone", lambda m, x: x * m.sigmoid(m.norm(m.conv(x)))),
    ("F.gelu", lambda m, x: F.gelu(m.norm(x))),
    ("F.gelu, tanh", lambda m, x: F.gelu(m.norm(x), approximate="tanh")),
    ("F.mish", lambda m, x: F.mish(m.norm(x))),
    ("F.softplus", lambda m, x: F.softplus(m.norm(x), 2, threshold=3)),
    ("convolution before it", lambda m, x: F.relu(m.norm(m.conv(x))) + m.conv.weight.sum()),
    ("input used again", lambda m, x: (lambda y: F.relu(m.norm(y)) + y)(m.conv(x))),
]
KEPT: list[tuple[str, Callable[[nn.Module, Tensor], Tensor], str]] = [
    (
        "used twice",
        lambda m, x: (lambda y: F.relu(y) + y)(m.norm(x)),
        "torch is as fast on the activation alone",
    ),
    (
        "in place, then used",
        lambda m, x: (lambda y: (F.relu_(y), y)[1] * 1)(m.norm(x)),
        "something else reads",
    ),
    ("two activations", lambda m, x: (lambda y: F.relu(y) + F.relu6(y))(m.norm(x)), "something else reads"),
    ("clamp", lambda m, x: m.norm(x).clamp(min=0), ""),
    ("selu", lambda m, x: F.selu(m.norm(x)), ""),
    ("prelu", lambda m, x: F.prelu(m.norm(x), m.conv.bias), ""),
    ("endless hardtanh", lambda m, x: F.hardtanh(m.norm(x), 0, float("inf")), ""),
    ("hardtanh without a value", lambda m, x: F.hardtanh_(m.norm(x), 2.0, 1.0), ""),
    ("sigmoid of another", lambda m, x: (lambda y: y * torch.sigmoid(x))(m.norm(x)), ""),
    ("sigmoid times another", lambda m, x: (lambda y: x * torch.sigmoid(y) * y)(m.norm(x)), "something else"),
    (
        "sigmoid used again",
        lambda m, x: (lambda y, s: y * s + s)(y := m.norm(x), y.sigmoid()),
        "something else reads",
    ),
    ("no activation", lambda m, x: m.norm(x) + 1, ""),
]
MODULES = [
    (nn.BatchNorm2d, nn.ReLU(), SIZE),
    (nn.BatchNorm2d, nn.ReLU(inplace=True), SIZE),
    (nn.BatchNorm2d, nn.ReLU6(), SIZE),
    (nn.BatchNorm2d, nn.Hardtanh(0, 6), SIZE),
    (nn.BatchNorm2d, nn.Hardswish(), SIZE),
    (nn.BatchNorm2d, nn.Hardtanh(-0.5, 2.0), SIZE),
    (nn.BatchNorm2d, nn.Hardsigmoid(), SIZE),
    (nn.BatchNorm2d, nn.LeakyReLU(0.2), SIZE),
    (nn.BatchNorm2d, nn.LeakyReLU(0.1, inplace=True), SIZE),
    (nn.BatchNorm2d, nn.LeakyReLU(-0.1), SIZE),
    (nn.BatchNorm2d, nn.ELU(0.7), SIZE),
    (nn.BatchNorm2d, nn.Sigmoid(), SIZE),
    (nn.BatchNorm1d, nn.Sigmoid(), SIZE[:2]),
    (nn.BatchNorm2d, nn.SiLU(), SIZE),
    (nn.BatchNorm1d, nn.SiLU(inplace=True), SIZE[:3]),
    (nn.BatchNorm3d, nn.SiLU(), (*SIZE, 2)),
    (nn.BatchNorm2d, nn.GELU(), SIZE),
    (nn.BatchNorm2d, nn.GELU("tanh"), SIZE),
    (nn.BatchNorm2d, nn.Mish(inplace=True), SIZE),
    (nn.BatchNorm2d, nn.Softplus(2, 3), SIZE),
    (nn.BatchNorm1d, nn.ReLU(), SIZE[:2]),
    (nn.BatchNorm1d, nn.ReLU(), SIZE[:3]),
    (nn.BatchNorm3d, nn.ReLU(), (*SIZE, 2)),
]


def shufflenet() -> nn.Module:
    return ShuffleNetV2((1, 2, 1), (24, 48, 96, 192, 128), 10)


def stage() -> nn.Module:
    """The beginning of a ShuffleNetV2: every kind of block."""
    net = ShuffleNetV2((2, 1, 1), (24, 48, 96, 192, 128), 10)
    return nn.Sequential(net.conv1, net.stage2)


def lprnet() -> nn.Module:
    return LPRNet(11, dropout=0.0)


NETWORKS = {"shufflenet": (shufflenet, (4, 3, 64, 64)), "lprnet": (lprnet, (3, 3, 24, 94))}


def norms(model: nn.Module, x: Tensor) -> int:
    """Normalisations of one forward that our kernel computes."""
    opswap.reset_stats()
    with torch.no_grad():
        copy.deepcopy(model)(x)
    assert not opswap.stats()["reference"]
    return opswap.stats()["kernel"].get("batch_norm_act", 0)


def sites(model: nn.Module) -> Counter[str]:
    return Counter(s.rule for s in opswap.report(model).swapped if s.rule.startswith("batch_norm"))


def close(ours: list[Tensor | None], theirs: list[Tensor | None], scale: float = 1.0) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4 * scale, atol=1e-4 * scale)


def check(model: nn.Module, stock: nn.Module, x: Tensor) -> None:
    """Both modes: outputs, gradients, buffers."""
    for training in (True, False):
        ours = outputs_and_gradients(model.train(training), x)
        close(ours, outputs_and_gradients(stock.train(training), x))
        with torch.no_grad():
            close([model(x)], [stock(x)])
    close(list(model.buffers()), list(stock.buffers()))


@pytest.mark.parametrize("body", [f[1] for f in FOUND], ids=[f[0] for f in FOUND])
def test_found(body: Callable[[nn.Module, Tensor], Tensor]) -> None:
    stock = Pair(body)
    model = opswap.swap(copy.deepcopy(stock))
    (site,) = (s for s in opswap.report(model).swapped if s.rule != "pointwise_conv")
    assert (site.path, site.rule, site.exact) == ("norm", "batch_norm_act", False)
    assert "test_swap_norm.py:" in site.source
    x = torch.randn(SIZE)
    assert norms(model, x) == 1
    check(model, stock, x)


@pytest.mark.parametrize(("body", "reason"), [k[1:] for k in KEPT], ids=[k[0] for k in KEPT])
def test_kept(body: Callable[[nn.Module, Tensor], Tensor], reason: str) -> None:
    stock = Pair(body)
    model = opswap.swap(copy.deepcopy(stock))
    report = opswap.report(model)
    assert sites(model) == {"batch_norm": 1}
    assert [reason in s.reason for s in report.kept] == ([True] if reason else []), str(report)
    check(model, stock, torch.randn(SIZE))


def test_alone_in_training_only() -> None:
    """With given statistics torch is as fast."""
    model = opswap.swap(nn.Sequential(nn.BatchNorm2d(6)))
    assert norms(model, torch.randn(SIZE)) == 1 and norms(model.eval(), torch.randn(SIZE)) == 0


@pytest.mark.parametrize(("norm", "act", "size"), MODULES, ids=lambda v: str(v).replace("\n", ""))
def test_neighbours_in_a_sequential(norm: type, act: nn.Module, size: tuple[int, ...]) -> None:
    stock = nn.Sequential(norm(6), copy.deepcopy(act))
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    assert [(s.path, s.rule) for s in opswap.report(model).swapped] == [("0", "batch_norm_act")]
    x = 3 * torch.randn(size)
    assert norms(model, x) == 1
    check(model, stock, x)
    assert opswap.unswap(model) is model
    assert [type(m) for m in model.modules()] == [type(m) for m in stock.modules()]


class NormAct(nn.BatchNorm2d):
    """timm's: a BatchNorm whose forward calls the function, a dropout that is none, and the activation."""

    def __init__(self, channels: int, act: nn.Module) -> None:
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
        options = (self.weight, self.bias, self.training, 0.1, self.eps)
        x = F.batch_norm(x, self.running_mean, self.running_var, *options)
        x = self.drop(x)
        return self.act(x)


@pytest.mark.parametrize("act", [nn.ReLU(inplace=True), nn.SiLU(inplace=True), nn.LeakyReLU(0.2)], ids=str)
def test_a_norm_that_calls_its_activation(act: nn.Module) -> None:
    stock = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), NormAct(6, act))
    model = opswap.swap(copy.deepcopy(stock))
    assert sites(model) == {"batch_norm_act": 1}, str(opswap.report(model))
    x = torch.randn(SIZE)
    assert norms(model, x) == 1
    check(model, stock, x)
    model[1].drop, model[1].act = nn.Dropout(0.0), nn.Tanh()
    stock[1].drop, stock[1].act = nn.Dropout(0.0), nn.Tanh()
    check(model, stock, x)


class Ends(nn.Module):
    """ReXNet's: a block that ends with timm's norm without an activation, and the activation behind it."""

    def __init__(self, norm: nn.Module, *inner: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), norm) if not inner else inner[0]
        self.act = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.block(x))


class ConvNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(6, 6, 3, padding=1), NormAct(6, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


BEHIND = {
    "a norm": lambda: nn.Sequential(NormAct(6, nn.Identity()), nn.ReLU()),
    "a block": lambda: nn.Sequential(ConvNorm(), nn.SiLU()),
    "a Sequential": lambda: Ends(NormAct(6, nn.Identity())),
    "a block in a forward": lambda: Ends(nn.Identity(), ConvNorm()),
    "a norm in a forward": lambda: Ends(nn.Identity(), NormAct(6, nn.Identity())),
    "blocks": lambda: Ends(nn.Identity(), nn.Sequential(ConvNorm(), ConvNorm())),
}


@pytest.mark.parametrize("name", BEHIND)
def test_an_activation_behind_a_norm_that_calls_the_function(name: str) -> None:
    stock = BEHIND[name]()
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    assert sites(model)["batch_norm_act"] == 1, str(opswap.report(model))
    x = 3 * torch.randn(SIZE)
    check(model, stock, x)
    for net in (model, stock):
        *_, last = (m for m in net.modules() if isinstance(m, NormAct))
        last.register_forward_hook(lambda module, args, result: 2 * result)
    check(model, stock, x)


def test_parameters_that_change() -> None:
    """A slope is read on every call: with another one the modules themselves run."""
    stock = nn.Sequential(nn.BatchNorm2d(6), nn.LeakyReLU(0.2))
    model = opswap.swap(copy.deepcopy(stock))
    for m in (stock, model):
        m[1].negative_slope = 0.6
    check(model, stock, torch.randn(SIZE))


class TestNetworks:
    @pytest.fixture(params=NETWORKS)
    def network(self, request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
        make, size = NETWORKS[request.param]
        return make(), torch.randn(size)

    def test_sites(self) -> None:
        stock = shufflenet_v2_x1_0()
        # Those for chains have most of them.
        rules = [rule for rule in DEFAULT if rule.name not in ("conv_chain", "conv_folded")]
        report = opswap.scan(stock, rules=rules)
        assert Counter(s.rule for s in report.swapped if s.rule.startswith("batch_norm")) == {
            "batch_norm_act": 36,
            "batch_norm_act_max_pool": 1,
            "batch_norm": 19,
            "batch_norm_in_place": 19,
        }
        assert {s.rule for s in report.kept} <= {"pointwise_conv", "conv2d"}  # by size, on some CPUs
        report = opswap.scan(lprnet(), rules=rules)
        found = [(s.path, s.rule) for s in report.swapped if s.rule.startswith("batch_norm")]
        assert found == [(f"backbone.{i}", "batch_norm_act") for i in (1, 5, 9, 12, 17, 21)]
        assert not [s for s in opswap.scan(lprnet(), exact=True).swapped if s.rule.startswith("batch_norm")]

    def test_modules_that_a_forward_makes(self) -> None:
        """The most used LPRNet makes its average pools on every call."""
        stock = PublishedLPRNet(11)
        model = opswap.swap(copy.deepcopy(stock))
        assert sites(model)["batch_norm_act"] + sites(model)["batch_norm"] == 6
        assert {s.rule for s in opswap.report(model).kept} <= {"dropout"}  # which depends on the CPU
        x = torch.randn(2, 3, 24, 94)
        assert norms(model, x) == 6
        torch.testing.assert_close(model(x), stock(x), rtol=1e-3, atol=1e-4)

    def test_modules_from_elsewhere(self) -> None:
        """Somebody else may change them between two calls."""
        drop = nn.Dropout(0.5)
        stock = Pair(lambda m, x: drop(F.relu(m.norm(x))))
        model = opswap.swap(copy.deepcopy(stock))
        assert sites(model) == {"batch_norm": 1} and "submodule" in opswap.report(model).kept[0].reason
        drop.eval()
        check(model, stock, torch.randn(SIZE))

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
    def test_as_near_to_float64_as_stock(
        self, network: tuple[nn.Module, Tensor], memory_format: torch.memory_format, training: bool
    ) -> None:
        stock, x = network
        stock.train(training)
        model = opswap.swap(copy.deepcopy(stock), memory_format=memory_format)
        assert_model_as_near(model, stock, lambda: (torch.randn_like(x),))

    def test_losses_of_several_steps(self, network: tuple[nn.Module, Tensor]) -> None:
        stock, x = network
        model = opswap.swap(copy.deepcopy(stock))
        assert_trains_as_near(model, stock, lambda: torch.randn_like(x), lr=1e-3, momentum=0.5)

    def test_keys_order_and_unswap(self, network: tuple[nn.Module, Tensor]) -> None:
        stock, x = network
        model = opswap.swap(copy.deepcopy(stock))
        assert list(model.state_dict()) == list(stock.state_dict()) and repr(model) == repr(stock)
        report, classes = opswap.report(model), [type(m) for m in model.modules()]
        assert report == opswap.scan(stock) == opswap.scan(model)
        assert opswap.report(opswap.swap(model)) == report and [type(m) for m in model.modules()] == classes
        opswap.unswap(model)
        assert [type(m) for m in model.modules()] == [type(m) for m in stock.modules()]
        assert [list(vars(m)) for m in model.modules()] == [list(vars(m)) for m in stock.modules()]
        assert norms(model, x) == 0

    def test_copies(self, network: tuple[nn.Module, Tensor]) -> None:
        stock, x = network
        model = opswap.swap(copy.deepcopy(stock))
        count = norms(model, x)
        copies = twins(model)
        model.eval()
        for twin in copies:
            assert opswap.report(twin) == opswap.report(model) and norms(twin.train(), x) == count
            assert torch.equal(twin.eval()(x), model(x))

    @pytest.mark.parametrize(("make", "size"), [(stage, (4, 3, 32, 32)), (lprnet, (2, 3, 24, 94))])
    def test_compile_and_export(self, make: Callable[[], nn.Module], size: tuple[int, ...]) -> None:
        x = torch.randn(size)
        model = opswap.swap(make())
        count = norms(model, x)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        opswap.reset_stats()
        close(outputs_and_gradients(compiled, x), outputs_and_gradients(copy.deepcopy(model), x), 10)
        # Compiled, chains of contiguous images are their parts.
        inside = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
        assert opswap.stats()["kernel"]["batch_norm_act"] == count + inside >= 2 * count
        program = torch.export.export(model.eval(), (x,))
        torch.testing.assert_close(program.module()(x), model(x))

    def test_bf16_autocast(self, network: tuple[nn.Module, Tensor]) -> None:
        stock, x = network
        model = opswap.swap(copy.deepcopy(stock))
        exact = copy.deepcopy(stock).double()

        def draw() -> tuple[Quantities, Quantities, Quantities]:
            batch = torch.randn_like(x)
            with torch.autocast("cpu", torch.bfloat16):
                results = stock(batch), model(batch)
            return named([exact(batch.double())]), named(results[:1]), named(results[1:])

        assert_as_near(draw, times=2)
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.float().square().mean().backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())

    def test_evaluation_after_training(self, network: tuple[nn.Module, Tensor]) -> None:
        stock, x = network
        model = opswap.swap(copy.deepcopy(stock))
        for m in (stock, model):
            m(x)
            m.eval()
        torch.testing.assert_close(model(x), stock(x), rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            for m in (stock, model):
                for b in m.buffers():
                    b.mul_(2)
        torch.testing.assert_close(model(x), stock(x), rtol=1e-3, atol=1e-4)


class TestOnlyTorchsOwn:
    def test_subclass(self) -> None:
        class Shifted(nn.BatchNorm2d):
            def forward(self, input: Tensor) -> Tensor:
                return super().forward(input) + 1

        stock = nn.Sequential(Shifted(6), nn.ReLU())
        model = opswap.swap(copy.deepcopy(stock))
        # What its forward calls is replaced, and what it adds stays: the two are not taken for a pair.
        assert [(s.path, s.rule) for s in opswap.report(model).swapped] == [("0", "batch_norm")]
        check(model, stock, torch.randn(SIZE))

    def test_parametrization(self) -> None:
        class Doubled(nn.Module):
            def forward(self, weight: Tensor) -> Tensor:
                return 2 * weight

        stock = nn.Sequential(nn.BatchNorm2d(6), nn.ReLU())
        model = opswap.swap(copy.deepcopy(stock))
        for m in (stock, model):
            parametrize.register_parametrization(m[0], "weight", Doubled())
        assert not opswap.scan(stock).swapped
        check(model, stock, torch.randn(SIZE))

    def test_shared(self) -> None:
        norm, act = nn.BatchNorm2d(6), nn.ReLU()
        stock = nn.Sequential(norm, act, nn.Conv2d(6, 6, 3, padding=1), nn.Sequential(norm, act), norm)
        model = opswap.swap(copy.deepcopy(stock))
        assert model[0] is model[3][0] is model[4]
        x = torch.randn(SIZE)
        assert norms(model, x) == 3
        check(model, stock, x)
