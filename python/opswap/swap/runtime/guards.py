# SPDX-License-Identifier: MIT
"""What a rewritten forward checks before it runs the fused path.

All of it runs in every forward, and torch.compile and torch.export trace through it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from opswap._torch import any_global_hook, fake_copy, graph_refuses_modules, is_ordinary, only_looking_hooks
from opswap.nn.frozen import Replay

from .instance_forward import without_links
from .members import owner_of_class
from .outside import Outside, is_unchanged
from .purity import USER
from .state import INTERNAL, State, unchanged

__all__ = [
    "NOT_MERGED",
    "SET_METHODS",
    "Record",
    "call_adds",
    "capture_is_valid",
    "hooked",
    "in_mode",
    "is_plain_tensor",
    "listed",
    "one_mode",
    "ordinary",
    "own_call",
    "replaces",
    "runs_other_code",
    "size_guard_holds",
    "unhooked",
    "unpackable",
]


class Later(Protocol):
    """The code of the modules that a rewritten forward calls, and of the hooks below it."""

    runs_others: bool  # some of it is neither torch's nor opswap's

    def conflict(self, module: nn.Module, readers: Iterable[nn.Module], outside: Outside) -> str:
        """What code that came after the capture may write to and the forward reads, in words; "" if nothing is known.

        Args: readers: the modules of which it reads something; outside: what else it reads.
        """


@dataclass(frozen=True)
class Record:
    """The record of one rewritten module: kept on the instance, copied and pickled with it.

    `root` and `inlined` are the states at the time of the capture, `containers` those of containers whose children
    are called but not they themselves; `sites` are relative to the module. `read` are the states of modules of which
    something was read, `outside` what belongs to no module. `passed` are modules of torch that run between calls that
    one call stands for, and those below them. `known` has results of `size_guard_holds`, `logged` what
    was written to the log, `replay` what runs in place of the forward in evaluation. `later` tells what code below
    that came later may write to and the forward reads; `moved`: what such code has changed nevertheless. `follows`: the
    forward replaces nothing, and runs in recorded calls only.
    """

    root: State
    inlined: tuple[tuple[nn.Module, State], ...]
    containers: tuple[tuple[nn.Module, State], ...]
    sites: tuple[Any, ...]
    read: tuple[tuple[nn.Module, State], ...] = ()
    outside: Outside = field(default_factory=Outside)
    passed: tuple[tuple[nn.Module, State], ...] = ()
    later: Later | None = field(default=None, compare=False)
    moved: list[str] = field(default_factory=list, compare=False)
    known: dict[Any, bool] = field(default_factory=dict, compare=False)
    logged: dict[str, object] = field(default_factory=dict, compare=False)
    replay: Replay = field(default_factory=Replay, compare=False)
    follows: bool = False

    def conflict(self, module: nn.Module) -> str:
        """What later code below may write to and the forward reads, in words; "" if nothing is known."""
        if self.later is None:
            return ""
        known = (m for states in (self.inlined, self.containers, self.read) for m, _ in states)
        return self.later.conflict(module, itertools.chain((module,), known), self.outside)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: calls in other threads may add to the dictionaries meanwhile."""
        mutable = {"known": dict(self.known), "logged": dict(self.logged), "moved": list(self.moved)}
        return {**self.__dict__, **mutable}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"moved": [], "replay": Replay(), **state})  # older pickles have none


def replaces(module: nn.Module) -> bool:
    """True if the generated forward of a module replaces something, whether or not the report names it."""
    record = vars(module).get("_opswap_record")
    return record is not None and not record.follows


# Methods that the forwards of torch's layers call, and that users set on an instance.
SET_METHODS = ("_conv_forward", "_check_input_dim")


def hooked(module: nn.Module) -> bool:
    """True if calling the module does more than its forward; also for what is no module, in the place of one."""
    return not isinstance(module, nn.Module) or bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or (
            # not the one of opswap, see `instance_forward`
            "forward" in module.__dict__
            and module.__dict__["forward"] is not module.__dict__.get("_opswap_forward")
        )
        or "_conv_forward" in module.__dict__
        or "_check_input_dim" in module.__dict__
        or "_call_impl" in module.__dict__
    )


def own_call(module: nn.Module) -> bool:
    """True if a user's class has its own `__call__`; the one that fx gives each graph adds nothing."""
    compiled = isinstance(module, (torch.jit.ScriptModule, torch.fx.GraphModule))
    return type(module).__call__ is not nn.Module.__call__ and not compiled


