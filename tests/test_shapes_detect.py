# SPDX-License-Identifier: MIT
"""The detector names the lines whose shapes depend on data, the inputs that change, and what a compiler makes of it."""

from __future__ import annotations

import copy
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import opswap
from opswap import shapes
from processes import PROCESSES, run_in_processes
from threads import elsewhere

# Code has no qualified name before Python 3.11.
NET_FORWARD = "Net.forward" if sys.version_info >= (3, 11) else "forward"


def nonzero(x: Tensor) -> Any:
    return torch.nonzero(x > 0)


def argwhere(x: Tensor) -> Any:
    return torch.argwhere(x > 0)


def where(x: Tensor) -> Any:
    return torch.where(x > 0)


def masked_select(x: Tensor) -> Any:
    return x.masked_select(x > 0)


def index(x: Tensor) -> Any:
    return x[x > 0]


def index_rows(x: Tensor) -> Any:
    return x[x[:, 0] > 0]


def index_put(x: Tensor) -> Any:
    y = x.clone()
    y[x > 0] = 1
    return y


def unique(x: Tensor) -> Any:
    return torch.unique(x.round())


def unique_consecutive(x: Tensor) -> Any:
    return x.round().unique_consecutive()


def repeat_interleave(x: Tensor) -> Any:
    return x.repeat_interleave((x[:, 0] > 0).long(), 0)


def bincount(x: Tensor) -> Any:
    return x[:, 0].abs().long().bincount()


def loop(x: Tensor) -> Any:
    return [row.sum() for row in x]


def loop_statement(x: Tensor) -> Any:
    total = 0
    for row in x:
        total = total + row
    return total


def size_of_item(x: Tensor) -> Any:
    return x[: int((x[:, 0] > 0).sum())]


def size_through_a_name(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum().item()
    return torch.zeros(n + 1)


def topk(x: Tensor) -> Any:
    return x[:, 0].topk(int((x[:, 0] > 0).sum()))


def branch(x: Tensor) -> Any:
    if x.sum() > 0:
        return x
    return -x


def branch_expression(x: Tensor) -> Any:
    return x if bool((x > 0).any()) else -x


def branch_through_a_name(x: Tensor) -> Any:
    n = x.sum().item()
    return x if n > 0 else -x


def loop_over_list(x: Tensor) -> Any:
    return [v for v in x[:, 0].tolist()]  # noqa: C416


def branch_on_one_line(x: Tensor) -> Any:
    if (x > 0).any(): return x  # fmt: skip  # noqa: E701
    return -x


def while_on_one_line(x: Tensor) -> Any:
    while x.sum() > 1e9: x = x / 2  # fmt: skip  # noqa: E701
    return x


def loop_on_one_line(x: Tensor) -> Any:
    for v in x[:, 0].tolist(): x = x + v  # fmt: skip  # noqa: E701
    return x


def match(x: Tensor) -> Any:
    match x.sum().item() > 0:
        case True:
            return x
        case _:
            return -x


def bins(x: Tensor) -> Any:
    return torch.histc(x, bins=int((x > 0).sum()) + 1)


def value(x: Tensor) -> Any:
    return f"loss {x.sum().item():.3f}"


FOUND = [
    (nonzero, "size", "aten.nonzero"),
    (argwhere, "size", "aten.nonzero"),
    (where, "size", "aten.nonzero"),
    (masked_select, "size", "aten.masked_select"),
    (index, "size", "aten.index"),
    (index_rows, "size", "aten.index"),
    (index_put, "write", "aten.index_put"),
    (unique, "size", "aten.unique"),
    (unique_consecutive, "size", "aten.unique"),
    (repeat_interleave, "size", "aten.repeat_interleave"),
    (bincount, "size", "aten.bincount"),
    (loop, "loop", "loop"),
    (loop_statement, "loop", "loop"),
    (size_of_item, "size", "aten.item"),
    (size_through_a_name, "size", "aten.item"),
    (topk, "size", "aten.item"),
    (branch, "branch", "aten.item"),
    (branch_expression, "branch", "aten.item"),
    (branch_through_a_name, "branch", "aten.item"),
    (loop_over_list, "loop", "tolist"),
    (branch_on_one_line, "branch", "aten.item"),
    (while_on_one_line, "branch", "aten.item"),
    (loop_on_one_line, "loop", "tolist"),
    (match, "branch", "aten.item"),
    (bins, "size", "aten.item"),
]


@pytest.mark.parametrize(("function", "status", "op"), FOUND, ids=[f[0].__name__ for f in FOUND])
def test_found_at_its_line(function: Any, status: str, op: str) -> None:
    start = function.__code__.co_firstlineno
    x = torch.randn(8, 3)
    want = function(x)
    with shapes.detect() as report:
        got = function(x)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    (site,) = report.findings
    assert (site.status, site.op, site.file, site.function) == (status, op, __file__, function.__name__)
    assert start < site.line <= start + 4 and site.phase == "forward" and site.count == 1
    assert site.hint and f"test_shapes_detect.py:{site.line}" in str(report)


def test_a_part_that_is_read_for_a_log_is_no_finding() -> None:
    """Brackets inside of what is read are not made of the number."""

    def log(x: Tensor, mask: Tensor) -> float:
        first = x[0, 0].item()
        return first + float(x[1][2]) + x[2, 3].tolist()

    def part(x: Tensor, mask: Tensor) -> Tensor:
        return x[: int(mask[0])] + float(x[int(mask[1])].sum())

    with shapes.detect() as report:
        log(torch.randn(5, 5), torch.ones(5))
    assert not report.findings
    with shapes.detect() as report:
        part(torch.randn(5, 5), torch.ones(5, dtype=torch.long))
    assert {s.status for s in report.findings} == {"size"}


def test_a_number_for_a_log_is_no_finding() -> None:
    with shapes.detect() as report:
        value(torch.randn(3, 3))
    assert not report.findings and [s.status for s in report.sites] == ["value"]
    assert "no shape depends on data" in str(report)


def test_a_number_for_a_log_that_a_branch_guards_is_no_finding() -> None:
    def log(x: Tensor, losses: list[float]) -> None:
        print(x.sum().item()) if len(losses) == 1 else None
        if len(losses) == 1:
            print(x.sum().item())
        if len(losses) == 1: print(x.sum().item())  # fmt: skip  # noqa: E701

    with shapes.detect() as report:
        log(torch.randn(3), [0.5])
    assert not report.findings and [s.status for s in report.sites] == ["value"] * 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x[:, 1:3] + x.sum(),
        lambda x: torch.where(x > 0, x, 0),
        lambda x: x.repeat_interleave(2, 0),
        lambda x: x.unbind(0)[0],
        lambda x: torch.nonzero_static(x > 0, size=4),
        lambda x: F.one_hot(x.abs().long().clamp(max=3), 4),
    ],
)
def test_fixed_sizes_are_no_findings(function: Any) -> None:
    with shapes.detect() as report:
        function(torch.randn(4, 4))
    assert not [s for s in report.findings if s.status != "branch"], report


