# SPDX-License-Identifier: MIT
"""Frozen chains that have settled: what changes afterwards is noticed, and nothing of a model is kept alive."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import opswap
from freed import assert_freed_at_once
from opswap import _core
from opswap.nn.frozen import FROZEN, Frozen, Parts
from opswap.nn.seal import seal, seal_forward

LAST = torch.channels_last
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies"),
]


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(5, 20, 3, bias=False), nn.BatchNorm2d(20), nn.Hardtanh(-0.5, 1.5), nn.Identity()
    )
    nn.init.normal_(net[1].running_mean)
    nn.init.uniform_(net[1].running_var, 0.5, 2)
    return net.to(memory_format=LAST).eval()


def settled_net() -> tuple[nn.Sequential, nn.Sequential, Tensor]:
    """(stock, swapped and frozen, input), both called three times."""
    stock = layers()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    x = torch.randn(2, 5, 12, 12).contiguous(memory_format=LAST)
    for _ in range(3):
        compare(model, stock, x, 1)
    assert held(model).is_settled(tuple(model)[:3]) or held(model).is_settled(tuple(model))
    return stock, model, x


def held(model: nn.Module) -> object:
    return vars(model[0])[FROZEN]


@torch.no_grad()
def compare(model: nn.Module, stock: nn.Module, x: Tensor, chains: int | None = None) -> None:
    opswap.reset_stats()
    torch.testing.assert_close(model(x), stock(x))
    assert chains is None or opswap.stats()["kernel"].get("conv_chain", 0) == chains


def doubled(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return output * 2


def own_forward(m: nn.Sequential) -> None:
    m[1].forward = lambda x: x - 1


def other_class(m: nn.Sequential) -> None:
    m[2].__class__ = nn.Hardsigmoid


def softer(m: nn.Sequential) -> None:
    m[2].max_val = 0.75


def pre_hook(m: nn.Sequential) -> None:
    m[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))


def hook_of_activation(m: nn.Sequential) -> None:
    m[2].register_forward_hook(doubled)


def hook_of_identity(m: nn.Sequential) -> None:
    m[3].register_forward_hook(doubled)


def strided(m: nn.Sequential) -> None:
    m[0].stride = [2, 1]


def padded(m: nn.Sequential) -> None:
    m[0].padding = (1, 1)


def reflected(m: nn.Sequential) -> None:
    m[0].padding, m[0].padding_mode = (1, 1), "circular"
    m[0]._reversed_padding_repeated_twice = [1, 1, 1, 1]


def statistics_of_the_batch(m: nn.Sequential) -> None:
    m[1].train()


def without_statistics(m: nn.Sequential) -> None:
    m[1].running_mean = m[1].running_var = None


def new_statistics(m: nn.Sequential) -> None:
    m[1].running_mean = torch.arange(20.0)


def given_bias(m: nn.Sequential) -> None:
    m[0].bias = nn.Parameter(torch.arange(20.0))


def parametrized(m: nn.Sequential) -> None:
    nn.utils.parametrize.register_parametrization(m[0], "weight", nn.Hardtanh(-0.01, 0.01))


def replaced(m: nn.Sequential) -> None:
    torch.manual_seed(5)
    m[1] = nn.BatchNorm2d(20, eps=0.5).eval()
    m[1].running_var.fill_(3.0)


def larger_eps(m: nn.Sequential) -> None:
    m[1].eps = 0.25


def uncounted(m: nn.Sequential) -> None:
    m[1].weight.data.mul_(3)


def moved_storage(m: nn.Sequential) -> None:
    m[0].weight.data = m[0].weight.data * 3


CHANGES: dict[Callable[[nn.Sequential], None], int] = {  # and the chains that run afterwards
    own_forward: 0, other_class: 0, softer: 0, pre_hook: 0, hook_of_activation: 0, strided: 0, padded: 1,
    reflected: 0, statistics_of_the_batch: 0, without_statistics: 0, new_statistics: 1, given_bias: 1,
    parametrized: 0, larger_eps: 1, uncounted: 1, moved_storage: 1,
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_changes_are_noticed(change: Callable[[nn.Sequential], None]) -> None:
    stock, model, x = settled_net()
    for m in (stock, model):
        change(m)
    for _ in range(3):
        compare(model, stock, x, CHANGES[change])


@pytest.mark.parametrize("change", [hook_of_identity, replaced], ids=lambda c: c.__name__)
def test_changes_that_another_guard_may_notice(change: Callable[[nn.Sequential], None]) -> None:
    stock, model, x = settled_net()
    for m in (stock, model):
        change(m)
    for _ in range(3):
        compare(model, stock, x)


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_a_change_that_is_taken_back(change: Callable[[nn.Sequential], None]) -> None:
    """Of a part that is another object meanwhile."""
    stock, model, x = settled_net()
    for m in (stock, model):
        before = copy.deepcopy(m[0]), copy.deepcopy(m[1]), copy.deepcopy(m[2])
        change(m)
        with torch.no_grad():
            m(x)
        m[0], m[1], m[2] = before
    for _ in range(2):
        compare(model, stock, x)


@pytest.fixture
def global_hook() -> Iterator[None]:
    handle = register_module_forward_hook(doubled)
    yield
    handle.remove()


def test_a_hook_for_all_modules(request: pytest.FixtureRequest) -> None:
    stock, model, x = settled_net()
    request.getfixturevalue("global_hook")
    compare(model, stock, x, 0)


class Shared(nn.Module):
    """One convolution and one normalisation in two places, which differ in a function alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(5, 20, 3), nn.BatchNorm2d(20)

    def forward(self, x: Tensor) -> Tensor:
        once = torch.relu(self.norm(self.conv(x)))
        return once + torch.nn.functional.relu6(self.norm(self.conv(x * 9))) * 2


