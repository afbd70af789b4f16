# SPDX-License-Identifier: MIT
"""A frozen model runs the kernels of a former call, and notices everything that may change what it computes."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import prune

import opswap
from opswap import _core
from opswap.nn.frozen import FROZEN, Replay
from opswap.swap.replay.recorder import NotRecordedError, record

LAST = torch.channels_last
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies"),
]
FACTOR = 2.0


def scaled(x: Tensor) -> Tensor:
    return x * FACTOR


class Block(nn.Module):
    """ShuffleNetV2's block, and code that reads a global, a constant of the class and an option."""

    SHIFT = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.slope = 0.5
        self.branch = nn.Sequential(
            nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16),
            nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        )  # fmt: skip
        self.tail = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((x, self.branch(x)), 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        x = F.leaky_relu(scaled(x) + self.SHIFT, self.slope)
        return x / x.pow(2).mean() + self.tail(x[:, :, :1, :3]).mean()


def made() -> nn.Module:
    torch.manual_seed(0)
    block = Block()
    for m in block.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean)
            nn.init.uniform_(m.running_var, 0.5, 2)
    return block.to(memory_format=LAST).eval()


def inputs(size: int = 16) -> Tensor:
    return torch.randn(2, 16, size, size).contiguous(memory_format=LAST)


def replaying() -> tuple[nn.Module, nn.Module]:
    """(stock, swapped and frozen with a plan)."""
    stock = made()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    with torch.no_grad():
        for _ in range(4):
            model(inputs())
    assert plans(model) == 1, kept(model).refused
    return stock, model


def kept(model: nn.Module) -> Replay:
    found = vars(model)[FROZEN]
    assert isinstance(found, Replay)
    return found


def plans(model: nn.Module) -> int:
    return len(kept(model).plans)


@torch.no_grad()
def compare(stock: nn.Module, model: nn.Module, x: Tensor | None = None) -> None:
    x = inputs() if x is None else x
    torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)


def runs(model: nn.Module) -> bool:
    """True if a call runs nothing but the plan."""
    calls: list[Any] = []
    plan = next(iter(kept(model).plans.values()), None)
    if plan is None:
        return False
    run = plan.recording.run
    plan.recording.run = lambda *args: (calls.append(1), run(*args))[1]
    with torch.no_grad():
        model(inputs())
    plan.recording.run = run
    return bool(calls)


def test_it_runs_and_counts() -> None:
    stock, model = replaying()
    assert runs(model)
    for _ in range(3):
        compare(stock, model)
    with torch.no_grad():
        opswap.reset_stats()
        model(inputs())
        again = opswap.stats()
        kept(model).plans.clear()
        opswap.reset_stats()
        model(inputs())
    assert again == opswap.stats()
    assert again["kernel"]["conv_chain"] == 1


def test_in_the_inference_mode_too() -> None:
    stock = made()
    with torch.inference_mode():
        model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
        for _ in range(5):
            x = inputs()
            result = model(x)
            torch.testing.assert_close(result, stock(x), rtol=1e-4, atol=1e-4)
            assert result.is_inference()
    assert plans(model) == 1
    compare(stock, model)
    assert runs(model)


def own_forward(m: Any) -> None:
    m.branch[2].forward = lambda x: x - 1


def own_forward_of_the_branch(m: Any) -> None:
    m.branch.forward = lambda x: x - 1


def pre_hook(m: Any) -> None:
    m.branch.register_forward_pre_hook(lambda module, given: (given[0] + 1,))


def hook(m: Any) -> None:
    m.tail.register_forward_hook(lambda module, given, output: output * 2)


def hook_of_the_model(m: Any) -> None:
    m.register_forward_hook(lambda module, given, output: output * 2)


def other_child(m: Any) -> None:
    m.branch[7] = nn.Hardtanh(-0.5, 0.5)


def other_branch(m: Any) -> None:
    m.branch = nn.Sequential(nn.Conv2d(16, 16, 1, bias=False))
    nn.init.constant_(m.branch[0].weight, 0.125)


def no_child(m: Any) -> None:
    del m.branch[7]


def more_children(m: Any) -> None:
    m.branch.append(nn.Tanh())


def other_option(m: Any) -> None:
    m.slope = 0.25


def other_kind_of_option(m: Any) -> None:
    m.slope = 2


def constant_of_the_instance(m: Any) -> None:
    m.SHIFT = 3.0


def other_eps(m: Any) -> None:
    m.branch[1].eps = 0.5