def test_histogram_and_rewrite() -> None:
    with shapes.detect() as report:
        for n in (2, 3, 3, 5):
            x = torch.ones(n)
            x[x > 0].sum()
    (site,) = report.findings
    assert site.sizes == ((2, 1), (3, 2), (5, 1)) and site.count == 4
    assert site.hint == "`torch.where(x > 0, x, 0).sum()`"
    assert "sizes: 2 (1x), 3 (2x), 5 (1x)" in str(report)


def test_the_size_is_that_of_the_masked_dimension() -> None:
    x, mask = torch.zeros(2, 5, 4), torch.tensor([True, False, True, True, False])
    with shapes.detect() as report:
        assert x[:, mask].shape == (2, 3, 4)
        assert x[:, mask, torch.tensor([1, 2, 3])].shape == (2, 3)
        assert x[torch.tensor([0, 1, 0]), :, torch.tensor([1, 2, 3])][:, mask].shape == (3, 3)
        assert x[mask[:2]].shape == (1, 5, 4)
    assert [s.sizes for s in sorted(report.findings, key=lambda s: s.line)] == [((3, 1),)] * 3 + [((1, 1),)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x).movedim(1, -1)
        kept = features[features[..., 0] > 0]
        return self.head(kept)


def steps(net: nn.Module, sizes: list[int]) -> None:
    for n in sizes:
        net(torch.randn(2, 3, n, n)).sum().backward()


def test_modules_lines_backward_and_inputs() -> None:
    net = Net()
    with torch.no_grad():  # the first feature is the first channel
        net.body[0].weight[0], net.body[0].bias[0] = 0, 0
        net.body[0].weight[0, 0, 1, 1] = 1
    with shapes.detect(net) as report:
        for pixels in (1, 2, 3):
            x = torch.full((2, 3, 8, 8), -1.0)
            x[0, 0, 1, 1 : 1 + pixels] = 1
            net(x).sum().backward()
    found = {s.status: s for s in report.findings}
    assert found["size"].function == NET_FORWARD and found["size"].module == ""
    # The input of the head changes although the net's own does not.
    assert found["input"].module == "head" and len(found["input"].sizes) == 3
    assert report.inputs[""].graphs(False) == 1 and len(report.inputs["head"].shapes) == 3
    backward = [s for s in report.sites if s.phase == "backward"]
    assert backward and all(s.file == __file__ for s in backward)


