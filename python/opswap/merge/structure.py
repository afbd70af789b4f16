# SPDX-License-Identifier: MIT
"""Check that branches are equal in everything but the values of their tensors; name the first difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from opswap._torch import has_hooks

from ..swap.runtime.instance_forward import overridden, without_links

__all__ = ["check_structure", "is_plain", "owned_tensors"]

_NAME = "branches"
_PLAIN = (Number, str, bytes, type(None), torch.dtype)
_INTERNAL = frozenset(vars(nn.Module()))
# What a Linear of its own number of classes may differ in.
_RAGGED = {"out_features"}


def check_structure(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The branches as a list.

    Raises: TypeError for an object that is not a module; ValueError if there are no modules, for modules or tensors
        that are shared, for hooks of modules and of tensors, and for the first difference in type, children,
        attributes, training flag, or the tensors' sizes, dtype, device, requires_grad and having a gradient. Linears
        may differ in out_features.
    """
    if isinstance(modules, nn.Module) and not isinstance(modules, (nn.ModuleList, nn.Sequential)):
        raise TypeError(f"{_NAME}: expected a list of modules, got a {type(modules).__name__}")
    modules = list(modules)
    if not modules:
        raise ValueError(f"{_NAME}: expected at least one branch, got an empty list")
    for i, m in enumerate(modules):
        if not isinstance(m, nn.Module):
            raise TypeError(f"{_NAME}: branches[{i}] must be a torch.nn.Module, got {type(m).__name__}")
    _check_shared(modules)
    first = dict(_traits(modules[0]))
    for i, m in enumerate(modules[1:], 1):
        _check_alike(i, _traits(m), first)
    return modules


def owned_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor | None]]:
    """Parameters and buffers of this module alone, by name, the absent ones as None."""
    yield from module._parameters.items()
    yield from module._buffers.items()


def _check_shared(modules: Sequence[nn.Module]) -> None:
    places: dict[int, str] = {}
    for i, branch in enumerate(modules):
        for path, m in branch.named_modules():
            where = f"branches[{i}]" + (f".{path}" if path else "")
            _claim(places, m, where, "the same module")
            if has_hooks(m):
                raise ValueError(f"{_NAME}: {where} has hooks, which a merged layer would not call")
            if "forward" in vars(m) and overridden(m):
                raise ValueError(f"{_NAME}: {where} has a forward of its own, put on the instance")
            for name, tensor in owned_tensors(m):
                if tensor is None:
                    continue
                _claim(places, tensor, f"{where}.{name}", "the same tensor")
                if has_hooks(tensor):
                    raise ValueError(
                        f"{_NAME}: {where}.{name} has hooks, which a merged tensor would not call"
                    )


def _claim(places: dict[int, str], thing: object, where: str, what: str) -> None:
    other = places.setdefault(id(thing), where)
    if other != where:
        raise ValueError(f"{_NAME}: {where} and {other} are {what}")


def _traits(branch: nn.Module) -> Iterator[tuple[tuple[str, str], Any]]:
    """What the branches must have in common: (path, trait) and its value, in the order of the modules."""
    for path, m in branch.named_modules():
        yield (path, "type"), type(m).__qualname__
        yield (path, "training"), m.training
        ragged = type(m) is nn.Linear
        for name, value in without_links(vars(m)).items():
            if name not in _INTERNAL and is_plain(value) and not (ragged and name in _RAGGED):
                yield (path, name), value
        for name, tensor in owned_tensors(m):
            yield from _tensor_traits(path, name, tensor, ragged)
        yield (path, "children"), list(m._modules)


def is_plain(value: Any) -> bool:
    """True for numbers, those of NumPy too, texts and dtypes, and for tuples and lists of these."""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    of_numpy = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return of_numpy or isinstance(value, _PLAIN)


def _tensor_traits(path: str, name: str, tensor: Tensor | None, ragged: bool) -> Iterable[tuple[Any, Any]]:
    if tensor is None:
        return [((path, name), None)]
    sizes = tuple(tensor.shape)
    traits = {
        f"{name} of size": ("*", *sizes[1:]) if ragged else sizes,
        f"{name} of dtype": tensor.dtype,
        f"{name} on device": tensor.device,
    }
    if isinstance(tensor, nn.Parameter):
        traits |= {f"{name}.requires_grad": tensor.requires_grad}
        traits |= {f"{name} with a gradient": tensor.grad is not None}
    return [((path, key), value) for key, value in traits.items()]


def _check_alike(i: int, traits: Iterable[tuple[tuple[str, str], Any]], first: dict[Any, Any]) -> None:
    seen = set()
    for key, value in traits:
        seen.add(key)
        path, trait = key
        dot = f".{path}" if path else ""
        if key not in first:
            raise ValueError(f"{_NAME}: branches[{i}]{dot} has {trait} {value}, branches[0]{dot} has not")
        if value != first[key] or type(value) is not type(first[key]):
            raise ValueError(
                f"{_NAME}: branches[{i}]{dot} has {trait} {value}, branches[0]{dot} has {first[key]}"
            )
    for path, trait in first:
        if (path, trait) not in seen:
            dot = f".{path}" if path else ""
            raise ValueError(f"{_NAME}: branches[0]{dot} has {trait}, branches[{i}]{dot} has not")
