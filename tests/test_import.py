# SPDX-License-Identifier: MIT
"""`import opswap` changes nothing in modules, functions and settings that are not opswap's."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import opswap
from surviving import python

# Prints what the import has changed, one line each: names of torch's modules and classes, and settings of the process.
_COMPARE = """
import os, sys, threading, types, warnings
import numpy, torch, torch.ao.quantization, torch.distributed, torch.jit, torch.fx, torch.library
import torch.nn.modules.module as module, torch.nn.parallel, torch.onnx, torch.optim, torch.utils.checkpoint

KNOWN = tuple(sys.modules)

def classes():
    spaces = (torch, torch.nn, torch.optim, torch.autograd, torch.fx, torch.jit)
    found = {v for s in spaces for v in vars(s).values() if isinstance(v, type)}
    return sorted(found | {module.Module}, key=repr)

def observe():
    seen = {}
    for name, value in vars(module).items():
        if name.startswith("_global_"):
            seen["hook", name] = (id(value), repr(value))
    for cls in classes():
        for name, value in tuple(vars(cls).items()):
            seen["class", repr(cls), name] = id(value)
    for key in KNOWN:
        if key in ("__main__", "__mp_main__") or not isinstance(sys.modules.get(key), types.ModuleType):
            continue
        for name, value in tuple(vars(sys.modules[key]).items()):
            if not isinstance(value, types.ModuleType):  # submodules that the import has loaded
                seen["name", key, name] = id(value)
    seen["warnings"] = repr(warnings.filters)
    seen["dtype"], seen["device"] = torch.get_default_dtype(), torch.get_default_device()
    seen["threads"] = (torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count())
    seen["grad"] = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled())
    seen["autocast"] = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    seen["modes"] = (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack())
    seen["seed"] = (torch.initial_seed(), torch.get_rng_state().sum().item(), repr(numpy.random.get_state()))
    seen["backends"] = (torch.backends.mkldnn.enabled, torch.are_deterministic_algorithms_enabled())
    seen["flags"] = (torch.get_float32_matmul_precision(), torch.is_warn_always_enabled())
    seen["environment"] = dict(os.environ)
    seen["python"] = (sys.path[:], sys.meta_path[:], sys.path_hooks[:], sys.getrecursionlimit(), sys.excepthook)
    seen["tracers"] = (sys.gettrace(), sys.getprofile(), sys.displayhook, sys.unraisablehook)
    seen["denormals"] = (torch.tensor(2.0 ** -140) * 1).item()
    return seen

before = observe()
import opswap
after = observe()
for key in dict.fromkeys((*before, *after)):
    if before.get(key) != after.get(key):
        print(key)
"""


def test_import_changes_nothing() -> None:
    assert python(_COMPARE) == ""


def test_import_with_every_warning_an_error() -> None:
    python("import torch, warnings; warnings.simplefilter('error'); import opswap")


class SyncBatchNormAct(nn.SyncBatchNorm):
    """timm's: a SyncBatchNorm with an activation, which it applies itself."""

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        return self.act(output) if hasattr(self, "act") else output


class BatchNormAct2d(nn.BatchNorm2d):
    """timm's: a BatchNorm with an activation, which it applies itself."""

    def __init__(self, features: int, act: nn.Module) -> None:
        super().__init__(features)
        self.act = act

    def forward(self, input: Tensor) -> Tensor:
        return self.act(super().forward(input))


