# SPDX-License-Identifier: MIT
"""`python3 -m opswap verify`: a model of one's own, stock against swapped: equality and speed in one table."""

from __future__ import annotations

import argparse
import collections
import copy
import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opswap._command_line import (
    Commands,
    UsageError,
    add_command,
    add_json,
    add_model,
    add_threads,
    positive_number,
    write_json,
)
from opswap._table import milliseconds, short_name, table, times_faster
from opswap._timing import Spread, ratio_spread, time_in_turn
from opswap.finding.script import add_input, factory_step, load_model
from opswap.ops._layout import to_channels_last

__all__ = ["add"]

_EXAMPLES = """
verify package.module:factory --input 32x3x224x224
verify opswap.models:lprnet --input 4x3x24x94 --channels-last --json lprnet.json
verify torchvision.models:shufflenet_v2_x1_0 --input 8x3x224x224 --exact --dtype bfloat16
"""
_DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
_ROUNDS = 5
_RESULT_WIDTH = 88

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Timing:
    """How long the stock and the swapped model take, in milliseconds, and how many times faster swapped is.

    best_stock: the faster memory format of the stock model, of those that were timed.
    """

    best_stock: str
    stock_ms: Spread
    swapped_ms: Spread
    times_faster: Spread


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command to a command line."""
    parser = add_command(
        commands,
        "verify",
        help="compare a model with its swapped copy: results and speed",
        description="Swap a copy of a model, compare training steps and inferences of both, and time both in turn. "
        "Results must be bit-equal, or as near to float64 as the stock model's own results up to a factor of 4.",
        examples=_EXAMPLES,
        statuses={
            0: "the swapped model computes what the model computes",
            1: "it does not, or swap finds nothing to replace",
        },
        run=_run,
    )
    add_model(parser)
    add_input(parser, "an input: random numbers, or zeros for a dtype of integers", required=True)
    parser.add_argument("--exact", action="store_true", help="only replacements with bit-equal results")
    parser.add_argument("--dtype", choices=_DTYPES, help="convert the model and its floating-point inputs")
    parser.add_argument(
        "--channels-last",
        action="store_true",
        help="time the swapped model in channels_last, against the faster memory format of the stock model",
    )
    add_threads(parser)
    parser.add_argument("--seconds", type=positive_number, default=2.0, help="timing of each row")
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    from opswap.doctor import machine
    from opswap.swap import VerificationError, verify

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    model = load_model(arguments.model)
    inputs = _inputs(arguments)
    if arguments.dtype is not None:
        model = model.to(_DTYPES[arguments.dtype])
    _check_inputs(model, inputs)
    try:
        report = verify(model, inputs, exact=arguments.exact, example_inputs=inputs)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except VerificationError as error:
        report = error.report
    holds = all(check.holds for check in report.checks)
    times = _times(model, inputs, arguments) if holds and report.swapped else {}
    if arguments.json is not None:
        found = {"model": arguments.model, "inputs": [_described(x) for x in inputs], "machine": machine()}
        found |= {"holds": holds, **asdict(report), "times": {k: asdict(v) for k, v in times.items()}}
        write_json(arguments.json, json.dumps(found, indent=2))
    if arguments.json is None or str(arguments.json) != "-":
        print(f"{arguments.model}, {', '.join(map(_described, inputs))}\n{machine()}\n")
        print("\n".join(_table(report, times)))
        print(f"\n{_verdict(holds, report)}")
    return 0 if holds and report.swapped else 1


def _inputs(arguments: argparse.Namespace) -> Inputs:
    torch.manual_seed(0)
    made = [size.make() for size in arguments.input]
    dtype = _DTYPES.get(arguments.dtype)
    return tuple(x.to(dtype) if dtype is not None and x.is_floating_point() else x for x in made)


def _described(x: Tensor) -> str:
    return f"{'x'.join(map(str, x.shape))} {short_name(x.dtype)}"


def _check_inputs(model: nn.Module, inputs: Inputs) -> None:
    """Raises: UsageError if the model does not run on the inputs."""
    try:
        with torch.no_grad():
            copy.deepcopy(model).eval()(*inputs)
    except Exception as error:
        sizes = ", ".join(map(_described, inputs))
        raise UsageError(f"the model does not run on {sizes}: {type(error).__name__}: {error}") from error


def _times(model: nn.Module, inputs: Inputs, arguments: argparse.Namespace) -> dict[str, Timing]:
    """By the names of the checks."""
    import opswap
    from opswap.swap.rules import MENDS

    layout = "channels_last" if arguments.channels_last else "contiguous"
    stock, swapped = opswap.unswap(copy.deepcopy(model)), copy.deepcopy(model)
    last = torch.channels_last if arguments.channels_last else None
    if not opswap.report(model).swapped:
        opswap.swap(swapped, exact=arguments.exact, example_inputs=inputs, memory_format=last)
    elif last is not None:
        swapped.to(memory_format=last)
    forms = {"contiguous": (stock, inputs), "swapped": (swapped, _laid_out(inputs, arguments.channels_last))}
    if arguments.channels_last:
        held = opswap.swap(copy.deepcopy(stock), rules=MENDS).to(memory_format=last)
        forms["channels_last"] = held, forms["swapped"][1]
    found = {}
    for mode, make in (("train", _training), ("inference", _inference)):
        functions = _running({name: make(*form) for name, form in forms.items()})
        if "swapped" in functions and len(functions) > 1:
            found[f"{mode}, {layout}"] = _timed(functions, arguments.seconds)
    return found


def _laid_out(inputs: Inputs, channels_last: bool) -> Inputs:
    return tuple(map(to_channels_last, inputs)) if channels_last else inputs


def _running(functions: Mapping[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Those that run: a stock model may refuse channels_last, or have nothing to train."""
    running = {}
    for name, function in functions.items():
        try:
            function()
        except (RuntimeError, UsageError):
            continue
        running[name] = function
    return running


