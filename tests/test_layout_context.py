# SPDX-License-Identifier: MIT
"""The layout checker among contexts, threads, graphs, compilers and processes; what it costs in memory."""

from __future__ import annotations

import gc
import json
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, is_in_torch_dispatch_mode
from torch.utils.checkpoint import checkpoint

from layout_models import conv, in_channels_last, line_of, only, step
from opswap.layout import LayoutError, check
from opswap.models import ShuffleNetV2
from processes import run_in_processes
from step import assert_equal, outputs_and_gradients
from threads import at_once


class Lossy(nn.Module):
    """Loses the format once."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = conv(3, 8), conv(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        x = torch.softmax(x, 1)  # here
        return self.exit(x)


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = conv(3, 8), conv(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        x = F.relu(x)  # here
        return self.exit(x)


class Checkpointed(Lossy):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        grad = grad.contiguous()  # here
        return grad * 2


def lossy() -> tuple[Lossy, Tensor]:
    return in_channels_last(Lossy(), 2, 3, 8, 8)


def in_force() -> int:
    return len(_get_current_dispatch_mode_stack())


def test_nested_contexts_each_have_their_report() -> None:
    model, x = lossy()
    with check(model) as outer:
        model(x)
        with check() as inner:
            model(x)
        model(x)
    assert only(outer, "lost").count == 3 and only(inner, "lost").count == 1
    assert only(inner, "lost").module == "Lossy" and only(outer, "lost").module == ""
    assert only(inner, "lost").line == only(outer, "lost").line == line_of(Lossy)


def test_one_context_twice_at_once_is_an_error_and_one_after_the_other_is_not() -> None:
    model, x = lossy()
    context = check(model)
    with context as first:
        model(x)
        with pytest.raises(RuntimeError, match="in force already"), context:
            pass
    with context as second:
        pass
    assert first is not second and first.findings and not second.findings
    assert in_force() == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_restored_after_an_error(error: type[BaseException]) -> None:
    model, x = lossy()
    with pytest.raises(error), check(model) as report:
        model(x)
        raise error
    assert in_force() == 0 and report.findings
    with pytest.raises(LayoutError), check(model, mode="raise"):
        model(x)
    assert in_force() == 0
    compiled = torch.compile(lambda t: t + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), x + 1)  # compilers work again


def test_a_report_can_be_read_inside() -> None:
    model, x = lossy()
    with check(model) as report:
        assert not report.findings
        model(x)
        assert only(report, "lost").count == 1
        model(x)
        assert only(report, "lost").count == 2 and "aten._softmax" in str(report)


def test_other_threads_are_not_watched_and_said_to_be_so() -> None:
    model, x = lossy()
    ran, stop = threading.Event(), threading.Event()

    def work() -> None:
        try:
            model(x)
        finally:
            ran.set()
        stop.wait()

    thread = threading.Thread(target=work, name="loader")
    try:
        with check(model) as report:
            thread.start()
            ran.wait()
            model(x)
    finally:
        stop.set()
    thread.join()
    assert only(report, "lost").count == 1
    assert any("loader" in note and "not watched" in note for note in report.notes)


def test_each_thread_has_its_own_context() -> None:
    model, x = lossy()
    counts: list[int] = []
    barrier = threading.Barrier(2, timeout=300)

    def work(times: int) -> None:
        with check(model) as report:
            barrier.wait()
            for _ in range(times):
                model(x)
            barrier.wait()
        counts.append(only(report, "lost").count)

    at_once(partial(work, 2), partial(work, 5))
    assert sorted(counts) == [2, 5]


def test_contexts_that_overlap_leave_torch_compile_on() -> None:
    """The context that began first ends first: neither the stance nor the flag "inside a mode" may stay behind."""
    model, x = lossy()
    first, second, ended = threading.Event(), threading.Event(), threading.Event()

    def early() -> None:
        with check(model):
            first.set()
            assert second.wait(300)
        ended.set()

    def late() -> None:
        assert first.wait(300)
        with check(model):
            second.set()
            assert ended.wait(300)

    at_once(early, late)
    calls: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        calls.append("compiled")
        return graph.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(x)
    assert calls and not is_in_torch_dispatch_mode()
    torch._dynamo.reset()


def test_results_and_gradients_are_the_same_bits() -> None:
    model, x = in_channels_last(ShuffleNetV2((1, 1, 1), (8, 16, 32, 64, 32), 5), 2, 3, 64, 64)
    expected = outputs_and_gradients(model.eval(), x)
    with check(model):
        got = outputs_and_gradients(model, x)
    assert_equal(got, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_shows_the_forward_again(reentrant: bool) -> None:
    model, x = in_channels_last(Checkpointed(reentrant=reentrant), 2, 3, 8, 8)
    x.requires_grad_()
    with check(model) as report:
        step(model, x)
    for phase in ("forward", "recompute"):
        site = only(report, "lost", phase)
        assert (site.op, site.line, site.module) == ("aten._softmax", line_of(Lossy), "")
    assert {s.phase for s in report.sites} == {"forward", "recompute", "backward"}


def test_custom_function_shows_the_line_of_its_backward() -> None:
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    with check() as report:
        y = Twice.apply(x)
        y.backward(torch.ones_like(y))
    site = only(report, "lost", "backward")
    assert (site.op, site.line, site.function.split(".")[-1]) == ("aten.clone", line_of(Twice), "backward")


def test_opswaps_own_functions_show_the_line_that_calls_them() -> None:
    from opswap import functional

    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()

    def run() -> Tensor:
        return functional.channel_shuffle(x, 2)  # here

    with check() as report:
        y = run()
        y.backward(torch.ones_like(y))
    sites = [s for s in report.sites if s.op.startswith("opswap.")]
    assert {s.phase for s in sites} == {"forward", "backward"} and not report.findings
    assert {(Path(s.file).name, s.line) for s in sites} == {("test_layout_context.py", line_of(run))}


def test_gradient_accumulation_and_a_second_backward() -> None:
    model, x = in_channels_last(Kept(), 2, 3, 8, 8)
    with check(model) as report:
        for _ in range(3):
            y = model(x)
            y.backward(torch.ones_like(y), retain_graph=True)
            y.backward(torch.ones_like(y))
    (site,) = [s for s in report.sites if s.op == "aten.threshold_backward"]
    assert (site.count, site.line, site.module) == (6, line_of(Kept), "")


def test_double_backward() -> None:
    model, x = lossy()
    x.requires_grad_()
    with check(model) as report:
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        grad.square().sum().backward()
    assert only(report, "lost").line == line_of(Lossy)
    assert all(s.file for s in report.sites)


def test_a_graph_made_before_is_said_to_be_unknown() -> None:
    model, x = lossy()
    y = model(x)
    with check(model) as report:
        y.backward(torch.ones_like(y))  # here
    assert any("before the context began" in note for note in report.notes)
    line = line_of(test_a_graph_made_before_is_said_to_be_unknown)
    assert {s.line for s in report.sites} == {line}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_compiled_modules_run_uncompiled_and_that_is_said(fullgraph: bool, before: bool) -> None:
    torch._dynamo.reset()
    model, x = lossy()
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    if before:
        compiled(x)
    with check(model) as report:
        compiled(x)
    assert only(report, "lost").line == line_of(Lossy)
    assert any("torch.compile" in note for note in report.notes)
    torch._dynamo.reset()


def test_a_backward_compiled_before_is_said_to_be_hidden() -> None:
    torch._dynamo.reset()
    model, x = lossy()
    y = torch.compile(model, backend="aot_eager")(x)
    with check(model) as report:
        y.backward(torch.ones_like(y))
    assert any("compiled before" in note for note in report.notes)
    torch._dynamo.reset()


def test_scripted_modules_show_the_line_of_the_call() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(conv(3, 8), nn.Softmax(1)))
    model, x = in_channels_last(scripted, 2, 3, 8, 8)
    with check() as report:
        model(x)  # here
    site = only(report, "lost")
    assert site.line == line_of(test_scripted_modules_show_the_line_of_the_call)
    assert any("scripted" in note for note in report.notes)


def test_transforms_are_seen_through() -> None:
    x = torch.randn(3, 2, 8, 6, 6)

    def lose(image: Tensor) -> Tensor:
        last = image.contiguous(memory_format=torch.channels_last)
        return torch.softmax(last, 1).sum()

    with check() as report:
        torch.func.grad(lambda t: lose(t).sum())(x[0])
    assert [s.op for s in report.findings if s.phase == "forward"] == ["aten._softmax"]


def test_fake_tensors_and_wrappers_pass() -> None:
    with check() as report:
        with FakeTensorMode() as mode:
            fake = torch.empty(2, 8, 4, 4, device="cpu").to(memory_format=torch.channels_last)
            assert torch.softmax(fake, 1).shape == fake.shape
        assert torch.softmax(mode.from_tensor(torch.ones(2, 8, 4, 4)), 1).shape == (2, 8, 4, 4)
        pair = TwoTensor(*[torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last) for _ in range(2)])
        assert not report.findings
        torch.softmax(pair, 1)
        assert only(report, "lost").count == 2
        meta = torch.empty(2, 8, 4, 4, device="meta", memory_format=torch.channels_last)
        torch.softmax(meta, 1)
    assert only(report, "lost").count == 2


def test_modules_are_named_without_a_model() -> None:
    nets = [in_channels_last(nn.Sequential(nn.ReLU(), Lossy()), 2, 3, 8, 8)[0] for _ in (1, 2)]
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with check() as report:
        for net in nets:
            net(x)
    assert {s.module for s in report.findings} == {"Sequential.1", "Sequential#2.1"}


def test_nothing_is_kept_alive_and_memory_does_not_grow() -> None:
    model, x = in_channels_last(ShuffleNetV2((1, 1, 1), (8, 16, 32, 64, 32), 5), 2, 3, 64, 64)
    with check(model) as report:
        for _ in range(3):
            step(model, x)
        tracemalloc.start()
        counts, sizes, marks = [], [], []
        for _ in range(4):
            for _ in range(10):
                step(model, x)
            report._observer.marks.prune()
            gc.collect()
            counts.append(len(gc.get_objects()))
            sizes.append(tracemalloc.get_traced_memory()[0])
            marks.append(len(report._observer.marks))
        tracemalloc.stop()
    assert counts[-1] - counts[1] < 200, counts
    assert sizes[-1] - sizes[1] < 50_000, sizes
    assert max(marks) < 64, marks


def test_no_tensor_outlives_its_owner_because_of_the_checker() -> None:
    model, x = lossy()
    with check() as report:
        y = step(model, x)
        output, module = weakref.ref(y), weakref.ref(model)
        del y, model
        gc.collect()
        assert output() is None and module() is None
    assert report.findings


def test_inference_mode_and_no_grad() -> None:
    model, x = lossy()
    with check(model) as report:
        with torch.no_grad():
            model(x)
        with torch.inference_mode():
            model(x)
    assert only(report, "lost").count == 2


@pytest.mark.parametrize("name", ["bytes", "lstm", "dropout", "bilinear"])
def test_inference_mode_runs_the_kernels_that_run_without_the_checker(name: str) -> None:
    x, lstm = torch.rand(2, 3, 8, 17), nn.LSTM(17, 5, 2, dropout=0.3)
    run = {
        "bytes": lambda: F.interpolate((x * 255).byte(), scale_factor=1.9, mode="bilinear"),
        "lstm": lambda: lstm(x[0])[0],
        "dropout": lambda: F.dropout(x, 1.0),
        "bilinear": lambda: F.interpolate(x, scale_factor=1.9, mode="bilinear"),
    }[name]
    with torch.inference_mode():
        state = torch.get_rng_state()
        expected, after = run(), torch.get_rng_state()
        torch.set_rng_state(state)
        with check():
            got = run()
    assert torch.equal(got, expected) and torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_pass(inference: bool) -> None:
    _, x = lossy()
    with torch.inference_mode(inference):
        expected = torch.nested.nested_tensor([x[0], x[1]]).sin().transpose(1, 2).unbind()[0]
        with check() as report:
            nested = torch.nested.nested_tensor([x[0], x[1]]).sin().transpose(1, 2)
            got = nested.unbind()[0]
            nested.contiguous().reshape(2, *expected.shape)
    assert torch.equal(got, expected) and not report.findings


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_sizes_under_a_trace_are_numbers() -> None:
    x = torch.randn(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    with check() as report:
        torch.jit.trace(nn.Conv2d(4, 4, 3, padding=1), x)(x)
    sites = json.loads(report.to_json())["sites"]
    assert sites and all(site["shapes"] == [[2, 4, 8, 8]] for site in sites)


def _distributed(rank: int) -> None:
    torch.manual_seed(0)
    model, x = lossy()
    with check() as made:
        twin = DistributedDataParallel(model)
    assert not made.findings, f"weights, copied to be sent, are no images: {made}"
    with check(model) as report:
        for _ in range(2):
            step(twin, x)
    site = only(report, "lost")
    assert (site.count, site.line, site.module) == (2, line_of(Lossy), ""), str(report)


def test_distributed(tmp_path: Path) -> None:
    run_in_processes(_distributed, tmp_path)


def test_a_list_of_images_from_a_loop_of_functional_calls() -> None:
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    with check() as report:
        outputs = [F.relu(x[:, i::2]) for i in range(2)]
    assert len(outputs) == 2 and not report.findings


def test_an_in_place_operator_on_a_view_keeps_its_line_and_the_next_one_too() -> None:
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()

    def run() -> Tensor:
        y = x * 2
        y[:, :4].mul_(3)  # in place
        return y.sigmoid()  # here

    with check() as report:
        y = run()
        y.backward(torch.ones_like(y))
    lines = {s.op: s.line for s in report.sites if s.phase == "backward"}
    assert lines["aten.sigmoid_backward"] == line_of(run)
    copied = [s.line for s in report.sites if s.phase == "backward" and s.op == "aten.copy_"]
    assert copied and set(copied) == {line_of(run, "# in place")}


def test_a_copy_that_is_an_image_in_channels_last_is_not_to_blame() -> None:
    x = torch.randn(2, 8, 6, 10).to(memory_format=torch.channels_last)

    def run() -> Tensor:
        shuffled = x.permute(0, 2, 3, 1).unflatten(3, (2, 4)).transpose(3, 4).contiguous()
        assert shuffled.flatten(3).permute(0, 3, 1, 2).is_contiguous(memory_format=torch.channels_last)
        tokens = shuffled.flatten(3).flatten(1, 2)
        tokens = tokens.transpose(1, 2).contiguous()  # here
        return tokens.view(2, 8, 6, 10)

    with check() as report:
        run()
    assert only(report, "lost").line == line_of(run)
