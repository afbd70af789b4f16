# SPDX-License-Identifier: MIT
"""Concatenate, shuffle and split channels in one pass.

Every operator here is one permutation of channels: the inputs, side by side, are a row of C channels; with g groups
the shuffle is the transpose of that row seen as a (g, C / g) matrix; the outputs, side by side, are the result. The
inverse of a shuffle with g groups is the shuffle with C / g groups, so the backward is the same operator with inputs
and outputs exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opswap import _core

from ._function import cached_constant, needs_graph, plain_eager, tracing
from ._layout import cat_memory_format, empty, exactly_dense, is_strided
from ._operator import Operator
from ._stats import count_kernel, reference_forced

__all__ = ["cat_channel_shuffle", "cat_channel_shuffle_split", "channel_shuffle", "reference"]

_NAME = "cat_channel_shuffle_split"


@cached_constant
def _index(channels: int, groups: int, device: torch.device) -> Tensor:
    """Source channel of every output channel: the identity row, seen as (groups, C / groups), transposed."""
    with torch.inference_mode(False):
        row = torch.arange(channels, device=device)
        return row.view(groups, channels // groups).t().reshape(channels)


def reference(
    tensors: Sequence[Tensor],
    groups: int,
    sections: Sequence[int],
    memory_format: torch.memory_format | None = None,
    output_mask: Sequence[bool] | None = None,
) -> list[Tensor]:
    """The operator in plain torch: cat, and an index_select for each output, which writes it as it is returned.

    It avoids strided copies, which some accelerators lack; its index tensor is made once per device.

    Args and returns: as `opswap::cat_channel_shuffle_split`, see `_operator`.
    """
    _check(tensors, groups, sections)
    if memory_format is None:
        memory_format = cat_memory_format(tensors)
    row = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), 1)
    index = _index(row.shape[1], groups, row.device).split(list(sections))
    kept = [part for i, part in enumerate(index) if output_mask is None or output_mask[i]]
    if memory_format is not torch.contiguous_format:
        # In the order of its memory the row has its channels last, and so has what is selected from it.
        row = row.movedim(1, -1)
        return [exactly_dense(row.index_select(-1, part).movedim(-1, 1), memory_format) for part in kept]
    return [exactly_dense(row.index_select(1, part), memory_format) for part in kept]


def _check(tensors: Sequence[Tensor], groups: int, sections: Sequence[int]) -> None:
    """Raise torch's kind of error, with the values, for arguments that describe no shuffle."""
    if not tensors:
        raise RuntimeError("cat_channel_shuffle: expected a non-empty list of tensors")
    first = tensors[0]
    if first.dim() < 2:
        raise RuntimeError(
            f"channel_shuffle: expected at least 2 dimensions (N, C, *), got {tuple(first.shape)}"
        )
    for i, t in enumerate(tensors[1:], 1):
        if t.dtype != first.dtype:
            raise RuntimeError(f"cat_channel_shuffle: tensor {i} is {t.dtype}, tensor 0 is {first.dtype}")
        if t.device != first.device:
            raise RuntimeError(
                f"cat_channel_shuffle: tensor {i} is on {t.device}, tensor 0 on {first.device}"
            )
        if t.dim() != first.dim() or t.shape[0] != first.shape[0] or t.shape[2:] != first.shape[2:]:
            raise RuntimeError(
                f"cat_channel_shuffle: sizes must match except in dimension 1, "
                f"got {tuple(first.shape)} and {tuple(t.shape)} (tensor {i})"
            )
    if groups <= 0:
        raise RuntimeError(f"channel_shuffle: groups must be positive, got {groups}")
    channels = sum(t.shape[1] for t in tensors)
    if channels % groups:
        raise RuntimeError(f"channel_shuffle: {channels} channels cannot be split into {groups} groups")
    if any(s < 0 for s in sections) or sum(sections) != channels:
        raise RuntimeError(
            f"cat_channel_shuffle_split: sections {list(sections)} must be non-negative and sum to {channels} channels"
        )


