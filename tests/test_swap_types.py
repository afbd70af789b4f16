# SPDX-License-Identifier: MIT
"""Layers of torch keep their class when they are rewritten; what the forward on the instance has to bear for that."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import opswap
from freed import assert_freed_at_once
from opswap.ops import reduced_precision
from opswap.swap.rule import Replacement, Rule
from opswap.swap.rules import DEFAULT
from opswap.swap.runtime.guards import hooked
from opswap.swap.runtime.instance_forward import is_rewritten
from step import assert_equal, outputs_and_gradients
from twins import saved

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

calls: list[str] = []


def plain_conv(module: nn.Conv2d, input: Tensor) -> Tensor:
    """Stands for a kernel: torch's own convolution, counted."""
    if not torch.compiler.is_compiling():
        calls.append("conv")
    return torch.conv2d(
        input, module.weight, module.bias, module.stride, module.padding, module.dilation, module.groups
    )


CONV = Rule(
    "any_conv",
    False,
    modules=(nn.Conv2d,),
    whole=Replacement("x0.dim() == 4", "plain_conv(m0, x0)", {"plain_conv": plain_conv}),
)
RULES = (CONV, *DEFAULT)


def conv(module: nn.Conv2d | None = None) -> nn.Conv2d:
    return opswap.swap(nn.Conv2d(12, 12, 3, padding=1) if module is None else module, rules=[CONV])


def image(*size: int) -> Tensor:
    return torch.randn(size or (2, 12, 8, 6))


@pytest.fixture(autouse=True)
def no_calls(seed: int) -> Iterator[None]:
    calls.clear()
    yield


def ran() -> bool:
    """True if the replacement was called since the last question."""
    found = bool(calls)
    calls.clear()
    return found


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(12, 12, 3),
    "batch_norm": lambda: nn.BatchNorm2d(12),
    "dropout": lambda: nn.Dropout(0.5),
    "max_pool": lambda: nn.MaxPool2d(2),
    "avg_pool": lambda: nn.AvgPool2d(2),
    "adaptive": lambda: nn.AdaptiveMaxPool2d(1),
    "sequential": lambda: nn.Sequential(nn.BatchNorm2d(12), nn.ReLU()),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Conv2d(12, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
    ),
}
KINDS = {name: [type(m) for m in make().modules()] for name, make in LAYERS.items()}


def results(model: nn.Module, x: Tensor) -> Any:
    torch.manual_seed(3)
    return outputs_and_gradients(model, x)


@pytest.mark.parametrize("name", LAYERS)
def test_types_are_kept(name: str) -> None:
    stock = LAYERS[name]()
    model = opswap.swap(copy.deepcopy(stock), rules=RULES, strict=True)
    assert any(map(is_rewritten, model.modules()))
    assert [type(m) for m in model.modules()] == KINDS[name]
    assert str(model) == str(stock) and list(model.state_dict()) == list(stock.state_dict())
    assert not any(map(hooked, model.modules()))
    for training in (True, False):
        x = image()
        ours, theirs = results(model.train(training), x), results(stock.train(training), x)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert opswap.unswap(model) is model
    assert [list(vars(m)) for m in model.modules()] == [list(vars(m)) for m in stock.modules()]
    assert [type(m) for m in model.modules()] == KINDS[name]


def twice(model: nn.Module) -> nn.Module:
    return copy.deepcopy(copy.deepcopy(model))


def moved(model: nn.Module) -> nn.Module:
    """As torch's parametrize and others copy: a new object, and a deep copy of the dictionary."""
    memo: dict[int, Any] = {}
    found = model.__new__(type(model))
    memo[id(model)] = found
    found.__dict__ = copy.deepcopy(model.__dict__, memo)
    return found


