# SPDX-License-Identifier: MIT
"""Trace one module's forward into fx graphs (children are leaves), and refuse forwards that a trace cannot represent.

A forward may have several paths: by the training flag, by the sizes of its arguments. Each path that is found
is one graph together with what must hold for it to be the forward's own.
"""

from __future__ import annotations

import operator
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from opswap._dispatch_mode import DispatchMode
from opswap._torch import compile_lock

from ..graph.aliasing import returns_tensor
from ..graph.calls import joined_parts, subject
from ..graph.metadata import (
    ancestors,
    copy_with_inputs,
    drop_unused_metadata,
    is_known_before_forward,
    is_metadata,
    without_joins,
)
from ..runtime.guards import hooked, one_mode
from ..runtime.lists import Listed
from ..runtime.messages import find_class, require
from ..runtime.outside import Outside, join
from ..runtime.state import Reading
from . import einops_backend
from .concrete import TraceDraws
from .flags import line, lines
from .follow import Follower
from .modes import capture_modes
from .texts import Piece, Texts, has_mark, without_marks
from .trace_frames import raised_by_user
from .tracer import Answer, CaptureError, Decision, EndlessError, Tracer
from .unseen import Search, search_calls, what_may_change

if TYPE_CHECKING:
    from .example_run import ExampleValues

__all__ = ["Capture", "CaptureError", "capture", "capture_unguarded"]

_TRACING = threading.RLock()  # a trace patches torch.nn.Module for all threads
_PATHS = 4  # captured of one forward in one mode
_TRACES = 10  # to find one in which no other thread draws or traces
_TRIES = 24  # traces to find the first of them
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Capture:
    """One path of the forward of `root` as a graph.

    Every node's meta has "owner", the path below root of the module whose forward made it, and "source", the
    "file:line" that did, or that module's class if it is one of torch's own; "unpacked" if the forward unpacks its
    value: to how many names. `inlined` are the modules whose calls are inlined; `arguments` are the captured parameters
    of the forward, the others kept their defaults; `lists` contains those that are lists of tensors, which are several
    arguments of the graph.

    The graph is the forward's if each of `guards`, graphs over the same arguments, gives True, and each of
    `size_guards`, which need the sizes of intermediate results, does so on tensors without data; and if root and all
    of `inlined` have `training` as their flag, if it is not None. `reading` and `outside` contain what else the forward
    read: of modules, and of everything that does not belong to a module. `refused` is the reason for which the other
    mode has no graph at all, if training is not None.
    """

    root: nn.Module
    graph: fx.Graph
    inlined: tuple[nn.Module, ...]
    arguments: tuple[str, ...]
    guards: tuple[fx.Graph, ...] = ()
    size_guards: tuple[fx.Graph, ...] = ()
    training: bool | None = None
    reading: Reading = field(default_factory=Reading)
    outside: Outside = field(default_factory=Outside)
    lists: Mapping[str, Listed] = field(default_factory=dict)
    refused: str = ""


class _DisturbedError(Exception):
    """Another thread prevents the capture, whatever the forward does."""


def capture(
    root: nn.Module, inlined: Sequence[nn.Module] = (), examples: Callable[[], ExampleValues] | None = None
) -> list[Capture]:
    """Capture the paths of `root.forward`, inlining the calls of `inlined`; leaves no trace on any module.

    Args: examples: makes the examples for one trace, from a run of the module; without, answers are guessed.
    Returns: the paths, the likeliest first.
    Raises: CaptureError, if the forward has no faithful graph, for any reason.
    """
    with compile_lock(), _TRACING:  # in this order: a backend of torch.compile holds the first already
        einops_backend.register()
        try:
            return capture_modes(Explorer(root, tuple(inlined), examples))
        except _DisturbedError as error:
            raise CaptureError(str(error)) from error


