# SPDX-License-Identifier: MIT
"""The channels family under everything that torch puts around an operator."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import opswap
from inputs import LAYOUTS, same_bits
from opswap import functional as F
from processes import run_in_processes

OPERATOR = torch.ops.opswap.cat_channel_shuffle_split.default


def block(a: Tensor, b: Tensor) -> Tensor:
    first, second = F.cat_channel_shuffle_split((a.relu(), b), 2, [3, 9])
    return (first.sin().sum((1, 2, 3)) + (second * second).sum((1, 2, 3))).sum()


def stock_block(a: Tensor, b: Tensor) -> Tensor:
    first, second = torch.channel_shuffle(torch.cat((a.relu(), b), 1), 2).split([3, 9], 1)
    return (first.sin().sum((1, 2, 3)) + (second * second).sum((1, 2, 3))).sum()


def inputs(layout: str = "contiguous", **options: object) -> tuple[Tensor, Tensor]:
    a, b = (LAYOUTS[layout](torch.randn(4, 6, 3, 5)) for _ in range(2))
    return a.to(**options).requires_grad_(), b.to(**options).requires_grad_()


def gradients(f: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    loss = f(a, b)
    return (loss.detach(), *torch.autograd.grad(loss, (a, b)))


def close(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> bool:
    return all(torch.allclose(g, w, atol=1e-5) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "channels_last_chunk"])
def test_compile_fullgraph(layout: str) -> None:
    torch._dynamo.reset()
    a, b = inputs(layout)
    opswap.reset_stats()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert close(gradients(compiled, a, b), gradients(stock_block, a, b))
    counts = opswap.stats()
    assert counts["kernel"] == {"cat_channel_shuffle_split": 2} and not counts["reference"]


def test_compile_inductor_with_changing_batch() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True)
    for batch in (4, 5, 6):
        a, b = (torch.randn(batch, 6, 3, 5, requires_grad=True) for _ in range(2))
        assert close(gradients(compiled, a, b), gradients(stock_block, a, b))


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_batch(strict: bool) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shuffle = opswap.IndexSelectHalf(2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            first, second = self.shuffle(a, b)
            return first - second

    a, b = torch.randn(4, 6, 3, 5), torch.randn(4, 6, 3, 5)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Net(), (a, b), dynamic_shapes=({0: batch}, {0: batch}), strict=strict)
    assert OPERATOR in {node.target for node in program.graph.nodes}
    a, b = torch.randn(9, 6, 3, 5), torch.randn(9, 6, 3, 5)
    assert same_bits(program.module()(a, b), Net()(a, b))


@pytest.mark.parametrize("mask", [None, [True, False]])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "chunk", "spatial_slice"])
def test_opcheck(layout: str, mask: list[bool] | None) -> None:
    a, b = (t.detach() for t in inputs(layout))
    torch.library.opcheck(
        OPERATOR,
        ([a, b], 2, [5, 7]),
        {"output_mask": mask},
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_func_transforms() -> None:
    a, b = (t.detach() for t in inputs())
    want = gradients(stock_block, a.clone().requires_grad_(), b.clone().requires_grad_())[1:]
    assert close(torch.func.grad(block, (0, 1))(a, b), want)
    assert torch.allclose(
        torch.vmap(block)(a[:, None], b[:, None]), torch.vmap(stock_block)(a[:, None], b[:, None])
    )
    per_sample = torch.vmap(torch.func.grad(block))(a[:, None], b[:, None])
    assert torch.allclose(per_sample, torch.vmap(torch.func.grad(stock_block))(a[:, None], b[:, None]))
    small = torch.randn(1, 2, 2)
    for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        got = transform(lambda x: F.channel_shuffle(x * x, 2).sin())(small)
        want = transform(lambda x: torch.channel_shuffle(x * x, 2).sin())(small)
        assert torch.allclose(got, want)


def test_vmap_over_any_dimension_gives_no_warning() -> None:
    a, b = torch.randn(2, 6, 7, 3), torch.randn(2, 6, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = torch.vmap(lambda x, y: F.cat_channel_shuffle((x, y), 2), in_dims=(2, None), out_dims=1)(a, b)
    want = torch.stack([F.cat_channel_shuffle((a[:, :, i], b), 2) for i in range(7)], 1)
    assert same_bits(got, want)


def test_batched_gradients() -> None:
    a, b = inputs()
    out = F.cat_channel_shuffle((a, b), 3)
    stock = torch.channel_shuffle(torch.cat((a, b), 1), 3)
    batch = torch.randn(5, *out.shape)
    got = torch.autograd.grad(out, (a, b), batch, is_grads_batched=True)
    want = [torch.autograd.grad(stock, (a, b), g, retain_graph=True) for g in batch]
    assert all(same_bits(g, torch.stack(w)) for g, w in zip(got, zip(*want, strict=True), strict=True))


def test_tracing_modes_see_the_operator() -> None:
    a, b = (t.detach() for t in inputs())
    graph = make_fx(lambda x, y: F.cat_channel_shuffle((x, y), 2))(a, b)
    assert OPERATOR in {node.target for node in graph.graph.nodes}
    assert same_bits(graph(a, b), F.cat_channel_shuffle((a, b), 2))
    last = a.to(memory_format=torch.channels_last)
    with FakeTensorMode() as mode:
        x = mode.from_tensor(last)
        for half in F.cat_channel_shuffle_split((x, x), 2):
            assert half.shape == (4, 6, 3, 5) and half.is_contiguous(memory_format=torch.channels_last)
    assert F.channel_shuffle(a.to("meta"), 2).shape == a.shape
    assert F.channel_shuffle(torch.empty(2, 6, 3, device="meta"), 2).device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_conjugate_and_negative_views(dtype: torch.dtype) -> None:
    x = torch.randn(2, 6, 3, dtype=dtype)
    assert same_bits(F.channel_shuffle(x.conj(), 2), torch.channel_shuffle(x.conj().resolve_conj(), 2))
    negative = x.conj().imag
    assert negative.is_neg()
    assert same_bits(F.channel_shuffle(negative, 2), torch.channel_shuffle(negative.resolve_neg(), 2))


def test_subclasses() -> None:
    class Logged(Tensor):
        calls: typing.ClassVar[list[object]] = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.calls.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.randn(2, 6, 3)
    y = F.channel_shuffle(x.as_subclass(Logged), 2)
    assert isinstance(y, Logged) and F.channel_shuffle in Logged.calls
    assert same_bits(y.as_subclass(Tensor), F.channel_shuffle(x, 2))
    assert same_bits(F.channel_shuffle(torch.nn.Parameter(x), 2).detach(), F.channel_shuffle(x, 2))
    assert same_bits(F.channel_shuffle(torch.nn.Buffer(x), 2), F.channel_shuffle(x, 2))


@pytest.mark.parametrize("make", [Tensor.to_sparse, Tensor.to_mkldnn])
def test_tensors_without_plain_memory_are_refused(make: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        F.channel_shuffle(make(torch.randn(2, 6, 3)), 2)


def test_autocast_promotes_as_torch_cat_does() -> None:
    a, b = torch.randn(2, 6, 3, 4), torch.randn(2, 6, 3, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        got = F.cat_channel_shuffle((a, b), 2)
        want = torch.channel_shuffle(torch.cat((a, b), 1), 2)
    assert same_bits(got, want) and got.dtype == torch.float32
    a, b = inputs(dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.cat_channel_shuffle((a, b), 2).dtype == torch.bfloat16


def test_checkpointing() -> None:
    a, b = inputs()
    got = gradients(lambda x, y: checkpoint(block, x, y, use_reentrant=False), a, b)
    assert close(got, gradients(stock_block, a, b))


def test_two_threads_at_once() -> None:
    x = torch.randn(8, 58, 28, 28).to(memory_format=torch.channels_last)
    want = torch.channel_shuffle(x, 2)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(i for i in range(30) if not same_bits(F.channel_shuffle(x, 2), want))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# --- other devices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "chunk"])
def test_the_form_for_other_devices_gives_the_same(layout: str) -> None:
    a, b = inputs(layout)
    want = gradients(block, a, b)
    opswap.reset_stats()
    with opswap.force_reference():
        got = gradients(block, a, b)
        halves = F.cat_channel_shuffle_split((a, b), 2)
    assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))
    counts = opswap.stats()
    assert not counts["kernel"] and counts["reference"] == {"cat_channel_shuffle_split": 3}
    for got, want in zip(halves, F.cat_channel_shuffle_split((a, b), 2), strict=True):
        assert got.stride() == want.stride()


class Passes(TorchDispatchMode):
    """Notes the operators that move floats, not those that make an index."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and isinstance(result, torch.Tensor) and result.is_floating_point():
            self.names.append(func._overloadpacket.__name__)
        return result


