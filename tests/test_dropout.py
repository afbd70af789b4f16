# SPDX-License-Identifier: MIT
"""Dropout: the same elements as torch's, the same gradients, and the generator left where torch leaves it."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
from opswap import _core
from opswap import functional as F
from opswap.ops import dropout as module
from opswap.swap.rules import dropout as rule
from step import assert_same_error, saved_by
from surviving import python
from threads import at_once, on_threads

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SPECIAL = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, -1.5, 1e-40]

pytestmark = pytest.mark.skipif(
    not module.draws_alike(), reason="torch draws random numbers in another way on this CPU"
)


def same_bits(a: Tensor, b: Tensor) -> bool:
    equal = torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(0), b.nan_to_num(0))
    return equal and torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())


def run(function: object, x: Tensor, p: float, used: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Output, gradient and the generator's state; `used` numbers are drawn before."""
    torch.manual_seed(5)
    torch.randint(9, (used,))
    x = x.detach().clone().requires_grad_()
    output = function(x, p)
    state = torch.get_rng_state()
    output.backward(torch.linspace(-2, 2, x.numel()).view(x.shape).to(x.dtype))
    return output.detach(), x.grad, state


def assert_as_torch(x: Tensor, p: float = 0.5, used: int = 0) -> None:
    opswap.reset_stats()
    ours, theirs = run(F.dropout, x, p, used), run(T.dropout, x, p, used)
    assert opswap.stats()["kernel"] == {"dropout": 2}
    assert same_bits(ours[0], theirs[0]) and same_bits(ours[1], theirs[1])
    assert ours[0].stride() == theirs[0].stride() and ours[1].stride() == theirs[1].stride()
    assert torch.equal(ours[2], theirs[2])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.5, 0.1, 0.9, 1 / 3, 1e-9, 1 - 1e-9])
def test_as_torch(tier: str, dtype: torch.dtype, p: float) -> None:
    x = torch.randn(3, 7, 11, 13).to(dtype)
    x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL).to(dtype)
    assert_as_torch(x, p)
    assert_as_torch(x.contiguous(memory_format=torch.channels_last), p)


@pytest.mark.parametrize("used", [0, 1, 2, 605, 607, 608, 609, 622, 623, 624, 625, 1000])
def test_from_any_place_of_the_sequence(tier: str, used: int) -> None:
    assert_as_torch(torch.randn(1027), used=used)


@pytest.mark.parametrize("count", [1024, 1025, 1031, 4096 + 7])
def test_any_number_of_elements(tier: str, count: int) -> None:
    assert_as_torch(torch.randn(count))
    assert_as_torch(torch.randn(1, 1, count))


def test_threads_take_parts(tier: str) -> None:
    with on_threads(3):
        assert_as_torch(torch.randn(100_003))


def test_volumes() -> None:
    x = torch.randn(2, 8, 3, 5, 7)
    assert_as_torch(x)
    assert_as_torch(x.contiguous(memory_format=torch.channels_last_3d))


def test_without_a_gradient() -> None:
    x = torch.randn(2000)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            torch.manual_seed(1)
            ours = F.dropout(x, 0.4)
            torch.manual_seed(1)
            assert torch.equal(ours, T.dropout(x, 0.4)) and not ours.requires_grad


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (torch.randn(2000), {"training": False}),
        (torch.randn(2000), {"p": 0.0}),
        (torch.randn(2000), {"p": 1.0}),
        (torch.randn(2000), {"p": 1}),
        (torch.randn(2000), {"inplace": True}),
        (torch.randn(60, 40).t(), {}),
        (torch.randn(60, 80)[:, ::2], {}),
        (torch.randn(8), {}),
        (torch.randn(0, 4), {}),
    ],
)
def test_torch_serves_the_rest(x: Tensor, options: dict[str, object]) -> None:
    opswap.reset_stats()
    a, b = (x.clone(), x.clone()) if "inplace" in options else (x, x)
    torch.manual_seed(2)
    ours = F.dropout(a, **options)
    torch.manual_seed(2)
    assert torch.equal(ours, T.dropout(b, **options)) and not opswap.stats()["kernel"]
    assert (ours is a) == (T.dropout(b, **options) is b)


