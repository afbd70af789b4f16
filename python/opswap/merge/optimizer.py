# SPDX-License-Identifier: MIT
"""Carry an optimizer over to a model whose parameters were joined or split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .branches import MergedBranches

__all__ = ["move_optimizer_state", "move_parameters"]

_NAME = "move_optimizer_state"

Parameters = Sequence[nn.Parameter]
Modules = nn.Module | Sequence[nn.Module]


def move_optimizer_state(optimizer: Optimizer, source: Modules, target: Modules) -> None:
    """Let `optimizer` go on with the parameters of `target` where it trained those of `source`.

    Args:
        optimizer: any of torch.optim whose state is elementwise (SGD, Adam, AdamW, RMSprop, ...); changed in place.
        source: a module or a list of modules, such as Linears; parameters of one name belong together.
        target: what `branches` made of the source's modules, or the other way round; or as source, with the same
            parameter names, such as GroupedLinear.from_linears(source), where for every name its parameters one
            after another have the elements of the source's, in the same order.
    The target takes the source's place in the parameter group; what the optimizer knows of every element (momentum,
    averages) moves with it, and counts, such as Adam's step, are kept.
    Raises: as `move_parameters`; ValueError also where the parameter names differ.
    """
    if isinstance(target, MergedBranches) and _is_list(source):
        move_parameters(optimizer, target.parameter_moves(source))
        return
    if isinstance(source, MergedBranches) and _is_list(target):
        move_parameters(optimizer, [(new, old) for old, new in source.parameter_moves(target)])
        return
    old, new = _by_name(source), _by_name(target)
    if list(old) != list(new):
        raise ValueError(f"{_NAME}: source has the parameters {list(old)}, target has {list(new)}")
    move_parameters(optimizer, [(old[name], new[name]) for name in old])


def move_parameters(optimizer: Optimizer, moves: Sequence[tuple[Parameters, Parameters]]) -> None:
    """Exchange parameters of an optimizer, with their state.

    Args:
        moves: pairs (old, new) of lists of parameters; the elements of new, one parameter after another, are those
            of old, in the same order. old are parameters of one parameter group, which new take the place of.
    Raises: ValueError, before anything is changed, where numbers of elements differ, a parameter does not belong to
        the optimizer or belongs to two groups, a new one already does, or the old ones differ in what cannot be
        joined, such as their number of steps; TypeError for state that is not elementwise.
    """
    states = []
    for old, new in moves:
        _check_elements(old, new)
        _group_of(optimizer, old, new)
        states.append(_split_state(_joined_state(optimizer, old), new))
    for (old, new), split in zip(moves, states, strict=True):
        group = _group_of(optimizer, old, new)
        replaced = {id(p) for p in old[1:]}
        parameters = [p for p in group["params"] if id(p) not in replaced]
        place = next(i for i, p in enumerate(parameters) if p is old[0])
        group["params"] = [*parameters[:place], *new, *parameters[place + 1 :]]
        for p in old:
            optimizer.state.pop(p, None)
        for p, state in zip(new, split, strict=True):
            if state:
                optimizer.state[p] = state


def _is_list(modules: Modules) -> bool:
    return not isinstance(modules, nn.Module) or isinstance(modules, (nn.ModuleList, nn.Sequential))


def _by_name(modules: Modules) -> dict[str, list[nn.Parameter]]:
    named: dict[str, list[nn.Parameter]] = {}
    for module in [modules] if isinstance(modules, nn.Module) else modules:
        for name, parameter in module.named_parameters():
            named.setdefault(name, []).append(parameter)
    return named


def _check_elements(old: Parameters, new: Parameters) -> None:
    before, after = (sum(p.numel() for p in ps) for ps in (old, new))
    if before != after or not old or not new:
        sizes = [tuple(p.shape) for p in old], [tuple(p.shape) for p in new]
        raise ValueError(f"{_NAME}: {before} elements {sizes[0]} cannot become {after} elements {sizes[1]}")


def _group_of(optimizer: Optimizer, old: Parameters, new: Parameters) -> dict[str, Any]:
    """The one parameter group of all the old parameters."""
    place = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    groups = [place.get(id(p)) for p in old]
    if None in groups:
        missing = tuple(old[groups.index(None)].shape)
        raise ValueError(f"{_NAME}: a parameter of size {missing} does not belong to the optimizer")
    if len(set(groups)) > 1:
        raise ValueError(f"{_NAME}: parameters of groups {sorted(set(groups))} cannot be joined")
    known = [tuple(p.shape) for p in new if id(p) in place]
    if known:
        raise ValueError(f"{_NAME}: a new parameter of size {known[0]} already belongs to the optimizer")
    return optimizer.param_groups[groups[0]]


def _joined_state(optimizer: Optimizer, old: Parameters) -> dict[str, Any]:
    """The state of all the old parameters: tensors of one value an element, flat, and values that all share."""
    states = [optimizer.state.get(p, {}) for p in old]
    keys = list(states[0])
    for i, state in enumerate(states):
        if list(state) != keys:
            raise ValueError(f"{_NAME}: parameter {i} has the state {list(state)}, parameter 0 has {keys}")
    return {key: _join(key, [s[key] for s in states], old) for key in keys}


def _join(key: str, values: Sequence[Any], old: Parameters) -> Any:
    if all(
        isinstance(v, Tensor) and v.dim() and v.shape == p.shape for v, p in zip(values, old, strict=True)
    ):
        return torch.cat([v.reshape(-1) for v in values])
    for i, value in enumerate(values):
        plain = value is None or isinstance(value, (bool, int, float))
        if not plain and not (isinstance(value, Tensor) and value.numel() == 1):
            kind = f"a tensor of size {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise TypeError(f"{_NAME}: state {key!r} of parameter {i} is not elementwise: {kind}")
        if value != values[0]:
            raise ValueError(f"{_NAME}: {key} of parameter {i} is {value}, of parameter 0 {values[0]}")
    return values[0]


def _split_state(joined: dict[str, Any], new: Parameters) -> list[dict[str, Any]]:
    sizes = [p.numel() for p in new]
    split: list[dict[str, Any]] = [{} for _ in new]
    for key, value in joined.items():
        elementwise = isinstance(value, Tensor) and value.dim() == 1 and value.numel() == sum(sizes)
        parts = value.split(sizes) if elementwise else [value] * len(new)
        for state, p, part in zip(split, new, parts, strict=True):
            part = part.view_as(p) if elementwise else part
            state[key] = part.clone() if isinstance(part, Tensor) else part
    return split
