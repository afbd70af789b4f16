# SPDX-License-Identifier: MIT
"""`detect`: watch every operator whose output size depends on data, and every input whose shape changes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from opswap.finding import Finder, Locator
from opswap.finding.mode import FinderMode
from opswap.finding.operators import tensors_in
from opswap.finding.source import is_user_file

from .report import InputShapes, ShapesReport, parents
from .rewrites import Observed

__all__ = ["detect"]

# Operators by what they are to a user; all before "item" have an output whose size depends on data.
_OPERATORS = {
    "aten::nonzero": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::_unique": "unique",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique",
    "aten::unique_dim_consecutive": "unique",
    "aten::repeat_interleave": "repeat_interleave",
    "aten::bincount": "bincount",
    "aten::index": "index",
    "aten::index_put": "index_put",
    "aten::index_put_": "index_put",
    "aten::_index_put_impl_": "index_put",
    "torchvision::nms": "torchvision.nms",
    "aten::_local_scalar_dense": "item",
    "aten::unbind": "loop",
}
_MASKED = ("index", "index_put")
_MASKS = (torch.bool, torch.uint8)
_ITERATES = Tensor.__iter__.__code__
# They read tensors for themselves: a loader's seeds and order, the text of a tensor, a comparison, checks of targets.
_READ_FOR_THEMSELVES = (
    os.path.join("torch", "utils", "data", ""),
    os.path.join("torch", "_tensor_str.py"),
    os.path.join("torch", "testing", ""),
    os.path.join("opswap", "shapes", "targets.py"),
    os.path.join("opswap", "shapes", "collate.py"),
)


class detect(Finder[ShapesReport]):
    """Watch what this thread runs within the context for sizes that depend on data.

        with opswap.shapes.detect(model) as report:
            model(images).sum().backward()
        print(report)

    Args:
        model: names modules by their path in it; without it by the class of the outermost module that is called.
        allow: findings that are known: names of operators, module paths or lines ("net.py:31"), with wildcards. They
            are counted, but are not findings.
    Returns: as a context manager, the `ShapesReport`, which can be read inside and after the context.
    Raises: TypeError for a model that is not a module, or an allow-list that is not of strings; RuntimeError if
        entered twice at once.

    Results stay as they are. Contexts nest, and end with whatever ends them. While one is in force, torch.compile
    runs the Python code that it would compile. Of a swapped model those modules have inputs in the report that are
    called: not those inside a block that opswap has fused.
    """

    called = "detect"

    def __init__(self, model: nn.Module | None = None, *, allow: Iterable[str] = ()) -> None:
        super().__init__(model, allow)

    def _start(self, stack: contextlib.ExitStack) -> ShapesReport:
        locator = Locator(self._model)
        report = ShapesReport(self._is_allowed)
        watcher = _Watcher(locator, report)
        stack.enter_context(report.hidden)
        stack.callback(register_module_forward_pre_hook(watcher.called).remove)
        stack.enter_context(_Lists(watcher))
        stack.enter_context(_Mode(watcher, self._after_operator))
        return report


class _Watcher:
    """Notes what the modes and the hook see, in its own thread."""

    def __init__(self, locator: Locator, report: ShapesReport) -> None:
        self.locator, self.report = locator, report
        self._thread = threading.get_ident()
        self._calls: Counter[str] = Counter()
        self._outer: dict[str, str] = {}  # of a module the outermost one around it, whose calls are its steps

    def note(self, op: str, size: int, moved: int, observed: Observed, frame: FrameType | None) -> None:
        """One call of an operator of the list."""
        if _is_of_a_library(frame):
            return
        origin = self.locator.locate(frame)
        self.report.hidden.look_around(origin, frame)
        self.report.tally(op, origin, observed).add(size, moved)

    def called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a module's forward: the shapes of its tensors."""
        if threading.get_ident() != self._thread:
            return
        frame = sys._getframe(1)
        name = self.locator.module_name(module, frame)
        outer = self._outer.get(name)
        if outer is None:
            outer = self._outer[name] = next(iter(parents(name, self._calls)), name)
        self._calls[name] += 1
        # A global hook gets no keyword arguments; they are those of the frame that calls it.
        keywords = frame.f_locals.get("kwargs")
        if len(args) == 1 and type(args[0]) is Tensor:
            found: dict[str, tuple[int, ...] | None] = {"0": tuple(args[0].shape)}
        else:
            found = dict(_shapes_in(args, ""))
        if keywords and isinstance(keywords, dict):
            found.update(_shapes_in(keywords, ""))
        if any(shape is not None for shape in found.values()):
            self.report.inputs.setdefault(name, InputShapes(type(module).__name__)).add(
                found, self._calls[outer]
            )

    called.only_looks = True  # what opswap.swap fused stays fused


