# SPDX-License-Identifier: MIT
"""The private names of torch that opswap uses, in one place, each with what is done in a torch that lacks it.

No other module of opswap names one (csrc/binding/torch_names.h lists those of the extension). A name is looked up
once, at import; a torch that lacks it costs speed or a diagnosis, never a result.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import platform
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.autograd import Function

__all__ = [
    "FIRST",
    "LAST",
    "SYMBOLIC_TRACE",
    "DispatchMode",
    "OpOverload",
    "TensorBase",
    "add_to_each",
    "any_global_hook",
    "assert_function",
    "below_autograd",
    "call_backward_at_once",
    "can_write_autograd",
    "compile_lock",
    "compiled_graphs",
    "composite_kernel",
    "constant_in_graphs",
    "current_node",
    "dispatch_modes",
    "empty_shared",
    "fake_copy",
    "forward_mode_active",
    "function_below_transforms",
    "functions_overridden",
    "functorch_active",
    "fx_trace",
    "graph_refuses_modules",
    "graph_task",
    "half_instructions",
    "has_hooks",
    "is_compiled_module",
    "is_ordinary",
    "library_takes",
    "load_compiler",
    "lookup_backend",
    "mode_stack",
    "multiplies_tiles",
    "nested_forward_mode",
    "nn_functions",
    "no_dispatch",
    "on_its_own",
    "only_looking_hooks",
    "sequence_number",
    "size_under_trace",
    "slots_are_new_objects",
    "transforms_active",
    "tree_leaves",
    "tree_map",
    "under_transforms",
    "warn_of_version",
    "without_transforms",
]

# The releases that the tests were run with, both included.
FIRST, LAST = (2, 10), (2, 14)


def _find(module: str, name: str) -> Any:
    """The attribute of a module of torch, None if either is missing."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _yes() -> bool:
    return True


# --- what watches over operators ---------------------------------------------------------------------------------

# Whether a transform of torch.func is active; without the name it is taken to be: the class of autograd Function that
# serves them is right, and slower, for all callers.
functorch_active: Callable[[], bool] = _find("torch._C", "_are_functorch_transforms_active") or _yes
_forward_ad = _find("torch.autograd", "forward_ad")
_interpreters = _find("torch._C._functorch", "get_interpreter_stack")
_transforms = _find("torch._C._functorch", "TransformType")


def forward_mode_active() -> bool:
    """True within a level of forward-mode AD, torch.func.jvp's too, or if nobody knows."""
    return getattr(_forward_ad, "_current_level", 0) >= 0


def nested_forward_mode() -> bool:
    """True within torch.func.jvp of torch.func.jvp, where the tangent of a Function has no tangent; or nobody knows."""
    if not (functorch_active() and forward_mode_active()):
        return False
    if not (_interpreters and _transforms):
        return True
    return sum(level.key() == _transforms.Jvp for level in _interpreters() or ()) > 1


def transforms_active() -> bool:
    """True if an operator called on its own would hide from torch.func or forward-mode AD, or if nobody knows."""
    return functorch_active() or forward_mode_active()


# Dispatch modes that are on; without the name one is taken to be: constants are made anew for every call.
dispatch_modes: Callable[[], int] = _find("torch._C", "_len_torch_dispatch_stack") or _yes
# The modes themselves; without the name no mode is found, and operators run as usual.
mode_stack: Callable[[], list[Any]] | None = _find(
    "torch.utils._python_dispatch", "_get_current_dispatch_mode_stack"
)


def _add_one_by_one(tensors: Sequence[Tensor], value: int) -> None:
    for tensor in tensors:
        tensor.add_(value)


# Add a number to every tensor of a list in place, by one operator; without the name by one per tensor.
add_to_each: Callable[[Sequence[Tensor], int], Any] = _find("torch", "_foreach_add_") or _add_one_by_one

# Whether a hook for all modules is registered; without the name one is taken to be: the original forward runs.
any_global_hook: Callable[[], bool] = _find("torch.nn.modules.module", "_has_any_global_hook") or _yes
_global_hooks = [
    _find("torch.nn.modules.module", f"_global_{kind}_hooks")
    for kind in ("forward_pre", "forward", "backward_pre", "backward")
]


def only_looking_hooks() -> bool:
    """True if each hook for all modules has a true attribute `only_looks`; False if nobody knows."""
    return all(
        hooks is not None and all(getattr(hook, "only_looks", False) for hook in hooks.values())
        for hooks in _global_hooks
    )


# --- the dispatcher ----------------------------------------------------------------------------------------------

