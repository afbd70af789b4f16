# SPDX-License-Identifier: MIT
"""torch's GroupNorm and InstanceNorm on tensors in channels_last, as modules and as calls of the functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn

from opswap import functional as F
from opswap import isa
from opswap._torch import constant_in_graphs, functorch_active
from opswap.ops.norm import (
    gradient_misread,
    gradient_missing,
    group_norm_fits,
    instance_norm_fits,
    torch_group_norm,
    torch_instance_norm,
)

from ..rule import Refusal, Region, Replacement, Rule, Shapes, argument_texts, calls_of, named
from ..runtime.condition_texts import describe_condition
from ..runtime.shown import contiguous_images, shown
from .conditions import trains
from .kept import elements

__all__ = ["RULES", "has_vectors"]

_INSTANCE_NORMS = (nn.InstanceNorm2d, nn.InstanceNorm3d)
_KEEPS = "its running statistics are torch's"
# Elements of an input from which a step was measured faster than torch's, whose calls cost less.
_FEWEST, _FEWEST_IN_NARROW_GROUPS, _FEWEST_INSTANCES = 1 << 17, 1 << 14, 1 << 13
_NARROW = 32  # bytes of a group at one position; torch has no vectors for fewer, unless it sums columns
_MANY_POSITIONS = 1024  # from here on torch sums columns
# What torch's instance_norm returns is contiguous; opswap's never is, if it runs.
_NEVER = "False"
_GIVEN = "torch computes it, and its gradient is right but for a trained weight or bias in channels_last"


@constant_in_graphs
def _tier_has_vectors() -> bool:
    return isa.current() != "scalar"


def has_vectors(input: Any) -> bool:
    """True if the kernels have vectors: in other dtypes than float64. Without them torch is faster."""
    return getattr(input, "dtype", None) is not torch.float64 and _tier_has_vectors()


def _is_transformed() -> bool:
    """True under torch.func: torch's function raises there for images in channels_last if torch.vmap is active."""
    return not torch.compiler.is_compiling() and functorch_active()


def group_norm_wins(input: Any, *arguments: Any) -> bool:
    """`group_norm_fits`, for what was measured faster than torch.

    Without a gradient, 16 bits of large images are torch's, which is up to 10 % faster there.
    """
    if _is_transformed():
        return group_norm_fits(input, *arguments)
    if not has_vectors(input) or input.numel() < _FEWEST_IN_NARROW_GROUPS:
        return False
    if not group_norm_fits(input, *arguments) or input.numel() < _fewest(input, *arguments):
        return False
    if input.dtype is torch.float32 or input.shape[2:].numel() < _MANY_POSITIONS:
        return True
    return any(isinstance(t, torch.Tensor) and trains(t) for t in (input, *arguments))


def _fewest(input: Tensor, num_groups: int, *_: Any) -> int:
    narrow = input.shape[1] // num_groups * input.element_size() < _NARROW
    return _FEWEST_IN_NARROW_GROUPS if narrow and input.shape[2:].numel() < _MANY_POSITIONS else _FEWEST


def instance_norm_wins(input: Any, *arguments: Any) -> bool:
    """`instance_norm_fits`, for what was measured faster than torch."""
    if not has_vectors(input) or not instance_norm_fits(input, *arguments):
        return False
    return input.numel() >= _FEWEST_INSTANCES


def group_norm_able(module: nn.GroupNorm, input: Any) -> bool:
    """`group_norm_wins` for the options of a module."""
    return group_norm_wins(input, module.num_groups, module.weight, module.bias, module.eps)


def group_norm_unsafe(module: nn.GroupNorm, input: Any) -> bool:
    """`gradient_missing` for the options of a module."""
    return gradient_missing(input, module.num_groups, module.weight, module.bias, module.eps)


def instance_norm_able(module: nn.InstanceNorm2d | nn.InstanceNorm3d, input: Any) -> bool:
    """`instance_norm_wins` for the options of a module, and an input of its number of channels and dimensions."""
    if module.track_running_stats:
        return False
    running = (module.running_mean, module.running_var)
    if not instance_norm_wins(input, *running, module.weight, module.bias, True, module.eps):
        return False
    return _of_module(module, input)


