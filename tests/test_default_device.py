# SPDX-License-Identifier: MIT
"""torch.set_default_device, set_default_dtype and `with torch.device(...)` change nothing for tensors on the CPU."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn
from torch.utils._device import DeviceContext

import opswap
import opswap.functional as F
from functional_cases import FUNCTIONS, Case, as_tuple
from modes import Calls
from opswap import _core
from opswap.ops import dropout as dropout_module
from step import outputs_and_gradients


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    before = torch.get_default_device()
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(before if before.type != "cpu" else None)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def several() -> Iterator[None]:
    with default_device("meta"), torch.device("cpu"), torch.device("cpu"), default_dtype(torch.float64):
        yield


SETTINGS: dict[str, Callable[[], Any]] = {
    "default cpu": lambda: default_device("cpu"),
    "default meta": lambda: default_device("meta"),
    "with cpu": lambda: torch.device("cpu"),
    "with meta": lambda: torch.device("meta"),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "several": several,
}
every_setting = pytest.mark.parametrize("setting", SETTINGS)


class Heads(nn.Module):
    """Linears in a loop that writes into a new tensor: a rule of its own asks where that tensor lies."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 4) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([head(x[:, i]) for i, head in enumerate(self.heads)], 1)


def spelled() -> nn.Module:
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            x = T.relu(self.norm(self.conv(x)))
            n, c, h, w = x.shape
            x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
            return T.max_pool2d(T.dropout(x, 0.3, self.training), 2).amax((2, 3))

    return Shuffled()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "shufflenet": (lambda: opswap.models.shufflenet_v2_x0_5(10), (2, 3, 64, 64)),
    "lprnet": (lambda: opswap.models.lprnet(11, 0.5), (2, 3, 24, 94)),
    "multi_branch": (lambda: opswap.models.multi_branch((3, 7, 2)), (2, 3, 32, 32)),
    "spelled": (spelled, (4, 4, 12, 12)),
    "heads": (Heads, (7, 5, 6)),
}


def counted_step(model: nn.Module, x: Tensor) -> tuple[list[Tensor], dict[str, Any]]:
    torch.manual_seed(3)
    opswap.reset_stats()
    results = outputs_and_gradients(model, x)
    return results, opswap.stats()


@functools.cache
def undisturbed(name: str) -> tuple[nn.Module, Tensor, nn.Module, list[Tensor], dict[str, Any]]:
    """A model and its input, and the swapped model with the results and counts of its step."""
    make, size = MODELS[name]
    stock, x = make(), torch.randn(size)
    plain = opswap.swap(copy.deepcopy(stock))
    results, counts = counted_step(plain, x)
    return stock, x, plain, [t.detach() for t in results], counts


