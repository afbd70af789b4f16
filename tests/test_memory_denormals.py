# SPDX-License-Identifier: MIT
"""opswap.memory.denormals: who holds denormal numbers, who is charged, and that everything is put back."""

from __future__ import annotations

import copy
import json
import platform
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap import _core, memory
from opswap.memory.counting import count_denormals
from opswap.memory.timing import time_operator, time_step
from surviving import command
from threads import elsewhere

SWITCH = platform.machine() in ("x86_64", "AMD64", "aarch64", "arm64")
needs_switch = pytest.mark.skipif(not SWITCH, reason="this processor has no switch for denormals")


@pytest.fixture(autouse=True)
def computed() -> Iterator[None]:
    """One thread, which computes with denormals before and after."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    yield
    torch.set_num_threads(before)
    torch.set_flush_denormal(False)


@pytest.fixture
def threads() -> Iterator[None]:
    """Three threads, none of which flushes before and after."""
    torch.set_num_threads(3)
    memory.flush_denormals(False)
    yield
    memory.flush_denormals(False)


class Net(nn.Module):
    """`weak` has denormal weights in half of its channels, `fades` makes denormals of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.strong = nn.Conv2d(3, 4, 3)
        self.weak = nn.Conv2d(4, 4, 1, bias=False)
        with torch.no_grad():
            self.weak.weight[:2] = 1e-40
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.strong(x))
        return self.weak(x) + 1


def fade(x: Tensor) -> Tensor:
    y = x.abs().add(1).mul(1e-39)  # the line that makes them
    return y.neg()


FADES = fade.__code__.co_firstlineno + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced", "transposed", "expanded"])
def test_counts(dtype: torch.dtype, layout: str) -> None:
    info = torch.finfo(dtype)
    values = [0.0, -0.0, 1.0, -1.0, info.tiny, -info.tiny, info.tiny / 2, -info.smallest_normal / 4]
    values += [info.smallest_normal * info.eps, float("inf"), -float("inf"), float("nan"), info.max, info.min]
    x = torch.tensor(values, dtype=dtype).repeat(2, 3, 5, 1)  # 30 rows of 3
    x = {
        "contiguous": lambda: x,
        "channels_last": lambda: x.contiguous(memory_format=torch.channels_last),
        "sliced": lambda: torch.cat([x, x], 1)[:, ::2],
        "transposed": lambda: x.transpose(1, 3),
        "expanded": lambda: x[:1].expand(2, -1, -1, -1),
    }[layout]()
    assert count_denormals(x) == 30 * 3


def test_counts_large_and_empty_tensors_and_other_kinds() -> None:
    x = torch.ones(1 << 19)
    x[::1000] = 1e-40
    assert count_denormals(x) == len(x[::1000])
    assert count_denormals(torch.empty(0)) == count_denormals(torch.ones(3, device="meta")) == 0
    assert count_denormals(torch.tensor(1e-40)) == 1
    assert count_denormals(torch.ones(3, dtype=torch.int32)) == 0
    assert count_denormals(torch.eye(3).to_sparse()) == 0


def test_weights_at_once() -> None:
    net = Net()
    net.norm.running_var[1] = 1e-39
    report = memory.denormals(net)
    found = {(s.module, s.op): s for s in report.findings}
    assert found.keys() == {("weak", "weight"), ("norm", "running_var")}
    site = found["weak", "weight"]
    assert (site.status, site.denormals, site.elements, site.share) == ("weight", 8, 16, 0.5)
    assert site.seconds == 0 and site.count == 0 and "flush_denormals" in site.hint
    assert "8 of 16 numbers are denormal (50.00%)" in str(report) and "2 modules" in str(report)


