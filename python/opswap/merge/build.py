# SPDX-License-Identifier: MIT
"""Turn the graph of one branch into a program for all of them.

Every value has the form in which it was made, its own; another form is made by a step of its own if it is needed.
Whatever has no rule runs with the branches folded into the batch, or, if it meets parameters or a shared value,
under torch.vmap.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from . import calls
from .forms import Form, align_weight, branch_sizes, change_form
from .layers import CHANNELWISE, ELEMENTWISE, RANDOM, Layer, Unmerged
from .plan import Plan
from .program import (
    KeepsDtype,
    Method,
    Program,
    Ref,
    Slot,
    Step,
    call_branch,
    plain_arguments,
    run_batched,
    schedule,
)
from .trace import Trace

__all__ = ["build"]

_NAME = "branches"
_SIZES = ("size", "shape", "dim", "ndim", "ndimension")


def build(
    trace: Trace,
    root: nn.Module,
    shared: Sequence[bool],
    branches: int,
    plan: Plan,
    stacked: bool = True,
) -> Program:
    """The program of a plan.

    Args:
        root: has the merged layers under the paths of a branch's own.
        shared: for each input, whether it is one for all branches.
        stacked: whether the result is that of all branches together, or a list of theirs.
    Raises: ValueError, naming the place, for what cannot be merged.
    """
    return _Builder(trace, root, branches, plan, stacked).build(shared)


class _Builder:
    def __init__(self, trace: Trace, root: nn.Module, branches: int, plan: Plan, stacked: bool) -> None:
        self.sizes, self.graph, self.root = trace.values, trace.graph, root
        self.branches, self.plan, self.stacked = branches, plan, stacked
        self.order = {node: i for i, node in enumerate(trace.graph.nodes)}
        self.inputs: list[Form] = []
        self.steps: list[Step] = []
        self.own: dict[fx.Node, Form] = {}
        self.made: dict[tuple[fx.Node, Form], Ref] = {}
        self.ragged: dict[fx.Node, Sequence[int]] = {}
        self.sections: list[Sequence[int]] = []

    def build(self, shared: Sequence[bool]) -> Program:
        entries = [n for n in self.graph.nodes if n.op == "placeholder"]
        for node, is_shared in zip(entries, shared, strict=True):
            self._define_input(node, is_shared)
        result: Any = None
        for node in self.graph.nodes:
            if node.op == "get_attr":
                self._parameter(node)
            elif node.op == "call_module":
                self._module(node)
            elif node.op == "output":
                result = plain_arguments(map_arg(node.args[0], self._result))
            elif node.op != "placeholder" and not self._is_plain(node):
                self._call(node)
        runs = schedule(self.steps, self.inputs, result)
        return Program(self.branches, tuple(self.inputs), runs, result, self.stacked, tuple(self.sections))

    def _refuse(self, node: fx.Node, reason: str) -> ValueError:
        place = node.meta.get("owner", "") or "the branch"
        return ValueError(f"{_NAME}: {node.name} in {place} ({node.meta.get('source', '')}) {reason}")

    # Values and their forms

    def _define_input(self, node: fx.Node, shared: bool) -> None:
        looped = any(n.name in self.plan.loop for n in node.users)
        form = Form.SHARED if shared else Form.LISTED if looped else Form.STACKED
        self.inputs.append(form)
        self._define(node, form, Ref(len(self.inputs) - 1))

    def _define(self, node: fx.Node, form: Form, ref: Ref) -> None:
        self.own[node] = form
        self.made[node, form] = ref

    def _emit(self, node: fx.Node, function: Callable[..., Any] | None, args: Any, **options: Any) -> Ref:
        layer = tuple(str(node.target).split(".")) if function is None else ()
        kwargs = plain_arguments(dict(options.pop("kwargs", {})))
        if layer and node.op == "call_module" and not options.get("merged"):
            options["kind"] = type(self.root.get_submodule(str(node.target)))
        self.steps.append(Step(function, layer, plain_arguments(tuple(args)), kwargs, node.name, **options))
        return Ref(len(self.inputs) + len(self.steps) - 1)

    def _as(self, node: fx.Node, form: Form) -> Ref:
        """The value of a node in a form, made if it is not there yet."""
        if (node, form) not in self.made:
            if self._is_plain(node):
                self.made[node, form] = self._plain_value(node, form)
            elif isinstance(self.sizes[node], list):
                raise self._refuse(node, "gives several tensors, which are used together")
            else:
                own = self.own[node]
                self.made[node, form] = self._emit(
                    node, change_form, (self.made[node, own], own, form, self.branches)
                )
        return self.made[node, form]

    def _is_plain(self, node: fx.Node) -> bool:
        return self.sizes[node] is None

    def _rank(self, node: fx.Node) -> int:
        sizes = self.sizes[node]
        return len(sizes) if isinstance(sizes, tuple) else -1

    def _tensors(self, node: fx.Node) -> list[fx.Node]:
        return [n for n in node.all_input_nodes if not self._is_plain(n)]

    def _result(self, node: fx.Node) -> Ref:
        if self._is_plain(node):
            return self._as(node, Form.LOCAL)
        self.sections.append(tuple(self.ragged.get(node, ())))
        if self.stacked:
            return self._as(node, Form.RAGGED if node in self.ragged else Form.STACKED)
        if self.own[node] is not Form.RAGGED:
            return replace(self._as(node, Form.LISTED), listed=True)
        parts = self._emit(node, torch.Tensor.split, (self._as(node, Form.RAGGED), self.ragged[node], -1))
        return replace(parts, listed=True)

    def _plain_value(self, node: fx.Node, form: Form) -> Ref:
        """Sizes and numbers, LOCAL or GLOBAL."""
        name = node.args[1] if node.target is getattr else node.target
        tensors = self._tensors(node)
        if tensors and name in _SIZES:
            own = self.own[tensors[0]]
            ref = self._emit(node, branch_sizes, (self.made[tensors[0], own], own, self.branches, form))
            if name in ("size", "shape"):
                index = calls.argument(node, 1, "dim") if name == "size" else None
                return ref if index is None else self._emit(node, operator.getitem, (ref, index))
            return self._emit(node, len, (ref,))
        if tensors and name in ("device", "dtype"):
            own = self.own[tensors[0]]
            ref = self.made[tensors[0], own]
            ref = self._emit(node, operator.getitem, (ref, 0)) if own is Form.LISTED else ref
            return self._emit(node, getattr, (ref, name))
        if tensors or node.op == "call_module":
            raise self._refuse(node, "reads a number from a tensor, which may differ from branch to branch")
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: self._as(n, form))
        return self._emit(node, calls.callee(node), args, kwargs=kwargs)

    def _parameter(self, node: fx.Node) -> None:
        path, _, name = str(node.target).rpartition(".")
        layer = tuple(path.split(".")) if path else ()
        ref = self._emit(node, getattr, ())
        self.steps[-1] = replace(self.steps[-1], function=None, layer=layer, attribute=name)
        if self._rank(node) == 1:
            ref = self._emit(node, torch.unflatten, (ref, 0, (self.branches, *self.sizes[node])))
        self._define(node, Form.WEIGHT, ref)

    # Ways to run a node

    def _run(
        self, node: fx.Node, form: Form, function: Callable[..., Any] | None, plain: Form = Form.LOCAL
    ) -> None:
        """Once for all branches, on tensors of this form."""

        def value(n: fx.Node) -> Ref:
            return self._as(n, plain if self._is_plain(n) else form)

        args, kwargs = map_arg((node.args, node.kwargs), value)
        self._define(node, form, self._emit(node, function, args, kwargs=kwargs))

    def _run_each(self, node: fx.Node, function: Callable[..., Any] | None, separate: bool = False) -> None:
        """One branch after another."""

        def value(n: fx.Node) -> Ref:
            if self._is_plain(n):
                return self._as(n, Form.LOCAL)
            if self.own[n] is Form.SHARED:
                return self._as(n, Form.SHARED)
            return replace(self._as(n, Form.LISTED), listed=True)

        args, kwargs = map_arg((node.args, node.kwargs), value)
        ref = self._emit(node, function, args, kwargs=kwargs, loop=True, separate=separate)
        self._define(node, Form.LISTED, ref)

    def _run_batched(self, node: fx.Node) -> None:
        """Under torch.vmap."""
        if calls.writes(node):
            raise self._refuse(node, "writes to a tensor, which torch.vmap cannot follow")
        tensors = self._tensors(node)
        forms = [self.own[n] if self.own[n] in (Form.SHARED, Form.WEIGHT) else Form.STACKED for n in tensors]
        dims = [{Form.SHARED: None, Form.WEIGHT: 0, Form.STACKED: 1}[f] for f in forms]
        refs = tuple(self._as(n, f) for n, f in zip(tensors, forms, strict=True))

        def value(n: fx.Node) -> Ref | Slot:
            return self._as(n, Form.LOCAL) if self._is_plain(n) else Slot(tensors.index(n))

        args, kwargs = map_arg((node.args, node.kwargs), value)
        weights_only = all(f is Form.WEIGHT for f in forms)
        out = 0 if weights_only else 1
        call = (calls.callee(node), refs, tuple(dims), out, args, kwargs)
        self._define(node, Form.WEIGHT if weights_only else Form.STACKED, self._emit(node, run_batched, call))

    def _loops(self, node: fx.Node) -> bool:
        """True if the plan has the node run one branch after another."""
        own = [self.own[n] for n in self._tensors(node)]
        if all(f is Form.WEIGHT for f in own):  # what is made of parameters alone has no batch
            return False
        if Form.LISTED in own and (
            self.plan.follow or any(isinstance(self.sizes[n], list) for n in self._tensors(node))
        ):
            return all(f in (Form.LISTED, Form.SHARED, Form.WEIGHT) for f in own)
        return node.name in self.plan.loop or calls.may_drop_batch(node)

    # Modules

    def _module(self, node: fx.Node) -> None:
        module = self.root.get_submodule(str(node.target))
        if any(n in self.ragged for n in node.all_input_nodes) and type(module) not in ELEMENTWISE:
            raise self._refuse(
                node, "follows Linears of different out_features: only elementwise code may follow these"
            )
        if isinstance(module, Unmerged):
            self._run_each(node, None, separate=True)
        elif isinstance(module, Layer):
            self._layer(node, module)
        elif type(module) in ELEMENTWISE:
            self._elementwise(node, None, type(module) in RANDOM, bool(getattr(module, "inplace", False)))
        elif type(module) in CHANNELWISE:
            self._channelwise(node, None, type(module) in RANDOM, _dimensions(type(module).__name__))
        else:
            self._whatever(node, None)

    def _layer(self, node: fx.Node, layer: Layer) -> None:
        if len(self._tensors(node)) != 1 or (
            len(node.args) + len(node.kwargs) != 1 and not layer.many_arguments
        ):
            raise self._refuse(node, "is called with more than one tensor")
        subject = self._tensors(node)[0]
        wanted = layer.input_dims
        if wanted is not None and self._rank(subject) != wanted:
            raise self._refuse(node, f"reads a tensor of {self._rank(subject)} dimensions, not of {wanted}")
        shared = self.own[subject] is Form.SHARED
        if self._loops(node) or (shared and not layer.wide_shared):
            form, own = Form.LISTED, replace(self._as(subject, Form.LISTED), listed=True)
            calls_of = replace(self._emit(node, None, (None, "loop"), merged=True), listed=True)
            ref = self._emit(node, call_branch, (calls_of, own), loop=True)
        else:
            form, mode = layer.gives, "shared" if shared else self.plan.mode(node.name, layer)
            taken = self._as(subject, Form.SHARED if shared else layer.takes)
            ref = self._emit(node, None, (taken, mode), merged=True)
        self._define(node, form, ref)
        if layer.ragged:
            self.ragged[node] = layer.sections

    # Functions and methods

    def _call(self, node: fx.Node) -> None:
        name = calls.call_name(node)
        tensors = self._tensors(node)
        forms = {self.own[n] for n in tensors}
        if any(n in self.ragged for n in tensors) and not (
            name in calls.ELEMENTWISE_CALLS and len(tensors) == 1
        ):
            raise self._refuse(
                node, "follows Linears of different out_features: only elementwise code may follow these"
            )
        if not tensors:
            raise self._refuse(node, "makes a tensor of its own")
        if name in calls.ELEMENTWISE_CALLS and len(tensors) == 1:
            self._elementwise(node, calls.callee(node), "dropout" in name, calls.writes(node))
        elif forms == {Form.SHARED} and "dropout" not in name:
            self._shared(node, calls.callee(node), calls.writes(node))
        elif isinstance(self.sizes[tensors[0]], list) and node.target is operator.getitem:
            self._item(node, tensors[0])
        elif name in calls.BINARY and self._meets_weight(node, tensors):
            self._with_weight(node, tensors)
        elif Form.WEIGHT in forms and not self._loops(node):
            self._run_batched(node)
        elif name in calls.BINARY:
            self._binary(node, tensors)
        elif calls.writes(node):
            raise self._refuse(node, "writes to a tensor")
        elif name in calls.CHANNELWISE_CALLS:
            self._channelwise(node, calls.callee(node), "dropout" in name, _dimensions(name))
        elif self._loops(node):
            self._run_each(node, calls.callee(node))
        elif name in calls.REDUCTIONS and self._is_spatial(node):
            self._run(node, Form.WIDE, calls.callee(node))
        elif not self._along_channels(node, name):
            self._whatever(node, calls.callee(node))

    def _shared(self, node: fx.Node, function: Callable[..., Any] | None, writing: bool) -> None:
        """Once, because all branches have the same."""
        if writing:
            self._run_on_copy(node, Form.SHARED, function)
        else:
            self._run(node, Form.SHARED, function)

    def _run_on_copy(self, node: fx.Node, form: Form, function: Callable[..., Any] | None) -> None:
        """Once, on a copy of the shared tensor to which the call writes."""
        subject = self._tensors(node)[0]
        copy = self._emit(node, _clone, (self._as(subject, form),))

        def value(n: fx.Node) -> Ref:
            return copy if n is subject else self._as(n, Form.LOCAL if self._is_plain(n) else form)

        args, kwargs = map_arg((node.args, node.kwargs), value)
        self._define(node, form, self._emit(node, function, args, kwargs=kwargs))

    def _item(self, node: fx.Node, source: fx.Node) -> None:
        own = self.own[source]
        if own is Form.LISTED:
            self._run_each(node, operator.getitem)
        else:
            self._define(
                node, own, self._emit(node, operator.getitem, (self.made[source, own], node.args[1]))
            )

    def _elementwise(
        self, node: fx.Node, function: Callable[..., Any] | None, random: bool, writing: bool
    ) -> None:
        """In the form that the value has."""
        subject = self._tensors(node)[0]
        own = self.own[subject]
        if own is Form.SHARED and random and writing:
            self._run_on_copy(node, Form.STACKED, function)
        elif own is Form.SHARED and random:
            self._run(node, Form.STACKED, function)
        elif own is Form.SHARED:
            self._shared(node, function, writing)
        elif own is Form.LISTED:
            self._run_each(node, function)
        elif own is Form.WEIGHT and function is not None:
            self._run_batched(node)
        else:
            self._run(node, own, function)
        if subject in self.ragged:
            self.ragged[node] = self.ragged[subject]

    def _channelwise(
        self, node: fx.Node, function: Callable[..., Any] | None, random: bool, dimensions: int | None
    ) -> None:
        subject = self._tensors(node)[0]
        rank = self._rank(subject)
        if self.own[subject] is Form.SHARED and not random:
            self._shared(node, function, False)
        elif self._loops(node):
            self._run_each(node, function)
        elif rank >= 3 and dimensions in (None, rank - 2):
            self._run(node, Form.WIDE, function)
        else:
            self._run(node, Form.BATCHED, function, plain=Form.GLOBAL)

    def _binary(self, node: fx.Node, tensors: Sequence[fx.Node]) -> None:
        """Two tensors of the branches, or one and a number, or one and a shared tensor."""
        function, form = calls.callee(node), self._common_form(tensors)
        subject = node.args[0]
        if self._loops(node):
            form = Form.LISTED
        if calls.writes(node) and (subject not in tensors or form is not self.own[subject]):
            function = (plain := calls.out_of_place(node)) and KeepsDtype(plain)
            read_later = isinstance(subject, fx.Node) and any(
                self.order[n] > self.order[node] for n in subject.users
            )
            if function is None or read_later or self.own.get(subject) is Form.SHARED:
                raise self._refuse(node, "writes to a tensor that is read again")
        if form is Form.LISTED:
            self._run_each(node, function)
        elif form is None:
            self._run_batched(node)
        else:
            self._run(node, form, function)

    def _meets_weight(self, node: fx.Node, tensors: Sequence[fx.Node]) -> bool:
        """True for a value and one parameter that has, or is broadcast along, the value's batch."""
        weights = [n for n in tensors if self.own[n] is Form.WEIGHT]
        if len(weights) != 1 or len(tensors) != 2 or calls.writes(node) or self._loops(node):
            return False
        sizes, other = self.sizes[weights[0]], next(n for n in tensors if n is not weights[0])
        return len(sizes) < self._rank(other) or (len(sizes) == self._rank(other) and sizes[0] == 1)

    def _with_weight(self, node: fx.Node, tensors: Sequence[fx.Node]) -> None:
        rank = max(self._rank(n) for n in tensors)

        def value(n: fx.Node) -> Ref:
            if self._is_plain(n):
                return self._as(n, Form.LOCAL)
            if self.own[n] is Form.WEIGHT:
                return self._emit(node, align_weight, (self._as(n, Form.WEIGHT), rank))
            return self._as(n, Form.STACKED)

        args, kwargs = map_arg((node.args, node.kwargs), value)
        self._define(node, Form.STACKED, self._emit(node, calls.callee(node), args, kwargs=kwargs))

    def _common_form(self, tensors: Sequence[fx.Node]) -> Form | None:
        """A form in which elements that belong together have the same index; None if no form has that."""
        own = {self.own[n] for n in tensors}
        if len(tensors) == 1:
            return own.pop()
        if len({self._rank(n) for n in tensors}) > 1:
            return None
        if own == {Form.BATCHED}:
            return Form.BATCHED
        wide = (
            Form.SHARED not in own
            and self._rank(tensors[0]) > 2
            and len({self.sizes[n][1] for n in tensors}) == 1
        )
        return Form.WIDE if wide else Form.STACKED

    def _is_spatial(self, node: fx.Node) -> bool:
        """True for a reduction over dimensions after the channels alone."""
        rank = self._rank(self._tensors(node)[0])
        dims = calls.argument(node, 1, "dim")
        dims = [dims] if isinstance(dims, int) else dims
        if not isinstance(dims, (tuple, list)) or not all(isinstance(d, int) for d in dims) or not dims:
            return False
        return all(d % rank >= 2 for d in dims)

    def _along_channels(self, node: fx.Node, name: str) -> bool:
        """Calls that join, cut or flatten dimensions after the batch; stacked, these are one further back."""
        first, dim = node.args[0] if node.args else None, calls.argument(node, 1, "dim", 0)
        function = calls.callee(node)
        if (
            name in ("cat", "concat", "concatenate")
            and isinstance(dim, int)
            and isinstance(first, (tuple, list))
        ):
            rank = self._rank(first[0])
            if dim % rank:
                refs = [self._as(n, Form.STACKED) for n in first]
                self._define(node, Form.STACKED, self._emit(node, torch.cat, (refs, dim % rank + 1)))
                return True
        elif name in ("chunk", "split") and isinstance(first, fx.Node):
            dim, sections = calls.argument(node, 2, "dim", 0), calls.argument(node, 1, "chunks")
            if isinstance(dim, int) and dim % self._rank(first) and _is_number(sections):
                args = self._as(first, Form.STACKED), sections, dim % self._rank(first) + 1
                self._define(node, Form.STACKED, self._emit(node, Method(name), args))
                return True
        elif name == "flatten" and isinstance(first, fx.Node):
            start, end = calls.argument(node, 1, "start_dim", 0), calls.argument(node, 2, "end_dim", -1)
            rank = self._rank(first)
            if _is_number(start) and _is_number(end) and start % rank:
                args = self._as(first, Form.STACKED), start % rank + 1, end % rank + 1
                self._define(node, Form.STACKED, self._emit(node, function, args))
                return True
        return False

    def _whatever(self, node: fx.Node, function: Callable[..., Any] | None) -> None:
        """With the branches folded into the batch; layers treat all entries of a batch alike."""
        own = {self.own[n] for n in self._tensors(node)}
        if own == {Form.SHARED}:
            self._shared(node, function, False)
        elif self._loops(node):
            self._run_each(node, function)
        elif Form.SHARED in own and function is not None:
            self._run_batched(node)
        else:
            self._run(node, Form.BATCHED, function, plain=Form.GLOBAL)


def _clone(x: Tensor) -> Tensor:
    """A copy that has memory for every element, if branches are one tensor seen N times too."""
    return x.clone(memory_format=torch.contiguous_format if 0 in x.stride() else torch.preserve_format)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (
        isinstance(value, (tuple, list)) and bool(value) and all(isinstance(v, int) for v in value)
    )


def _dimensions(name: str) -> int | None:
    """2 for MaxPool2d and max_pool2d; None for names without a number of dimensions."""
    return int(name[-2]) if name[-1:] == "d" and name[-2:-1].isdigit() else None
