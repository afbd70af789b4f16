# SPDX-License-Identifier: MIT
"""opswap.optimize: its parts, how it is undone, optimizers, dtypes, errors; and swaps of copies."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import pickle
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap._torch import tree_leaves
from opswap.memory import switches
from opswap.swap.runtime.plan_of import plan_of

X = torch.randn(2, 3, 12, 12, device="cpu")
LAST = torch.channels_last
optimizing = sys.modules["opswap.swap.optimize"]  # `opswap.swap` is a function, and so is `optimize`


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.again = self.body[1]
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.again(self.body(x))).flatten(1))


class Views(nn.Module):
    """Runs in the contiguous format only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return y.view(y.shape[0], -1)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor = X) -> Tensor:
    optimizer.zero_grad()
    output = model(x)
    output.square().mean().backward()
    optimizer.step()
    return output.detach()


def part(model: nn.Module, name: str) -> Any:
    return next(p for p in opswap.report(model).parts if p.name == name)


def same_state(model: nn.Module, before: dict[str, Tensor], strides: bool = True) -> bool:
    now = model.state_dict()
    same = all(
        torch.equal(now[k], t) and (now[k].stride() == t.stride() or not strides) for k, t in before.items()
    )
    return same and now.keys() == before.keys()


def is_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=LAST) and not tensor.is_contiguous()


@pytest.fixture(autouse=True)
def _switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys.modules["opswap.swap.step_time"], "_MOST_ROUNDS", 2)
    yield
    with contextlib.suppress(RuntimeError):
        opswap.memory.flush_denormals(False)
    if switches.reuses_freed():
        opswap.memory.reuse_freed(False)


@pytest.fixture
def flushes() -> bool:
    with switches.flush_state_kept() as works:
        return works


def test_all_parts() -> None:
    model = Net()
    assert opswap.optimize(model, example_inputs=(X,)) is model
    report = opswap.report(model)
    assert [p.name for p in report.parts] == ["memory", "denormals", "swap", "memory format"]
    assert "batch_norm_act_max_pool" in {s.rule for s in report.swapped}
    swap = part(model, "swap")
    assert swap.done and swap.before > 0 and swap.after > 0
    formatted = part(model, "memory format")
    assert formatted.before == swap.after and formatted.after > 0
    assert not part(model, "denormals").done
    assert "ms before" in str(report)
    assert [p["name"] for p in json.loads(report.to_json())["parts"]] == [p.name for p in report.parts]


def test_without_inputs_nothing_is_measured_and_the_rule_is_named() -> None:
    model = opswap.optimize(Net())
    assert all(p.before is p.after is None for p in opswap.report(model).parts)
    assert opswap.report(model).memory_format == "channels_last"
    assert "by rule" in part(model, "memory format").detail
    assert is_last(model.body[0].weight)


def test_by_rule_code_that_needs_contiguous_tensors_keeps_the_format() -> None:
    model = opswap.optimize(Views())
    assert opswap.report(model).memory_format == ""
    assert "contiguous" in part(model, "memory format").detail
    model(X)


def test_by_rule_a_model_without_images_keeps_the_format() -> None:
    model = opswap.optimize(nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)))
    assert part(model, "memory format").detail == "no 2-D convolutions"


@pytest.mark.parametrize(
    "layer", [nn.LazyConv2d(4, 3), nn.Sequential(nn.Conv2d(3, 4, 3), nn.LazyBatchNorm2d())]
)
def test_uninitialised_parameters_keep_the_format(layer: nn.Module) -> None:
    """They have no sizes yet."""
    model = opswap.optimize(nn.Sequential(layer, nn.ReLU()))
    assert part(model, "memory format").detail == "uninitialised parameters"
    model(X).sum().backward()


@pytest.mark.parametrize("inputs", [None, (X,)])
def test_lbfgs_keeps_the_format(inputs: tuple[Any, ...] | None) -> None:
    """It views gradients as vectors, which those in channels_last cannot be."""
    model = Net()
    model, optimizer = opswap.optimize(model, torch.optim.LBFGS(model.parameters()), example_inputs=inputs)
    assert "LBFGS" in part(model, "memory format").detail and not is_last(model.body[0].weight)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def test_a_format_in_which_the_model_fails_is_not_used() -> None:
    model = opswap.optimize(Views(), example_inputs=(X,))
    assert "does not run in channels_last" in part(model, "memory format").detail
    model(X).sum().backward()


@pytest.mark.parametrize(("slower", "wins"), [("swapped", True), ("formatted", False)])
def test_the_faster_format_is_used(slower: str, wins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizing, "in_turn", lambda steps: {n: 2.0 if n == slower else 1.0 for n in steps})
    model = opswap.optimize(Net(), example_inputs=(X,))
    assert part(model, "memory format").done is wins
    assert is_last(model.body[0].weight) is wins