@needs_switch
def test_lprnet_whose_dead_channels_decayed() -> None:
    """As in its published weights; flushed, it computes what it computes with zeros there."""
    net = opswap.models.lprnet().eval()
    path = "backbone.8.block.6"
    weight = net.get_submodule(path).weight
    with torch.no_grad():
        weight[len(weight) // 6 :] *= 1e-39
    wanted = int(((weight != 0) & (weight.abs() < torch.finfo(weight.dtype).tiny)).sum())
    x = torch.randn(2, 3, 24, 94)
    report = memory.denormals(net, inputs=(x,))
    site = next(s for s in report.findings if s.status == "weight")
    assert (site.module, site.op, site.denormals, site.elements) == (path, "weight", wanted, weight.numel())
    assert wanted > 0.8 * weight.numel() and [s.module for s in report.findings if s.op == "weight"] == [path]
    assert all(s.module == path for s in report.sites), "BatchNorm's shift ends them"
    assert report.step is not None and site.seconds > 0
    zeros = copy.deepcopy(net)
    with torch.no_grad():
        changed = zeros.get_submodule(path).weight
        changed[changed.abs() < torch.finfo(changed.dtype).tiny] = 0
        memory.flush_denormals(True)
        flushed = net(x)
        memory.flush_denormals(False)
        assert torch.equal(flushed, zeros(x))


def test_nothing_found() -> None:
    net = nn.Linear(3, 3)
    report = memory.denormals(net, inputs=(torch.randn(2, 3),), backward=True)
    assert not report.sites and "no denormal numbers" in str(report)
    assert report.summary["seconds"] == 0


@needs_switch
def test_a_step_is_watched_charged_and_timed() -> None:
    net, x = Net(), torch.randn(2, 3, 8, 8)
    report = memory.denormals(net, inputs=(x,), backward=True)
    site = next(s for s in report.findings if s.op == "weight")
    assert site.count >= 2 and site.seconds > 0 and site.flushed_seconds > 0, "forward and backward read it"
    carried = {(s.op, s.phase) for s in report.sites if s.status == "carried"}
    assert ("aten.convolution", "forward") in carried, "its results hold denormals, but are not the source"
    normal, flushed = report.step
    assert normal > 0 and flushed > 0 and "a step takes" in str(report)
    assert report.summary["step_seconds"] == normal


@needs_switch
def test_the_line_that_makes_them_is_charged_with_what_follows() -> None:
    x = torch.ones(4, 4)
    with memory.denormals() as report:
        fade(x)
    (site,) = report.findings
    assert (site.status, site.op, site.line, site.function) == ("activation", "aten.mul", FADES, "fade")
    assert (site.count, site.denormals, site.elements, site.phase) == (1, 16, 16, "forward")
    (after,) = [s for s in report.sites if s.status == "carried"]
    assert after.op == "aten.neg" and after.seconds == 0 and site.seconds > 0


def test_gradients_and_states_of_optimizers() -> None:
    weight = nn.Parameter(torch.ones(8))
    with memory.denormals() as report:
        (weight * 1e-20).mul(1e-20).sum().backward()
    assert {s.status for s in report.findings} == {"activation", "gradient"}
    gradient = next(s for s in report.findings if s.status == "gradient")
    assert gradient.file == __file__ and gradient.phase == "backward"
    weight = nn.Parameter(torch.ones(8))
    weight.grad = torch.full((8,), 1e-38)
    for foreach in (False, True):
        optimizer = torch.optim.SGD([weight], lr=1e-30, momentum=0.5, foreach=foreach)
        with memory.denormals() as report:
            for _ in range(3):
                optimizer.step()
                weight.grad = torch.zeros(8)
        weight.grad = torch.full((8,), 1e-38)
        assert "state" in {s.status for s in report.findings}, foreach


def test_weights_that_change_are_counted_again() -> None:
    layer = nn.Linear(4, 4, bias=False)
    with memory.denormals() as report:
        layer(torch.ones(1, 4))
        assert not report.findings
        with torch.no_grad():
            layer.weight[0] = 1e-40
        layer(torch.ones(1, 4))
    site = next(s for s in report.findings if s.status == "weight")
    assert (site.denormals, site.module, site.op) == (4, "Linear", "weight")
    with memory.denormals(layer) as report, torch.no_grad():
        layer.weight[1] = 1e-40
    assert report.findings[0].denormals == 8


def test_a_weight_that_is_seen_before_its_module_is_called_gets_its_name() -> None:
    layer = nn.Linear(4, 4, bias=False)
    for allow in ((), ("weight",)):
        with memory.denormals(allow=allow) as report:
            with torch.no_grad():
                layer.weight[0] *= 0
                layer.weight[0] += 1e-40
            layer(torch.ones(1, 4))
        site = next(s for s in report.sites if s.status == "weight")
        assert (site.module, site.op, site.allowed) == ("Linear", "weight", bool(allow))


# --- nothing changes ------------------------------------------------------------------------------------------------


def flushing() -> tuple[int, int]:
    """Whether this thread flushes, and how many of 2 ** 18 products, computed by all threads, came out as zero."""
    small = (torch.tensor(1e-30) * torch.tensor(1e-10)).view(torch.int32)
    product = torch.full((1 << 18,), 1e-30) * torch.full((1 << 18,), 1e-10)
    return int(small == 0), int((product.view(torch.int32) == 0).sum())


@needs_switch
@pytest.mark.parametrize("state", ["off", "on", "this thread", "other threads"])
@pytest.mark.parametrize("error", [False, True])
def test_every_thread_flushes_as_before(threads: None, state: str, error: bool) -> None:
    memory.flush_denormals(state in ("on", "other threads"))
    if state in ("this thread", "other threads"):
        torch.set_flush_denormal(state == "this thread")
    before = flushing()
    # Its operators take all threads: with fewer OpenMP ends the others, and new ones begin in the state of this thread.
    net, x = nn.PReLU(), torch.randn(1 << 18)
    memory.denormals(net, inputs=(x,), backward=True)
    assert flushing() == before

    def fails() -> None:
        raise KeyboardInterrupt

    if error:
        with pytest.raises(KeyboardInterrupt):
            time_step(fails, net, ())
        with pytest.raises(KeyboardInterrupt):
            time_operator(_Raises(KeyboardInterrupt()), (), {})
        assert time_operator(_Raises(RuntimeError()), (), {}) is None
    assert flushing() == before


class _Raises:
    """An operator that fails."""

    class _schema:
        is_mutable = False
        name = "aten::fails"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self) -> None:
        raise self.error


