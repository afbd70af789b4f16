# SPDX-License-Identifier: MIT
"""optimize: what a training script on a CPU wants, in one call."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from opswap._table import short_name
from opswap._torch import tree_leaves, tree_map
from opswap.memory import denormal_parameters, reuse_freed
from opswap.memory import flush_denormals as set_flushing
from opswap.memory.switches import flush_state_kept, reuse_kept

from .api import select_rules, swap
from .capture.dry_run import DryRuns
from .capture.quiet import contiguous_inputs, copied_inputs, generators_kept, in_channels_last, quiet_copy
from .planning.contiguity import Contiguity
from .planning.gains import losing_formats
from .planning.planner import make_plan
from .report import Part
from .rewriting.input_format import check_memory_format, install_input_format, keep_optimizer
from .rules import MENDS
from .runtime.plan_of import keep_plan, plan_of
from .step_time import in_turn, step

__all__ = ["optimize"]

_Auto = Literal["auto"]
_LAST = torch.channels_last
_WINS = 1.02  # what is faster by less is noise
_STOCK, _REUSED, _FLUSHED, _SWAPPED, _FORMATTED = "stock", "reused", "flushed", "swapped", "formatted"


def optimize(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    exact: bool = False,
    dtype: torch.dtype | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    memory_format: torch.memory_format | _Auto | None = "auto",
    reuse_memory: bool = True,
    flush_denormals: bool | _Auto = "auto",
    inplace: bool = True,
) -> Any:
    """Prepare a model for training or inference on a CPU: `swap`, memory format, reused memory, flushed denormals.

    `print(opswap.report(model))` shows what was done, and, with example_inputs, what each part gains. Undone by
    `opswap.unswap(model)`, `opswap.memory.reuse_freed(False)` and `opswap.memory.flush_denormals(False)`; a dtype
    stays. The last two are switches of the process and of the calling thread, for all models.

    Args:
        model: any module.
        optimizer: of the model's parameters. The parameters stay the same objects; the optimizer's state gets their
            dtype and memory format, and is converted back with them by `unswap`.
        exact: use only replacements that are equal bit for bit. The choice of memory format, and flushing, may still
            round differently: leave them out by memory_format=None and flush_denormals=False.
        dtype: cast parameters and buffers, as model.to(dtype), and the optimizer's state, except for counts of
            steps and other state without dimensions. Inputs must have this dtype, too. No copy in float32 is kept:
            small updates of 16-bit parameters are lost, for which torch.autocast without a dtype here is better.
        example_inputs: a tuple of positional inputs. A step on copies is measured: forward and backward if the model
            is in train() mode, else inference. Also passed to `swap`. The random generators of the process are put
            back afterwards: numbers that other threads draw from them meanwhile are drawn again.
        memory_format: "auto" is torch.channels_last if it is faster: measured with example_inputs, the swapped
            model as it is against the same in channels_last, in turn. Without inputs: if the model has 2-D
            convolutions on the CPU, all its code that may need contiguous tensors could be analysed and needs none,
            and no replacement in use was measured slower in channels_last. Never with torch.optim.LBFGS, which views
            gradients as vectors, nor if a lazy module is uninitialised. None leaves the format as it is.
        reuse_memory: `opswap.memory.reuse_freed(True)`, if the C library has it.
        flush_denormals: True calls `opswap.memory.flush_denormals(True)`; "auto" does if a parameter holds denormal
            numbers.
        inplace: False leaves model and optimizer as they are, and returns optimized copies, as copy.deepcopy of both
            makes them.
    Returns: model, or (model, optimizer) if an optimizer is given.
    Raises: TypeError for an argument of a wrong type; ValueError if dtype is not floating point, if no parameter of
        the optimizer belongs to the model, or if the model does not run on example_inputs. The model is then as it
        was before.
    """
    _check(model, optimizer, dtype, example_inputs, memory_format)
    for name, value in (("reuse_memory", reuse_memory), ("exact", exact), ("inplace", inplace)):
        _check_bool(name, value)
    if flush_denormals != "auto":
        _check_bool("flush_denormals", flush_denormals)
    if not inplace:
        model, optimizer = copy.deepcopy((model, optimizer))
    work = _Work(model, optimizer, exact, dtype, example_inputs, memory_format, reuse_memory, flush_denormals)
    chosen = work.decide()
    if dtype is not None:
        model.to(dtype)
    swap(model, exact=exact, example_inputs=work.inputs, memory_format=chosen)
    if optimizer is not None:
        _follow(optimizer, model, dtype)
        keep_optimizer(model, optimizer)
    work.switch()
    planned = plan_of(model)
    report = replace(planned.report, parts=work.parts(chosen is not None))
    keep_plan(model, replace(planned, report=report))
    return model if optimizer is None else (model, optimizer)


class _Work:
    """One call of optimize: what to do, and what each part brings."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        exact: bool,
        dtype: torch.dtype | None,
        inputs: tuple[Any, ...] | None,
        memory_format: torch.memory_format | _Auto | None,
        reuse_memory: bool,
        flush: bool | _Auto,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.exact, self.dtype, self.inputs = exact, dtype, inputs
        self.memory_format, self.reuse = memory_format, reuse_memory
        self.times: dict[str, float] = {}
        self.denormals = sum(denormal_parameters(model).values())
        self.flush = self.denormals > 0 if flush == "auto" else flush
        self.problem = self.reason = self.reused = self.flushed = ""
        if dtype is not None and inputs is not None:
            self.inputs = tree_map(lambda t: t.to(dtype) if _is_float(t) else t, inputs)

    def decide(self) -> torch.memory_format | None:
        """The memory format to swap with. The model is not changed."""
        if self.inputs is not None:
            with _switches_kept(), generators_kept(), DryRuns(self.model).undone():
                self._measure()
        chosen, self.reason = self._choose_format()
        return chosen

    def switch(self) -> None:
        """Set the switches of the process and the thread; what this machine lacks is left out."""
        self.reused = "freed memory is kept" if self.reuse else "reuse_memory=False"
        if self.reuse and not _reuse():
            self.reuse, self.reused = False, "the C library has no mallopt"
        count = self.denormals
        self.flushed = (
            f"{count} numbers of the parameters are denormal" if count else "no parameter is denormal"
        )
        if self.flush:
            try:
                set_flushing(True)
            except RuntimeError as error:
                self.flush, self.flushed = False, str(error)

    def parts(self, formatted: bool) -> list[Part]:
        """What was done, for the report."""
        parts = [
            self._part("memory", self.reuse, self.reused, _STOCK, _REUSED),
            self._part("denormals", self.flush, self.flushed, _REUSED, _FLUSHED),
            self._part("swap", True, "the replacements above", _FLUSHED, _SWAPPED),
            self._part("memory format", formatted, self.reason, _SWAPPED, _FORMATTED),
        ]
        cast = Part("dtype", True, f"cast to {self.dtype}, before all measurements")
        return parts if self.dtype is None else [cast, *parts]

    def _part(self, name: str, done: bool, detail: str, before: str, after: str) -> Part:
        measured = done or after == _FORMATTED  # a format that lost was measured too
        times = (self.times.get(before), self.times.get(after)) if measured else (None, None)
        return Part(name, done, detail, *times)

    def _format(self) -> torch.memory_format | None:
        """The format to compare with the model's own."""
        if self.memory_format != "auto":
            return self.memory_format
        images = any(isinstance(m, nn.Conv2d) for m in self.model.modules())
        return _LAST if images and not _uninitialised(self.model) else None

    def _measure(self) -> None:
        """Time a step as it comes, then with one part after the other."""
        stock, swapped = (quiet_copy(self.model, stock=True) for _ in range(2))
        if self.dtype is not None:
            stock, swapped = stock.to(self.dtype), swapped.to(self.dtype)
        inputs = self.inputs
        if any(map(in_channels_last, (*stock.parameters(), *tree_leaves(inputs)))):
            swap(stock, rules=MENDS)
        dense = contiguous_inputs(inputs)
        if dense is not None and not _runs(stock, inputs):
            inputs = dense  # those that the original model takes
        swap(swapped, exact=self.exact, example_inputs=inputs)
        self.times = in_turn({_STOCK: _Step(stock, inputs)})
        if self.reuse:
            _reuse()
        forms = {_REUSED: (stock, False), _FLUSHED: (stock, self.flush), _SWAPPED: (swapped, self.flush)}
        memory_format = self._format()
        if memory_format is not None:
            formatted = quiet_copy(swapped, stock=False)
            install_input_format(formatted, memory_format)
            try:
                step(formatted, copied_inputs(inputs))
                forms[_FORMATTED] = (formatted, self.flush)
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}".splitlines()[0]
        if not self.flush:
            del forms[_FLUSHED]
        steps = {name: _Step(form, inputs, flush) for name, (form, flush) in forms.items()}
        self.times |= in_turn(steps)
        self.times.setdefault(_FLUSHED, self.times[_REUSED])

    def _choose_format(self) -> tuple[torch.memory_format | None, str]:
        """The memory format, and why it is used or not."""
        if self.memory_format is None:
            return None, "memory_format=None"
        if self.memory_format != "auto":
            return self.memory_format, f"{short_name(self.memory_format)}, as given"
        if isinstance(self.optimizer, torch.optim.LBFGS):
            return None, "torch.optim.LBFGS needs contiguous gradients"
        if _uninitialised(self.model):
            return None, "uninitialised parameters"
        if self._format() is None:
            return None, "no 2-D convolutions"
        if self.problem:
            return None, f"the model does not run in channels_last: {self.problem}"
        if self.inputs is None:
            return self._format_by_rule()
        gain = self.times[_SWAPPED] / self.times[_FORMATTED]
        if gain < _WINS:
            return None, f"measured: channels_last is {gain:.2f}x as fast"
        return _LAST, "channels_last, measured"

    def _format_by_rule(self) -> tuple[torch.memory_format | None, str]:
        if any(p.device.type != "cpu" for p in self.model.parameters()):
            return None, "the model is not on the CPU"
        plan = make_plan(self.model, select_rules(None, self.exact), None)
        if plan.contiguity is not Contiguity.NONE:
            return None, "code of the model may need contiguous tensors; pass example_inputs"
        slower = sorted({s.rule for s in plan.report.swapped if "channels_last" in losing_formats(s.rule)})
        if slower:
            return None, f"slower in channels_last: {', '.join(slower)}"
        return _LAST, "channels_last, by rule: pass example_inputs to measure"


