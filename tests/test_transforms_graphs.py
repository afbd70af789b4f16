# SPDX-License-Identifier: MIT
"""Every public function in graphs: torch.compile, torch.export, make_fx, fake tensors, and the registered operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import opswap
from functional_cases import FUNCTIONS, RANDOM, Case, as_tuple
from inputs import LAYOUTS
from transforms import (
    argnums,
    assert_near,
    each_function,
    every_case,
    every_layout,
    loss,
    make,
    operators_of,
    seeded,
    step,
    traced_step,
)


def larger(case: Case, tensors: tuple[Tensor, ...], batch: int) -> tuple[Tensor, ...]:
    """The same arguments with another number of examples."""
    like = case.sizes[0]
    return tuple(
        torch.cat([t] * batch)[:batch].clone(memory_format=torch.preserve_format)
        if len(size) == len(like) and size[0] == like[0]
        else t
        for size, t in zip(case.sizes, tensors, strict=True)
    )


def names_in(graph: torch.fx.GraphModule) -> set[str]:
    graphs = [m.graph for m in graph.modules() if isinstance(m, torch.fx.GraphModule)]
    targets = {str(node.target) for g in graphs for node in g.nodes}
    return {t.split(".")[1] for t in targets if t.startswith("opswap.")}


def assert_visible(case: Case, graph: torch.fx.GraphModule) -> None:
    wanted = set(operators_of(case))
    assert bool(names_in(graph) & wanted) == bool(wanted)


@every_layout
def test_compile_fullgraph(case: Case) -> None:
    torch._dynamo.reset()
    tensors, graphs = make(case, grad=False), []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(case.ours, fullgraph=True, backend=backend)
    opswap.reset_stats()
    assert_near(step(compiled, case, tensors), step(case.stock, case, tensors))
    counts = opswap.stats()
    if case.name == "dropout":  # torch's own in a compiled graph
        assert not names_in(graphs[0])
        return
    if operators_of(case):
        assert len(counts["kernel"]) or case.name == "channel_permutation"
        assert not counts["reference"]
    assert_visible(case, graphs[0])
    with torch.no_grad():
        assert_near(seeded(compiled)(*tensors), seeded(case.stock)(*tensors))


@each_function
def test_compile_with_changing_batch(case: Case) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(case.ours, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (2, 5, 3):
        tensors = larger(case, make(case, grad=False), batch)
        assert_near(step(compiled, case, tensors), step(case.stock, case, tensors))


def test_compile_by_inductor() -> None:
    torch._dynamo.reset()
    case = next(c for c in FUNCTIONS if c.name == "cat_channel_shuffle_split" and c.channels_last)
    compiled = torch.compile(case.ours, fullgraph=True)
    for batch in (2, 5, 3):
        tensors = larger(case, make(case, grad=False), batch)
        assert_near(step(compiled, case, tensors), step(case.stock, case, tensors))


@each_function
def test_compiled_backward(case: Case) -> None:
    """An eager forward, whose backward torch.compile traces."""
    torch._dynamo.reset()
    tensors = make(case, grad=False)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        ours = step(case.ours, case, tensors)
    assert_near(ours, step(case.stock, case, tensors))


@each_function
def test_compiled_transforms(case: Case) -> None:
    """torch.func inside of torch.compile, as a backward that another mode has to differentiate."""
    if case.operators == ("dropout",) and not operators_of(case):
        pytest.skip("a graph of torch draws otherwise than its own call on this CPU")
    tensors, numbers = make(case, grad=False), argnums(case)
    rows = tuple(torch.stack((t, 0.5 * t)) for t in tensors)
    gradients = {f: torch.func.grad(loss(f), numbers) for f in (case.ours, case.stock)}
    tangents = tuple(
        torch.ones_like(t) if i in numbers else torch.zeros_like(t) for i, t in enumerate(tensors)
    )

    def per_example(function: Any) -> Callable[..., Any]:
        return torch.vmap(gradients[function], randomness="different")

    def slope(function: Any) -> Callable[..., Any]:
        return lambda *t: torch.func.jvp(loss(function), t, tangents)

    def curvature(function: Any) -> Callable[..., Any]:
        return lambda *t: torch.func.jvp(gradients[function], t, tangents)[1]

    makers: list[Any] = [gradients.__getitem__, slope, curvature]
    if case.operators != ("dropout",):
        makers.append(per_example)
    for transform in makers:
        given = rows if transform is per_example else tensors
        torch._dynamo.reset()
        ours = seeded(torch.compile(transform(case.ours), fullgraph=True, backend="aot_eager"))
        assert_near(ours(*given), seeded(transform(case.stock))(*given), 1e-3)


@each_function
@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_batch(case: Case, strict: bool) -> None:
    class Net(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return case.ours(*tensors)

    tensors = larger(case, make(case, grad=False), 4)
    batch = torch.export.Dim("batch", min=2, max=64)
    moved = larger(case, tensors, 7)
    shapes = tuple({0: batch} if a.shape != b.shape else None for a, b in zip(tensors, moved, strict=True))
    program = torch.export.export(Net(), tensors, dynamic_shapes={"tensors": shapes}, strict=strict)
    if case.name == "conv2d" or (case.name == "dropout" and strict):
        assert not names_in(program.graph_module)  # exported programs have torch's own
    else:
        assert_visible(case, program.graph_module)
    # The program is trained: an operator without a gradient of its own would let it pass by in silence.
    assert_near(step(program.module(), case, moved), step(case.stock, case, moved))


@every_case
def test_tracing_modes_see_the_operator(case: Case) -> None:
    tensors = make(case, grad=False)
    graph = make_fx(seeded(case.ours))(*tensors)
    assert_visible(case, graph)
    assert_near(seeded(graph)(*tensors), seeded(case.stock)(*tensors))
    backward = make_fx(lambda *t: traced_step(case.ours, case, t))(*tensors)
    assert_near(seeded(backward)(*tensors), step(case.stock, case, tensors))


@every_case
def test_fake_and_meta_tensors(case: Case) -> None:
    tensors = make(case, grad=False)
    want = as_tuple(case.ours(*tensors))
    with FakeTensorMode() as mode:
        fakes = as_tuple(case.ours(*(mode.from_tensor(t) for t in tensors)))
    for fake, real in zip(fakes, want, strict=True):
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
    meta = as_tuple(case.ours(*(t.to("meta") for t in tensors)))
    assert all(m.device.type == "meta" and m.shape == y.shape for m, y in zip(meta, want, strict=True))


class Recorder(TorchDispatchMode):
    """Notes the calls of opswap's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "opswap":
            self.calls.setdefault(func._opname, (func, args))
        return func(*args, **(kwargs or {}))


