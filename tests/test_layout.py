# SPDX-License-Identifier: MIT
"""Each status of the layout checker, by an operator that has it; arguments, report and hints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from layout_models import conv, in_channels_last, line_of
from opswap.layout import LayoutError, LayoutSite, check
from opswap.layout.formats import Format, format_of
from opswap.layout.measure import SAMPLES, measure
from opswap.layout.measured import COPIED_INSIDE, LOSES, MEASURED_WITH
from opswap.swap.rules import DEFAULT


def image(*size: int) -> Tensor:
    size = size or (2, 8, 6, 10)
    return torch.randn(size).to(
        memory_format=torch.channels_last if len(size) == 4 else torch.channels_last_3d
    )


def sites_of(run: Callable[[], object], **options: object) -> list[LayoutSite]:
    with check(**options) as report:
        run()
    return report.sites


def one(run: Callable[[], object], status: str) -> LayoutSite:
    found = sites_of(run)
    (site,) = [s for s in found if s.status == status]
    return site


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.empty(2, 3, 4, 5), Format.CONTIGUOUS),
        (image(2, 3, 4, 5), Format.LAST),
        (image(2, 3, 4, 5, 6), Format.LAST),
        (torch.empty(2, 3, 4, 5, 6), Format.CONTIGUOUS),
        (image(2, 6, 4, 5)[:, 1:3], Format.LAST),
        (torch.empty(2, 6, 4, 5)[:, 1:3], Format.CONTIGUOUS),
        (image(2, 6, 4, 5)[:, :, ::2], Format.LAST),
        (torch.empty(2, 1, 4, 5), Format.AMBIGUOUS),
        (torch.empty(2, 6, 4, 5)[:, 1:2], Format.AMBIGUOUS),
        (image(2, 6, 4, 5)[:, 1:2], Format.AMBIGUOUS),
        (torch.empty(2, 3, 1, 1), Format.AMBIGUOUS),
        (torch.empty(0, 3, 4, 5), Format.AMBIGUOUS),
        (torch.empty(1).expand(2, 3, 4, 5), Format.AMBIGUOUS),
        (torch.empty(2, 3, 1, 1).expand(2, 3, 4, 5), Format.AMBIGUOUS),
        (torch.empty(2, 3, 4, 5).transpose(2, 3), Format.OTHER),
        (torch.empty(3, 4, 5), Format.NONE),
        (torch.empty(1, 3, 4, 5), Format.CONTIGUOUS),
        (image(1, 3, 4, 5), Format.LAST),
    ],
)
def test_formats(tensor: Tensor, expected: Format) -> None:
    assert format_of(tensor) is expected


def test_kept() -> None:
    x = image()
    site = one(lambda: F.relu(x), "kept")
    assert (site.op, site.phase, site.count, site.cost) == ("aten.relu", "forward", 1, 0)
    assert site.bytes == 2 * x.nbytes and site.shapes == ((2, 8, 6, 10),) and site.hint == ""
    assert Path(site.file) == Path(__file__)
    assert site.function in ("test_kept.<lambda>", "<lambda>")  # before Python 3.11


def test_lost() -> None:
    x = image()
    site = one(lambda: F.softmax(x, 1), "lost")
    assert site.op == "aten._softmax" and site.bytes == site.cost == 2 * x.nbytes
    assert MEASURED_WITH in site.hint and "permute(0, 2, 3, 1)" in site.hint


def test_restored() -> None:
    x = torch.randn(2, 8, 6, 10)
    site = one(lambda: x.contiguous(memory_format=torch.channels_last), "restored")
    assert site.op == "aten.clone" and site.bytes == 2 * x.nbytes
    weight = image(4, 8, 3, 3)
    assert one(lambda: F.conv2d(x, weight), "restored").op == "aten.convolution"


@pytest.mark.parametrize("back", ["convolution", "contiguous"])
def test_needless_if_undone_by_the_next_operator(back: str) -> None:
    x, weight = image(), image(4, 8, 3, 3)

    def run() -> None:
        y = x.contiguous()
        _ = F.conv2d(y, weight) if back == "convolution" else y.contiguous(memory_format=torch.channels_last)

    found = sites_of(run)
    (site,) = [s for s in found if s.status == "needless"]
    assert site.op == "aten.clone" and site.bytes == 2 * x.nbytes
    assert "aten.convolution" in site.hint or "aten.clone" in site.hint
    assert not [s for s in found if s.status == "lost"]


def test_needless_the_other_way_round() -> None:
    x = torch.randn(2, 8, 6, 10)

    last = torch.channels_last
    found = sites_of(lambda: x.contiguous(memory_format=last).contiguous())
    assert {s.status for s in found} == {"needless", "lost"}
    found = sites_of(lambda: F.softmax(x.contiguous(memory_format=last), 1))
    assert {s.status for s in found} == {"restored", "lost"}


def test_needless_if_nothing_changed() -> None:
    x = image()
    site = one(lambda: x.clone(memory_format=torch.channels_last), "needless")
    assert "already" in site.hint
    assert {s.status for s in sites_of(lambda: x.clone())} == {"kept"}


def test_a_conversion_that_is_used_is_not_needless() -> None:
    x = image()

    def run() -> None:
        y = x.contiguous()
        F.relu(y)
        y.contiguous(memory_format=torch.channels_last)

    assert [s.status for s in sites_of(run) if s.status in ("lost", "needless")] == ["lost"]


def test_ambiguous() -> None:
    x = image()
    site = one(lambda: x.mean((2, 3), keepdim=True), "ambiguous")
    assert site.op == "aten.mean" and site.cost == 0
    assert one(lambda: x.sum(1, keepdim=True), "ambiguous").op == "aten.sum"


def test_copied_inside() -> None:
    x = image()
    site = one(lambda: F.unfold(x, 3), "copied inside")
    assert site.op == "aten.im2col" and site.bytes == 2 * x.nbytes and MEASURED_WITH in site.hint


def test_copied_inside_for_a_weight() -> None:
    model = nn.Sequential(conv(3, 8), nn.Sequential(conv(8, 8)))
    x = image(2, 3, 8, 8)
    model[0].to(memory_format=torch.channels_last)
    with check(model) as report:
        model(x)
    (site,) = report.findings
    assert (site.status, site.op, site.module) == ("copied inside", "aten.convolution", "1.0")
    assert "parameter 1.0.weight (8, 8, 3, 3)" in site.hint
    assert "model.to(memory_format=torch.channels_last)" in site.hint
    assert site.bytes == 2 * model[1][0].weight.nbytes
    model.to(memory_format=torch.channels_last)
    with check(model) as report:
        model(x)
    assert not report.findings


def test_hints_on_volumes_name_their_format() -> None:
    x, y = image(2, 8, 4, 6, 8), torch.randn(2, 8, 4, 6, 8)
    named = "memory_format=torch.channels_last_3d"
    assert f".contiguous({named})" in one(lambda: F.adaptive_max_pool3d(x, 3), "lost").hint
    joined = one(lambda: torch.cat((x, y)), "lost")
    assert "input 1 of the cat, (2, 8, 4, 6, 8), is contiguous" in joined.hint
    assert joined.hint.endswith(f"give it .contiguous({named})")
    site = one(lambda: F.conv3d(x, torch.randn(4, 8, 3, 3, 3)), "copied inside")
    assert (
        f"its weight (4, 8, 3, 3, 3) is contiguous and copied in every call: model.to({named})" in site.hint
    )


def test_weights_are_no_images() -> None:
    model, x = in_channels_last(nn.Sequential(conv(3, 8), conv(8, 8)), 2, 3, 8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    with check(model) as report:
        for _ in range(2):
            optimizer.zero_grad()
            y = model(x)
            y.backward(torch.ones_like(y))
            optimizer.step()
    assert {s.op for s in report.sites} <= {"aten.convolution", "aten.convolution_backward", "aten.add_"}
    assert not [s for s in report.sites if (8, 3, 3, 3) in s.shapes]


def test_refused() -> None:
    x = image()
    with check() as report, pytest.raises(RuntimeError, match="view size"):
        x.view(2, -1)
    (site,) = report.findings
    assert (site.status, site.op) == ("refused", "aten.view") and ".reshape()" in site.hint
    with check() as report, pytest.raises(RuntimeError):
        torch.randn(2, 3, 4, 4).view(7)
    assert not report.findings


@pytest.mark.parametrize("first", ["plain", "last"])
def test_operands_of_two_formats(first: str) -> None:
    x, y = image(), torch.randn(2, 8, 6, 10)
    found = sites_of(lambda: y + x if first == "plain" else x + y)
    assert [s.status for s in found] == (["lost"] if first == "plain" else ["kept"])
    if first == "plain":
        assert "operand (2, 8, 6, 10) is contiguous" in found[0].hint


def test_cat_of_two_formats() -> None:
    x, y = image(), torch.randn(2, 4, 6, 10)
    site = one(lambda: torch.cat((x, y), 1), "lost")
    assert "input 1 of the cat, (2, 4, 6, 10), is contiguous" in site.hint


def test_tuples_of_results() -> None:
    x = image()
    sorted_ = one(lambda: x.sort(1), "kept")
    assert sorted_.op == "aten.sort"
    top = one(lambda: x.topk(2, 1), "lost")
    assert top.op == "aten.topk" and top.count == 1
    pool = one(lambda: F.max_pool2d(x, 2, return_indices=True), "kept")
    assert pool.op == "aten.max_pool2d_with_indices"


@pytest.mark.parametrize(
    "split", [lambda x: x.chunk(2, 1), lambda x: x.split([3, 5], 1), lambda x: x.unbind(0)]
)
def test_tuples_of_views_move_nothing(split: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    x = image()
    assert sites_of(lambda: split(x)) == []
    for site in sites_of(lambda: [F.relu(part[None] if part.dim() == 3 else part) for part in split(x)]):
        assert site.status == "kept"


def test_lists_of_tensors() -> None:
    x, y = image(), torch.randn(2, 8, 6, 10)
    assert one(lambda: torch._foreach_add([x, x], 1.0), "kept").op == "aten._foreach_add"
    assert one(lambda: torch._foreach_mul([x, y], 2.0), "lost").count == 1


@pytest.mark.parametrize(
    "stack",
    [
        lambda x: torch.stack([x[i] * 2 for i in range(2)]),
        lambda x: torch.stack([image.relu() for image in x]),
        lambda x: torch.stack(x.unbind(1), 1),
        lambda x: torch.stack([x[:, c].clone() for c in range(8)], dim=1),
    ],
    ids=["images", "iterated", "channels", "copied channels"],
)
def test_slices_that_are_stacked_again(stack: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 8, 6, 5).to(memory_format=torch.channels_last)
    with check() as report:
        y = stack(x)
        y.relu()
    assert y.is_contiguous()
    (site,) = report.findings
    assert (site.status, site.op, site.downstream_count) == ("lost", "aten.stack", 1)


def test_maps_of_images_that_are_stacked_are_no_loss() -> None:
    x = torch.randn(2, 8, 6, 5).to(memory_format=torch.channels_last)
    with check() as report:
        torch.stack([x.amax(1), x.mean(1)], 1)
        torch.stack([torch.zeros(2, 6, 5), torch.ones(2, 6, 5)], 1)
    assert not report.findings


def test_bfloat16_and_in_place() -> None:
    x = image()
    assert one(lambda: x.bfloat16(), "kept").op == "aten._to_copy"
    assert {s.status for s in sites_of(lambda: x.clone().relu_())} == {"kept"}


def test_what_is_contiguous_throughout_is_no_finding() -> None:
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(conv(3, 4), nn.ReLU(), nn.MaxPool2d(2))
    with check(model) as report:
        model(x).sum().backward()
    assert report.sites == [] and "nothing was in channels_last" in str(report)
    assert any("memory_format=torch.channels_last" in note for note in report.notes)


def test_raise_stops_at_the_line_that_loses_it() -> None:
    x = image()

    def run() -> None:
        F.relu(x)
        F.softmax(x, 1)  # here

    with (
        pytest.raises(LayoutError, match=r"aten\._softmax lost channels_last in the forward") as caught,
        check(mode="raise"),
    ):
        run()
    frames = [(entry.path, entry.lineno + 1) for entry in caught.traceback]
    assert (Path(__file__), line_of(run)) in [(Path(path), line) for path, line in frames]
    assert f"test_layout.py:{line_of(run)}" in str(caught.value) and "(2, 8, 6, 10)" in str(caught.value)


def test_raise_in_the_backward_names_the_forward() -> None:
    x = image().requires_grad_()

    def run() -> Tensor:
        return F.glu(x, 1)  # here

    with pytest.raises(LayoutError, match="in the backward") as caught, check(mode="raise"):
        y = run()
        y.backward(torch.ones_like(y))
    assert f"test_layout.py:{line_of(run)}" in str(caught.value)


def test_the_hint_on_a_mask_is_no_index_of_channels() -> None:
    x = image().requires_grad_()
    for run in (lambda: x[x > 0], lambda: torch.where(x > 0, x, 0)):
        with check() as report:
            run().square().sum().backward()
        if run()[0].dim() == 0:
            (site,) = report.findings
            assert site.op == "aten.index_put" and "torch.where(mask, x, 0)" in site.hint
            assert "index_select" not in site.hint
    assert not report.findings
    assert "index_select" in one(lambda: x[:, torch.tensor([1, 0])], "lost").hint


def test_the_hint_on_a_gradient_names_a_hook_that_converts_it() -> None:
    x = image().requires_grad_()

    def run(hook: bool) -> Tensor:
        y = x * 2
        if hook:
            y.register_hook(lambda grad: grad.contiguous(memory_format=torch.channels_last))
        return F.relu(F.glu(y, 1))

    found = []
    for hook in (False, True):
        with check() as report:
            y = run(hook)
            y.backward(torch.ones_like(y))
        (site,) = report.findings
        found.append(site.downstream_count)
        assert "x.register_hook(lambda grad: grad.contiguous(memory_format=torch.channels_last))" in site.hint
    assert found == [1, 1] and [s.op for s in report.sites if s.status == "restored"] == ["aten.clone"]


@pytest.mark.parametrize("kind", ["full name", "short name", "wildcard", "line", "file", "module"])
def test_allow(kind: str) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.softmax(x, 1)  # here

    model, x = nn.ModuleDict({"head": Net()}), image()
    allow = {
        "full name": "aten._softmax",
        "short name": "_softmax",
        "wildcard": "aten._soft*",
        "line": f"test_layout.py:{line_of(Net)}",
        "file": "test_layout.py",
        "module": "head",
    }[kind]
    with check(model, mode="raise", allow=(allow,)) as report:
        model["head"](x)
    assert not report.findings and [s.allowed for s in report.sites] == [True]
    assert "1 allowed loss" in str(report)
    with pytest.raises(LayoutError), check(model, mode="raise", allow=("aten.cat", "tail.*", "x.py:3")):
        model["head"](x)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="got int"):
        check(7)
    with pytest.raises(ValueError, match="'loud'"):
        check(mode="loud")
    with pytest.raises(TypeError, match="one string"):
        check(allow="aten.clone")
    with pytest.raises(TypeError, match="got 3"):
        check(allow=(3,))


def test_report_as_json_html_and_picture(tmp_path: Path) -> None:
    model, x = in_channels_last(nn.Sequential(conv(3, 8), nn.Softmax(1), conv(8, 8)), 2, 3, 8, 8)
    with check(model) as report:
        model(x)
    value = json.loads(report.to_json())
    assert set(value) == {"title", "sites", "notes", "summary"}
    lost = next(s for s in value["sites"] if s["status"] == "lost")
    assert lost["op"] == "aten._softmax" and lost["module"] == "1" and lost["cost"] >= lost["bytes"] > 0
    assert {"phase", "file", "line", "count", "shapes", "hint", "downstream_bytes"} <= set(lost)
    html = report._repr_html_()
    assert "<table>" in html and "aten._softmax" in html and "<script" not in html
    report.plot(tmp_path / "picture")
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")
    with check() as empty:
        pass
    empty.plot(tmp_path / "empty.png")
    assert "<table>" not in empty._repr_html_() and json.loads(empty.to_json())["sites"] == []


def test_the_picture_has_a_bar_for_each_module_and_marks_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opswap.layout import plot

    drawn: list[object] = []
    monkeypatch.setattr(plot, "draw_bars", lambda path, bars, *colours, **texts: drawn.extend((bars, texts)))

    def run(x: Tensor) -> Tensor:
        return F.softmax(x, 1)  # here

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return run(x)

    model, x = in_channels_last(nn.Sequential(conv(3, 8), Net(), nn.ReLU(), conv(8, 8)), 2, 3, 8, 8)
    with check(model) as report:
        model(x)
    report.plot(tmp_path / "picture")
    bars, texts = drawn
    assert [b.label for b in bars] == ["0", "1", "2", "3"] and texts["title"] == str(report).splitlines()[0]
    assert [b.mark for b in bars] == ["", f"lost: test_layout.py:{line_of(run)}", "", ""]
    moved = 2 * 8 * 8 * 8 * 4 / 1000  # kB of one image behind the first convolution
    kept = {plot._KEPT: x.nbytes / 1000 + moved}
    lost, after = {plot._COPIES: 2 * moved}, {plot._AFTER: 2 * moved}
    assert [dict(b.parts) for b in bars[:3]] == [pytest.approx(p) for p in (kept, lost, after)]
    assert bars[3].parts[plot._COPIES] == pytest.approx(2 * moved) and texts["unit"].startswith("kB ")


def test_rules_named_in_hints_exist() -> None:
    from opswap.layout import hints

    names = {rule.name for rule in DEFAULT}
    for text in hints._OPERATORS.values():
        for part in text.split("rule ")[1:]:
            assert part.split(")")[0] in names
    assert {"channel_shuffle", "cat_channel_shuffle", "cat_channel_shuffle_split"} <= names
    for name in ("channel_shuffle", "channel_permutation", "max_pool3d", "avg_pool3d"):
        assert hasattr(opswap.functional, name)
    assert hasattr(opswap.nn, "Pool3dAsPool2d")


@pytest.mark.skipif(
    f"torch {torch.__version__.partition('+')[0]}, CPU" != MEASURED_WITH, reason="measured with another torch"
)
def test_the_measured_lists_are_those_of_this_torch(capfd: pytest.CaptureFixture[str]) -> None:
    names = {
        4: ("softmax", "unfold", "relu", "masked_fill", "where", "conv2d"),
        5: ("avg_pool3d", "max_pool3d"),
    }
    found = measure({ndim: {name: SAMPLES[ndim][name] for name in chosen} for ndim, chosen in names.items()})
    capfd.readouterr()
    assert found.loses <= LOSES and found.inside <= COPIED_INSIDE
    assert {"aten._softmax", "aten.masked_fill", "aten.avg_pool3d"} <= found.loses
    assert "aten.im2col" in found.inside and not found.kept & (LOSES | COPIED_INSIDE)


_README = Path(opswap.layout.__file__).with_name("README.md")


def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    blocks = [part.split("```")[0] for part in _README.read_text().split("```python\n")[1:]]
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "shufflenetv2.py" in printed and "aten._softmax lost channels_last" in printed


def test_the_readme_lists_what_was_measured() -> None:
    text = _README.read_text()
    for name in LOSES | COPIED_INSIDE:
        assert f"`{name.partition('.')[2]}`" in text
