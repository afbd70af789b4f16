# SPDX-License-Identifier: MIT
"""Run a forward on proxies and record what it does; conditions on sizes are answered, and the answers recorded.

What a forward reads from Python itself (a type, a random number, the gradient mode) would be answered once and
baked in; each such read is detected here and refused. What it reads of the sizes of tensors is answered
from an example or a guess, and every answer is kept as a `Decision`, for a guard to check.
"""

from __future__ import annotations

import inspect
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import checkpoint

from opswap._torch import assert_function

from ..graph.calls import operation
from ..graph.metadata import counts_dimensions, expression, is_metadata, is_shape, known_dimensions
from ..runtime.guards import hooked, own_call
from ..runtime.lists import Listed, is_listed, names_in
from ..runtime.messages import require
from ..runtime.purity import SWAP_FOLDER, TORCH_FOLDER
from . import classes
from .bytecode import unfaithful
from .concrete import Concrete
from .follow import CHECKPOINTED, Follower
from .given import Given
from .patches import Patches, reading_flags, trace_with
from .replaced import Replaced
from .stand_in import StandIn, has_attributes
from .texts import Texts, has_mark, is_for_a_message
from .trace_frames import frames, reads_modules

if TYPE_CHECKING:
    from .example_run import ExampleValues

__all__ = [
    "BorrowedModuleError",
    "CaptureError",
    "Decision",
    "Tracer",
    "class_name",
]

_EINOPS = f"{os.sep}einops{os.sep}"
# torch's own code through which a call reaches a proxy unchanged; a trace would drop what the rest of torch
# adds around a call, such as a checkpoint, a custom gradient or a context.
_TRANSPARENT = (
    "_jit_internal.py",
    "_tensor.py",
    os.path.join("ao", "nn", "quantized", "modules", "functional_modules.py"),
    "functional.py",
    "fx" + os.sep,
    "nn" + os.sep,
    "overrides.py",
    os.path.join("utils", "_device.py"),  # the default device, which matters for factories only
)
_ASSERT = getattr(assert_function, "__code__", None)  # becomes a node; public, and documented
_CONTAINERS = (list, dict, immutable_list, immutable_dict)
_TUPLES = (tuple, torch.Size)
# The number of dimensions is tried in this order if no run has shown it.
_GUESSES = 500  # answers about sizes in one trace, as nothing determines them
_DIMENSIONS = (4, 3, 5, 2)


class CaptureError(Exception):
    """A forward that cannot be written as a graph; the message has the reason."""


class BorrowedModuleError(CaptureError):
    """A forward that calls a module that is not a submodule, and that other code may change."""


class EndlessError(CaptureError):
    """A forward that compares sizes without end, as in a loop that ends at a size."""


Answer = bool | int | str


@dataclass(frozen=True)
class Decision:
    """A condition on metadata in a forward, and the value that it was given.

    node: the fact. answer: its truth value, or the number or text that it was taken for. others: the answers to try
    next where this one was a guess. where: "file:line" of the question.
    """

    node: fx.Node
    answer: Answer
    others: tuple[Answer, ...]
    where: str


