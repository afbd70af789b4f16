# SPDX-License-Identifier: MIT
"""Write the forward of the branches as one graph, and look at the sizes of its values."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..swap.capture.paths import Capture, CaptureError, capture_unguarded
from ..swap.capture.shell import Shell
from .layers import LAYERS
from .structure import owned_tensors

__all__ = ["Trace", "capture_all", "text_of", "trace"]

_NAME = "branches"
_OPENED = (nn.Sequential,)


@dataclass(frozen=True)
class Trace:
    """The graph that all branches have.

    separate: paths of the modules that are not merged, with the reason.
    values: for every node the sizes of its tensor at the first example, or None if it is not a tensor; a tuple
        of tensors has a list of sizes.
    captures: those of copies of the branches, which contain what the forwards read.
    """

    captures: tuple[Capture, ...]
    separate: dict[str, str]
    values: dict[fx.Node, Any]

    @property
    def graph(self) -> fx.Graph:
        """The graph of the first branch."""
        return self.captures[0].graph


def trace(modules: Sequence[nn.Module], examples: Sequence[tuple[Tensor, ...]]) -> Trace:
    """Capture every branch and compare the graphs; run the first on examples of different batch sizes.

    Raises: ValueError if the branches cannot be captured, differ in what they compute, do not run on the examples,
        or do not keep the batch in the first dimension.
    """
    modules = [Shell(m).root for m in modules]  # stock, and nothing is seen on the live ones
    separate = _not_merged(modules[0])
    captures = [_capture(m, separate, i) for i, m in enumerate(modules)]
    graphs = [c.graph for c in captures]
    separate |= _called_otherwise(modules[0], graphs[0])
    texts = [text_of(g) for g in graphs]
    for i, text in enumerate(texts):
        for mine, first in zip(text, texts[0], strict=False):
            if mine != first:
                raise ValueError(f"{_NAME}: branches[{i}] computes {mine}, branches[0] computes {first}")
        if len(text) != len(texts[0]):
            raise ValueError(f"{_NAME}: branches[{i}] has {len(text)} steps, branches[0] has {len(texts[0])}")
    _check_attributes(modules[0], graphs[0])
    runs = [_observe(graphs[0], modules[0], inputs) for inputs in examples]
    _check_batch(runs, [inputs[0].shape[0] for inputs in examples])
    return Trace(tuple(captures), separate, runs[0])


def capture_all(modules: Sequence[nn.Module], separate: Iterable[str]) -> list[Capture]:
    """The captures of the branches alone. Raises: ValueError if a branch cannot be captured."""
    return [_capture(Shell(m).root, separate, i) for i, m in enumerate(modules)]


def _has_rule(module: nn.Module) -> bool:
    return type(module) in LAYERS and not LAYERS[type(module)].refusal(module)


def _called_otherwise(branch: nn.Module, graph: fx.Graph) -> dict[str, str]:
    """Layers with a rule, but called in a way that it does not know."""
    found = {}
    for node in graph.nodes:
        module = branch.get_submodule(str(node.target)) if node.op == "call_module" else None
        if type(module) in LAYERS:
            reason = LAYERS[type(module)].refusal(module, node)
            found |= {str(node.target): reason} if reason else {}
    return found


def _is_leaf(module: nn.Module) -> bool:
    """True for layers that have a rule, and for those of torch that have no tensors and need none."""
    if _has_rule(module):
        return True
    of_torch = type(module).__module__.startswith("torch.nn.")
    return of_torch and type(module) not in _OPENED and not _has_tensors(module)


def _has_tensors(module: nn.Module) -> bool:
    return any(True for m in module.modules() for _, t in owned_tensors(m) if t is not None)


def _not_merged(branch: nn.Module) -> dict[str, str]:
    """The outermost modules below the branch that have no rule and cannot be inlined."""
    separate: dict[str, str] = {}
    closed: list[str] = []
    for path, m in branch.named_modules():
        if path.startswith(tuple(closed)):
            continue
        if _is_leaf(m):
            closed.append(f"{path}.")
            continue
        reason = _why_closed(m)
        if reason and not path:
            raise ValueError(f"{_NAME}: the forward of {type(m).__name__} cannot be captured: {reason}")
        if reason:
            separate[path] = reason
            closed.append(f"{path}.")
    return separate


def _why_closed(module: nn.Module) -> str:
    kind = type(module)
    if kind in LAYERS:
        return LAYERS[kind].refusal(module)
    if kind.__module__.startswith("torch.nn.") and kind not in (*_OPENED, nn.ModuleList, nn.ModuleDict):
        return f"there is no rule for torch.nn.{kind.__name__}"
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and kind.__module__.startswith("torch.nn."):
        return ""
    try:
        capture_unguarded(module)
    except CaptureError as error:
        return str(error)
    return ""


def _capture(branch: nn.Module, separate: Iterable[str], index: int) -> Capture:
    closed, inlined = [f"{path}." for path in separate], []
    for path, m in branch.named_modules():
        if not path or path in separate or path.startswith(tuple(closed)):
            continue
        if _is_leaf(m):
            closed.append(f"{path}.")
        else:
            inlined.append(m)
    try:
        return capture_unguarded(branch, inlined)
    except CaptureError as error:
        raise ValueError(f"{_NAME}: branches[{index}] cannot be captured: {error}") from error


def text_of(graph: fx.Graph) -> list[str]:
    """What a graph computes, a line per node."""
    return [n.format_node() or f"return {n.args}" for n in graph.nodes]


def _check_attributes(branch: nn.Module, graph: fx.Graph) -> None:
    for node in graph.nodes:
        if node.op == "get_attr":
            path, _, name = str(node.target).rpartition(".")
            owner = branch.get_submodule(path)
            if name not in owner._parameters and name not in owner._buffers:
                raise ValueError(
                    f"{_NAME}: {node.target}, which a forward reads at {node.meta.get('source', '')}, is a tensor but "
                    f"no parameter or buffer; register_buffer({name!r}, ...) makes it one"
                )


class _Observer(fx.Interpreter):
    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.seen[n] = _sizes(value)
        return value


def _sizes(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, (tuple, list)) and any(isinstance(v, Tensor) for v in value):
        return [_sizes(v) for v in value]
    return None


def _observe(graph: fx.Graph, branch: nn.Module, inputs: tuple[Tensor, ...]) -> dict[fx.Node, Any]:
    twin = copy.deepcopy(branch)
    twin.eval()  # which does not return the module in every library
    observer = _Observer(twin, graph)
    try:
        with torch.no_grad():
            observer.run(*(x.clone() for x in inputs))
    except Exception as error:
        sizes = [tuple(x.shape) for x in inputs]
        kinds = ", ".join(f"{x.dtype} on {x.device}" for x in inputs)
        raise ValueError(
            f"{_NAME}: a branch does not run on inputs of size {sizes} ({kinds}): {error}"
        ) from error
    return observer.seen


def _is_read_in_parts(node: fx.Node, found: Any) -> bool:
    """True for several tensors of which single ones are read, and for such a one that nothing reads."""
    if node.target is operator.getitem and not node.users:
        return True
    return isinstance(found, list) and all(user.target is operator.getitem for user in node.users)


def _check_batch(runs: Sequence[dict[fx.Node, Any]], batches: Sequence[int]) -> None:
    """Every value but a parameter must have the batch as its first dimension."""
    constant: set[fx.Node] = set()
    for node in runs[0]:
        if node.op == "get_attr" or (
            node.op.startswith("call")
            and node.op != "call_module"
            and all(n in constant or runs[0][n] is None for n in node.all_input_nodes)
        ):
            constant.add(node)
            continue
        if node.op == "output" or _is_read_in_parts(node, runs[0][node]):
            continue
        for run, batch in zip(runs, batches, strict=True):
            found = run[node]
            for sizes in found if isinstance(found, list) else [found]:
                if sizes is not None and (not sizes or sizes[0] != batch):
                    raise ValueError(
                        f"{_NAME}: {node.name} at {node.meta.get('source', '')} has sizes {sizes} in a batch of "
                        f"{batch}; every value must keep the batch in its first dimension"
                    )