def call_adds(module: nn.Module) -> str:
    """What calling the module does more than its forward; "" if nothing. For plans: a call compares classes."""
    if own_call(module) or type(module)._call_impl is not nn.Module._call_impl:
        return "has a call of its own"
    return "has hooks" if hooked(module) else ""


NOT_MERGED = "its call is not merged with the calls around it"


def call_problem(name: Any, module: nn.Module) -> str:
    """Why the call of a module of this name is not merged with the calls around it, or ""."""
    adds = call_adds(module)
    return f"{name} {adds}: {NOT_MERGED}" if adds else ""


def runs_other_code(module: nn.Module) -> bool:
    """True if calling the module runs code that is neither torch's nor opswap's, of which nothing is known."""
    return any(owner_of_class(type(m)) == USER or hooked(m) for m in module.modules())


def globally_hooked() -> bool:
    """True if a hook for all modules is registered that may do more than look, as that of `shapes.detect` does."""
    return any_global_hook() and not only_looking_hooks()


def capture_is_valid(module: nn.Module, *inputs: Any) -> bool:
    """True if the captured forward still means what the module's own forward means."""
    record = getattr(module, "_opswap_record", None)
    if record is None or record.moved or not unchanged(module, record.root):
        return False
    for x in inputs:
        if type(x) is not Tensor and not (isinstance(x, Tensor) and is_ordinary(x)):
            return False
    if (record.inlined or record.passed) and globally_hooked():
        return False
    for states in (record.inlined, record.passed):
        for child, state in states:
            if hooked(child) or type(child) is not state.cls or not unchanged(child, state):
                return False
    for states in (record.containers, record.read):
        for child, state in states:
            if type(child) is not state.cls or not unchanged(child, state):
                return False
    if record.later is not None and (graph_refuses_modules() or later_conflict(module)):
        return False
    return is_unchanged(record.outside)


def later_conflict(module: nn.Module) -> str:
    """See `Record.conflict`; torch.compile takes the answer as a constant of the module whose code it traces."""
    return module._opswap_record.conflict(module)


later_conflict.__dict__["_dynamo_marked_constant"] = True


def ordinary(input: Any, *others: Any) -> bool:
    """True for a tensor of no class of a user that does not wrap other tensors, as are the tensors among the others."""
    if type(input) is not Tensor and not (isinstance(input, Tensor) and is_ordinary(input)):
        return False
    for value in others:
        if type(value) is Tensor or type(value) is nn.Parameter:  # isinstance takes ten times as long
            continue
        if isinstance(value, Tensor) and not is_ordinary(value):
            return False
    return True


def listed(value: Any, kind: type, number: int) -> bool:
    """True for a list or tuple, `kind`, of so many values; `capture_is_valid` checks whether they are tensors."""
    return type(value) is kind and len(value) == number


def is_plain_tensor(value: Any) -> bool:
    """True for a plain tensor, or a parameter."""
    return type(value) is Tensor


def in_mode(module: nn.Module, training: bool) -> bool:
    """True if the module and everything inlined in it have this training flag."""
    if module.training is not training:
        return False
    for child, _ in module._opswap_record.inlined:  # noqa: SIM110 (a generator is not traceable)
        if child.training is not training:
            return False
    return True


def one_mode(*flags: bool) -> bool:
    """True if these training flags are equal."""
    for flag in flags:  # noqa: SIM110 (a generator is not traceable)
        if flag is not flags[0]:
            return False
    return True


def size_guard_holds(
    guard: Callable[..., bool], read: tuple[str, ...], module: nn.Module, *inputs: Tensor
) -> bool:
    """True if a guard that calls the module's children, or reads its tensors, holds for inputs of these sizes.

    It is evaluated on a copy with tensors without data, so that no child's state changes, and once for the same sizes
    and the same children. With hooks on a child, which would run and may change sizes, it is never evaluated.

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
    """The properties of tensors that output sizes, or code that reads metadata, can depend on."""
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


def unpackable(values: Any, number: int) -> None:
    """Raise what Python raises when values are unpacked to another number of names."""
    found = len(values)
    if found > number:
        raise ValueError(f"too many values to unpack (expected {number})")
    if found < number:
        raise ValueError(f"not enough values to unpack (expected {number}, got {found})")


def unhooked(*modules: nn.Module) -> bool:
    """True if calling these modules does no more than their forwards."""
    if globally_hooked():
        return False
    for module in modules:  # noqa: SIM110
        if hooked(module):
            return False
    return True
