# SPDX-License-Identifier: MIT
"""Copy the tensors of N branches into one merged tree of layers, and back into N modules."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..swap.runtime.state import INTERNAL
from .layers import LAYERS, POOLS, Layer, Unmerged
from .structure import is_plain, owned_tensors

__all__ = [
    "TensorLink",
    "build_tree",
    "check_layers",
    "empty_copy",
    "fill_branches",
    "fill_merged",
    "tensor_links",
]


@dataclass(frozen=True)
class TensorLink:
    """One tensor of the merged tree and the tensors of the branches that it replaces, each an owner and a name."""

    name: str
    merged: nn.Module
    branches: tuple[nn.Module, ...]

    @property
    def whole(self) -> Tensor:
        found = getattr(self.merged, self.name, None)
        if found is None:
            kinds = f"{type(self.merged).__name__} has no {self.name}, which {type(self.branches[0]).__name__} has"
            raise ValueError(f"branches: a {kinds} in each branch")
        return found

    @property
    def parts(self) -> list[Tensor]:
        return [getattr(m, self.name) for m in self.branches]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """One value per branch, as one value of the merged tensor's sizes."""
        return torch.cat([p.detach().reshape(-1) for p in parts]).view(self.whole.shape)

    def cut(self, whole: Tensor) -> list[Tensor]:
        """The inverse of `join`, as new tensors that keep the memory format."""
        whole = whole.detach()
        if (
            len(self.branches) == 1
            and not isinstance(self.merged, Layer)
            and whole.shape == self.parts[0].shape
        ):
            pieces: Sequence[Tensor] = (whole,)
        elif isinstance(self.merged, Layer):
            pieces = self.merged.pieces(whole)
        elif not whole.dim():  # one count of a layer that replaced a merged one
            pieces = (whole,) * len(self.branches)
        elif whole.dim() == self.parts[0].dim():
            pieces = whole.chunk(len(self.branches))
        else:
            pieces = whole.unbind(0)
        return [p.reshape(part.shape).clone() for p, part in zip(pieces, self.parts, strict=True)]


def build_tree(root: nn.Module, modules: Sequence[nn.Module], separate: Iterable[str]) -> None:
    """Give `root` the children of a branch under the same names: layers merged, functions copied, others as folders."""
    separate = set(separate)
    made: dict[nn.Module, nn.Module] = {}
    for path, first in modules[0].named_modules(remove_duplicate=False):
        if any(path.startswith(f"{outer}.") for outer in separate):
            continue
        own = [m.get_submodule(path) for m in modules]
        if not path:
            root.training = first.training
            _stack_tensors(root, own)
            continue
        parent, _, name = path.rpartition(".")
        if first not in made:
            made[first] = Unmerged(own) if path in separate else _child(own)
        root.get_submodule(parent).add_module(name, made[first])


def _child(own: Sequence[nn.Module]) -> nn.Module:
    first = own[0]
    if type(first) in LAYERS:
        return LAYERS[type(first)](own)
    if type(first) in POOLS:
        pool: Any = first
        return POOLS[type(first)](pool.output_size, pool.return_indices).train(pool.training)
    if _kind_of_child(first) is not nn.Module:
        return copy.deepcopy(first)
    folder = nn.Module()
    folder.training = first.training
    _stack_tensors(folder, own)
    return folder


def _kind_of_child(own: nn.Module) -> type[nn.Module]:
    """The class that a module without a merged layer has in the tree; nn.Module for a folder."""
    if type(own) in POOLS:
        return POOLS[type(own)]
    plain = not own._modules and not any(True for _ in owned_tensors(own))
    return type(own) if type(own).__module__.startswith("torch.nn.") and plain else nn.Module


def _stack_tensors(folder: nn.Module, own: Sequence[nn.Module]) -> None:
    """Parameters and buffers that a forward uses by itself, as (N, *).

    Those of one dimension as (N * C), which optimizers' groups of biases and scales are known by.
    """
    first = own[0]
    for name, tensor in owned_tensors(first):
        whole = None
        if tensor is not None:
            whole = torch.stack([getattr(m, name).detach() for m in own])
            whole = whole.flatten() if tensor.dim() == 1 else whole
        if name in first._parameters:
            parameter = None if whole is None else nn.Parameter(whole, tensor.requires_grad)
            folder.register_parameter(name, parameter)
        else:
            folder.register_buffer(name, whole, persistent=name not in first._non_persistent_buffers_set)


def tensor_links(root: nn.Module, modules: Sequence[nn.Module]) -> Iterator[TensorLink]:
    """Every tensor of the merged tree, in the order of a branch's."""
    outer = "\n"
    for path, first in modules[0].named_modules():
        if path.startswith(outer):
            continue
        merged = root.get_submodule(path)
        if isinstance(merged, Unmerged):
            outer = f"{path}."
            for twin, m in zip(merged, modules, strict=True):
                part = m.get_submodule(path)
                for below, owner in part.named_modules():
                    names = [name for name, t in owned_tensors(owner) if t is not None]
                    yield from (TensorLink(name, twin.get_submodule(below), (owner,)) for name in names)
            continue
        own = tuple(m.get_submodule(path) for m in modules)
        yield from (TensorLink(name, merged, own) for name, t in owned_tensors(first) if t is not None)


