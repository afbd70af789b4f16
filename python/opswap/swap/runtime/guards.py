# SPDX-License-Identifier: MIT
"""What a rewritten forward asks before it takes the fused path.

All of it runs in every forward, and torch.compile and torch.export trace through it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from opswap._torch import any_global_hook, fake_copy, is_wrapper
from opswap.ops._function import plain_cpu
from opswap.ops._layout import cat_memory_format, suggest_memory_format
from opswap.ops._stats import count_original

from .instance_forward import without_links
from .outside import Outside, stands
from .state import INTERNAL, State, stock_class, unchanged

__all__ = [
    "CONVOLUTIONS",
    "NORMS",
    "Record",
    "activation_of",
    "covers",
    "fills",
    "find_class",
    "foresees",
    "give_contiguous",
    "holds",
    "hooked",
    "in_mode",
    "indexes",
    "joins",
    "meant_for_channels_last",
    "missed",
    "narrow_weight",
    "normable",
    "on_cpu",
    "one_map_a_group",
    "one_weight_a_group",
    "owned",
    "pays",
    "plain",
    "poolable",
    "require",
    "trains",
    "unhooked",
    "unpackable",
    "wins",
]

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_ACTIVATIONS = {nn.ReLU: "relu", nn.ReLU6: "relu6", nn.Hardswish: "hardswish"}


@dataclass(frozen=True)
class Record:
    """What was done to one module: kept on the instance, copied and pickled with it.

    `root` and `opened` are the states at the time of the capture, `passed` those of containers whose children
    are called but not they themselves; `sites` are relative to the module. `read` are the states of modules of which
    something was read, `outside` what belongs to no module. `known` has the answers of `foresees`, `told` what the
    log was told of.
    """

    root: State
    opened: tuple[tuple[nn.Module, State], ...]
    passed: tuple[tuple[nn.Module, State], ...]
    sites: tuple[Any, ...]
    read: tuple[tuple[nn.Module, State], ...] = ()
    outside: Outside = field(default_factory=Outside)
    known: dict[Any, bool] = field(default_factory=dict, compare=False)
    told: dict[str, object] = field(default_factory=dict, compare=False)


def hooked(module: nn.Module) -> bool:
    """True where calling the module does more than its forward."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or (
            # not the one of opswap, see `instance_forward`
            "forward" in module.__dict__
            and module.__dict__["forward"] is not module.__dict__.get("_opswap_forward")
        )
    )


def holds(module: nn.Module, *inputs: Any) -> bool:
    """True where the captured forward still means what the module's own forward means."""
    record = getattr(module, "_opswap_record", None)
    if record is None or not unchanged(module, record.root):
        return False
    for x in inputs:
        if not isinstance(x, Tensor):
            return False
    if record.opened and any_global_hook():
        return False
    for child, state in record.opened:
        if hooked(child) or stock_class(child) is not state.cls or not unchanged(child, state):
            return False
    for child, state in record.passed:
        if not unchanged(child, state):
            return False
    for child, state in record.read:
        if type(child) is not state.cls and stock_class(child) is not state.cls:
            return False
        if not unchanged(child, state):
            return False
    return stands(record.outside)


def in_mode(module: nn.Module, training: bool) -> bool:
    """True where the module and everything opened in it have this training flag."""
    if module.training is not training:
        return False
    for child, _ in module._opswap_record.opened:  # noqa: SIM110 (a generator is not traceable)
        if child.training is not training:
            return False
    return True


def foresees(guard: Callable[..., bool], read: tuple[str, ...], module: nn.Module, *inputs: Tensor) -> bool:
    """True if a guard that calls the module's children, or asks its tensors, holds for inputs of these sizes.

    It is asked of a copy on tensors without data, so that no child's state changes, and once for the same sizes and
    the same children. With hooks on a child, which would notice and may change sizes, it is never asked.

    Args: read: the modules and tensors that the guard reads, by their paths below the module.
    """
    if torch.compiler.is_compiling() or any_global_hook():
        return False
    if any(hooked(m) for m in module.modules() if m is not module):
        return False
    known = module._opswap_record.known
    found = tuple(_signature(attrgetter(path)(module)) for path in read)
    modes = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"), torch.get_default_dtype()
    key = guard.__name__, modes, found, tuple(map(_metadata, inputs))
    try:
        answer = known.pop(key, None)
    except TypeError:  # an attribute of a child cannot be a key
        return _foresee(guard, module, inputs)
    if answer is None:
        answer = _foresee(guard, module, inputs)
    known[key] = answer  # the last one is the newest
    while len(known) > _KNOWN:
        known.pop(next(iter(known)), None)
    return answer


_KNOWN = 64  # answers about sizes that one module keeps


