# SPDX-License-Identifier: MIT
"""Rewrites that keep a size: spelled for the line, and equal to it in value and gradient."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import opswap
from opswap.shapes.rewrites import Observed, advice, rewrite


def tensors() -> dict[str, Any]:
    mask = torch.rand(6) < 0.6
    mask[:2] = torch.tensor([True, False])
    return {
        "x": torch.randn(6, dtype=torch.float64),
        "y": torch.randn(6, dtype=torch.float64),
        "rows": torch.randn(6, 5, dtype=torch.float64),
        "logits": torch.randn(6, 4, dtype=torch.float64),
        "labels": torch.randint(4, (6,)),
        "square": torch.randn(6, 6, dtype=torch.float64),
        "corners": torch.rand(6, 6) < 0.5,
        "mask": mask,
        "count": torch.tensor(4),
        "repeats": torch.tensor([1, 0, 2, 3, 0, 1]),
        "classes": torch.randint(5, (9,)),
        "weights": torch.rand(9, dtype=torch.float64),
        "torch": torch,
        "F": F,
        "opswap": opswap,
    }


ROW = Observed("index", 1, 1)
SQUARE = Observed("index", 2, 0)
# The line, what the run showed, the rewrite; `N` is set by the test.
REWRITES = [
    ("r = x[mask].sum()", Observed("index"), "r = torch.where(mask, x, 0).sum()"),
    ("r = x[x > 0].mean()", Observed("index"), "r = torch.where(x > 0, x, 0).sum() / (x > 0).sum()"),
    (
        "r = torch.masked_select(x, mask).sum()",
        Observed("masked_select"),
        "r = torch.where(mask, x, 0).sum()",
    ),
    ("r = x.masked_select(mask).norm()", Observed("masked_select"), "r = torch.where(mask, x, 0).norm()"),
    ("r = torch.sum(x[mask])", Observed("index"), "r = torch.where(mask, x, 0).sum()"),
    ("r = x[mask].prod()", Observed("index"), "r = torch.where(mask, x, 1).prod()"),
    ("r = x[mask].max()", Observed("index"), "r = x.masked_fill(~mask, float('-inf')).max()"),
    ("r = x[mask].amin()", Observed("index"), "r = x.masked_fill(~mask, float('inf')).amin()"),
    ("r = x[mask].logsumexp(0)", Observed("index"), "r = x.masked_fill(~mask, float('-inf')).logsumexp(0)"),
    ("r = rows[mask].sum(0)", ROW, "r = torch.where(mask[..., None], rows, 0).sum(0)"),
    ("r = rows[mask].mean(dim=0)", ROW, "r = torch.where(mask[..., None], rows, 0).sum(0) / mask.sum()"),
    ("r = rows[mask].mean()", ROW, None),
    ("r = rows[mask].amax(0)", ROW, "r = rows.masked_fill(~mask[..., None], float('-inf')).amax(0)"),
    ("r = square[corners].sum(0)", SQUARE, "r = torch.where(corners, square, 0).sum((0, 1))"),
    (
        "r = x[x > 0].sum() + y[~mask].sum()",
        Observed("index"),
        "r = torch.where(x > 0, x, 0).sum() + y[~mask].sum()",
    ),
    (
        "r = y[[0, 2]].sum() + x[mask].sum()",
        Observed("index"),
        "r = y[[0, 2]].sum() + torch.where(mask, x, 0).sum()",
    ),
    ("r = x[mask].shape[0]", Observed("index"), "r = mask.sum()"),
    ("r = len(rows[mask])", ROW, "r = mask.sum()"),
    ("r = x[mask].numel()", Observed("index"), "r = mask.sum()"),
    ("r = F.l1_loss(x[mask], y[mask])", Observed("index"), "r = opswap.shapes.losses.l1(x, y, mask)"),
    (
        "r = F.smooth_l1_loss(rows[mask], rows.flip(0)[mask], beta=0.5)",
        ROW,
        "r = opswap.shapes.losses.smooth_l1(rows, rows.flip(0), mask, beta=0.5)",
    ),
    (
        "r = F.cross_entropy(logits[mask], labels[mask], reduction='sum')",
        ROW,
        "r = opswap.shapes.losses.cross_entropy(logits, labels, mask, reduction='sum')",
    ),
    ("r = 2 * x; r[mask] = 0", Observed("index_put"), "r = torch.where(mask, 0, r)"),
    ("r = 2 * x; r[mask] *= 3", Observed("index_put"), "r = torch.where(mask, r * 3, r)"),
    (
        "r = 2 * rows; r[mask] = r[mask] + 1",
        Observed("index_put", 1, 1),
        "r = torch.where(mask[..., None], r + 1, r)",
    ),
    (
        "r = 2 * x; r[mask] = y[mask].exp() * 2",
        Observed("index_put"),
        "r = torch.where(mask, torch.where(mask, y, 1).exp() * 2, r)",
    ),
    (
        "r = 2 * x; r[mask] = r[mask] - r[mask].mean()",
        Observed("index_put"),
        "r = torch.where(mask, r - torch.where(mask, r, 0).sum() / mask.sum().clamp(min=1), r)",
    ),
    (
        "r = 2 * rows; r[mask] = r[mask] - r[mask].mean(0)",
        Observed("index", 1, 1),
        "r = torch.where(mask[..., None], r - torch.where(mask[..., None], r, 0).sum(0)"
        " / mask.sum().clamp(min=1), r)",
    ),
    ("r = 2 * rows; r[mask] -= torch.mean(r[mask])", ROW, None),
    ("r = 2 * x; r[mask] /= r[mask].norm()", Observed("index_put"), None),
    # What the mask leaves out has no finite gradient there.
    ("mask = x.detach() > 0; r = 2 * x; r[mask] = r[mask].sqrt()", Observed("index_put"), None),
    ("mask = x.detach() > 0; r = 2 * x; r[mask] = torch.log(r[mask]) * 2", Observed("index_put"), None),
    ("mask = x.detach() > 0; r = 2 * x; r[mask] = r[mask] ** 0.5", Observed("index_put"), None),
    ("mask = x.detach() > 0; r = 2 * x; r[mask] = torch.pow(r[mask], 0.5)", Observed("index_put"), None),
    (
        "mask = x.detach() > 0; r = 2 * x; r[mask] = 1 / (r[mask] + r[mask].abs())",
        Observed("index_put"),
        None,
    ),
    (
        "mask = x.detach() > 0; r = 2 * x; r[mask] = torch.div(1, torch.relu(r[mask]))",
        Observed("index_put"),
        None,
    ),
    ("mask = x.detach() < 0; r = 1e4 * x; r[mask] = r[mask].exp()", Observed("index_put"), None),
    (
        "r = 2 * x; r[mask] = torch.clamp(-r[mask], min=0)",
        Observed("index_put"),
        "r = torch.where(mask, torch.clamp(-r, min=0), r)",
    ),
    ("r = 2 * x; r[mask] = float('2')", Observed("index_put"), "r = torch.where(mask, float('2'), r)"),
    (
        "r = labels[mask].max()",
        Observed("index", floating=False),
        "r = torch.where(mask, labels, torch.iinfo(labels.dtype).min).max()",
    ),
    (
        "r = labels[mask].amin()",
        Observed("index", floating=False),
        "r = torch.where(mask, labels, torch.iinfo(labels.dtype).max).amin()",
    ),
    ("r = torch.nonzero(mask, as_tuple=False)", Observed("nonzero"), None),
    ("r = torch.nonzero(corners, as_tuple=True)", Observed("nonzero"), None),
    ("r = len(torch.nonzero(mask))", Observed("nonzero"), "r = torch.count_nonzero(mask)"),
    ("r = corners.nonzero().shape[0]", Observed("nonzero"), "r = torch.count_nonzero(corners)"),
    ("r = torch.nonzero(mask)", Observed("nonzero"), "r = torch.nonzero_static(mask, size=N, fill_value=0)"),
    ("r = torch.where(corners)", Observed("nonzero"), None),
    ("r = torch.where(mask)[0]", Observed("nonzero"), None),
    (
        "r = mask.nonzero().squeeze(1)",
        Observed("nonzero"),
        "r = torch.nonzero_static(mask, size=N, fill_value=0).squeeze(1)",
    ),
    ("r = len(torch.where(mask)[0])", Observed("nonzero"), "r = torch.count_nonzero(mask)"),
    (
        "r = corners.nonzero(as_tuple=True)[1].numel()",
        Observed("nonzero"),
        "r = torch.count_nonzero(corners)",
    ),
    ("r = x / torch.where(mask)[0].shape[0]", Observed("nonzero"), "r = x / torch.count_nonzero(mask)"),
    (
        "r = len(torch.unique(labels))",
        Observed("unique"),
        "r = ((ordered := labels.flatten().sort().values)[1:] != ordered[:-1]).sum() + (ordered.numel() > 0)",
    ),
    (
        "x = x.detach(); x[:3] = torch.tensor([1, -1, -1]) * torch.inf; r = len(torch.unique(x))",
        Observed("unique"),
        None,
    ),
    ("x = x.detach(); x[:3] = torch.nan; r = len(torch.unique(x))", Observed("unique"), None),
    ("x = x.detach(); x[1:3] = torch.nan; r = len(torch.unique_consecutive(x))", Observed("unique"), None),
    ("r = len(torch.unique(x[:0]))", Observed("unique"), None),
    ("r = torch.unique(corners).numel()", Observed("unique"), None),
    (
        "r = torch.bincount(classes)",
        Observed("bincount"),
        "r = torch.zeros(N, dtype=classes.dtype).index_add(0, classes, torch.ones_like(classes))",
    ),
    ("r = torch.bincount(classes, weights, minlength=8)", Observed("bincount"), None),
    (
        "r = torch.repeat_interleave(x, repeats)",
        Observed("repeat_interleave"),
        "r = torch.repeat_interleave(x, repeats, output_size=N)",
    ),
    ("r = x if count.item() > 3 else y", Observed("item"), None),
    ("r = x if (x > 0).any() else y", Observed("item"), "r = torch.where((x > 0).any(), x, y)"),
    ("r = x[:int(count)].sum()", Observed("item"), None),
    ("r = rows[:count].sum()", Observed("item"), None),
    (
        "r = x[:int(count / 3)].sum()",
        Observed("item"),
        "r = torch.where((torch.arange(x.shape[0]) < (count / 3).long())"
        ".reshape(-1, *[1] * (x.dim() - 1)), x, 0).sum()",
    ),
    ("n = count + 0.5; r = rows[:int(n)].sum()", Observed("item"), None),
    ("r = x * count.item()", Observed("item"), "r = x * count.detach()"),
    ("r = (x * count.item()).expand(int(count) + 1, -1)", Observed("item"), None),
    ("r = x.sum() / y.max().item()", Observed("item"), "r = x.sum() / y.max().detach()"),
    ("r = x * float(y[0].item()) + float('2')", Observed("item"), "r = x * y[0].detach() + float('2')"),
    ("r = x * int((y[0] * 4).item())", Observed("item"), "r = x * (y[0] * 4).long()"),
    ("r = x * bool(y[0]) + bool(y[1] > 0)", Observed("item"), None),
    (
        "r = x[:int(count)].sum() / y.max().item()",
        Observed("item"),
        "r = x[:int(count)].sum() / y.max().detach()",
    ),
    ("r = x[:2] * torch.zeros(int(count)).sum() * y[0].item()", Observed("item"), None),
    ("r = x if int(count / 3) > 0 else y * y[0].item()", Observed("item"), None),
    ("r = x / 2 + y ** 2 if count > 3 else y.pow(3).div(4)", Observed("item"), None),
]


def run(code: str, names: dict[str, Any], **more: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    floats = [k for k, v in names.items() if getattr(v, "dtype", None) is torch.float64 and k != "weights"]
    leaves = {k: names[k].clone().requires_grad_() for k in floats}
    scope = {**names, **leaves, **more}
    exec(code, scope)
    result = scope["r"]
    parts = result if isinstance(result, tuple) else (result,)
    total = sum((p * 1.5).sum() for p in parts if isinstance(p, torch.Tensor) and p.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    return result, {k: torch.zeros_like(v) if v.grad is None else v.grad for k, v in leaves.items()}


@pytest.mark.parametrize(("code", "observed", "text"), REWRITES, ids=[r[0] for r in REWRITES])
def test_equals_the_line(code: str, observed: Observed, text: str | None) -> None:
    *setup, last = ast.parse(code).body
    before = "".join(f"{ast.unparse(s)}\n" for s in setup)
    found = rewrite(last, observed)
    assert found and (text is None or found == text)
    assert ast.dump(last) == ast.dump(ast.parse(ast.unparse(last)).body[0]), (
        "the statement itself is left alone"
    )
    for _ in range(10):
        names = tensors()
        want, gradients = run(before + ast.unparse(last), names)
        n = len(want[0]) if isinstance(want, tuple) else len(want) if getattr(want, "ndim", 0) else 0
        got, others = run(before + found, names, N=n)
        got, want = (v if isinstance(v, tuple) else torch.as_tensor(v) for v in (got, want))
        # Nothing may be selected, whose mean is NaN.
        torch.testing.assert_close(got, want, check_dtype=False, equal_nan=True)
        for name, gradient in gradients.items():
            torch.testing.assert_close(others[name], gradient, equal_nan=True)


@pytest.mark.parametrize(
    ("code", "observed"),
    [
        ("r = f(x[mask])", Observed("index")),
        ("r = x[rows].sum() + x[mask].sum()", Observed("index")),
        ("r = x[rows].sum() + x[:, mask].sum()", Observed("index")),
        ("r = levels[i][mask].sum()", Observed("index")),
        ("r = x[rows].sum() + x.masked_select(mask).sum()", Observed("masked_select")),
        ("r = x[mask].sum(1)", ROW),
        ("r = x[mask].median()", Observed("index")),
        ("r = torch.unique(x)", Observed("unique")),
        ("r = F.l1_loss(x[mask], y[other])", Observed("index")),
        ("r = x.sum()", Observed("nonzero")),
        ("x[mask] = x[mask].softmax(-1)", Observed("index_put")),
        ("x[mask] = x[mask] - x[mask].median()", Observed("index_put")),
        ("x[mask] = x[mask] - x[other].mean()", Observed("index_put")),
        ("x[mask] = x[mask].log(base=y[mask])", Observed("index_put")),
        ("r = print(count.item()) if count.item() > 3 else None", Observed("item")),
        ("r = x.sum() / n if n > 0 else x.sum() * 2", Observed("item")),
        ("r = x if n <= 0 else torch.div(x, n)", Observed("item")),
        ("r = x.log() if x.min() > 0 else x", Observed("item")),
        ("r = x ** -1 if x.min() > 0 else x", Observed("item")),
        ("r = x if x.min() < 0 else (x + 1).sqrt() * 2", Observed("item")),
        ("r = x.norm() if n > 0 else x.sum()", Observed("item")),
        ("r = x.pow(n) if n > 0 else x", Observed("item")),
        ("r = x if not x.any() else y", Observed("item")),
        ("r = x if n > 0 and y.any() else y", Observed("item")),
        ("r = x[:-int(n)].sum()", Observed("item")),
        ("h = 10 + int(n)", Observed("item")),
        ("h = -int(n) * len(x)", Observed("item")),
        ("r = torch.zeros(k * int(n), 3)", Observed("item")),
        ("r = x.view(k * int(n), -1)", Observed("item")),
        ("if x * n.item() > 3: pass", Observed("item")),
        ("assert x * n.item() > 3", Observed("item")),
        ("r = x / max(1, n.item())", Observed("item")),
        ("r = x * math.log(n.item())", Observed("item")),
        ("r = x[:int(n) - 3].sum()", Observed("item")),
        ("x[mask] = y[other]", Observed("index_put")),
        ("x[mask] = torch.cat([y[mask], y])", Observed("index_put")),
        ("x[mask] = f(x[mask])", Observed("index_put")),
        ("x[mask] = x[mask].clamp(min=y[mask])", Observed("index_put")),
        ("r = x[-1].sum()", Observed("index")),
        ("r = x[[0, 2, 3]].sum()", Observed("index")),
        ("r = x[[i for i in kept]].sum()", Observed("index")),
        ("x[[0, 2]] = 1", Observed("index_put")),
        ("r = torch.nonzero(mask, as_tuple=flag)", Observed("nonzero")),
        ("r = len(torch.nonzero(mask, as_tuple=True))", Observed("nonzero")),
        ("r = len(torch.where(mask))", Observed("nonzero")),
        ("r = corners.nonzero().numel()", Observed("nonzero")),
        ("r = x[mask.nonzero()].sum()", Observed("nonzero")),
        ("r = torch.where(mask)[0].sum()", Observed("nonzero")),
        ("r = mask.nonzero().T", Observed("nonzero")),
        ("for i in mask.nonzero(): pass", Observed("nonzero")),
        ("r = f(torch.where(mask)[0])", Observed("nonzero")),
        ("r = F.mse_loss(x[mask], y[mask], size_average=False)", Observed("index")),
        ("r = classes[mask].logsumexp(0)", Observed("index", floating=False)),
    ],
)
def test_what_has_no_rewrite(code: str, observed: Observed) -> None:
    assert rewrite(ast.parse(code).body[0], observed) == ""


@pytest.mark.parametrize(
    ("code", "observed", "text"),
    [
        (
            "kept = rows[x > 0]",
            ROW,
            "`torch.where((x > 0)[..., None], rows, 0)`, or a loss of opswap.shapes.losses with `valid=x > 0`",
        ),
        ("a, b = x[mask], y[mask]", Observed("index"), "all of `x` and `y`, and `mask` as a mask"),
        ("if x[mask].std() > 1:\n    y[other]", Observed("index"), "`torch.where(mask, x, 0)`"),
        ("kept = x[x > 0]", Observed("index"), "`torch.where(x > 0, x, 0)`"),
        ("rows[mask] = f(x[mask])", Observed("index"), "`torch.where(mask, x, 0)`"),
        (
            "rows[mask] = f(rows[mask])",
            Observed("index_put", 1, 1),
            "`rows = torch.where(mask[..., None], value, rows)`",
        ),
        ("rows[mask, 0] = 1", Observed("index_put", 1, 0), ""),
        ("a, b = x[mask], y[other]", Observed("index"), ""),
        ("a = x.unique()", Observed("unique"), ""),
    ],
)
def test_advice_has_the_names_of_the_line(code: str, observed: Observed, text: str) -> None:
    found = advice(ast.parse(code).body[0], observed)
    assert text in found and bool(text) == bool(found)


@pytest.mark.parametrize(
    "code",
    [
        "if mask.any():\n    y = x * count.item()",
        "for i in range(int(count)):\n    y = x[:int(count)].sum()",
        "while x.sum() > 0:\n    pass\nelse:\n    y = x * count.item()",
        "match count.item():\n    case 1:\n        y = x * count.item()",
    ],
)
def test_a_body_is_another_line(code: str) -> None:
    """What a rewrite knows in the body of a statement is no reason to show its first line as one."""
    assert rewrite(ast.parse(code).body[0], Observed("item")) == ""


def test_the_line_is_not_shown_as_its_own_rewrite() -> None:
    def run(x: torch.Tensor, scale: torch.Tensor) -> Any:
        if x.sum() > 1e9:
            return x * scale.item()
        return x

    with opswap.shapes.detect() as report:
        run(torch.ones(3), torch.ones(()))
    (site,) = report.findings
    assert site.status == "branch" and "compute both sides" in site.hint