@pytest.mark.parametrize(
    ("dynamic", "sizes"),
    [
        *((dynamic, [8, 8, 9, 10, 9, 12]) for dynamic in (False, None)),
        *((dynamic, [8, 8]) for dynamic in (False, None)),
        *((dynamic, sizes) for dynamic in (False, None) for sizes in ([8, 9, 1, 1, 0], [1, 8, 9])),
    ],
)
def test_graphs_are_those_that_torch_compile_makes(dynamic: bool | None, sizes: list[int]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1) if 0 not in sizes else nn.Identity(), nn.ReLU())
    inputs = [torch.randn(2, 3, n, 8) for n in sizes]
    with shapes.detect(net) as report:
        for x in inputs:
            net(x)
    made = []
    torch._dynamo.reset()
    compiled = torch.compile(net, dynamic=dynamic, backend=lambda graph, _: made.append(1) or graph.forward)
    for x in inputs:
        compiled(x)
    assert report.inputs[""].graphs(dynamic) == len(made)
    assert report.summary["graphs" if dynamic is False else "graphs_dynamic"] == len(made)


class Several(nn.Module):
    def forward(self, image: Tensor, others: Any, *, mask: Tensor | None = None, name: str = "") -> Tensor:
        return image.sum() + others[0].sum() + others[1]["boxes"].sum()


def test_every_argument_has_its_shapes() -> None:
    net = Several()
    with shapes.detect(net) as report:
        for n in (1, 2, 2):
            others = [torch.ones(n), {"boxes": torch.ones(3, 4)}]
            net(torch.ones(2, 2), others, mask=torch.ones(4, n), name="a")
    assert report.inputs[""].names == ("0", "1.0", "1.1.boxes", "mask", "name")
    found = {s.op: s.shapes for s in report.findings}
    assert found == {"input 1.0 of Several": ((2,), (1,)), "input mask of Several": ((4, 2), (4, 1))}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_shows_the_forward_again(reentrant: bool) -> None:
    def selected(x: Tensor) -> Tensor:
        return x[x > 0].exp()

    with shapes.detect() as report:
        x = torch.randn(9, requires_grad=True)
        torch.utils.checkpoint.checkpoint(selected, x, use_reentrant=reentrant).sum().backward()
    line = selected.__code__.co_firstlineno + 1
    found = {s.phase: (s.line, s.count) for s in report.findings}
    assert found == {"forward": (line, 1), "recompute": (line, 1)}