@needs_switch
def test_what_torchs_own_switch_reaches(threads: None) -> None:
    """The calling thread only: what the README says of it."""
    flushing()  # the pool's threads run
    torch.set_flush_denormal(True)
    here, everywhere = flushing()
    assert here == 1 and 0 < everywhere < 1 << 18
    torch.set_flush_denormal(False)


def test_results_gradients_buffers_and_random_numbers_are_the_same() -> None:
    net = nn.Sequential(Net(), nn.Dropout(0.5), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    state = {k: v.clone() for k, v in net.state_dict().items()}
    x = torch.randn(2, 3, 8, 8)

    def step() -> list[Tensor]:
        net.load_state_dict(state)
        net.zero_grad()
        torch.manual_seed(7)
        y = net(x) * 1e-39
        y.mul_(2).mul(1e38).sum().backward()
        return [y.detach(), torch.rand(3), *(p.grad for p in net.parameters()), *net.buffers()]

    want = [t.clone() for t in step()]
    with memory.denormals(net) as report:
        got = step()
    assert report.findings
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


def test_a_timed_step_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # beside another thread, generators go on
    net, x = Net(), torch.randn(2, 3, 8, 8, requires_grad=True)
    net(x).sum().backward()
    gradients = [p.grad for p in net.parameters()]
    values = [g.clone() for g in gradients]
    buffers = [b.clone() for b in net.buffers()]
    state = torch.random.get_rng_state()

    def step() -> None:
        net(x).sum().backward()
        torch.rand(3)

    time_step(step, net, (x,))
    assert all(p.grad is g for p, g in zip(net.parameters(), gradients, strict=True))
    assert all(map(torch.equal, gradients, values)) and all(map(torch.equal, net.buffers(), buffers))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_contexts_nest_and_end_with_an_exception() -> None:
    x = torch.ones(4)
    with memory.denormals() as outer:
        with pytest.raises(ZeroDivisionError), memory.denormals() as inner:
            fade(x)
            raise ZeroDivisionError
        fade(x)
    fade(x)
    assert [s.count for s in inner.findings] == [1] and [s.count for s in outer.findings] == [2]
    with opswap.shapes.detect() as sizes, memory.denormals():
        fade(x)
    assert not sizes.sites, "what the finder computes for itself is shown to no other finder"
    with pytest.raises(RuntimeError, match="in force already"), (context := memory.denormals()), context:
        pass


def test_other_threads_are_left_alone() -> None:
    with memory.denormals() as report:
        elsewhere(lambda: fade(torch.ones(4)))
    assert not report.sites


def test_memory_does_not_grow_with_steps() -> None:
    net, x = Net(), torch.randn(2, 3, 8, 8)
    with memory.denormals(net) as report:
        for _ in range(5):
            net(x).sum().backward()
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        for _ in range(40):
            net(x).sum().backward()
        after = tracemalloc.take_snapshot()
        tracemalloc.stop()
    grown = sum(
        d.size_diff for d in after.compare_to(before, "filename") if "opswap" in d.traceback[0].filename
    )
    assert grown < 50_000 and report.findings


def test_allow_list() -> None:
    net = Net()
    for allow in (["weight"], ["weak"], ["we*"]):
        report = memory.denormals(net, allow=allow)
        assert not report.findings and [s.allowed for s in report.sites] == [True]
    with memory.denormals(allow=["test_memory_denormals.py:*"]) as report:
        fade(torch.ones(3))
    assert not report.findings and report.sites


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match=r"denormals: model .* int"):
        memory.denormals(3)
    with pytest.raises(TypeError, match=r"denormals: allow .* 'x'"):
        memory.denormals(allow="x")
    with pytest.raises(TypeError, match="inputs need a model"):
        memory.denormals(inputs=(torch.ones(1),))
    with pytest.raises(RuntimeError, match="channels"):
        memory.denormals(Net(), inputs=(torch.ones(1, 5, 8, 8),))


