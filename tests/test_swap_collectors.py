# SPDX-License-Identifier: MIT
"""Models whose forwards read what hooks have collected, as backbones of timm and of transformers do."""

from __future__ import annotations

import functools

import pytest
from torch import Tensor, nn

import opswap
from spellings import Split
from swapping import images


class Collector(nn.Module):
    """Its forward reads what a hook on a layer collects, as backbones of libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Split(), nn.BatchNorm2d(12), nn.ReLU())
        self.features = Features()
        self.body[0].register_forward_hook(functools.partial(self.features.keep, "middle"))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return y + self.features.kept.pop("middle")


class Features:
    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def keep(self, name: str, module: nn.Module, args: tuple[Tensor], result: Tensor) -> None:
        self.kept[name] = result


@pytest.mark.parametrize("library", ["timm.models._features", "transformers.utils.output_capturing"])
def test_hooks_of_libraries_run(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Features.keep, "__module__", library)
    model = opswap.swap(Collector())
    x = images()
    assert any(o.ran for o in opswap.explain(model, x).outcomes)
    assert not model.features.kept  # the copy had features of its own
    checks = opswap.verify(model, (x,)).checks
    assert all(c.holds and "raise" not in c.detail for c in checks)


def test_hooks_that_a_forward_needs_are_named() -> None:
    model = opswap.swap(Collector())
    with pytest.raises(KeyError) as caught:
        opswap.explain(model, images())
    said = "hooks of the model do not run here, which its forward may need"
    assert said in getattr(caught.value, "__notes__", [said])
    assert all(
        c.detail == f"both raise KeyError: 'middle'; {said}" for c in opswap.verify(model, (images(),)).checks
    )
