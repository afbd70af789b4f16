# SPDX-License-Identifier: MIT
"""What users put in the place of a merged BatchNorm: a SyncBatchNorm, or a frozen one of detectron2 or torchvision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["Replaced", "stand_in"]


def stand_in(module: nn.Module, path: str, branches: int) -> Replaced:
    """A module that replaced a merged layer, to be called as that layer.

    Raises: TypeError unless it works on every channel by itself, so that branches never mix.
    """
    kind = type(module).__name__
    if isinstance(module, _BatchNorm) or kind.startswith("FrozenBatchNorm"):
        return Replaced(module, branches)
    raise TypeError(
        f"branches: a {kind} took the place of the merged layer {path!r}, where it would not keep {branches} branches "
        "apart; convert the modules of split_back() and merge these"
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
