# SPDX-License-Identifier: MIT
"""torch without one of the private names that opswap uses: each is hidden in turn, and results stay torch's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import opswap
from opswap import _torch
from surviving import forked

# Hidden before opswap is imported; then every family, a swapped model's step, and what watches over operators.
CODE = """
import faulthandler, importlib, sys
import torch, torch._dynamo
faulthandler.enable()

hidden = []

def hide(path):
    module, name = path.rsplit(".", 1)
    try:
        owner = importlib.import_module(module)
    except ImportError:
        outer, kind = module.rsplit(".", 1)
        owner = getattr(importlib.import_module(outer), kind)
    hidden.append((owner, name, getattr(owner, name)))
    delattr(owner, name)

def dlpack():
    import ctypes
    # A type of torch's own extension: its dictionary is writable only from C.
    get = ctypes.pythonapi.PyObject_GenericGetDict
    get.restype, get.argtypes = ctypes.py_object, [ctypes.py_object]
    for kind in (torch.Tensor, torch._C.TensorBase, torch.nn.Parameter):
        if "__dlpack_c_exchange_api__" in vars(kind):
            try:
                delattr(kind, "__dlpack_c_exchange_api__")
            except TypeError:
                mapping = ctypes.cast(id(vars(kind)) + 16, ctypes.POINTER(ctypes.py_object)).contents.value
                del mapping["__dlpack_c_exchange_api__"]
                ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    assert not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")

# Names without which torch itself is lost: they are hidden from opswap, which asks for them by importlib.
class Without:
    def __init__(self, module, names):
        self.module, self.names = module, names
    def __getattr__(self, name):
        if name in self.names:
            raise AttributeError(name)
        return getattr(self.module, name)

hidden_here, import_module = {}, importlib.import_module

def module_without(name, *package):
    module = import_module(name, *package)
    asked_by = sys._getframe(1).f_globals["__name__"]
    return Without(module, hidden_here[name]) if name in hidden_here and asked_by == "opswap._torch" else module

importlib.import_module = module_without

for path in sys.argv[1:]:
    if path == "dlpack":
        dlpack()
    elif path.startswith("here:"):
        module, name = path.removeprefix("here:").rsplit(".", 1)
        assert hasattr(import_module(module), name)
        hidden_here.setdefault(module, set()).add(name)
    else:
        hide(path)

import opswap
F, N = opswap.functional, torch.nn.functional
torch.manual_seed(0)
from torch.overrides import BaseTorchFunctionMode
with BaseTorchFunctionMode():
    opswap._core.plain_eager()
# Without an answer about one of these, the extension takes something to be watching.
WATCHERS = (
    "functorch_transforms_active", "len_torch_dispatch_stack", "len_torch_function_stack", "get_tracing_state",
    "forward_ad._current_level")
blind = any(path.endswith(WATCHERS) for path in sys.argv[1:])
assert opswap._core.plain_eager() is not blind
opswap._core.plain_eager()  # opswap has looked: torch itself, which uses most of the names, gets them back
LATE = ("_current_level", "_is_any_autocast_enabled", "_RecordFunctionFast", "compile_lock", "OptimizedModule")
for owner, name, value in hidden:
    if name not in LATE:  # looked up later
        setattr(owner, name, value)

def same(ours, theirs, exact=True):
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert torch.equal(a, b) if exact else torch.allclose(a, b, rtol=1e-4, atol=1e-4), (a - b).abs().max()

def results(function, *inputs):
    inputs = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in inputs]
    plain = function(*(t.detach() for t in inputs))
    output = function(*inputs)
    output.square().sum().backward()
    return plain, output, *(t.grad for t in inputs)

last = dict(memory_format=torch.channels_last)
x, y = torch.randn(2, 16, 12, 12).to(**last), torch.randn(2, 16, 12, 12)
for t in (x, y):
    for _ in range(2):  # what is looked up once answers the second call as the first
        same(results(lambda a: F.max_pool2d(a, 3, 2, 1), t), results(lambda a: N.max_pool2d(a, 3, 2, 1), t))
        same(results(lambda a: F.adaptive_max_pool2d(a, 3), t), results(lambda a: N.adaptive_max_pool2d(a, 3), t))
        same(results(lambda a: F.channel_shuffle(a, 4), t), results(lambda a: N.channel_shuffle(a, 4), t))
        same(results(lambda a: F.batch_norm(a, None, None, training=True), t),
             results(lambda a: N.batch_norm(a, None, None, training=True), t), exact=False)
    volume = t.unsqueeze(0)
    same(results(lambda a: F.avg_pool3d(a, 2), volume), results(lambda a: N.avg_pool3d(a, 2), volume), exact=False)
rows, weight = torch.randn(8, 3, 20), torch.randn(3, 6, 20)
same(results(F.grouped_linear, rows, weight),
     results(lambda a, w: torch.einsum("ngi,goi->ngo", a, w).reshape(8, 3, 6), rows, weight), exact=False)