def test_parts_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(optimizing, "reuse_freed", called.append)
    monkeypatch.setattr(optimizing, "set_flushing", called.append)
    model = opswap.optimize(Net(), memory_format=None, reuse_memory=False, flush_denormals=False)
    assert not called
    assert [p.done for p in opswap.report(model).parts] == [False, False, True, False]


@pytest.mark.parametrize(
    ("left_out", "name"),
    [
        ({"memory_format": None}, "memory format"),
        ({"reuse_memory": False}, "memory"),
        ({"flush_denormals": False}, "denormals"),
    ],
)
def test_each_part_can_be_left_out_alone(
    left_out: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(optimizing, "reuse_freed", lambda enabled: called.append("memory"))
    monkeypatch.setattr(optimizing, "set_flushing", lambda enabled: called.append("denormals"))
    model = Net()
    with torch.no_grad():
        model.head.weight[0] = 1e-40
    opswap.optimize(model, **left_out)
    assert [p.name for p in opswap.report(model).parts if not p.done] == [name]
    assert sorted(called) == sorted({"memory", "denormals"} - {name})
    assert is_last(model.body[0].weight) == (name != "memory format")


def test_a_given_format() -> None:
    model = opswap.optimize(Views(), memory_format=torch.contiguous_format)
    assert part(model, "memory format").detail == "contiguous_format, as given"


def test_memory_is_reused_where_the_library_can() -> None:
    model = opswap.optimize(Net())
    assert part(model, "memory").done is switches.reuses_freed()


def test_a_library_without_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(enabled: bool) -> None:
        raise RuntimeError("reuse_freed: no mallopt")

    monkeypatch.setattr(optimizing, "reuse_freed", refuse)
    model = opswap.optimize(Net(), example_inputs=(X,))
    assert not part(model, "memory").done
    assert part(model, "memory").detail == "the C library has no mallopt"


def test_denormals_are_flushed_if_the_model_has_them(flushes: bool) -> None:
    tiny = torch.tensor([1e-40])
    model = Net()
    opswap.optimize(model, example_inputs=(X,))
    assert not part(model, "denormals").done
    assert (tiny * 0.5).view(torch.int32).item() != 0
    with torch.no_grad():
        model.head.weight[0] = 1e-40
    opswap.optimize(model, example_inputs=(X,))
    found = part(model, "denormals")
    assert found.done is flushes
    assert "8 numbers" in found.detail or not flushes
    assert not flushes or ((tiny * 0.5).view(torch.int32).item() == 0 and found.before > 0)
    if flushes:  # undone by one call
        opswap.memory.flush_denormals(False)
        assert (tiny * 0.5).view(torch.int32).item() != 0


def test_switches_are_as_before_if_it_raises(flushes: bool) -> None:
    model = Net()
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.head.weight[0] = 1e-40
    with pytest.raises(ValueError, match="example_inputs"):
        opswap.optimize(model, example_inputs=(torch.randn(2, 5, 12, 12),))
    assert not switches.reuses_freed()
    assert (torch.tensor([1e-40]) * 0.5).view(torch.int32).item() != 0
    assert not opswap.report(model).swapped
    assert before.keys() == model.state_dict().keys()


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("make", [sgd, lambda m: torch.optim.Adam(m.parameters())], ids=["sgd", "adam"])
def test_an_optimizer_follows(make: Any, dtype: torch.dtype | None) -> None:
    model = Net()
    optimizer = make(model)
    train(model, optimizer)
    parameters = list(model.parameters())
    steps = [copy.deepcopy(s.get("step")) for s in optimizer.state.values()]
    made = opswap.optimize(model, optimizer, dtype=dtype, memory_format=LAST)
    assert made[0] is model and made[1] is optimizer
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    for p in model.parameters():
        assert p.dtype == (dtype or torch.float32)
        for key, value in optimizer.state[p].items():
            if key != "step" and isinstance(value, Tensor):
                assert value.dtype == p.dtype and value.stride() == p.stride() and not value.requires_grad
    after = [s.get("step") for s in optimizer.state.values()]
    assert all(
        a == b and getattr(a, "dtype", 0) == getattr(b, "dtype", 0) for a, b in zip(after, steps, strict=True)
    )
    before = model.head.weight.detach().clone()
    train(model, optimizer, X.to(dtype or torch.float32))
    assert not torch.equal(before, model.head.weight)


OTHER_SHAPES: dict[str, Any] = {
    "adafactor": (torch.optim.Adafactor, {}),  # rows and columns
    "lbfgs": (torch.optim.LBFGS, {"lr": 0.1, "max_iter": 3}),  # vectors, lists of vectors
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_state_of_other_shapes_gets_the_dtype(name: str, dtype: torch.dtype) -> None:
    kind, options = OTHER_SHAPES[name]
    model = nn.Sequential(nn.Linear(5, 1), nn.Tanh(), nn.Linear(1, 4))
    optimizer, x = kind(model.parameters(), **options), torch.randn(6, 5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x.to(model[0].weight.dtype)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    before = copy.deepcopy(optimizer.state_dict()["state"])
    opswap.optimize(model, optimizer, dtype=dtype)
    for i, state in optimizer.state_dict()["state"].items():
        assert state.keys() == before[i].keys()
        for key, old in before[i].items():
            new = tree_leaves(state[key])
            for a, b in zip(new, tree_leaves(old), strict=True):
                if isinstance(b, Tensor) and b.dim():
                    assert a.dtype == dtype and a.stride() == b.stride() and torch.equal(a, b.to(dtype))
                else:
                    assert a == b and getattr(a, "dtype", 0) == getattr(b, "dtype", 0)
    optimizer.step(closure)
    assert all(p.dtype == dtype and p.isfinite().all() for p in model.parameters())


def test_state_of_other_shapes_keeps_its_dtype_without_one() -> None:
    """An optimizer may keep float32 factors for parameters in 16 bits."""
    model = nn.Sequential(nn.Linear(5, 3).bfloat16())
    optimizer = sgd(model)
    optimizer.state[model[0].weight]["row"] = torch.ones(3)
    opswap.optimize(model, optimizer)
    assert optimizer.state[model[0].weight]["row"].dtype == torch.float32


def test_training_goes_on_as_without_it() -> None:
    torch.manual_seed(0)
    stock = Net()
    model = copy.deepcopy(stock)
    theirs, ours = sgd(stock), sgd(model)
    for optimizer, net in ((theirs, stock), (ours, model)):
        train(net, optimizer)
    opswap.optimize(model, ours)
    for _ in range(3):
        torch.testing.assert_close(train(model, ours), train(stock, theirs), rtol=1e-4, atol=1e-4)


FUSED = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True, fused=True),
}


def nearly(model: nn.Module, stock: nn.Module) -> bool:
    pairs = zip(model.parameters(), stock.parameters(), strict=True)
    return all(torch.allclose(p, q, rtol=1e-9, atol=1e-9) for p, q in pairs)


@pytest.mark.parametrize(
    "undo", [opswap.unswap, lambda m: opswap.swap(m, memory_format=torch.contiguous_format)]
)
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", FUSED)
def test_fused_optimizers_go_on_after_unswap(name: str, trained: bool, undo: Any) -> None:
    """They read the parameter and its state in the order of memory."""
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 8, 3)).double()
    model, x = copy.deepcopy(stock), X.double()
    theirs, ours = FUSED[name](stock.parameters()), FUSED[name](model.parameters())
    pairs = ((stock, theirs), (model, ours))
    if trained:
        for net, optimizer in pairs:
            train(net, optimizer, x)
    opswap.optimize(model, ours, memory_format=LAST)
    for change in (lambda m: m, undo):
        change(model)
        for net, optimizer in pairs:
            train(net, optimizer, x)
        assert nearly(model, stock)
    assert model[3].weight.is_contiguous()
    for p in model.parameters():
        assert all(v.stride() == p.stride() for v in ours.state[p].values() if v.shape == p.shape)