@pytest.mark.parametrize("mask", [None, (True, False, True)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_form_for_other_devices_makes_two_passes(memory_format: Any, mask: Any) -> None:
    from opswap.ops.channels import reference

    a, b = (torch.randn(2, c, 3, 5).to(memory_format=memory_format) for c in (4, 8))
    with Passes() as passes:
        parts = reference((a, b), 3, (2, 4, 6), memory_format=memory_format, output_mask=mask)
    kept = [i for i in range(3) if mask is None or mask[i]]
    assert passes.names == ["cat", *["index_select"] * len(kept)]
    want = torch.cat((a, b), 1).unflatten(1, (3, 4)).transpose(1, 2).flatten(1, 2).split((2, 4, 6), 1)
    for i, part in zip(kept, parts, strict=True):
        assert torch.equal(part, want[i]) and part.is_contiguous(memory_format=memory_format)
    with Passes() as passes:
        reference((a,), 2, (4,), memory_format=memory_format)
    assert passes.names == ["index_select"]


def test_the_index_is_made_once_per_device() -> None:
    from opswap.ops.channels import _index

    assert _index(6, 2, torch.device("cpu")) is _index(6, 2, torch.device("cpu"))
    assert _index(6, 2, torch.device("cpu")) is not _index(6, 2, torch.device("meta"))
    with torch.inference_mode(), opswap.force_reference():
        F.channel_shuffle(torch.randn(2, 10, 3), 2)
    with opswap.force_reference():
        x = torch.randn(2, 10, 3, requires_grad=True)
        F.channel_shuffle(x, 2).sum().backward()


# --- modules ------------------------------------------------------------------------------------------------------


def modules() -> list[torch.nn.Module]:
    return [
        opswap.ChannelShuffle(3),
        opswap.nn.ChannelShuffle(3, inverse=True),
        opswap.IndexSelectFull(2),
        opswap.IndexSelectHalf(2),
        opswap.nn.CatChannelShuffle(12),
        opswap.nn.CatChannelShuffle(12, split_shuffle=False),
    ]


def run_module(module: torch.nn.Module) -> list[Tensor]:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 6, 3, 4) for _ in range(2)]
    out = module(tensors[0]) if isinstance(module, opswap.ChannelShuffle) else module(*tensors)
    return list(out) if isinstance(out, tuple) else [out]


