# SPDX-License-Identifier: MIT
"""Carry an optimizer over to a model whose parameters were joined or split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .branches import MergedBranches

__all__ = ["move_optimizer_state", "move_parameters"]

_NAME = "move_optimizer_state"

Parameters = Sequence[nn.Parameter]
Modules = nn.Module | Sequence[nn.Module]

# State that is one number per parameter, which a parameter of no dimensions cannot show by its size.
_NUMBERS = frozenset({"step", "mu_product", "eta", "mu"})
# Optimizers of torch, timm and others that look at a whole parameter, or at all, for the step of one element.
_OF_WHOLE_PARAMETERS = """
    LBFGS Muon Adafactor AdafactorBigVision Adahessian AdamP SGDP Kron Shampoo SOAP Lamb LAMB FusedLAMB Lars
    LARS NovoGrad NvNovoGrad FusedNovoGrad
"""
_NOT_ELEMENTWISE = frozenset(_OF_WHOLE_PARAMETERS.split())


@dataclass(frozen=True)
class _Move:
    """Parameters that change places; the names are theirs below the modules that hold them, "" if not known."""

    old: Parameters
    new: Parameters
    old_name: str = ""
    new_name: str = ""


def move_optimizer_state(optimizer: Optimizer, source: Modules, target: Modules) -> None:
    """Let `optimizer` train the parameters of `target` in place of those of `source`.

    Args:
        optimizer: any whose state and step are elementwise (SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adadelta,
            Adagrad, RMSprop, Rprop, ASGD, foreach, fused and capturable ones too); changed in place.
        source: a module or a list (or ModuleList) of modules, such as Linears; parameters of one name belong together.
        target: what `branches` made of the source's modules, or the other way round; or as source, with the same
            parameter names, such as GroupedLinear.from_linears(source), where for every name its parameters one
            after another have the elements of the source's, in the same order.
    The target replaces the source in each parameter group. Where parameters are split, the parts come in the order of
    target's parameters(), as in an optimizer that is built anew. What the optimizer knows of every element (momentum,
    averages) moves with it, and counts, such as Adam's step, are kept. Parameters of which the optimizer has none,
    such as those of frozen layers, are skipped.
    Raises: as `move_parameters`; ValueError also if the parameter names differ, or if the optimizer has none of
        the source's parameters though some require gradients.
    """
    moves = list(_moves(source, target))
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    used = [m for m in moves if any(id(p) in known for p in m.old)]
    trained = [p for m in moves for p in m.old if p.requires_grad]
    if trained and not used:
        raise ValueError(
            f"{_NAME}: none of the {sum(len(m.old) for m in moves)} parameters of source belongs to the optimizer"
        )
    modules = [target] if isinstance(target, nn.Module) else target
    parameters = (p for m in modules for p in m.parameters())
    _move(optimizer, used, {id(p): i for i, p in enumerate(parameters)})


def _moves(source: Modules, target: Modules) -> Iterator[_Move]:
    if isinstance(target, MergedBranches) and _is_list(source):
        yield from _moves_of(target, source)
    elif isinstance(source, MergedBranches) and _is_list(target):
        yield from (_Move(m.new, m.old, m.new_name, m.old_name) for m in _moves_of(source, target))
    else:
        old, new = _by_name(source), _by_name(target)
        if list(old) != list(new):
            old, new = (_by_name(list(m) if isinstance(m, nn.ModuleList) else m) for m in (source, target))
        if list(old) != list(new):
            raise ValueError(f"{_NAME}: source has the parameters {list(old)}, target has {list(new)}")
        yield from (_Move(old[name], new[name], name, name) for name in old)


def _moves_of(merged: MergedBranches, modules: Any) -> Iterator[_Move]:
    own = {id(p): name for m in modules for name, p in m.named_parameters()}
    whole = {id(p): name for name, p in merged.named_parameters()}
    for old, new in merged.parameter_moves(modules):
        yield _Move(old, new, own[id(old[0])], whole[id(new[0])])


def move_parameters(optimizer: Optimizer, moves: Sequence[tuple[Parameters, Parameters]]) -> None:
    """Exchange parameters of an optimizer, with their state.

    Args:
        moves: pairs (old, new) of lists of parameters; the elements of new, one parameter after another, are those
            of old, in the same order. old are parameters of one parameter group, which new replace.
    Raises: ValueError, before anything is changed, if numbers of elements differ, a parameter does not belong to
        the optimizer, belongs to two groups or is named twice, a new one already belongs to it, or the old ones
        differ in what cannot be joined, such as their number of steps; TypeError for state or an optimizer that is
        not elementwise.
    """
    _move(optimizer, [_Move(old, new) for old, new in moves])


def _move(optimizer: Optimizer, moves: Sequence[_Move], order: Mapping[int, int] | None = None) -> None:
    """Args: order: the places of new parameters that split others, by their ids; None is in place of these."""
    _check_distinct(moves)
    numbers = _numbers(optimizer)
    states, groups = [], []
    for m in moves:
        _check_elements(m.old, m.new)
        group = _group_of(optimizer, m.old, m.new)
        groups.append(group)
        states.append(_split_state(_joined_state(optimizer, group, m.old, numbers), m.new))
    kind = type(optimizer).__name__
    if moves and any(cls.__name__ in _NOT_ELEMENTWISE for cls in type(optimizer).__mro__):
        raise TypeError(f"{_NAME}: the step of {kind} is not elementwise")
    for group in optimizer.param_groups:
        own = [m for m, g in zip(moves, groups, strict=True) if g is group]
        if own:
            _replace(group, own, order)
    for m, split in zip(moves, states, strict=True):
        for p in m.old:
            optimizer.state.pop(p, None)
        for p, state in zip(m.new, split, strict=True):
            if state:
                optimizer.state[p] = state


def _replace(group: dict[str, Any], moves: Sequence[_Move], order: Mapping[int, int] | None) -> None:
    """Put the new parameters, and their names if the group has names, in the place of the first old one of each move.

    Moves side by side that split parameters are one place, in which the new ones come by `order`.
    """
    named = "param_names" in group
    names = group["param_names"] if named else [""] * len(group["params"])
    places = {id(p): i for i, p in enumerate(group["params"])}
    old = [[places[id(p)] for p in m.old] for m in moves]
    first = {own[0]: (m, [names[i] for i in own]) for m, own in zip(moves, old, strict=True)}
    gone = {i for own in old for i in own}
    kept = [i for i in range(len(names)) if i in first or i not in gone]
    rows: list[tuple[Any, str]] = []
    for moved, run in itertools.groupby(kept, first.__contains__):
        if not moved:
            rows += [(group["params"][i], names[i]) for i in run]
            continue
        beside = [first[i] for i in run]
        new = [row for m, own in beside for row in zip(m.new, _new_names(own, m), strict=True)]
        if order is not None and any(len(m.new) > len(m.old) for m, _ in beside):
            new.sort(key=lambda row: order[id(row[0])])
        rows += new
    group["params"] = [p for p, _ in rows]
    if named:
        group["param_names"] = [name for _, name in rows]


def _new_names(names: Sequence[str], move: _Move) -> list[str]:
    """The new parameters' names: without the parts in which the old ones differ, and numbered if there are several."""
    paths = [name.removesuffix(move.old_name).rstrip(".").split(".") for name in names]
    common = paths[0]
    if len({len(path) for path in paths}) == 1:
        common = [parts[0] for parts in zip(*paths, strict=True) if len(set(parts)) == 1]
    numbers = [[]] if len(move.new) == 1 else [[str(i)] for i in range(len(move.new))]
    return [".".join(filter(None, (*common, *number, move.new_name))) for number in numbers]


