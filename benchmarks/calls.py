# SPDX-License-Identifier: MIT
"""Microseconds of an eager call on small tensors, where the kernels take nearly no time: the cost of the call itself.

    python benchmarks/calls.py [--json FILE] [--before FILE]

One function per family, in inference and in a training step (forward and backward), beside torch's code for the same.
"--before" adds the columns of a file that an older version wrote: run this script with PYTHONPATH at that version.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import functional as F
from opswap._table import markdown
from opswap._timing import medians_in_turn

Call = Callable[..., Any]
_LAST = torch.channels_last


def _cases() -> dict[str, tuple[Call, Call, tuple[Tensor, ...]]]:
    """By name: opswap's call, torch's, and the tensors that both get."""
    x, y = torch.randn(2, 8, 6, 6), torch.randn(2, 8, 6, 6)
    last, vector = x.contiguous(memory_format=_LAST), torch.rand(8) + 0.5
    statistics = torch.zeros(8), torch.ones(8)
    rows, maps = torch.randn(4, 6, 8), torch.randn(6, 5, 8)
    order = (3, 0, 5, 1, 4, 2, 7, 6)

    def shuffled(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat((a, b), 1).view(2, 2, 8, 6, 6).transpose(1, 2).reshape(2, 16, 6, 6)

    return {
        "cat_channel_shuffle": (lambda a, b: F.cat_channel_shuffle((a, b), 2), shuffled, (x, y)),
        "channel_permutation": (
            lambda t: F.channel_permutation(t, order),
            lambda t: t[:, order],
            (x,),
        ),
        "max_pool2d": (lambda t: F.max_pool2d(t, 2), lambda t: T.max_pool2d(t, 2), (x,)),
        "avg_pool2d": (lambda t: F.avg_pool2d(t, 2), lambda t: T.avg_pool2d(t, 2), (x,)),
        "adaptive_max_pool2d": (
            lambda t: F.adaptive_max_pool2d(t, 2),
            lambda t: T.adaptive_max_pool2d(t, 2),
            (x,),
        ),
        "global_max_pool2d": (F.global_max_pool2d, lambda t: t.amax((2, 3)), (x,)),
        "batch_norm_relu": (
            lambda t, w, b: F.batch_norm_relu(t, *statistics, w, b, True),
            lambda t, w, b: T.batch_norm(t, *statistics, w, b, True).relu(),
            (x, vector, vector.clone()),
        ),
        "grouped_linear": (F.grouped_linear, partial(torch.einsum, "bgi,goi->bgo"), (rows, maps)),
        "pointwise_conv2d": (F.pointwise_conv2d, T.conv2d, (last, torch.randn(8, 8, 1, 1))),
        "depthwise_conv2d": (
            lambda t, w: F.depthwise_conv2d(t, w, None, 1, 1),
            lambda t, w: T.conv2d(t, w, None, 1, 1, 1, 8),
            (last, torch.randn(8, 1, 3, 3)),
        ),
        "dropout": (lambda t: F.dropout(t, 0.5, True), lambda t: T.dropout(t, 0.5, True), (x,)),
    }


def _inference(call: Call, tensors: tuple[Tensor, ...]) -> Call:
    return torch.no_grad()(lambda: call(*tensors))


def _step(call: Call, tensors: tuple[Tensor, ...]) -> Call:
    leaves = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]
    gradient = torch.ones_like(call(*leaves))
    return lambda: torch.autograd.grad(call(*leaves), leaves, gradient)


def measure(seconds: float) -> dict[str, dict[str, float]]:
    """By case, microseconds of "torch" and "opswap" in both directions."""
    found: dict[str, dict[str, float]] = {}
    for name, (ours, stock, tensors) in _cases().items():
        forms = {
            f"{who}, {direction}": make(call, tensors)
            for direction, make in (("inference", _inference), ("step", _step))
            for who, call in (("torch", stock), ("opswap", ours))
        }
        times = medians_in_turn(forms, seconds)
        found[name] = {form: 1000 * time for form, time in times.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0, help="per case")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = measure(arguments.seconds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    before = {} if arguments.before is None else json.loads(arguments.before.read_text())
    head, rows = ["function"], [[name] for name in found]
    for direction in ("inference", "step"):
        columns = {"torch": ("torch", found), "before": ("opswap", before), "opswap": ("opswap", found)}
        for title, (who, table) in columns.items():
            if table:
                head.append(f"{title}, {direction}")
                for row in rows:
                    row.append(f"{table[row[0]][f'{who}, {direction}']:.1f}")
    print("\n".join(markdown(head, rows)))


if __name__ == "__main__":
    main()