_BelowAutograd = _find("torch._C", "_AutoDispatchBelowAutograd")
_below_autograd = _find("torch._C", "_after_autograd_keyset")
_forward_grad = _find("torch.autograd.forward_ad", "_set_fwd_grad_enabled")
_single_level = _find("torch._functorch.autograd_function", "enable_single_level_autograd_function")
_SingleLevelFunction = _find("torch.autograd.function", "_SingleLevelFunction")

# Whether a kernel for the key Autograd can be written in Python that works under torch.func and in forward mode.
# Without one of these names torch.library.register_autograd is used, which refuses to run there.
can_write_autograd = all(
    name is not None
    for name in (_BelowAutograd, _below_autograd, _forward_grad, _single_level, _SingleLevelFunction)
)


def function_below_transforms(name: str, **members: Callable[..., Any]) -> Callable[..., Any]:
    """`apply` of a Function made of static methods, for calls within `under_transforms`.

    It derives from Function's base class: since torch 2.14 Function itself refuses to run under torch.func if its
    forward has a context.
    """
    methods = {key: staticmethod(member) for key, member in members.items()}
    key_of_compiled = "_compiled_autograd_key"
    if key_of_compiled in vars(Function):
        methods[key_of_compiled] = vars(Function)[key_of_compiled]
    return type(name, (_SingleLevelFunction,), methods).apply


def call_backward_at_once(function: type[Function]) -> None:
    """Let the nodes of this Function call its `backward` themselves.

    They call a method that looks for a `vjp` each time; a torch without the class of the nodes keeps that.
    """
    nodes = getattr(function, "_backward_cls", None)
    if nodes is not None:
        nodes.apply = function.backward


