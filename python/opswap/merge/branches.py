# SPDX-License-Identifier: MIT
"""N equal branches as one module."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from opswap._torch import on_its_own, tree_map

from ..ops.linear import register_flops
from .build import build
from .carry import build_tree, check_layers, empty_copy, fill_branches, fill_merged, tensor_links
from .examples import guess_example
from .forms import Form, change_form
from .layers import RECORDED, Layer
from .layers.conv import BranchConv
from .measure import Timing, pick_plans
from .plan import Plan
from .program import Program
from .prove import prove
from .report import MergeReport, describe
from .structure import check_structure
from .trace import Trace, capture_all, text_of, trace
from .watch import Watch, changed_place, failure, holds, watch

__all__ = ["MergedBranches", "branches"]

_NAME = "branches"
_CHANGED = (
    f"{_NAME}: the merged module would not compute what its branches do, which read something that changed"
)
_BATCHES = (2, 3)
# Layers that also accept a tensor without a batch, in which the branches would be put at another place.
_WITHOUT_BATCH = tuple(
    cls
    for name, cls in vars(nn).items()
    if isinstance(cls, type) and name[-1:] == "d" and ("Conv" in name or "Pool" in name)
)
# Sizes of inputs that a merged module has a measured program for, in each mode.
_MEASURED = 16


def branches(
    modules: Sequence[nn.Module],
    *,
    shared_input: bool | Sequence[bool] = True,
    example_input: Tensor | tuple[Tensor, ...] | None = None,
    stacked: bool = True,
) -> MergedBranches:
    """One module for N structurally equal ones, with copies of their trained tensors and gradients.

    Args:
        modules: the branches; they stay as they are. They may differ in the values of their tensors, and in the
            out_features of Linears whose results are only returned (ragged heads).
        shared_input: the branches read one and the same input, which is never repeated; False if each has its
            own. For forwards with several inputs, one bool per input.
        example_input: what one branch is called with; its sizes and dtype are used for the proof, and `measure`
            runs. None: sizes are guessed from the first layer, and nothing is measured.
        stacked: one output for all branches; False for a list of theirs, as the loop makes it, which saves a copy if
            the branches are fastest one after another.
    Returns: a module whose state_dict has the keys of one branch, each tensor with those of all branches.
        In a branch's own output (B, *) becomes (B, N, *), ragged ones (B, *, sum of out_features).
    Raises: TypeError and ValueError that name the first difference between the branches, or what cannot be merged.
    The merged module is compared with the loop on random inputs, forward and backward, before it is returned.
    Dropout draws one mask per branch, but from another stream of random numbers than the loop does.
    """
    modules = check_structure(modules)
    given = example_input is not None
    example = (example_input,) if isinstance(example_input, Tensor) else example_input
    example = guess_example(modules[0]) if example is None else tuple(example)
    shared = (shared_input,) * len(example) if isinstance(shared_input, bool) else tuple(shared_input)
    if len(shared) != len(example):
        raise ValueError(
            f"{_NAME}: {len(example)} inputs, but shared_input has {len(shared)}: {list(shared)}"
        )
    with torch.inference_mode(False), torch.enable_grad():
        merged = MergedBranches(modules, shared, example, recorded=not given, stacked=stacked)
    if given:
        inputs = [x if s else [x] * len(modules) for x, s in zip(example, shared, strict=True)]
        merged.measure(*inputs)
    return merged


Programs = dict[str, list[tuple[int, Program]]]


@dataclass
class _State:
    """The state of a merged module besides its tensors.

    wrapped: the branches are single layers, put into a Sequential each. example: empty tensors of a branch's input
    sizes. stacked: the output is one of all branches. text: the graph of a branch. watch: what it read. batched:
    the inputs must have as many dimensions as the example: convolutions and pools accept an image without a batch
    too. programs: by "training" and "inference", pairs of the input's elements and the program measured for them.
    others: such programs by the dimensions of the inputs of a branch, if these are not the example's.
    """

    empty_copies: tuple[nn.Module, ...]
    wrapped: bool
    shared: tuple[bool, ...]
    example: tuple[Tensor, ...]
    stacked: bool
    separate: dict[str, str]
    text: list[str]
    watch: Watch = field(default_factory=Watch)
    batched: bool = False
    programs: Programs = field(default_factory=dict)
    others: dict[tuple[int, ...], Programs] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)

    def known(self, inputs: Sequence[Any]) -> Programs | None:
        """The programs for inputs of as many dimensions, None if there are none yet."""
        dimensions = tuple([_dimensions(x, s) for x, s in zip(inputs, self.shared, strict=True)])
        if dimensions == tuple([x.dim() for x in self.example]):
            return self.programs
        return self.others.get(dimensions)

    def keep(
        self, programs: Programs, mode: str, elements: int, program: Program, timings: list[Timing]
    ) -> None:
        """Run this program for inputs of about as many elements; forget the size measured longest ago."""
        others = [(n, p) for n, p in programs[mode] if n not in (0, elements)]
        programs[mode] = [*others[1 - _MEASURED :], (elements, program)]
        sizes = {n for n, _ in others[1 - _MEASURED :]}
        self.timings = [t for t in self.timings if t.mode != mode or t.elements in sizes] + timings


class MergedBranches(nn.Module):
    """N branches as one; made by `branches`.

    Shape: shared input (B, *), or own inputs as (B, N, *) or a list of N; output (B, N, *), ragged (B, *, total),
        or a list of N.
    The layers have the paths that they have in a branch.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        shared: tuple[bool, ...],
        example: tuple[Tensor, ...],
        recorded: bool = False,
        stacked: bool = True,
    ) -> None:
        super().__init__()
        register_flops()
        wrapped = _is_single_layer(modules[0])
        if wrapped:
            modules = [_in_sequential(m) for m in modules]
        traced = _trace(modules, example)
        empty = tuple(torch.empty_like(x, device="meta") for x in example)
        build_tree(self, modules, traced.separate)
        watched = watch(self, modules, traced.captures)
        empty_copies = tuple(empty_copy(m, watched.objects) for m in modules)
        text = text_of(traced.graph)
        batched = any(isinstance(m, _WITHOUT_BATCH) for m in modules[0].modules())
        self._merge = _State(
            empty_copies, wrapped, shared, empty, stacked, traced.separate, text, watched, batched
        )
        fill_merged(self, modules)
        program = self._proven(traced, modules, empty, Plan())
        if recorded:
            for way in sorted({way for m in self.modules() if isinstance(m, Layer) for way in m.ways}):
                self._proven(traced, modules, empty, Plan(default=way), evaluation=False)
            program = build(traced, self, shared, len(modules), Plan(default=RECORDED), stacked)
            self._choose(program, example)
        self._merge.programs = {"training": [(0, program)], "inference": [(0, program)]}

    def _proven(
        self,
        traced: Trace,
        modules: Sequence[nn.Module],
        example: Sequence[Tensor],
        plan: Plan,
        evaluation: bool = True,
    ) -> Program:
        state = self._merge
        program = build(traced, self, state.shared, len(modules), plan, state.stacked)
        prove(self, program, modules, example, state.shared, evaluation=evaluation)
        return program

    def _choose(self, program: Program, example: Sequence[Tensor]) -> None:
        """Look up the ways of the convolutions for inputs of the example's sizes."""
        twin = copy.deepcopy(self).eval()
        inputs = [
            x if form is Form.SHARED else [x] * program.branches
            for x, form in zip(example, program.inputs, strict=True)
        ]
        for training in (True, False):
            with torch.set_grad_enabled(training):
                program.run(twin, _enter_all(program, [_detached(x) for x in inputs]))
        for path, module in twin.named_modules():
            if isinstance(module, BranchConv):
                self.get_submodule(path).choices.update(module.choices)

    def forward(self, *inputs: Any) -> Any:
        state = self._merge
        self._check_inputs(inputs)
        if not holds(state.watch, self):
            self._look_again()
        mode = "training" if torch.is_grad_enabled() else "inference"
        programs = state.known(inputs) or self._learn(inputs)
        program = _nearest(programs[mode], _elements(inputs[0]))
        return program.run(self, _enter_all(program, inputs))

    def _learn(self, inputs: Sequence[Any]) -> Programs:
        """The program for inputs of other dimensions than the example, as (B, T, C) for Linears merged with (B, C)."""
        state = self._merge
        dimensions = tuple([_dimensions(x, s) for x, s in zip(inputs, state.shared, strict=True)])
        if torch.compiler.is_compiling():
            raise RuntimeError(
                f"{_NAME}: merged for inputs of {[x.dim() for x in state.example]} dimensions, got {list(dimensions)}; "
                "call the module once without torch.compile, or merge with such an example_input"
            )
        with on_its_own(), torch.inference_mode(False), torch.enable_grad():
            modules = self._branches()
            example = [_of_branch(x, s) for x, s in zip(inputs, state.shared, strict=True)]
            program = self._proven(_trace(modules, example), modules, example, Plan())
        programs = {mode: [(0, program)] for mode in state.programs}
        # Another thread may be copying the dictionary: it is replaced, not written to.
        state.others = {dimensions: programs, **state.others}
        return state.others[dimensions]

    def _look_again(self) -> None:
        """Something that the branches read has changed: raise unless their forwards are the same graph as before."""
        if torch.compiler.is_compiling():  # which follows no code that words a reason
            raise RuntimeError(f"{_CHANGED}. Without torch.compile, the error names it")
        state = self._merge
        error = RuntimeError(
            f"{_CHANGED}: {failure(state.watch, self)}. split_back() gives modules that read it anew, and they "
            "can be merged"
        )
        if changed_place(state.watch, self):
            raise error
        try:
            captures = capture_all(state.empty_copies, state.separate)
        except ValueError as reason:
            raise error from reason
        if any(text_of(c.graph) != state.text for c in captures):
            raise error
        state.watch = watch(self, state.empty_copies, captures)

    def _check_inputs(self, inputs: Sequence[Any]) -> None:
        expected = len(self._merge.shared)
        if len(inputs) != expected:
            raise TypeError(f"{_NAME}: expected {expected} inputs, got {len(inputs)}")
        for x, shared in zip(inputs, self._merge.shared, strict=True):
            _check_input(x, shared, len(self._merge.empty_copies))
        if self._merge.batched:
            self._check_dimensions(inputs)

    def _check_dimensions(self, inputs: Sequence[Any]) -> None:
        for given, example, shared in zip(inputs, self._merge.example, self._merge.shared, strict=True):
            if isinstance(given, Tensor) and given.dim() != example.dim() + (not shared):
                known = f"(B, *) of {example.dim()} dimensions"
                size = known if shared else f"(B, {len(self._merge.empty_copies)}, *)"
                raise ValueError(f"{_NAME}: expected an input {size}, got one of size {tuple(given.shape)}")

    def split_back(self) -> list[nn.Module]:
        """N plain modules of the branches' classes, with copies of tensors, gradients and training flags."""
        modules = self._branches()
        return [m[0] for m in modules] if self._merge.wrapped else modules

    def _branches(self) -> list[nn.Module]:
        state = self._merge
        modules = [copy.deepcopy(m, {id(o): o for o in state.watch.objects}) for m in state.empty_copies]
        fill_branches(self, modules)
        return modules

    def separate(self, output: Any) -> list[Any]:
        """The output of this module as the loop has it: one for each branch, of the structure that a branch returns.

        Args:
            output: what a call returned, or one tensor of it.
        Raises: ValueError for a tensor of other sizes, and for one of several if sizes do not determine which one it
            is: pass the whole output then.
        """
        state, n = self._merge, len(self._merge.empty_copies)
        if not state.stacked:
            return output
        sections = state.programs["training"][0][1].sections
        if isinstance(output, Tensor):
            return _separated(output, sections, n)
        left = iter(sections)
        parts = tree_map(
            lambda y: _Parts(_separated(y, (next(left),), n) if isinstance(y, Tensor) else [y] * n), output
        )
        return [tree_map(lambda own, i=i: own.parts[i], parts) for i in range(n)]

    def reset_parameters(self) -> None:
        """Initialise every branch anew as its own layers do."""
        check_layers(self, self._merge.empty_copies[0])
        modules = self._branches()
        for branch in modules:
            for m in branch.modules():
                if hasattr(m, "reset_parameters"):
                    m.reset_parameters()
        fill_merged(self, modules)

    def parameter_moves(
        self, modules: Sequence[nn.Module]
    ) -> list[tuple[list[nn.Parameter], list[nn.Parameter]]]:
        """For every parameter those of the branches and the merged one, as arguments of `move_parameters`."""
        modules = [_in_sequential(m) for m in modules] if self._merge.wrapped else list(modules)
        if len(modules) != len(self._merge.empty_copies):
            raise ValueError(
                f"{_NAME}: expected {len(self._merge.empty_copies)} branches, got {len(modules)}"
            )
        found = [link for link in tensor_links(self, modules) if isinstance(link.whole, nn.Parameter)]
        return [(link.parts, [link.whole]) for link in found]

    def measure(self, *inputs: Any, seconds: float = 1.0) -> MergeReport:
        """Time the ways to run this module on inputs of these sizes, and use the fastest for them.

        Args:
            inputs: as in a call. seconds: for each of training (forward and backward) and inference.
        Every convolution is timed grouped, one branch after another, and as a batched product if its kernel
        is 1 x 1; then whole programs are. Calls with other sizes use what was measured for
        the nearest number of elements. Tensors and gradients are left as they were, and so are random generators:
        numbers that other threads draw from those of the process meanwhile are drawn again.
        """
        self._check_inputs(inputs)
        empty = [name for name, t in self.state_dict(keep_vars=True).items() if t.is_meta]
        if empty:
            raise ValueError(f"{_NAME}: {empty[0]} is on the meta device: nothing can be measured there")
        check_layers(self, self._merge.empty_copies[0])
        with torch.inference_mode(False), torch.enable_grad():
            self._measure(tuple(_detached(x) for x in inputs), seconds)
        return self.merge_report()

    def _measure(self, inputs: tuple[Any, ...], seconds: float) -> None:
        state = self._merge
        if not holds(state.watch, self):
            self._look_again()
        modules = self._branches()
        programs = state.known(inputs) or self._learn(inputs)
        example = [_of_branch(x, s) for x, s in zip(inputs, state.shared, strict=True)]
        if programs is state.programs:  # sizes are those of the proof; dtype and device may be others by now
            example = [
                torch.empty_like(x, dtype=y.dtype, device=y.device)
                for x, y in zip(state.example, example, strict=True)
            ]
        traced = _trace(modules, example)
        elements = _elements(inputs[0])

        def make(plan: Plan) -> Program:
            return build(traced, self, state.shared, len(modules), plan, state.stacked)

        for mode, plan, rows in pick_plans(self, traced, inputs, _enter_all, make, seconds):
            program = self._proven(traced, modules, example, plan)
            state.keep(programs, mode, elements, program, [Timing(mode, elements, *row) for row in rows])

    def merge_report(self) -> MergeReport:
        """What became of every layer, what was not merged and why, and what was measured."""
        state = self._merge
        return describe(self, state.empty_copies, state.separate, state.programs, state.timings)


