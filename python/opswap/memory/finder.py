# SPDX-License-Identifier: MIT
"""`denormals`: watch which weights and results of operators hold denormal numbers, and what computing on them costs."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import Parameter, is_lazy

from opswap._torch import OpOverload, no_dispatch
from opswap.finding import Finder, Locator, Origin
from opswap.finding.mode import FinderMode
from opswap.finding.operators import SKIPPED, is_view, op_name, tensors_in
from opswap.finding.script import factory_step
from opswap.finding.storages import Storages, storage_key

from .counting import can_count, count_denormals
from .report import DenormalsReport, Tally
from .timing import can_run_again, time_operator, time_step

__all__ = ["Denormals", "Watch", "denormals"]

_UNNAMED = "parameter"
_STATUS = {"forward": "activation", "recompute": "activation", "backward": "gradient", "optimizer": "state"}


class Denormals(DenormalsReport):
    """The report of `denormals`, and the context in which steps are watched."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __enter__(self) -> Denormals:
        return self._watch.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watch.__exit__(kind, error, traceback)


def denormals(
    model: nn.Module | None = None,
    *,
    inputs: Sequence[Any] | None = None,
    backward: bool = False,
    allow: Iterable[str] = (),
) -> Denormals:
    """Find denormal numbers in weights, activations, gradients and optimizer states, and what flushing would gain.

        print(opswap.memory.denormals(model))                           # weights
        print(opswap.memory.denormals(model, inputs=(images,), backward=True))      # and one step, timed
        with opswap.memory.denormals(model) as report:                  # any steps of yours
            model(images).sum().backward()
        print(report)

    Args:
        model: its parameters and buffers are counted at once, and modules are named by their path in it. None is for
            use as a context alone: modules are named by the class of the outermost one that is called.
        inputs: positional inputs of the model: one step is watched, then timed as a whole without and with flushing.
        backward: that step includes the backward of the sum of the outputs' means.
        allow: findings that are known: names of operators or parameters, module paths, or lines ("net.py:31"), with
            wildcards. They are counted, but are not findings.
    Returns: a report, which is a context manager too: it watches what this thread runs within.
    Raises: TypeError for a model that is not a module, an allow-list that is not of strings, or inputs without a
        model; RuntimeError if entered twice at once; whatever the model raises on its inputs.

    Denormals are counted by their bits. An operator that computes on some is run again, on up to two of its calls,
    without and with flushing, and charged to the weight or the operator that the numbers come from. Results, random
    numbers and gradients stay as they are, and afterwards every thread flushes, or does not, as it did before, also
    after an exception. Operators that draw random numbers are not run again. Nothing is counted on other devices than
    the CPU, which alone slows down.
    """
    if inputs is not None and model is None:
        raise TypeError("denormals: inputs need a model")
    watch = Watch(model, allow)
    if inputs is not None and model is not None:
        step = factory_step(model, tuple(inputs), backward=backward)
        watch.time_at_the_end(step, tuple(inputs))
        with watch:
            step()
    return watch.report


class Watch(Finder[Denormals]):
    """What `denormals` does. It lives as long as the report, which is a context too, and keeps no model alive.

    Args: step: timed when the context ends without an error, and then forgotten.
    """

    called = "denormals"

    def __init__(
        self, model: nn.Module | None, allow: Iterable[str], step: Callable[[], None] | None = None
    ) -> None:
        super().__init__(model, allow)
        self._model = None
        self._known_model = None if model is None else weakref.ref(model)
        self._step: tuple[Callable[[], None], tuple[Any, ...]] | None = None if step is None else (step, ())
        self.report = Denormals(self)
        self._weights = _Weights(self.report, self._is_allowed)
        self._operators: dict[tuple[str, Origin], Tally] = {}
        if model is not None:
            self._weights.add_all(model)

    def time_at_the_end(self, step: Callable[[], None], inputs: tuple[Any, ...]) -> None:
        """Time this step, which reads these inputs, when the context ends."""
        self._step = step, inputs

    def _living_model(self) -> nn.Module | None:
        return None if self._known_model is None else self._known_model()

    def _start(self, stack: contextlib.ExitStack) -> Denormals:
        locator = Locator(self._living_model())
        self._weights.locator = locator
        stack.enter_context(self.report.hidden)
        stack.callback(self._weights.refresh)
        watcher = _Watcher(locator, self.report, self._weights, self._operators, self._is_allowed)
        stack.enter_context(_Mode(watcher, self._after_operator))
        return self.report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        timed, self._step = self._step, None
        model = self._living_model()
        if kind is None and timed is not None and model is not None:
            try:
                self.report.step = time_step(timed[0], model, timed[1])
            except Exception as failure:
                self.report.remark(f"a step could not be timed: it raised {type(failure).__name__}")