def _foresee(guard: Callable[..., bool], module: nn.Module, inputs: tuple[Tensor, ...]) -> bool:
    made = fake_copy(lambda: copy.deepcopy((module, *(x.detach() for x in inputs))))
    if made is None:
        return False
    (twin, *twins), mode = made
    with mode, torch.no_grad():
        return bool(guard(twin, *twins))


def _signature(value: nn.Module | Tensor | None) -> Any:
    """All that the sizes of what a module returns depend on, or what code may ask a tensor for."""
    if not isinstance(value, nn.Module):
        return _metadata(value)
    return tuple(
        (
            type(m),
            m.training,
            tuple(
                (k, tuple(v) if type(v) is list else v)
                for k, v in without_links(vars(m)).items()
                if k not in INTERNAL
            ),
            tuple(_metadata(t) for held in (m._parameters, m._buffers) for t in held.values()),
        )
        for m in value.modules()
    )


def _metadata(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        return tensor
    strided = tensor.layout is torch.strided
    return (
        tensor.shape,
        tensor.stride() if strided else None,
        tensor.dtype,
        tensor.device,
        tensor.layout,
        tensor.requires_grad,
    )


def require(fact: Any, answer: bool, module: str, name: str, args: tuple[Any, ...]) -> None:
    """Raise what the original forward raises, the class `name` of `module`, where a fact is not as captured."""
    if bool(fact) is not answer:
        raise find_class(module, name)(*args)


def unpackable(values: Any, number: int) -> None:
    """Raise what Python raises where values are unpacked to another number of names."""
    found = len(values)
    if found > number:
        raise ValueError(f"too many values to unpack (expected {number})")
    if found < number:
        raise ValueError(f"not enough values to unpack (expected {number}, got {found})")


def find_class(module: str, name: str) -> Any:
    """The object of this qualified name, None where there is none."""
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def missed(module: nn.Module) -> None:
    """Count a call that takes the original forward."""
    if not torch.compiler.is_compiling():
        count_original(type(module).__qualname__)


def covers(
    tensors: tuple[Tensor, ...],
    groups: int,
    ndims: tuple[int, ...],
    channels: tuple[int, ...] | None = None,
    spatial: tuple[tuple[int, ...], ...] | None = None,
    batches: tuple[int, ...] | None = None,
) -> bool:
    """True where the proof of a channel permutation reaches these tensors.

    Args:
        tensors: the tensors side by side, (N, C_i, *); they must be of one dtype, which torch.cat would
            otherwise promote, and of a class that opswap's operators know.
        groups: must divide C = sum of the C_i.
        ndims, channels, spatial, batches: dimensions, values of C, sizes after it and values of N that were
            proven; None is any.
    """
    first = tensors[0]
    total = 0
    for t in tensors:
        if t.dim() not in ndims or t.dtype != first.dtype or t.device != first.device:
            return False
        if type(t) is not Tensor and is_wrapper(t):
            return False
        total += t.shape[1]
    if total % groups or (channels is not None and total not in channels):
        return False
    if batches is not None and first.shape[0] not in batches:
        return False
    return spatial is None or tuple(first.shape[2:]) in spatial


def give_contiguous(tensors: tuple[Tensor, ...]) -> bool:
    """True where what opswap joins of these tensors is contiguous."""
    return cat_memory_format(tensors) is torch.contiguous_format


def indexes(index: Tensor) -> bool:
    """True for a tensor of numbers of channels that opswap may read."""
    return index.dim() == 1 and index.dtype is torch.int64 and index.device.type == "cpu" and plain(index)


def plain(input: Any) -> bool:
    """True for a tensor that is not a wrapper of others."""
    return type(input) is Tensor or (isinstance(input, Tensor) and not is_wrapper(input))


def on_cpu(input: Any) -> bool:
    """True unless the value is a tensor on another device, for which there is no kernel."""
    return getattr(input, "is_cpu", True)


def poolable(input: Any, ndims: tuple[int, ...] | None = None) -> bool:
    """True for a tensor that opswap's pools know: dense, floating point, of one of these dimensions."""
    if not isinstance(input, Tensor) or (ndims is not None and input.dim() not in ndims):
        return False
    if type(input) is not Tensor and is_wrapper(input):
        return False
    return input.dtype in _FLOATS and input.layout is torch.strided


def pays(input: Any, planes: int, pixels: int, ndims: tuple[int, ...] | None = None) -> bool:
    """`poolable`, and of as many elements as a call costs: of `planes` if contiguous, in channels_last of `pixels`."""
    return poolable(input, ndims) and input.numel() >= (planes if input.is_contiguous() else pixels)


def _plain_floats(*tensors: Any) -> bool:
    """True for tensors that opswap's linear maps know, of one dtype and device."""
    first = tensors[0]
    return all(poolable(t) and t.dtype == first.dtype and t.device == first.device for t in tensors)


def one_weight_a_group(input: Any, weight: Any, bias: Any = None) -> bool:
    """True for input (N, G, d), weight (1, G, d) and bias (1, G), of which (weight * input).sum(-1) is (N, G)."""
    if not _plain_floats(input, weight) or input.dim() != 3 or weight.dim() != 3 or weight.shape[0] != 1:
        return False
    if input.shape[1:] != weight.shape[1:]:
        return False
    return bias is None or (_plain_floats(input, bias) and bias.shape == weight.shape[:2])


# Outputs of a group up to which a grouped linear map is faster than einsum though it has to copy the weight first,
# and the rows from which it is.
_NARROW, _MANY = 10, 8


def narrow_weight(input: Any, weight: Any) -> bool:
    """True for input (N, G, in) and weight (G, out, in), which lies in that order or has few outputs."""
    if not one_map_a_group(input, weight):
        return False
    return weight.is_contiguous() or (weight.shape[1] <= _NARROW and input.shape[0] >= _MANY)


def one_map_a_group(input: Any, weight: Any, bias: Any = None) -> bool:
    """True for input (N, G, in), weight (G, out, in) and bias (G, out)."""
    if not _plain_floats(input, weight) or input.dim() != 3 or weight.dim() != 3:
        return False
    if input.shape[1] != weight.shape[0] or input.shape[2] != weight.shape[2]:
        return False
    return bias is None or (_plain_floats(input, bias) and bias.shape == weight.shape[:2])


def fills(target: Any, fresh: bool, input: Tensor, groups: int, parameters: tuple[Tensor, ...]) -> bool:
    """True where one write of (N, groups, out), made of input (N, groups, in), is what a write of each group is.

    Args:
        fresh: nobody but the forward holds the target. Else it must be shown to share no memory with what is read
            and with itself, and it is not written at once under torch.compile.
        parameters: what the maps read besides.
    """
    if not poolable(target, (3,)) or target.device != input.device:
        return False
    if input.shape[1] != groups or target.shape[:2] != input.shape[:2]:
        return False
    if fresh:
        return not (target.requires_grad and target.is_leaf)  # to which torch refuses to write
    others = (input, *parameters)
    if not plain_cpu((target, *others)) or not _distinct(target):
        return False
    start, end = _memory(target)
    spans = [_memory(t) for t in others]
    return all(end <= first or last <= start for first, last in spans)


def _memory(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _distinct(tensor: Tensor) -> bool:
    """True where the strides show that no two elements share memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += stride * (size - 1)
    return True


# Elements of a Linear up to which one call is faster than one for each though all weights are copied first.
_SMALL = 32768


def joins(input: Any, weights: tuple[Any, ...], biases: tuple[Any, ...], flat: bool) -> bool:
    """True where Linears of these parameters, one a group, are faster as one call.

    Args: input: (N, G, in), or (N, G * in) where flat.
    """
    if not _plain_floats(input, *weights, *biases) or input.dim() != (2 if flat else 3):
        return False
    features = weights[0].shape[1]
    if tuple(input.shape[1:]) != ((len(weights) * features,) if flat else (len(weights), features)):
        return False
    return all(w.dim() == 2 and w.shape[1] == features and w.numel() <= _SMALL for w in weights)


def trains(input: Tensor) -> bool:
    """True where a gradient of what is computed from `input` will be asked for."""
    return torch.is_grad_enabled() and input.requires_grad


def wins(input: Tensor, losing: tuple[str, ...]) -> bool:
    """True where the memory format of the tensor is none of those in which the replacement is slower."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(input.dim())
    if last is None or input.is_contiguous() or not input.is_contiguous(memory_format=last):
        return "contiguous" not in losing
    return "channels_last" not in losing


def meant_for_channels_last(module: nn.Module) -> bool:
    """True where the first convolution in the module has its weights in channels_last."""
    for m in module.modules():
        if isinstance(m, CONVOLUTIONS):
            return suggest_memory_format(m.weight) is not torch.contiguous_format
    return False


def unhooked(*modules: nn.Module) -> bool:
    """True where calling these modules does no more than their forwards."""
    if any_global_hook():
        return False
    for module in modules:  # noqa: SIM110
        if hooked(module):
            return False
    return True


def normable(norm: nn.Module, input: Any) -> bool:
    """True for one of torch's own BatchNorms, and a tensor that opswap's batch normalisation knows."""
    return stock_class(norm) in NORMS and poolable(input)


def activation_of(module: nn.Module) -> str | None:
    """The name of the activation that this module is, as `opswap.functional.batch_norm_act` calls it."""
    cls = stock_class(module)
    if cls is nn.Hardtanh:
        return "relu6" if module.min_val == 0 and module.max_val == 6 else None
    return _ACTIVATIONS.get(cls)


def owned(output: Tensor, convolution: nn.Module) -> bool:
    """True where nobody but the caller holds this convolution's output, not even for a gradient."""
    fresh = stock_class(convolution) in CONVOLUTIONS and unhooked(convolution)
    return fresh and not trains(output) and plain_cpu((output,))