@dataclass(frozen=True)
class _Parts:
    """What the branches have of one tensor of an output."""

    parts: Sequence[Any]


def _separated(output: Tensor, sections: Sequence[tuple[int, ...]], branches: int) -> list[Tensor]:
    """One tensor for each branch; sections: what it may be, as in `Program`."""
    axis = min(1, output.dim() - 1)  # numbers of the branches are a vector
    stacked = axis >= 0 and output.shape[axis] == branches
    fits = {own for own in sections if (output.shape[-1:] == (sum(own),) if own else stacked)}
    if not fits:
        sizes = [f"(B, *, {sum(own)})" if own else f"(B, {branches}, *)" for own in dict.fromkeys(sections)]
        raise ValueError(
            f"{_NAME}: expected an output {' or '.join(sizes)}, got one of size {tuple(output.shape)}"
        )
    if len(fits) > 1:
        raise ValueError(
            f"{_NAME}: a tensor of size {tuple(output.shape)} may be one of several outputs; pass all that the module "
            "returned to separate()"
        )
    own = fits.pop()
    if own:
        return list(output.split(own, -1))
    return list(change_form(output, Form.STACKED, Form.LISTED, branches) if axis else output.unbind())


def _is_single_layer(module: nn.Module) -> bool:
    return not module._modules and type(module).__module__.startswith("torch.nn.")