def clone(model: nn.Module) -> nn.Module:
    """By dictionaries, as libraries for learning to learn do it."""
    found = model.__new__(type(model))
    found.__dict__ = model.__dict__.copy()
    found._parameters = {
        k: None if p is None else nn.Parameter(p.detach().clone()) for k, p in model._parameters.items()
    }
    found._buffers = {k: b.clone() for k, b in model._buffers.items()}
    found._modules = {k: clone(m) for k, m in model._modules.items()}
    return found


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "twice": twice,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "oldest pickle": lambda m: pickle.loads(pickle.dumps(m, 0)),
    "python's pickle": lambda m: pickle.loads(pickle._dumps(m)),
    "saved": saved,
    "moved": moved,
    "average": lambda m: torch.optim.swa_utils.AveragedModel(m).module,
    "container": lambda m: copy.deepcopy(nn.ModuleList([nn.ReLU(), m]))[1],
    "clone": clone,
    "clone of a clone": lambda m: clone(clone(m)),
    "copy of a clone": lambda m: copy.deepcopy(clone(m)),
    "pickle of a clone": lambda m: pickle.loads(pickle.dumps(clone(m))),
    "shallow": copy.copy,
    "pickle of a shallow copy": lambda m: pickle.loads(pickle.dumps(copy.copy(m))),
    "shallow and deep": lambda m: copy.deepcopy(copy.copy(m)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", LAYERS)
def test_copies_are_rewritten_and_on_their_own(name: str, how: str) -> None:
    model = opswap.swap(LAYERS[name](), rules=RULES)
    twin = COPIES[how](model)
    assert type(twin) is type(model) and is_rewritten(twin) == is_rewritten(model)
    assert not any(map(hooked, twin.modules()))
    x = image()
    torch.testing.assert_close(results(twin, x), results(model, x))
    flags = [m.training for m in model.modules()]
    if "shallow" not in how or not model._modules:  # children are shared by a shallow copy
        twin.eval()
        assert [m.training for m in model.modules()] == flags
        stock = opswap.unswap(COPIES[how](model)).eval()
        torch.testing.assert_close(results(twin, x), results(stock, x), rtol=1e-4, atol=1e-5)
    if "shallow" not in how:
        for p in twin.parameters():
            p.data.mul_(2)
        if name == "conv":
            assert not torch.equal(twin(x), model(x))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    twin(x)


def test_original_of_a_clone_stays_swapped() -> None:
    """Also if the clone is unswapped, swapped by other rules, or called when the original is gone."""
    model, x = conv(), image()
    opswap.unswap(clone(model))
    opswap.swap(clone(model), rules=())
    model(x)
    assert ran()
    twin = clone(model)
    expected = model(x)
    del model
    assert torch.equal(twin(x), expected)
    assert ran() and torch.equal(torch.jit.trace(clone(twin), x)(x), twin(x))


def test_freed_without_the_garbage_collector() -> None:
    opswap.scan(nn.Sequential(nn.Dropout()))  # the first tracer of a process is kept
    layers = nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.Dropout()
    assert_freed_at_once(lambda: opswap.swap(nn.Sequential(*copy.deepcopy(layers)), rules=RULES))


@pytest.mark.parametrize("name", ["conv", "batch_norm", "dropout", "max_pool"])
def test_replicas_of_data_parallel(name: str) -> None:
    """A replica has a copy of the dictionary, and other tensors in the place of the parameters."""
    model = opswap.swap(LAYERS[name](), rules=RULES)
    replica = model._replicate_for_data_parallel()
    for key, p in model._parameters.items():
        setattr(replica, key, p.detach().clone().mul_(2).requires_grad_())
    for key, b in model._buffers.items():
        replica._buffers[key] = b.clone()
    replica.training = False
    x = image()
    expected = copy.deepcopy(model)
    with torch.no_grad():
        for p in expected.parameters():
            p.mul_(2)
    expected.eval()
    torch.testing.assert_close(replica(x), opswap.unswap(expected)(x), rtol=1e-4, atol=1e-5)
    assert model.training and replica.forward.__self__ is not model.forward.__self__


def test_users_forward_put_on_later() -> None:
    model, x = conv(), image()
    model.forward = lambda input: input * 3
    assert torch.equal(model(x), x * 3) and hooked(model) and not ran()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), x * 3) and hooked(twin)
    opswap.unswap(model)
    assert torch.equal(model(x), x * 3) and "opswap_code" not in vars(model)
    del model.forward
    assert torch.equal(model(x), nn.Conv2d.forward(model, x))