def capture_unguarded(root: nn.Module, inlined: Sequence[nn.Module] = ()) -> Capture:
    """The forward of `root` as one graph that is valid for all sizes and both modes; see `capture`.

    How many values a child returns is not checked.

    Raises: CaptureError also for a forward that reads sizes or its mode.
    """
    first, *others = capture(root, inlined)
    reads = [n.target.split(".")[-1] for n in first.graph.nodes if n.op == "get_attr"]
    if first.training is not None or "training" in reads:
        other = f", in {'eval' if first.training else 'train'}(): {first.refused}" if first.refused else ""
        raise CaptureError(f"forward differs between train() and eval(){other}")
    if any(n.target is one_mode for guard in first.guards for n in guard.nodes):
        raise CaptureError("forward reads .training of several modules")
    if others or first.guards or first.size_guards or any(n.target is require for n in first.graph.nodes):
        raise CaptureError("control flow depends on the size of a tensor")
    return first


@dataclass
class _Trace:
    graph: fx.Graph
    arguments: tuple[str, ...]
    decisions: list[Decision]
    error: BaseException | None
    reading: Reading
    outside: Outside
    asks_none: bool
    texts: Texts
    lists: Mapping[str, Listed]
    disturbed: str  # by another thread, in words

    def script(self, place: int, answer: Answer) -> list[Answer]:
        """The answers up to a decision, and another one there."""
        return [*(d.answer for d in self.decisions[:place]), answer]


class Explorer:
    """Finds the paths of the forward of `root`, with `inlined`, under the present training flags.

    flags: the modules of which another one's forward has read `training`, so far, and where.
    """

    def __init__(
        self, root: nn.Module, inlined: tuple[nn.Module, ...], examples: Callable[[], ExampleValues] | None
    ) -> None:
        self.root, self.inlined, self.examples = root, inlined, examples
        self.made: list[nn.Module] = []
        self.flags: dict[nn.Module, str] = {}
        self._searched: dict[tuple[nn.Module, ...], Search] = {}  # by the modules that a path calls

    def explore(self) -> list[Capture]:
        first = self._first()
        scripts = [
            first.script(place, other)
            for place, decision in enumerate(first.decisions)
            if isinstance(decision.answer, bool) and is_known_before_forward(decision.node)
            for other in decision.others
        ]
        found = [self._finish(first)]
        for script in scripts[: _PATHS - 1]:
            trace = self._trace(script)
            if trace.error is None:
                with suppress(CaptureError):
                    found.append(self._finish(trace))
        return found

    def _first(self) -> _Trace:
        """The first path that neither raises nor needs a value that the trace does not have."""
        script: list[Answer] = []
        error = None
        for _ in range(_TRIES):
            trace = self._trace(script)
            if trace.error is None:
                return trace
            if isinstance(trace.error, EndlessError):
                raise trace.error
            error = error or trace.error
            open_ends = [i for i, d in enumerate(trace.decisions) if d.others]
            if not open_ends:
                break
            script = trace.script(open_ends[-1], trace.decisions[open_ends[-1]].others[0])
        if isinstance(error, CaptureError):
            raise error
        lines = str(error).splitlines() or [""]
        raise CaptureError(f"{type(error).__name__}: {without_marks(lines[0])}") from error

    def _trace(self, script: Sequence[Answer], nothing: str = "") -> _Trace:
        """One trace. What a forward draws from the random generators is undone and refused."""
        python, state = random.getstate(), torch.get_rng_state()
        trace = self._run(script, nothing)
        drew = random.getstate() != python, not torch.equal(torch.get_rng_state(), state)
        if any(drew) and threading.active_count() > 1:  # maybe another thread
            drew = self._draws(script, nothing)
        if drew[0]:
            random.setstate(python)
        if drew[1]:
            torch.set_rng_state(state)
        if not any(drew):
            return trace
        return replace(
            trace, error=trace.error or CaptureError("forward draws random numbers while it is traced")
        )

    def _draws(self, script: Sequence[Answer], nothing: str) -> tuple[bool, bool]:
        """Whether the forward itself draws, or may do so: from Python's generator, and from torch's.

        Operators of torch are seen in this thread alone. Python's generator does not show which thread drew, so that
        a forward must leave it alone in one of several traces.
        """
        if not hasattr(DispatchMode, "__torch_dispatch__"):
            return True, True
        draws = TraceDraws()
        for _ in range(_TRACES):
            before = random.getstate()
            self._run(script, nothing, draws)
            if random.getstate() == before:
                return False, draws.seen
        return True, draws.seen

    def _run(self, script: Sequence[Answer], nothing: str, draws: TraceDraws | None = None) -> _Trace:
        """One trace, and others if another thread came in between; see `_run_once`.

        Raises: _DisturbedError if another thread traces every time.
        """
        for _ in range(_TRACES):
            trace = self._run_once(script, nothing, draws)
            if not trace.disturbed and not _iterates_over_changes(trace.error):
                return trace
        if trace.disturbed:
            raise _DisturbedError(trace.disturbed)
        return trace

    def _run_once(self, script: Sequence[Answer], nothing: str, draws: TraceDraws | None) -> _Trace:
        """nothing: the name of a node that the forward gets as None."""
        tracer = Tracer(
            self.inlined, self.made, script, self.examples() if self.examples is not None else None
        )
        tracer.nothing = nothing
        follower = tracer.follower = Follower(self.root, self.inlined, tracer.refuse)
        follower.given = tracer.given
        if draws is not None:
            draws.tracer = tracer
        error: BaseException | None = None
        written: list[str] = []
        moved: list[str] = []
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()), draws or nullcontext():
                try:
                    tracer.trace(self.root)
                finally:
                    written, moved = follower.undo()
        except Exception as raised:
            error = raised
        if written:
            error = CaptureError(f"forward writes to {written[0]}")
        elif tracer.given.changed():
            error = CaptureError("forward writes to a list that it was given")
        error = tracer.refusal or error
        # Objects with a look-up of their own are read again, and that look-up may be the code that writes.
        outside = Outside() if written else follower.outside()
        self.flags = {**follower.flags, **self.flags}  # the place of the first read
        reading = follower.reading()
        moved = moved or follower.moved()  # before it was written down what was read
        error = error or self._unseen(tracer.graph, reading, outside)
        known = reading, outside, follower.asks_none
        found = tracer.graph, tracer.arguments, tracer.decisions, error, *known, tracer.texts
        disturbed = f"another thread writes to {moved[0]} at the same time" if moved else ""
        if tracer.disturbed:
            disturbed = "another thread traced a module with torch.fx at the same time"
        return _Trace(*found, tracer.lists, disturbed)

    def _unseen(self, graph: fx.Graph, reading: Reading, outside: Outside) -> CaptureError | None:
        """Why what the forward reads may change while it runs: modules that it calls write to it."""
        called = tuple(dict.fromkeys(n.meta["module"] for n in graph.nodes if n.op == "call_module"))
        if called not in self._searched:
            self._searched[called] = search_calls(called)
        readers = (self.root, *self.inlined, *reading.modules, *reading.parents)
        found = what_may_change(self._searched[called], readers, reading.every_name, outside)
        reason = f"a module that forward calls may write to {found}, which forward reads"
        return CaptureError(reason) if found else None

    def _finish(self, trace: _Trace) -> Capture:
        """Turn every decision into a guard or a check."""
        if trace.asks_none:
            self._check_none(trace)
        guards: dict[str, fx.Graph] = {}
        size_guards: dict[str, fx.Graph] = {}
        graph, reading, outside = trace.graph, trace.reading, trace.outside
        for place, decision in enumerate(trace.decisions):
            if is_known_before_forward(decision.node):
                guard = _guard(graph, decision)
                guards.setdefault(str(guard), guard)
                continue
            other = None
            if isinstance(decision.answer, bool):
                other = self._trace(trace.script(place, not decision.answer))
            # An error that depends on further facts is the original forward's.
            error = None if other is None or len(other.decisions) > place + 1 else other.error
            if error is not None and raised_by_user(error) and _can_be_made_again(error):
                _insert_check(graph, decision, error, other.texts)
                reading, outside = reading | other.reading, join((outside, other.outside))
            elif self._can_foresee(graph, decision):
                guard = _guard(graph, decision)
                size_guards.setdefault(str(guard), guard)
            else:
                raise CaptureError(
                    f"control flow depends on the size of what a module returns at {decision.where}"
                )
        drop_unused_metadata(graph)
        found = tuple(guards.values()), tuple(size_guards.values())
        known = {"reading": reading, "outside": outside, "lists": trace.lists}
        return Capture(self.root, graph, self.inlined, trace.arguments, *found, **known)

    def _check_none(self, trace: _Trace) -> None:
        """Refuse a forward that does something else if a module, which may return anything, returns None."""
        answers = [d.answer for d in trace.decisions]
        uncertain: set[fx.Node] = set()
        for node in trace.graph.nodes:
            if node.op == "call_module":
                known = returns_tensor(node.meta["module"])
            else:
                # an element, an attribute, or what a method of such a result returns
                taken = node.op == "call_method" or node.target in (operator.getitem, getattr)
                known = not taken or subject(node) not in uncertain
            if known:
                continue
            uncertain.add(node)
            other = self._trace(answers, node.name)
            refused = isinstance(other.error, CaptureError) or (
                other.error is not None and raised_by_user(other.error)
            )
            differs = other.error is None and lines(other.graph) != lines(trace.graph, node.name)
            if refused or differs:
                where = node.meta["source"]
                raise CaptureError(
                    f"forward checks whether the result of {node.target} is None, after {where}"
                )

    def _can_foresee(self, graph: fx.Graph, decision: Decision) -> bool:
        """True if the modules before the decision can be called on tensors without data, without side effects."""
        for node in ancestors([decision.node]):
            if node.op == "call_module":
                for m in self.root.get_submodule(node.target).modules():
                    if hooked(m) or not type(m).__module__.startswith("torch.nn."):
                        return False
        return True