class Tracer(fx.Tracer):
    """Traces one forward along one path.

    made: modules that traces of this forward made for themselves, which the trace adds to.
    script: answers for the first decisions; examples: answers for the others, which are guesses without.
    After `trace`, also if it raises: `decisions`, `arguments` (the parameters that became placeholders), `lists`
    (those of them that became several) and `refusal`, the first reason for which the graph must not be believed.
    """

    proxy_buffer_attributes = True

    def __init__(
        self,
        inlined: Sequence[nn.Module],
        made: list[nn.Module],
        script: Sequence[Answer] = (),
        examples: ExampleValues | None = None,
    ) -> None:
        super().__init__()
        self.inlined = {id(m) for m in inlined}
        self.foreign = tuple(made)  # what an earlier trace met was not made in this one
        self.made = made
        self.script, self.examples = script, examples
        self.owners = [""]
        self.arguments: tuple[str, ...] = ()
        self.lists: dict[str, Listed] = {}
        self.given = Given()
        self._in_torch = False  # the arguments of one of torch's functions are being looked at
        self.decisions: list[Decision] = []
        self._guesses = 0
        self._known_metadata: dict[fx.Node, bool] = {}  # results of `is_metadata` for the nodes so far
        self.refusal: CaptureError | None = None
        self.modes = _modes()
        self.thread = threading.get_ident()
        self.answered: dict[str, Answer] = {}
        self.follower: Follower  # what runs in the trace, by whoever makes the tracer
        self.computing_example = False  # modules are called on tensors, for an example value
        self.texts = Texts()
        self.nothing = ""  # the name of the node in whose place the forward gets None
        self.disturbed = False  # by a trace of another thread
        self._stand_ins: list[StandIn] = []

    def refuse(self, reason: str, kind: type[CaptureError] = CaptureError) -> CaptureError:
        """Record the first refusal, because the forward itself may catch the exception."""
        self.refusal = self.refusal or kind(reason)
        return self.refusal

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """The graph of root's forward; `follower` knows afterwards what it read and wrote elsewhere."""
        with Concrete(self):
            return self._trace(root)

    def _trace(self, root: nn.Module) -> fx.Graph:
        patches, replaced = Patches(), Replaced(self)

        def meet(code: CodeType) -> None:
            patches.meet(code)
            replaced.meet(code)

        self.follower.meet = meet
        self.follower.check_class = partial(classes.check, self)
        try:
            with reading_flags(self._read_flag):
                return trace_with(patches, self, root)
        finally:
            self.follower.stop()
            if any(map(has_attributes, self._stand_ins)):
                self.refuse("an attribute of a tensor is set")
            self.disturbed = patches.disturbed
            replaced.restore()

    def create_proxy(self, kind: str, target: Any, args: Any, *others: Any, **kwargs: Any) -> fx.Proxy:
        """As fx does; no code of the user runs in it."""
        before, around = self.follower.pause(), self._in_torch
        self._in_torch = kind == "call_function" and str(target.__module__).startswith("torch")
        try:
            if target is assert_function and len(args) == 2 and has_mark(args[1]):
                self._checked(*args)
                return None
            made = super().create_proxy(kind, target, args, *others, **kwargs)
        finally:
            self._in_torch = around
            self.follower.go_on(before)
        return None if made.node.name == self.nothing else made

    def _checked(self, fact: Any, text: str) -> None:
        """An assertion of torch with a text that shows values."""
        if not (isinstance(fact, fx.Proxy) and is_metadata(fact.node)):
            raise self.refuse(
                f"a string is built from a size for a check of elements at {self.inspect_frames()}"
            )
        error = (
            AssertionError.__module__,
            AssertionError.__qualname__,
            ("",),
            ((0, self.texts.split(text)),),
        )
        self.create_node("call_function", require, (fact.node, True, *error), {})

    def text_of(self, node: fx.Node, frame: FrameType, how: str, specification: str = "") -> str:
        """A fact as text: in a message what stands for it during the trace, else the text that the path is for."""
        if not is_metadata(node):
            raise self.refuse(f"a string is built from a tensor at {self.inspect_frames()}")
        if is_for_a_message(frame):
            return self.texts.mark(node, how, specification)
        function = {"format": format, "repr": repr, "str": str}[how]
        rest = (specification,) if how == "format" else ()
        likely = self._likely(node)
        guesses = () if likely is None else (function(likely, *rest),)
        return str(self._decide(self.create_node("call_function", function, (node, *rest), {}), str, guesses))

    def _likely(self, node: fx.Node) -> Any:
        """The dtype or device of the module's parameters, in place of one that is not known."""
        if node.target is not getattr or node.args[1] not in ("device", "dtype"):
            return None
        held = next((p for p in self.root.parameters() if p.is_floating_point()), torch.empty(0))
        return getattr(held, node.args[1])

    def proxy(self, node: fx.Node) -> fx.Proxy:
        made = StandIn(node, self)
        self._stand_ins.append(made)
        return made

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return id(m) not in self.inlined

    def is_passing(self, m: nn.Module) -> bool:
        """True for a module of torch without state that the forward creates and calls like a function."""
        if any(m is other for other in self.foreign):
            self.refusal = self.refusal or BorrowedModuleError(
                f"{class_name(m)} is called, which is not a submodule"
            )
            raise self.refusal
        if m in (self.submodule_paths or ()) or any(m is own for own in self.root.modules()):
            return False
        state = (*m.parameters(), *m.buffers(), *m.children())
        if state or hooked(m) or not type(m).__module__.startswith("torch.nn."):
            return False
        self.made.append(m)
        return True

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.computing_example or threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        if m is self.root:
            raise self.refuse("forward calls its own module")
        # What is not a leaf has no hooks of its own, and those of the process must not fire.
        if self.is_passing(m):
            return m.forward(*args, **kwargs)
        if id(m) not in self.inlined:
            if own_call(m):
                # What it does beside this would be captured, and run by the call of the module as well.
                raise self.refuse(f"{class_name(m)} has a __call__ of its own")
            self._check_written(m)
        self.owners.append(self.path_of_module(m))
        try:
            return super().call_module(m, m.forward, args, kwargs)
        finally:
            self.owners.pop()

    def _check_written(self, m: nn.Module) -> None:
        """The rewritten forward writes nothing: refuse what a module that is called as it is may read, though it is
        put back later."""
        before = self.follower.pause()
        try:
            written = self.follower.wrote()
        finally:
            self.follower.go_on(before)
        if written:
            raise self.refuse(f"forward writes to {written[0]} before it calls {class_name(m)}")

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        frame = sys._getframe(1)
        if reads_modules(frame.f_back) and not self.computing_example:
            self.follower.fetched(frame.f_locals["mod"], attr, attr_val)
        before = self.follower.pause()
        try:
            return super().getattr(attr, attr_val, parameter_proxy_cache)
        finally:
            self.follower.go_on(before)

    def _read_flag(self, module: nn.Module, frame: FrameType) -> None:
        if threading.get_ident() == self.thread and not self.computing_example:
            self.follower.read_flag(module, self.root.get_submodule(self.owners[-1]), frame)

    def create_arg(self, a: Any) -> Any:
        """What a node may have as an argument; fx would make plain lists and dicts of those of other classes."""
        if not self._in_torch and a in self.given:
            raise self.refuse(
                f"forward passes on a list of tensors that it was given at {self.inspect_frames()}"
            )
        own_tuple = isinstance(a, tuple) and type(a) not in _TUPLES and not hasattr(a, "_fields")
        if (isinstance(a, (list, dict)) and type(a) not in _CONTAINERS) or (own_tuple and not self._in_torch):
            raise self.refuse(f"forward makes a {type(a).__name__} of tensors")
        known = getattr(type(a), "__dataclass_fields__", {})
        if hasattr(type(a), "__post_init__") or not all(f.init for f in known.values()):
            raise self.refuse(f"forward makes a {type(a).__name__}, which sets fields of its own")
        if isinstance(a, torch.Tensor) and not isinstance(a, nn.Parameter) and not self._has(a):
            raise self.refuse(f"a tensor from outside of the module is used at {self.inspect_frames()}")
        try:
            return super().create_arg(a)
        except (NameError, NotImplementedError) as error:
            kind = f"{type(a).__module__}.{type(a).__qualname__}"
            raise self.refuse(f"a {kind} is passed to torch at {self.inspect_frames()}") from error

    def _has(self, tensor: torch.Tensor) -> bool:
        return tensor in self.tensor_attrs or any(tensor is b for b in self.root.buffers())

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Proxies for parameters that have no default, or got a tensor in the example run; others are guarded."""
        seen = self.examples.arguments() if self.examples is not None else {}
        taken, values, kept = [], [], []
        for p in list(inspect.signature(root_fn).parameters.values())[1:]:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            if p.default is not p.empty and (p.kind is p.KEYWORD_ONLY or p.name not in seen):
                kept.append(p)
                continue
            if p.kind is p.KEYWORD_ONLY:
                raise self.refuse(f"forward has the required keyword-only argument {p.name!r}")
            values += [k.default for k in kept]  # between arguments that are given
            kept = []
            taken.append(p.name)
            values.append(self._argument(p.name, seen.get(p.name)))
        self.arguments = tuple(taken)
        self.follower.start()  # the forward runs next
        return root_fn, [self.root, *values]

    def _argument(self, name: str, seen: Any) -> Any:
        """A proxy; a list of proxies if a run has shown a list of tensors."""
        if not is_listed(seen):
            return self.create_proxy("placeholder", name, (), {})
        listed = self.lists[name] = Listed(type(seen), len(seen))
        names = names_in(name, listed)
        return self.given.add(listed, (self.create_proxy("placeholder", n, (), {}) for n in names))

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self.modes:
            files = [f.f_code.co_filename for f in frames()]
            checkpointed = checkpoint.__file__ in files
            raise self.refuse(
                CHECKPOINTED if checkpointed else "forward changes the gradient or autocast mode"
            )
        source = self.inspect_frames() or class_name(self.root.get_submodule(self.owners[-1]))
        node = super().create_node(kind, target, *args, **kwargs)
        # A leaf's call belongs to the module whose forward makes it.
        node.meta["owner"] = self.owners[-2] if kind == "call_module" else self.owners[-1]
        if kind == "get_attr":
            holder, _, name = target.rpartition(".")
            module = self.root.get_submodule(holder)
            node.meta["value"] = module._buffers.get(name, module._parameters.get(name))
        if kind == "call_module":
            node.meta["module"] = self.root.get_submodule(target)
        node.meta["source"] = source
        return node

    def inspect_frames(self) -> str:
        """The innermost line of user code; refuses code that a trace cannot follow."""
        source = ""
        for frame in frames():
            code, name = frame.f_code, frame.f_code.co_filename
            if name.startswith(TORCH_FOLDER):
                if name == checkpoint.__file__:
                    raise self.refuse(CHECKPOINTED)
                if not name[len(TORCH_FOLDER) :].startswith(_TRANSPARENT) and code is not _ASSERT:
                    raise self.refuse(
                        f"forward runs through {os.path.relpath(name, TORCH_FOLDER + os.pardir)}"
                    )
            elif not name.startswith((SWAP_FOLDER, "<frozen")) and _EINOPS not in name:
                source = source or f"{name}:{frame.f_lineno}"
                reason = unfaithful(code)
                if reason:
                    raise self.refuse(reason)
        return source

    def to_bool(self, obj: fx.Proxy) -> bool:
        if not is_metadata(obj.node, self._known_metadata):
            raise self.refuse(f"control flow depends on the elements of a tensor at {self.inspect_frames()}")
        # As max(size, 0) asks, where it seldom is.
        below_zero = obj.node.target is operator.lt and obj.node.args[1:] == (0,)
        return bool(self._decide(obj.node, bool, (False, True) if below_zero else (True, False)))

    def integer(self, obj: fx.Proxy) -> int:
        """The value of a number; the captured path is then valid for this value only."""
        node = obj.node
        if not is_metadata(node, self._known_metadata):
            raise self.refuse(
                f"an element of a tensor is converted to a Python number at {self.inspect_frames()}"
            )
        if not counts_dimensions(node):
            return self._decide(node, int, ())
        return known_dimensions(node) or self._decide(node, int, _DIMENSIONS)

    def length(self, obj: fx.Proxy) -> int:
        """len() of a tensor, of a size, or of what torch.chunk gives."""
        node = obj.node
        if operation(node) == "getitem" and is_shape(node.args[0]) and isinstance(node.args[1], slice):
            return len(range(self.length(fx.Proxy(node.args[0], self)))[node.args[1]])
        if is_shape(node) and (known := known_dimensions(node)):
            return known
        guesses = _DIMENSIONS if is_shape(node) else ()
        if operation(node) == "chunk":
            chunks = node.args[1] if len(node.args) > 1 else node.kwargs.get("chunks")
            guesses = (chunks,) if isinstance(chunks, int) else ()
        return self._decide(self.create_node("call_function", len, (node,), {}), int, guesses)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return iter([obj[i] for i in range(self.length(obj))])

    def class_of(self, obj: fx.Proxy) -> type:
        """The class that Python code should see."""
        return classes.answer(self, obj, sys._getframe(2))

    def bind(self, node: fx.Node, fact: Callable[[Any], bool]) -> None:
        """Make it a condition of the captured path that the fact holds for this input."""
        if not any(d.node.target is fact and d.node.args[0] is node for d in self.decisions):
            asked = self.create_node("call_function", fact, (node,), {})
            self.decisions.append(Decision(asked, True, (), self.inspect_frames()))

    def _example(self, node: fx.Node) -> Any:
        if self.examples is None:
            return None
        self.computing_example, before = True, self.follower.pause()
        try:
            return self.examples.value(node)
        finally:
            self.computing_example = False
            self.follower.go_on(before)

    def _decide(self, node: fx.Node, kind: type, guesses: tuple[Answer, ...]) -> Any:
        key = f"{kind.__name__} {expression(node, self._known_metadata)}"
        if key in self.answered:
            return self.answered[key]
        place = len(self.decisions)
        example = self._example(node)
        if place < len(self.script):
            answer = self.script[place]
        elif example is not None:
            answer, guesses = kind(example), ()
        elif guesses:
            self._guesses += 1
            if self._guesses > _GUESSES:
                place = self.inspect_frames()
                raise self.refuse(
                    f"sizes are compared without end at {place}: pass example_inputs", EndlessError
                )
            answer = guesses[0]
        else:
            done = (
                "a string is built from a size" if kind is str else "a size is converted to a Python number"
            )
            raise self.refuse(f"{done} at {self.inspect_frames()}: pass example_inputs")
        others = guesses[guesses.index(answer) + 1 :] if answer in guesses else ()
        self.decisions.append(Decision(node, answer, others, self.inspect_frames()))
        self.answered[key] = answer
        return answer


def class_name(module: nn.Module) -> str:
    """The module's class by its full name."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _modes() -> tuple[bool, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )
