# SPDX-License-Identifier: MIT
"""Running statistics that share memory: with each other, with themselves, with a parameter or with the input.

torch moves the statistics channel by channel and reads the parameters afterwards, so that its results are the only
right ones. One thread: torch writes what is shared from all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn

import opswap
from inputs import same_bits
from opswap import _core
from opswap import functional as F
from threads import on_threads

CHANNELS = 5


@pytest.fixture(autouse=True)
def one_thread_in_double() -> Iterator[None]:
    """In float64, whose roundings are far from every difference that is looked for."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with on_threads(1):
        yield
    torch.set_default_dtype(dtype)


def _positive(count: int = CHANNELS) -> Tensor:
    return torch.rand(count) + 0.5


def _same() -> dict[str, Tensor]:
    both = _positive()
    return {"running_mean": both, "running_var": both}


def _views_of(buffer: Tensor, first: slice, second: slice) -> dict[str, Tensor]:
    return {"running_mean": buffer[first], "running_var": buffer[second]}


def _shared_with(running: str, parameter: str) -> dict[str, Tensor]:
    vector = _positive()
    others = {"running_mean": torch.zeros(CHANNELS), "running_var": _positive()}
    return others | {running: vector, parameter: vector}


SHARED: dict[str, Callable[[], dict[str, Tensor]]] = {
    "the same tensor": _same,
    "views of one tensor": lambda: _views_of(_positive(), slice(None), slice(None)),
    "moved by one": lambda: _views_of(_positive(CHANNELS + 1), slice(0, -1), slice(1, None)),
    "in turns": lambda: _views_of(_positive(2 * CHANNELS), slice(0, None, 2), slice(1, None, 2)),
    "an expanded variance": lambda: {
        "running_mean": torch.zeros(CHANNELS),
        "running_var": _positive(1).expand(CHANNELS),
    },
    "an expanded mean": lambda: {
        "running_mean": _positive(1).expand(CHANNELS),
        "running_var": _positive(),
    },
    "the mean is the weight": lambda: _shared_with("running_mean", "weight"),
    "the variance is the weight": lambda: _shared_with("running_var", "weight"),
    "the mean is the bias": lambda: _shared_with("running_mean", "bias"),
    "the variance is the bias": lambda: _shared_with("running_var", "bias"),
}
ALL = pytest.mark.parametrize("name", SHARED)
MODES = pytest.mark.parametrize("training", (True, False), ids=("train", "eval"))


def _assert_near(ours: Tensor, stock: Tensor, training: bool) -> None:
    """In training torch's own function ran; with given statistics a kernel may have rounded otherwise."""
    assert same_bits(ours, stock) if training else torch.allclose(ours, stock, rtol=1e-9, atol=1e-9)


class TestFunctions:
    @MODES
    @ALL
    @pytest.mark.parametrize("activation", (None, "relu"))
    def test_values_statistics_and_gradients_are_torchs(
        self, name: str, training: bool, activation: str | None
    ) -> None:
        x, seed = torch.randn(4, CHANNELS, 3, 3), torch.initial_seed()
        found = []
        for ours in (False, True):
            torch.manual_seed(seed)
            vectors = SHARED[name]()
            leaf = x.clone().requires_grad_()
            if ours:
                y = F.batch_norm_act(leaf, **vectors, training=training, activation=activation)
            else:
                y = torch_functional.batch_norm(leaf, **vectors, training=training)
                y = y if activation is None else y.relu()
            (y * y).sum().backward()
            found.append((y.detach(), leaf.grad, vectors["running_mean"], vectors["running_var"]))
        for stock, other in zip(*found, strict=True):
            assert stock is not None and other is not None
            _assert_near(other, stock, training)

    def test_statistics_inside_the_input(self) -> None:
        x = torch.rand(4, CHANNELS, 3, 3) + 0.5
        mine = x.clone()
        for function, input in ((torch_functional.batch_norm, x), (F.batch_norm, mine)):
            function(input, input[0, :, 0, 0], input[0, :, 1, 1], training=True)
        assert same_bits(mine, x)

    def test_the_extension_declines_what_is_shared_and_moves(self) -> None:
        x = torch.randn(4, CHANNELS, 3, 3)
        for make in SHARED.values():
            given = make()
            vectors = [given.get(n) for n in ("running_mean", "running_var", "weight", "bias")]
            with pytest.raises(RuntimeError, match=r"shares memory|overlaps itself"):
                _core.batch_norm(True, 0.1, 1e-5, None, x, *vectors, 0, False)

    def test_neighbours_in_one_buffer_are_apart(self) -> None:
        x, buffer = torch.randn(4, CHANNELS, 3, 3), _positive(4 * CHANNELS)
        vectors = buffer.split(CHANNELS)
        assert isinstance(_core.batch_norm(True, 0.1, 1e-5, None, x, *vectors, 0, False), Tensor)