def _shapes_in(values: Any, prefix: str) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """(name, shape) of arguments: "0", "mask", or "1.boxes" in a list or dict; a shape of None is of no tensor."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", tuple(value.shape)
        elif isinstance(value, (list, tuple, dict)):
            yield from _shapes_in(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", None


class _Lists:
    """Sees tolist(), which reads memory without an operator.

    While any thread is inside, `torch.Tensor.tolist` is a function that notifies the watchers of its thread. A
    TorchFunctionMode would see it too, but costs every call of a function of torch, and every attribute of a tensor,
    a call in Python.
    """

    _lock = threading.RLock()
    _inside: ClassVar[list[tuple[int, _Watcher]]] = []
    _original: ClassVar[Any] = Tensor.tolist

    def __init__(self, watcher: _Watcher) -> None:
        self._entry = threading.get_ident(), watcher

    def __enter__(self) -> None:
        with _Lists._lock:
            if not _Lists._inside:
                _Lists._original = Tensor.tolist
                Tensor.tolist = _tolist  # type: ignore[method-assign,assignment]
            _Lists._inside.append(self._entry)

    def __exit__(self, *error: Any) -> None:
        with _Lists._lock:
            _Lists._inside.remove(self._entry)
            if _Lists._inside or vars(Tensor).get("tolist") is not _tolist:
                return
            del Tensor.tolist
            if Tensor.tolist is not _Lists._original:  # else it is the one of the base class again
                Tensor.tolist = _Lists._original  # type: ignore[method-assign]

    @classmethod
    def watchers(cls) -> list[_Watcher]:
        """Of the calling thread, the innermost last."""
        thread = threading.get_ident()
        return [watcher for number, watcher in cls._inside if number == thread]


def _tolist(self: Tensor) -> Any:
    """torch.Tensor.tolist, seen by `opswap.shapes.detect`."""
    for watcher in _Lists.watchers():
        moved = self.numel() * self.element_size()
        watcher.note("tolist", self.numel(), moved, Observed("tolist"), sys._getframe(1))
    return _Lists._original(self)


class _Mode(FinderMode):
    """Calls every operator as it is, and shows those of the list to the watcher."""

    _by_parts = True

    def __init__(self, watcher: _Watcher, after_operator: Callable[[bool], None] | None) -> None:
        super().__init__(after_operator)
        self._watcher = watcher
        self._kinds: dict[
            int, tuple[str | None, Any]
        ] = {}  # by id: the hash of an operator is a Python function

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = self._kinds.get(id(func))
        if known is None:
            known = self._kinds[id(func)] = (_kind_of(func), func)
        out = func(*args, **kwargs)
        locator = self._watcher.locator
        if threading.get_ident() == self._thread:
            if locator.new_node():
                frame = sys._getframe(2)
                origin = locator.locate(frame)
                locator.remember(origin)
                self._watcher.report.hidden.look_around(origin, frame)
            if known[0] is not None:
                self._look(known[0], args, out, sys._getframe(2))
        return out

    def _look(self, op: str, args: tuple[Any, ...], out: Any, frame: FrameType | None) -> None:
        observed = Observed(op)
        if op in _MASKED:
            masks = [i for i in args[1] if isinstance(i, Tensor) and i.dtype in _MASKS]
            if not masks:
                return
            dims = sum(m.dim() for m in masks)
            trailing = args[0].dim() - dims
            each = op == "index_put" and args[2].dim() > trailing
            observed = Observed(op, dims, trailing, args[0].is_floating_point(), each)
        if op == "loop" and not _iterates(frame):
            return
        if op == "repeat_interleave" and not isinstance(args[0], Tensor):
            return
        size, moved = _size(op, args, out)
        self._watcher.note(op, size, moved, observed, frame)


def _kind_of(func: Any) -> str | None:
    """The name of an operator of the list, or of another library's that declares such an output; None of others."""
    name = getattr(getattr(func, "_schema", None), "name", "")
    if name in _OPERATORS or name.startswith("aten::"):
        return _OPERATORS.get(name)
    declared = torch.Tag.dynamic_output_shape in getattr(func, "tags", ())
    return name.replace("::", ".") if declared else None


def _is_of_a_library(frame: FrameType | None) -> bool:
    """True if code of torch or opswap looks at numbers of its own, on whatever line of the user."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if any(part in frame.f_code.co_filename for part in _READ_FOR_THEMSELVES):
            return True
        frame = frame.f_back
    return False


def _iterates(frame: FrameType | None) -> bool:
    """True if a loop over a tensor called the operator."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):  # other contexts lie between
        if frame.f_code is _ITERATES:
            return True
        frame = frame.f_back
    return False


def _size(op: str, args: tuple[Any, ...], out: Any) -> tuple[int, int]:
    """(what depends on data, bytes of the result): elements, rows, how often a loop turns, or a whole number read."""
    if op == "loop":
        return len(out), sum(t.numel() * t.element_size() for t in out)
    if op == "item":
        return (out if type(out) is int else 1), 0
    first = next((t for t in tensors_in(out)), None)
    if first is None:
        return 1, 0
    moved = first.numel() * first.element_size()
    if not first.dim():
        return 1, moved
    # x[:, mask]: whole dimensions in front of the mask stay in front, unless indices are not adjacent.
    at = _place_of_mask(args[1]) if op == "index" else 0
    return int(first.shape[at]), moved


def _place_of_mask(indices: Any) -> int:
    """The dimension of x[indices] whose size is the number of elements that a mask selects."""
    used = [i for i, index in enumerate(indices) if index is not None]
    return used[0] if used == list(range(used[0], used[-1] + 1)) else 0