def test_without_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory_flush", "memory_flush_save", "memory_flush_restore"):
        monkeypatch.setattr(_core, name, lambda *on: 0)
    report = memory.denormals(Net(), inputs=(torch.randn(2, 3, 8, 8),))
    assert report.findings and report.step is None and report.findings[0].seconds == 0
    assert "could not be measured" in str(report)


def test_report_as_json_html_and_picture(tmp_path: Path) -> None:
    report = memory.denormals(Net(), inputs=(torch.randn(2, 3, 8, 8),), backward=True)
    data = json.loads(report.to_json())
    assert data["title"] == "opswap.memory" and data["sites"][0]["share"] == 0.5
    assert "<table>" in report._repr_html_()
    for number, found in enumerate((report, memory.denormals(Net()), memory.denormals(nn.ReLU()))):
        path = tmp_path / f"{number}.png"
        found.plot(path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_each_module_with_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opswap.memory import plot

    drawn: list[object] = []
    monkeypatch.setattr(plot, "draw_bars", lambda path, bars, *colours, **texts: drawn.extend((bars, texts)))
    net = Net()
    net.norm.running_var[1] = 1e-39
    memory.denormals(net).plot(tmp_path / "x.png")
    (weak, norm), texts = drawn
    assert (weak.label, weak.parts, weak.mark) == ("weak", {"weight": 8}, "50.0% of weight")
    assert (norm.label, norm.parts, norm.mark) == ("norm", {"weight": 1}, "25.0% of running_var")
    assert texts["unit"] == "denormal numbers per module" and "2 modules" in texts["title"]


NETS = """
import torch
from torch import nn

def weak():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU())
    net[0].weight.data[0] = 1e-40
    return net

if __name__ == "__main__":
    net = weak()
    net(torch.randn(2, 3, 8, 8)).sum().backward()
    print("end of the script")
"""


def test_command(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    size = ("--input", "2x3x8x8", "--backward")
    run = command(tmp_path, "denormals", "nets:weak", *size, "--json", "out.json", "--strict")
    assert run.returncode == 1 and "27 of 108 numbers are denormal" in run.stdout, run.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["summary"]["modules"] == 1 and (found["summary"]["step_seconds"] is not None) is SWITCH
    run = command(tmp_path, "denormals", "--plot", "out.png", "--", "nets.py")
    assert run.returncode == 0 and run.stdout.index("end of the script") < run.stdout.index("opswap.memory")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert "python3 -m opswap denormals" in command(tmp_path, "denormals", "--help").stdout


def test_readme_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(memory.__file__).with_name("README.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in [part.split("```")[0] for part in readme.split("```python\n")[1:]]:
        exec(compile(block, "README.md", "exec"), names)
    assert "weight" in capsys.readouterr().out
