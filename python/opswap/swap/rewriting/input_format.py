# SPDX-License-Identifier: MIT
"""Run a model in one memory format: convert its parameters, and its inputs in a hook; and undo both.

What a forward writes to a converted argument in place is written to the caller's tensor too, in a second hook.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from opswap._table import short_name
from opswap._torch import functorch_active
from opswap.ops._layout import dense_strides

__all__ = [
    "check_memory_format",
    "install_input_format",
    "keep_optimizer",
    "memory_format_of",
    "remove_input_formats",
]

_NDIMS = {
    torch.contiguous_format: (4, 5),
    torch.channels_last: (4,),
    torch.channels_last_3d: (5,),
}
_Layout = tuple[tuple[int, ...], tuple[int, ...]]


class _Hook:
    @property
    def __name__(self) -> str:
        """Looked up by torch.jit.script, which compiles hooks from their source."""
        raise AttributeError(
            "torch.jit.script cannot compile the conversion to a memory format: call opswap.unswap(model) first"
        )


@dataclass(eq=False)
class _InputFormat(_Hook):
    """A forward pre-hook that converts the tensors among the arguments to a memory format.

    name: of the format, which torch.save cannot write. before: sizes and strides that parameters and buffers
    had, by name. optimizers: those whose state is converted with the parameters; copies of the hook know none.
    """

    name: str = ""
    before: dict[str, _Layout] = field(default_factory=dict)
    optimizers: list[ref[Optimizer]] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "optimizers": []}

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = (*args, *kwargs.values())
        made: list[Any] = []
        for value in given:
            for before, converted in zip(given, made, strict=False):
                if before is value:  # one tensor given twice stays one
                    made.append(converted)
                    break
            else:
                made.append(self._bring(value))
        return tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True))

    def _bring(self, value: Any) -> Any:
        memory_format = getattr(torch, self.name)
        # vmap cannot convert a tensor of which it hides a dimension
        if not isinstance(value, Tensor) or not _has_format(value, memory_format) or functorch_active():
            return value
        if _is_traced():
            return value.contiguous(memory_format=memory_format)
        # Not an inference tensor, which counts no writes.
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            converted = value.contiguous(memory_format=memory_format)
        if converted is not value:
            converted._opswap_given = ref(value), converted._version
        return converted


class _WriteBack(_Hook):
    """A forward hook: the caller's tensors get what the model wrote to those that `_InputFormat` made of them."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        for value in () if _is_traced() else (*args, *kwargs.values()):
            known = vars(value) if isinstance(value, Tensor) else {}
            reference, version = known.pop("_opswap_given", (None, 0))
            given = reference and reference()
            if given is not None and value._version != version:
                given.copy_(value)


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def _has_format(tensor: Tensor, memory_format: torch.memory_format) -> bool:
    """Whether there are tensors like this one in the format: not of sparse, nested and MKLDNN ones."""
    strided = tensor.layout == torch.strided and not tensor.is_nested
    return strided and tensor.dim() in _NDIMS[memory_format]


def check_memory_format(memory_format: Any) -> None:
    """Raise TypeError for an object that is not a memory format, ValueError for one that models cannot run in."""
    if not isinstance(memory_format, torch.memory_format):
        raise TypeError(f"swap: memory_format must be a torch.memory_format, got {memory_format!r}")
    if memory_format not in _NDIMS:
        raise ValueError(f"swap: memory_format must be one of {tuple(_NDIMS)}, got {memory_format}")


def install_input_format(model: nn.Module, memory_format: torch.memory_format) -> None:
    """Convert parameters and buffers of as many dimensions as the format has, and from now on such inputs.

    If a tensor cannot be converted, or the call is interrupted, all is put back and the error is raised.
    """
    before: dict[str, _Layout] = {}
    converted: list[tuple[Tensor, Tensor]] = []
    hooks, optimizers = [dict(h) for h in _hooks(model)], _optimizers(model)
    try:
        for name, tensor in _tensors(model):
            if not _has_format(tensor, memory_format):
                continue
            stride = dense_strides(tensor.shape, memory_format)
            if tensor.stride() != stride:
                before[name] = tuple(tensor.shape), tensor.stride()
                together = _together(tensor, optimizers)
                converted += [(t, t.data) for t in together]
                _convert(together, stride)
        former = _remove_hook(model)
        name = short_name(memory_format)
        hook = _InputFormat(name, before | former.before, former.optimizers)
        model.register_forward_pre_hook(hook, with_kwargs=True)
        model.register_forward_hook(_WriteBack(), with_kwargs=True)
    except BaseException:
        for tensor, data in converted:
            tensor.data = data
        for held, entries in zip(_hooks(model), hooks, strict=True):
            held.clear()
            held.update(entries)
        raise


def _hooks(module: nn.Module) -> tuple[dict[int, Any], ...]:
    before = module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs
    return *before, module._forward_hooks, module._forward_hooks_with_kwargs


def remove_input_formats(model: nn.Module) -> None:
    """Undo what `install_input_format` did to the model or to a part of it."""
    optimizers = _optimizers(model)
    for module in model.modules():
        before = _remove_hook(module).before
        for name, tensor in _tensors(module):
            size, stride = before.get(name, (None, None))
            if tuple(tensor.shape) == size and tensor.stride() != stride:
                _convert(_together(tensor, optimizers), stride)


def keep_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Convert the optimizer's state with the parameters whenever the model's format changes; see `_together`."""
    for _, hook in _format_hooks(model):
        others = [r for r in hook.optimizers if r() not in (None, optimizer)]
        hook.optimizers = [*others, ref(optimizer)]


def memory_format_of(model: nn.Module) -> str:
    """The name of the memory format that the model's inputs are converted to, or ""."""
    return next((hook.name for _, hook in _format_hooks(model)), "")


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _optimizers(model: nn.Module) -> list[Optimizer]:
    """Those of the model and of its parts that are still alive."""
    hooks = [hook for module in model.modules() for _, hook in _format_hooks(module)]
    return [o for hook in hooks for r in hook.optimizers if (o := r()) is not None]


def _together(tensor: Tensor, optimizers: list[Optimizer]) -> list[Tensor]:
    """The tensor, its gradient and its state: fused optimizers read them side by side, in the order of memory."""
    state = [v for o in optimizers for v in o.state.get(tensor, {}).values() if type(v) is Tensor]
    found = [t for t in (tensor, tensor.grad, *state) if t is not None and t.shape == tensor.shape]
    return [t for t in found if t.layout == torch.strided]


def _convert(tensors: list[Tensor], stride: tuple[int, ...]) -> None:
    """Give the tensors these strides; they stay the same objects."""
    for t in tensors:
        t.data = torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t.data)


def _format_hooks(module: nn.Module) -> list[tuple[int, _InputFormat]]:
    return [(key, hook) for key, hook in module._forward_pre_hooks.items() if isinstance(hook, _InputFormat)]


def _remove_hook(module: nn.Module) -> _InputFormat:
    """Remove both hooks; returns the first, or one without a record."""
    removed = _InputFormat()
    for key in [k for k, hook in module._forward_hooks.items() if isinstance(hook, _WriteBack)]:
        del module._forward_hooks[key], module._forward_hooks_with_kwargs[key]
    for key, hook in _format_hooks(module):
        removed = hook
        del module._forward_pre_hooks[key], module._forward_pre_hooks_with_kwargs[key]
    return removed