def convert_as_timm(module: nn.Module) -> nn.Module:
    """timm.layers.convert_sync_batchnorm."""
    module_output = module
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        cls = SyncBatchNormAct if isinstance(module, BatchNormAct2d) else nn.SyncBatchNorm
        module_output = cls(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        if cls is SyncBatchNormAct:
            module_output.act = module.act
        if module.affine:
            with torch.no_grad():
                module_output.weight = module.weight
                module_output.bias = module.bias
        module_output.running_mean = module.running_mean
        module_output.running_var = module.running_var
        module_output.num_batches_tracked = module.num_batches_tracked
        module_output.training = module.training
    for name, child in module.named_children():
        module_output.add_module(name, convert_as_timm(child))
    return module_output


def convert_by_children(module: nn.Module) -> nn.Module:
    """A converter that looks at `children()` first, and copies parameters but not buffers."""
    if not list(module.children()) and not isinstance(module, nn.modules.batchnorm._BatchNorm):
        return module
    result = module
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        result = nn.SyncBatchNorm(module.num_features, module.eps).train(module.training)
        result.weight.data, result.bias.data = module.weight.data.clone(), module.bias.data.clone()
        result.running_mean, result.running_var = module.running_mean, module.running_var
    for name, child in module.named_children():
        result.add_module(name, convert_by_children(child))
    return result


ACTIVATIONS = {"relu": nn.ReLU, "relu6": nn.ReLU6, "hardswish": nn.Hardswish}


def randomized(norm: nn.Module) -> nn.Module:
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        if tensor is not None:
            nn.init.normal_(tensor)
    return norm.eval()


class TestOtherModules:
    """Modules that opswap did not make compute what they did before the import."""

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize("convert", [convert_as_timm, nn.SyncBatchNorm.convert_sync_batchnorm])
    def test_norm_with_an_activation(self, activation: str, convert: object) -> None:
        act = ACTIVATIONS[activation]()
        stock = randomized(BatchNormAct2d(6, act))
        x = 4 * torch.randn(2, 6, 3, 3)
        bare = nn.functional.batch_norm(x, stock.running_mean, stock.running_var, stock.weight, stock.bias)
        converted = convert(stock)
        expected = act(bare) if convert is convert_as_timm else bare
        torch.testing.assert_close(converted(x), expected)
        assert not converted._forward_hooks

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_activation_given_by_name(self, activation: str) -> None:
        for norm in (nn.SyncBatchNorm(6), SyncBatchNormAct(6), nn.BatchNorm2d(6), nn.Sequential()):
            norm.act = ACTIVATIONS[activation]()
            norm.add_module("act", norm.act)
            assert not norm._forward_hooks

    def test_two_models_side_by_side(self) -> None:
        """A function that walks through both must not look like a converter."""

        def copy_state(ours: nn.Module, stock: nn.Module | None) -> None:
            if stock is not None:
                stock.load_state_dict(ours.state_dict())
            for name, child in ours.named_children():
                copy_state(child, getattr(stock, name, None))

        ours = opswap.nn.BatchNormAct2d(6, activation="hardswish")
        stock = nn.BatchNorm2d(6)
        copy_state(ours, stock)
        ours.train().eval().apply(lambda m: None)
        list(ours.named_modules())
        list(ours.act.named_children())
        assert not stock._forward_hooks and not ours._forward_hooks


class TestConversions:
    """An opswap.nn.BatchNormAct keeps its activation, once, through conversions by other code than torch's."""

    @pytest.mark.parametrize("activation", [*ACTIVATIONS, None])
    @pytest.mark.parametrize("convert", [convert_as_timm, convert_by_children])
    def test_conversion(self, convert: object, activation: str | None) -> None:
        model = nn.Sequential(randomized(opswap.nn.BatchNormAct2d(6, activation=activation))).eval()
        x = 4 * torch.randn(2, 6, 3, 3)
        expected = model(x)
        converted = convert(model)
        assert type(converted[0]) is nn.SyncBatchNorm
        twice = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(converted))
        for m in (converted, twice, convert(copy.deepcopy(twice)), pickle.loads(pickle.dumps(twice))):
            torch.testing.assert_close(m(x), expected)

    @pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}])
    def test_norms_without_parameters_or_statistics(self, options: dict[str, bool]) -> None:
        ours = opswap.nn.BatchNormAct2d(6, activation="hardswish", **options).eval()
        x = 4 * torch.randn(2, 6, 3, 3)
        expected = ours(x)
        torch.testing.assert_close(nn.SyncBatchNorm.convert_sync_batchnorm(ours)(x), expected)

    def test_norm_without_any_state(self) -> None:
        ours = opswap.nn.BatchNormAct2d(6, affine=False, track_running_stats=False, activation="hardswish")
        x = 4 * torch.randn(2, 6, 3, 3)
        ours.eval()
        torch.testing.assert_close(nn.SyncBatchNorm.convert_sync_batchnorm(ours)(x), ours(x))

    def test_swapped_model(self) -> None:
        model = opswap.swap(nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.Hardswish()).eval())
        x = 4 * torch.randn(2, 3, 4, 4)
        expected = model(x)
        converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        assert type(converted[1]) is nn.SyncBatchNorm
        torch.testing.assert_close(converted(x), expected)

    def test_printed_names_are_those_of_torch(self) -> None:
        assert "(act): ReLU6()" in repr(opswap.nn.BatchNormAct2d(6, activation="relu6"))