@contextlib.contextmanager
def under_transforms() -> Iterator[None]:
    """Let a Function run in the dispatcher while torch.func is active, and record for the transforms further out."""
    if not functorch_active():
        yield
        return
    with _single_level():
        yield


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Undo what the forward of a Function switches off, for the transforms further out."""
    with torch.enable_grad(), _forward_grad(True):
        yield


def below_autograd(operator: Any, keys: Any, args: Sequence[Any]) -> Any:
    """Call an operator from its kernel for the key Autograd: what the dispatcher would call next."""
    with _BelowAutograd(), _recording() if functorch_active() else contextlib.nullcontext():
        return operator.redispatch(keys & _below_autograd, *args)


# --- tensors of torch.func ---------------------------------------------------------------------------------------

_functorch = _find("torch._C", "_functorch")
_is_tracking = getattr(_functorch, "is_gradtrackingtensor", None)
_unwrap = getattr(_functorch, "get_unwrapped", None)
_is_wrapped = getattr(_functorch, "is_functorch_wrapped_tensor", None)
_sync = _find("torch", "_sync")
_is_functional = (_sync and _find("torch", "_is_functional_tensor")) or (lambda tensor: False)
_DisableFuncTorch = _find("torch._C", "_DisableFuncTorch")


def without_transforms(
    tensor: Tensor, *others: Tensor
) -> tuple[Tensor, contextlib.AbstractContextManager[Any]]:
    """`tensor` without the levels of torch.func.grad and functionalize, and the context in which to write to `others`.

    Tensors from outside may be written outside only. In a torch without a name for this, its own error is raised.
    """
    if not (_is_tracking and _unwrap and _is_wrapped and _DisableFuncTorch):
        return tensor, contextlib.nullcontext()
    inside = any(map(_is_functional, others))
    while _is_tracking(tensor) or (_is_functional(tensor) and not inside):
        if _is_functional(tensor):
            _sync(tensor)
        tensor = _unwrap(tensor)
    wrapped = any(map(_is_wrapped, (tensor, *others)))
    return tensor, contextlib.nullcontext() if wrapped else _DisableFuncTorch()


_tracing_state = _find("torch._C", "_get_tracing_state")
_set_tracing_state = _find("torch._C", "_set_tracing_state")


def size_under_trace(tensor: Tensor) -> tuple[int, ...]:
    """The sizes as Python's ints while torch.jit.trace runs in this thread, where they are tensors.

    A torch that lacks a name for this warns of every size that it makes a number of.
    """
    if not (_tracing_state and _set_tracing_state):
        return tuple([int(size) for size in tensor.shape])
    state = _tracing_state()
    _set_tracing_state(None)
    try:
        return tuple(tensor.shape)
    finally:
        _set_tracing_state(state)


_no_interpreters = _find("torch._functorch.pyfunctorch", "temporarily_clear_interpreter_stack")
_no_modes = _find("torch.utils._python_dispatch", "_disable_current_modes")
# False within torch.func.grad, which allows no hooks on saved tensors.
_hooks_allowed = _find("torch._C._autograd", "_saved_tensors_hooks_is_enabled") or (lambda: False)


@contextlib.contextmanager
def on_its_own() -> Iterator[None]:
    """Hide code with tensors of its own from torch.func, dispatch modes, checkpoints and traces, if torch can."""
    with contextlib.ExitStack() as stack:
        if _hooks_allowed():
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x))
        if _no_interpreters is not None and functorch_active():
            stack.enter_context(_no_interpreters())
        if _no_modes is not None and dispatch_modes():
            stack.enter_context(_no_modes())
        if _tracing_state and _set_tracing_state:
            stack.callback(_set_tracing_state, _tracing_state())
            _set_tracing_state(None)
        yield


def _has_parts(tensor: Tensor) -> bool:
    return hasattr(type(tensor), "__tensor_flatten__")


# Whether a tensor consists of others.
is_wrapper: Callable[[Tensor], bool] = (
    _find("torch.utils._python_dispatch", "is_traceable_wrapper_subclass") or _has_parts
)


def is_ordinary(tensor: Tensor) -> bool:
    """True for a Tensor and for the subclasses of torch's own that do not consist of others.

    A subclass of a user may do anything in `__torch_function__`, and be asked about torch's functions alone.
    """
    kind = type(tensor)
    if kind is Tensor or kind is torch.nn.Parameter:
        return True
    return kind.__module__.partition(".")[0] == "torch" and not is_wrapper(tensor)


# Without these names nobody is known to override functions, and rewritten forwards run.
_functions_overridden: Callable[[], bool] = _find("torch._C", "_is_torch_function_enabled") or _yes
_count_function_modes: Callable[[], int] = _find("torch._C", "_len_torch_function_stack") or (lambda: 0)
_function_mode_at: Callable[[int], Any] = _find("torch._C", "_get_function_stack_at") or (lambda i: None)
_is_compiling = torch.compiler.is_dynamo_compiling


def functions_overridden() -> bool:
    """True if a TorchFunctionMode of a user sees every function of torch, or if no subclass may override any.

    In the second case torch runs a forward again in the backward of a subclass, which it hides: the same code must
    run as before. The modes of torch (the default device, export) and of opswap change no result.
    """
    if _is_compiling():
        return False
    if not _functions_overridden():
        return True
    count = _count_function_modes()
    return count > 0 and any(
        type(_function_mode_at(i)).__module__.partition(".")[0] not in ("torch", "opswap")
        for i in range(count)
    )


# --- tensors without data ----------------------------------------------------------------------------------------

_FakeTensorMode = _find("torch._subclasses.fake_tensor", "FakeTensorMode")
_FakeCopyMode = _find("torch._subclasses.fake_tensor", "FakeCopyMode")


def fake_copy(
    copy: Callable[[], Any],
) -> tuple[Any, contextlib.AbstractContextManager[Any]] | None:
    """What `copy()` makes, on tensors without data, and the mode to use it in; None in a torch that cannot."""
    if not (_FakeTensorMode and _FakeCopyMode):
        return None
    mode = _FakeTensorMode(allow_non_fake_inputs=True)
    with _FakeCopyMode(mode):
        return copy(), mode


# --- shared memory -----------------------------------------------------------------------------------------------

_new_shared = getattr(torch.UntypedStorage, "_new_shared", None)


def empty_shared(
    shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format = torch.contiguous_format
) -> Tensor:
    """An uninitialised tensor in memory that a worker of a DataLoader can send without a copy.

    In a torch that lacks the name, in plain memory, which the loader copies.
    """
    if _new_shared is None:
        return torch.empty(shape, dtype=dtype, device="cpu", memory_format=memory_format)
    strides = torch.empty(shape, device="meta", memory_format=memory_format).stride()
    storage = _new_shared(math.prod(shape) * dtype.itemsize)
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)


# --- trees -------------------------------------------------------------------------------------------------------


def _leaves(tree: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, in their order."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, (tuple, list)):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with `function` of every leaf."""
    if isinstance(tree, dict):
        return type(tree)((key, _map(function, value)) for key, value in tree.items())
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_map(function, value) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(_map(function, value) for value in tree)
    return function(tree)


# torch's own know more containers, such as the outputs of transformers.
tree_leaves: Callable[[Any], list[Any]] = _find("torch.utils._pytree", "tree_leaves") or _leaves
tree_map: Callable[[Callable[[Any], Any], Any], Any] = _find("torch.utils._pytree", "tree_map") or _map


