# SPDX-License-Identifier: MIT
"""Rules without a kernel for a device are not applied there, whether the model is there at the swap or moves later."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from counted import kernels_of
from opswap.models import lprnet, shufflenet_v2_x0_5
from opswap.swap import Rule
from opswap.swap.planning import gains
from opswap.swap.rules import DEFAULT, OPTIONAL
from spellings import Split, Wrapped, by_size
from spellings.guards import Only
from step import assert_equal, outputs_and_gradients
from swapping import images
from test_swap_live import Net

OTHERS = ["cuda", "xpu", "mps", "hpu", "privateuseone"]


@cache
def on(device: str) -> type[Tensor]:
    """Tensors that say they are on a device that this machine may not have, and compute on the CPU."""

    class Elsewhere(Tensor):
        device = property(lambda self: torch.device(device))
        is_cpu = property(lambda self: False)

    Elsewhere.__module__ = "torch"  # a class of a user would get torch's own code for that alone
    return Elsewhere


def moved(model: nn.Module, device: str) -> nn.Module:
    cls = on(device)
    for m in model.modules():
        for name, p in m._parameters.items():
            if p is not None:
                m._parameters[name] = nn.Parameter(p.detach().as_subclass(cls))
        for name, b in m._buffers.items():
            m._buffers[name] = b.as_subclass(cls)
    return model


CASES = [(Net, device) for device in (*OTHERS, "meta")]
CASES += [(partial(lprnet, 11, 0.5), "cuda"), (shufflenet_v2_x0_5, "meta")]


@pytest.mark.parametrize(("make", "device"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_model_elsewhere_keeps_its_code(make: Callable[[], nn.Module], device: str) -> None:
    model = make().to("meta") if device == "meta" else moved(make(), device)
    classes = [type(m) for m in model.modules()]
    report = opswap.report(opswap.swap(model))
    assert not report.swapped and [type(m) for m in model.modules()] == classes
    assert {s.reason for s in report.kept} == {f"no kernel for {device}"}
    assert all(s.gain is None for s in report.kept)
    with pytest.raises(RuntimeError, match=f"no kernel for {device}"):
        opswap.swap(model, strict=True)


@pytest.mark.parametrize("device", OTHERS)
def test_what_needs_no_kernel_is_replaced_anywhere(device: str) -> None:
    stock = nn.Sequential(nn.Conv2d(12, 12, 1), Wrapped(lambda x: by_size(x, 1)))
    report = opswap.scan(moved(stock, device), exact=True)
    assert [s.rule for s in report.swapped] == ["identity"]


def test_a_rule_for_another_device() -> None:
    (pool,) = [r for r in DEFAULT if r.name == "max_pool2d"]
    anywhere = Rule(pool.name, True, pool.find, pool.prove, pool.modules)
    there = Rule(pool.name, True, pool.find, pool.prove, pool.modules, devices=("cuda", "xpu"))
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.MaxPool2d(2))
    assert opswap.scan(moved(copy.deepcopy(model), "cuda"), rules=[anywhere]).swapped
    assert opswap.scan(moved(copy.deepcopy(model), "cuda"), rules=[there]).swapped
    assert not opswap.scan(model, rules=[there]).swapped
    swapped = opswap.swap(nn.Sequential(nn.MaxPool2d(2)), rules=[there])
    assert kernels_of(swapped, torch.randn(1, 3, 4, 4)) == 0


def test_a_part_elsewhere() -> None:
    """Each module by its own parameters; a module without any by those of the model."""
    model = nn.Sequential(Net(), Net())
    moved(model[1], "cuda")
    report = opswap.scan(model)
    assert {s.path[0] for s in report.swapped} == {"0", "1"}
    assert not [s for s in report.swapped if s.path.startswith("1.stem")]
    assert {s.rule for s in report.swapped if s.path[0] == "1"} <= {
        "dropout",
        "max_pool2d",
        "cat_channel_shuffle",
    }


BODIES: dict[str, Callable[[], nn.Module]] = {
    "shuffle": lambda: nn.Sequential(Split(), Split()),
    "permutation": lambda: Only(lambda x: x[:, [3, 2, 1, 0, 11, 10, 9, 8, 7, 6, 5, 4]]),
    "pool": lambda: nn.Sequential(nn.MaxPool2d(2)),
    "amax": lambda: Only(lambda x: x.detach().requires_grad_().amax((2, 3))),
    "batch_norm": lambda: nn.Sequential(nn.BatchNorm2d(12)),
    "batch_norm_act": lambda: nn.Sequential(nn.BatchNorm2d(12), nn.ReLU()),
    "function": lambda: Only(lambda x: F.relu(F.batch_norm(x, None, None, training=True))),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5)),
    "linear": lambda: Only(
        lambda x: torch.einsum("bgi,goi->bgo", x.flatten(2), torch.ones(12, 2, 32).as_subclass(type(x)))
    ),
}


@pytest.mark.parametrize("device", ["cuda", "privateuseone"])
@pytest.mark.parametrize("make", BODIES.values(), ids=BODIES)
def test_a_model_that_moves_after_the_swap(make: Callable[[], nn.Module], device: str) -> None:
    stock = make()
    model = opswap.swap(copy.deepcopy(stock))
    x = images()
    here = kernels_of(model, x)
    there = moved(copy.deepcopy(model), device)
    assert kernels_of(there, x.as_subclass(on(device))) == 0
    assert kernels_of(model, x) == here
    if "dropout" not in str(stock).lower():
        y = there(x.as_subclass(on(device)))
        assert torch.equal(y.as_subclass(Tensor), stock(x).as_subclass(Tensor))
    if opswap.report(model).swapped:
        told = opswap.explain(there, x.as_subclass(on(device))).outcomes
        assert any(f"no kernel for {device}" in o.reason for o in told)


def test_to_meta_and_back() -> None:
    stock = Net().eval()
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    model.to("meta")
    assert model(images().to("meta")).shape == (2, 12, 2, 4) and kernels_of(model, images().to("meta")) == 0
    model.to_empty(device="cpu").load_state_dict(stock.state_dict())
    x = images()
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
    assert kernels_of(model, x) > 0


def test_a_graph_of_dynamo_elsewhere() -> None:
    backend = opswap.dynamo_backend()
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.MaxPool2d(2)).to("meta"), backend=backend)
    model(torch.empty(1, 3, 8, 8, device="meta"))
    (report,) = backend.reports
    assert not report.swapped and [s.reason for s in report.kept] == ["no kernel for meta"]


def test_reports_of_the_backend_are_bounded() -> None:
    backend = opswap.dynamo_backend()
    graph = torch.fx.symbolic_trace(lambda x: F.max_pool2d(x, 2))
    for node in graph.graph.nodes:
        node.meta["example_value"] = torch.empty(1, 3, 8, 8, device="meta")
    for _ in range(70):
        backend(copy.deepcopy(graph), [torch.randn(1, 3, 8, 8)])
    assert len(backend.reports) == 64


class TestGains:
    @pytest.fixture(autouse=True)
    def recorded_gains(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        shipped = tmp_path / "shipped.json"
        shipped.write_text(json.dumps({"m-avx2": {"gains": {"max_pool2d": {"contiguous": 4.0}}}}))
        monkeypatch.setattr(gains, "_SHIPPED", shipped)
        monkeypatch.setattr(gains.platform, "machine", lambda: "m")
        gains._read.cache_clear()

    @pytest.mark.parametrize(
        ("tiers", "gain"),
        [
            (("scalar", "avx2"), 4.0),
            (("scalar", "avx2", "avx512"), None),
            (("scalar",), None),
            (("scalar", "neon"), None),
        ],
    )
    def test_of_this_tier_alone(
        self, tiers: tuple[str, ...], gain: float | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gains.isa, "available", lambda: tiers)
        report = opswap.scan(nn.Sequential(nn.MaxPool2d(2)))
        assert report.swapped[0].gain == gain and ("4.0x" in str(report)) is (gain is not None)

    def test_a_loss_on_another_tier_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gains._SHIPPED.write_text(json.dumps({"m-avx2": {"gains": {"max_pool2d": {"contiguous": 0.5}}}}))
        for tiers, text in ((("avx2",), "in contiguous"), (("avx2", "avx512"), "(figures for m-avx2)")):
            monkeypatch.setattr(gains.isa, "available", lambda tiers=tiers: tiers)
            report = opswap.scan(nn.Sequential(nn.MaxPool2d(2)))
            assert not report.swapped and report.kept[0].reason.endswith(text)


def test_every_rule_that_calls_a_kernel_names_its_device() -> None:
    assert {r.name for r in DEFAULT + OPTIONAL if r.devices != ("cpu",)} == {"identity"}
