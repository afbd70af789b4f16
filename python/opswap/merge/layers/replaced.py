# SPDX-License-Identifier: MIT
"""What users put in the place of merged BatchNorms (a SyncBatchNorm, or a frozen one of detectron2 or torchvision) and
of layers without tensors (another activation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from . import CHANNELWISE, ELEMENTWISE, RANDOM

__all__ = ["Replaced", "check_function", "stand_in"]

_ADVICE = "convert the modules of split_back() and merge these"


def stand_in(module: nn.Module, path: str, branches: int) -> Replaced:
    """A module that replaced a merged layer, to be called as that layer.

    Raises: TypeError unless it works on every channel by itself, so that branches never mix.
    """
    kind = type(module).__name__
    if isinstance(module, _BatchNorm) or kind.startswith("FrozenBatchNorm"):
        return Replaced(module, branches)
    raise TypeError(
        f"branches: a {kind} took the place of the merged layer {path!r}, where it would not keep {branches} branches "
        f"apart; {_ADVICE}"
    )


def check_function(module: Any, kind: type[nn.Module], path: str) -> None:
    """Accept a module that replaced one of this kind if it also works on every element, or channel, by itself.

    Raises: TypeError for any other, as the tensor that it is called with may hold all branches.
    """
    new = type(module)
    alike = new in ELEMENTWISE and (kind in ELEMENTWISE or kind in CHANNELWISE)
    alike = alike or (new in CHANNELWISE and kind in CHANNELWISE and new.__name__[-2:] == kind.__name__[-2:])
    if not alike or (new in RANDOM and kind not in RANDOM):
        raise TypeError(
            f"branches: a {new.__name__} took the place of the {kind.__name__} {path!r}, which the merged module runs "
            f"for all branches at once; {_ADVICE}"
        )


class Replaced:
    """A BatchNorm of any kind over the channels of all branches, with the calls of a `Layer`."""

    def __init__(self, module: nn.Module, branches: int) -> None:
        self.module, self.branches = module, branches

    def __call__(self, x: Tensor | None, mode: str = "wide") -> Any:
        return self._branch_calls() if x is None else self.module(x)

    def _branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        return [lambda x, i=i: functional_call(self.module, self._own(i), (x,)) for i in range(self.branches)]

    def _own(self, branch: int) -> dict[str, Tensor]:
        """The parameters and buffers of one branch, as parts of the module's."""
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        # One count for all has been increased by the first branch when the next one increases its copy.
        return {
            name: t.chunk(self.branches)[branch] if t.dim() else t - 1 if branch else t
            for name, t in named.items()
        }