def _kernel(
    tensors: Sequence[Tensor],
    groups: int,
    sections: Sequence[int],
    memory_format: torch.memory_format | None = None,
    output_mask: Sequence[bool] | None = None,
) -> list[Tensor]:
    if memory_format is None:
        _check(tensors, groups, sections)
        memory_format = cat_memory_format(tensors)
    mask = None if output_mask is None else tuple(output_mask)
    try:
        return list(_run((groups, tuple(sections), memory_format, mask), *tensors))
    except RuntimeError:
        _check(tensors, groups, sections)  # which words the error
        raise


def _run(constants: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
    """The kernel itself; the extension raises RuntimeError for all that does not fit."""
    groups, sections, memory_format, output_mask = constants
    channels_last = memory_format is not torch.contiguous_format
    outputs = _core.new_shuffled(tensors, groups, sections, output_mask, channels_last)
    if outputs is NotImplemented:
        dense = tuple(t.contiguous(memory_format=memory_format) for t in tensors)
        outputs = _core.new_shuffled(dense, groups, sections, output_mask, channels_last)
    count_kernel(_NAME)
    return outputs


def _fake(
    tensors: Sequence[Tensor],
    groups: int,
    sections: Sequence[int],
    memory_format: torch.memory_format | None = None,
    output_mask: Sequence[bool] | None = None,
) -> list[Tensor]:
    _check(tensors, groups, sections)
    if memory_format is None:
        memory_format = cat_memory_format(tensors)
    like = tensors[0]
    sizes = [(like.shape[0], channels, *like.shape[2:]) for channels in sections]
    return [
        empty(like, size, memory_format)
        for i, size in enumerate(sizes)
        if output_mask is None or output_mask[i]
    ]


def _batched(
    tensors: Sequence[Tensor],
    groups: int,
    sections: Sequence[int],
    memory_format: torch.memory_format | None = None,
    output_mask: Sequence[bool] | None = None,
) -> list[Tensor]:
    """In operators that batch, for `torch.autograd.grad(..., is_grads_batched=True)`, whose vmap ignores rules."""
    row = torch.cat(list(tensors), 1)
    batch, channels, *space = row.shape
    shuffled = row.reshape(batch, groups, channels // max(groups, 1), *space).transpose(1, 2)
    parts = shuffled.reshape(batch, channels, *space).split(list(sections), 1)
    return [p.clone() for i, p in enumerate(parts) if output_mask is None or output_mask[i]]


# tensors: (N, C_i, *) of one dtype and device; groups: divides C = sum of C_i; sections: channels of each output, their
# sum is C. Returns one dense tensor per section, in memory_format (None: that of torch.cat(tensors)); sections where
# output_mask is False are neither computed nor returned.
_operator: Operator = Operator(
    f"{_NAME}(Tensor[] tensors, SymInt groups, SymInt[] sections, MemoryFormat? memory_format=None, "
    "bool[]? output_mask=None) -> Tensor[]",
    _kernel,
    reference,
    _fake,
    batched=_batched,
    keep=lambda constants, tensors, _: ((), (constants, tensors[0].shape, _widths(tensors))),
    gradient=lambda _, settings, needed, *grads: _gradient(*settings, needed, grads),
    tangent=lambda _, settings, *tangents: _operator(tangents, *settings[0]),
)


def _widths(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple([t.shape[1] for t in tensors])


def _gradient(
    constants: tuple[Any, ...],
    size: Sequence[int],
    channels: tuple[int, ...],
    needed: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The inverse shuffle of the gradients, one per section; zeros for outputs masked away or not used."""
    groups, sections, memory_format, output_mask = constants
    given, like = iter(grads), next(g for g in grads if g is not None)
    full = []
    for i, count in enumerate(sections):
        grad = next(given) if output_mask is None or output_mask[i] else None
        full.append(like.new_zeros((size[0], count, *size[2:])) if grad is None else grad)
    inverse = max(sum(channels) // groups, 1)
    if all(needed):
        return _operator(full, inverse, channels, memory_format, None)
    results = iter(_operator(full, inverse, channels, memory_format, tuple(needed)))
    return [next(results) if wanted else None for wanted in needed]


_apply_plain = _operator.make_apply(_run)


def _require_int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    return value


def _require_tensors(tensors: Any) -> tuple[Tensor, ...]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise TypeError(f"tensors must be a list or tuple of tensors, got {type(tensors).__name__}")
    for i, t in enumerate(tensors):
        if not isinstance(t, Tensor) and not torch.overrides.has_torch_function_unary(t):
            raise TypeError(f"tensors[{i}] must be a tensor, got {type(t).__name__}")
    if not tensors:
        raise RuntimeError("cat_channel_shuffle: expected a non-empty list of tensors")
    return tuple(tensors)


def _autocast(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Under autocast, tensors of several dtypes are promoted to the widest, as autocast does for torch.cat."""
    widest = tensors[0].dtype
    if all(t.dtype == widest for t in tensors) or not torch.is_autocast_enabled(tensors[0].device.type):
        return tensors
    for t in tensors[1:]:
        widest = torch.promote_types(widest, t.dtype)
    return tuple(t.to(widest) for t in tensors)


def _chunk_sizes(channels: int, sections: int | Sequence[int]) -> tuple[int, ...]:
    """Channels of every output: those of torch.chunk for a number, those given for a list."""
    if isinstance(sections, Sequence):
        return tuple(_require_int("sections", s) for s in sections)
    _require_int("sections", sections)
    if sections <= 0:
        raise RuntimeError(f"cat_channel_shuffle_split: sections must be positive, got {sections}")
    if channels == 0:
        return (0,) * sections
    size = (channels + sections - 1) // sections
    whole = int(
        channels // size
    )  # in a compiled graph both may be symbols, but the number of outputs is an int
    rest = channels - whole * size
    return (size,) * whole + ((rest,) if rest else ())


def _shuffle_in_torch(
    tensors: tuple[Tensor, ...], groups: int, sections: int | Sequence[int] | None, inverse: bool
) -> tuple[Tensor, ...]:
    """`_shuffle` in torch's operators: for torch.jit.trace, and for tensors that are not strided.

    The sizes, which a trace would make constants, are not looked at.
    """
    # Copied by torch.cat also if the shuffle is the identity: the result may be written to.
    row = torch.cat(list(tensors), 1)
    matrix = row.unflatten(1, (-1, groups) if inverse else (groups, -1))
    shuffled = matrix.transpose(1, 2).flatten(1, 2)
    if sections is None:
        return (shuffled,)
    if isinstance(sections, Sequence):
        return shuffled.split([_require_int("sections", s) for s in sections], 1)
    return shuffled.chunk(_require_int("sections", sections), 1)


def _shuffle(
    tensors: tuple[Tensor, ...], groups: int, sections: int | Sequence[int] | None, inverse: bool
) -> tuple[Tensor, ...]:
    if plain_eager():
        described = _core.describe_shuffle(tensors, groups, 1 if sections is None else sections, inverse)
        if described is not None:
            run = _apply_plain if needs_graph(tensors) else _run
            return run((*described, None), *tensors)
    _require_int("groups", groups)
    tensors = _autocast(tensors)
    if groups <= 0 or any(t.dim() < 2 for t in tensors):
        _check(tensors, groups, ())
    if tracing() or not all(map(is_strided, tensors)):
        return _shuffle_in_torch(tensors, groups, sections, inverse)
    channels = sum(t.shape[1] for t in tensors)
    sizes = (channels,) if sections is None else _chunk_sizes(channels, sections)
    if inverse and channels and channels % groups == 0:
        groups = channels // groups
    return tuple(_operator(tensors, groups, sizes, cat_memory_format(tensors), None))


# What torch.channel_shuffle supports on a CPU.
_TORCH_DTYPES = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    }
)


def _torch_is_at_copy_speed(input: Tensor) -> bool:
    """A dense contiguous CPU tensor: torch.channel_shuffle moves its planes as fast as memory allows."""
    return (
        input.dim() > 2
        and input.is_contiguous()
        and input.device.type == "cpu"
        and input.dtype in _TORCH_DTYPES
        and not reference_forced()
        and not tracing()
    )


def channel_shuffle(input: Tensor, groups: int, *, inverse: bool = False) -> Tensor:
    """Interleave the channels of `groups` equal groups, as torch.nn.functional.channel_shuffle.

    Args:
        input: (N, C, *) of any dtype, C divisible by groups; strided input is read in place.
        groups: number of groups.
        inverse: undo the shuffle with the same groups, that is, shuffle with C / groups groups.
    Returns: (N, C, *), dense, memory format kept: out[:, j * groups + i] = input[:, i * (C // groups) + j].
    Raises: RuntimeError if C is not divisible by groups, groups is not positive or input is 0-D or 1-D; TypeError if
        input is not a tensor or groups not an int.
    Contiguous CPU tensors go to torch's own operator, which moves them at the speed of a copy.
    Source: Zhang et al. 2017, ShuffleNet, section 3.1.
    """
    if torch.overrides.has_torch_function_unary(input):
        return torch.overrides.handle_torch_function(
            channel_shuffle, (input,), input, groups, inverse=inverse
        )
    if not isinstance(input, Tensor):
        raise TypeError(f"channel_shuffle: input must be a tensor, got {type(input).__name__}")
    _require_int("groups", groups)
    if _torch_is_at_copy_speed(input):
        _check((input,), groups, (input.shape[1],))
        return torch.channel_shuffle(input, max(input.shape[1] // groups, 1) if inverse else groups)
    return _shuffle((input,), groups, None, inverse)[0]


def cat_channel_shuffle(tensors: Sequence[Tensor], groups: int, *, inverse: bool = False) -> Tensor:
    """channel_shuffle(torch.cat(tensors, 1), groups) in one pass.

    Args:
        tensors: one or more (N, C_i, *) of one dtype and device, equal but for C_i; strided ones are read in place.
        groups: divides C = sum of the C_i; a group may span tensors.
        inverse: as in `channel_shuffle`.
    Returns: (N, C, *), dense, in the memory format of torch.cat(tensors, 1).
    Raises: RuntimeError for sizes, dtypes, devices or groups that do not fit; TypeError if one of
        tensors is not a tensor or groups not an int.
    Source: Ma et al. 2018, ShuffleNet V2, figure 3 (c) and (d).
    """
    tensors = _require_tensors(tensors)
    if torch.overrides.has_torch_function(tensors):
        return torch.overrides.handle_torch_function(
            cat_channel_shuffle, tensors, tensors, groups, inverse=inverse
        )
    return _shuffle(tensors, groups, None, inverse)[0]


def cat_channel_shuffle_split(
    tensors: Sequence[Tensor],
    groups: int,
    sections: int | Sequence[int] = 2,
    *,
    inverse: bool = False,
) -> tuple[Tensor, ...]:
    """channel_shuffle(torch.cat(tensors, 1), groups), cut along the channels, in one pass.

    Args:
        tensors, groups, inverse: as in `cat_channel_shuffle`.
        sections: a number of outputs, sized as torch.chunk does, or the channels of every output.
    Returns: one dense (N, S_i, *) tensor per section, in the memory format of torch.cat(tensors, 1).
    Raises: as `cat_channel_shuffle`; RuntimeError also if a list of sections does not sum to C.
    Source: Ma et al. 2018, ShuffleNet V2: the end of one block and the channel split of the next.
    """
    tensors = _require_tensors(tensors)
    if torch.overrides.has_torch_function(tensors):
        return torch.overrides.handle_torch_function(
            cat_channel_shuffle_split, tensors, tensors, groups, sections, inverse=inverse
        )
    return _shuffle(tensors, groups, sections, inverse)
