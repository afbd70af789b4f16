# SPDX-License-Identifier: MIT
"""Activations that survive the conversion of the BatchNorm that they belong to.

torch.nn.SyncBatchNorm.convert_sync_batchnorm makes a new norm for each BatchNorm and moves its children into the new
norm, whose forward does not call them. The conversion calls no method of the old norm, but it reads each child's
own children before it moves it. In that call a kept activation looks among the local
variables of its callers for the new norm, to which it adds a forward hook. Nothing of torch is patched, and modules
that opswap did not make are left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from opswap.ops.norm import parse

__all__ = ["kept"]

# The converter calls itself with the child, and may call its `children()`, which calls its `named_children()`.
_FRAMES = 4
_STOCK_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
_STATE = ("weight", "bias", "running_mean", "running_var")


def _apply_child(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    activation: Any = module.act
    return activation(output)


class _Kept(nn.Module):
    """Moves with its norm: see the docstring of this file."""

    def _get_name(self) -> str:
        return type(self).__name__.removeprefix("Kept")

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        norm = _converted(self, sys._getframe(1))
        if norm is not None and _apply_child not in norm._forward_hooks.values():
            norm.register_forward_hook(_apply_child)
        return super().named_children()


def _converted(activation: nn.Module, frame: FrameType | None) -> _BatchNorm | None:
    """The norm that a converter among the callers is about to give the activation, in place of the norm that has it.

    A converter is a function that has called itself with the activation, and has two norms among its variables: the
    old one with the activation as "act", and a new one without, which holds the parameters or buffers of the old one.
    """
    visitors = []
    for _ in range(_FRAMES):
        if frame is None:
            return None
        found = list(frame.f_locals.values())
        if frame.f_code in visitors:
            norms = [v for v in found if isinstance(v, _BatchNorm)]
            old = next((n for n in norms if n._modules.get("act") is activation), None)
            new = next((n for n in norms if "act" not in n._modules), None)
            if old is None or new is None or type(new).forward not in _STOCK_FORWARDS:
                return None
            return new if _shares_state(old, new) else None
        if any(v is activation for v in found):
            visitors.append(frame.f_code)
        frame = frame.f_back
    return None


def _shares_state(old: _BatchNorm, new: _BatchNorm) -> bool:
    """True if the norms share a parameter or buffer, and if neither has any."""
    pairs = [(getattr(old, name), getattr(new, name)) for name in _STATE]
    return any(a is b is not None for a, b in pairs) or all(a is b is None for a, b in pairs)


class KeptReLU(_Kept, nn.ReLU):
    """torch.nn.ReLU."""


class KeptReLU6(_Kept, nn.ReLU6):
    """torch.nn.ReLU6."""


class KeptHardswish(_Kept, nn.Hardswish):
    """torch.nn.Hardswish."""


class KeptLeakyReLU(_Kept, nn.LeakyReLU):
    """torch.nn.LeakyReLU."""


class KeptHardtanh(_Kept, nn.Hardtanh):
    """torch.nn.Hardtanh."""


class KeptHardsigmoid(_Kept, nn.Hardsigmoid):
    """torch.nn.Hardsigmoid."""


class KeptSigmoid(_Kept, nn.Sigmoid):
    """torch.nn.Sigmoid."""


class KeptSiLU(_Kept, nn.SiLU):
    """torch.nn.SiLU."""


class KeptELU(_Kept, nn.ELU):
    """torch.nn.ELU."""


class KeptGELU(_Kept, nn.GELU):
    """torch.nn.GELU."""


class KeptMish(_Kept, nn.Mish):
    """torch.nn.Mish."""


class KeptSoftplus(_Kept, nn.Softplus):
    """torch.nn.Softplus."""


_KEPT: dict[str, type[nn.Module]] = {
    "relu": KeptReLU,
    "relu6": KeptReLU6,
    "hardswish": KeptHardswish,
    "leaky_relu": KeptLeakyReLU,
    "hardtanh": KeptHardtanh,
    "hardsigmoid": KeptHardsigmoid,
    "sigmoid": KeptSigmoid,
    "silu": KeptSiLU,
    "elu": KeptELU,
    "gelu": KeptGELU,
    "mish": KeptMish,
    "softplus": KeptSoftplus,
}


def kept(activation: str) -> nn.Module:
    """The module of an activation of `opswap.functional.batch_norm_act`."""
    name, parameters = parse(activation)
    return KeptGELU("tanh") if name == "gelu_tanh" else _KEPT[name](*parameters)