class _Net(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, CHANNELS, 3)
        self.bn = nn.BatchNorm2d(CHANNELS)
        for where, vector in SHARED[name]().items():
            if where.startswith("running"):
                setattr(self.bn, where, vector)
            else:
                setattr(self.bn, where, nn.Parameter(vector, requires_grad=False))
        if "is the" in name:
            running, parameter = name.split()[1], name.split()[-1]
            shared = getattr(self.bn, parameter).data
            setattr(self.bn, {"mean": "running_mean", "variance": "running_var"}[running], shared)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class _Functional(_Net):
    def forward(self, x: Tensor) -> Tensor:
        n = self.bn
        y = torch_functional.batch_norm(
            self.conv(x), n.running_mean, n.running_var, n.weight, n.bias, self.training, 0.1, n.eps
        )
        return torch_functional.relu(y)


def _step(model: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    y = call(x)
    (y * y).sum().backward()
    bn = model.get_submodule("bn")
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [y.detach(), *grads, *(b for b in bn.buffers() if b.is_floating_point())]


def _twins(name: str, kind: type[_Net], training: bool) -> tuple[nn.Module, nn.Module]:
    """Two models with the same values; copies would not share memory."""
    made, seed = [], torch.initial_seed()
    for _ in range(2):
        torch.manual_seed(seed)
        made.append(kind(name).train(training))
    return made[0], made[1]


def _outcome(model: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor] | None:
    """A step's tensors, None if it raises."""
    try:
        return _step(model, call, x)
    except RuntimeError:
        return None


class TestModels:
    @MODES
    @ALL
    @pytest.mark.parametrize("kind", (_Net, _Functional))
    def test_a_swapped_model(self, name: str, kind: type[_Net], training: bool) -> None:
        x = torch.randn(2, 3, 7, 7)
        model, stock = _twins(name, kind, training)
        opswap.swap(model)
        for ours, theirs in zip(_step(model, model, x), _step(stock, stock, x), strict=True):
            _assert_near(ours, theirs, training)

    @ALL
    def test_a_swapped_model_without_a_graph(self, name: str) -> None:
        """Nobody else holds the convolution's output, which is overwritten."""
        x = torch.randn(2, 3, 7, 7)
        for training in (True, False):
            with torch.no_grad():
                model, stock = _twins(name, _Net, training)
                opswap.swap(model)
                _assert_near(model(x), stock(x), training)

    @pytest.mark.parametrize("swapped", (False, True), ids=("compiled", "swapped and compiled"))
    @pytest.mark.parametrize("name", ("the same tensor", "an expanded variance", "an expanded mean"))
    @pytest.mark.parametrize("kind", (_Net, _Functional))
    def test_a_compiled_model(self, name: str, kind: type[_Net], swapped: bool) -> None:
        """The same as the stock model under torch.compile, which may be an error."""
        x = torch.randn(2, 3, 7, 7)
        stock, net = _twins(name, kind, True)
        torch.compiler.reset()
        expected = _outcome(stock, torch.compile(stock, backend="eager"), x)
        if swapped:
            opswap.swap(net)
        torch.compiler.reset()
        backend = "eager" if swapped else opswap.dynamo_backend()
        found = _outcome(net, torch.compile(net, backend=backend), x)
        assert type(found) is type(expected)
        for ours, theirs in zip(found or (), expected or (), strict=True):
            _assert_near(ours, theirs, True)