@dataclass(slots=True)
class _Weight:
    """One parameter or buffer, and the version that was counted. named: its path in a model is known."""

    tensor: weakref.ref[Tensor]
    version: int
    tally: Tally
    named: bool


class _Weights:
    """Parameters and buffers, counted when they are first seen and again whenever they were written."""

    def __init__(self, report: DenormalsReport, is_allowed: Callable[[str, Origin], bool]) -> None:
        self.locator: Locator | None = None
        self._report, self._is_allowed = report, is_allowed
        self._known: Storages[list[_Weight]] = Storages()

    def add_all(self, model: nn.Module) -> None:
        """Count all tensors of a model."""
        for path, module in model.named_modules():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and not is_lazy(tensor):
                    self._add(tensor, path, name)

    def source(self, tensor: Tensor) -> Tally | None:
        """The tally of the parameter or buffer that a tensor is, or is a view of, if it holds denormals."""
        found = self._known.get(storage_key(tensor))
        if found is None and isinstance(tensor, Parameter):
            self._add(tensor, *self._place_of(tensor))
            found = self._known.get(storage_key(tensor))
        if found is None:
            return None
        for weight in found:
            self._refresh(weight)
        largest = max((w.tally for w in found), key=lambda tally: tally.denormals)
        return largest if largest.denormals else None

    def refresh(self) -> None:
        """Count again what was written since it was counted."""
        for found in self._known.marks():
            for weight in found:
                self._refresh(weight)

    def _place_of(self, parameter: Tensor) -> tuple[str, str]:
        """The module of a parameter and its name there, which are known once the module was called."""
        path = "" if self.locator is None else self.locator.parameter_name(parameter)
        module, _, name = path.rpartition(".")
        return module, name or _UNNAMED

    def _refresh(self, weight: _Weight) -> None:
        tensor = weight.tensor()
        if tensor is None:
            return
        if not weight.named:
            module, name = self._place_of(tensor)
            if name != _UNNAMED:
                weight.named, weight.tally.op = True, name
                weight.tally.origin = Origin(module, "", 0, "", "")
                weight.tally.allowed = self._is_allowed(name, weight.tally.origin)
        if weight.version != _version(tensor):
            self._count(tensor, weight)

    def _add(self, tensor: Tensor, path: str, name: str) -> None:
        if not can_count(tensor) or tensor.device.type != "cpu":
            return
        origin = Origin(path, "", 0, "", "")
        tally = self._report.add(Tally("weight", name, origin, self._is_allowed(name, origin)))
        weight = _Weight(weakref.ref(tensor), -1, tally, name != _UNNAMED)
        self._count(tensor, weight)
        known = self._known.get(storage_key(tensor))
        if known is None:
            self._known.set(tensor, [weight])
        else:
            known.append(weight)

    def _count(self, tensor: Tensor, weight: _Weight) -> None:
        tally = weight.tally
        tally.denormals = max(tally.denormals, count_denormals(tensor))
        tally.elements, tally.bytes = tensor.numel(), tensor.nbytes
        tally.shapes = {tuple(tensor.shape): None}
        weight.version = _version(tensor)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