class Select(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        kept = torch.zeros_like(x)
        kept[x > 0] = gradient[x > 0]
        return kept


def test_a_backward_of_ones_own_shows_its_line() -> None:
    with shapes.detect() as report:
        Select.apply(torch.randn(9, requires_grad=True)).sum().backward()
    line = Select.backward.__code__.co_firstlineno + 4
    found = {(s.status, s.op, s.line, s.phase) for s in report.sites}
    assert found == {
        ("write", "aten.index_put", line, "backward"),
        ("size", "aten.index", line, "backward"),
    }


def test_compiled_modules_run_uncompiled_and_that_is_said() -> None:
    net = Net()
    compiled = torch.compile(net, backend="eager")
    x = torch.randn(2, 3, 8, 8)
    compiled(x)
    with shapes.detect(net) as report:
        compiled(x)
    assert [s.function for s in report.findings if s.status == "size"] == [NET_FORWARD]
    assert any("ran uncompiled" in note for note in report.notes) and "note: " in str(report)


def test_contexts_nest_and_end_with_an_exception() -> None:
    x = torch.randn(6)
    with shapes.detect() as outer:
        with pytest.raises(ZeroDivisionError), shapes.detect() as inner:
            x[x > 0]
            raise ZeroDivisionError
        x[x < 0]
    x[x > 1]
    assert len(inner.findings) == 1 and len(outer.findings) == 2
    assert not torch.nn.modules.module._global_forward_pre_hooks
    with pytest.raises(RuntimeError, match="in force already"), (context := shapes.detect()), context:
        pass


def test_other_threads_are_left_alone() -> None:
    net = Net()
    with shapes.detect(net) as report:
        elsewhere(lambda: steps(net, [8]))
    assert not report.sites and not report.inputs


def _distributed(rank: int) -> None:
    torch.manual_seed(0)
    net = Net()
    alone = copy.deepcopy(net)
    twin = DistributedDataParallel(net)
    torch.manual_seed(1 + rank)
    images = torch.randn(2, 3, 8, 8)
    with shapes.detect(net) as report:
        for _ in range(2):
            twin.zero_grad()
            twin(images).sum().backward()
    site = next(s for s in report.findings if s.status == "size")
    assert (site.function, site.module, site.count) == (NET_FORWARD, "", 2), str(report)
    assert report.inputs[""].graphs(False) == 1 and "head" in report.inputs
    assert any(s.phase == "backward" and s.file == __file__ for s in report.sites)
    # The gradients are averaged as they are without the finder.
    alone(images).sum().backward()
    for ours, own in zip(net.parameters(), alone.parameters(), strict=True):
        torch.distributed.all_reduce(own.grad)
        torch.testing.assert_close(ours.grad, own.grad / PROCESSES)


def test_distributed(tmp_path: Path) -> None:
    run_in_processes(_distributed, tmp_path)


def test_allow_list() -> None:
    x = torch.randn(5)
    for allow in (["index"], ["test_shapes_detect.py:*"]):
        with shapes.detect(allow=allow) as report:
            x[x > 0]
        assert not report.findings and len(report.sites) == 1


@pytest.mark.parametrize(
    ("arguments", "error"), [({"model": 3}, "model .* int"), ({"allow": "x"}, "allow .* 'x'")]
)
def test_bad_arguments(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(TypeError, match=error):
        shapes.detect(**arguments)


def test_memory_does_not_grow_with_steps() -> None:
    net = Net()
    with shapes.detect(net) as report:
        steps(net, list(range(8, 60)) * 2)
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        steps(net, list(range(60, 130)))
        after = tracemalloc.take_snapshot()
        tracemalloc.stop()
    ours = str(Path(opswap.__file__).parent)
    grown = sum(
        d.size_diff for d in after.compare_to(before, "filename") if d.traceback[0].filename.startswith(ours)
    )
    assert grown < 100_000
    assert all(len(i.shapes) <= 64 for i in report.inputs.values())


def test_a_swapped_model_computes_the_same() -> None:
    net = opswap.models.shufflenet_v2_x0_5(num_classes=3).eval()
    x = torch.randn(1, 3, 64, 64)
    want = opswap.swap(net)(x)
    with shapes.detect(net) as report:
        got = net(x)
    torch.testing.assert_close(got, want)
    assert not report.findings


def test_report_as_json_html_and_picture(tmp_path: Path) -> None:
    net = Net()
    with shapes.detect(net) as report:
        steps(net, [8, 9])
    data = json.loads(report.to_json())
    assert {s["status"] for s in data["sites"]} >= {"size", "input"} and data["summary"]["graphs"] == 2
    assert "<table>" in report._repr_html_()
    report.plot(tmp_path / "shapes.png")
    assert (tmp_path / "shapes.png").read_bytes().startswith(b"\x89PNG")


class Pictures(Dataset):
    """Images of different sizes with one box each."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        box, label = torch.tensor([[0.0, 0, 3, 3]]), torch.tensor([1])
        return torch.rand(3, 8 + index, 9), {"boxes": box, "labels": label}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, shapes.collate_fixed(16, max_boxes=2)], ids=["lists", "fixed"])
def test_a_loader_is_no_loop_over_a_tensor(workers: int, collate: Any) -> None:
    """It draws a seed and an order of its own, and collate_fixed looks at labels, on the user's line."""
    loader = DataLoader(
        Pictures(),
        2,
        shuffle=True,
        collate_fn=collate or list,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    with shapes.detect() as report:
        for _ in loader:
            pass
    assert not report.sites, str(report)


def test_texts_and_comparisons_are_no_findings() -> None:
    x = torch.randn(3, 4)
    with shapes.detect() as report:
        print(x[:, 0], torch.ones(3))
        torch.testing.assert_close(x[:2], x[:2].clone())
        equal = torch.allclose(x, torch.ones(3, 4))
    assert not equal and not report.findings, str(report)


def test_the_line_with_most_sizes_comes_first_and_is_drawn_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opswap.shapes import plot

    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plot, "draw", lambda path, series, title: drawn.update(series, title=title))

    def run(x: Tensor) -> None:
        x.sum().item()
        x[x > -9].exp()
        torch.nonzero(x > 0)

    with shapes.detect() as report:
        for n in (2, 3, 3, 1):
            run(torch.cat([torch.ones(n), -torch.ones(5 - n)]))
    assert [(s.op, len(s.sizes)) for s in report.sites] == [
        ("aten.nonzero", 3),
        ("aten.index", 1),
        ("aten.item", 1),
    ]
    printed = str(report)
    assert printed.index("aten.nonzero") < printed.index("aten.index")
    report.plot(tmp_path / "picture")
    assert drawn.pop("title") == str(report).splitlines()[0]
    names = [f"{s.source} {s.op}" for s in report.findings]
    assert list(drawn.items()) == [(names[0], [2, 3, 3, 1]), (names[1], [5, 5, 5, 5])]
