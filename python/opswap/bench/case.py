# SPDX-License-Identifier: MIT
"""What a benchmark case is, and how it becomes rows."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import opswap
from opswap._machine import cpu_model
from opswap._timing import Spread, ratio_spread, time_in_turn
from opswap.memory.switches import reuse_kept

from .cold_caches import ColdCaches
from .shares import shares

__all__ = ["LAYOUTS", "Case", "measure", "shape_text"]

LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}

Function = Callable[[], Any]

# At least: of the comparison that a row reports, and of the one that finds the fastest stock form.
_ROUNDS, _FIRST_ROUNDS = 9, 5


def shape_text(shape: Iterable[int]) -> str:
    """A shape in a row: "16,24,56,56"."""
    return ",".join(map(str, shape))


@dataclass(frozen=True)
class Case:
    """One comparison of opswap with what a user would call instead.

    build: makes the inputs and returns the functions to time, by name; each returns a tensor or several. One of
        opswap's may have a `plan`, which its row shows: the way in which it runs.
    ours: the functions that run opswap, by name, with the memory layout each is for; one row for each.
    payload: bytes that an operator reads, and writes again; 0 for a whole model, which has no roof.
    tolerance: relative difference allowed between the results; 0 requires equal bits and strides.
    keeps: whether the rows show how many bytes a call keeps for its backward.
    profile: also say where the time of opswap's functions goes, by kinds of operators.
    kernels: opswap's own kernels must run; False if it only puts torch's operators together differently.
    costs: opswap's functions do what the stock form does and watch it: a row's ratio is opswap's time over stock's.
    copy_in_turn: the copy that is the roof runs in turn with opswap's function alone, into the beginning of so many
        new bytes, as many as opswap's result has: each finds the caches and the allocator as the other one left them.
        0: it runs by itself afterwards between two buffers.
    """

    case: str
    shape: str
    dtype: str
    direction: str
    build: Callable[[], Mapping[str, Function]]
    ours: Mapping[str, str]
    payload: int = 0
    tolerance: float = 0.0
    keeps: bool = False
    profile: bool = False
    kernels: bool = True
    costs: bool = False
    copy_in_turn: int = 0

    @property
    def label(self) -> str:
        layouts = "/".join(self.ours.values())
        return f"{self.case} {self.shape} {self.dtype} {layouts} {self.direction}"


def measure(case: Case, threads: int, allocation: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Check the results, time everything in turn, and yield one row for each function of opswap.

    If there are several stock forms, the fastest of them is timed once more, in turn with that function alone: forms
    that share code keep it in the caches for each other, which a training step would not do.

    Raises: RuntimeError if results differ, or if opswap ran as plain torch code.
    """
    with reuse_kept():
        yield from _measure(case, threads, allocation, seconds)


