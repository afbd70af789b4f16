# SPDX-License-Identifier: MIT
"""Known defects of torch: `doctor` tries them, and swapped models do not meet them in any mode."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
from opswap import cli, doctor, torch_defects
from opswap import functional as F
from opswap.memory import page_faults
from opswap.memory.page_faults import AllocatorCost, Faults
from opswap.ops._convolution import gradient_overruns, library_backward
from opswap.ops.norm import gradient_missing
from opswap.torch_defects import DEFECTS, Defect, Outcome, try_all
from surviving import survive

pytestmark = pytest.mark.once
LAST = torch.channels_last


# --- doctor ----------------------------------------------------------------------------------------------------------


def _defect(code: str) -> Defect:
    return Defect("a layer", code, "keep away")


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("ours, right = torch.ones(2), torch.ones(2)", "right"),
        ("ours, right = torch.ones(2), torch.zeros(2)", "wrong result"),
        ("import os; os.abort()", "ended by signal 6"),
        ("raise ValueError", "not tried: exit status 1"),
        ("ours = right = torch.ones(2)\nassert 'opswap' not in sys.modules", "right"),
    ],
)
def test_verdicts(code: str, verdict: str) -> None:
    assert try_all([_defect(code)]) == [Outcome("a layer", verdict, "keep away")]


def test_a_process_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_defects, "_SECONDS", 0.2)
    assert try_all([_defect("while True: pass")])[0].verdict == "no answer in 0.2 seconds"


def test_a_python_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert try_all([_defect("")])[0].verdict.startswith("not tried: ")


def test_the_known_ones_are_tried() -> None:
    for outcome in try_all():
        assert outcome.verdict in ("right", "wrong result") or outcome.verdict.startswith("ended by"), outcome


def test_doctor_lists_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [Outcome("a layer", "wrong result", "keep away"), Outcome("another", "right", "")]
    monkeypatch.setattr(torch_defects, "try_all", lambda: outcomes)
    monkeypatch.setattr(doctor, "check_kernels", list)
    monkeypatch.setattr(page_faults, "allocator_cost", lambda: AllocatorCost(Faults(2.0, 1.0), None))
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "defects     torch has 1 of 2 known ones on this processor\n" in printed
    assert "  a layer: wrong result; keep away\n" in printed and "another" not in printed
    outcomes.pop(0)
    cli.main(["doctor"])
    assert "torch has none of 1 known ones" in capsys.readouterr().out


# --- swapped models --------------------------------------------------------------------------------------------------

SWAPPED = """
import sys
import opswap

def swapped(layer):
    channels = layer.in_channels if isinstance(layer, nn.Conv2d) else 4
    model = nn.Sequential(layer)
    opswap.swap(model, exact={exact}, example_inputs=(torch.randn(2, channels, 8, 8),))
    return model[0]
"""


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.name)
def test_a_swapped_layer_is_right(defect: Defect, exact: bool) -> None:
    code, count = re.subn(r"(nn\.(?:Conv2d|InstanceNorm2d|GroupNorm)\(.*\))\n", r"swapped(\1)\n", defect.code)
    assert count == 1
    assert torch_defects._verdict(SWAPPED.format(exact=exact) + code) == "right"


NETWORKS = """
from torch import nn
LAST = torch.channels_last

class Contiguous(nn.Module):
    def forward(self, x):
        return x.contiguous()

class Call(nn.Module):
    def __init__(self, weight, call):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(weight)), nn.Parameter(torch.randn(weight[0]))
        self.call = call

    def forward(self, x):
        return self.call(x, self.weight, self.bias)

def frozen():
    return nn.Conv2d(3, 16, 1).requires_grad_(False)

def bias_alone(layer):
    layer.weight.requires_grad_(False)
    return layer

conv2d, group_norm = nn.functional.conv2d, nn.functional.group_norm
nets = [
    lambda: nn.Sequential(nn.Conv2d(3, 48, 1, stride=2), nn.ReLU()),
    lambda: nn.Sequential(bias_alone(nn.Conv2d(3, 48, 1, stride=2)), nn.ReLU()),
    lambda: nn.Sequential(Contiguous(), nn.Conv2d(3, 48, 1, stride=2)),
    lambda: nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 16, 1, stride=(1, 2))),
    lambda: nn.Sequential(Call((48, 3, 1, 1), lambda x, w, b: conv2d(x, w, b, 2))),
    lambda: nn.Sequential(frozen(), nn.GroupNorm(4, 16)),
    lambda: nn.Sequential(frozen(), Call((16,), lambda x, w, b: group_norm(x, 4, w, b))),
]
for make in nets:
    for side in (6, 96):
        torch.manual_seed(0)
        stock = make()
        model = copy.deepcopy(stock)
        opswap.swap(model, memory_format=LAST, exact={exact}, rules={rules})
        for repeat in range(4):
            x = torch.randn(4, 3, side, side)
            y, z = model(x), stock(x)
            trained = [p for p in model.parameters() if p.requires_grad]
            expected = torch.autograd.grad(z.square().sum(), [p for p in stock.parameters() if p.requires_grad])
            got = torch.autograd.grad(y.square().sum(), trained, create_graph=repeat == 3)
            for a, b in zip(got, expected):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
