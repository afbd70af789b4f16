# SPDX-License-Identifier: MIT
"""The rules on the graphs of torch.compile: what a module's own graph cannot hold, a compiled one does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opswap
from counted import kernels
from nearness import assert_model_as_near
from opswap.models import ShuffleNetV2
from opswap.swap.rules import DEFAULT
from spellings import CAT, PERMUTATION, PLAIN, SPLIT, Split, Wrapped, by_size
from spellings.blocks import SecondVersionUnit
from spellings.permutations import ORDER, Indexed, index
from spellings.shuffles import by_rearrange, every_second, inverse, merged_plane, start_of_block
from step import assert_equal, outputs_and_gradients
from surviving import python
from versions import TORCH, before

pytestmark = pytest.mark.usefixtures("every_rule_applies")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_dynamo_does_not_take_what_a_trace_puts_in_place() -> None:
    """torch imports it for the first tensor without data, which may be in the middle of a trace."""
    code = (
        "import sys, test_swap_hostile as t\n"
        "assert t.opswap.report(t.opswap.swap(t.opswap.models.shufflenet_v2_x0_5())).swapped\n"
        "assert 'torch._dynamo.utils' not in sys.modules, 'without inputs there is no such tensor'\n"
        "t.test_a_size_in_a_dict_with_example_inputs()\n"
        "from torch._dynamo import utils\n"
        "function = t.nn.Module.__getattr__\n"
        "assert getattr(utils, 'unpatched_nn_module_getattr', function) is function"
    )
    python(code, cwd=Path(__file__).parent)


@pytest.mark.parametrize(
    "form", ["L['self'].{}stage3.1.{}branch2.0", "L['self'].{}['stage3'][1].{}['branch2'][0]"]
)
def test_the_path_of_a_module(form: str) -> None:
    node = torch.fx.Graph().placeholder("x")
    by_name = "['" in form.partition("]")[2]
    for between in ("", "_modules" if by_name else "_modules.", "__dict__['_modules']" + "." * (not by_name)):
        node.meta["nn_module_stack"] = {"": (form.format(between, between), nn.Module)}
        expected = "stage3.1.branch2.0" if by_name else "stage3.branch2"
        assert import_module("opswap.swap.compile.backend")._owner(node) == expected


def rules_of(backend: object) -> list[str]:
    return [s.rule for report in backend.reports for s in report.swapped]


class HardToCapture(nn.Module):
    """Makes a module in its forward and loops over a length: no graph of one module holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Split(), Split()])

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            for block in self.blocks:
                x = block(x)
        return nn.AvgPool2d(2)(x)