def test_users_forward_that_was_there_before() -> None:
    module = nn.Conv2d(12, 12, 3, padding=1)
    module.forward = lambda input: input * 2
    model = opswap.swap(nn.Sequential(module, nn.Conv2d(12, 4, 1)), rules=[CONV])
    x = image()
    assert torch.equal(model[0](x), x * 2) and not ran() and not is_rewritten(model[0])
    kept = opswap.scan(model, rules=[CONV]).kept
    assert [s.path for s in kept if "forward of its own" in s.reason] == ["0"]


def test_forward_removed_by_the_user() -> None:
    model, x = conv(), image()
    del model.forward
    assert torch.equal(model(x), nn.Conv2d.forward(model, x)) and not ran()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x)) and not ran()
    opswap.swap(opswap.unswap(model), rules=[CONV])
    model(x)
    assert ran()


def wrap(module: nn.Module) -> None:
    """accelerate's add_hook_to_module."""
    module._old_forward = module.forward

    def new_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module._old_forward(*args, **kwargs) + 1

    module.forward = functools.update_wrapper(functools.partial(new_forward, module), module._old_forward)


def unwrap(module: nn.Module) -> None:
    module.forward = module._old_forward
    delattr(module, "_old_forward")


def test_wrapped_as_accelerate_does() -> None:
    model, x = conv(), image()
    stock = nn.Conv2d.forward(model, x)
    wrap(model)
    assert torch.equal(model(x), stock + 1) and ran() and hooked(model)
    opswap.unswap(model)
    assert torch.equal(model(x), stock + 1) and not ran()
    unwrap(model)
    assert torch.equal(model(x), stock) and not ran()
    model = conv()
    wrap(model)
    unwrap(model)
    model(x)
    assert ran() and not hooked(model)


def test_wrapped_before_the_swap() -> None:
    module, x = nn.Conv2d(12, 12, 3, padding=1), image()
    wrap(module)
    model = conv(module)
    assert torch.equal(model(x), nn.Conv2d.forward(model, x) + 1) and not ran()
    unwrap(model)
    assert torch.equal(model(x), nn.Conv2d.forward(model, x))


@pytest.mark.parametrize("make", [conv, lambda: opswap.swap(nn.Sequential(nn.BatchNorm2d(12), nn.ReLU()))])
def test_its_function_called_with_the_module(make: Callable[[], nn.Module]) -> None:
    """accelerate's Accelerator wraps `model.forward.__func__` for mixed precision."""
    model, x = make().eval(), image()
    function = model.forward.__func__
    opswap.reset_stats()
    expected = type(model).forward(model, x)
    torch.testing.assert_close(function(model, x), expected, rtol=1e-4, atol=1e-5)
    assert ran() or opswap.stats()["kernel"]
    model.forward = types.MethodType(torch.autocast("cpu", torch.bfloat16)(function), model)
    assert model(x).shape == expected.shape
    other = type(model)(*model.children()) if model._modules else nn.Conv2d(12, 12, 3, padding=1)
    assert torch.equal(function(other.eval(), x), other(x))


def test_bound_methods_outlive_no_module() -> None:
    forward, x = conv().forward, image()
    gc.collect()
    with pytest.raises(ReferenceError, match="the module of this forward has been freed"):
        forward(x)


def test_generated_forwards_outlive_no_module() -> None:
    """As of a model whose forwards were wrapped, and of which only a copy was kept."""
    model = opswap.swap(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()))
    forward, x = model.forward, torch.randn(2, 3, 4, 4)
    del model
    gc.collect()
    with pytest.raises(ReferenceError, match="the module of this forward has been freed"):
        forward(x)