print("ran")
"""


@pytest.mark.parametrize("rules", ["None", "'exact'", "()"], ids=["default", "exact", "mended alone"])
def test_a_memory_format_brings_none_into_play(rules: str) -> None:
    """The stock models are contiguous, and do not meet what torch has in channels_last."""
    exact, given = str(rules == "'exact'"), "None"
    if rules == "()":
        given = "[r for r in DEFAULT if r.name in ('strided_conv_gradient', 'group_norm_gradient')]"
    code = NETWORKS.replace("{exact}", exact).replace("{rules}", given)
    assert survive(f"import copy\nfrom opswap.swap.rules import DEFAULT\n{code}") == "ran\n"


CHECKED = """
from opswap.cli import main

sys.modules["factories"] = sys.modules["__main__"]
x = torch.randn(4, 3, 96, 96)
for number in (0, 1, 3, 4, 5, 6):
    torch.manual_seed(0)
    model = nets[number]()
    for exact in (False, True):
        assert all(check.holds for check in opswap.verify(model, (x,), exact=exact).checks)
    opswap.verify(opswap.swap(model, inplace=False), (x.contiguous(memory_format=LAST),))
    layers = copy.deepcopy(model).to(memory_format=LAST)
    for given in (x, x.contiguous(memory_format=LAST)):
        opswap.optimize(copy.deepcopy(layers), example_inputs=(given,), reuse_memory=False)
    opswap.optimize(model, example_inputs=(x,), reuse_memory=False)
make = nets[0]
arguments = "verify factories:make --input 4x3x96x96 --channels-last --seconds 0.1 --exact".split()
assert main(arguments) == 0
print("ran")
"""


def test_whoever_runs_the_stock_model_in_the_format_goes_on() -> None:
    """`verify` and `optimize` run a stock model in channels_last, which the caller may never have done."""
    code = f"import copy\n{NETWORKS.split('for make in')[0]}{CHECKED}"
    assert survive(code, timeout=900).endswith("ran\n")


ALONE = """
trained = lambda: nn.Conv2d(3, 16, 1)
nets = [
    lambda: nn.Sequential(trained(), nn.GroupNorm(4, 16)),
    lambda: nn.Sequential(trained(), nn.GroupNorm(1, 16), nn.ReLU()),
    lambda: nn.Sequential(trained(), Call((16,), lambda x, w, b: nn.functional.group_norm(x, 4, w, b))),
]
for make in nets:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for side in (6, 24, 96):
            torch.manual_seed(0)
            model = make().to(dtype)
            reference = copy.deepcopy(model).double()
            opswap.swap(model, memory_format=LAST, exact={exact})
            x = torch.randn(4, 3, side, side, dtype=dtype)
            y, z = model(x), reference(x.double())
            vectors = [(m[1].weight, m[1].bias) for m in (model, reference)]
            for asked in (slice(0, 2), slice(0, 1), slice(1, 2)):
                got = torch.autograd.grad(y.square().sum(), vectors[0][asked], retain_graph=True)
                expected = torch.autograd.grad(z.square().sum(), vectors[1][asked], retain_graph=True)
                y.sum().backward(inputs=vectors[0][asked], retain_graph=True)
                for a, b in zip(got, expected):
                    bound = 1e-3 if dtype != torch.bfloat16 else 0.1
                    torch.testing.assert_close(a.double(), b, rtol=bound, atol=bound * float(b.abs().max()))
