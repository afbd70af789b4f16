# SPDX-License-Identifier: MIT
"""Modules of the channels family, its form for other devices, views that torch treats apart, several processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import opswap
from inputs import LAYOUTS, same_bits
from opswap import functional as F
from processes import train_both
from twins import twins

OPERATOR = torch.ops.opswap.cat_channel_shuffle_split.default


def inputs(layout: str = "contiguous", **options: object) -> tuple[Tensor, Tensor]:
    a, b = (LAYOUTS[layout](torch.randn(4, 6, 3, 5)) for _ in range(2))
    return a.to(**options).requires_grad_(), b.to(**options).requires_grad_()


def test_an_operator_without_some_outputs() -> None:
    a, b = (t.detach() for t in inputs())
    tests = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    for mask in (None, [True, False]):
        torch.library.opcheck(OPERATOR, ([a, b], 2, [5, 7]), {"output_mask": mask}, test_utils=tests)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_conjugate_and_negative_views(dtype: torch.dtype) -> None:
    x = torch.randn(2, 6, 3, dtype=dtype)
    assert same_bits(F.channel_shuffle(x.conj(), 2), torch.channel_shuffle(x.conj().resolve_conj(), 2))
    negative = x.conj().imag
    assert negative.is_neg()
    assert same_bits(F.channel_shuffle(negative, 2), torch.channel_shuffle(negative.resolve_neg(), 2))


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


# --- other devices ------------------------------------------------------------------------------------------------


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
    for other in twins(module):
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


def test_distributed_training_equals_stock(tmp_path: Path) -> None:
    make = partial(opswap.models.shufflenet_v2_x0_5, num_classes=4)
    states = train_both(tmp_path, make, (2, 3, 32, 32), 2, exact=True)
    assert states[0].keys() == states[1].keys()
    assert all(same_bits(states[0][k], states[1][k]) for k in states[0])
