# SPDX-License-Identifier: MIT
"""swap(model, memory_format=...): one line for the faster layout, and the way back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near
from opswap.models import lprnet
from swapping import images
from twins import twins

LAST = torch.channels_last


class Net(nn.Module):
    """Notes the layout of what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.narrow = nn.Conv2d(8, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.register_buffer("scale", torch.ones(1, 8, 2, 2))
        self.volume = nn.Conv3d(1, 1, (2, 1, 3))

    def forward(self, x: Tensor, *, bias: Tensor | None = None) -> Tensor:
        y = torch.relu(self.norm(self.narrow(self.conv(x))))
        return y if bias is None else y + bias


def layouts(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {k: v.stride() for k, v in [*model.named_parameters(), *model.named_buffers()]}


def swapped() -> nn.Module:
    return opswap.swap(Net(), memory_format=LAST)


def is_last(t: Tensor) -> bool:
    return t.is_contiguous(memory_format=LAST) and not t.is_contiguous()


def test_parameters_and_inputs() -> None:
    stock = Net()
    model = copy.deepcopy(stock)
    objects = [*model.parameters(), *model.buffers()]
    assert opswap.swap(model, memory_format=LAST) is model
    assert all(a is b for a, b in zip(objects, [*model.parameters(), *model.buffers()], strict=True))
    expected = copy.deepcopy(stock)
    expected.conv.to(memory_format=LAST), expected.narrow.to(memory_format=LAST)
    expected.scale = expected.scale.to(memory_format=LAST)
    assert layouts(model) == layouts(expected) != layouts(stock)
    for a, b in zip(model.state_dict().values(), stock.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert_model_as_near(model, stock, lambda: (torch.randn(2, 3, 6, 5),))
    x = torch.randn(2, 3, 6, 5)
    assert is_last(model(x)) and x.is_contiguous()


def test_other_arguments_pass() -> None:
    seen: list[object] = []

    class Any(nn.Module):
        def forward(self, *args: object, **kwargs: object) -> None:
            seen.extend([*args, kwargs])

    model = opswap.swap(Any(), memory_format=LAST)
    seen.clear()
    image, row, volume = torch.randn(2, 3, 4, 5), torch.randn(2, 3), torch.randn(1, 2, 3, 4, 5)
    model(image, row, volume, 7, [image], mask=image.int(), name="x")
    assert is_last(seen[0]) and seen[1] is row and seen[2] is volume and seen[3] == 7
    assert seen[4][0] is image and is_last(seen[5]["mask"]) and seen[5]["name"] == "x"


class Reads(nn.Module):
    """A layer that keeps a sparse tensor beside its weight, and takes any kind of tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.register_buffer("sparse", torch.randn(2, 2, 2, 2).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.layout in (torch.strided, torch._mkldnn) and not x.is_nested else x


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_have_no_memory_format_pass() -> None:
    stock = Reads().eval()
    model = opswap.swap(copy.deepcopy(stock), memory_format=LAST)
    assert model.sparse.is_sparse and model.conv.weight.is_contiguous(memory_format=LAST)
    x = torch.randn(2, 3, 6, 5)
    for other in (x.to_sparse(), torch.nested.nested_tensor([x[0], x[1]])):
        assert model(other) is other
    assert is_last(model(x))
    if torch.backends.mkldnn.is_available():
        with torch.no_grad():
            got, want = model(x.to_mkldnn()), stock(x.to_mkldnn())
        assert got.is_mkldnn
        torch.testing.assert_close(got.to_dense(), want.to_dense())
    opswap.unswap(model)
    assert model.sparse.is_sparse and model.conv.weight.stride() == stock.conv.weight.stride()


def test_volumes() -> None:
    model = opswap.swap(Net(), memory_format=torch.channels_last_3d)
    assert model.conv.weight.is_contiguous() and model(torch.randn(2, 3, 6, 5)).is_contiguous()
    wide = opswap.swap(nn.Conv3d(4, 4, 2), memory_format=torch.channels_last_3d)
    assert wide.weight.is_contiguous(memory_format=torch.channels_last_3d)
    door = opswap.swap(nn.Identity(), memory_format=torch.channels_last_3d)
    assert door(torch.randn(2, 4, 5, 5, 5)).is_contiguous(memory_format=torch.channels_last_3d)
    assert opswap.unswap(wide).weight.is_contiguous()


def test_unswap() -> None:
    stock, model = Net(), swapped()
    model(torch.randn(2, 3, 6, 5)).sum().backward()
    opswap.unswap(model)
    assert layouts(model) == layouts(stock)
    assert model.conv.weight.grad.stride() == stock.conv.weight.stride()
    assert not model._forward_pre_hooks and not model._forward_pre_hooks_with_kwargs
    assert model(torch.randn(2, 3, 6, 5)).is_contiguous()


def test_unswap_of_a_model_that_changed() -> None:
    model = swapped()
    model.conv = nn.Conv2d(3, 8, 5).to(memory_format=LAST)
    model.scale = None
    opswap.unswap(model)
    assert is_last(model.conv.weight) and model.narrow.weight.stride() == (8, 1, 1, 1)


def test_second_swap() -> None:
    model = swapped()
    before = layouts(model)
    opswap.swap(model, memory_format=LAST)
    assert layouts(model) == before and len(model._forward_pre_hooks) == 1
    opswap.swap(model)
    assert is_last(model(torch.randn(2, 3, 6, 5)))
    opswap.swap(model, memory_format=torch.contiguous_format)
    assert model(torch.randn(2, 3, 6, 5).contiguous(memory_format=LAST)).is_contiguous()
    opswap.unswap(model)
    assert layouts(model) == layouts(Net())


def test_hooks_of_others_stay() -> None:
    model = Net()
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    opswap.unswap(opswap.swap(model, memory_format=LAST))
    model(torch.randn(2, 3, 6, 5))
    assert len(seen) == 1


def test_report() -> None:
    model = swapped()
    for report in (opswap.report(model), opswap.scan(model)):
        assert report.memory_format == "channels_last" and "converted to channels_last" in str(report)
        assert '"memory_format": "channels_last"' in report.to_json()
    assert opswap.report(opswap.unswap(model)).memory_format == ""


def test_copies() -> None:
    model = swapped().eval()
    x = torch.randn(2, 3, 6, 5)
    for twin in twins(model):
        assert is_last(twin(x)) and torch.equal(twin(x), model(x))
        assert opswap.report(twin) == opswap.report(model)
        assert layouts(opswap.unswap(twin)) == layouts(Net())
    assert is_last(model(x))


def test_compile_and_export() -> None:
    model = swapped().eval()
    x, bias = torch.randn(2, 3, 6, 5), torch.randn(2, 8, 4, 3)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for kwargs in ({}, {"bias": bias}):
        assert is_last(compiled(x, **kwargs))
        torch.testing.assert_close(compiled(x, **kwargs), model(x, **kwargs))
    for strict in (False, True):
        program = torch.export.export(model, (x,), strict=strict)
        assert is_last(program.module()(x))
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.usefixtures("every_rule_applies")
def test_lprnet_in_one_line() -> None:
    stock = lprnet(11, 0.0)
    model = opswap.swap(copy.deepcopy(stock), memory_format=LAST)
    x = torch.randn(2, 3, 24, 94)
    torch.testing.assert_close(model(x), stock(x), rtol=1e-3, atol=1e-4)


class TestBadArguments:
    @pytest.mark.parametrize("bad", ["channels_last", 1, torch.float32])
    def test_kind(self, bad: object) -> None:
        with pytest.raises(TypeError, match=r"must be a torch\.memory_format"):
            opswap.swap(Net(), memory_format=bad)

    def test_value(self) -> None:
        model = Net()
        with pytest.raises(ValueError, match="preserve_format"):
            opswap.swap(model, memory_format=torch.preserve_format)
        assert not opswap.report(model).swapped


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x.sub_(0.5).div_(0.25)
        return self.conv(x) if other is None else self.conv(x + other.mul_(2))


WRITING: dict[str, Callable[[], nn.Module]] = {
    "arithmetic": Centred,
    "activation": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 4, 3)),
}


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("make", WRITING.values(), ids=WRITING)
def test_the_callers_tensor_is_written_to(make: Callable[[], nn.Module], graph: bool) -> None:
    torch.manual_seed(0)
    stock = make()
    model = opswap.swap(copy.deepcopy(stock), memory_format=torch.channels_last)
    found, given = [], images(2, 3, 6, 6)
    for m in (model, stock):
        leaf = given.clone().requires_grad_(graph)
        x = leaf * 1
        y = m(x)
        loss = y.square().mean() + (x * torch.arange(6.0)).sum()
        if graph:
            loss.backward()
        found.append((y.detach(), x.detach(), leaf.grad if graph else loss))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("make", WRITING.values(), ids=WRITING)
@pytest.mark.parametrize("outside", [True, False])
def test_the_callers_tensor_is_written_to_in_inference(make: Callable[[], nn.Module], outside: bool) -> None:
    stock = make()
    model = opswap.swap(copy.deepcopy(stock), memory_format=torch.channels_last)
    found, given = [], images(2, 3, 6, 6)
    for m in (model, stock):
        with torch.inference_mode(not outside):
            x = given.clone()
        with torch.inference_mode():
            found.append((m(x), x))
        assert found[-1][0].is_inference()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_each_argument_that_was_converted_is_written_to() -> None:
    model = opswap.swap(Centred(), memory_format=torch.channels_last)
    x, other = images(2, 3, 6, 6), images(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    expected = (x - 0.5) / 0.25, other * 2
    model(x, other=other)
    torch.testing.assert_close((x, other), expected)
    last = images(2, 3, 6, 6).requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        model(last)


def test_no_hook_is_left_by_unswap() -> None:
    model = opswap.swap(Centred(), memory_format=torch.channels_last)
    opswap.swap(model, memory_format=torch.channels_last)
    assert len(model._forward_hooks) == len(model._forward_hooks_with_kwargs) == 1
    opswap.unswap(model)
    assert not model._forward_hooks and not model._forward_hooks_with_kwargs


def test_a_converted_tensor_that_is_kept_can_be_saved() -> None:
    class Keeping(Centred):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x
            return self.conv(x)

    model = opswap.swap(Keeping(), memory_format=torch.channels_last)
    model(images(2, 3, 6, 6))
    assert not vars(model.last) and pickle.loads(pickle.dumps(model.last)).shape == (2, 3, 6, 6)


class Siamese(nn.Module):
    """Reads whether both arguments are one tensor, and writes to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor, y: Tensor, *, z: Tensor | None = None) -> Tensor:
        x.mul_(2)
        result = self.conv(y) if y is x else self.conv(x) - self.conv(y)
        return result if z is None else result + (3 if z is y else 5) * self.conv(z)


@pytest.mark.parametrize("pick", [(0, 0, None), (0, 1, None), (0, 0, 0), (0, 1, 1), (0, 1, 0), (0, 1, 2)])
def test_a_tensor_that_is_given_twice_stays_one(pick: tuple[int | None, ...]) -> None:
    stock = Siamese()
    model = opswap.swap(copy.deepcopy(stock), memory_format=LAST)
    drawn = [torch.randn(2, 3, 6, 5) for _ in range(3)]
    found = []
    for net in (stock, model):
        given = [t.clone() for t in drawn]
        x, y, z = (None if i is None else given[i] for i in pick)
        with torch.no_grad():
            found.append((net(x, y, z=z), *given))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