def _measure(case: Case, threads: int, allocation: str, seconds: float) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    functions, refused = _usable(case, case.build())
    _check_results(case, functions)
    kept = {name: _kept_bytes(function) for name, function in functions.items()} if case.keeps else None
    opswap.reset_stats()
    timed = ColdCaches if allocation == "cold" else _as_it_is
    functions = {name: timed(function) for name, function in functions.items()}
    only_pair = len(functions) == 2
    times = time_in_turn(functions, seconds, _ROUNDS if only_pair else _FIRST_ROUNDS)
    by_itself = bool(case.payload) and not case.copy_in_turn
    copy_times = _time_copy(case.payload, seconds / len(functions), timed) if by_itself else None
    stock = {name: Spread.of(samples) for name, samples in times.items() if name not in case.ours}
    best = min(stock, key=lambda name: stock[name].median)
    for name, layout in case.ours.items():
        if name in refused:
            continue
        pair = {form: functions[form] for form in (best, name)}
        final = times if only_pair else time_in_turn(pair, seconds, _ROUNDS)
        _refuse_fallback(case)
        row: dict[str, Any] = {"case": case.case, "shape": case.shape, "dtype": case.dtype, "layout": layout}
        row |= {"direction": case.direction, "threads": threads, "allocation": allocation}
        row |= {"kept_bytes": kept}
        row |= {"form": name, "refused": refused}
        row |= {"plan": getattr(functions[name], "plan", "")}
        row |= {"shares": shares(functions[name]) if case.profile else {}}
        row |= {"stock_shares": shares(functions[best]) if case.profile else {}}
        ours = Spread.of(final[name])
        row |= _comparison(ours, stock | {best: Spread.of(final[best])}, best)
        pair_of_times = (final[name], final[best]) if case.costs else (final[best], final[name])
        ratio = ratio_spread(*pair_of_times)
        row |= {"ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high, "costs": case.costs}
        if case.payload and case.copy_in_turn:
            roof = _roof(case, *_copy_in_turn(case, functions[name], seconds / len(functions), timed))
        else:
            roof = _roof(case, ours, copy_times)
        yield row | roof | _machine()


def _usable(case: Case, functions: Mapping[str, Function]) -> tuple[dict[str, Function], dict[str, str]]:
    """The functions that run, and why stock forms among the others do not."""
    usable: dict[str, Function] = {}
    refused: dict[str, str] = {}
    for name, function in functions.items():
        try:
            function()
        except Exception as error:
            if name in case.ours and "compiled" not in name:
                raise
            refused[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        else:
            usable[name] = function
    return usable, refused


def _comparison(ours: Spread, stock: Mapping[str, Spread], best: str) -> dict[str, Any]:
    return {
        "stock": {name: asdict(spread) for name, spread in stock.items()},
        "best_stock": best,
        "stock_ms": stock[best].median,
        "opswap": asdict(ours),
        "opswap_ms": ours.median,
    }


def _roof(case: Case, ours: Spread, copy_time: Spread | None) -> dict[str, float | None]:
    """GB/s read and written by opswap, and its share of what torch's copy_ of as many bytes reaches.

    More than the whole is possible: the copy runs right after, and machines change their speed.
    """
    if copy_time is None:
        return {"gbps": None, "copy_gbps": None, "roof_share": None}
    moved = 2 * case.payload / 1e6
    return {
        "gbps": moved / ours.median,
        "copy_gbps": moved / copy_time.median,
        "roof_share": copy_time.median / ours.median,
    }


def _kept_bytes(function: Function) -> int:
    """Of all memory that autograd saves during a call, the input's own included."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(storages.values())


def _machine() -> dict[str, str]:
    return {
        "cpu": cpu_model(),
        "isa": opswap.isa.current(),
        "torch": torch.__version__,
        "opswap_version": opswap.__version__,
        "date": datetime.date.today().isoformat(),
    }


def _as_it_is(function: Function) -> Function:
    return function


def _time_copy(payload: int, seconds: float, timed: Callable[[Function], Function]) -> Spread:
    """Of one copy between two buffers that are in memory, and if they fit and are not cold in the caches."""
    source, target = torch.ones(payload, dtype=torch.uint8), torch.zeros(payload, dtype=torch.uint8)
    copy = timed(lambda: target.copy_(source))
    return Spread.of(time_in_turn({"copy": copy}, seconds, _FIRST_ROUNDS)["copy"])


def _copy_in_turn(
    case: Case, function: Function, seconds: float, timed: Callable[[Function], Function]
) -> tuple[Spread, Spread]:
    """Of the function and of a copy of `payload` bytes into new memory, timed in turn."""
    source = torch.ones(case.payload, dtype=torch.uint8)

    def copy() -> Tensor:
        return torch.empty(case.copy_in_turn, dtype=torch.uint8)[: case.payload].copy_(source)

    times = time_in_turn({"ours": function, "copy": timed(copy)}, seconds, _ROUNDS)
    return Spread.of(times["ours"]), Spread.of(times["copy"])


def _check_results(case: Case, functions: Mapping[str, Function]) -> None:
    opswap.reset_stats()
    results = {name: _tensors(function()) for name, function in functions.items()}
    _refuse_fallback(case)
    first, expected = next(iter(results.items()))
    for name, actual in results.items():
        if not all(_same(a, b, case.tolerance) for a, b in zip(expected, actual, strict=True)):
            raise RuntimeError(f"{case.label}: the results of {name!r} and {first!r} differ")


def _tensors(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _same(expected: Tensor, actual: Tensor, tolerance: float) -> bool:
    if tolerance == 0.0:
        return _strides(expected) == _strides(actual) and torch.equal(expected, actual)
    scale = expected.abs().max().item()
    return expected.shape == actual.shape and (expected - actual).abs().max().item() <= tolerance * scale


def _strides(t: Tensor) -> list[int]:
    """Of the dimensions that have more than one element; the others may have any."""
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1]


def _refuse_fallback(case: Case) -> None:
    if not case.kernels:
        return
    counts = opswap.stats()
    if counts["reference"] or not counts["kernel"]:
        raise RuntimeError(f"{case.label}: opswap did not run its kernels alone: {counts}")