@pytest.mark.parametrize("index", range(len(modules())))
def test_modules_copy_pickle_and_save(index: int) -> None:
    module = modules()[index]
    want = run_module(module)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    copies = (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False))
    for other in copies:
        assert repr(other) == repr(module)
        assert all(same_bits(g, w) for g, w in zip(run_module(other), want, strict=True))
    assert not module.state_dict() and not list(module.parameters()) and not list(module.buffers())


def test_modules_equal_their_functions() -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(2, 6, 3, 4) for _ in range(2))
    full, halves = (
        torch.channel_shuffle(torch.cat((a, b), 1), 2),
        torch.channel_shuffle(torch.cat((a, b), 1), 2).chunk(2, 1),
    )
    wants = [[torch.channel_shuffle(a, 3)], [torch.channel_shuffle(a, 2)], [full], halves, halves, [full]]
    for module, want in zip(modules(), wants, strict=True):
        got = run_module(module)
        assert len(got) == len(want) and all(same_bits(g, w) for g, w in zip(got, want, strict=True)), module


@pytest.mark.parametrize("index", range(len(modules())))
def test_old_index_buffers_load_with_strict(index: int) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), modules()[index])
    state = dict(net.state_dict())
    assert sorted(state) == ["0.bias", "0.weight"]
    for name in ("fp_index", "fp_index1", "fp_index2", "bp_index1", "bp_index2"):
        state[f"1.{name}"] = torch.arange(12)
    assert net.load_state_dict(state, strict=True).unexpected_keys == []
    assert "1.fp_index" in state
    state["1.other"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"1\.other"):
        net.load_state_dict(state, strict=True)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: opswap.ChannelShuffle(0), ValueError, "groups must be positive, got 0"),
        (lambda: opswap.IndexSelectHalf(-1), ValueError, "got -1"),
        (lambda: opswap.IndexSelectFull("2"), TypeError, "groups must be an int, got '2'"),
        (lambda: opswap.nn.CatChannelShuffle(13), ValueError, "13 channels cannot be split into 2 groups"),
        (
            lambda: opswap.nn.CatChannelShuffle(12)(torch.ones(1, 5, 2), torch.ones(1, 6, 2)),
            RuntimeError,
            r"got 5 \+ 6",
        ),
        (lambda: opswap.IndexSelectHalf()(), RuntimeError, "non-empty"),
    ],
)
def test_modules_refuse_bad_arguments(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


# --- several processes --------------------------------------------------------------------------------------------


def _train(rank: int, rendezvous: str, swapped: bool, path: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = opswap.models.shufflenet_v2_x0_5(num_classes=4)
    model = torch.nn.parallel.DistributedDataParallel(opswap.swap(model, exact=True) if swapped else model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(1 + rank)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 32, 32)).square().mean().backward()
        optimizer.step()
    if rank == 0:
        torch.save(model.module.state_dict(), path)
    torch.distributed.destroy_process_group()


def test_distributed_training_equals_stock(tmp_path: Path) -> None:
    states = []
    for swapped in (False, True):
        path = str(tmp_path / f"{swapped}.pt")
        arguments = (str(tmp_path / f"rendezvous-{swapped}"), swapped, path)
        run_in_processes(_train, *arguments)
        states.append(torch.load(path))
    assert states[0].keys() == states[1].keys()
    assert all(same_bits(states[0][k], states[1][k]) for k in states[0])