def instance_norm_misread(module: nn.InstanceNorm2d | nn.InstanceNorm3d, input: Any) -> bool:
    """`gradient_misread`, for an input of a module's number of channels and dimensions, or one image of it."""
    if isinstance(input, Tensor) and input.dim() == _dimensions(module) - 1:
        input = input.unsqueeze(0)
    return gradient_misread(input) and _of_module(module, input)


def fastest_group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The kernel if `group_norm_wins`, else torch's, with the gradient that would be missing."""
    wins = group_norm_wins(input, num_groups, weight, bias, eps)
    function = F.group_norm if wins else torch_group_norm
    return function(input, num_groups, weight, bias, eps)


def fastest_instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """The kernel if `instance_norm_wins`, else torch's function with the right gradient."""
    vectors = (running_mean, running_var, weight, bias)
    wins = instance_norm_wins(input, *vectors, use_input_stats, eps)
    function = F.instance_norm if wins else torch_instance_norm
    return function(input, *vectors, use_input_stats, momentum, eps)


def _dimensions(module: nn.InstanceNorm2d | nn.InstanceNorm3d) -> int:
    return 4 if isinstance(module, nn.InstanceNorm2d) else 5


def _of_module(module: nn.InstanceNorm2d | nn.InstanceNorm3d, input: Tensor) -> bool:
    return input.dim() == _dimensions(module) and input.shape[1] == module.num_features


def _apply(
    function: Callable[..., Tensor], module: nn.InstanceNorm2d | nn.InstanceNorm3d, input: Tensor
) -> Tensor:
    """As torch's modules call it."""
    if input.dim() < _dimensions(module):
        return _apply(function, module, input.unsqueeze(0)).squeeze(0)
    by_input = module.training or not module.track_running_stats
    momentum = 0.0 if module.momentum is None else module.momentum
    running = (module.running_mean, module.running_var)
    return function(input, *running, module.weight, module.bias, by_input, momentum, module.eps)


def apply_instance_norm(module: nn.InstanceNorm2d | nn.InstanceNorm3d, input: Tensor) -> Tensor:
    """`fastest_instance_norm` with the options of a module."""
    return _apply(fastest_instance_norm, module, input)


def apply_torch_instance_norm(module: nn.InstanceNorm2d | nn.InstanceNorm3d, input: Tensor) -> Tensor:
    """`torch_instance_norm` with the options of a module."""
    return _apply(torch_instance_norm, module, input)


def _why_slower(fewest: Callable[..., int], input: Any, *arguments: Any) -> str:
    """Why `group_norm_wins` or `instance_norm_wins`, which needs so many elements, is False."""
    if not has_vectors(input) or input.dim() not in (4, 5):
        return f"no kernel for {shown(input)}"
    reason = contiguous_images(input)
    if reason:
        return f"{reason}; there torch is as fast"
    return elements(input, fewest(input, *arguments))


def _fewest_instances(*_: Any) -> int:
    return _FEWEST_INSTANCES


def _why_right(input: Any) -> str:
    return f"torch computes it, and its gradient is right but for a single image: the input is {shown(input)}"


describe_condition(group_norm_wins, partial(_why_slower, _fewest))
describe_condition(group_norm_able, lambda module, input: _why_slower(_fewest, input, module.num_groups))
describe_condition(instance_norm_wins, partial(_why_slower, _fewest_instances))
describe_condition(gradient_missing, lambda *_: _GIVEN)
describe_condition(group_norm_unsafe, lambda *_: _GIVEN)
describe_condition(gradient_misread, _why_right)
describe_condition(instance_norm_misread, lambda module, input: _why_right(input))
describe_condition(instance_norm_able, lambda module, input: _why_slower(_fewest_instances, input))

