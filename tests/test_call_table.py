# SPDX-License-Identifier: MIT
"""The table of torch's calls: each entry is run, as a function and as a method, and held to what the table says.

torch's own operator list is asked too: what an operator's schema says of views and writes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from opswap.swap.graph.table import Does, names_of

pytestmark = pytest.mark.once

LAST = torch.channels_last
SIZE = (2, 6, 4, 4)
# Arguments after the tensor, for names that need some.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "as_strided": ((2, 2), (1, 2)),
    "channel_shuffle": (2,),
    "chunk": (2, 1),
    "clamp": (0.25, 0.5),
    "clamp_max": (0.5,),
    "clamp_min": (0.5,),
    "clip": (0.25, 0.5),
    "flatten": (1,),
    "interpolate": ((2, 2),),
    "moveaxis": (1, 3),
    "movedim": (1, 3),
    "narrow": (1, 1, 2),
    "native_channel_shuffle": (2,),
    "permute": ((0, 2, 3, 1),),
    "pow": (2.0,),
    "reshape": ((2, -1),),
    "select": (1, 2),
    "softmax": (1,),
    "split": (3, 1),
    "swapaxes": (1, 2),
    "swapdims": (1, 2),
    "tensor_split": (2, 1),
    "threshold": (0.5, 0.0),
    "transpose": (1, 2),
    "unbind": (1,),
    "unflatten": (1, (2, 3)),
    "unsqueeze": (1,),
    "view": ((4, 3, 4, 4),),
    "getitem": ((slice(None), slice(1, 3)),),
} | {name: (2,) for name in names_of(Does.PER_CHANNEL) if "pool" in name and not name.startswith("lp")}
ARGUMENTS |= {f"lp_pool{n}d": (2.0, 2) for n in (1, 2, 3)}
KEYWORDS: dict[str, dict[str, Any]] = {
    name: {"training": False} for name in ("alpha_dropout", "dropout", "dropout2d", "dropout3d")
}
# Not a function of one tensor in torch's lists: x[...], x.data, and Python's operators.
SPECIAL: dict[str, Callable[..., Any]] = {
    "getitem": operator.getitem,
    "data": lambda x: x.data,
    "iadd": operator.iadd,
    "imul": operator.imul,
    "isub": operator.isub,
    "itruediv": operator.itruediv,
    "truediv": operator.truediv,
}


def forms(name: str) -> Iterator[Callable[..., Any]]:
    """The call as a function of torch, of torch.nn.functional, and as a method."""
    if name in SPECIAL:
        yield SPECIAL[name]
        return
    for module in (torch, F):
        if callable(getattr(module, name, None)):  # torch.float is a dtype
            yield getattr(module, name)
    if hasattr(Tensor, name):
        yield lambda x, *rest, **options: getattr(x, name)(*rest, **options)


def call(form: Callable[..., Any], name: str, x: Tensor) -> Any:
    return form(x, *ARGUMENTS.get(name, ()), **options_of(form, name))


def options_of(form: Callable[..., Any], name: str) -> dict[str, Any]:
    return KEYWORDS.get(name, {}) if form is getattr(F, name, None) else {}


def numbered(size: tuple[int, ...] = SIZE, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(1, 1 + torch.Size(size).numel(), dtype=dtype).view(size)


def image_of(name: str) -> Tensor:
    """Random numbers in (0, 1), with as many dimensions as the name says."""
    size = {"1d": (2, 6, 8), "3d": (2, 6, 4, 4, 4)}.get(name[-2:], SIZE)
    return torch.rand(size) * 0.98 + 0.01


def storages(value: Any) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tree_leaves(value) if isinstance(t, Tensor)}


def each(does: Does) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", sorted(names_of(does)))


def run_forms(name: str) -> list[Callable[..., Any]]:
    found = list(forms(name))
    assert found, f"torch has no call named {name}"
    return found


@each(Does.REORDER | Does.RESHAPE | Does.PARTS)
def test_moves_elements_only(name: str) -> None:
    for form in run_forms(name):
        x = numbered()
        result = call(form, name, x)
        parts = result if isinstance(result, (tuple, list)) else (result,)
        values = [v for part in parts for v in part.flatten().tolist()]
        assert len(set(values)) == len(values) and set(values) <= set(x.flatten().tolist())
        reorders = values != sorted(values)
        assert reorders == (name in names_of(Does.REORDER | Does.PARTS)) or name == "unbind"
        assert isinstance(result, (tuple, list)) == (name in names_of(Does.PARTS))


@each(Does.JOIN)
def test_joins(name: str) -> None:
    for form in run_forms(name):
        a, b = numbered(), numbered() + 1000
        result = form([a, b], 1)
        assert sorted(result.flatten().tolist()) == sorted([*a.flatten().tolist(), *b.flatten().tolist()])


@each(Does.SIZES | Does.METADATA)
def test_reads_no_element(name: str) -> None:
    """A tensor without data has the same answer."""
    for form in run_forms(name):
        x = numbered()
        answer = call(form, name, x)
        assert answer == call(form, name, x.to("meta"))
        assert isinstance(answer, (bool, int, torch.Size))


@each(Does.VIEW)
def test_views(name: str) -> None:
    for form in run_forms(name):
        for memory_format in (torch.contiguous_format, LAST):
            x = numbered().contiguous(memory_format=memory_format)
            assert storages(call(form, name, x)) == storages(x)


@each(Does.VIEW_OR_COPY)
def test_a_view_if_the_strides_allow_it(name: str) -> None:
    arguments = {"reshape_as": (torch.empty(2, 96),)}.get(name)
    for form in run_forms(name):
        shares = []
        for x in (numbered(), numbered().contiguous(memory_format=LAST)):
            y = call(form, name, x) if arguments is None else form(x, *arguments)
            shares.append(storages(y) == storages(x))
        assert shares == [True, False]


@each(Does.NEW_MEMORY)
def test_new_memory(name: str) -> None:
    given: dict[str, Callable[[Callable[..., Any], Tensor], Any]] = {
        "batch_norm": lambda f, x: F.batch_norm(x, torch.zeros(6), torch.ones(6)),
        "conv1d": lambda f, x: f(x[:, :, 0], torch.randn(3, 6, 1)),
        "conv2d": lambda f, x: f(x, torch.randn(3, 6, 1, 1)),
        "conv3d": lambda f, x: f(x[None], torch.randn(3, 2, 1, 1, 1)),
        "linear": lambda f, x: f(x, torch.eye(4)),
    }
    for form in run_forms(name):
        for memory_format in (torch.contiguous_format, LAST):
            x = image_of(name) if "pool" in name else torch.rand(SIZE)
            x = x.contiguous(memory_format=memory_format) if x.dim() == 4 else x
            before = x.clone()
            if name in given:
                y = given[name](form, x)
            elif "pool" in name:  # also if every window is one element
                alike = x.shape[2:] if name.startswith("adaptive") else 1
                y = [call(form, name, x), form(x, *((2.0,) if name.startswith("lp") else ()), alike)]
            elif name in names_of(Does.JOIN):
                y = form([x], 1)
            elif name in ("add", "mul", "sub"):
                y = form(x, 0.0 if name != "mul" else 1.0)
            else:
                y = call(form, name, x)
            assert not storages(y) & storages(x) and torch.equal(x, before)


@each(Does.ELEMENTWISE)
def test_elementwise(name: str) -> None:
    """Elements in other places give the same results in those places."""
    order = torch.randperm(96)
    for form in run_forms(name):
        if form is not getattr(F, name, None) and name in KEYWORDS:
            continue  # torch.dropout needs `train`; the same operator
        x = image_of("").flatten()[:96]
        y = call(form, name, x)
        assert y.shape == x.shape
        assert torch.allclose(call(form, name, x[order]), y[order], equal_nan=True)
        assert torch.allclose(call(form, name, x[:1].contiguous()), y[:1], equal_nan=True)


@each(Does.BINARY)
def test_binary(name: str) -> None:
    order = torch.randperm(96)
    for form in run_forms(name):
        x, y = torch.rand(96) + 0.5, torch.rand(96) + 0.5
        z = form(x.clone(), y)
        assert torch.equal(form(x[order].clone(), y[order]), z[order])


@each(Does.PER_CHANNEL)
def test_per_channel(name: str) -> None:
    order = torch.randperm(6)
    for form in run_forms(name):
        if form is not getattr(F, name, None):
            continue  # the same operator with other arguments
        x = image_of(name)
        y = call(form, name, x)
        assert torch.equal(call(form, name, x[:, order]), y[:, order])
        assert torch.equal(call(form, name, x[:, :1].contiguous()), y[:, :1])


@each(Does.REDUCE)
def test_reductions(name: str) -> None:
    for form in run_forms(name):
        x = torch.rand(SIZE)
        y = form(x, (2, 3))
        assert y.shape == SIZE[:2]
        torch.testing.assert_close(form(x[:, 1:2], (2, 3)), y[:, 1:2])


@pytest.mark.filterwarnings("ignore:TypedStorage")
@each(Does.STRIDES)
def test_depends_on_strides(name: str) -> None:
    """Equal tensors in two memory formats: another result, an error, or access to the memory itself."""
    arguments = {"resize_": (2, 96), "resize_as_": (torch.empty(2, 96),), "view_as": (torch.empty(2, 96),)}
    arguments |= {"view": (2, 96), "as_strided": ((4,), (1,))}
    for form in run_forms(name):
        if name == "resize_as_" and form is getattr(torch, name, None):
            continue
        found = []
        for x in (numbered(), numbered().contiguous(memory_format=LAST)):
            try:
                answer = form(x, *arguments.get(name, ()))
            except RuntimeError as error:
                answer = type(error)
            found.append(answer.flatten().tolist() if isinstance(answer, Tensor) else answer)
        if name not in ("data_ptr", "storage", "storage_offset", "untyped_storage"):
            assert found[0] != found[1]


@each(Does.SAME_STRIDES)
def test_the_same_strides_in_every_format(name: str) -> None:
    arguments = {
        "amax": ((2, 3),),
        "linear": (torch.eye(4),),
        "matmul": (torch.eye(4),),
        "reshape": ((2, 96),),
    }
    arguments |= dict.fromkeys(("mean", "sum"), ((2, 3),)) | {"softmax": (-1,), "max": ()}
    for form in run_forms(name):
        x = torch.rand(SIZE)
        rest = arguments.get(name, ARGUMENTS.get(name, ()))
        plain, last = form(x, *rest), form(x.contiguous(memory_format=LAST), *rest)
        assert plain.shape == last.shape and plain.stride() == last.stride()


def _schemas(name: str) -> list[Any]:
    """Of torch's operators of this name that do not write."""
    packet = None if name in SPECIAL else getattr(torch.ops.aten, name, None)
    if packet is None:
        return []
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    tensors = [s for s in schemas if s.returns and all("Tensor" in str(r.type) for r in s.returns)]
    return [s for s in tensors if not s.is_mutable]


@pytest.mark.parametrize("name", sorted(names_of(Does.NEW_MEMORY | Does.VIEW)))
def test_torchs_own_list_agrees(name: str) -> None:
    """Operators whose result may share memory have that in their schema."""
    schemas = _schemas(name)
    if not schemas:
        pytest.skip(f"torch has no operator aten::{name}")
    views = [any(r.alias_info is not None for r in s.returns) for s in schemas]
    assert all(views) if name in names_of(Does.VIEW) else not any(views)


def test_names_with_a_property_are_torchs() -> None:
    for does in Does:
        for name in names_of(does):
            assert list(forms(name)), f"torch has no call named {name}"
    assert "conv_transpose2d" not in names_of(~Does(0))