def recorded(case: Case, tensors: tuple[Tensor, ...]) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    with Recorder() as seen:
        given = [t.requires_grad_(i not in case.fixed) for i, t in enumerate(tensors)]
        loss(case.ours)(*given).backward()
        with torch.no_grad():
            case.ours(*given)
    return seen.calls


def _detached(value: Any) -> Any:
    if isinstance(value, list):
        return [_detached(v) for v in value]
    return value.detach() if isinstance(value, Tensor) else value


@each_function
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "chunk", "spatial_slice"])
def test_opcheck(case: Case, layout: str) -> None:
    first = LAYOUTS[layout](case.inputs()[0])
    calls = recorded(case, (first.detach(), *case.inputs()[1:]))
    if case.operators and layout == "channels_last" and operators_of(case):
        assert calls
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for operator, arguments in calls.values():
        if torch.Tag.nondeterministic_seeded in operator.tags:
            torch.library.opcheck(operator, _detached(list(arguments)), test_utils=tests[:3])
            continue
        torch.library.opcheck(operator, tuple(_detached(list(arguments))), test_utils=tests)


def test_every_operator_is_checked() -> None:
    """Those that are registered stand in the graph of some function.

    But for two that only swap calls, and those of chains, which only modes see: test_chain_watched.py has them.
    """
    seen: set[str] = set()
    for case in (*FUNCTIONS, *RANDOM):
        seen |= recorded(case, tuple(t.detach() for t in case.inputs())).keys()
    names = torch._C._dispatch_get_all_op_names()
    registered = {name.split("::")[1].split(".")[0] for name in names if name.startswith("opswap::")}
    elsewhere = {"take_channels", "take_channels_backward", "conv_chain_moving", "conv_chain_backward"}
    missing = registered - seen - elsewhere
    if not opswap.isa.current().startswith("avx"):
        missing = {name for name in missing if "conv2d" not in name}
    assert not missing
