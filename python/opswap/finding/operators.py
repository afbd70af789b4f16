# SPDX-License-Identifier: MIT
"""Operators as a dispatch mode sees them: names, tensors among arguments, those that look at no data."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["SKIPPED", "is_view", "op_name", "tensors_in"]

# They make tensors of no data, or look at nothing of the data.
_NO_DATA = """
    alias detach detach_ empty empty_like empty_permuted empty_strided full full_like is_pinned is_same_size
    lift lift_fresh lift_fresh_copy new_empty new_empty_strided new_full new_ones new_zeros ones ones_like rand
    rand_like randint randint_like randn randn_like record_stream resize_ resize_as_ set_ zeros zeros_like
    _local_scalar_dense equal item fill_ zero_ normal_ uniform_ bernoulli_ _pin_memory
"""
SKIPPED = frozenset(f"aten.{name}" for name in _NO_DATA.split())


_SEQUENCES = frozenset({tuple, list})
_SCALARS = frozenset({type(None), int, float, bool, str})


def op_name(func: Any) -> str:
    """ "aten.clone" of torch.ops.aten.clone.default."""
    return func._schema.name.replace("::", ".")


def is_view(func: Any) -> bool:
    """True if a result may be a view of an argument, which is not written."""
    infos = (returned.alias_info for returned in func._schema.returns)
    return any(info is not None and not info.is_write for info in infos)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of an argument, an output or a tuple of either, lists opened."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if type(value) in _SEQUENCES:
        for part in value:
            kind = type(part)
            if kind is Tensor:
                found.append(part)
            elif kind in _SEQUENCES:
                found += tensors_in(part)
            elif kind not in _SCALARS and isinstance(part, Tensor):
                found.append(part)
    return found
