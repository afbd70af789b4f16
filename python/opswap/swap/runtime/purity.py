# SPDX-License-Identifier: MIT
"""Which code outside of the model gives the same answer for the same arguments, and which may not.

A capture follows the user's Python functions and watches what they read. It does not look into C code and into the
libraries below: they are either pure, so that their answers are constants, or they refuse the capture.
"""

from __future__ import annotations

import builtins
import enum
import os
import sys
import sysconfig
import types
import warnings
from collections import OrderedDict, defaultdict, deque
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any

import torch

from opswap._torch import TensorBase, nn_functions

__all__ = [
    "IMMUTABLE",
    "IMPURE_NUMPY",
    "LAYERS",
    "LIBRARY",
    "OWN",
    "STATEFUL",
    "SWAP_FOLDER",
    "TORCH",
    "TORCH_FOLDER",
    "USER",
    "is_effect",
    "is_pure_class",
    "is_pure_torch",
    "is_query",
    "module_kind",
    "owner",
    "owner_of",
    "owner_of_frame",
    "refused_builtin",
]

# Kinds of code. OWN: opswap's machinery. TORCH: torch. LAYERS: the forwards of torch's and opswap's modules.
# LIBRARY: pure Python code that is not followed. STATEFUL: code whose results may change. USER: all other code.
OWN, TORCH, LAYERS, LIBRARY, STATEFUL, USER = "own", "torch", "layers", "library", "stateful", "user"

TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
SWAP_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep  # opswap.swap
_OPSWAP = os.path.dirname(os.path.dirname(SWAP_FOLDER)) + os.sep
_OF_TRACES = os.path.join(_OPSWAP, "_torch.py")  # which runs in traces
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_SITE = tuple({sysconfig.get_path(k) + os.sep for k in ("purelib", "platlib")})

_PURE_MODULES = """
    __future__ _abc _bisect _collections _collections_abc _functools _heapq _operator _sre _struct abc
    bisect cmath collections collections.abc colorsys copy copyreg dataclasses einops enum fractions
    functools heapq importlib._bootstrap itertools math numbers numpy operator re reprlib sre_compile
    sre_parse string struct textwrap types typing typing_extensions
"""
_PURE = frozenset(_PURE_MODULES.split())
# What NumPy has that depends on files, options or uninitialised memory.
_OF_NUMPY = """
    DataSource array2string array_repr array_str empty empty_like fromfile fromregex genfromtxt
    get_printoptions getbufsize geterr geterrcall load loadtxt memmap open_memmap printoptions
"""
IMPURE_NUMPY = frozenset(_OF_NUMPY.split())
# Modules whose mention by a forward is enough: nothing in them is a constant.
_IMPURE_MODULES = """
    _contextvars _random _thread asyncio contextvars ctypes datetime gc glob inspect io linecache locale
    mmap multiprocessing nt numpy.random posix queue random resource secrets select shutil signal socket
    subprocess tempfile threading time torch.backends torch.random uuid weakref
"""
_IMPURE = frozenset(_IMPURE_MODULES.split())
# Torch's own code that a forward may call. Contexts, checkpoints and functions with a gradient of their own are
# refused by the tracer, which knows why.
_FILES_OF_TORCH = """
    _compile.py _jit_internal.py _tensor.py amp/ ao/nn/quantized/modules/functional_modules.py autograd/
    functional.py fx/ nn/ overrides.py utils/_contextlib.py utils/_pytree.py utils/checkpoint.py
"""
_PURE_TORCH = tuple(name.replace("/", os.sep) for name in _FILES_OF_TORCH.split())
_BUILTINS = """
    __build_class__ abs all any ascii bin callable chr divmod format getattr hasattr hex isinstance
    issubclass iter len max min next oct ord pow repr round sorted sum
"""
_PURE_BUILTINS = frozenset(getattr(builtins, name) for name in _BUILTINS.split())
# They give no answer: a forward may mention them, for a path that is not taken, but not call them.
_EFFECTS = frozenset({print, warnings.warn})
# Methods of these write to their object or read nothing else.
_VALUES = (
    bool,
    bytearray,
    bytes,
    complex,
    dict,
    float,
    frozenset,
    int,
    list,
    object,
    range,
    set,
    slice,
    str,
    tuple,
    type(None),
)
_CONTAINERS = (OrderedDict, defaultdict, deque)
IMMUTABLE = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    type(NotImplemented),
    range,
    slice,
    Decimal,
    types.GenericAlias,
    torch.Size,
    torch.device,
    torch.dtype,
    torch.finfo,
    torch.iinfo,
    torch.layout,
    torch.memory_format,
)
# State of torch that a rewritten forward can read again on every call.
_QUERIES = frozenset(
    {
        torch.get_default_dtype,
        torch.compiler.is_compiling,
        torch.compiler.is_dynamo_compiling,
        torch.jit.is_tracing,
        torch.are_deterministic_algorithms_enabled,
    }
)
# Functions that make tensors, which a mode sees although they have no tensor argument.
_MAKERS = """
    arange as_tensor asarray bartlett_window blackman_window complex empty empty_permuted empty_strided eye
    full hamming_window hann_window kaiser_window linspace logspace ones polar rand randint randn randperm
    range scalar_tensor tensor tril_indices triu_indices zeros
"""
_FACTORIES = _MAKERS.split()
# Functions of torch in C that no mode sees and that are pure.
_TORCH_BUILTINS = frozenset({"_get_tracing_state", "_log_api_usage_once"})