print("ran")
"""


@pytest.mark.parametrize("exact", [False, True])
def test_gradients_of_a_group_norm_and_of_nothing_else(exact: bool) -> None:
    """The input has a gradient that nobody asks for."""
    code = f"import copy\n{NETWORKS.split('def frozen')[0]}{ALONE.replace('{exact}', str(exact))}"
    assert survive(code) == "ran\n"


# --- the operators ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "overruns"),
    [
        ({}, True),
        ({"stride": (1, 2)}, True),
        ({"stride": 1}, False),
        ({"stride": (2, 2, 2)}, False),
        ({"stride": 0}, False),
        ({"stride": "2"}, False),
        ({"channels": 16}, False),
        ({"kernel": 3}, False),
        ({"dtype": torch.float64}, False),
        ({"trained": False}, False),
        ({"planar": True}, False),
        ({"single": True}, True),
        ({"single": True, "channels": 16}, False),
    ],
    ids=str,
)
def test_what_overruns(change: dict[str, Any], overruns: bool) -> None:
    options = {
        "stride": 2,
        "channels": 15,
        "kernel": 1,
        "dtype": torch.float32,
        "trained": True,
        "planar": False,
        "single": False,
    }
    options |= change
    channels, kernel = options["channels"], options["kernel"]
    x = torch.randn(2, channels, 8, 8, dtype=options["dtype"])
    weight = torch.randn(
        4, channels, kernel, kernel, dtype=options["dtype"], requires_grad=options["trained"]
    )
    if not options["planar"]:
        x = x.contiguous(memory_format=LAST)
    if options["single"]:  # whose format is that of the weight, as for torch
        x = x[0]
        weight = weight.detach().to(memory_format=LAST).requires_grad_(options["trained"])
    assert gradient_overruns(x, weight, None, options["stride"]) == overruns
    bias = torch.zeros(4, requires_grad=True)  # torch computes both gradients together
    assert gradient_overruns(x, weight.detach(), bias, options["stride"]) == (
        overruns or not options["trained"]
    )
    with torch.no_grad():
        assert not gradient_overruns(x, weight, bias, options["stride"])


@pytest.mark.parametrize("stride", [2, 3, (1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 15])
def test_gradients_of_the_library(channels: int, stride: Any) -> None:
    """Differentiable, and those of torch in float64, which is right."""
    torch.manual_seed(0)
    x = torch.randn(2, channels, 9, 8, dtype=torch.float64).contiguous(memory_format=LAST)
    weight = torch.randn(6, channels, 1, 1, dtype=torch.float64)
    pair = (stride, stride) if isinstance(stride, int) else stride
    grad = torch.randn_like(T.conv2d(x, weight, None, pair))
    expected = library_backward(grad, x, weight, pair, (0, 0), 1, (True, True, True))
    leaves = [t.float().requires_grad_() for t in (grad, x, weight)]
    got = library_backward(*leaves, pair, (0, 0), 1, (True, True, True))
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-4)
    second = torch.autograd.grad(sum(g.square().sum() for g in got), leaves)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    sums = library_backward(*exact, pair, (0, 0), 1, (True, True, True))
    theirs = torch.autograd.grad(sum(g.square().sum() for g in sums), exact)
    for a, b in zip(second, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
    only = library_backward(*leaves, pair, (0, 0), 1, (False, True, False))
    assert only[0] is None and only[2] is None
    assert torch.equal(only[1], got[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("affine", ["weight", "bias", "both"])
def test_group_norm_behind_frozen_layers_has_torchs_bits(affine: str, dtype: torch.dtype) -> None:
    """The output of torch's kernel in this memory format, and the gradients that it gives with one of the input."""
    torch.manual_seed(0)
    norm = nn.GroupNorm(2, 6).to(dtype)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    norm.weight.requires_grad_(affine != "bias")
    norm.bias.requires_grad_(affine != "weight")
    trained = [p for p in norm.parameters() if p.requires_grad]
    x = torch.randn(3, 6, 5, 4).to(dtype).contiguous(memory_format=LAST)
    model = opswap.swap(nn.Sequential(copy.deepcopy(norm)), exact=True)
    y, other = model(x), x.clone(memory_format=torch.preserve_format).requires_grad_()
    z = norm(other)
    assert torch.equal(y, z) and y.stride() == z.stride()
    grad = torch.randn_like(y)
    got = torch.autograd.grad(y, [p for p in model.parameters() if p.requires_grad], grad)
    _, *expected = torch.autograd.grad(z, [other, *trained], grad)
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_second_gradients_of_group_norm_behind_frozen_layers() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 6, 5, 4, dtype=torch.float64).contiguous(memory_format=LAST)
    model = opswap.swap(nn.Sequential(nn.GroupNorm(2, 6).double()), exact=True)

    def call(weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(model, {"0.weight": weight, "0.bias": bias}, (x,))

    vectors = [torch.rand(6, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(call, vectors) and torch.autograd.gradgradcheck(call, vectors)


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (lambda x, w: (x, 2, w, w), True),
        (lambda x, w: (x, 2, None, w), True),
        (lambda x, w: (x, 2, w.detach(), None), False),
        (lambda x, w: (x, 4, w, w), False),
        (lambda x, w: (x, "2", w, w), False),
        (lambda x, w: (x.contiguous(), 2, w, w), False),
        (lambda x, w: (x.detach().requires_grad_(), 2, w, w), True),
        (lambda x, w: (x, 2, w[:3], w), False),
        (lambda x, w: (None, 2, w, w), False),
    ],
)
def test_where_a_gradient_is_missing(arguments: Callable[[Tensor, Tensor], Any], missing: bool) -> None:
    x = torch.randn(3, 6, 5, 4).contiguous(memory_format=LAST)
    given = arguments(x, torch.rand(6, requires_grad=True))
    assert gradient_missing(*given) == missing
    with torch.no_grad():
        assert not gradient_missing(*given)


def test_the_function_alone_is_right() -> None:
    """Slices of wider tensors, which no kernel supports."""
    x = torch.randn(3, 8, 5, 4).contiguous(memory_format=LAST)[:, :6]
    weight, bias = (torch.rand(6, requires_grad=True) for _ in range(2))
    got = torch.autograd.grad(F.group_norm(x, 2, weight, bias).square().sum(), (weight, bias))
    expected = torch.autograd.grad(
        T.group_norm(x.contiguous(), 2, weight, bias).square().sum(), (weight, bias)
    )
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_reports_and_explanations() -> None:
    model = opswap.swap(nn.Sequential(nn.Conv2d(3, 8, 1, stride=2), nn.GroupNorm(2, 8)), exact=True)
    rules = {s.rule for s in opswap.report(model).swapped}
    assert rules == {"strided_conv_gradient", "group_norm_gradient"}
    explanation = str(opswap.explain(model, torch.randn(2, 3, 8, 8)))
    assert "gradient of its weight is right" in explanation
    assert "trained weight or bias in channels_last" in explanation


class NormOfWeights(nn.Module):
    """A call of the function with a column of a matrix as its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.bias = nn.Parameter(torch.rand(8, 2)), nn.Parameter(torch.rand(8))
        self.register_buffer("statistics", torch.rand(8, 2) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.statistics[:, 0], self.statistics[:, 1]
        return nn.functional.batch_norm(x, mean, var, self.weights[:, 0], self.bias, self.training, 0.1, 1e-5)


def strided_norm(*names: str) -> nn.Module:
    norm = nn.BatchNorm2d(8)
    (
        nn.init.uniform_(norm.weight),
        nn.init.uniform_(norm.running_mean),
        nn.init.uniform_(norm.running_var, 0.5),
    )
    for name in names:
        value = torch.rand(8, 2)[:, 0]
        setattr(norm, name, value if name.startswith("running") else nn.Parameter(value))
    return norm


MISREAD: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "weight": (lambda: strided_norm("weight", "bias"), True),
    "statistics": (lambda: strided_norm("running_mean", "running_var"), True),
    "all": (lambda: strided_norm("weight", "bias", "running_mean", "running_var"), True),
    "call": (NormOfWeights, False),  # with exact=True it is torch's, as in stock code in channels_last
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", MISREAD)
def test_vectors_that_are_not_contiguous(name: str, train: bool, exact: bool) -> None:
    make, mended = MISREAD[name]
    if exact and not mended:
        pytest.skip("left to torch")
    nets = []
    for _ in range(2):  # a copy of a parameter is contiguous
        torch.manual_seed(0)
        nets.append(nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), make(), nn.Conv2d(8, 8, 3)).train(train))
    stock, model = nets
    opswap.swap(model, memory_format=torch.channels_last, exact=exact)
    gradients = []
    for m in (stock, model):
        x = torch.arange(2.0 * 4 * 9 * 9).sin().view(2, 4, 9, 9).requires_grad_()
        m(x).square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in m.parameters()), *m.buffers()])
    for got, expected in zip(*gradients[::-1], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("train", [True, False])
def test_columns_of_one_matrix_as_statistics(train: bool, activation: str | None) -> None:
    """Their memory overlaps, for which torch's function runs."""
    gradients = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        x = torch.randn(2, 8, 6, 6).to(memory_format=memory_format).requires_grad_()
        vectors = (*(torch.rand(8, 2) + 0.5).unbind(1), *torch.rand(8, 2).unbind(1))
        if memory_format is torch.contiguous_format:
            vectors = tuple(v.clone() for v in vectors)
        weight = vectors[2].requires_grad_()
        y = F.batch_norm_act(x, *vectors, train, activation=activation)
        y.backward(torch.randn(2, 8, 6, 6).to(memory_format=memory_format))
        gradients.append([x.grad, weight.grad, *(v.detach() for v in vectors[:2])])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