def check_layers(root: nn.Module, branch: nn.Module) -> None:
    """Raise ValueError if something else replaced a merged layer, which cannot be proven then."""
    outer = "\n"
    for path, own in branch.named_modules():
        if path.startswith(outer):
            continue
        module = root.get_submodule(path)
        if isinstance(module, Unmerged):
            outer = f"{path}."
        elif type(own) in LAYERS and not isinstance(module, Layer):
            kinds = f"{type(own).__name__} in each branch and now is a {type(module).__name__}"
            raise ValueError(
                f"branches: {path} was a {kinds}; convert the modules of split_back() and merge these"
            )


@torch.no_grad()
def fill_merged(root: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Copy the values of all tensors, and the gradients, into the merged tree."""
    for link in tensor_links(root, modules):
        whole, parts = link.whole, link.parts
        whole.copy_(link.join(parts))
        if isinstance(whole, nn.Parameter):
            gradients = [p.grad for p in parts]
            whole.grad = None if any(g is None for g in gradients) else link.join(gradients)


def _copy_replaced(root: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Put what replaced a module without tensors in the tree, or was added to a Sequential, into every branch."""
    outer: list[str] = []
    for path, first in list(modules[0].named_modules()):
        if f"{path}.".startswith(tuple(outer)):
            continue
        merged = root.get_submodule(path)
        if type(first) in LAYERS or isinstance(merged, Unmerged):
            outer.append(f"{path}.")
            continue
        kind = _kind_of_child(first)
        same = type(merged).forward is nn.Module.forward if kind is nn.Module else type(merged) is kind
        if path and not same:
            outer.append(f"{path}.")
            _put(modules, path, merged)
        elif isinstance(first, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
            prefix = f"{path}." if path else ""
            for name, child in merged._modules.items():
                if name not in first._modules and child is not None:
                    _put(modules, prefix + name, child)
            for name in [n for n in first._modules if n not in merged._modules]:
                outer.append(f"{prefix}{name}.")
                for m in modules:
                    del m.get_submodule(path)._modules[name]


def _put(modules: Sequence[nn.Module], path: str, new: nn.Module) -> None:
    """Put copies of a module at a path of every branch. Raises: ValueError if it has tensors."""
    name = next((name for m in new.modules() for name, t in owned_tensors(m) if t is not None), "")
    if name:
        raise ValueError(
            f"branches: {path} is a {type(new).__name__} by now, whose {name} belongs to no branch"
        )
    parent, _, child = path.rpartition(".")
    for m in modules:
        m.get_submodule(parent).add_module(child, copy.deepcopy(new))


@torch.no_grad()
def fill_branches(root: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Give the modules tensors of their own with the values of the merged tree's, training flags and gradients.

    Modules without tensors that were replaced in the merged tree are replaced in the branches too.
    """
    _copy_replaced(root, modules)
    for link in tensor_links(root, modules):
        whole = link.whole
        values = link.cut(whole)
        gradients = link.cut(whole.grad) if whole.grad is not None else [None] * len(values)
        for owner, value, gradient in zip(link.branches, values, gradients, strict=True):
            if link.name in owner._parameters:
                value = nn.Parameter(value, whole.requires_grad)
                value.grad = gradient
            setattr(owner, link.name, value)
    for i, m in enumerate(modules):
        for path, own in m.named_modules():
            merged = _counterpart(root, path, i)
            own.training = merged.training
            for name in _options(merged, own):
                setattr(own, name, vars(merged)[name])


def _counterpart(root: nn.Module, path: str, branch: int) -> nn.Module:
    """The module of the merged tree that replaces a branch's."""
    module = root
    names = path.split(".") if path else []
    while names:
        module = getattr(module, names.pop(0))
        if isinstance(module, Unmerged):
            module = module[branch]
    return module


def _options(merged: nn.Module, own: nn.Module) -> Iterable[str]:
    """Attributes that mean the same in both, as eps or the p of a dropout; they may have been set on the merged one."""
    held = vars(merged)
    if type(own) in LAYERS and type(merged) is not type(own):  # with the channels of all branches
        return [name for name in LAYERS[type(own)].options if name in held]
    return [name for name in vars(own) if name not in INTERNAL and name in held and is_plain(held[name])]


def empty_copy(module: nn.Module, shared: Iterable[Any] = ()) -> nn.Module:
    """A copy of a module whose tensors have sizes and no memory; `shared` objects are not copied."""
    memo: dict[int, Any] = {id(o): o for o in shared}
    for m in module.modules():
        for _, tensor in owned_tensors(m):
            if tensor is not None:
                empty = torch.empty_like(tensor, device="meta", requires_grad=False)
                parameter = isinstance(tensor, nn.Parameter)
                memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if parameter else empty
    return copy.deepcopy(module, memo)
