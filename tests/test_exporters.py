# SPDX-License-Identifier: MIT
"""torch.jit.trace, torch.jit.script, torch.export and both ONNX exporters, of functions, modules and swapped models."""

from __future__ import annotations

import copy
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import functional_cases
import opswap
import opswap.functional as F
from functional_cases import FUNCTIONS, Case, as_tuple
from surviving import python
from versions import before

MODULES = functional_cases.modules()
# Those of one class are represented by one.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "shufflenet_v2_x0_5": (lambda: opswap.models.shufflenet_v2_x0_5(10), (2, 3, 64, 64)),
    "lprnet": (lambda: opswap.models.lprnet(11, 0.0), (2, 3, 24, 94)),
    "lprnet_dropout": (lambda: opswap.models.lprnet(11), (2, 3, 24, 94)),
    "multi_branch": (lambda: opswap.models.multi_branch((3, 7, 2)), (2, 3, 32, 32)),
}
has_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")),
    reason="onnx and onnxscript are not installed",
)

# Loads every graph of a folder in a process that cannot import opswap, and compares with what was expected.
_LOAD = """
import pathlib, sys
sys.modules["opswap"] = None
import torch
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.pt")):
    graph = torch.jit.load(file)
    inputs, expected = torch.load(file.with_suffix(".data"))
    made = graph(*inputs)
    made = (made,) if isinstance(made, torch.Tensor) else tuple(made)
    for a, b in zip(made, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    print(file.stem)
"""