def other_padding(m: Any) -> None:
    m.branch[3].padding = (0, 0)
    m.branch[3].stride = (1, 1)
    m.branch[3].kernel_size = (1, 1)
    m.branch[3].weight = nn.Parameter(m.branch[3].weight[:, :, 1:2, 1:2].detach().clone())


@torch.no_grad()
def written_weight(m: Any) -> None:
    m.branch[0].weight.mul_(2)


@torch.no_grad()
def written_vector(m: Any) -> None:
    m.branch[1].running_mean.add_(1)


def vector_by_data(m: Any) -> None:
    m.branch[4].weight.data *= 3


@torch.no_grad()
def written_linear(m: Any) -> None:
    m.tail.weight.fill_(0.5)


def other_parameter(m: Any) -> None:
    m.tail.weight = nn.Parameter(torch.full((3, 3), 0.25))


def other_memory(m: Any) -> None:
    m.branch[0].weight.data = m.branch[0].weight.data * 2


def other_state(m: Any) -> None:
    m.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in m.state_dict().items()})


def no_bias(m: Any) -> None:
    m.tail.bias = None


def other_class(m: Any) -> None:
    m.branch[2].__class__ = nn.Sigmoid


def one_in_training(m: Any) -> None:
    m.branch[4].momentum = 0.0
    m.branch[4].training = True


def moved_and_back(m: Any) -> None:
    m.double()
    m.float()
    m.slope = 0.125


def parametrized(m: Any) -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    nn.utils.parametrize.register_parametrization(m.branch[0], "weight", Twice())


def fused_step(m: Any) -> None:
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(m.parameters(), 0.5, fused=True).step()


def pruned(m: Any) -> None:
    prune.l1_unstructured(m.branch[5], "weight", 0.5)


CHANGES = [
    own_forward, own_forward_of_the_branch, pre_hook, hook, hook_of_the_model, other_child, other_branch, no_child,
    more_children, other_option, other_kind_of_option, constant_of_the_instance, other_eps, other_padding,
    written_weight, written_vector, vector_by_data, written_linear, other_parameter, other_memory, other_state, no_bias,
    other_class, one_in_training, moved_and_back, parametrized, fused_step, pruned,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_is_noticed(change: Callable[[Any], None]) -> None:
    stock, model = replaying()
    change(stock)
    change(model)
    for _ in range(6):  # also once there is another plan
        compare(stock, model)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_that_is_taken_back(change: Callable[[Any], None]) -> None:
    """The plan of a model is not the plan of its changed copy."""
    stock, model = replaying()
    copies = copy.deepcopy((stock, model))
    for m in copies:
        change(m)
    for _ in range(4):
        compare(*copies)
        compare(stock, model)
    assert runs(model)


def other_global(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 3.0)


def other_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "scaled", lambda x: x - 1)


def other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled, "__code__", (lambda x: x + 7).__code__)


def other_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "SHIFT", -1.0)


def other_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "forward", lambda self, x: x + 1)


def other_forward_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x + 1)


def other_function_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "leaky_relu", lambda x, slope: x)


@pytest.mark.parametrize(
    "change",
    [other_global, other_function, other_code, other_constant, other_forward, other_forward_of_torch,
     other_function_of_torch],
)  # fmt: skip
def test_a_change_elsewhere(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, model = replaying()
    change(monkeypatch)
    for _ in range(6):
        compare(stock, model)
    monkeypatch.undo()
    for _ in range(6):
        compare(stock, model)


def test_a_hook_for_all_modules() -> None:
    stock, model = replaying()
    handle = register_module_forward_pre_hook(
        lambda m, given: (given[0] + 1,) if type(m) is nn.ReLU else None
    )
    try:
        compare(stock, model)
    finally:
        handle.remove()
    compare(stock, model)


def odd_inputs() -> Iterator[Tensor]:
    x = inputs()
    yield x.contiguous()
    yield x[:1]
    yield inputs(12)
    yield inputs(9)[:, :, 1:]
    yield torch.randn(2, 1, 8, 8).expand(2, 16, 8, 8)
    yield x.flip(3)
    yield torch.randn(2, 16, 8, 8, dtype=torch.complex64).imag
    yield torch._neg_view(x)
    yield nn.Parameter(x)
    yield torch.full_like(x, float("nan"))
    yield x[:0]


def test_other_inputs() -> None:
    stock, model = replaying()
    for x in odd_inputs():
        for _ in range(5):
            with torch.no_grad():
                torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4, equal_nan=True)
        compare(stock, model)
    assert plans(model) <= 8