def _timed(functions: Mapping[str, Callable[[], Any]], seconds: float) -> Timing:
    times = time_in_turn(functions, seconds, _ROUNDS)
    spreads = {name: Spread.of(samples) for name, samples in times.items()}
    best = min((name for name in spreads if name != "swapped"), key=lambda name: spreads[name].median)
    ratio = ratio_spread(times[best], times["swapped"])
    return Timing(best, spreads[best], spreads["swapped"], ratio)


def _training(model: nn.Module, inputs: Inputs) -> Callable[[], None]:
    model = copy.deepcopy(model)
    model.train()
    step = factory_step(model, inputs, backward=True)

    def run() -> None:
        model.zero_grad()
        step()

    return run


def _inference(model: nn.Module, inputs: Inputs) -> Callable[[], None]:
    model = copy.deepcopy(model)
    model.eval()
    return factory_step(model, inputs, backward=False)


def _table(report: Any, times: Mapping[str, Timing]) -> list[str]:
    rows = []
    places = collections.Counter((site.rule, site.exact) for site in report.swapped)
    for (rule, exact), count in places.items():
        equal = "bit-equal" if exact else "equal up to rounding"
        rows.append((f"swapped: {rule}", f"{count} place{'s' * (count != 1)}, {equal}", *[""] * 4))
    for check in report.checks:
        rows.append((check.name, _result(check), *_cells(times.get(check.name))))
    head = ("", "result", "stock, ms", "swapped, ms", "faster", "quartiles")
    return table(head, rows, right=(2, 3, 4, 5))


def _result(check: Any) -> str:
    text = check.detail
    if check.error is not None:
        tensor = text.removesuffix(" has the largest difference")
        text = f"error {check.error:.1e}, of stock {check.bound:.1e} ({tensor})"
    return textwrap.shorten(text if check.holds else f"FAILS: {text}", _RESULT_WIDTH, placeholder=" ...")


def _cells(timing: Timing | None) -> tuple[str, ...]:
    if timing is None:
        return ("", "", "", "")
    stock = milliseconds(timing.stock_ms.median)
    if timing.best_stock != "contiguous":
        stock += f" ({timing.best_stock})"
    ratio = timing.times_faster
    quartiles = f"{ratio.low:.2f}-{ratio.high:.2f}"
    return stock, milliseconds(timing.swapped_ms.median), times_faster(ratio.median), quartiles


def _verdict(holds: bool, report: Any) -> str:
    if not holds:
        return "DOES NOT HOLD: the swapped model computes something else"
    if not report.swapped:
        return "nothing was swapped: `python3 -m opswap scan` names the reasons"
    bound = "errors are relative to float64; those of the swapped model may be 4 times those of stock"
    return f"holds: {bound}" if any(c.error is not None for c in report.checks) else "holds: bit-equal"