def _runs(model: nn.Module, inputs: tuple[Any, ...]) -> bool:
    try:
        step(model, copied_inputs(inputs))
    except Exception:
        return False
    return True


class _Step:
    """A step on copies of the inputs, which a forward may write to; `in_turn` makes them anew outside of the time.

    flush: denormal numbers flushed or not, if this processor has a switch for it; None leaves it as it is.
    """

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...], flush: bool | None = None) -> None:
        self._model, self._inputs, self._flush = model, inputs, flush
        self._own: tuple[Any, ...] = ()

    def prepare(self) -> None:
        """Make the copies."""
        self._own = ()  # frees the last ones first
        self._own = copied_inputs(self._inputs)

    def __call__(self) -> None:
        if self._flush is not None:
            with suppress(RuntimeError):
                set_flushing(self._flush)
        step(self._model, self._own)


@contextmanager
def _switches_kept() -> Iterator[None]:
    with reuse_kept(), flush_state_kept():
        yield


def _reuse() -> bool:
    """Keep freed memory; False if the C library cannot."""
    try:
        reuse_freed(True)
    except RuntimeError:
        return False
    return True


def _follow(optimizer: Optimizer, model: nn.Module, dtype: torch.dtype | None) -> None:
    """Give the optimizer's state of each parameter of the model its dtype and strides.

    Args: dtype: that the model was cast to, if it was; then state of other shapes is cast too: factors, histories.
    """
    for p in model.parameters():
        state = optimizer.state.get(p, {})
        for key, value in state.items():
            if _is_float(value) and value.shape == p.shape:
                changes = value.dtype != p.dtype or value.stride() != p.stride()
                if changes and (key != "step" or p.dim()):
                    state[key] = torch.empty_like(p, requires_grad=False).copy_(value)
            elif dtype is not None and p.dtype == dtype and key != "step":
                state[key] = tree_map(lambda t: t.to(dtype) if _is_float(t) and t.dim() else t, value)


def _uninitialised(model: nn.Module) -> bool:
    """Whether a lazy module has yet to learn its sizes: such tensors have no memory format."""
    return any(map(is_lazy, itertools.chain(model.parameters(), model.buffers())))


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _check(model: Any, optimizer: Any, dtype: Any, example_inputs: Any, memory_format: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"optimize: expected a torch.nn.Module, got {type(model).__name__}")
    if optimizer is not None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optimize: optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
            )
        own = {id(p) for p in model.parameters()}
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise ValueError("optimize: no parameter of the optimizer belongs to the model")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"optimize: dtype must be a torch.dtype, got {dtype!r}")
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"optimize: dtype must be floating point, got {dtype}")
    if example_inputs is not None and not isinstance(example_inputs, tuple):
        raise TypeError(f"optimize: example_inputs must be a tuple, got {type(example_inputs).__name__}")
    if memory_format is not None and memory_format != "auto":
        check_memory_format(memory_format)


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"optimize: {name} must be a bool, got {value!r}")
