# SPDX-License-Identifier: MIT
"""Concatenate, shuffle and split channels in one pass.

Every operator here is one permutation of channels: the inputs, side by side, are a row of C channels; with g groups
the shuffle is the transpose of that row seen as a (g, C / g) matrix; the outputs, side by side, are the result. The
inverse of a shuffle with g groups is the shuffle with C / g groups, so the backward is the same operator with inputs
and outputs exchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opswap import _core

from ._function import (
    batch_together,
    cached_constant,
    make_apply,
    make_eager_apply,
    needs_graph,
    plain_cpu,
    plain_eager,
    split_batch,
    tracing,
    transforms_active,
)
from ._layout import cat_memory_format, dense_copy, dense_strides, empty, is_strided
from ._library import library
from ._stats import count_kernel, count_reference, reference_forced

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
    *,
    memory_format: torch.memory_format | None = None,
    output_mask: Sequence[bool] | None = None,
) -> list[Tensor]:
    """The operator in plain torch: cat, and an index_select for each output, which writes it as it is returned.

    It avoids strided copies, which some accelerators lack; its index tensor is made once per device.

    Args and returns: as `opswap::cat_channel_shuffle_split`, see `_define`.
    """
    if memory_format is None:
        memory_format = cat_memory_format(tensors)
    row = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), 1)
    index = _index(row.shape[1], groups, row.device).split(list(sections))
    kept = [part for i, part in enumerate(index) if output_mask is None or output_mask[i]]
    if memory_format is not torch.contiguous_format:
        # In the order of its memory the row has its channels last, and so has what is selected from it.
        row = row.movedim(1, -1)
        return [_dense(row.index_select(-1, part).movedim(-1, 1), memory_format) for part in kept]
    return [_dense(row.index_select(1, part), memory_format) for part in kept]


def _dense(fresh: Tensor, memory_format: torch.memory_format) -> Tensor:
    """A tensor that nobody else has with exactly the strides of this memory format, copied if it has others."""
    same = fresh.stride() == dense_strides(fresh.shape, memory_format)
    return fresh if same else dense_copy(fresh, memory_format)


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
    *,
    memory_format: torch.memory_format | None = None,
    output_mask: Sequence[bool] | None = None,
) -> list[Tensor]:
    if reference_forced():
        return _counted_reference(
            tensors, groups, sections, memory_format=memory_format, output_mask=output_mask
        )
    _check(tensors, groups, sections)
    if memory_format is None:
        memory_format = cat_memory_format(tensors)
    mask = None if output_mask is None else tuple(output_mask)
    return list(_run(groups, tuple(sections), memory_format, mask, *tensors))


def _run(
    groups: int,
    sections: tuple[int, ...],
    memory_format: torch.memory_format,
    output_mask: tuple[bool, ...] | None,
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    """The kernel itself; the extension raises RuntimeError for all that does not fit."""
    channels_last = memory_format is not torch.contiguous_format
    outputs = _core.new_shuffled(tensors, groups, sections, output_mask, channels_last)
    if outputs is None:
        dense = tuple(t.contiguous(memory_format=memory_format) for t in tensors)
        outputs = _core.new_shuffled(dense, groups, sections, output_mask, channels_last)
    count_kernel(_NAME)
    return outputs


def _counted_reference(
    tensors: Sequence[Tensor], groups: int, sections: Sequence[int], **options: Any
) -> list[Tensor]:
    _check(tensors, groups, sections)
    count_reference(_NAME)
    return reference(tensors, groups, sections, **options)


def _fake(
    tensors: Sequence[Tensor],
    groups: int,
    sections: Sequence[int],
    *,
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


def _fold(info: Any, tensors: Sequence[Tensor], dims: Sequence[int | None]) -> list[Tensor]:
    return [batch_together(info, t, dim) for t, dim in zip(tensors, dims, strict=True)]


def _unfold(info: Any, outputs: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    return [split_batch(info, t) for t in outputs], [0] * len(outputs)


def _vmap(info: Any, in_dims: Any, tensors: Any, groups: int, sections: Any, **options: Any) -> Any:
    outputs = _operator(_fold(info, tensors, in_dims[0]), groups, sections, **options)
    return _unfold(info, outputs)


def _batched(
    tensors: Sequence[Tensor],
    groups: int,
    sections: Sequence[int],
    *,
    memory_format: torch.memory_format | None = None,
    output_mask: Sequence[bool] | None = None,
) -> list[Tensor]:
    """In operators that batch, for `torch.autograd.grad(..., is_grads_batched=True)`, whose vmap takes no rule."""
    row = torch.cat(list(tensors), 1)
    batch, channels, *space = row.shape
    shuffled = row.reshape(batch, groups, channels // max(groups, 1), *space).transpose(1, 2)
    parts = shuffled.reshape(batch, channels, *space).split(list(sections), 1)
    return [p.clone() for i, p in enumerate(parts) if output_mask is None or output_mask[i]]


def _define() -> Any:
    """Register the operator.

    tensors: (N, C_i, *) of one dtype and device; groups: divides C = sum of C_i; sections: channels of each output,
    their sum is C. Returns one dense tensor a section, in memory_format (None: that of torch.cat(tensors)); sections
    where output_mask is False are neither computed nor returned.
    """
    library.define(
        f"{_NAME}(Tensor[] tensors, SymInt groups, SymInt[] sections, *, "
        "MemoryFormat? memory_format=None, bool[]? output_mask=None) -> Tensor[]"
    )
    library.impl(_NAME, _kernel, "CPU")
    library.impl(_NAME, _counted_reference, "CompositeExplicitAutograd")
    library.impl(_NAME, _batched, "Batched")
    torch.library.register_fake(f"opswap::{_NAME}", _fake, lib=library)
    torch.library.register_vmap(f"opswap::{_NAME}", _vmap, lib=library)
    return torch.ops.opswap.cat_channel_shuffle_split.default


_operator = _define()


def _forward(
    groups: int,
    sections: tuple[int, ...],
    memory_format: torch.memory_format,
    output_mask: tuple[bool, ...] | None,
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    if plain_cpu(tensors):
        # The dispatcher finds memory that the extension does not, and the operator words the errors.
        with contextlib.suppress(RuntimeError):
            return _run(groups, sections, memory_format, output_mask, *tensors)
    return tuple(
        _operator(list(tensors), groups, sections, memory_format=memory_format, output_mask=output_mask)
    )


def _setup(ctx: Any, args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
    ctx.call = args[:4]
    ctx.channels = tuple([t.shape[1] for t in args[4:]])


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    groups, sections, memory_format, output_mask = ctx.call
    full = _fill_masked(grads, sections, output_mask)
    needed = tuple(ctx.needs_input_grad[4:])
    mask = None if all(needed) else needed
    inverse = max(sum(ctx.channels) // groups, 1)
    # A compiled backward is never differentiated again, and Dynamo cannot trace a Function inside a backward.
    run = _forward if torch.compiler.is_compiling() else _differentiable
    results = iter(run(inverse, ctx.channels, memory_format, mask, *full))
    return (None, None, None, None, *(next(results) if n else None for n in needed))


def _fill_masked(
    grads: Sequence[Tensor], sections: Sequence[int], output_mask: Sequence[bool] | None
) -> Sequence[Tensor]:
    """Put zeros where an output was masked away, so that there is one gradient a section again."""
    if output_mask is None:
        return grads
    given = iter(grads)
    like = grads[0]
    return [
        next(given) if wanted else like.new_zeros((like.shape[0], channels, *like.shape[2:]))
        for channels, wanted in zip(sections, output_mask, strict=True)
    ]


def _jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
    """The operator is linear: its derivative is itself."""
    return _forward(*ctx.call, *tangents[4:])


def _vmap_function(info: Any, in_dims: Any, *args: Any) -> Any:
    outputs = _differentiable(*args[:4], *_fold(info, args[4:], in_dims[4:]))
    unfolded, dims = _unfold(info, outputs)
    return tuple(unfolded), tuple(dims)


_apply = make_apply("CatChannelShuffleSplit", _forward, _setup, _backward, _jvp, _vmap_function)
_apply_plain = make_eager_apply("CatChannelShuffleSplit", _run, _setup, _backward)


def _differentiable(
    groups: int,
    sections: tuple[int, ...],
    memory_format: torch.memory_format,
    output_mask: tuple[bool, ...] | None,
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    if transforms_active() or needs_graph(tensors):
        return _apply(groups, sections, memory_format, output_mask, *tensors)
    return _forward(groups, sections, memory_format, output_mask, *tensors)


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
    )  # in a compiled graph both may be symbols, but the number of outputs is none
    rest = channels - whole * size
    return (size,) * whole + ((rest,) if rest else ())


def _shuffle_in_torch(
    tensors: tuple[Tensor, ...], groups: int, sections: int | Sequence[int] | None, inverse: bool
) -> tuple[Tensor, ...]:
    """`_shuffle` in torch's operators: for torch.jit.trace, and for tensors that are not strided.

    The sizes, which a trace would make constants, are not looked at.
    """
    # Copied by torch.cat also where the shuffle is the identity: the result may be written to.
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
            return run(*described, None, *tensors)
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
    return _differentiable(groups, sizes, cat_memory_format(tensors), None, *tensors)


# What torch.channel_shuffle takes on a CPU.
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
