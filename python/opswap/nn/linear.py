# SPDX-License-Identifier: MIT
"""One Linear per group as one module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from opswap import functional as F
from opswap._torch import has_hooks
from opswap.ops.linear import register_flops

__all__ = ["GroupFC", "GroupedLinear"]

_NAME = "GroupedLinear"


def _require_positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{_NAME}: {name} must be an int, got {value!r} of type {type(value).__name__}")
    if value <= 0:
        raise ValueError(f"{_NAME}: {name} must be positive, got {value}")
    return value


def _require_list(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{_NAME}: {name} must be a list of ints, got {type(values).__name__}")
    if not values:
        raise ValueError(f"{_NAME}: {name} must not be empty")
    return tuple(_require_positive(f"{name}[{i}]", v) for i, v in enumerate(values))


class GroupedLinear(nn.Module):
    """One Linear per group, all of them in one call: a loop over groups, an einsum, or many heads, as one layer.

    Args:
        in_features: features that every group reads.
        out_features: features that every group writes; or a list with the number of each group (ragged); or, with
            classes_per_group, the features of one class.
        groups: number of groups; may be omitted if a list determines it.
        bias: learn a bias.
        classes_per_group: every group has this many classes, which all read the group's row and have a weight each.
        activation: a module or function for the result, such as torch.nn.ReLU().
        device, dtype: as torch.nn.Linear.
    Shape: with any leading dimensions *, input (*, groups, in_features) or (*, groups * in_features);
        one out_features: (*, groups, out_features), or (*, groups * out_features) for the flat input;
        a list of them:   (*, sum(out_features));
        classes:          (*, sum(classes_per_group), out_features).
    Variables: each Linear's weight in the order of torch.nn.Linear, (out, in), one after another:
        weight (groups, out_features, in_features), (sum(out_features), in_features) or
        (sum(classes_per_group), out_features, in_features); bias without the last dimension. Initialised group by
        group as torch.nn.Linear, uniform in +-1 / sqrt(in_features).
    Raises: TypeError and ValueError in the constructor; in the call as `opswap.functional.grouped_linear`.
    Source: Ridnik et al. 2021, ML-Decoder, section 3 (group fully connected); Liu et al. 2021, Query2Label (one
        output per group).
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int | Sequence[int],
        groups: int | None = None,
        bias: bool = True,
        *,
        classes_per_group: Sequence[int] | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = _require_positive("in_features", in_features)
        self.classes_per_group = None
        ragged = isinstance(out_features, Sequence)
        if ragged and classes_per_group is not None:
            raise ValueError(f"{_NAME}: out_features must be one number with classes_per_group")
        if ragged:
            self.out_features: int | tuple[int, ...] = _require_list("out_features", out_features)
            listed: tuple[int, ...] | None = self.out_features
        else:
            self.out_features = _require_positive("out_features", out_features)
            listed = None
        if classes_per_group is not None:
            self.classes_per_group = listed = _require_list("classes_per_group", classes_per_group)
        if listed is None and groups is None:
            raise ValueError(f"{_NAME}: groups is needed if no list has their number")
        self.groups = len(listed or ()) if groups is None else _require_positive("groups", groups)
        if listed is not None and len(listed) != self.groups:
            raise ValueError(f"{_NAME}: {self.groups} groups, but the list has {len(listed)}: {list(listed)}")
        if activation is not None and not callable(activation):
            raise TypeError(f"{_NAME}: activation must be callable, got {activation!r}")
        rows = self._rows()
        self.weight = nn.Parameter(torch.empty(*rows, in_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
        )
        self.activation = activation
        register_flops()
        self.reset_parameters()

    def _rows(self) -> tuple[int, ...]:
        """Sizes of the bias: how the output features of all groups are kept."""
        if isinstance(self.out_features, tuple):
            return (sum(self.out_features),)
        if self.classes_per_group is not None:
            return sum(self.classes_per_group), self.out_features
        return self.groups, self.out_features

    def _sections(self) -> tuple[int, ...] | None:
        """Output features of every group; None if all have the same."""
        if self.classes_per_group is None:
            return self.out_features if isinstance(self.out_features, tuple) else None
        assert isinstance(self.out_features, int)
        return tuple(n * self.out_features for n in self.classes_per_group)

    def reset_parameters(self) -> None:
        """Draw weight and bias anew, as torch.nn.Linear.reset_parameters does for every group."""
        bound = 1 / math.sqrt(self.in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, groups={self.groups}"
        if self.classes_per_group is not None:
            text += f", classes_per_group={self.classes_per_group}"
        return f"{text}, bias={self.bias is not None}"

    def forward(self, input: Tensor) -> Tensor:
        sections = self._sections()
        if sections is None:
            output = F.grouped_linear(input, self.weight, self.bias)
        else:
            weight = self.weight.flatten(0, -2)
            bias = None if self.bias is None else self.bias.flatten()
            output = F.grouped_linear(input, weight, bias, sections)
            if self.classes_per_group is not None:
                output = output.unflatten(-1, self._rows())
        return output if self.activation is None else self.activation(output)

    def _linear_sizes(self) -> tuple[int, ...]:
        """Output features of every Linear that this layer replaces."""
        if isinstance(self.out_features, tuple):
            return self.out_features
        return (self.out_features,) * self._rows()[0]

    @classmethod
    def from_linears(
        cls,
        linears: Sequence[nn.Linear],
        *,
        ragged: bool = False,
        classes_per_group: Sequence[int] | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> GroupedLinear:
        """One layer with copies of the parameters of these, and of their gradients.

        Args:
            linears: one per group, or one per class if classes_per_group is given.
            ragged: return (*, sum(out_features)), as for a list, though all out_features are equal.
            classes_per_group, activation: as in the constructor.
        Raises: TypeError for a module that is not a Linear; ValueError that names the first difference if
            in_features, bias, dtype, device, requires_grad, training, or the presence of gradients differ; ValueError
            for a Linear or a parameter that is used twice, for hooks, and for a forward on an instance.
            Optimizer state is carried over by `opswap.merge.move_optimizer_state`.
        """
        linears = _require_alike(linears)
        sizes = [m.out_features for m in linears]
        out_features: int | list[int] = sizes if ragged or len(set(sizes)) > 1 else sizes[0]
        groups: int | None = len(linears)
        if classes_per_group is not None:
            if sum(classes_per_group) != len(linears):
                raise ValueError(
                    f"{_NAME}: classes_per_group {list(classes_per_group)} sums to {sum(classes_per_group)}, "
                    f"but there are {len(linears)} Linears"
                )
            if len(set(sizes)) > 1:
                raise ValueError(f"{_NAME}: the classes differ in out_features: {sizes}")
            out_features, groups = sizes[0], None
        first = linears[0]
        layer = nn.utils.skip_init(
            cls,
            first.in_features,
            out_features,
            groups,
            first.bias is not None,
            classes_per_group=classes_per_group,
            activation=activation,
            device=first.weight.device,
            dtype=first.weight.dtype,
        )
        for name, parameter in layer._linear_parameters():
            _join([getattr(m, name) for m in linears], parameter)
        return layer.train(first.training)

    def to_linears(self) -> list[nn.Linear]:
        """The Linears that this layer replaces, one per group or class, with copies of parameters and gradients."""
        linears = [
            nn.utils.skip_init(
                nn.Linear,
                self.in_features,
                size,
                self.bias is not None,
                device=self.weight.device,
                dtype=self.weight.dtype,
            )
            for size in self._linear_sizes()
        ]
        for name, parameter in self._linear_parameters():
            _split(parameter, [getattr(m, name) for m in linears])
        return [m.train(self.training) for m in linears]

    def _linear_parameters(self) -> list[tuple[str, nn.Parameter]]:
        parameters = (("weight", self.weight), ("bias", self.bias))
        return [(name, p) for name, p in parameters if p is not None]


class GroupFC(nn.Module):
    """The call of ML-Decoder's scripted GroupFC, without its loop: `decoder.group_fc = opswap.nn.GroupFC()`.

    It has no parameters: the decoder keeps its own, under the same names.
    Shape: h (B, G, in), duplicate_pooling (G, in, out), or (in, out) for all groups, out_extrap (B, G, out), which is
        written. Returns nothing.
    Raises: as `opswap.functional.grouped_linear`.
    Source: Ridnik et al. 2021, ML-Decoder, section 3.
    """

    def forward(self, h: Tensor, duplicate_pooling: Tensor, out_extrap: Tensor) -> None:
        if duplicate_pooling.dim() == 2:
            out_extrap.copy_(torch.matmul(h, duplicate_pooling))
        else:
            out_extrap.copy_(F.grouped_linear(h, duplicate_pooling.transpose(1, 2)))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _join(parts: Sequence[nn.Parameter], whole: nn.Parameter) -> None:
    """Copy the parameters, one after another, and their gradients, into one."""
    with torch.no_grad():
        whole.copy_(_flat(parts).view_as(whole))
        gradients = [p.grad for p in parts if p.grad is not None]
        if gradients:
            whole.grad = _flat(gradients).view_as(whole)
    whole.requires_grad_(parts[0].requires_grad)


def _split(whole: nn.Parameter, parts: Sequence[nn.Parameter]) -> None:
    """The inverse of `_join`."""
    sizes = [p.numel() for p in parts]
    with torch.no_grad():
        for part, values in zip(parts, whole.reshape(-1).split(sizes), strict=True):
            part.copy_(values.view_as(part))
            part.requires_grad_(whole.requires_grad)
        if whole.grad is not None:
            for part, values in zip(parts, whole.grad.reshape(-1).split(sizes), strict=True):
                part.grad = values.view_as(part).clone()


def _traits(linear: nn.Linear) -> dict[str, object]:
    """What the Linears of one layer must have in common."""
    traits: dict[str, object] = {"in_features": linear.in_features, "bias": linear.bias is not None}
    traits |= {"training": linear.training}
    for name in ("weight", "bias"):
        p = getattr(linear, name)
        if p is not None:
            traits |= {f"{name}.dtype": p.dtype, f"{name}.device": p.device}
            traits |= {f"{name}.requires_grad": p.requires_grad, f"{name} has a gradient": p.grad is not None}
    return traits


def _require_plain(place: str, linear: nn.Linear) -> None:
    """Refuse what one layer in the place of the Linear would not run."""
    own = vars(linear)
    if has_hooks(linear):  # also those of weight_norm, spectral_norm and pruning
        raise ValueError(f"{_NAME}: {place} has hooks, which one layer would not call")
    if own.get("forward") is not own.get("_opswap_forward"):
        raise ValueError(f"{_NAME}: {place} has a forward of its own, put on the instance")
    for name, p in linear.named_parameters():
        if has_hooks(p):
            raise ValueError(f"{_NAME}: {place}.{name} has hooks, which one parameter would not call")


def _require_alike(linears: Sequence[nn.Linear]) -> list[nn.Linear]:
    linears = list(linears)
    if not linears:
        raise ValueError(f"{_NAME}: expected at least one Linear, got an empty list")
    for i, m in enumerate(linears):
        if type(m) is not nn.Linear:
            raise TypeError(f"{_NAME}: linears[{i}] must be a torch.nn.Linear, got {type(m).__name__}")
    first = _traits(linears[0])
    seen: dict[int, int] = {}
    for i, m in enumerate(linears):
        _require_plain(f"linears[{i}]", m)
        for name, p in m.named_parameters():
            other = seen.setdefault(id(p), i)
            if other != i:
                raise ValueError(f"{_NAME}: linears[{i}] and linears[{other}] share their {name}")
        for key, value in _traits(m).items():
            if key in first and value != first[key]:
                raise ValueError(f"{_NAME}: linears[{i}] has {key} {value}, linears[0] has {first[key]}")
    return linears
