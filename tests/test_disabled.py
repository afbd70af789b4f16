# SPDX-License-Identifier: MIT
"""opswap.disabled(): torch's own code runs, in one thread, and the forward decides for the backward."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import opswap
import opswap.functional as F
from counted import kernels
from functional_cases import FUNCTIONS, Case, modules
from opswap.ops import _switch
from threads import elsewhere

X = (2, 8, 12, 12)


def make_net(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    net = nn.Sequential(body, nn.ChannelShuffle(2), nn.MaxPool2d(2), nn.BatchNorm2d(8))
    return opswap.swap(net, **options)


@pytest.fixture(autouse=True)
def _counts() -> Iterator[None]:
    opswap.reset_stats()
    yield
    assert not _switch.active and not _switch._own.tasks


def of_torch(output: Tensor) -> bool:
    """True if no node of the graph is a Function of Python."""
    found, waiting = [], [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and not any(node is f for f in found):
            found.append(node)
            waiting += [n for n, _ in node.next_functions]
    return not any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in found)


@pytest.mark.parametrize("case", [*FUNCTIONS, *modules()], ids=repr)
def test_functions_and_modules_run_torchs_operators(case: Case) -> None:
    inputs = case.inputs()
    inputs[0].requires_grad_()
    with opswap.disabled():
        output = case.ours(*inputs)
    outputs = output if isinstance(output, tuple) else (output,)
    assert kernels() == 0
    assert all(of_torch(y) for y in outputs if isinstance(y, Tensor))
    expected = case.stock(*inputs)
    for a, b in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b)


def test_a_swapped_model_runs_its_original_forwards() -> None:
    net = make_net(memory_format=torch.channels_last)
    stock, x = opswap.unswap(copy.deepcopy(net)), torch.randn(X)
    with opswap.disabled():
        output = net(x)
    assert kernels() == 0
    assert sum(opswap.stats()["original"].values()) > 0
    assert of_torch(output)
    torch.testing.assert_close(output, stock(x))
    net(x)
    assert kernels() > 0


def test_it_nests_and_can_be_used_again() -> None:
    net, x, off = make_net(), torch.randn(X), opswap.disabled()
    with off, off:
        with opswap.disabled():
            net(x)
        net(x)
    assert kernels() == 0
    with off:
        net(x)
    assert kernels() == 0
    net(x)
    assert kernels() > 0


def test_an_exception_leaves_it() -> None:
    net, x = make_net(), torch.randn(X)
    with pytest.raises(ZeroDivisionError), opswap.disabled():
        1 // 0  # noqa: B018
    net(x)
    assert kernels() > 0


def test_a_decorator() -> None:
    net, x = make_net(), torch.randn(X)

    @opswap.disabled()
    def evaluate(depth: int) -> Tensor:
        """What it does."""
        return net(x) if depth == 0 else evaluate(depth - 1)

    evaluate(3)
    assert kernels() == 0
    assert evaluate.__doc__ == "What it does."
    net(x)
    assert kernels() > 0


def test_it_decorates_no_generators_and_coroutines() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def wait() -> None: ...

    async def both() -> Any:
        yield 1

    for function in (numbers, wait, both):
        with pytest.raises(TypeError, match=f"disabled: .*{function.__name__}"):
            opswap.disabled()(function)


def test_other_threads_are_not_affected() -> None:
    net, x = make_net(), torch.randn(X)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> int:
        with opswap.disabled():
            entered.set()
            leave.wait()
            net(x)
        return kernels()

    with opswap.disabled():
        elsewhere(lambda: net(x))
        count = kernels()
        assert count > 0
    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    net(x)
    assert kernels() == 2 * count
    leave.set()
    thread.join()
    assert kernels() == 2 * count


def test_a_context_may_be_left_by_another_thread() -> None:
    off = opswap.disabled()
    off.__enter__()
    elsewhere(lambda: off.__exit__(None, None, None))


def test_the_forward_decides_for_the_backward() -> None:
    net, x = make_net(), torch.randn(X)
    output = net(x)
    opswap.reset_stats()
    with opswap.disabled():
        output.sum().backward()
    assert kernels() > 0
    with opswap.disabled():
        output = net(x)
    opswap.reset_stats()
    output.sum().backward()
    assert kernels() == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_of_a_checkpointed_function_it_holds_in_the_backward_too(reentrant: bool) -> None:
    net, x = make_net(), torch.randn(X, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        with opswap.disabled():
            return net(x)

    checkpoint(run, x, use_reentrant=reentrant).sum().backward()
    assert kernels() == 0


def test_force_reference_reaches_all_threads_as_before() -> None:
    with opswap.force_reference():
        elsewhere(lambda: F.max_pool2d(torch.randn(X), 2))
    assert kernels() == 0


class Items(Dataset):
    """A dataset whose items show whether kernels run in the process that makes them."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        before = kernels()
        F.max_pool2d(torch.ones(X), 2)
        return kernels() - before


@pytest.mark.parametrize(("start", "count"), [("fork", 0), ("spawn", 1)])
def test_workers_of_a_loader(start: str, count: int) -> None:
    with opswap.disabled():
        loader = DataLoader(Items(), batch_size=2, num_workers=1, multiprocessing_context=start)
        assert next(iter(loader)).tolist() == [count, count]
    assert next(iter(DataLoader(Items(), batch_size=2))).tolist() == [1, 1]


def test_compiled_models_are_guarded_by_thread() -> None:
    net, x = make_net(memory_format=torch.channels_last).eval(), torch.randn(X)
    compiled = torch.compile(net, backend="eager", fullgraph=True)

    def count() -> int:
        opswap.reset_stats()
        with torch.no_grad():
            compiled(x)
        return kernels()

    used = count()
    assert used > 0
    with opswap.disabled():
        assert count() == 0
        assert elsewhere(count) == used
        assert count() == 0
    assert count() == used


def test_a_context_inside_of_compiled_code() -> None:
    net, x = make_net().eval(), torch.randn(X)

    @torch.compile(backend="eager")
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        with opswap.disabled():
            stock = net(x)
        return stock, net(x)

    with torch.no_grad():
        stock, swapped = run(x)
        opswap.reset_stats()
        run(x)
        used = opswap.stats()["kernel"]
        opswap.reset_stats()
        net(x)
        torch.testing.assert_close(stock, swapped)
    assert sum(used.values()) == kernels()


def test_explain_and_the_log_name_it(caplog: pytest.LogCaptureFixture) -> None:
    net, x = make_net(), torch.randn(X)
    with opswap.disabled():
        assert "opswap.disabled() is in force" in str(opswap.explain(net, x))
    with caplog.at_level(logging.INFO, "opswap"), opswap.disabled():
        net(x)
    assert not caplog.records


def test_nothing_of_it_is_copied_with_the_model() -> None:
    with opswap.disabled():
        twin = copy.deepcopy(make_net())
    twin(torch.randn(X))
    assert kernels() > 0