# --- torch.compile -----------------------------------------------------------------------------------------------


def lookup_backend(name: str) -> Callable[..., Any]:
    """The backend of torch.compile with this name. Raises: ValueError in a torch that does not show it."""
    lookup = _find("torch._dynamo", "lookup_backend")
    if lookup is None:
        raise ValueError(
            f"torch {torch.__version__} does not show which backend '{name}' is; pass the function itself"
        )
    return lookup(name)


def compiled_graphs() -> int:
    """How many graphs torch.compile has built in this process, -1 in a torch that does not count them."""
    counters = _find("torch._dynamo.utils", "counters")
    return -1 if counters is None else int(counters["stats"]["unique_graphs"])


def load_compiler() -> None:
    """Import torch.compile's front end, as torch does for the first tensor without data."""
    _find("torch._dynamo", "lookup_backend")


def constant_in_graphs(function: Callable[..., bool]) -> Callable[..., bool]:
    """Mark a function whose result torch.compile treats as a constant.

    As torch.compiler.assume_constant_result does, which imports the compiler: seconds. A torch that reads no such mark
    breaks the graph at a call of the extension.
    """
    function._dynamo_marked_constant = True
    return function


def compile_lock() -> contextlib.AbstractContextManager[Any]:
    """What one thread holds while torch.compile compiles; read without importing the compiler.

    Without it a function that is compiled while a capture patches torch.nn.Module may have to be compiled once more.
    """
    return getattr(sys.modules.get("torch._dynamo.convert_frame"), "compile_lock", contextlib.nullcontext())


# Where torch.fx keeps the functions that replace others while it traces.
SYMBOLIC_TRACE = "torch.fx._symbolic_trace"


def fx_trace(new_patcher: Callable[[], Any]) -> Callable[..., Any]:
    """torch.fx.Tracer.trace with a patcher of the caller's, and with a copy of the flags of its Python module.

    torch.fx sets a flag of the whole process while it traces, and compiled functions that other threads run then
    raise. In a torch that is built otherwise: its own method, with its own patcher.
    """
    trace = inspect.unwrap(torch.fx.Tracer.trace)
    if trace.__closure__ or "_new_patcher" not in trace.__code__.co_names:
        return torch.fx.Tracer.trace
    scope = {**trace.__globals__, "_new_patcher": new_patcher}
    look = scope.get("_autowrap_check")
    if isinstance(look, FunctionType) and "_create_wrapped_func" in look.__code__.co_names:
        own = {**look.__globals__, "_create_wrapped_func": _wrapped}
        scope["_autowrap_check"] = FunctionType(look.__code__, own, look.__name__, look.__defaults__)
    return FunctionType(trace.__code__, scope, trace.__name__, trace.__defaults__)


class _Wrapped(threading.local):
    """torch.fx's wrappers of functions such as math.sqrt, which every trace would make anew for all of them."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, Any]] = {}


_of_thread = _Wrapped()


def _wrapped(function: Callable[..., Any]) -> Any:
    known = _of_thread.known.get(id(function))
    if known is None:
        make = sys.modules[SYMBOLIC_TRACE]._create_wrapped_func
        known = _of_thread.known[id(function)] = function, make(function)
    return known[1]


def is_compiled_module(module: Any) -> bool:
    """True for a module that torch.compile returned; tested without importing the compiler."""
    compiler = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    return isinstance(module, compiler)


# --- operators and nodes, for the finders --------------------------------------------------------------------------


class _NoDispatchMode:
    """Replaces torch's dispatch mode in a torch that lacks it."""

    def __enter__(self) -> Any:
        raise RuntimeError(f"torch {torch.__version__} does not show its operators to dispatch modes")

    def __exit__(self, *error: object) -> None:
        """Never reached."""


# What libraries of models check sizes with; documented, and None in a torch without it.
assert_function: Any = _find("torch", "_assert")

DispatchMode: Any = _find("torch.utils._python_dispatch", "TorchDispatchMode") or _NoDispatchMode
# Calls operators past all dispatch modes; without the name, other modes see what a finder computes for itself.
no_dispatch: Any = _find("torch._C", "_DisableTorchDispatch") or contextlib.nullcontext
# The class of operators; without the name, none is known to be one.
OpOverload: Any = _find("torch._ops", "OpOverload") or ()
_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def has_hooks(value: Any) -> bool:
    """True for a module or a tensor that has hooks of its own, which what is merged of it would not call."""
    names = _MODULE_HOOKS if isinstance(value, torch.nn.Module) else _TENSOR_HOOKS
    return any(getattr(value, name, None) for name in names)