def test_dtype_that_torch_refuses() -> None:
    with pytest.raises(NotImplementedError, match="ComplexFloat"):
        F.dropout(torch.randn(2000, dtype=torch.complex64))


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_no_probability(p: float) -> None:
    x = torch.randn(2000)
    assert "probability" in str(assert_same_error(lambda: F.dropout(x, p), lambda: T.dropout(x, p), 0))


def test_reference_and_another_way_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2000)
    torch.manual_seed(4)
    expected = T.dropout(x)
    torch.manual_seed(4)
    with opswap.force_reference():
        assert torch.equal(F.dropout(x), expected)
    monkeypatch.setattr(module, "draws_alike", lambda: False)
    torch.manual_seed(4)
    opswap.reset_stats()
    assert torch.equal(F.dropout(x), expected)
    assert opswap.stats()["reference"] == {"dropout": 1}


def test_a_kernel_that_draws_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = module._draw
    for wrong in (
        lambda generator, keep, count: draw(generator, keep, count) ^ 1,
        lambda generator, keep, count: draw(generator.clone_state(), keep, count),
    ):
        monkeypatch.setattr(module, "_draw", wrong)
        assert not module._drew_alike.__wrapped__()


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python does once the main thread has ended, and the system at its limit."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize("dtype", FLOATS)
def test_first_call_while_no_thread_can_be_started(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    module._scale.cache_clear()
    refuse_threads(monkeypatch)
    assert_as_torch(torch.randn(2000).to(dtype), 0.3)


def test_missing_thread_is_no_answer_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    module._drew_alike.cache_clear()
    with monkeypatch.context() as refused:
        refuse_threads(refused)
        assert not module.draws_alike()
        results = []
        for function in (F.dropout, T.dropout):
            torch.manual_seed(4)
            results.append(function(torch.ones(2000)))
        assert torch.equal(*results)
    assert module.draws_alike()


AFTER_THE_MAIN_THREAD = """
import threading
import torch
import opswap

model = opswap.swap(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.Dropout(0.3)).train())
x = torch.randn(4, 3, 32, 32)

def work():
    threading.main_thread().join()
    model(x).sum().backward()
    print("trained", opswap.stats()["kernel"]["dropout"])

threading.Thread(target=work).start()
"""


def test_first_call_after_the_main_thread() -> None:
    assert python(AFTER_THE_MAIN_THREAD) == "trained 2\n"


def test_scale_as_torch_rounds_it() -> None:
    """Probabilities of every size, and those next to where a dtype's range ends."""
    torch.manual_seed(11)
    uniform = torch.rand(1000, dtype=torch.float64)
    small = 10 ** (-16 * torch.rand(1000, dtype=torch.float64))
    edges = [1 / x for x in (65504.0, 65519.0, 65520.0, 65521.0, 65536.0)]
    keeps = {*uniform.tolist(), *(1 - uniform).tolist(), *small.tolist(), *edges, 0.5, 1 - 2**-53, 2**-53}
    for dtype, keep in itertools.product(FLOATS, keeps - {0.0}):
        expected = torch.ones((), dtype=dtype).div_(keep).item()
        assert module._scale.__wrapped__(keep, dtype) == expected, (dtype, keep)


def test_gradients_of_other_layouts() -> None:
    for grad in (torch.ones(()).expand(4, 8, 6, 7), torch.randn(4, 6, 7, 8).permute(0, 3, 1, 2)):
        results = []
        for function in (F.dropout, T.dropout):
            torch.manual_seed(7)
            x = torch.randn(4, 8, 6, 7).requires_grad_()
            function(x).backward(grad)
            results.append(x.grad)
        assert torch.equal(*results)


def test_kept_for_the_backward() -> None:
    x = torch.randn(8000, requires_grad=True)
    assert [t.nbytes for t in saved_by(lambda: F.dropout(x))] == [1000]


def test_under_transforms_and_compilers() -> None:
    x = torch.randn(2000)
    opswap.reset_stats()
    torch.func.vmap(F.dropout, randomness="different")(x.view(2, 1000))
    compiled = torch.compile(lambda t: F.dropout(t, 0.5), backend="eager", fullgraph=True)
    torch.manual_seed(9)
    ours = compiled(x)
    torch.manual_seed(9)
    assert torch.equal(ours, T.dropout(x, 0.5)) and not opswap.stats()["kernel"]


def test_two_threads_draw_each_number_once() -> None:
    """Together they take the numbers that one thread would take."""
    counts: list[int] = []
    torch.manual_seed(10)

    def work() -> None:
        for _ in range(20):
            counts.append(int(F.dropout(torch.ones(5000)).count_nonzero()))

    at_once(work, work)
    state = torch.get_rng_state()
    torch.manual_seed(10)
    alone = [int(T.dropout(torch.ones(5000)).count_nonzero()) for _ in range(40)]
    assert sorted(counts) == sorted(alone) and torch.equal(state, torch.get_rng_state())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_draws_although_a_thread_was_drawing() -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with module._drawing:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(300)
            F.dropout(torch.ones(5000))
            status = 0
        finally:
            os._exit(status)
    release.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_draw_of_another_thread_is_not_lost() -> None:
    """What somebody else draws between reading and writing the state stays drawn, and our numbers come behind."""

    class Shared:
        """A generator that another thread draws from while the kernel works."""

        def __init__(self, draws: int) -> None:
            self.generator = torch.Generator().manual_seed(3)
            self.asked, self.draws = 0, draws

        def get_state(self) -> Tensor:
            self.asked += 1
            if 1 < self.asked <= 1 + self.draws:
                torch.rand(100, generator=self.generator)
            return self.generator.get_state()

        def set_state(self, state: Tensor) -> None:
            self.generator.set_state(state)

    for draws, count in itertools.product((0, 1, 2, 5), (1000, 100_000)):
        shared, expected = Shared(draws), torch.Generator().manual_seed(3)
        mask = torch.empty(count // 8, dtype=torch.uint8)
        _core.draw_mask(shared, 0.5, count, mask)
        for _ in range(draws):
            torch.rand(100, generator=expected)
        alone = torch.empty(count // 8, dtype=torch.uint8)
        _core.draw_mask(expected, 0.5, count, alone)
        assert torch.equal(mask, alone), (draws, count)
        assert torch.equal(shared.generator.get_state(), expected.get_state())


@pytest.mark.parametrize("count", [2_000, 70_000])  # the large draw lets go of the interpreter's lock
def test_a_thread_inside_torch_keeps_its_numbers(count: int) -> None:
    """Another thread draws inside torch, without the interpreter's lock, while the kernel works."""
    numbers: list[Tensor] = []

    class Meanwhile:
        """A generator from which another thread draws between the two readings of its state."""

        def __init__(self) -> None:
            self.generator, self.asked = torch.Generator().manual_seed(11), 0

        def draw(self) -> None:
            numbers.append(torch.rand(40_000, dtype=torch.float64, generator=self.generator))

        def get_state(self) -> Tensor:
            self.asked += 1
            state = before = self.generator.get_state()
            if self.asked == 2:
                thread = threading.Thread(target=self.draw)
                thread.start()
                while torch.equal(state, before):  # waits in get_state() for a draw that has begun
                    state = self.generator.get_state()
                thread.join()
            return state

        def set_state(self, state: Tensor) -> None:
            self.generator.set_state(state)

    shared, mask = Meanwhile(), torch.empty(count // 8, dtype=torch.uint8)
    _core.draw_mask(shared, 0.5, count, mask)
    expected, alone = torch.Generator().manual_seed(11), torch.empty_like(mask)
    assert torch.equal(numbers[0], torch.rand(40_000, dtype=torch.float64, generator=expected))
    _core.draw_mask(expected, 0.5, count, alone)
    assert torch.equal(mask, alone) and torch.equal(shared.generator.get_state(), expected.get_state())


class TestExtension:
    def test_unknown_state(self) -> None:
        class Other:
            def get_state(self) -> Tensor:
                return torch.zeros(16, dtype=torch.uint8)

        with pytest.raises(RuntimeError, match="unknown kind of generator state"):
            _core.draw_mask(Other(), 0.5, 8, torch.empty(1, dtype=torch.uint8))

    def test_masks_that_do_not_fit(self) -> None:
        with pytest.raises(RuntimeError, match="a mask of 2 bytes does not fit 8 bits"):
            _core.draw_mask(torch.Generator(), 0.5, 8, torch.empty(2, dtype=torch.uint8))
        with pytest.raises(ValueError, match=r"expected a probability, got 1\.5"):
            _core.draw_mask(torch.Generator(), 1.5, 8, torch.empty(1, dtype=torch.uint8))
        mask = torch.zeros(1, dtype=torch.uint8)
        for x, y in (
            (torch.ones(9), torch.ones(9)),
            (torch.ones(8), torch.ones(2, 4)),
            (torch.ones(8), torch.ones(8).double()),
            (torch.ones(16)[::2], torch.ones(16)[::2]),
        ):
            with pytest.raises(RuntimeError, match="dense and alike"):
                _core.apply_mask(x, mask, 2.0, y)
        with pytest.raises(NotImplementedError):
            _core.apply_mask(torch.ones(8, dtype=torch.int32), mask, 2.0, torch.ones(8, dtype=torch.int32))


@pytest.mark.usefixtures("every_rule_applies")
class TestSwap:
    def test_bit_equal_training(self) -> None:
        stock = nn.Sequential(
            nn.Linear(64, 96), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 4)
        )
        swapped = opswap.swap(copy.deepcopy(stock), exact=True)
        assert [s.rule for s in opswap.report(swapped).swapped] == ["dropout", "dropout"]
        assert isinstance(swapped[1], nn.Dropout) and swapped.state_dict().keys() == stock.state_dict().keys()
        x = torch.randn(16, 64)
        opswap.reset_stats()
        for model in (stock, swapped):
            torch.manual_seed(11)
            model(x).pow(2).sum().backward()
        for a, b in zip(stock.parameters(), swapped.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        assert opswap.stats()["kernel"]["dropout"] == 4
        assert torch.equal(swapped.eval()(x), stock.eval()(x))
        assert opswap.stats()["kernel"]["dropout"] == 4

    @pytest.mark.parametrize("p", [0.0, 0])
    def test_without_a_probability(self, p: float) -> None:
        """timm's networks are full of them: torch returns the input, at the cost of one call."""
        model = opswap.swap(nn.Sequential(nn.Dropout(p), nn.Identity()))
        assert not opswap.report(model).swapped and "forward" not in vars(model[0])
        x = torch.randn(4000, requires_grad=True)
        assert model(x) is x
        model[0].p = 0.5
        assert int((model(x) == 0).sum()) > 1000

    def test_probability_that_changes(self) -> None:
        layer = opswap.swap(nn.Sequential(nn.Dropout(0.5)))
        layer[0].p = 0.25
        torch.manual_seed(12)
        ours = layer(torch.ones(4000))
        torch.manual_seed(12)
        assert torch.equal(ours, T.dropout(torch.ones(4000), 0.25))
        assert torch.equal(pickle.loads(pickle.dumps(layer))[0](torch.ones(0)), torch.ones(0))

    @pytest.mark.parametrize(
        "call",
        [
            lambda x, training: T.dropout(x, 0.2, training),
            lambda x, training: T.dropout(x, training=training),
            lambda x, training: torch.dropout(x, 0.2, training),
            lambda x, training: torch.dropout(x, p=0.2, train=training),
        ],
    )
    def test_functions(self, call: object) -> None:
        class Net(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return call(x, self.training) * 2

        net, x = Net(), torch.randn(3000)
        swapped = opswap.swap(Net())
        opswap.reset_stats()
        for mode in (True, False):
            torch.manual_seed(13)
            expected = net.train(mode)(x)
            torch.manual_seed(13)
            assert torch.equal(swapped.train(mode)(x), expected)
        assert opswap.stats()["kernel"] == {"dropout": 1}

    def test_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        report = opswap.scan(nn.Sequential(nn.Dropout(0.5, inplace=True)))
        assert not report.swapped and "writes over its input" in str(report)
        monkeypatch.setattr(rule, "draws_alike", lambda: False)
        report = opswap.scan(nn.Sequential(nn.Dropout(0.5)))
        assert not report.swapped and "in another way on this CPU" in str(report)


@pytest.mark.once
@pytest.mark.parametrize(
    "context",
    [
        contextlib.nullcontext,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
        opswap.force_reference,
        torch.no_grad,
    ],
)
@pytest.mark.parametrize("wrong", ["x", None, 3, [1.0]])
def test_what_is_no_tensor(context: Callable[[], Any], wrong: Any) -> None:
    with context(), pytest.raises(TypeError, match="must be Tensor"):
        F.dropout(wrong, 0.3)