def make_pair(name: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """The stock model in evaluation mode, the same swapped, an input."""
    make, size = MODELS[name]
    stock = make().eval()
    model = opswap.swap(copy.deepcopy(stock))
    assert opswap.report(model).swapped
    return stock, model, torch.randn(size)


def trace(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Any:
    """The traced function; its sanity check runs, and opswap adds no warning of its own."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(function, inputs)
    # torch's own check of BatchNorm's batch, and of models, are not opswap's.
    ours = [str(w.message) for w in caught if "/opswap/ops/" in w.filename or "/opswap/nn/" in w.filename]
    assert not ours
    return traced


class TestTraceOfFunctions:
    def test_every_function_and_module_has_a_case(self) -> None:
        assert {case.name for case in FUNCTIONS} == set(F.__all__)
        assert {case.name for case in MODULES} == set(opswap.nn.__all__)

    @pytest.mark.parametrize("requires_grad", [False, True])
    @pytest.mark.parametrize("case", [*FUNCTIONS, *MODULES], ids=repr)
    def test_graph_is_of_torch_alone(self, case: Case, requires_grad: bool) -> None:
        inputs = case.inputs()
        for t in inputs[:1] + inputs[-2:] * (len(inputs) > 1):
            t.requires_grad_(requires_grad)
        traced = trace(case.ours, inputs)
        kinds = {node.kind() for node in traced.inlined_graph.nodes()}
        assert not any(k.startswith("opswap::") or k == "prim::PythonOp" for k in kinds)
        for a, b in zip(as_tuple(traced(*inputs)), as_tuple(case.stock(*inputs)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            assert a.requires_grad is b.requires_grad

    @pytest.mark.parametrize("case", [c for c in FUNCTIONS if c.name != "dropout"], ids=repr)
    def test_batch_stays_free(self, case: Case) -> None:
        inputs = case.inputs()
        traced = trace(case.ours, inputs)
        (first, *_), same = inputs, case.name.startswith("cat_")
        larger = [torch.cat((t, t)) if i == 0 or same else t for i, t in enumerate(inputs)]
        assert len(larger[0]) == 2 * len(first)
        for a, b in zip(as_tuple(traced(*larger)), as_tuple(case.stock(*larger)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("case", [c for c in FUNCTIONS if not c.channels_last], ids=repr)
    def test_gradients_of_the_graph(self, case: Case) -> None:
        inputs = tuple(t.requires_grad_(t.dim() > 1) for t in case.inputs(torch.float64))
        differentiable = [t for t in inputs if t.requires_grad]
        traced = trace(case.ours, inputs)
        gradients = []
        for function in (traced, case.stock):
            outputs = as_tuple(function(*inputs))
            gradients.append(torch.autograd.grad(sum(o.sin().sum() for o in outputs), differentiable))
        torch.testing.assert_close(*gradients)

    @pytest.mark.parametrize("case", [c for c in FUNCTIONS if c.name != "dropout"], ids=repr)
    def test_filters_of_warnings_are_left_alone(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """They belong to the process: another thread would lose a filter of its own, or keep one of a trace."""
        inputs, entered = case.inputs(), []
        plain = warnings.catch_warnings.__enter__

        def enter(self: Any) -> Any:
            frame = sys._getframe(1)
            entered.append(frame.f_code.co_filename)
            return plain(self)

        monkeypatch.setattr(warnings.catch_warnings, "__enter__", enter)
        torch.jit.trace(case.ours, inputs, check_trace=False)
        assert not [file for file in entered if "opswap" in file]

    def test_index_of_channels(self) -> None:
        """What a swapped `x[:, index]` runs."""
        from opswap.ops.permutation import take_channels

        index = torch.tensor([2, 0, 1])
        for x in (torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4, requires_grad=True)):
            assert torch.equal(trace(take_channels, (x, index))(x, index), x[:, index])

    def test_result_may_be_written_to(self) -> None:
        x = torch.randn(2, 6, 3)
        before = x.clone()
        for groups in (1, 6):
            traced = trace(lambda t, g=groups: F.cat_channel_shuffle((t,), g).zero_(), (x.clone(),))
            assert not traced(x).any() and torch.equal(x, before)

    @pytest.mark.parametrize(
        "call",
        [
            lambda x: F.channel_shuffle(x, 5),
            lambda x: F.cat_channel_shuffle((x, x[:1]), 2),
            lambda x: F.channel_permutation(x, (1, 0)),
            lambda x: F.pointwise_conv2d(x, x),
            lambda x: F.grouped_linear(x, x[0]),
            lambda x: F.batch_norm(x, x[0, 0, 0], None),
            lambda x: F.max_pool2d(x, 99),
        ],
    )
    def test_errors_are_those_of_eager_calls(self, call: Callable[[Tensor], Tensor]) -> None:
        x = torch.randn(2, 6, 4, 4)
        with pytest.raises(RuntimeError):
            call(x)
        with pytest.raises(RuntimeError):
            torch.jit.trace(call, (x,), check_trace=False)


class TestTraceOfModels:
    @pytest.mark.parametrize("requires_grad", [True, False])
    @pytest.mark.parametrize("name", MODELS)
    def test_graph_is_that_of_the_stock_model(self, name: str, requires_grad: bool) -> None:
        stock, model, x = make_pair(name)
        for m in (stock, model):
            m.requires_grad_(requires_grad)
        code, entries = opswap.report(model), dict(vars(model))
        traced, expected = trace(model, (x,)), trace(stock, (x,))
        kinds = [[n.kind() for n in m.inlined_graph.nodes()] for m in (traced, expected)]
        assert kinds[0] == kinds[1]
        torch.testing.assert_close(traced(x), stock(x))
        assert opswap.report(model) == code and vars(model) == entries
        opswap.reset_stats()
        model(x)
        assert opswap.stats()["kernel"] and not opswap.stats()["original"]

    @pytest.mark.parametrize("name", ["shufflenet_v2_x0_5", "lprnet", "multi_branch"])
    def test_trace_in_training_mode(self, name: str) -> None:
        stock, model, x = make_pair(name)
        stock.train(), model.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            traced = torch.jit.trace(model, (x,), check_trace=False)
        torch.testing.assert_close(traced(x), stock(x), rtol=1e-3, atol=1e-4)
        traced(x).square().mean().backward()
        assert all(p.grad is not None for p in model.parameters())

    @pytest.mark.parametrize("name", ["shufflenet_v2_x0_5", "lprnet"])
    def test_models_in_channels_last(self, name: str) -> None:
        """LPRNet's pools too, which torch refuses to run in that format."""
        stock, model, x = make_pair(name)
        opswap.swap(model, memory_format=torch.channels_last)
        with torch.no_grad():
            traced = torch.jit.trace(model, (x,))
        for given in (x, x.contiguous(memory_format=torch.channels_last)):
            torch.testing.assert_close(traced(given), stock(x), rtol=1e-3, atol=1e-4)

    def test_scopes_name_the_modules(self) -> None:
        stock, model, x = make_pair("multi_branch")
        graphs = [torch.jit.trace(m, (x,)) for m in (model, stock)]
        names = [[name for name, _ in g.named_modules()] for g in graphs]
        assert names[0] == names[1]

    def test_a_method_that_calls_rewritten_children(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())

            def forward(self, x: Tensor) -> Tensor:
                return self.body(x)

            def features(self, x: Tensor) -> Tensor:
                return self.body(x).flatten(1)

        model = opswap.swap(Net().eval())
        x = torch.randn(2, 3, 4, 4)
        traced = torch.jit.trace_module(model, {"forward": x, "features": x})
        torch.testing.assert_close(traced.features(x), model.features(x))

    def test_a_forward_put_on_the_instance_is_traced(self) -> None:
        model = opswap.swap(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()))
        model.forward = lambda x: x + 1
        x = torch.randn(2, 3, 4, 4)
        assert torch.equal(torch.jit.trace(model, (x,))(x), x + 1)

    def test_graphs_run_without_opswap(self, tmp_path: Path) -> None:
        expected = []

        def save(name: str, function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
            torch.jit.save(torch.jit.trace(function, inputs), str(tmp_path / f"{name}.pt"))
            torch.save((inputs, as_tuple(function(*inputs))), tmp_path / f"{name}.data")
            expected.append(name)

        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in MODELS:
                _, model, x = make_pair(name)
                save(name, model, (x,))
            for i, case in enumerate([*FUNCTIONS, *MODULES]):
                save(f"case{i}", case.ours, case.inputs())
        assert sorted(python(_LOAD, str(tmp_path)).split()) == sorted(expected)


class Shuffled(nn.Module):
    """A class of a user."""

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class TestScript:
    @pytest.mark.parametrize("name", ["shufflenet_v2_x0_5", "multi_branch", "sequential", "block"])
    def test_stock_form(self, name: str) -> None:
        if name in MODELS:
            stock, model, x = make_pair(name)
        else:
            block, x = Shuffled(), torch.randn(2, 4, 4, 4)
            stock = block if name == "block" else nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
            model = nn.Sequential(nn.Identity(), opswap.swap(copy.deepcopy(stock), strict=True))
        report, modules = opswap.report(model), list(model.modules())
        scripted = torch.jit.script(model)
        torch.testing.assert_close(scripted(x), stock(x))
        assert opswap.report(model) == report and report.swapped
        assert all(a is b for a, b in zip(model.modules(), modules, strict=True))

    def test_a_memory_format_is_refused(self) -> None:
        """torch.jit.script compiles hooks, from source with types."""
        stock, x = (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(),
            torch.randn(2, 3, 5, 5),
        )
        model = opswap.swap(copy.deepcopy(stock), memory_format=torch.channels_last)
        with pytest.raises(AttributeError, match=r"call opswap.unswap\(model\) first"):
            torch.jit.script(model)
        torch.testing.assert_close(torch.jit.script(opswap.unswap(model))(x), stock(x))


class TestExport:
    # Dynamo takes half a minute for a whole shufflenet; test_swap.py exports blocks of one.
    @pytest.mark.parametrize(
        ("name", "strict"),
        [("shufflenet_v2_x0_5", False), ("lprnet", False), ("lprnet", True), ("multi_branch", True)],
    )
    def test_model(self, name: str, strict: bool) -> None:
        stock, model, x = make_pair(name)
        program = torch.export.export(model, (x,), strict=strict)
        torch.testing.assert_close(program.module()(x), stock(x), rtol=1e-4, atol=1e-5)


def run_onnx(model: Any, x: Tensor) -> Tensor:
    """The result of onnxruntime, or of onnx's own evaluator where that is not installed."""
    inputs = {model.graph.input[0].name: x.numpy()}
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(model.SerializeToString())
        return torch.from_numpy(numpy.asarray(session.run(None, inputs)[0]))
    from onnx.reference import ReferenceEvaluator

    return torch.from_numpy(numpy.asarray(ReferenceEvaluator(model).run(None, inputs)[0]))


# That of torch exports there no better.
NO_ADAPTIVE_MAX_POOL = before(2, 13, "has no ONNX function of adaptive_max_pool2d")


@has_onnx
class TestOnnx:
    # torch's exporter by traces writes windows of three sizes for images, which no runtime takes: lprnet, stock too.
    @pytest.mark.parametrize("name", ["shufflenet_v2_x0_5", "multi_branch"])
    def test_model_by_trace(self, name: str) -> None:
        import onnx

        stock, model, x = make_pair(name)
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (x,), file, dynamo=False)
        written = onnx.load_from_string(file.getvalue())
        torch.testing.assert_close(run_onnx(written, x), stock(x).detach(), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize(
        "name", ["shufflenet_v2_x0_5", "lprnet", pytest.param("multi_branch", marks=NO_ADAPTIVE_MAX_POOL)]
    )
    def test_model(self, name: str) -> None:
        stock, model, x = make_pair(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch = {0: torch.export.Dim("batch", min=2, max=64)}
            program = torch.onnx.export(model, (x,), dynamo=True, verbose=False, dynamic_shapes=(batch,))
        larger = torch.cat((x, x[:1] + 1))
        made = run_onnx(program.model_proto, larger)
        torch.testing.assert_close(made, stock(larger).detach(), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                c, marks=NO_ADAPTIVE_MAX_POOL if isinstance(c.ours, opswap.nn.GlobalMaxPool2d) else ()
            )
            for c in MODULES
        ],
        ids=repr,
    )
    def test_module(self, case: Case) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = case.ours

            def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
                return as_tuple(self.layer(*inputs))

        inputs = case.inputs()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(Net(), inputs, dynamo=True, verbose=False)
        assert not any(node.domain == "opswap" for node in program.model_proto.graph.node)