def _in_sequential(module: nn.Module) -> nn.Sequential:
    return nn.Sequential(module).train(module.training)


def _trace(modules: Sequence[nn.Module], example: Sequence[Tensor]) -> Trace:
    runs = [tuple(_sample(x, batch) for x in example) for batch in _BATCHES]
    return trace(modules, runs)


def _sample(x: Tensor, batch: int) -> Tensor:
    make = torch.ones if x.is_floating_point() else torch.zeros
    return make(batch, *x.shape[1:], dtype=x.dtype, device=x.device)


def _of_branch(given: Any, shared: bool) -> Tensor:
    """An empty tensor like what one branch gets of an input, a tensor for one or for all, or a list."""
    own = given[0] if not isinstance(given, Tensor) else given if shared else given[:, 0]
    return torch.empty(own.shape, dtype=own.dtype, device=own.device)


def _dimensions(given: Any, shared: bool) -> int:
    """Of what one branch gets of an input."""
    return given.dim() - (not shared) if isinstance(given, Tensor) else given[0].dim()


def _detached(x: Any) -> Any:
    """Copies of the inputs, which require a gradient if the given ones do."""
    if not isinstance(x, Tensor):
        return [_detached(t) for t in x]
    own = x.clone() if x.is_inference() else x.detach()
    return own.requires_grad_(x.requires_grad)