class _Watcher:
    """Counts the results of operators and measures those that compute on denormals."""

    def __init__(
        self,
        locator: Locator,
        report: DenormalsReport,
        weights: _Weights,
        operators: dict[tuple[str, Origin], Tally],
        is_allowed: Callable[[str, Origin], bool],
    ) -> None:
        self.locator, self.report = locator, report
        self._weights, self._operators, self._is_allowed = weights, operators, is_allowed
        self._sources: Storages[Tally] = Storages()

    def seen(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, frame: FrameType
    ) -> None:
        """One call that has run."""
        source = self._source_of(tensors_in((*args, *kwargs.values())))
        results = [t for t in tensors_in(out) if can_count(t) and t.device.type == "cpu"]
        if func._schema.is_mutable and not results:  # such as the foreach operators of optimizers
            results = [t for t in tensors_in(args[:1]) if can_count(t) and t.device.type == "cpu"]
        counts = [count_denormals(t) for t in results]
        for tensor, count in zip(results, counts, strict=True):
            if not count:
                self._sources.drop(storage_key(tensor))
        if source is None and not any(counts):
            return
        origin = self.locator.locate(frame)
        if source is None or any(counts):
            source = self._count(name, origin, source, results, counts)
        elif source.status == "weight":
            source.count += 1
        charge = source.charge(name, origin)
        if charge.wants_time() and can_run_again(func):
            found = time_operator(func, args, kwargs)
            if found is None:
                self.report.remark(
                    "the gain could not be measured: this processor has no switch, or not for all threads"
                )
            else:
                charge.add_time(*found)

    def viewed(self, args: tuple[Any, ...]) -> None:
        """A view is made, perhaps of a parameter that was not seen before."""
        for tensor in args:
            if isinstance(tensor, Parameter):
                self._weights.source(tensor)

    def _source_of(self, operands: list[Tensor]) -> Tally | None:
        """Where the denormals among the operands come from: a weight if one holds some."""
        found = None
        for tensor in operands:
            weight = self._weights.source(tensor)
            if weight is not None:
                return weight
            found = found or self._sources.get(storage_key(tensor))
        return found

    def _count(
        self, name: str, origin: Origin, source: Tally | None, results: list[Tensor], counts: list[int]
    ) -> Tally:
        """Count results that hold denormals. Returns: their source."""
        status = _STATUS[origin.phase] if source is None else "carried"
        key = (f"{status} {name}", origin)
        tally = self._operators.get(key)
        if tally is None:
            tally = self._operators[key] = self.report.add(
                Tally(status, name, origin, self._is_allowed(name, origin))
            )
        tally.count += 1
        source = source or tally
        if source.status == "weight":
            source.count += 1
        for tensor, count in zip(results, counts, strict=True):
            if count:
                tally.add(tuple(tensor.shape), count, tensor.numel(), tensor.nbytes)
                self._sources.set(tensor, source)
        return source


class _Mode(FinderMode):
    """Calls every operator as it is, and shows it to the watcher afterwards."""

    def __init__(self, watcher: _Watcher, after_operator: Callable[[bool], None] | None) -> None:
        super().__init__(after_operator)
        self._watcher = watcher
        self._names: dict[int, tuple[str | None, Any]] = {}

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if threading.get_ident() == self._thread:
            frame = sys._getframe(2)
            locator = self._watcher.locator
            if locator.new_node():
                origin = locator.locate(frame)
                locator.remember(origin)
                self._watcher.report.hidden.look_around(origin, frame)
            name = (self._names.get(id(func)) or self._name(func))[0]
            with no_dispatch():
                if name is None:
                    self._watcher.viewed(args)
                else:
                    self._watcher.seen(name, func, args, kwargs, out, frame)
        return out

    def _name(self, func: Any) -> tuple[str | None, Any]:
        """The operator's name, None for views, for tensors without data, and for anything that is not an operator."""
        name = op_name(func) if isinstance(func, OpOverload) else None
        if name in SKIPPED or (name is not None and is_view(func)):
            name = None
        self._names[id(func)] = name, func
        return self._names[id(func)]
