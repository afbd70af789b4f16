# SPDX-License-Identifier: MIT
"""The one table of torch's calls, by name: what a function or method of that name does. `swap` and `merge` read it.

A name counts for torch.name, torch.nn.functional.name and Tensor.name. Calls that write, by a trailing underscore,
`inplace=True` or `out=`, are recognised before the table is read.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

__all__ = ["Does", "functions_of", "names_of"]


class Does(enum.Flag):
    """What a call does; a name may have several."""

    REORDER = enum.auto()  # moves elements to other places of one tensor
    RESHAPE = enum.auto()  # keeps the order of the elements, or selects some
    PARTS = enum.auto()  # returns a tuple of parts of one tensor
    JOIN = enum.auto()  # makes one tensor of several
    SIZES = enum.auto()  # returns sizes, or numbers made of sizes
    METADATA = enum.auto()  # returns what is known without the elements
    VIEW = enum.auto()  # always returns views, copies nothing
    VIEW_OR_COPY = enum.auto()  # returns a view if the strides allow one
    NEW_MEMORY = enum.auto()  # only reads its arguments, and returns new memory
    ELEMENTWISE = enum.auto()  # one tensor; each element depends on the element at its place
    BINARY = enum.auto()  # elementwise, of two operands
    PER_CHANNEL = enum.auto()  # each channel of (N, C, *) depends on that channel alone
    REDUCE = enum.auto()  # reduces given dimensions
    STRIDES = enum.auto()  # depends on the strides of its tensor, may fail, or gives access to its memory
    SAME_STRIDES = enum.auto()  # the result has the same strides in every memory format
    DRAWS = enum.auto()  # gives random numbers to the elements of its tensor in the order of memory


_POOLS = " ".join(
    f"{kind}_pool{n}d" for kind in ("max", "avg", "lp", "adaptive_max", "adaptive_avg") for n in (1, 2, 3)
)
_ROWS = {
    Does.REORDER: (
        "channel_shuffle moveaxis movedim native_channel_shuffle permute swapaxes swapdims transpose",
    ),
    Does.RESHAPE: ("clone contiguous flatten narrow reshape select squeeze unflatten unsqueeze view",),
    Does.PARTS: ("chunk split tensor_split unbind",),
    Does.JOIN: ("cat concat concatenate stack",),
    Does.SIZES: ("dim ndimension numel size",),
    Does.METADATA: (
        "dim element_size is_complex is_contiguous is_floating_point ndimension nelement numel size",
    ),
    # "data" and "getitem" are the names of x.data and x[...] in `calls.operation`.
    Does.VIEW: ("chunk data getitem narrow select split tensor_split unbind",),
    Does.VIEW_OR_COPY: ("contiguous flatten ravel reshape reshape_as",),
    Does.NEW_MEMORY: (
        "abs add batch_norm cat clone concat conv1d conv2d conv3d elu gelu hardsigmoid hardswish hardtanh leaky_relu",
        "linear max mean min mish mul pow relu relu6 sigmoid silu softplus square stack sub sum tanh",
        _POOLS,
    ),
    Does.ELEMENTWISE: (
        "abs alpha_dropout celu clamp clamp_max clamp_min clip clone contiguous cos detach dropout elu erf exp expm1",
        "float gelu half hardshrink hardsigmoid hardswish hardtanh leaky_relu log log1p logsigmoid mish neg",
        "reciprocal relu relu6 rsqrt selu sigmoid silu sin softplus softshrink softsign sqrt square tanh",
        "tanhshrink threshold",
    ),
    # The first letter i is of operator.iadd, which is x += y.
    Does.BINARY: ("add div iadd imul isub itruediv maximum minimum mul pow sub truediv",),
    Does.PER_CHANNEL: ("dropout2d dropout3d interpolate", _POOLS),
    Does.REDUCE: ("amax amin mean std sum var",),
    Does.STRIDES: (
        "as_strided data_ptr is_contiguous resize_ resize_as_ storage storage_offset stride untyped_storage view",
        "view_as",
    ),
    Does.DRAWS: ("alpha_dropout bernoulli dropout empty_like rand_like randint_like randn_like rrelu",),
    Does.SAME_STRIDES: ("amax contiguous flatten linear matmul max mean reshape softmax sum",),
}
_NAMES = {does: frozenset(" ".join(rows).split()) for does, rows in _ROWS.items()}


def names_of(does: Does) -> frozenset[str]:
    """The names with at least one of these properties."""
    return frozenset().union(*(names for one, names in _NAMES.items() if one in does))


def functions_of(does: Does, modules: Iterable[object]) -> dict[object, str]:
    """The functions of these Python modules that have such names, with their names."""
    names = sorted(names_of(does))
    return {getattr(m, n): n for m in modules for n in names if hasattr(m, n)}