def test_wrong_inputs_raise_as_before() -> None:
    stock, model = replaying()
    for x in (inputs().double(), torch.randn(2, 15, 8, 8), inputs().int(), torch.randn(32, 8)):
        for _ in range(5):
            with torch.no_grad(), pytest.raises((RuntimeError, ValueError)):
                stock(x)
            with torch.no_grad(), pytest.raises((RuntimeError, ValueError)):
                model(x)


def test_contexts() -> None:
    stock, model = replaying()
    x = inputs()
    with torch.no_grad():
        torch.testing.assert_close(model(x=x), stock(x=x), rtol=1e-4, atol=1e-4)
        assert runs(model)
        with opswap.disabled():
            opswap.reset_stats()
            model(x)
        assert not opswap.stats()["kernel"]
        assert runs(model)
        with opswap.layout.check(model) as report:
            model(x)
        assert report.sites is not None
        mapped = torch.func.vmap(model)(x[None]), stock(x)[None]
        torch.testing.assert_close(*mapped, rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == stock(x).dtype
    assert "ran" in str(opswap.explain(model, x))
    wanted = model(x.requires_grad_()), stock(x)
    torch.testing.assert_close(*wanted, rtol=1e-4, atol=1e-4)
    assert wanted[0].requires_grad
    traced = torch.jit.trace(model, inputs(), check_trace=False)
    compare(stock, traced)
    for _ in range(8):  # the graph has dropped the folded weights
        compare(stock, model)
    assert runs(model)


def test_a_functional_call_with_other_parameters() -> None:
    stock, model = replaying()
    other = {name: p.detach() * 0.5 for name, p in model.named_parameters()}
    with torch.no_grad():
        x = inputs()
        for _ in range(3):
            results = [torch.func.functional_call(m, other, (x,)) for m in (model, stock)]
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
            compare(stock, model)


def test_in_training_and_back() -> None:
    stock, model = replaying()
    for _ in range(2):
        x = inputs()
        for m in (stock, model):
            m.train()
            optimizer = torch.optim.SGD(m.parameters(), 0.01)
            m(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            m.eval()
        for _ in range(4):
            compare(stock, model)


def test_copies_and_pickles_make_plans_of_their_own() -> None:
    stock, model = replaying()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        for _ in range(10):
            compare(stock, other)
        compare(stock, model)


def test_unfreeze_and_unswap() -> None:
    stock, model = replaying()
    opswap.unfreeze(model)
    assert FROZEN not in vars(model)
    compare(stock, model)
    opswap.freeze(model)
    for _ in range(4):
        compare(stock, model)
    assert runs(model)
    opswap.unswap(model)
    compare(stock, model)
    opswap.swap(model)
    for _ in range(8):
        compare(stock, model)


def test_nothing_is_kept_alive() -> None:
    _, model = replaying()
    refs = [weakref.ref(m) for m in model.modules()] + [weakref.ref(p) for p in model.parameters()]
    gc.collect()
    gc.disable()
    try:
        del model
        assert [r() for r in refs if r() is not None] == []
    finally:
        gc.enable()


def test_in_many_threads() -> None:
    stock, model = replaying()
    wrong: list[Any] = []

    def call(seed: int) -> None:
        x = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(seed)).contiguous(
            memory_format=LAST
        )
        for _ in range(20):
            try:
                compare(stock, model, x[: 1 + seed % 2])
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_model_that_changes_all_the_time() -> None:
    """It is recorded ever more seldom."""
    stock, model = replaying()
    for i in range(60):
        stock.slope = model.slope = 0.1 + i
        compare(stock, model)
        compare(stock, model)
    assert 8 <= kept(model).due < 200
    assert "original forward" in kept(model).refused  # the slope is part of the new one
    stock.slope = model.slope = 0.5
    for _ in range(kept(model).due + 70):  # then a plan runs often enough to have been worth it
        compare(stock, model)
    assert runs(model)
    stock.branch[1].eps = model.branch[1].eps = 0.1
    for _ in range(6):
        compare(stock, model)
    assert runs(model)


# --- what cannot be recorded -----------------------------------------------------------------------------------------


class Holder(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function


def noisy(x: Tensor) -> Tensor:
    return x + torch.randn(1)


def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5)


def written(x: Tensor) -> Tensor:
    return torch.relu_(x * 1)


def written_view(x: Tensor) -> Tensor:
    y = x * 1
    y[0] = 1
    return y


def written_by_name(x: Tensor) -> Tensor:
    return F.relu(x * 1, inplace=True)


def added_in_place(x: Tensor) -> Tensor:
    y = x * 1
    y += 1
    return y


def written_out(x: Tensor) -> Tensor:
    return torch.add(x, 1, out=torch.ones_like(x))


def branching(x: Tensor) -> Tensor:
    return x if x.mean() > 0 else -x


def reading(x: Tensor) -> Tensor:
    return x * x.max().item()


def listing(x: Tensor) -> Tensor:
    return x * len(x.flatten().tolist())


def uninitialised(x: Tensor) -> Tensor:
    return torch.empty_like(x) * 0 + x


def elsewhere(x: Tensor) -> Tensor:
    return x + HIDDEN


def number(x: Tensor) -> tuple[Tensor, object]:
    return x, object()


HIDDEN = torch.ones(1)


@pytest.mark.parametrize(
    "function",
    [noisy, dropped, written, written_view, written_by_name, added_in_place, written_out, branching, reading, listing,
     uninitialised, elsewhere, number],
)  # fmt: skip
def test_what_is_not_recorded(function: Callable[[Tensor], Any]) -> None:
    with pytest.raises(NotRecordedError):
        record(function, (torch.ones(2, 3),), Holder(function))
    assert not _core.recording()


def parts(x: Tensor) -> Any:
    a, b = x.split([1, 2], 1)
    return [a + x.shape[0], (b.t().contiguous(), x)]


def module_of_functions(x: Tensor) -> Tensor:
    y = opswap.functional.max_pool2d(x[None], 2)
    return F.pad(y, (1, 1)).sum(dim=(1, 2), keepdim=True, dtype=torch.float64)


@pytest.mark.parametrize("function", [parts, module_of_functions, scaled])
def test_what_is_recorded(function: Callable[[Tensor], Any]) -> None:
    recording = record(
        function,
        (torch.randn(2, 3, 4)[:, :, 0] if function is parts else torch.randn(2, 4, 4),),
        nn.Identity(),
    )
    x = torch.randn(2, 3) if function is parts else torch.randn(2, 4, 4)
    torch.testing.assert_close(recording.run(x), function(x), rtol=0, atol=0)


class Followed(nn.Module):
    """Its forward cannot be followed, so that the code in it may do anything."""

    def __init__(self) -> None:
        super().__init__()
        self.block = made()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.block(x) + self.calls


def test_forwards_that_are_not_rewritten_run() -> None:
    stock = nn.Sequential(Followed()).eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    for _ in range(8):
        compare(stock, model)
    assert plans(model[0].block) == 1
    assert not kept(model).plans
    assert not kept(model[0]).plans


class Counting(nn.Sequential):
    """Its forward is torch's, but a call does more."""

    calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return super().__call__(*args)


class Drifting(nn.Hardtanh):
    """Its forward is torch's, but a bound is made of what the class has seen."""

    reads = 0

    @property
    def max_val(self) -> float:
        Drifting.reads += 1
        return 0.1 * Drifting.reads

    @max_val.setter
    def max_val(self, value: float) -> None:
        pass


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale if self.scale.requires_grad else x


class OfOther(nn.Module):
    """A block whose branch ends with another module."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.block = made()
        self.block.branch.append(other)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


@pytest.mark.parametrize("other", [Counting, Drifting, Asking, Followed])
def test_modules_that_do_more_than_they_say(other: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    stock = OfOther(nn.Identity() if other is Followed else other()).to(memory_format=LAST).eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    Drifting.reads = 0
    for i in range(6):
        x = inputs()
        results = []
        for m in (stock, model):
            Drifting.reads = i
            with torch.no_grad():
                results.append(m(x))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    if other is Counting:
        assert model.block.branch[-1].calls == 6
    if other is Asking:
        for m in (stock, model):
            m.block.branch[-1].scale.requires_grad_(False).fill_(2)
        compare(stock, model)


def test_a_module_below_itself() -> None:
    stock, _ = replaying()
    stock.tail.parent = nn.Sequential()
    stock.tail.parent.append(stock)
    with torch.no_grad():
        model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
        for _ in range(5):
            compare(stock, model)


def test_errors_of_record_calls() -> None:
    for wrong in ((), (1,), ((),), ([], [])):
        with pytest.raises(TypeError):
            _core.record_calls(*wrong)
    assert not _core.recording()