def module_kind(module: types.ModuleType) -> str:
    """What a module is to code that reads it: TORCH, LIBRARY, STATEFUL or USER."""
    name = module.__name__
    if name in _IMPURE or name.startswith(("numpy.random.", "torch.backends.")):
        return STATEFUL
    if name == "builtins" or name in _PURE or name.partition(".")[0] in ("numpy", "einops"):
        return LIBRARY
    return TORCH if name.partition(".")[0] in ("torch", "opswap") and not _is_model(name) else USER


def _is_model(name: str) -> bool:
    return name.startswith("opswap.models")


@lru_cache(maxsize=4096)
def owner(file: str, module: str) -> str:
    """Whose code it is that is defined in this file, in the module of this name."""
    if file.startswith(TORCH_FOLDER):
        name = file[len(TORCH_FOLDER) :]
        return LAYERS if name.startswith(os.path.join("nn", "modules") + os.sep) else TORCH
    if file.startswith(SWAP_FOLDER) or file == _OF_TRACES:
        return OWN
    if file.startswith(_OPSWAP):
        return USER if _is_model(module) else LAYERS
    if f"{os.sep}einops{os.sep}" in file or module.startswith("namedtuple_"):
        return LIBRARY
    if f"{os.sep}numpy{os.sep}" in file:
        return STATEFUL if f"{os.sep}random{os.sep}" in file else LIBRARY
    frozen = file.startswith("<frozen")
    if file.startswith("<") and not frozen:  # a method that dataclasses made
        made_in = getattr(sys.modules.get(module), "__file__", None)
        return USER if not made_in or made_in.startswith("<") else owner(made_in, module)
    if frozen or (file.startswith(_STDLIB) and not file.startswith(_SITE)):
        return (
            LIBRARY
            if module in _PURE or module.partition(".")[0] == "re" or module.startswith("importlib._")
            else STATEFUL
        )
    return USER


def owner_of(function: types.FunctionType) -> str:
    """Whose code a function is."""
    return owner(function.__code__.co_filename, function.__module__ or "")


def owner_of_frame(frame: types.FrameType) -> str:
    """Whose code runs in a frame."""
    name = frame.f_globals.get("__name__", "")
    return owner(frame.f_code.co_filename, name if isinstance(name, str) else "")


def is_query(function: Any) -> bool:
    """True if a rewritten forward may call the function, which has no arguments, on every call."""
    try:
        return function in _QUERIES
    except TypeError:
        return False


def is_effect(function: Any) -> bool:
    """True if the function does something and returns nothing."""
    return any(function is f for f in _EFFECTS)


def is_pure_torch(file: str, name: str) -> bool:
    """True for Python code of torch that answers nothing by itself: what it does becomes nodes, or is refused there."""
    if name in ("_assert", "sym_float", "sym_int", "sym_max", "sym_min", "sym_not"):
        return True
    return file[len(TORCH_FOLDER) :].startswith(_PURE_TORCH)


@cache
def _overridable() -> frozenset[int]:
    """The functions of torch which a mode sees."""
    found = {id(f) for fs in torch.overrides.get_overridable_functions().values() for f in fs}
    found |= {id(f) for f in torch.overrides.get_testing_overrides()}
    # torch's list leaves out what ends in an underscore: functions that write to the tensor that they are given.
    in_place = [name for name in dir(torch) if name.endswith("_") and not name.startswith("_")]
    return frozenset(
        found | {id(getattr(torch, name)) for name in (*_FACTORIES, *in_place) if hasattr(torch, name)}
    )


def refused_builtin(function: Any) -> str | None:
    """The name of a function or method in C whose answer may change; None if it is pure or a mode sees it."""
    if is_query(function):
        return None
    own = getattr(function, "__self__", None)
    holder = getattr(function, "__objclass__", None)
    name = getattr(function, "__qualname__", getattr(function, "__name__", repr(function)))
    if isinstance(own, types.ModuleType):
        return None if _is_pure_function(function, own.__name__) else f"{own.__name__}.{name}"
    cls = holder or (own if isinstance(own, type) else type(own))
    if own is None and holder is None:
        module = getattr(function, "__module__", None) or ""
        return None if _is_pure_function(function, module) else f"{module}.{name}".strip(".")
    if cls.__module__.partition(".")[0] == "torch" or issubclass(cls, TensorBase):
        return None if _is_pure_function(function, "torch") else f"torch.{name}"
    return (
        None if is_pure_class(cls) or issubclass(cls, (type, *_VALUES[:-1])) else f"{cls.__module__}.{name}"
    )


def _is_pure_function(function: Any, module: str) -> bool:
    if module == "builtins":
        return function in _PURE_BUILTINS
    top = module.partition(".")[0]
    if top == "torch":
        name = getattr(function, "__name__", "")
        return id(function) in _overridable() or name in _TORCH_BUILTINS or _is_tensor_method(function, name)
    return top in ("opswap", "numpy") or module in _PURE


def _is_tensor_method(function: Any, name: str) -> bool:
    """True for a function of tensors, as those of torch.nn.functional in C and the bound methods of a tensor."""
    if isinstance(getattr(function, "__self__", None), torch.Tensor):
        return True
    return getattr(torch.Tensor, name, None) is function or getattr(nn_functions, name, None) is function


def is_pure_class(cls: type) -> bool:
    """True if the objects of this class, made in C, hold nothing but what they were made of or were given."""
    if (
        cls in _VALUES
        or cls in _CONTAINERS
        or issubclass(cls, (BaseException, enum.Enum, types.GenericAlias))
    ):
        return True
    if cls.__module__ in ("torch", "builtins"):
        return cls not in (memoryview,) and (cls.__module__ == "builtins" or cls is not torch.Generator)
    top = cls.__module__.partition(".")[0]
    return cls.__module__ in _PURE or (top in ("torch", "numpy", "opswap") and "random" not in cls.__module__)