def test_modules_of_two_places() -> None:
    stock = Shared().to(memory_format=LAST).eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    x = torch.randn(2, 5, 12, 12).contiguous(memory_format=LAST)
    for _ in range(3):
        compare(model, stock, x, 2)


def test_an_attribute_that_is_not_a_plain_value() -> None:
    """It might keep the model alive: such a chain is asked in every call."""
    stock, model, x = settled_net()
    for m in (stock, model):
        m[0].owner = [m]
    model[1].eps = stock[1].eps = 0.5  # settles anew
    for _ in range(2):
        compare(model, stock, x, 1)
    model[1].eps = stock[1].eps = 0.75
    compare(model, stock, x, 1)


def test_parts_belong_to_the_seals_before_them() -> None:
    """Another thread that settles while parts are gathered does not get them."""
    _, model, _ = settled_net()
    frozen = Frozen()
    modules = tuple(model)[:3]
    frozen.settle(modules)

    def gather() -> Parts:
        model[1].eps = 0.5
        frozen.settle(modules)
        return (), (), ()

    assert frozen.parts(("relu",), gather) == ((), (), ())
    assert frozen.is_settled(modules)
    assert frozen.parts(("relu",), lambda: None) is None


def test_a_settled_model_is_freed_at_once() -> None:
    assert_freed_at_once(lambda: settled_net()[1])


SEAL = seal(nn.ReLU())


def unaltered(modules: tuple[object, ...], seals: tuple[object, ...]) -> bool:
    return _core.unaltered(modules, _core.pack_seals(seals))


@pytest.mark.parametrize(
    "wrong",
    [
        (), (1, 2, 3, 4), SEAL[:3], (*SEAL, 1), (nn.ReLU, b"", (), ()), (nn.ReLU, b"v", ("training",), ()),
        (nn.ReLU, "v", ("training",), (False,)), (nn.ReLU, b"v", ["training"], (False,)), None, 7,
        (nn.ReLU, b"t" * len(SEAL[1]), *SEAL[2:]), (nn.ReLU, b"m" * len(SEAL[1]), *SEAL[2:]),
        (nn.ReLU, b"?" * len(SEAL[1]), *SEAL[2:]), (*SEAL[:3], SEAL[3][1:]), (*SEAL[:2], SEAL[2][1:], SEAL[3]),
    ],
)  # fmt: skip
def test_what_are_no_seals(wrong: object) -> None:
    """Nobody but opswap makes them; a wrong one raises, or is unlike any module."""
    with contextlib.suppress(TypeError, SystemError):
        assert unaltered((nn.ReLU(),), (wrong,)) is False


@pytest.mark.parametrize("number", [0, -1, 2, 99, 2**70, "1", None, 1.0])
def test_seals_with_wrong_numbers(number: object) -> None:
    net = nn.Sequential(nn.ReLU())
    (cls, kinds, names, values), *below = seal_forward(net, {})
    assert unaltered((net,), ((cls, kinds, names, values), *below))
    wrong = tuple(("0", number) if k == "_modules" else v for k, v in zip(names, values, strict=True))
    assert not unaltered((net,), ((cls, kinds, names, wrong), *below))
    assert not unaltered((net,), ((cls, kinds, names, values),))
    assert not unaltered((net,), ((cls, kinds, names, values), *below, *below))
    assert not unaltered((), ((cls, kinds, names, values),))


def test_seals_of_other_modules() -> None:
    assert unaltered((nn.ReLU(),), (SEAL,))
    assert seal(nn.ReLU())[1] is SEAL[1]
    assert not unaltered((nn.ReLU(inplace=True),), (SEAL,))
    assert not unaltered((nn.ReLU6(),), (SEAL,))
    assert not unaltered((nn.ReLU(), nn.ReLU()), (SEAL,))
    assert not unaltered((nn.ReLU(),), (SEAL, SEAL))
    assert not unaltered((object(),), (SEAL,))
    packed = _core.pack_seals((SEAL,))
    for wrong in (
        [[], packed],
        [(), ()],
        [(), None],
        [()],
        [(), packed, ()],
        [(), _core.pack_kinds((), True)],
    ):
        with pytest.raises(TypeError, match="packed seals"):
            _core.unaltered(*wrong)
    for wrong in ([], None, SEAL):
        with pytest.raises(TypeError, match="pack_seals"):
            _core.pack_seals(wrong)


def test_many_modules_of_several_kinds() -> None:
    """Each has the entries of its own kind, and the first that differs is found wherever it is."""
    net = nn.Sequential(*(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1)) for _ in range(7)))
    seals = seal_forward(net, {})
    assert seals is not None
    packed = _core.pack_seals(seals)
    for _ in range(3):
        assert _core.unaltered((net,), packed)
    for module in net.modules():
        module.training = False
        assert not _core.unaltered((net,), packed)
        module.training = True
    for module in net.modules():
        module.more = 1
        assert not _core.unaltered((net,), packed)
        del module.more
        assert _core.unaltered((net,), packed)


def test_an_attribute_that_goes() -> None:
    """Also the last one, behind which none differs."""
    act = nn.ReLU()
    act.more = 1
    made = seal(act)
    assert made is not None and unaltered((act,), (made,))
    del act.more
    assert not unaltered((act,), (made,))
