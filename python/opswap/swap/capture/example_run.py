# SPDX-License-Identifier: MIT
"""Sizes of the tensors in a captured graph, seen in one run of a copy of the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Interpreter, Node
from torch.fx.node import map_arg

from ..graph.metadata import ancestors
from ..runtime.lists import flat, is_listed
from .dry_run import DryRuns
from .paths import Capture
from .quiet import copied_inputs, draws_undone, leaves_out, quiet_call
from .shell import Shell

__all__ = ["ModelInputs"]


class ModelInputs:
    """The arguments of every module when the model is called with the example inputs.

    It is a copy that is called, without the hooks of the user: a hook that changes sizes is not seen. A model that
    needs its hooks, as one that collects its features with them, is seen as far as it runs without, with a warning.

    Raises: ValueError if the model cannot be copied or does not run on them.
    """

    def __init__(self, model: nn.Module, example_inputs: tuple[Any, ...]) -> None:
        if not isinstance(example_inputs, tuple):
            raise TypeError(f"example_inputs must be a tuple, got {type(example_inputs).__name__}")
        self._seen: dict[nn.Module, tuple[Any, ...]] = {}
        self._left_out = False  # a hook of the user
        self._dry = DryRuns(model)
        try:
            self._run(model, example_inputs)
        except Exception as error:
            if not self._left_out:
                raise ValueError(f"the model does not run on example_inputs: {error}") from error
            what = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"without its hooks the model stops on example_inputs with {what}; later sizes are not known",
                RuntimeWarning,
                stacklevel=5,
            )

    def _run(self, model: nn.Module, example_inputs: tuple[Any, ...]) -> None:
        noting = True

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if noting:
                seen = tuple(_kept(a) for a in args)
                self._seen.setdefault(copies.live(module), seen)
            self._left_out = self._left_out or leaves_out(module, before=True)
            result = quiet_call(module, *args, **kwargs)
            self._left_out = self._left_out or leaves_out(module, before=False)
            return result

        copies = Shell(model, own=True, call=call)
        copies.root.eval()  # an override may return None
        self._twin = copies.twin
        with torch.no_grad(), draws_undone(), self._dry.undone():
            copies.root(*copied_inputs(example_inputs))
        noting = False

    def examples(self, module: nn.Module) -> Callable[[], _Values] | None:
        """Makes values of the module's graphs as its first call in the run had them; None if it had none."""
        if module not in self._seen:
            return None
        return lambda: _Values(self._twin(module), self._seen[module], self._dry)

    def shapes(self, capture: Capture) -> dict[Node, tuple[int, ...]]:
        """Sizes of the tensors in the graph; nothing if the module was not called or the run fails."""
        inputs = self._seen.get(capture.root)
        if inputs is None:
            return {}
        recorder = _Recorder(self._twin(capture.root), graph=capture.graph)
        try:
            with torch.no_grad(), draws_undone(), self._dry.undone():
                recorder.run(*flat(inputs))
        except Exception:
            return {}
        return recorder.shapes


def _kept(argument: Any) -> Any:
    """An argument that no later write of the model changes."""
    if is_listed(argument):
        return type(argument)(t.clone() for t in argument)
    return argument.clone() if isinstance(argument, Tensor) else argument


class _Values:
    """Values of the nodes of one graph, computed on demand."""

    def __init__(self, module: nn.Module, inputs: tuple[Any, ...], dry: DryRuns) -> None:
        self._interpreter, self._dry = Interpreter(module, graph=Graph()), dry
        self._inputs = inputs
        self._known: dict[Node, Any] = {}

    def arguments(self) -> tuple[Any, ...]:
        """What the module was called with."""
        return self._inputs

    def value(self, node: Node) -> Any:
        """The node's value, None if it cannot be computed."""
        needed = ancestors([node])
        try:
            with torch.no_grad(), draws_undone(), self._dry.undone():
                for n in node.graph.nodes:
                    if n in needed and n not in self._known:
                        self._known[n] = self._compute(n)
        except Exception:
            return None
        return self._known[node]

    def _compute(self, node: Node) -> Any:
        if node.op == "placeholder":
            place = [n for n in node.graph.nodes if n.op == "placeholder"].index(node)
            return flat(self._inputs)[place]
        args, kwargs = map_arg((node.args, node.kwargs), self._known.__getitem__)
        return getattr(self._interpreter, node.op)(node.target, args, kwargs)


class _Recorder(Interpreter):
    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.shapes: dict[Node, tuple[int, ...]] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n] = tuple(value.shape)
        return value
