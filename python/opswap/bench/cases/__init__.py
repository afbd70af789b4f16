# SPDX-License-Identifier: MIT
"""One module an operator family, and one for whole models; each has `cases(batch)`.

"compiled" and "peers" take minutes; "peers" needs the packages of its extra.
"""

from collections.abc import Callable, Iterator

from opswap.bench.case import Case

from . import (
    batch,
    chain,
    channels,
    conv,
    depthwise,
    dropout,
    finders,
    group_norm,
    layer_norm,
    linear,
    merge,
    models,
    norm,
    norm_pool,
    peers,
    pointwise,
    pool,
    reduced_precision,
    rules,
)

__all__ = ["FAMILIES"]

FAMILIES: dict[str, Callable[[int], Iterator[Case]]] = {
    "channels": channels.cases,
    "pool": pool.cases,
    "norm": norm.cases,
    "norm_pool": norm_pool.cases,
    "group_norm": group_norm.cases,
    "layer_norm": layer_norm.cases,
    "dropout": dropout.cases,
    "linear": linear.cases,
    "pointwise": pointwise.cases,
    "depthwise": depthwise.cases,
    "conv": conv.cases,
    "chain": chain.cases,
    "batch": batch.cases,
    "rules": rules.cases,
    "merge": merge.cases,
    "models": models.cases,
    "half": reduced_precision.cases,
    "finders": finders.cases,
    "compiled": models.compiled_cases,
    "peers": peers.cases,
}
