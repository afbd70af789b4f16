# SPDX-License-Identifier: MIT
"""Weights that do not change any more, kept in the form in which kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

__all__ = ["FROZEN", "Frozen", "freeze", "unfreeze"]

FROZEN = "_opswap_frozen"  # an attribute of a module

Folded = Callable[[Tensor | bool | None], Any]


class Frozen:
    """The folded weights of a chain, for as long as the weights are the same. A copy of a module folds its own."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[Any, ...], tuple[Tensor, ...], Tensor] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        return Frozen()

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, ()

    @property
    def is_empty(self) -> bool:
        """True if no folded weights are held."""
        return self._kept is None

    def drop(self) -> None:
        """Forget the folded weights; the next call folds again."""
        self._kept = None

    def call(self, options: tuple[Any, ...], weights: tuple[Tensor | None, ...], folded: Folded) -> Any:
        """What `folded` returns first, or NotImplemented.

        Args: weights: all tensors that are folded. folded: called with the folded weights, or with None; returns
            an output and the folded weights, or NotImplemented.
        """
        given = tuple(t for t in weights if t is not None)
        if any(t.is_inference() for t in given):  # torch counts no writes to them
            made = folded(None)
            return made if made is NotImplemented else made[0]
        state = (options, *((t.data_ptr(), t._version) for t in given))
        kept = self._kept
        made = folded(kept[2] if kept is not None and kept[0] == state else True)
        if made is NotImplemented:
            self.drop()
            return made
        if kept is None or made[1] is not kept[2]:
            # The aliases keep the addresses from being given to other weights.
            self._kept = state, tuple(t.detach() for t in given), made[1]
        return made[0]


def freeze(model: nn.Module) -> nn.Module:
    """Keep the folded weights of a swapped model between calls in evaluation.

    In evaluation, without a graph, a swapped model folds each BatchNorm into the weights of its convolution and packs
    them for the kernels, in every call. A frozen model does so once. Its parameters and buffers stay as they are and
    may be changed: folded weights are dropped in training, after `load_state_dict`, after `to()`, after any
    write that torch counts, and by `unfreeze`. A write through `.data` or by NumPy is not noticed: call `freeze` again
    after it. The folded weights need as much memory again as the weights of the convolutions that are chains.

    Args: model: any module, before or after `swap`. Copies and pickles of it are frozen too.
    Returns: model itself.
    Raises: TypeError if model is not a module.
    """
    for module in _convolutions(model, "freeze"):
        module.__dict__[FROZEN] = Frozen()
    return model


def unfreeze(model: nn.Module) -> nn.Module:
    """Take back `freeze`, and free the folded weights.

    Returns: model itself.
    Raises: TypeError if model is not a module.
    """
    for module in _convolutions(model, "unfreeze"):
        module.__dict__.pop(FROZEN, None)
    return model


def _convolutions(model: nn.Module, name: str) -> list[nn.Conv2d]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name}: expected a torch.nn.Module, got {type(model).__name__}")
    return [m for m in model.modules() if isinstance(m, nn.Conv2d)]
