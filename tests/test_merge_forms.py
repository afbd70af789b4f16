# SPDX-License-Identifier: MIT
"""The forms in which the values of branches lie: the same values, without a copy where there need not be one."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from opswap.merge.forms import Form, change_form

_LAYOUTS = (torch.contiguous_format, torch.channels_last)


def _stacked(wide: Tensor, branches: int) -> dict[str, Tensor]:
    """Values of branches (B, N, C, H, W) in every memory layout in which they are met."""
    own = wide.unflatten(1, (branches, -1))
    listed = [t.contiguous(memory_format=torch.channels_last) for t in own.unbind(1)]
    batched = own.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return {
        "wide": change_form(wide, Form.WIDE, Form.STACKED, branches),
        "contiguous": own.contiguous(),
        "one after another": change_form(listed, Form.LISTED, Form.STACKED, branches),
        "image after image": change_form(batched, Form.BATCHED, Form.STACKED, branches),
    }


@pytest.mark.parametrize("memory_format", _LAYOUTS, ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("batch, branches, channels, side", [*product((1, 2), (1, 3), (1, 4), (1, 5))])
def test_the_same_values(
    batch: int, branches: int, channels: int, side: int, memory_format: torch.memory_format, seed: int
) -> None:
    wide = torch.randn(batch, branches * channels, side, side).contiguous(memory_format=memory_format)
    parts = wide.unflatten(1, (branches, channels)).unbind(1)
    for layout, stacked in _stacked(wide, branches).items():
        if layout == "wide":
            assert stacked.data_ptr() == wide.data_ptr()
        listed = change_form(stacked, Form.STACKED, Form.LISTED, branches)
        for own, expected in zip(listed, parts, strict=True):
            assert torch.equal(own, expected)
            assert own.untyped_storage().data_ptr() == stacked.untyped_storage().data_ptr(), layout
        assert torch.equal(change_form(stacked, Form.STACKED, Form.WIDE, branches), wide)
        batched = change_form(stacked, Form.STACKED, Form.BATCHED, branches)
        assert torch.equal(batched.unflatten(0, (batch, branches)), torch.stack(parts, 1))


@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_of_parts_make_one_in_channels_last(batch: int, seed: int) -> None:
    wide = torch.randn(batch, 12, 5, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    norm = wide * 2
    seen: list[Tensor] = []
    norm.register_hook(seen.append)
    stacked = change_form(norm, Form.WIDE, Form.STACKED, 3).relu()
    parts = change_form(stacked, Form.STACKED, Form.LISTED, 3)
    torch.autograd.backward(parts, [torch.ones_like(part) for part in parts])
    assert seen[0].stride() == wide.stride()
