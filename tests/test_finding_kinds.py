# SPDX-License-Identifier: MIT
"""All finders around tensors that are not plain memory: the step runs as without them, and reports can be read."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import opswap
from opswap._torch import dispatch_modes
from threads import elsewhere

FINDERS: dict[str, Callable[..., Any]] = {
    "layout": opswap.layout.check,
    "shapes": opswap.shapes.detect,
    "denormals": opswap.memory.denormals,
}


def sparse() -> torch.Tensor:
    x = torch.eye(4).to_sparse()
    return (x @ torch.ones(4, 4)).sum() + x.to_sparse_csr().to_dense().sum()


def sparse_images() -> torch.Tensor:
    x = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last).to_sparse()
    return (x + x).to_dense() + x.coalesce().values().sum()


def sparse_gradient() -> torch.Tensor:
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    assert table.weight.grad is not None
    torch.optim.SparseAdam(table.parameters()).step()
    return table.weight.grad.to_dense()


def nested() -> torch.Tensor:
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return torch.nested.to_padded_tensor(x * 2, 0.0) + torch.nested.to_padded_tensor(ragged * 2, 0.0)


def forward_mode() -> torch.Tensor:
    """The tangent of a constant is a tensor of zeros without memory."""
    value, tangent = torch.func.jvp(lambda x: x * 2, (torch.ones(3),), (torch.ones(3),))
    hessian = torch.autograd.functional.hessian(lambda x: (x**3).sum(), torch.ones(3))
    return value + tangent + hessian.diagonal()


def complex_views() -> torch.Tensor:
    x = torch.complex(torch.ones(2, 3, 4, 4), torch.ones(2, 3, 4, 4)).conj()
    return x.imag + torch.view_as_real(x.resolve_conj())[..., 0]


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(1, 3, 4, 4), 0.5, 0, torch.quint8).dequantize()


def opaque() -> torch.Tensor:
    return torch.ones(2, 3, 4, 4).to_mkldnn().relu().to_dense()


def fake() -> torch.Tensor:
    with FakeTensorMode():
        x = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last).relu()
    return torch.ones(tuple(x.shape))


KINDS = (
    sparse,
    sparse_images,
    sparse_gradient,
    nested,
    forward_mode,
    complex_views,
    quantized,
    opaque,
    fake,
)


@pytest.mark.filterwarnings("ignore:.*(Sparse|sparse|nested|TypedStorage|quantiz).*")
@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("kind", KINDS, ids=[k.__name__ for k in KINDS])
def test_runs_as_without(kind: Callable[[], torch.Tensor], finder: str) -> None:
    try:
        expected = kind()
    except RuntimeError as error:  # a build of torch without this kind
        pytest.skip(str(error).splitlines()[0])
    with FINDERS[finder]() as report:
        # While this lives, the checker of formats looks up what it knows of other tensors.
        lost = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last).contiguous()
        got = kind()
    assert lost.is_contiguous() and torch.equal(got, expected)
    assert str(report) and report.to_json()


@pytest.mark.parametrize("finder", FINDERS)
def test_is_left_in_its_own_thread(finder: str) -> None:
    """A mode is a thread's own: left in another one it would stay in force, and could not be left any more."""
    x = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    context = FINDERS[finder]()
    context.__enter__()
    depth = dispatch_modes()
    with pytest.raises(RuntimeError, match=r"entered in thread .* leave it in the thread that entered it"):
        elsewhere(lambda: context.__exit__(None, None, None))
    assert dispatch_modes() == depth
    torch.equal(x.contiguous()[x.bool()], x.flatten())
    context.__exit__(None, None, None)
    assert dispatch_modes() == depth - 1
    elsewhere(lambda: context.__exit__(None, None, None))  # left already: as in its own thread

    def enter_and_leave() -> None:
        with context:
            pass

    elsewhere(enter_and_leave)


@pytest.mark.parametrize("finder", FINDERS)
def test_a_report_keeps_no_model(finder: str) -> None:
    """Nor one that was given to the finder, with an allow-list that the report still applies."""
    model = nn.Conv2d(3, 4, 3)
    known = weakref.ref(model)
    with FINDERS[finder](model, allow=("index",)) as report:
        x = model(torch.ones(1, 3, 8, 8))
        x[x > 0].sum().backward()
    del model, x
    gc.collect()
    assert known() is None
    assert str(report) and not [s for s in report.findings if s.op == "aten.index"]


def test_a_report_of_a_timed_step_keeps_neither_model_nor_inputs() -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.ones(1, 3, 8, 8)
    known = weakref.ref(model), weakref.ref(x)
    report = opswap.memory.denormals(model, inputs=(x,), backward=True)
    weights = opswap.memory.denormals(model)
    del model, x
    gc.collect()
    assert [ref() for ref in known] == [None, None]
    assert report.step is not None and str(report) and str(weights)
    with weights:  # modules are named by their class now
        assert nn.Conv2d(3, 4, 3)(torch.ones(1, 3, 8, 8)).shape == (1, 4, 6, 6)