def _is_list(modules: Modules) -> bool:
    return not isinstance(modules, nn.Module) or isinstance(modules, (nn.ModuleList, nn.Sequential))


def _by_name(modules: Modules) -> dict[str, list[nn.Parameter]]:
    named: dict[str, list[nn.Parameter]] = {}
    for module in [modules] if isinstance(modules, nn.Module) else modules:
        for name, parameter in module.named_parameters():
            named.setdefault(name, []).append(parameter)
    return named


def _check_distinct(moves: Sequence[_Move]) -> None:
    seen: set[int] = set()
    for p in (p for m in moves for p in (*m.old, *m.new)):
        if id(p) in seen:
            raise ValueError(f"{_NAME}: a parameter of size {tuple(p.shape)} is named twice")
        seen.add(id(p))


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


def _numbers(optimizer: Optimizer) -> set[str]:
    """The keys of state that is not one value per element, by the parameters whose sizes show it."""
    found = set(_NUMBERS)
    for p, state in optimizer.state.items():
        if isinstance(p, Tensor) and p.dim():
            known = ((key, value) for key, value in state.items() if value is not None)
            found |= {key for key, value in known if getattr(value, "shape", None) != p.shape}
    return found


def _joined_state(
    optimizer: Optimizer, group: dict[str, Any], old: Parameters, numbers: set[str]
) -> dict[str, tuple[bool, Any]]:
    """The state of all the old parameters: True and one value per element, flat, or False and what all share."""
    states = [{k: v for k, v in optimizer.state.get(p, {}).items() if v is not None} for p in old]
    # A momentum that has not begun is one of zeros, unless the first step is not dampened as later ones are.
    if any(states) and set().union(*states) == {"momentum_buffer"} and not group.get("dampening", 1):
        for p, state in zip(old, states, strict=True):
            state.setdefault("momentum_buffer", torch.zeros_like(p))
    keys = list(states[0])
    for i, state in enumerate(states):
        if set(state) != set(keys):
            raise ValueError(f"{_NAME}: parameter {i} has the state {list(state)}, parameter 0 has {keys}")
    return {key: _join(key, [s[key] for s in states], old, key in numbers) for key in keys}


def _join(key: str, values: Sequence[Any], old: Parameters, number: bool) -> tuple[bool, Any]:
    sized = [isinstance(v, Tensor) and v.shape == p.shape for v, p in zip(values, old, strict=True)]
    if all(sized) and not number:
        return True, torch.cat([v.reshape(-1) for v in values])
    for i, value in enumerate(values):
        plain = value is None or isinstance(value, (bool, int, float))
        if not plain and not (isinstance(value, Tensor) and value.numel() == 1):
            kind = f"a tensor of size {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise TypeError(f"{_NAME}: state {key!r} of parameter {i} is not elementwise: {kind}")
        if value != values[0]:
            raise ValueError(f"{_NAME}: {key} of parameter {i} is {value}, of parameter 0 {values[0]}")
    return False, values[0]


def _split_state(joined: dict[str, tuple[bool, Any]], new: Parameters) -> list[dict[str, Any]]:
    sizes = [p.numel() for p in new]
    split: list[dict[str, Any]] = [{} for _ in new]
    for key, (elementwise, value) in joined.items():
        parts = value.split(sizes) if elementwise else [value] * len(new)
        for state, p, part in zip(split, new, parts, strict=True):
            if elementwise:
                # Fused optimizers read the memory of a parameter and of its state side by side.
                state[key] = torch.empty_like(p, dtype=part.dtype, requires_grad=False).copy_(
                    part.view(p.shape)
                )
            else:
                state[key] = part.clone() if isinstance(part, Tensor) else part
    return split
