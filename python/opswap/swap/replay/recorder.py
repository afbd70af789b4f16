# SPDX-License-Identifier: MIT
"""Record which functions a call runs on its tensors, and write them down as a function of their own.

The extension records its own calls, and a TorchFunctionMode those of torch. Only calls are recorded whose results
depend on nothing but their arguments and sizes; anything else raises `NotRecordedError`, and nothing is lost but time.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from opswap import _core
from opswap.nn.frozen import Frozen

from ..graph.table import Does, names_of
from ..runtime.fallback import listener
from .calls import Call, in_order_of_memory, memory_of, tensors_in

__all__ = ["NotRecordedError", "Recording", "record"]

# What code reads of a tensor that is the same for all tensors of its kind: `replay` compares the kinds.
_READ = frozenset(
    " ".join(
        (
            "shape dtype device layout ndim size dim ndimension stride numel nelement element_size is_cpu is_cuda",
            "is_quantized is_sparse is_meta is_mkldnn is_nested is_contiguous is_floating_point is_complex",
            "get_device __len__",
        )
    ).split()
)
# What the package reads besides, to see whether a kernel may run. To other code it is a number that may change.
_READ_BY_KERNELS = frozenset(
    ("storage_offset", "is_inference", "is_conj", "is_neg", "is_pinned", "_version", "data_ptr")
)
_ANY_READ = _READ | _READ_BY_KERNELS
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
# Their results have the same sizes, whatever the values of their second and later tensors are; a number may be given
# as a tensor to all but operators: the dim of `cat`, the stride of `conv2d`.
_OPERATORS = (
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ pow __getitem__"
)
_OF_SEVERAL = (
    "max min __matmul__ matmul bmm linear batch_norm layer_norm group_norm instance_norm conv1d conv2d conv3d",
    "scaled_dot_product_attention view_as reshape_as type_as to",
)
_OF_ONE = (
    "__neg__ norm softmax log_softmax normalize pad expand repeat t flip roll view pixel_shuffle pixel_unshuffle",
    "unfold argmax argmin upsample avg_pool1d",
)
_OTHERWISE = Does.SIZES | Does.METADATA | Does.STRIDES | Does.SAME_STRIDES | Does.DRAWS
_OPERANDS = names_of(Does.BINARY | Does.ELEMENTWISE) | frozenset(_OPERATORS.split())
_SEVERAL = names_of(Does.JOIN) | frozenset(" ".join(_OF_SEVERAL).split())
# What returns tensors that depend on the arguments alone, and writes to none of them.
_PURE = names_of(~_OTHERWISE) | _OPERANDS | _SEVERAL | frozenset(" ".join(_OF_ONE).split())
_PURE -= {"alpha_dropout", "data"}
# What writes its result over its first argument: relu_(x), x.relu_(), x += y.
_ELEMENTWISE = names_of(Does.ELEMENTWISE)
_OVER_FIRST = frozenset(
    f"{name}_" for name in (_ELEMENTWISE | names_of(Does.BINARY)) - {"alpha_dropout", "dropout"}
)
_OVER_FIRST |= {"__iadd__", "__isub__", "__imul__", "__itruediv__"}
# By these the extension makes its outputs; what they hold otherwise is undefined.
_UNDEFINED = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
# Arguments with which such a function does write to a tensor, or draws random numbers.
_WRITING = frozenset(("inplace", "training", "train", "use_input_stats", "out"))
_FLAGGED = frozenset(("batch_norm", "instance_norm", "dropout", "dropout2d", "dropout3d"))
_CONSTANTS = (bool, int, float, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout)
_MASKS = (torch.bool, torch.uint8)
_MEMORY_FORMAT = torch.memory_format


class NotRecordedError(Exception):
    """Why a call cannot be written down."""


@dataclass
class Recording:
    """What was recorded: `run`, of the arguments of the call, returns its result, or NotImplemented if a kernel
    declines; it counts as `counts` say.

    frozen: whose folded weights were prepared. prepared: the tensors that these were folded of, which must lie where
    they lay.
    """

    result: Any
    run: Callable[..., Any]
    frozen: tuple[Frozen, ...]
    prepared: tuple[Tensor, ...]
    code: str
    counts: tuple[tuple[bool, str, int], ...] = ()


def _call_of(entry: Any) -> Call:
    """What the recorder put on the tape, or the extension: name, arguments and result."""
    if isinstance(entry, Call):
        return entry
    name, args, result = entry
    writes = any(result is a for a in args if isinstance(a, Tensor))
    return Call(getattr(_core, name), args, {}, result, may_decline=True, writes=writes)


def _name(function: Any) -> str:
    """`shape` for the getter of Tensor.shape."""
    name = getattr(function, "__name__", "")
    return getattr(function.__self__, "__name__", "") if name == "__get__" else name


def _require_pure(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Raise NotRecordedError before a function runs that may do more than to return tensors.

    Returns: True if it writes over its first argument, and to nothing else.
    """
    name = _name(function)
    if name in _ANY_READ or name in _UNDEFINED:
        if next(tensors_in((args[1:], kwargs)), None) is not None:
            raise NotRecordedError(f"a tensor is an option of {name}")
        return False
    if name in _OVER_FIRST:
        return True
    module = getattr(function, "__module__", None) or ""
    if name not in _PURE and not module.startswith("opswap.ops."):
        raise NotRecordedError(f"{name} may depend on more than its arguments, or write to them")
    _require_sizes(name, args, kwargs)
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a function in C
        if name in _FLAGGED:
            raise NotRecordedError(f"{name} may write to its arguments") from None
        given = kwargs
    writing = {
        key for key, value in given.items() if key in _WRITING and value is not None and value is not False
    }
    if writing - ({"inplace"} if name in _ELEMENTWISE else set()):
        raise NotRecordedError(f"{name} writes to a tensor, or draws random numbers")
    return bool(writing)


