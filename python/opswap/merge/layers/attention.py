# SPDX-License-Identifier: MIT
"""Self-attention layers of N branches: their heads side by side in one attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, fx, nn
from torch.nn import functional as F

from ...functional import grouped_linear
from ..forms import Form
from .layer import Layer

__all__ = ["BranchAttention"]

Result = tuple[Tensor, None]


class BranchAttention(Layer):
    """N MultiheadAttentions over tokens (B, L, E), queries, keys and values being one tensor, without weights returned.

    in_proj_weight (N * 3 * E, E), in_proj_bias (N * 3 * E); out_proj has weight (N, E, E) and bias (N * E).
    """

    takes = Form.STACKED
    gives = Form.STACKED
    input_dims = 3
    many_arguments = True

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.num_heads, self.dropout = first.num_heads, first.dropout
        self.join(modules, "in_proj_weight", "in_proj_bias")

    options = ("dropout",)

    @classmethod
    def refusal(cls, module: Any, call: fx.Node | None = None) -> str:
        if not module.batch_first:
            return "MultiheadAttention with the batch in the second dimension"
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            return "MultiheadAttention with kdim, vdim, add_bias_kv or add_zero_attn"
        if call is None:
            return ""
        one = len(call.args) == 3 and call.args[0] is call.args[1] is call.args[2]
        if not one or call.kwargs != {"need_weights": False}:
            return "MultiheadAttention with other arguments than (x, x, x, need_weights=False)"
        return ""

    def wide(self, x: Tensor, mode: str = "wide") -> Result:
        n, embed = self.branches, x.shape[-1]
        bias = None if self.in_proj_bias is None else self.in_proj_bias.view(n, 3 * embed)
        rows = grouped_linear(x.movedim(1, -2), self.in_proj_weight.view(n, 3 * embed, embed), bias)
        # (B, L, N, 3, heads, E / heads) -> three of (B, N * heads, L, E / heads)
        split = rows.unflatten(-1, (3, self.num_heads, embed // self.num_heads))
        parts = [part.flatten(2, 3).transpose(1, 2) for part in split.unbind(3)]
        y = F.scaled_dot_product_attention(*parts, dropout_p=self.dropout if self.training else 0.0)
        rows = y.transpose(1, 2).unflatten(2, (n, self.num_heads)).flatten(3)
        out = self.get_submodule("out_proj")
        bias = None if out.bias is None else out.bias.view(n, -1)
        return grouped_linear(rows, out.weight, bias).movedim(-2, 1), None

    def branch_calls(self) -> list[Callable[[Tensor], Result]]:
        out = self.get_submodule("out_proj")
        tensors = zip(
            self.pieces(self.in_proj_weight),
            self.pieces(self.in_proj_bias),
            out.weight,
            self.pieces(out.bias),
            strict=True,
        )
        return [partial(self._attend, own) for own in tensors]

    def _attend(self, tensors: tuple[Any, ...], x: Tensor) -> Result:
        weight, bias, out_weight, out_bias = tensors
        split = F.linear(x, weight, bias).unflatten(-1, (3, self.num_heads, -1))
        parts = [part.transpose(1, 2) for part in split.unbind(2)]
        y = F.scaled_dot_product_attention(*parts, dropout_p=self.dropout if self.training else 0.0)
        return F.linear(y.transpose(1, 2).flatten(2), out_weight, out_bias), None