def test_the_optimizer_is_neither_kept_alive_nor_saved() -> None:
    model = Net()
    optimizer = sgd(model)
    train(model, optimizer)
    opswap.optimize(model, optimizer, memory_format=LAST)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        opswap.unswap(twin)
        assert twin.body[0].weight.is_contiguous()
    state, gone = optimizer.state[model.body[0].weight], weakref.ref(optimizer)
    assert is_last(state["momentum_buffer"])
    del optimizer
    gc.collect()
    assert gone() is None
    opswap.unswap(model)
    assert model.body[0].weight.is_contiguous() and is_last(state["momentum_buffer"])


def test_it_is_undone_by_unswap() -> None:
    model = Net()
    state, kinds = copy.deepcopy(model.state_dict()), [type(m) for m in model.modules()]
    opswap.optimize(model, example_inputs=(X,))
    opswap.unswap(model)
    if switches.reuses_freed():
        opswap.memory.reuse_freed(False)
    assert not switches.reuses_freed()
    assert [type(m) for m in model.modules()] == kinds
    assert same_state(model, state)
    assert not opswap.report(model).parts
    assert not any("opswap" in key for m in model.modules() for key in vars(m))


def test_the_report_goes_with_copies_and_ends_with_another_swap() -> None:
    model = opswap.optimize(Net())
    assert opswap.report(copy.deepcopy(model)).parts == opswap.report(model).parts
    assert not opswap.report(model.body).parts
    opswap.swap(model, exact=True)
    assert not opswap.report(model).parts