big = torch.randn(4096)
torch.manual_seed(1); ours = F.dropout(big, 0.4)
torch.manual_seed(1); same((ours,), (N.dropout(big, 0.4),))

# What must not be read past the dispatcher: transforms, modes, forward-mode AD, autocast, another subclass.
def loss(function):
    return lambda a: function(a, 3, 2, 1).square().sum()
same((torch.func.grad(loss(F.max_pool2d))(x),), (torch.func.grad(loss(N.max_pool2d))(x),))
same((torch.func.vmap(lambda a: F.max_pool2d(a, 2))(volume.expand(3, -1, -1, -1, -1)),),
     (torch.func.vmap(lambda a: N.max_pool2d(a, 2))(volume.expand(3, -1, -1, -1, -1)),))
with torch.autocast("cpu", torch.bfloat16):
    same((F.max_pool2d(x, 2),), (N.max_pool2d(x, 2),))
import torch.autograd.forward_ad as forward_ad
if hasattr(forward_ad, "_current_level"):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(y, y)
        same(forward_ad.unpack_dual(F.max_pool2d(dual, 2)), forward_ad.unpack_dual(N.max_pool2d(dual, 2)))

import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    traced = torch.jit.trace(lambda a: F.channel_permutation(a, list(range(15, -1, -1))), (y,))
same((traced(x),), (x.flip(1),))

# A default device, a user's mode, a profiler.
with torch.device("cpu"):
    same((F.max_pool2d(x, 2),), (N.max_pool2d(x, 2),))
with BaseTorchFunctionMode():
    same((F.max_pool2d(x, 2),), (N.max_pool2d(x, 2),))
from torch.utils._python_dispatch import TorchDispatchMode
seen = []
class Sees(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        seen.append(str(func))
        return func(*args, **(kwargs or {}))
with Sees():
    same((F.max_pool2d(x, 2),), (N.max_pool2d(x, 2),))
    assert any("pool" in name for name in seen)
    seen.clear()
    same((F.grouped_linear(rows, weight),), (torch.einsum("ngi,goi->ngo", rows, weight).reshape(8, 3, 6),), exact=False)
    assert seen
with torch.autograd.profiler.profile() as profile:
    same((F.max_pool2d(x, 2),), (N.max_pool2d(x, 2),))

shared = opswap._torch.empty_shared((2, 3, 4, 5), torch.float32, torch.channels_last)
assert shared.shape == (2, 3, 4, 5) and shared.is_contiguous(memory_format=torch.channels_last)
assert opswap._torch.tree_map(str, {"a": [1, (2,)]}) == {"a": ["1", ("2",)]}
with opswap._torch.compile_lock():
    assert not opswap._torch.is_compiled_module(torch.nn.ReLU())

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.ChannelShuffle(4),
    torch.nn.MaxPool2d(3, 2, 1), torch.nn.Conv2d(16, 16, 3, 1, 1, groups=16), torch.nn.BatchNorm2d(16),
    torch.nn.Conv2d(16, 32, 1), torch.nn.AdaptiveMaxPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 4)).to(**last)
import copy
swapped = opswap.swap(copy.deepcopy(model))
image = torch.randn(4, 3, 32, 32).to(**last)
for m in (model, swapped):
    m(image).square().sum().backward()