class CheckpointedBlocks(nn.Module):
    """Computes two blocks again in the backward pass instead of keeping what they computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Split(), Split()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda x: self.second(self.first(x)), x, use_reentrant=False)


def test_training_step_is_bit_equal() -> None:
    stock = ShuffleNetV2((1, 2, 1), (24, 48, 96, 192, 64), 10)
    backend = opswap.dynamo_backend(exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend, fullgraph=True)
    x = torch.randn(2, 3, 32, 32)
    opswap.reset_stats()
    assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))
    assert sorted(rules_of(backend)) == ["cat_channel_shuffle"] * 3 + [
        "cat_channel_shuffle_split",
        "max_pool2d",
    ]
    assert kernels() == 2 * 5
    sites = backend.reports[0].swapped
    assert all("shufflenetv2.py:" in s.source for s in sites)
    assert {s.path.split(".")[0] for s in sites} == {"stage2", "stage3", "stage4", "maxpool"}


@pytest.mark.once
def test_inductor_inside() -> None:
    stock = nn.Sequential(Split(), Split())
    backend = opswap.dynamo_backend("inductor", exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend, fullgraph=True)
    opswap.reset_stats()
    outputs_and_gradients(compiled, torch.randn(2, 12, 4, 8))
    assert kernels() == 4 and len(rules_of(backend)) == 2
    assert_model_as_near(compiled, stock, lambda: (torch.randn(2, 12, 4, 8),))


def test_what_swap_cannot_capture() -> None:
    stock = HardToCapture()
    assert not [s for s in opswap.scan(stock).swapped if s.rule == "cat_channel_shuffle_split"]
    backend = opswap.dynamo_backend(exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend)
    x = torch.randn(2, 12, 4, 8)
    assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))
    assert "cat_channel_shuffle_split" in rules_of(backend)


@pytest.mark.parametrize("dynamic", [False, True])
def test_checkpointed(dynamic: bool) -> None:
    stock = CheckpointedBlocks()
    backend = opswap.dynamo_backend(exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend, dynamic=dynamic)
    x = torch.randn(2, 12, 4, 8)
    opswap.reset_stats()
    assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))
    assert rules_of(backend) == [SPLIT, CAT]
    # Outside of AOT, torch before 2.12 runs what is checkpointed once, and keeps it.
    runs = 3 if TORCH >= (2, 12) else 2
    assert kernels() == 2 * runs, "each runs forward, forward again and backward"


def test_sizes_are_those_of_the_graph() -> None:
    stock = Wrapped(by_size)
    backend = opswap.dynamo_backend(exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend, dynamic=False)
    for batch in (2, 5):
        x = torch.randn(batch, 12, 4, 8)
        assert torch.equal(compiled(x), stock(x))
    assert rules_of(backend) == ["channel_shuffle"] * 2


BODIES = {
    "blocks": (lambda: nn.Sequential(Split(), Split()), 12, [SPLIT, CAT]),
    "published units": (
        lambda: nn.Sequential(SecondVersionUnit(12, 1), SecondVersionUnit(12, 1)),
        12,
        [SPLIT, SPLIT],
    ),
    "inverse": (lambda: Wrapped(inverse), 12, [PLAIN]),
    "start of block": (lambda: Wrapped(start_of_block), 12, [PLAIN]),
    "slices": (lambda: Wrapped(every_second), 12, [PLAIN]),
    "merged plane": (lambda: Wrapped(merged_plane), 12, [PLAIN]),
    "einops": (lambda: Wrapped(by_rearrange), 12, [PLAIN]),
    "order in a buffer": (lambda: Indexed(index, torch.tensor(ORDER)), 12, [PERMUTATION]),
}


_OF_BODIES = {"einops": before(2, 13, "keeps a call of einops whole in Dynamo's graphs")}


@pytest.mark.parametrize(
    ("make", "channels", "rules"),
    [pytest.param(*body, id=name, marks=_OF_BODIES.get(name, ())) for name, body in BODIES.items()],
)
def test_a_second_batch_size(make: Callable[[], nn.Module], channels: int, rules: list[str]) -> None:
    """Dynamo then leaves sizes open; what is replaced stays the same, training included."""
    stock = make()
    backend = opswap.dynamo_backend(exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend)
    sizes = ((2, 4, 8), (3, 4, 8), (5, 4, 8), (4, 6, 10), (7, 3, 5))
    for size in sizes if make is BODIES["blocks"][0] else sizes[:3]:
        if make is BODIES["published units"][0]:
            assert_model_as_near(compiled, stock, lambda s=size: (torch.randn(s[0], channels, *s[1:]),))
        else:
            x = torch.randn(size[0], channels, *size[1:])
            assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))
    assert len(backend.reports) <= 4, "the graph with open sizes serves all batches"
    for report in backend.reports:
        assert sorted(s.rule for s in report.swapped) == sorted(rules), str(report)


def test_every_size_open_from_the_start() -> None:
    stock = nn.Sequential(Split(), Split())
    for inner in ("eager", "aot_eager"):
        torch._dynamo.reset()
        backend = opswap.dynamo_backend(inner, exact=True)
        compiled = torch.compile(copy.deepcopy(stock), backend=backend, dynamic=True)
        for size in ((2, 12, 4, 8), (5, 12, 3, 7)):
            assert_model_as_near(compiled, stock, lambda s=size: (torch.randn(s),))
        assert backend.reports
        for report in backend.reports:
            assert [s.rule for s in report.swapped] == [SPLIT, CAT]


def groups_by_height(x: Tensor) -> Tensor:
    return by_size(x, x.shape[2] // 2)


def test_what_holds_at_one_size_only_is_left() -> None:
    stock = Wrapped(groups_by_height)
    backend = opswap.dynamo_backend(exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend, dynamic=True)
    for height in (4, 6, 8):
        x = torch.randn(2, 12, height, 8)
        assert torch.equal(compiled(x), stock(x))
    assert not rules_of(backend)
    assert any("other sizes" in s.reason for report in backend.reports for s in report.kept)


def test_batch_normalisation() -> None:
    stock = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(inplace=True), nn.BatchNorm2d(12)
    )
    model = copy.deepcopy(stock)
    backend = opswap.dynamo_backend()
    compiled = torch.compile(model, backend=backend)
    opswap.reset_stats()
    for training in (True, False):
        for batch in (4, 6, 5):
            compiled.train(training), stock.train(training)
            assert_model_as_near(compiled, stock, lambda b=batch: (torch.randn(b, 3, 5, 7),))
    found = [[s.rule for s in report.swapped] for report in backend.reports]
    assert found[0] == ["batch_norm_act", "batch_norm"] and found[-1] == ["batch_norm_act"], (
        "in eval() torch is as fast"
    )
    assert kernels("batch_norm_act") >= 3 * 2 + 3


def test_an_order_that_changes_after_compilation() -> None:
    stock = Indexed(index, torch.tensor(ORDER))
    model = copy.deepcopy(stock)
    for compiled in (
        torch.compile(model, backend=opswap.dynamo_backend(exact=True)),
        torch.compile(opswap.swap(model, exact=True, strict=True), fullgraph=True, backend="aot_eager"),
    ):
        for order in (ORDER, ORDER[::-1], [0] * 12):
            for m in (stock, model):
                m.order.copy_(torch.tensor(order))
            assert_model_as_near(compiled, stock, lambda: (torch.randn(2, 12, 4, 8),))


def test_rules_and_inner_can_be_chosen() -> None:
    graphs = []

    def inner(module: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(module)
        return module.forward

    backend = opswap.dynamo_backend(inner, rules=[r for r in DEFAULT if r.name == "max_pool2d"])
    torch.compile(Wrapped(by_size), backend=backend)(torch.randn(2, 12, 4, 8))
    assert len(graphs) == 1 and not rules_of(backend)
    with pytest.raises(TypeError, match="inner must be a backend's name or a callable, got int"):
        opswap.dynamo_backend(3)


def test_the_name_of_the_backend() -> None:
    """A development install keeps the entry points of the day it was made, a wheel has its own."""
    try:
        distribution = metadata.distribution("opswap")
    except metadata.PackageNotFoundError:
        distribution = None
    if distribution is None or distribution.read_text("WHEEL") is None:
        pytest.skip("opswap is not installed, so that torch does not know its entry points")
    assert [e.name for e in distribution.entry_points.select(group="torch_dynamo_backends")] == ["opswap"]
    assert "opswap" in torch._dynamo.list_backends()
    x = torch.randn(2, 12, 4, 8)
    stock = Wrapped(by_size)
    opswap.reset_stats()
    compiled = torch.compile(copy.deepcopy(stock), backend="opswap")
    x = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(compiled(x), stock(x))
    assert sum("shuffle" in name for name in opswap.stats()["kernel"]) == 1