def _elements(x: Any) -> int:
    return x.numel() if isinstance(x, Tensor) else sum(t.numel() for t in x)


def _nearest(programs: Sequence[tuple[int, Program]], elements: int) -> Program:
    best, found = None, programs[0][1]
    for measured, program in programs:
        distance = max(measured, 1) / max(elements, 1)
        distance = distance if distance >= 1 else 1 / distance
        if best is None or distance < best:
            best, found = distance, program
    return found


def _enter_all(program: Program, inputs: Sequence[Any]) -> list[Any]:
    forms = zip(inputs, program.inputs, strict=True)
    return [_to_form(x, form, program.branches) for x, form in forms]


def _check_input(x: Any, shared: bool, branches: int) -> None:
    if shared and not isinstance(x, Tensor):
        raise TypeError(f"{_NAME}: expected one shared tensor, got a {type(x).__name__}")
    if not shared and isinstance(x, Tensor) and (x.dim() < 2 or x.shape[1] != branches):
        raise ValueError(f"{_NAME}: expected an input (B, {branches}, *), got one of size {tuple(x.shape)}")
    if not isinstance(x, Tensor) and len(x) != branches:
        raise ValueError(f"{_NAME}: expected {branches} inputs in the list, got {len(x)}")


def _to_form(x: Any, form: Form, branches: int) -> Any:
    """An input in the form that a program wants."""
    if form is Form.SHARED:
        return x
    if isinstance(x, Tensor):
        return x.unbind(1) if form is Form.LISTED else x
    return list(x) if form is Form.LISTED else torch.stack(list(x), 1)
