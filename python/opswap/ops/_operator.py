# SPDX-License-Identifier: MIT
"""One description of an operator; everything that torch needs of it is made from the description, here and once.

An eager call, torch.compile, torch.export, make_fx, torch.func, forward-mode AD, batched gradients and gradients of
gradients each reach an operator in another way. `Operator` registers it with torch.library and makes the autograd
Functions. `_derivatives` has the derivatives that several operators have in common.

`torch.autograd.Function.apply` inspects the signature of `forward` on every call if the class has a `setup_context`,
which costs three times as much as the rest of the call. Eager code therefore gets a class without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from opswap._torch import (
    below_autograd,
    can_write_autograd,
    dispatch_modes,
    forward_mode_active,
    function_below_transforms,
    functorch_active,
    nested_forward_mode,
    under_transforms,
)

from ._function import base_apply, needs_graph, plain_cpu, transforms_active
from ._library import library
from ._stats import count_reference, reference_forced

__all__ = ["Kept", "Operator", "PlainOperator", "join_batch", "one_example", "split_batch"]

Kept = tuple[Sequence[Tensor | None], Any]


def join_batch(info: Any, tensor: Tensor | None, dim: int | None, place: int = 0) -> Tensor | None:
    """Under vmap: the mapped dimension `dim` joins dimension `place` of one example, in front of it."""
    if tensor is None:
        return None
    if dim is None:
        sizes = tensor.shape
        mapped = tensor.unsqueeze(place).expand(*sizes[:place], info.batch_size, *sizes[place:])
    else:
        mapped = tensor.movedim(dim, place)
    return mapped.flatten(place, place + 1)


def split_batch(info: Any, tensor: Tensor, place: int = 0) -> Tensor:
    """The inverse of `join_batch`; the mapped dimension stays at `place`."""
    return tensor.unflatten(place, (info.batch_size, tensor.shape[place] // info.batch_size))


def one_example(dims: Sequence[Any], arguments: Sequence[Any], index: int) -> list[Any]:
    """The arguments of one example under vmap; dims: those of the first arguments, mapped or None."""
    places = (*dims, *[None] * (len(arguments) - len(dims)))
    return [t if d is None else t.select(d, index) for t, d in zip(arguments, places, strict=True)]


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


class PlainOperator:
    """`opswap::<schema>` without derivatives: it runs below an autograd Function or without a graph, for modes to see.

    Its arguments may be any, also several lists, and tensors that it writes.

    Args: schema, kernel, reference, fake, tags: as of `Operator`.
    Attributes: overload: the registered operator, torch.ops.opswap.NAME.default.
    """

    def __init__(
        self,
        schema: str,
        kernel: Callable[..., Any],
        reference: Callable[..., Any],
        fake: Callable[..., Any],
        tags: Sequence[torch.Tag] = (),
    ) -> None:
        self.name = schema.split("(")[0]
        self._kernel, self._reference = kernel, reference
        library.define(schema, tags=tuple(tags))
        library.impl(self.name, self._on_cpu, "CPU")
        library.impl(self.name, self._counted_reference, "CompositeExplicitAutograd")
        torch.library.register_fake(f"opswap::{self.name}", fake, lib=library)
        self.overload = getattr(torch.ops.opswap, self.name).default

    def __call__(self, *args: Any) -> Any:
        return self.overload(*args)

    def _counted_reference(self, *args: Any) -> Any:
        count_reference(self.name)
        return self._reference(*args)

    def _on_cpu(self, *args: Any) -> Any:
        return self._counted_reference(*args) if reference_forced() else self._kernel(*args)


class Operator(PlainOperator):
    """`opswap::<schema>` with derivatives, called with the arguments of the schema: tensors first, either one list of
    them or any number.

    Args:
        schema: of torch.library. The arguments after the tensors are called constants here.
        kernel: the operator on ordinary CPU tensors. It counts itself, and raises RuntimeError for what does not fit.
        reference: the same in torch's operators: for other devices, and if kernels are switched off.
        fake: outputs of the right sizes, strides and dtypes, for tensors without memory.
        differentiable: the number of outputs that have gradients; None is all.
        join: for each tensor the dimension that a dimension mapped by vmap joins; None: 0 for every tensor.
        split: that of an output, which vmap's dimension leaves again; a function if it depends on the output.
        resize: `resize(constants, count)`: the constants for a batch that is `count` times as large.
        batch: `batch(run, info, in_dims, *arguments)` -> outputs and their dimensions, if join and split are not
            enough;
            run: the operator without the mapped dimension.
        batched: in operators that torch batches by itself, for `torch.autograd.grad(..., is_grads_batched=True)`, whose
            vmap ignores rules. Without one torch calls the operator once per gradient.
        keep: `keep(constants, tensors, outputs)` -> tensors to save, and settings, for gradient and tangent.
        gradient: `gradient(saved, settings, needed, *gradients)` -> one gradient per tensor, None if not needed; those
            given are None for outputs that were not used. Written with operators, so that it has a gradient again.
        tangent: `tangent(saved, settings, *tangents)` -> the tangent of each differentiable output.
        spare: `spare(saved, needed)` -> of the tensors to save those that the gradient reads, None for the others;
            set after the operator is made. A tangent gets all of them.
        in_forward_mode: in place of a tangent, the operator in torch's own, which torch differentiates.
        tags: of torch.library.
    """

    def __init__(
        self,
        schema: str,
        kernel: Callable[..., Any],
        reference: Callable[..., Any],
        fake: Callable[..., Any],
        *,
        differentiable: int | None = None,
        join: Sequence[int] | None = None,
        split: int | Callable[[Tensor], int] = 0,
        resize: Callable[[tuple[Any, ...], int], tuple[Any, ...]] | None = None,
        batch: Callable[..., Any] | None = None,
        batched: Callable[..., Any] | None = None,
        keep: Callable[..., Kept] | None = None,
        gradient: Callable[..., Sequence[Tensor | None]] | None = None,
        tangent: Callable[..., Any] | None = None,
        in_forward_mode: Callable[..., Any] | None = None,
        tags: Sequence[torch.Tag] = (),
    ) -> None:
        super().__init__(schema, kernel, reference, fake, tags)
        inputs, results = schema.split("->")
        self._listed, self._lists = "Tensor[]" in inputs, "Tensor[]" in results
        self._count = 1 if self._listed else inputs.count("Tensor ") + inputs.count("Tensor? ")
        self._optional = "Tensor?" in inputs
        self._differentiable, self._resize, self._batch = differentiable, resize, batch
        self._join, self._split, self._in_forward_mode = join, split, in_forward_mode
        self.keep, self.gradient, self.tangent = keep, gradient, tangent
        self.spare: Callable[..., Sequence[Tensor | None]] | None = None
        self._register_derivatives(batched)
        self._eager = self.make_apply(self._run_kernel)

    def __call__(self, *args: Any) -> Any:
        count = self._count
        tensors = args[0] if self._listed else args[:count]
        given = [t for t in tensors if t is not None] if self._optional else tensors
        if plain_cpu(given):  # without the dispatcher, which halves the cost of a call
            try:
                return self._eager(args[count:], *tensors) if needs_graph(given) else self._kernel(*args)
            except RuntimeError:
                # The dispatcher finds memory that the extension does not, and the operator words the errors.
                pass
        if (
            not can_write_autograd and transforms_active()
        ):  # torch's own autograd of an operator refuses to run there
            return self._counted_reference(*args)
        return self.overload(*args)

    # --- arguments ---------------------------------------------------------------------------------------------------

    def _arguments(self, constants: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        return (list(tensors), *constants) if self._listed else (*tensors, *constants)

    def _run_kernel(self, constants: tuple[Any, ...], *tensors: Any) -> Any:
        kernel = self._kernel
        outputs = kernel(list(tensors), *constants) if self._listed else kernel(*tensors, *constants)
        return tuple(outputs) if self._lists else outputs

    # --- registration ------------------------------------------------------------------------------------------------

    def _register_derivatives(self, batched: Callable[..., Any] | None) -> None:
        name, full = self.name, f"opswap::{self.name}"
        if batched is not None:
            library.impl(name, batched, "Batched")
        torch.library.register_vmap(full, self._vmap_of_overload, lib=library)
        if can_write_autograd:
            library.impl(name, self._make_autograd(), "Autograd", with_keyset=True)
        else:
            backward, setup = self._backward_of_overload, self._setup_overload
            torch.library.register_autograd(full, backward, setup_context=setup, lib=library)

    def _make_autograd(self) -> Callable[..., Any]:
        """The kernel of the dispatcher's key Autograd.

        As torch.library.register_autograd, which has no forward mode, and under torch.func refuses to run.
        """

        def forward(ctx: Any, keys: Any, constants: tuple[Any, ...], *tensors: Any) -> Any:
            outputs = below_autograd(self.overload, keys, self._arguments(constants, tensors))
            made = tuple(outputs) if self._lists else outputs
            ctx.outputs = len(_as_tuple(made))
            ctx.save_for_forward(*self._record(ctx, 2, constants, tensors, _as_tuple(made), True))
            return made

        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return (None, None, *self._gradients(ctx, ctx.needs_input_grad[2:], grads))

        def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
            return self._jvp(ctx, *tangents)

        apply = function_below_transforms(self._title(), forward=forward, backward=backward, jvp=jvp)

        def autograd(keys: Any, *args: Any) -> Any:
            args = self._with_defaults(args)
            if self._in_forward_mode is not None and self._may_be_forward():
                return self._in_forward_mode(*args)
            if nested_forward_mode():
                return self._counted_reference(*args)
            tensors = args[0] if self._listed else args[: self._count]
            if not (needs_graph(tensors) or transforms_active()):
                return below_autograd(self.overload, keys, args)
            with under_transforms():
                outputs = apply(keys, args[self._count :], *tensors)
            return list(outputs) if self._lists else outputs

        return autograd

    @staticmethod
    def _may_be_forward() -> bool:
        """In a graph that torch.compile makes of torch.func, the mode of a level is not known."""
        return forward_mode_active() or bool(functorch_active() and dispatch_modes())

    def _setup_overload(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        tensors = inputs[0] if self._listed else inputs[: self._count]
        self._record(ctx, 0, tuple(inputs[self._count :]), tensors, _as_tuple(output))

    def _backward_of_overload(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        given = ctx.needs_input_grad
        needed = given[0] if self._listed else given[: self._count]
        gradients = list(self._gradients(ctx, needed, grads[0] if self._lists else grads))
        nones = (None,) * (len(given) - self._count)
        return (gradients, *nones) if self._listed else (*gradients, *nones)

    def _with_defaults(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The dispatcher leaves out arguments at the end that have their default values."""
        return (*args, *[a.default_value for a in self.overload._schema.arguments[len(args) :]])

    def _vmap_of_overload(self, info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
        dims, tensors = (v[0] if self._listed else v[: self._count] for v in (in_dims, args))
        outputs, places = self._batched(self.overload, info, dims, args[self._count :], tensors)
        return (list(outputs), list(places)) if self._lists else (outputs, places)

    # --- autograd ----------------------------------------------------------------------------------------------------

    def _record(
        self,
        ctx: Any,
        others: int,
        constants: Any,
        tensors: Any,
        outputs: tuple[Any, ...],
        fill: bool = False,
    ) -> Sequence[Any]:
        """Keep in ctx what the gradient needs. Returns: the tensors among it, and for a tangent those it spares.

        Args: others: arguments of the Function before the tensors; fill: zeros replace gradients and tangents that are
            missing.
        """
        saved: Sequence[Tensor | None] = ()
        if self.keep is not None:
            saved, ctx.settings = self.keep(constants, tensors, outputs)
        if self.spare is not None:
            needed = ctx.needs_input_grad[others : others + self._count]
            ctx.save_for_backward(*self.spare(saved, needed))
        elif saved:
            ctx.save_for_backward(*saved)
        if not fill and len(outputs) > 1:
            ctx.set_materialize_grads(False)
        if self._differentiable is not None and self._differentiable < len(outputs):
            ctx.mark_non_differentiable(*outputs[self._differentiable :])
        return saved

    def _gradients(self, ctx: Any, needed: Sequence[bool], grads: Sequence[Any]) -> Sequence[Tensor | None]:
        if len(grads) > 1:
            grads = grads[: self._differentiable]
            if grads[0] is None and all(g is None for g in grads):
                return (None,) * len(needed)
        if self.gradient is None:
            raise NotImplementedError(f"opswap::{self.name} has no gradient")
        return self.gradient(ctx.saved_tensors, ctx.settings, needed, *grads)

    def make_apply(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`apply(constants, *tensors)`: `run` with the operator's gradient, for calls with `plain_eager()` true."""

        def forward(ctx: Any, constants: tuple[Any, ...], *tensors: Any) -> Any:
            outputs = run(constants, *tensors)
            self._record(ctx, 1, constants, tensors, _as_tuple(outputs))
            return outputs

        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return None, *self._gradients(ctx, ctx.needs_input_grad[1:], grads)

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return base_apply(type(self._title(), (Function,), members))

    def _jvp(self, ctx: Any, _: Any, *tangents: Any) -> Any:
        if self.tangent is None:
            raise NotImplementedError(f"opswap::{self.name} has no derivative in forward mode")
        made = self.tangent(ctx.saved_tensors, ctx.settings, *tangents)
        if ctx.outputs == 1 and not self._lists:
            return made
        made = _as_tuple(made)
        return (*made, *(None for _ in range(ctx.outputs - len(made))))

    def _title(self) -> str:
        """Shown in `grad_fn`, so that a printed graph names the operator."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    # --- vmap --------------------------------------------------------------------------------------------------------

    def _batched(
        self,
        run: Callable[..., Any],
        info: Any,
        dims: Sequence[Any],
        constants: tuple[Any, ...],
        tensors: Any,
    ) -> Any:
        """The outputs for a mapped call, and their mapped dimensions; run: the operator, for joined tensors."""
        if info.batch_size == 0:  # what one example of zeros gives, without that example
            one = [_one_of_zeros(t, d) for t, d in zip(tensors, dims, strict=True)]
            return _without_it(*self._batched(run, info._replace(batch_size=1), dims, constants, one))
        if self._batch is not None:
            return self._batch(run, info, dims, *self._arguments(constants, tensors))
        places = self._join or (0,) * len(tensors)
        joined = [join_batch(info, t, d, p) for t, d, p in zip(tensors, dims, places, strict=True)]
        if self._resize is not None:
            constants = self._resize(constants, info.batch_size)
        made = run(*self._arguments(constants, joined))
        outputs = _as_tuple(made)
        left = [self._split(t) if callable(self._split) else self._split for t in outputs]
        parts = tuple([split_batch(info, t, p) for t, p in zip(outputs, left, strict=True)])
        return (parts[0], left[0]) if isinstance(made, Tensor) else (parts, tuple(left))


def _one_of_zeros(t: Tensor, dim: int | None) -> Tensor:
    """One example in place of none along a mapped dimension; t itself if none is mapped."""
    return t if dim is None else t.new_zeros([*t.shape[:dim], 1, *t.shape[dim + 1 :]])


def _without_it(made: Any, places: Any) -> Any:
    """The outputs of a mapped call of one example, and their mapped dimensions, without the example."""
    if isinstance(made, Tensor):
        return made.narrow(places, 0, 0), places
    parts = zip(made, places, strict=True)
    return tuple([t if p is None else t.narrow(p, 0, 0) for t, p in parts]), places