same((p.grad for p in swapped.parameters()), (p.grad for p in model.parameters()), exact=False)
same((b.float() for b in swapped.buffers()), (b.float() for b in model.buffers()), exact=False)
print("well", sum(opswap.stats()["kernel"].values()))
"""

NAMES = [
    "dlpack",
    "torch._C._are_functorch_transforms_active",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch._C._is_torch_function_enabled",
    "torch._C._get_tracing_state",
    "torch._C._set_tracing_state",
    "torch._C._is_any_autocast_enabled",
    "torch.nn.modules.module._has_any_global_hook",
    "torch._C._functorch.is_gradtrackingtensor",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "torch._subclasses.fake_tensor.FakeCopyMode",
    "torch.utils._pytree.tree_leaves",
    "here:torch.utils._pytree.tree_map",
    "torch.autograd.forward_ad._current_level",
    "torch.utils._device.DeviceContext",
    "here:torch._C._functorch",
    "torch._C._functorch.get_interpreter_stack",
    "torch._C._functorch.TransformType",
    "here:torch.utils._python_dispatch.TorchDispatchMode",
    "here:torch._ops.OpOverload",
]


# Names that have nothing to do with each other, several at once.
TOGETHER = [
    (
        "torch._C._DisableFuncTorch",
        "torch._C._DisableTorchDispatch",
        "torch._C._autograd._get_sequence_nr",
        "torch._C._current_autograd_node",
        "here:torch._C._dispatch_has_kernel_for_dispatch_key",
    ),
    (
        "torch._C._current_graph_task_id",
        "torch._C._functorch.get_unwrapped",
        "torch._C._get_function_stack_at",
        "torch._assert",
    ),
    (
        "torch._dynamo.lookup_backend",
        "torch._dynamo.utils.counters",
        "torch._foreach_add_",
        "torch._subclasses.fake_tensor.FakeTensorMode",
    ),
    (
        "torch.cpu._is_amx_fp16_supported",
        "torch.cpu._is_amx_tile_supported",
        "torch.cpu._is_avx512_bf16_supported",
        "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
    ),
    (
        "torch._C._autograd._saved_tensors_hooks_is_enabled",
        "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",
        "torch._is_functional_tensor",
        "torch._sync",
        "torch.utils._python_dispatch._disable_current_modes",
    ),
    ("torch.autograd.forward_ad._set_fwd_grad_enabled", "here:torch._C.DispatchKey"),
    (
        "torch._C._profiler._RecordFunctionFast",
        "torch.storage._StorageBase._new_shared",
        "torch._dynamo.convert_frame.compile_lock",
        "torch._dynamo.eval_frame.OptimizedModule",
        "here:torch._C.TensorBase",
        "here:torch._C._nn",
    ),
    tuple(
        f"here:torch.nn.modules.module._global_{kind}_hooks"
        for kind in ("forward_pre", "forward", "backward_pre", "backward")
    ),
    ("torch.autograd.profiler._is_profiler_enabled",),
    (
        "torch._C._AutoDispatchBelowAutograd",
        "torch._C._after_autograd_keyset",
        "torch._functorch.autograd_function.enable_single_level_autograd_function",
        "here:torch.autograd.function._SingleLevelFunction",
    ),
]


def assert_runs_without(*names: str) -> None:
    printed = forked(CODE, *names, modules=("torch", "torch._dynamo"))
    assert re.search(r"^well \d+$", printed, re.M)


@pytest.mark.once
@pytest.mark.parametrize("name", NAMES)
def test_a_torch_without_this_name(name: str) -> None:
    assert_runs_without(name)


@pytest.mark.once
@pytest.mark.parametrize("names", TOGETHER, ids=" ".join)
def test_a_torch_without_these_names(names: tuple[str, ...]) -> None:
    assert_runs_without(*names)


def test_every_name_is_hidden_once() -> None:
    """Those that opswap._torch looks up, and those of the extension's table, are in one of the lists above."""
    known = {name.removeprefix("here:") for names in (NAMES, *TOGETHER) for name in names}
    text = Path(_torch.__file__).read_text()
    asked = {".".join(pair) for pair in re.findall(r'_find\(\s*"([\w.]+)", "(\w+)"', text)}
    asked |= {".".join(pair) for pair in re.findall(r'sys\.modules\.get\("([\w.]+)"\), "(\w+)"', text)}
    assert len(asked) > 30 and "torch._dynamo.convert_frame.compile_lock" in asked
    table = Path(__file__).parent.parent / "csrc" / "binding" / "torch_names.c"
    if table.exists():
        places = re.findall(r'\{"([\w.]+)", (?:NULL|"\w+"), "(\w+)"\}', table.read_text())
        assert len(places) > 15
        asked |= {".".join(pair) for pair in places}
    private = {name for name in asked if re.search(r"\._[A-Za-z]", name)}
    assert not private - known


def test_no_other_module_uses_private_names() -> None:
    """Every private name of torch is in _torch.py, or in csrc/binding/torch_names.c."""
    root = Path(opswap.__file__).parent
    private = re.compile(r"torch\.(utils\.|nn\.modules\.\w+\.|autograd\.|jit\.|fx\.)?_[A-Za-z]\w*|_C\._\w+")
    own = re.compile(r"torch\.__|opswap\._torch")
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if path.name != "_torch.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if private.search(own.sub("", line)) and not line.lstrip().startswith("#")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "version, warns",
    [("2.10.0", False), ("2.13.0+cpu", False), ("2.14.1", False), ("2.15.0", True), ("3.0a0", True)],
)
def test_a_newer_torch_is_named_once(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, version: str, warns: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    _torch.warn_of_version()
    messages = [str(w.message) for w in recwarn if w.category is RuntimeWarning]
    assert len(messages) == warns and all(version in m and "2.10 to 2.14" in m for m in messages)


def test_fallback_trees() -> None:
    tree = {"a": [1, (2, 3)], "b": {"c": 4}}
    assert _torch._leaves(tree) == _torch.tree_leaves(tree) == [1, 2, 3, 4]
    assert _torch._map(str, tree) == _torch.tree_map(str, tree) == {"a": ["1", ("2", "3")], "b": {"c": "4"}}


def test_a_backend_that_torch_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch, "_find", lambda module, name: None)
    with pytest.raises(ValueError, match="'inductor'"):
        _torch.lookup_backend("inductor")