def test_a_model_in_eval_is_measured_in_inference() -> None:
    model = Net().eval()
    before = copy.deepcopy(model.state_dict())
    opswap.optimize(model, example_inputs=(X,))
    assert not model.training
    assert same_state(model, before, strides=False)


@pytest.mark.parametrize("net", [Net, Views])
def test_measuring_leaves_no_trace(net: type[nn.Module]) -> None:
    model, calls = nn.Sequential(nn.Dropout(0.3), net()), []
    model[1].register_forward_hook(lambda *_: calls.append(1))
    state = torch.random.get_rng_state()
    before = copy.deepcopy(model.state_dict())
    opswap.optimize(model, example_inputs=(X,))
    assert not calls
    assert torch.equal(state, torch.random.get_rng_state())
    assert same_state(model, before, strides=False)
    assert all(p.grad is None for p in model.parameters()) and X.grad is None


@pytest.mark.parametrize("training", [True, False])
def test_inputs_that_the_forward_writes_to_stay_as_they_are(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, seen = optimizing.step, []

    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.norm(self.conv(x.mul_(2.0))))

    def recorded(model: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0].max().item())
        step(model, inputs)

    monkeypatch.setattr(optimizing, "step", recorded)
    x = torch.ones(2, 3, 64, 64)
    opswap.optimize(Doubling().train(training), example_inputs=(x,))
    assert x.unique().tolist() == [1.0] and x._version == 0
    assert max(seen) < 2.0**100  # copies of each round, so that values do not grow


def test_a_copy_of_model_and_optimizer() -> None:
    model = Net()
    optimizer = sgd(model)
    train(model, optimizer)
    twin, other = opswap.optimize(model, optimizer, inplace=False, dtype=torch.float64)
    assert opswap.report(model).note and not opswap.report(twin).note
    assert model.head.weight.dtype == torch.float32
    assert {id(p) for g in other.param_groups for p in g["params"]} == {id(p) for p in twin.parameters()}
    before = copy.deepcopy(model.state_dict())
    train(twin, other, X.double())
    assert same_state(model, before, strides=False)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("net",), TypeError, "torch.nn.Module"),
        ((Net(), "adam"), TypeError, "optimizer must be"),
        ((Net(), sgd(Net())), ValueError, "belongs to the model"),
        ((Net(), None, {"dtype": "float32"}), TypeError, "dtype must be a torch.dtype"),
        ((Net(), None, {"dtype": torch.int32}), ValueError, "floating point"),
        ((Net(), None, {"example_inputs": X}), TypeError, "example_inputs must be a tuple"),
        ((Net(), None, {"memory_format": "best"}), TypeError, "memory_format"),
        ((Net(), None, {"memory_format": torch.preserve_format}), ValueError, "memory_format"),
        ((Net(), None, {"reuse_memory": 1}), TypeError, "reuse_memory must be a bool"),
        ((Net(), None, {"flush_denormals": "yes"}), TypeError, "flush_denormals must be a bool"),
        ((Net(), None, {"exact": None}), TypeError, "exact must be a bool"),
        ((Net(), None, {"inplace": 0}), TypeError, "inplace must be a bool"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], error: type[Exception], match: str) -> None:
    *positional, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(error, match=match):
        opswap.optimize(*positional, **options)


# --- swaps of copies ---------------------------------------------------------------------------------------------


def test_a_swapped_copy_has_its_own_parameters_and_the_same_hooks() -> None:
    model, calls = Net(), []
    model.body[0].register_forward_hook(lambda *_: calls.append(1))
    state = copy.deepcopy(model.state_dict())
    twin = opswap.swap(model, inplace=False, memory_format=LAST)
    assert twin is not model and twin.again is twin.body[1]
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
    assert opswap.report(twin).swapped and not opswap.report(model).swapped
    assert not any("opswap" in key for m in model.modules() for key in vars(m))
    assert same_state(model, state)
    twin.eval()(X)
    assert calls == [1]
    torch.testing.assert_close(model.eval()(X), opswap.unswap(twin).eval()(X), rtol=1e-3, atol=1e-3)


def test_a_copy_that_cannot_be_swapped_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="nothing to replace"):
        opswap.swap(model, inplace=False, strict=True)
    assert plan_of(model) is None
    with pytest.raises(TypeError):
        opswap.swap("net", inplace=False)


def test_unswap_of_a_copy() -> None:
    model = opswap.swap(Net())
    stock = opswap.unswap(model, inplace=False)
    assert opswap.report(model).swapped and not opswap.report(stock).swapped
    torch.testing.assert_close(stock.eval()(X), model.eval()(X))
