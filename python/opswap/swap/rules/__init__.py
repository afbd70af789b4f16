# SPDX-License-Identifier: MIT
"""The rules that `swap` applies, one file per family. Of two rules that match the same code, the first is used."""

from dataclasses import replace

from ..rule import Replacement, Rule
from . import (
    activation_alone,
    chain,
    channels,
    convolution,
    convolution_functional,
    dropout,
    dropout_add,
    group_norm,
    layer_norm,
    linear,
    local_response_norm,
    mean_square,
    norm,
    norm_functional,
    norm_pool,
    permutation,
    pool,
    reduced_precision,
    shared,
)

__all__ = ["DEFAULT", "MENDS", "OPTIONAL", "Replacement", "Rule"]

_NORMS = norm.RULES + norm_functional.RULES + group_norm.RULES + layer_norm.RULES + mean_square.RULES
_CONVOLUTIONS = reduced_precision.RULES + convolution.RULES + convolution_functional.RULES
_ARITHMETIC = _NORMS + linear.RULES + _CONVOLUTIONS
_POOLS = pool.RULES + local_response_norm.RULES
_DROPOUTS = dropout_add.RULES + dropout.RULES
_KERNELS = (
    chain.RULES + norm_pool.RULES + channels.RULES + permutation.RULES + _POOLS + _ARITHMETIC + _DROPOUTS
)
_KERNELS += shared.RULES + activation_alone.RULES


def _where_kernels_are(rule: Rule) -> Rule:
    """The kernels are for CPUs; "identity" needs none."""
    return rule if rule.name == "identity" else replace(rule, devices=("cpu",))


DEFAULT: tuple[Rule, ...] = tuple(map(_where_kernels_are, _KERNELS))
# What keeps a stock model in channels_last from gradients of torch that end the process.
MENDS: tuple[Rule, ...] = tuple(
    r for r in DEFAULT if r.name in ("strided_conv_gradient", "group_norm_gradient")
)
OPTIONAL: tuple[Rule, ...] = tuple(map(_where_kernels_are, pool.OPTIONAL))
