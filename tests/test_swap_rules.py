# SPDX-License-Identifier: MIT
"""A rule that a user writes: the one that the README shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near

README = Path(opswap.__file__).parent / "swap/README.md"


@pytest.fixture
def silu() -> opswap.swap.Rule:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (text,) = [b for b in blocks if "Rule(" in b]
    scope: dict[str, object] = {}
    exec(text, scope)
    return scope["silu"]


class Gated(nn.Module):
    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        gate = torch.sigmoid(x)
        return gate * x + gate if self.twice else x * gate


def test_it_is_applied(silu: opswap.swap.Rule) -> None:
    stock = Gated()
    model = opswap.swap(Gated(), rules=(silu,), strict=True)
    model.load_state_dict(stock.state_dict())
    assert "silu(x0)" in model.opswap_code and not opswap.report(model).swapped[0].exact
    x = torch.randn(2, 3, 4, 4)
    assert_model_as_near(model, stock, lambda: (torch.randn_like(x),))
    assert all(c.holds for c in opswap.verify(model, (x,)).checks)
    assert not opswap.scan(Gated(), rules=(silu,), exact=True).swapped


def test_it_says_why_not(silu: opswap.swap.Rule) -> None:
    report = opswap.scan(Gated(twice=True), rules=(silu,))
    assert not report.swapped and report.kept[0].reason == "the gate is used elsewhere"


@pytest.mark.parametrize("rules", [["conv_chain"], "conv_chain", [None]], ids=repr)
@pytest.mark.parametrize("call", [opswap.swap, opswap.scan])
def test_what_is_no_rule_is_refused(call: Callable[..., Any], rules: Any) -> None:
    with pytest.raises(TypeError, match=r"rules: expected rules as in opswap\.swap\.rules\.DEFAULT, got"):
        call(Gated(), rules=rules)
