# SPDX-License-Identifier: MIT
"""Weights that do not change any more, kept in the form in which kernels read them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from .seal import FROZEN, Seal, Seals, seal

__all__ = ["FEWEST_SEEN", "FROZEN", "Frozen", "Replay", "freeze", "unfreeze", "written"]

Folded = Callable[[Tensor | bool | None], Any]
# What the kernels read of a chain: options, the tensors behind the input, the weights of its convolutions.
Parts = tuple[tuple[Any, ...], tuple[Tensor | None, ...], tuple[Tensor, ...]]


def written(weights: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """What shows that a weight was written to, or that it was given other memory."""
    return [(t.data_ptr(), t._version, t.shape, t.stride()) for t in weights]


FEWEST_SEEN = 2


class Replay:
    """What a module with a generated forward runs in evaluation for inputs of one kind, kept by `swap.replay`.

    plans: by kind. seen: how often inputs of a kind came while there was no plan for them. due: after how many
    there shall be one. ran: how often plans ran since something changed.
    refused: why the last attempt to make one failed.
    """

    def __init__(self) -> None:
        self.plans: dict[Any, Any] = {}
        self.seen: dict[Any, int] = {}
        self.due = FEWEST_SEEN
        self.ran = 0
        self.refused = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> Replay:
        return Replay()

    def __reduce__(self) -> tuple[Any, ...]:
        return Replay, ()


class Frozen:
    """The folded weights of a chain, for as long as the weights are the same. A copy of a module folds its own.

    kept: the state that they were folded in, aliases of the weights, the folded ones, and the weights; None before any
    were folded, another tuple after each time.
    """

    def __init__(self) -> None:
        self.kept: tuple[tuple[Any, ...], tuple[Tensor, ...], Tensor, tuple[Tensor, ...]] | None = None
        self._seals: Seals | None = None
        self._parts: tuple[Seals, tuple[str | None, ...], Parts] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        return Frozen()

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, ()

    @property
    def is_empty(self) -> bool:
        """True if no folded weights are held."""
        return self.kept is None

    def drop(self) -> None:
        """Forget the folded weights; the next call folds again."""
        self.kept = self._seals = self._parts = None

    def settle(self, modules: Sequence[nn.Module]) -> None:
        """Remember what these modules are, of which a chain was just found to consist."""
        seals = [seal(module) for module in modules]
        known: list[Seal] = [s for s in seals if s is not None]
        self._seals = Seals(tuple(known)) if len(known) == len(seals) else None

    def is_settled(self, modules: tuple[nn.Module, ...]) -> bool:
        """True if nothing of these modules has changed since `settle`: neither options, tensors, hooks nor classes."""
        seals = self._seals
        return seals is not None and seals.hold(modules)

    def parts(self, activations: tuple[str | None, ...], gather: Callable[[], Parts | None]) -> Parts | None:
        """What `gather` returned since `settle`: a call whose modules have changed settles first.

        Args: activations: behind the convolutions; two sites may differ in them alone.
        """
        # Another thread may settle meanwhile: what was gathered belongs to the seals that were there before.
        seals, known = self._seals, self._parts
        if known is not None and known[0] is seals and known[1] == activations:
            return known[2]
        found = gather()
        if seals is not None and found is not None:
            self._parts = seals, activations, found
        return found

    @property
    def folded(self) -> Tensor | None:
        """The folded weights."""
        return None if self.kept is None else self.kept[2]

    def lies_in(self, storages: set[int]) -> bool:
        """True if one of the weights that were folded lies in these storages, given by their addresses."""
        kept = self.kept
        return kept is not None and any(t.untyped_storage().data_ptr() in storages for t in kept[1])

    def call(self, options: tuple[Any, ...], weights: tuple[Tensor, ...], folded: Folded) -> Any:
        """What `folded` returns first, or NotImplemented.

        Args: weights: of the convolutions. The vectors that are folded into them, parameters and statistics, are
            compared by value in every call, by the extension. folded: called with the folded weights, or with None;
            returns an output and the folded weights, or NotImplemented.
        """
        if any(t.is_inference() for t in weights):  # torch counts no writes to them
            made = folded(None)
            return made if made is NotImplemented else made[0]
        state = (options, *written(weights))
        kept = self.kept
        made = folded(kept[2] if kept is not None and kept[0] == state else True)
        if made is NotImplemented:
            self.drop()
            return made
        if kept is None or made[1] is not kept[2]:
            # The aliases keep the addresses from being given to other weights, also if one gets other memory.
            self.kept = state, tuple(t.detach() for t in weights), made[1], weights
            _watch(self)
        return made[0]


_PLAIN = (Tensor, nn.Parameter)
_watched: weakref.WeakSet[Frozen] = weakref.WeakSet()
_handles: list[Any] = []  # of the hook, once it is registered


def _watch(frozen: Frozen) -> None:
    """Fused optimizers write without being counted: what they have stepped over is dropped."""
    _watched.add(frozen)
    if not _handles:
        _handles.append(register_optimizer_step_post_hook(_drop_stepped))


def _drop_stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    holding = [frozen for frozen in list(_watched) if not frozen.is_empty]
    if not holding:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if all(type(p) in _PLAIN and p.layout is torch.strided for p in parameters):
        storages = {p.untyped_storage().data_ptr() for p in parameters}
        holding = [frozen for frozen in holding if frozen.lies_in(storages)]
    for frozen in holding:
        frozen.drop()


def freeze(model: nn.Module) -> nn.Module:
    """Keep the folded weights of a swapped model between calls in evaluation.

    In evaluation, without a graph, a swapped model folds each BatchNorm into the weights of its convolution and packs
    them for the kernels, in every call. A frozen model does so once. Its parameters and buffers stay as they are and
    may be changed: folded weights are dropped in training, by a forward that records a graph, after
    `load_state_dict`, after `to()`, after the step of an optimizer, after any write that torch counts, and by
    `unfreeze`. Biases, and parameters and statistics of BatchNorms, are compared by value in every call. A write to the
    weight of a convolution that torch does not count, through `.data`, by NumPy or by calling the operator of a
    fused optimizer itself, is not noticed: call `freeze` again after it. The folded weights need as much memory
    again as the weights of the convolutions that are chains.

    Args: model: any module, before or after `swap`. Copies and pickles of it are frozen too.
    Returns: model itself.
    Raises: TypeError if model is not a module.
    """
    for module in _modules(model, "freeze"):
        if isinstance(module, nn.Conv2d):
            module.__dict__[FROZEN] = Frozen()
        elif module._modules:
            module.__dict__[FROZEN] = Replay()
    return model


def unfreeze(model: nn.Module) -> nn.Module:
    """Undo `freeze`, and free the folded weights.

    Returns: model itself.
    Raises: TypeError if model is not a module.
    """
    for module in _modules(model, "unfreeze"):
        module.__dict__.pop(FROZEN, None)
    return model


def _modules(model: nn.Module, name: str) -> list[nn.Module]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name}: expected a torch.nn.Module, got {type(model).__name__}")
    return list(model.modules())
