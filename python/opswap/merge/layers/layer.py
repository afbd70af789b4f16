# SPDX-License-Identifier: MIT
"""What a merged layer is: the tensors of N equal layers one after another, and how to run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..forms import Form

__all__ = ["RECORDED", "Layer", "joined"]

# The mode that chooses one of a layer's ways by recorded figures.
RECORDED = "recorded"


class Layer(nn.Module):
    """N equal layers as one; its tensors have the names of theirs, one branch after another.

    takes: the form of the input that `wide` reads; gives: the form of its result.
    wide_shared: a shared input is read as it is by `wide`, without N copies of it.
    input_dims: dimensions of a branch's input, None for any. ragged: branches differ in their numbers of features.
    many_arguments: calls have more arguments than the input, which `refusal` looks at.
    ways: modes of `wide` beside "wide" that read and give the same tensors. options: names of attributes with the value
    that they have in each branch.
    """

    takes = Form.WIDE
    gives = Form.WIDE
    wide_shared = False
    input_dims: int | None = None
    many_arguments = False
    ragged = False
    ways: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        # Some subclasses are layers of torch too, which would make tensors of their own.
        nn.Module.__init__(self)
        self.branches = len(modules)
        self.training = modules[0].training

    @classmethod
    def refusal(cls, module: nn.Module, call: fx.Node | None = None) -> str:
        """Why this layer cannot replace such modules, or for such calls of them; "" if it can."""
        return ""

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        """All branches at once; x in the form `takes`, or SHARED in the mode "shared"."""
        raise NotImplementedError

    def branch_calls(self) -> list[Callable[[Tensor], Any]]:
        """The layer of every branch, as a function of its input, each to be called once."""
        raise NotImplementedError

    def forward(self, x: Tensor | None, mode: str = "wide") -> Any:
        """mode: "wide", "shared", one of `ways` or RECORDED; or "loop", without a tensor, for the `branch_calls`."""
        return self.branch_calls() if x is None else self.wide(x, mode)

    def pieces(self, tensor: Tensor | None) -> Sequence[Tensor | None]:
        """A joined tensor cut into those of the branches."""
        return (None,) * self.branches if tensor is None else tensor.chunk(self.branches)

    def join(self, modules: Sequence[nn.Module], *names: str) -> None:
        """Register the joined parameters or buffers of these names."""
        for name in names:
            first = getattr(modules[0], name)
            whole = None if first is None else joined([getattr(m, name) for m in modules])
            if isinstance(first, nn.Parameter) or name in modules[0]._parameters:
                self.register_parameter(
                    name, whole if whole is None else nn.Parameter(whole, first.requires_grad)
                )
            else:
                persistent = name not in modules[0]._non_persistent_buffers_set
                self.register_buffer(name, whole, persistent=persistent)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The tensors one after another along the first dimension; scalars become a vector."""
    parts = [p.detach() for p in parts]
    return torch.cat(parts) if parts[0].dim() else torch.stack(parts)