def _require_sizes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise NotRecordedError if the sizes of a result depend on values: code may read them, and they are written down.

    A function of opswap takes tensors for their elements alone.
    """
    if name == "__getitem__":
        if any(t.dtype in _MASKS for t in tensors_in(args[1:])) or not _is_index(args[1]):
            raise NotRecordedError("a mask, or a slice up to a tensor, makes a size that depends on values")
    elif name in _PURE and name not in _OPERANDS:
        others = tensors_in((args[1:], kwargs))
        if any(name not in _SEVERAL or _is_number(t) for t in others):
            raise NotRecordedError(f"a tensor is an option of {name}, whose result may have other sizes")
    if name == "scaled_dot_product_attention" and (args[4:5] or (kwargs.get("dropout_p", 0.0),))[0] != 0.0:
        raise NotRecordedError(f"{name} draws random numbers")


def _is_number(tensor: Tensor) -> bool:
    """True for a tensor that torch accepts in place of a size or dimension."""
    return tensor.numel() == 1 and not tensor.is_floating_point()


def _is_index(value: Any) -> bool:
    """False for a slice, or an index with one, of which a part is not a plain number."""
    if type(value) in (tuple, list):
        return all(map(_is_index, value))
    return type(value) is not slice or _is_constant(value)


class _Recorder(TorchFunctionMode):
    """kept: tensors to which nothing may write. most: bytes that may be recorded."""

    def __init__(self, tape: list[Any], kept: Sequence[Tensor], most: int) -> None:
        super().__init__()
        self.tape, self._most = tape, most
        self._kept = set(map(memory_of, kept))
        self._sizes: dict[int, int] = {}
        self._counted = 0  # entries of the tape, whose sizes are known

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _name(func) in _READ_BY_KERNELS and not _is_of_package(sys._getframe(1)):
            raise NotRecordedError(f"{_name(func)} may differ between tensors of one kind")
        over_first = _require_pure(func, args, kwargs)
        if over_first:
            self._require_made(func, args)
        start = len(self.tape)
        result = func(*args, **kwargs)
        self._require_small(result)
        if _name(func) in _ANY_READ:
            del self.tape[start:]
            return result
        made = {id(t) for entry in self.tape[start:] for t in tensors_in(_call_of(entry).result)}
        if over_first or not all(id(t) in made for t in tensors_in(result)):
            del self.tape[start:]
            call = Call(func, args, kwargs, result, writes=over_first)
            self.tape.append(call)
            call.versions = _versions(tensors_in(result))
            if over_first:  # its views have the same version
                memory = memory_of(args[0])
                call.versions.update(_versions(t for t in self._made() if memory_of(t) == memory))
        self._counted = len(self.tape)
        return result

    def _require_small(self, result: Any) -> None:
        """Raise NotRecordedError if this result and all before it need too much memory together."""
        results = (result, *(_call_of(entry).result for entry in self.tape[self._counted :]))
        self._sizes.update({memory_of(t): t.untyped_storage().nbytes() for t in tensors_in(results)})
        if sum(self._sizes.values()) > self._most:
            raise NotRecordedError(f"its results need more than {self._most >> 20} MB")

    def _made(self) -> Iterator[Tensor]:
        return (t for entry in self.tape for t in tensors_in(_call_of(entry).result))

    def _require_made(self, function: Any, args: tuple[Any, ...]) -> None:
        """Raise NotRecordedError unless the first argument was made by a recorded call, in memory of its own."""
        first = args[0] if args else None
        if not any(first is t for t in self._made()) or memory_of(first) in self._kept:
            raise NotRecordedError(f"{_name(function)} writes to a tensor that the call did not make")


def _is_of_package(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


class _NoOriginals:
    """A module that runs its own forward runs code that nobody has followed."""

    def module_missed(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise NotRecordedError(f"the original forward of {type(module).__name__} runs")

    def site_declined(self, name: str, values: dict[str, Any]) -> None:
        """Conditions depend on sizes and modules alone."""


def record(
    call: Callable[..., Any], inputs: Sequence[Tensor], module: nn.Module, most: int = 1 << 62
) -> Recording:
    """Run `call(*inputs)` without a graph, and write down what it does.

    Args: module: its parameters and buffers stay what they are. most: bytes that the results may need together.
    Raises: NotRecordedError, also if the call writes to a tensor or draws random numbers.
    """
    tape: list[Any] = []
    state = torch.random.get_rng_state()
    # Tensors of the inference mode count no writes.
    with torch.inference_mode(False), torch.no_grad():
        # Of their own, so that code that reads the same tensor from elsewhere, as a buffer, does not read an input.
        inputs = [x.detach() for x in inputs]
        held = [*module.parameters(), *module.buffers()]
        before = _versions([*inputs, *held])
        token = listener.set(_NoOriginals())
        _core.record_calls(tape)
        try:
            with _Recorder(tape, [*inputs, *held], most):
                result = call(*inputs)
        except Exception as error:
            _draw_again(state)
            if isinstance(error, NotRecordedError):
                raise
            raise NotRecordedError(str(error)) from error  # the call that is not recorded raises it again
        finally:
            _core.record_calls(None)
            listener.reset(token)
    calls = list(map(_call_of, tape))
    after = _versions([*inputs, *held, *(t for call in calls for t in tensors_in(call.result))])
    expected = {**_expected(calls), **before}
    text = _Text(inputs, held, _folded(module))
    drew = not torch.equal(torch.random.get_rng_state(), state)
    try:
        if any(expected[key] != version for key, version in after.items()):
            raise NotRecordedError("it writes to a tensor")
        code = text.write(in_order_of_memory(calls), result)
    except NotRecordedError:
        _draw_again(state)
        raise
    if drew:  # perhaps in another thread, since nothing that was written down draws: its numbers must not come again
        raise NotRecordedError("random numbers were drawn meanwhile")
    return Recording(result, text.compile(code), tuple(text.frozen), tuple(text.prepared), code)


def _draw_again(state: Tensor) -> None:
    """Set the generator back for the call that is not recorded, which draws the same numbers."""
    if not torch.equal(torch.random.get_rng_state(), state):
        torch.random.set_rng_state(state)


def _expected(calls: Sequence[Call]) -> dict[int, int]:
    """As `_versions`, if nothing but these calls has written to what they made."""
    versions: dict[int, int] = {}
    for call in calls:
        for t in tensors_in(call.result):
            versions.setdefault(id(t), 0)
        versions.update(call.versions)
        if call.writes and call.may_decline:  # the extension does not count its writes, but its caller
            versions[id(call.result)] += 1
    return versions


def _versions(tensors: Iterable[Tensor]) -> dict[int, int]:
    """How often these tensors were written to, by their ids."""
    return {id(t): t._version for t in tensors if not t.is_inference()}


def _folded(module: nn.Module) -> dict[int, Frozen]:
    """The folded weights in a module that are up to date."""
    found = [f for m in module.modules() for f in vars(m).values() if isinstance(f, Frozen)]
    return {id(f.folded): f for f in found if f.folded is not None}


@dataclass
class _Text:
    """The text of a function: which name each tensor has, and which names stand for constants."""

    inputs: Sequence[Tensor]
    held: Sequence[Tensor]
    folded: dict[int, Frozen]
    frozen: list[Frozen] = field(default_factory=list)
    prepared: list[Tensor] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    scope: dict[str, Any] = field(default_factory=dict)

    def write(self, calls: Sequence[Call], result: Any) -> str:
        """The text; `calls` hold every tensor meanwhile, so that no two have the same id."""
        arguments = [f"x{i}" for i in range(len(self.inputs))]
        self.names.update({id(t): name for t, name in zip(self.inputs, arguments, strict=True)})
        known = {id(t): t for t in self.held}
        lines: list[tuple[str, str, bool]] = []
        for call in calls:
            if _name(call.function) in _UNDEFINED:
                raise NotRecordedError("it makes a tensor and leaves it as it finds it")
            if not call.writes and all(id(t) in self.names for t in tensors_in(call.result)):
                continue  # it returns what it was given
            own = f"v{len(lines)}"
            if call.function is _core.plain_chain_folded and id(call.args[2]) in self.folded:
                lines.append((own, self._prepared(*call.args, known), True))
                self.names.setdefault(id(call.result[0]), own)
                continue
            given = [self._value(a, known) for a in call.args]
            given += [f"{key}={self._value(value, known)}" for key, value in call.kwargs.items()]
            lines.append((own, f"{self._constant(call.function)}({', '.join(given)})", call.may_decline))
            if call.writes:
                self.names[id(call.result)] = own  # the former name is dropped
            else:
                self._name_result(call.result, own)
        if next(tensors_in(result), None) is None:
            raise NotRecordedError("it does not return a tensor")
        returned = self._value(result, known)
        return "\n".join([f"def replay({', '.join(arguments)}):", *_body(lines, returned)]) + "\n"

    def _prepared(
        self, options: Any, tensors: tuple[Any, ...], folded: Tensor, known: dict[int, Tensor]
    ) -> str:
        """The call of a frozen chain, of which all but the input is read now."""
        input, *rest = tensors
        given = [t for t in rest if t is not None]
        if not all(id(t) in known for t in given):
            raise NotRecordedError("a tensor comes from elsewhere")
        kept = tuple(None if t is None else t.detach() for t in rest)
        chain = _core.prepare_chain(options, (input, *kept), folded)
        if chain is NotImplemented:
            raise NotRecordedError("folded weights were dropped meanwhile")
        self.frozen.append(self.folded[id(folded)])
        self.prepared += given
        run = self._constant(_core.run_prepared_chain)
        return f"{run}({self._constant(chain)}, {self._tensor(input, known)})"

    def compile(self, code: str) -> Callable[..., Any]:
        """The function of a text."""
        exec(compile(code, "<opswap replay>", "exec"), self.scope)
        return self.scope.pop("replay")

    def _name_result(self, result: Any, name: str) -> None:
        if isinstance(result, Tensor):
            self.names.setdefault(id(result), name)
        elif isinstance(result, (tuple, list)):
            for i, item in enumerate(result):
                self._name_result(item, f"{name}[{i}]")
        elif result is not None:
            raise NotRecordedError(f"a call returns a {type(result).__name__}")

    def _value(self, value: Any, known: dict[int, Tensor]) -> str:
        if isinstance(value, Tensor):
            return self._tensor(value, known)
        if type(value) is tuple and next(tensors_in(value), None) is not None:
            return f"({''.join(f'{self._value(v, known)}, ' for v in value)})"
        if type(value) is list:
            return f"[{', '.join(self._value(v, known) for v in value)}]"
        if _is_constant(value):
            return self._constant(value)
        raise NotRecordedError(f"a {type(value).__name__} is an argument")

    def _tensor(self, tensor: Tensor, known: dict[int, Tensor]) -> str:
        key = id(tensor)
        if key in self.names:
            return self.names[key]
        if key in known:
            self.names[key] = self._constant(tensor)
        else:
            raise NotRecordedError("a tensor comes from elsewhere")
        return self.names[key]

    def _constant(self, value: Any) -> str:
        if value is None or type(value) in (bool, int):
            return repr(value)
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name


def _is_constant(value: Any) -> bool:
    if type(value) in (tuple, torch.Size):
        return all(map(_is_constant, value))
    if type(value) is slice:
        return all(type(n) in (int, type(None)) for n in (value.start, value.stop, value.step))
    return type(value) in (*_CONSTANTS, _MEMORY_FORMAT)


_OWN_NAME = re.compile(r"\bv\d+\b")


def _body(lines: Sequence[tuple[str, str, bool]], returned: str) -> Iterator[str]:
    """One statement per call; what nobody reads any more is dropped, so that its memory is used again."""
    last = {name: i for i, (own, text, _) in enumerate(lines) for name in (own, *_OWN_NAME.findall(text))}
    kept = set(_OWN_NAME.findall(returned))
    for i, (own, text, may_decline) in enumerate(lines):
        yield f"    {own} = {text}"
        if may_decline:
            yield f"    if {own} is NotImplemented:"
            yield f"        return {own}"
        for name in dict.fromkeys((own, *_OWN_NAME.findall(text))):
            if last[name] == i and name not in kept:
                yield f"    {name} = None"
    yield f"    return {returned}"
