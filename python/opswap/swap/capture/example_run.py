# SPDX-License-Identifier: MIT
"""Sizes of the tensors in a captured graph, seen in one run of a copy of the model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Interpreter, Node
from torch.fx.node import map_arg

from opswap._torch import load_compiler

from ..graph.metadata import ancestors
from ..runtime.lists import Listed, is_listed, names_in
from .dry_run import DryRuns
from .paths import Capture
from .quiet import contiguous_inputs, copied_inputs, draws_undone, leaves_out, quiet_call
from .results import Results, SizesOnly
from .shell import Shell

__all__ = ["ExampleValues", "ModelInputs"]


class ModelInputs:
    """The arguments of every module when the model is called with the example inputs.

    It is a copy that is called, without the hooks of the user: a hook that changes sizes is not seen. A model that
    needs its hooks, as one that collects its features with them, is seen as far as it runs without, with a warning.
    One that does not run on tensors in channels_last, which the swapped one takes, is called with contiguous ones.

    Raises: ValueError if the model cannot be copied or does not run on them.
    """

    def __init__(self, model: nn.Module, example_inputs: tuple[Any, ...]) -> None:
        if not isinstance(example_inputs, tuple):
            raise TypeError(f"example_inputs must be a tuple, got {type(example_inputs).__name__}")
        self._left_out = False  # a hook of the user
        self._dry: dict[frozenset[nn.Module], DryRuns] = {}
        # torch imports it for the first tensor without data. In the middle of a trace it would take the functions that
        # the trace puts in place for torch's own, and look through every module by way of its dictionary from then on.
        load_compiler()
        error = self._stops(model, example_inputs)
        if error is not None and not self._left_out:
            dense = contiguous_inputs(example_inputs)
            again = error if dense is None else self._stops(model, dense)
            if again is not None and not self._left_out:
                raise ValueError(f"the model does not run on example_inputs: {error}") from error
            error = again
        if error is not None:
            what = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"without its hooks the model stops on example_inputs with {what}; later sizes are not known",
                RuntimeWarning,
                stacklevel=5,
            )

    def _stops(self, model: nn.Module, inputs: tuple[Any, ...]) -> Exception | None:
        """Notes a run; what it raised, None if nothing."""
        self._seen: dict[nn.Module, dict[str, Any]] = {}
        self._results = Results()
        try:
            self._run(model, inputs)
        except Exception as error:
            return error
        return None

    def _run(self, model: nn.Module, example_inputs: tuple[Any, ...]) -> None:
        noting = True

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if noting:
                self._note(copies.live(module), _bound(module, args, kwargs))
            self._left_out = self._left_out or leaves_out(module, before=True)
            result = quiet_call(module, *args, **kwargs)
            if noting:
                self._results.note(copies.live(module), result)
            self._left_out = self._left_out or leaves_out(module, before=False)
            return result

        copies = Shell(model, own=True, call=call)
        copies.root.eval()  # an override may return None
        self._copy_of = copies.copy_of
        with torch.no_grad(), draws_undone(), DryRuns(model).undone():
            copies.root(*copied_inputs(example_inputs))
        noting = False

    def _note(self, module: nn.Module, given: dict[str, Any]) -> None:
        """Keep the arguments of the first call; of those with a default, the tensors that all calls give."""
        known = self._seen.get(module)
        defaulted = _defaulted(module)
        if known is None:
            kinds = {
                name: isinstance(value, Tensor) or name not in defaulted for name, value in given.items()
            }
            self._seen[module] = {name: _kept(value) for name, value in given.items() if kinds[name]}
            return
        for name in defaulted & known.keys():
            if not isinstance(given.get(name), Tensor):
                del known[name]

    def given(self, module: nn.Module) -> bool:
        """True if all calls in the run gave a tensor for an argument with a default."""
        return not _defaulted(module).isdisjoint(self._seen.get(module, ()))

    def examples(self, module: nn.Module, defaults: bool = False) -> Callable[[], ExampleValues] | None:
        """Makes values of the module's graphs as its first call in the run had them; None if it had none.

        Args: defaults: as if arguments with a default had not been given.
        """
        if module not in self._seen:
            return None
        left_out = _defaulted(module) if defaults else ()
        seen = {name: value for name, value in self._seen[module].items() if name not in left_out}
        real = len(seen) < len(self._seen[module])  # its modules may have been called with other sizes
        return lambda: ExampleValues(self, self._copy_of(module), module, seen, real)

    @contextmanager
    def running(
        self, root: nn.Module, nodes: Iterable[Node], real: bool
    ) -> Iterator[Callable[[str], Tensor | None]]:
        """Run these nodes of the root's graph in here, and undo what the modules write that they call.

        Args: real: call all modules.
        Returns: by the path of a module, what stands for its result; None if it is to be called.
        """
        called = {root.get_submodule(n.target) for n in nodes if n.op == "call_module"}
        known = set() if real else set(filter(self._results.knows, called))
        run = frozenset(called - known)
        if run not in self._dry:
            self._dry[run] = DryRuns(*run)
        sizes_only = SizesOnly() if known else nullcontext()
        with torch.no_grad(), draws_undone(), self._dry[run].undone(), sizes_only:
            yield lambda path: None if real else self._results.of(root.get_submodule(path))

    def shapes(self, capture: Capture) -> dict[Node, tuple[int, ...]]:
        """Sizes of the tensors in the graph; nothing if the module was not called or the run fails."""
        inputs = self._seen.get(capture.root)
        if inputs is None:
            return {}
        for real in (False, True):
            recorder = _Recorder(self._copy_of(capture.root), graph=capture.graph)
            with suppress(Exception):
                values = _by_placeholder(inputs)
                given = [values[n.target] for n in capture.graph.nodes if n.op == "placeholder"]
                with self.running(capture.root, capture.graph.nodes, real) as recorder.stands_for:
                    recorder.run(*given)
                return recorder.shapes
        return {}


def _bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of the parameters; nothing if they do not fit."""
    try:
        bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs)
    except (TypeError, ValueError):
        return {}
    _, *parameters = bound.signature.parameters.values()
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [p.name for p in parameters if p.kind not in starred]
    return {name: bound.arguments[name] for name in names if name in bound.arguments}


def _defaulted(module: nn.Module) -> set[str]:
    """The parameters of the forward that have a default, but for those that a call must name."""
    try:
        parameters = inspect.signature(type(module).forward).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {p.name for p in parameters if p.default is not p.empty and p.kind is not p.KEYWORD_ONLY}


def _by_placeholder(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names that they have in a graph: of a list, each tensor has one."""
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        names = names_in(name, Listed(type(value), len(value))) if is_listed(value) else [name]
        values.update(zip(names, value if is_listed(value) else [value], strict=True))
    return values


def _kept(argument: Any) -> Any:
    """An argument that no later write of the model changes."""
    if is_listed(argument):
        return type(argument)(t.clone() for t in argument)
    return argument.clone() if isinstance(argument, Tensor) else argument


class _Interpreter(Interpreter):
    """Runs a graph. stands_for: by the path of a module, its result; None if it is to be called."""

    stands_for: Callable[[str], Tensor | None]

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.stands_for(target)
        return super().call_module(target, args, kwargs) if result is None else result


class ExampleValues:
    """Values of the nodes of graphs of one module, computed on demand. real: all modules that they call run."""

    def __init__(
        self, run: ModelInputs, twin: nn.Module, live: nn.Module, inputs: Mapping[str, Any], real: bool
    ) -> None:
        self._interpreter = _Interpreter(twin, graph=Graph())
        self._run, self._live, self._inputs, self._real = run, live, inputs, real
        self._known: dict[Node, Any] = {}

    def arguments(self) -> Mapping[str, Any]:
        """What the forward is called with, by the names of its parameters; of those with a default, the tensors."""
        return self._inputs

    def value(self, node: Node) -> Any:
        """The node's value, None if it cannot be computed."""
        ancestry = ancestors([node])
        while True:
            needed = [n for n in node.graph.nodes if n in ancestry and n not in self._known]
            with suppress(Exception):
                with self._run.running(self._live, needed, self._real) as self._interpreter.stands_for:
                    for n in needed:
                        self._known[n] = self._compute(n)
                return self._known[node]
            if self._real:
                return None
            self._real = True
            self._known.clear()

    def _compute(self, node: Node) -> Any:
        if node.op == "placeholder":
            return _by_placeholder(self._inputs)[node.target]
        args, kwargs = map_arg((node.args, node.kwargs), self._known.__getitem__)
        return getattr(self._interpreter, node.op)(node.target, args, kwargs)


class _Recorder(_Interpreter):
    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.shapes: dict[Node, tuple[int, ...]] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n] = tuple(value.shape)
        return value