@every_setting
@pytest.mark.parametrize("name", MODELS)
def test_swap(name: str, setting: str) -> None:
    stock, x, plain, expected, counts = undisturbed(name)
    assert counts["kernel"]
    with SETTINGS[setting]():
        model = opswap.swap(copy.deepcopy(stock))
        results, found = counted_step(model, x)
        scanned = opswap.scan(stock)
    assert [(s.path, s.rule) for s in opswap.report(model).swapped] == [
        (s.path, s.rule) for s in opswap.report(plain).swapped
    ]
    assert len(scanned.swapped) == len(opswap.report(plain).swapped)
    assert found == counts
    for a, b in zip(results, expected, strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype and a.device == b.device


@every_setting
def test_swap_with_a_proof_at_given_sizes(setting: str) -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(-1, 2, 3, 4, 5).transpose(1, 2).reshape(-1, 6, 4, 5)

    x = torch.randn(2, 6, 4, 5)
    with SETTINGS[setting]():
        model = opswap.swap(Fixed(), example_inputs=(x,), strict=True)
        assert torch.equal(model(x), Fixed()(x))


@every_setting
@pytest.mark.parametrize("case", FUNCTIONS, ids=repr)
def test_functional(case: Case, setting: str) -> None:
    inputs = case.inputs()
    for t in inputs[:1] + inputs[-1:]:
        t.requires_grad_()

    def run() -> tuple[list[Tensor], dict[str, Any]]:
        opswap.reset_stats()
        outputs = as_tuple(case.ours(*inputs))
        loss = sum((o * o).sum() for o in outputs)
        wanted = [t for t in inputs if t.requires_grad]
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        return [*outputs, *(g for g in gradients if g is not None)], opswap.stats()

    expected, counts = run()
    with SETTINGS[setting]():
        results, found = run()
    assert found == counts
    for a, b in zip(results, expected, strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype and a.device == b.device
        assert a.stride() == b.stride()


@every_setting
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout(dtype: torch.dtype, setting: str) -> None:
    """The draws, the scale and the gradient, also that of torch's operators for gradients in a batch."""
    x = torch.randn(2, 8, 16, 16, dtype=dtype, requires_grad=True)
    grads = torch.randn(3, *x.shape, dtype=dtype)

    def run(function: Callable[..., Tensor]) -> list[Tensor]:
        torch.manual_seed(5)
        y = function(x, 0.3)
        batched = torch.autograd.grad(y, x, grads, is_grads_batched=True, retain_graph=True)
        return [y, *torch.autograd.grad(y, x, grads[0]), *batched]

    expected = run(T.dropout)
    with SETTINGS[setting]():
        dropout_module._drew_alike.cache_clear()
        results = run(F.dropout)
    for a, b in zip(results, expected, strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype


def _derivatives(case: Case, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Output, gradients, gradients of gradients, gradients in a batch, a tangent and a map over examples."""
    first = inputs[0].requires_grad_()
    outputs = [o for o in as_tuple(case.ours(*inputs)) if o.requires_grad]
    grads = torch.autograd.grad([(o * o).sum() for o in outputs], first, create_graph=True)
    twice = torch.autograd.grad(grads[0].sum(), first, allow_unused=True, retain_graph=True)
    batch = [torch.stack((o.detach(), o.detach() + 1)) for o in outputs]
    batched = torch.autograd.grad(outputs, first, batch, is_grads_batched=True, retain_graph=True)

    def of_first(x: Tensor) -> tuple[Tensor, ...]:
        return as_tuple(case.ours(x, *inputs[1:]))

    pushed = torch.func.jvp(of_first, (first.detach(),), (first.detach() + 1,))[1]
    results = [*outputs, *grads, *(t for t in twice if t is not None), *batched, *pushed]
    if not case.name.startswith(
        "batch_norm"
    ):  # vmap refuses to move statistics that are not mapped, as torch's
        results += torch.func.vmap(of_first)(torch.stack((first.detach(), first.detach() + 1)))
    return results


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", [c for c in FUNCTIONS if not c.channels_last], ids=repr)
def test_derivatives_in_every_default_dtype(case: Case, dtype: torch.dtype, forced: bool) -> None:
    """A constant that is computed in the default dtype would show in one of them, in kernels and in plain forms."""
    inputs = tuple(t.detach() for t in case.inputs(dtype))
    context = opswap.force_reference() if forced else contextlib.nullcontext()
    with context:
        expected = _derivatives(case, inputs)
        for default in (torch.float64, torch.bfloat16, torch.float16):
            with default_dtype(default):
                results = _derivatives(case, tuple(t.detach() for t in inputs))
            for a, b in zip(results, expected, strict=True):
                assert torch.equal(a, b) and a.dtype == b.dtype


@every_setting
def test_merge(setting: str) -> None:
    def branch() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))

    branches = [branch() for _ in range(4)]
    x = torch.randn(5, 3, 6, 6)
    plain = opswap.merge.branches(copy.deepcopy(branches), example_input=x)
    expected = plain(x)
    with SETTINGS[setting]():
        merged = opswap.merge.branches(copy.deepcopy(branches), example_input=x)
        results = merged(x)
    assert repr(merged) == repr(plain)
    for a, b in zip(results, expected, strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype


@every_setting
def test_verify(setting: str) -> None:
    stock, x = Heads(), torch.randn(7, 5, 6)
    with SETTINGS[setting]():
        assert opswap.verify(opswap.swap(stock), (x,)).swapped


class UserDevice(DeviceContext):
    """A mode of the user's own that happens to derive from torch's."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs)


class TestModes:
    @every_setting
    def test_fast_path(self, setting: str) -> None:
        with SETTINGS[setting]():
            assert _core.plain_eager()
        assert _core.plain_eager()

    @every_setting
    @pytest.mark.parametrize("inner", [False, True])
    def test_users_modes_see_every_call(self, inner: bool, setting: str) -> None:
        users = Calls()
        with contextlib.ExitStack() as stack:
            for context in (SETTINGS[setting](), users) if inner else (users, SETTINGS[setting]()):
                stack.enter_context(context)
            self.check(users)

    def test_users_mode_that_derives_from_torchs(self) -> None:
        users = UserDevice()
        with users:
            self.check(users)
        with torch.device("cpu"), users:
            self.check(users)

    def check(self, users: Calls | UserDevice) -> None:
        assert not _core.plain_eager()
        x = torch.randn(2, 6, 4, 5, device="cpu")
        users.seen.clear()
        F.max_pool2d(x, 2)
        F.avg_pool2d(x, 2)
        F.adaptive_max_pool2d(x, 2)
        F.global_max_pool2d(x)
        F.batch_norm_relu(x, None, None, training=True)
        F.cat_channel_shuffle((x, x), 2)
        F.dropout(x)
        F.grouped_linear(x[0], torch.randn(4, 3, 5, device="cpu"))
        seen = {getattr(f, "__name__", "") for f in users.seen}
        assert {"max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "global_max_pool2d"} <= seen
        assert {"batch_norm_act", "cat_channel_shuffle", "dropout", "grouped_linear"} <= seen