def _iterates_over_changes(error: BaseException | None) -> bool:
    """True for Python's message about a dictionary, such as the globals of a module, that another thread adds to."""
    return (
        isinstance(error, RuntimeError) and "during iteration" in str(error) and threading.active_count() > 1
    )


def _can_be_made_again(error: BaseException) -> bool:
    plain = all(isinstance(a, _PLAIN) and "Proxy" not in str(a) for a in error.args)
    return plain and find_class(type(error).__module__, type(error).__qualname__) is type(error)


def _guard(graph: fx.Graph, decision: Decision) -> fx.Graph:
    guard, value = copy_with_inputs(graph, decision.node)
    if decision.answer is not True:
        negation = decision.answer is False
        args = (value,) if negation else (value, decision.answer)
        value = guard.call_function(operator.not_ if negation else operator.eq, args)
    guard.output(value)
    return guard


def _insert_check(graph: fx.Graph, decision: Decision, error: BaseException, texts: Texts) -> None:
    """Raise what the forward raises if the decision falls the other way."""
    joins = {n: parts for n in graph.nodes if (parts := joined_parts(n))}
    fact = without_joins(graph, decision.node, joins)
    marked = [(i, texts.split(a)) for i, a in enumerate(error.args) if has_mark(a)]
    plain = tuple("" if has_mark(a) else a for a in error.args)
    names = type(error).__module__, type(error).__qualname__
    with graph.inserting_after(decision.node):
        check = graph.call_function(require, (fact, decision.answer, *names, plain))
    check.meta.update(decision.node.meta)
    if not marked:
        return
    known = {n.name: n for n in takewhile(lambda n: n is not check, graph.nodes)}
    with graph.inserting_before(check):

        def own(piece: str | Piece) -> Any:
            if isinstance(piece, str):
                return piece
            shown = _copied(graph, piece[0], known, check.meta)
            return (without_joins(graph, shown, joins), *piece[1:])

        shown = tuple((i, tuple(map(own, pieces))) for i, pieces in marked)
    check.args = (*check.args, shown)


def _copied(graph: fx.Graph, node: fx.Node, known: dict[str, fx.Node], meta: dict[str, Any]) -> fx.Node:
    """The node of another trace in this graph: the same node before the traces differ, or a copy of metadata."""
    twin = known.get(node.name)
    if twin is not None and line(twin) == line(node):
        return twin
    if not is_metadata(node):
        raise CaptureError(f"a string is built from what a module returns, at {node.meta['source']}")
    copy = graph.node_copy(node, lambda n: _copied(graph, n, known, meta))
    copy.meta.update(meta)
    return copy