_GROUP_ARGUMENTS = "(x0, m0.num_groups, m0.weight, m0.bias, m0.eps)"
_GROUP = Replacement(
    "(group_norm_unsafe(m0, x0) or group_norm_able(m0, x0))",
    f"fastest_group_norm{_GROUP_ARGUMENTS}",
    named(group_norm_unsafe, group_norm_able, fastest_group_norm),
)
_GROUP_MENDED = Replacement(
    "group_norm_unsafe(m0, x0)",
    f"torch_group_norm{_GROUP_ARGUMENTS}",
    named(group_norm_unsafe, torch_group_norm),
)
_INSTANCE = Replacement(
    "(instance_norm_misread(m0, x0) or instance_norm_able(m0, x0))",
    "apply_instance_norm(m0, x0)",
    named(instance_norm_misread, instance_norm_able, apply_instance_norm),
    contiguous=_NEVER,
)
_MENDED = Replacement(
    "instance_norm_misread(m0, x0)",
    "apply_torch_instance_norm(m0, x0)",
    named(instance_norm_misread, apply_torch_instance_norm),
)


def _declines_instance(module: nn.Module) -> str | None:
    return _KEEPS if module.track_running_stats or module.running_mean is not None else ""


def _arguments(region: Region, function: Callable[..., Any]) -> dict[str, str]:
    return argument_texts(region.main, function, region.names)


def _prove_group(region: Region, shapes: Shapes) -> Replacement:
    given = ", ".join(_arguments(region, torch_functional.group_norm).values())
    return Replacement(
        f"(gradient_missing({given}) or group_norm_wins({given}))",
        f"fastest_group_norm({given})",
        named(gradient_missing, group_norm_wins, fastest_group_norm),
    )


def _prove_group_mended(region: Region, shapes: Shapes) -> Replacement:
    given = ", ".join(_arguments(region, torch_functional.group_norm).values())
    names = named(gradient_missing, torch_group_norm)
    return Replacement(f"gradient_missing({given})", f"torch_group_norm({given})", names)


def _prove_instance(region: Region, shapes: Shapes) -> Replacement:
    given = _arguments(region, torch_functional.instance_norm)
    if given["running_mean"] != "None" or given["running_var"] != "None":
        raise Refusal(_KEEPS)
    asked = ", ".join(text for name, text in given.items() if name != "momentum")
    return Replacement(
        f"(gradient_misread({given['input']}) or instance_norm_wins({asked}))",
        f"fastest_instance_norm({', '.join(given.values())})",
        named(gradient_misread, instance_norm_wins, fastest_instance_norm),
        f"not instance_norm_wins({asked})",
        _prove_mended(region, shapes),
    )


def _prove_mended(region: Region, shapes: Shapes) -> Replacement:
    given = _arguments(region, torch_functional.instance_norm)
    names = named(gradient_misread, torch_instance_norm)
    return Replacement(
        f"gradient_misread({given['input']})", f"torch_instance_norm({', '.join(given.values())})", names
    )


RULES = (
    Rule(
        "group_norm",
        False,
        modules=(nn.GroupNorm,),
        whole=_GROUP,
        example=lambda: (nn.GroupNorm(32, 64), ((8, 64, 56, 56),)),
    ),
    Rule(
        "instance_norm",
        False,
        modules=_INSTANCE_NORMS,
        whole=_INSTANCE,
        declines=_declines_instance,
        example=lambda: (nn.InstanceNorm2d(64), ((4, 64, 56, 56),)),
    ),
    Rule("group_norm", False, partial(calls_of, (torch_functional.group_norm,)), _prove_group),
    Rule("instance_norm", False, partial(calls_of, (torch_functional.instance_norm,)), _prove_instance),
    # After the rules above, for what they do not replace, and with exact=True.
    Rule("group_norm_gradient", True, modules=(nn.GroupNorm,), whole=_GROUP_MENDED),
    Rule("group_norm_gradient", True, partial(calls_of, (torch_functional.group_norm,)), _prove_group_mended),
    Rule("instance_norm_gradient", True, modules=_INSTANCE_NORMS, whole=_MENDED),
    Rule("instance_norm_gradient", True, partial(calls_of, (torch_functional.instance_norm,)), _prove_mended),
)