_has_kernel = _find("torch._C", "_dispatch_has_kernel_for_dispatch_key")
_dispatch_key = getattr(_find("torch._C", "DispatchKey"), "CompositeImplicitAutograd", None)


def composite_kernel(func: Any) -> Callable[..., Any] | None:
    """torch's own kernel in C++ of an operator that consists of others, None if it has none.

    `decompose` prefers decompositions in Python, which round and draw otherwise. In a torch that lacks a name, None:
    such operators are seen as a whole.
    """
    if not (_has_kernel and _dispatch_key and hasattr(func, "_op_dk")):
        return None
    if not _has_kernel(func.name(), "CompositeImplicitAutograd"):
        return None
    return partial(func._op_dk, _dispatch_key)


# Without these names a backward operator has no line of its own, and is shown at the line that called backward.
sequence_number: Callable[[], int] = _find("torch._C._autograd", "_get_sequence_nr") or (lambda: 0)
current_node: Callable[[], Any] = _find("torch._C", "_current_autograd_node") or (lambda: None)
graph_task: Callable[[], int] = _find("torch._C", "_current_graph_task_id") or (lambda: -1)


# --- functions in C ------------------------------------------------------------------------------------------------

TensorBase: type = _find("torch._C", "TensorBase") or Tensor
nn_functions: Any = _find("torch._C", "_nn")


# --- the CPU -----------------------------------------------------------------------------------------------------

_mkldnn = _find("torch", "ops").mkldnn
_is_amx = _find("torch.cpu", "_is_amx_tile_supported")
_is_amx_fp16 = _find("torch.cpu", "_is_amx_fp16_supported") or (lambda: False)
_is_bf16 = _find("torch.cpu", "_is_avx512_bf16_supported")


def library_takes(dtype: torch.dtype) -> bool | None:
    """Whether torch's library accepts this dtype of 16 bits, if only to convert it; None if torch does not say."""
    name = "bf16" if dtype is torch.bfloat16 else "fp16"
    ask = getattr(_mkldnn, f"_is_mkldnn_{name}_supported", None)
    return None if ask is None else ask()


def half_instructions() -> frozenset[torch.dtype] | None:
    """The dtypes of 16 bits for which this CPU has instructions that torch's library uses in a training step.

    AVX512-FP16 is not enough for float16: the library has no gradient of a weight for it, and needs a thousand times
    as long as in float32. None, unknown, on a CPU that is not x86 and in a torch without this query.
    """
    bf16, fp16 = map(library_takes, (torch.bfloat16, torch.float16))
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not is_x86 or bf16 is None or fp16 is None or _is_amx is None or _is_bf16 is None:
        return None
    found = set()
    if bf16 and (_is_bf16() or _is_amx()):
        found.add(torch.bfloat16)
    if fp16 and _is_amx_fp16():
        found.add(torch.float16)
    return frozenset(found)


def multiplies_tiles(dtype: torch.dtype) -> bool:
    """True if this CPU multiplies tiles of these 16 bits (AMX), and torch's library lets it."""
    return dtype in (half_instructions() or ()) and (dtype is torch.float16 or _is_amx())


# --- versions ----------------------------------------------------------------------------------------------------


def _version() -> tuple[int, ...]:
    """(major, minor) of torch; a version that cannot be parsed counts as the last that was tested."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return tuple(map(int, found.groups())) if found else LAST


_BEFORE_2_13 = _version() < (2, 13)


def slots_are_new_objects() -> bool:
    """True if torch.compile traces, and gets another object each time it looks up `__eq__` and the like of a class.

    These methods in C are equal, not identical, before torch 2.13.
    """
    return _BEFORE_2_13 and torch.compiler.is_compiling()


def graph_refuses_modules() -> bool:
    """True if torch.compile traces, and ends with an internal error at a function marked as a constant whose argument
    is a module, as before torch 2.13.
    """
    return _BEFORE_2_13 and torch.compiler.is_compiling()


def warn_of_version() -> None:
    """Warn, once per process, of a torch that is newer than those the tests were run with."""
    if _version() <= LAST:
        return
    tested = f"{FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}"
    warnings.warn(
        f"opswap was tested with torch {tested}, not with {torch.__version__}: it uses what it finds there, "
        "and torch's own code for the rest",
        RuntimeWarning,
        stacklevel=3,
    )