class Own(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class Inner(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight * 2, bias)


class Called(nn.Conv2d):
    def __call__(self, input: Tensor) -> Tensor:
        return super().__call__(input) - 1


class Named(nn.Conv2d):
    def describe(self) -> str:
        return "a conv"


@pytest.mark.parametrize("cls", [Own, Inner, Called, Named])
def test_a_class_that_is_put_on_later_counts(cls: type[nn.Conv2d]) -> None:
    model, x = conv(), image()
    expected = copy.deepcopy(opswap.unswap(copy.deepcopy(model)))
    for m in (model, expected):
        m.__class__ = cls
    torch.testing.assert_close(model(x), expected(x))
    assert ran() == (cls is Named)
    opswap.unswap(model)
    assert type(model) is cls and torch.equal(model(x), expected(x))


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


def test_parametrized_after_the_swap() -> None:
    model, x = conv(), image()
    stock = opswap.unswap(copy.deepcopy(model))
    for m in (model, stock):
        parametrize.register_parametrization(m, "weight", Doubled())
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
    assert ran()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.parametrizations.weight.original.zero_()
    assert torch.equal(twin(x), stock(x)) and ran()
    parametrize.remove_parametrizations(twin, "weight")
    assert type(twin) is nn.Conv2d and torch.equal(twin(x), stock(x)) and ran()


class Noisy(nn.Module):
    """Draws at each read."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight + torch.rand_like(weight)


class Offset(nn.LayerNorm):
    drawn = False

    @property
    def eps(self) -> float:
        return float(torch.rand(())) if self.drawn else 1e-5

    @eps.setter
    def eps(self, value: float) -> None:
        self.drawn = True


READ: dict[str, Callable[[], nn.Module]] = {
    "1 x 1": lambda: nn.Conv2d(16, 16, 1),
    "depthwise": lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16),
    "dense": lambda: nn.Conv2d(16, 16, 3, padding=1),
    "dense in 16 bits": lambda: nn.Conv2d(16, 16, 3, padding=1).bfloat16(),
    "linear in 16 bits": lambda: nn.Linear(28, 28).bfloat16(),
    "BatchNorm": lambda: nn.Sequential(nn.BatchNorm2d(16), nn.ReLU()),
    "GroupNorm": lambda: nn.GroupNorm(4, 16),
    "InstanceNorm": lambda: nn.InstanceNorm2d(16, affine=True),
    "LayerNorm": lambda: nn.LayerNorm(28),
    "chain": lambda: nn.Sequential(
        nn.Conv2d(16, 16, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, 1, 1, 1, 16, False),
        nn.BatchNorm2d(16),
    ),
}


def add_noise(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name in [n for n, _ in module.named_parameters(recurse=False)]:
            parametrize.register_parametrization(module, name, Noisy())


def norm_spectra(model: nn.Module) -> None:
    for module in [m for m in model.modules() if getattr(m, "weight", torch.zeros(0)).dim() > 1]:
        nn.utils.parametrizations.spectral_norm(module)


def draw_settings(model: nn.Module) -> None:
    if type(model) is nn.LayerNorm:
        model.__class__ = Offset
        model.eps = 1.0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("change", [add_noise, norm_spectra, draw_settings])
@pytest.mark.parametrize("name", READ)
def test_what_is_made_at_each_read_is_read_as_often_as_by_stock(
    name: str,
    change: Callable[[nn.Module], None],
    memory_format: torch.memory_format,
    training: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As on a CPU without instructions for 16 bits, on which a rule replaces these layers.
    monkeypatch.setattr(reduced_precision, "SLOW", frozenset({torch.bfloat16, torch.float16}))
    stock = READ[name]().to(memory_format=memory_format)
    model = opswap.swap(copy.deepcopy(stock))
    x = torch.randn(8, 16, 28, 28).to(next(stock.parameters()).dtype, memory_format=memory_format)
    ends = []
    for m in (stock, model):
        torch.manual_seed(0)
        change(m)
        m.train(training)
        for _ in range(2):
            out = m(x)
        ends.append((out, *m.buffers(), torch.rand(3)))
    torch.testing.assert_close(*ends, rtol=2e-2, atol=2e-2)
    assert torch.equal(ends[0][-1], ends[1][-1])


def test_pruned_and_normed_after_the_swap() -> None:
    x = image()
    for change in (
        lambda m: prune.l1_unstructured(m, "weight", 0.5),
        nn.utils.parametrizations.weight_norm,
        lambda m: m.register_parameter("bias", None),
        lambda m: setattr(m, "weight", nn.Parameter(torch.ones_like(m.weight))),
        lambda m: setattr(m, "stride", (2, 2)),
        lambda m: m.double().float(),
    ):
        model = conv()
        stock = opswap.unswap(copy.deepcopy(model))
        for m in (model, stock):
            change(m)
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
        assert ran()


def test_transforms() -> None:
    model, x = conv(), image()
    stock = opswap.unswap(copy.deepcopy(model))
    other = {k: torch.randn_like(p) for k, p in model.named_parameters()}
    expected = torch.func.functional_call(stock, other, (x,))
    assert torch.equal(torch.func.functional_call(model, other, (x,)), expected)
    models = [conv() for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def call(p: Any, b: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(base, (p, b), (x,))

    together = torch.func.vmap(call, in_dims=(0, 0, None))(params, buffers, x)
    torch.testing.assert_close(together, torch.stack([m(x) for m in models]))
    grads = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(other)
    expected = torch.func.grad(lambda p: torch.func.functional_call(stock, p, (x,)).sum())(other)
    torch.testing.assert_close(grads, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_exported_scripted(name: str) -> None:
    model = opswap.swap(LAYERS[name](), rules=RULES).eval()
    stock, x = opswap.unswap(copy.deepcopy(model)), image()
    expected = stock(x)
    torch._dynamo.reset()
    net = nn.Sequential(nn.Identity(), model)
    near = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
    near(torch.compile(net, backend="aot_eager", fullgraph=True)(x), expected)
    for strict in (True, False):
        exported = torch.export.export(net, (x,), strict=strict)
        near(exported.module()(x), expected)
        assert list(exported.state_dict) == list(net.state_dict())
    near(torch.jit.script(model)(x), expected)
    assert inspect.signature(model.forward) == inspect.signature(stock.forward)
    near(torch.fx.symbolic_trace(net)(x), expected)


def test_compiled_code_sees_changes() -> None:
    model, x = nn.Sequential(conv()), image()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(x)
    for change in (
        lambda m: m.weight.data.mul_(2),
        lambda m: setattr(m, "weight", nn.Parameter(torch.ones_like(m.weight))),
        lambda m: setattr(m, "padding", (0, 0)),
        lambda m: setattr(m, "forward", torch.neg),
        opswap.unswap,
    ):
        change(model[0])
        torch.testing.assert_close(compiled(x), model(x))
    stock = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1))
    stock[0].__class__ = Own
    model = nn.Sequential(conv(copy.deepcopy(stock[0])))
    torch.testing.assert_close(torch.compile(model, backend="eager")(x), stock(x))


def test_sharded_classes_keep_the_rewrite() -> None:
    """FSDP2 gives modules a subclass that adds methods of its own."""
    model, x = conv(), image()
    sharded = type("FSDPConv2d", (types.new_class("FSDPModule"), nn.Conv2d), {"unshard": lambda self: None})
    model.__class__ = sharded
    model(x)
    assert ran()
    opswap.unswap(model)
    assert type(model) is sharded


def test_swapped_again_and_taken_back() -> None:
    model, x = conv(), image()
    forward = model.forward
    opswap.swap(model, rules=[CONV])
    model(x)
    assert ran()
    opswap.unswap(model)
    assert torch.equal(forward(x), model(x)) and not ran()
    opswap.swap(model, rules=[CONV])
    model(x)
    assert ran()
    assert opswap.report(opswap.unswap(model)).swapped == []
