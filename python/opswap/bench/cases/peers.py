# SPDX-License-Identifier: MIT
"""Inference of whole networks against programs that people deploy, which the extra "peers" installs.

ONNX Runtime and OpenVINO read the model's ONNX file; "inductor" is torch.compile with frozen weights, of the model in
channels_last. opswap's model is swapped and frozen. Every form has the same number of threads and computes in float32.
A form whose package is missing is left out, and the row says so.
"""

from __future__ import annotations

import copy
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

import opswap
from opswap.bench.case import Case, shape_text

from .models import NETWORKS, Network

__all__ = ["cases"]

Function = Callable[[], Tensor]

_NETWORKS = ("ShuffleNetV2 x1.0", "LPRNet")
_TOLERANCE = 1e-3  # of the largest logit: every program orders its sums in another way


def cases(batch: int) -> Iterator[Case]:
    """One image, and as many as a training step has."""
    for name in _NETWORKS:
        network = NETWORKS[name]
        for images in sorted({1, batch * network.batches}):
            shape = shape_text((images, 3, *network.size))
            build = partial(_forms, network, images)
            ours = {"opswap frozen": "NHWC"}
            yield Case(name, shape, "float32", "deployed", build, ours, tolerance=_TOLERANCE)


def _forms(network: Network, images: int) -> dict[str, Function]:
    model, x = network.make().eval(), torch.randn(images, 3, *network.size)
    _fill_statistics(model, x)
    last = x.contiguous(memory_format=torch.channels_last)
    in_last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    ours = opswap.freeze(opswap.swap(copy.deepcopy(model), memory_format=torch.channels_last))
    peers: dict[str, Callable[[nn.Module, Tensor], Function]] = {
        "onnxruntime": _onnxruntime,
        "openvino": _openvino,
    }
    return {
        "stock NHWC": _without_graph(in_last, last),
        **{_name(package): _or_missing(make, model, x) for package, make in peers.items()},
        "inductor": _without_graph(torch.compile(in_last, options={"freezing": True}), last),
        "opswap frozen": _without_graph(ours, last),
    }


def _fill_statistics(model: nn.Module, x: Tensor) -> None:
    """Running statistics of the input, so that outputs are of ordinary sizes."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(x[:4].expand(4, -1, -1, -1))
    for norm in norms:
        norm.momentum = 0.1
    model.eval()


def _without_graph(model: Callable[[Tensor], Tensor], x: Tensor) -> Function:
    return torch.no_grad()(partial(model, x))


def _name(package: str) -> str:
    """Name and version, if the package is there."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package


def _or_missing(make: Callable[[nn.Module, Tensor], Function], model: nn.Module, x: Tensor) -> Function:
    """What `make` makes, or a function that raises why it cannot."""
    try:
        return make(model, x)
    except ImportError as error:
        return partial(_raise, ImportError(f"{error}; python3 -m pip install 'opswap[peers]'"))


def _raise(error: Exception) -> Any:
    raise error


def _onnx_file(model: nn.Module, x: Tensor, folder: str) -> str:
    """The exporter warns of packages that it does without."""
    path, log = os.path.join(folder, "model.onnx"), logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (x,), path, dynamo=True, verbose=False, external_data=False)
    finally:
        log.setLevel(level)
    return path


def _onnxruntime(model: nn.Module, x: Tensor) -> Function:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        session = onnxruntime.InferenceSession(
            _onnx_file(model, x, folder), options, ["CPUExecutionProvider"]
        )
    given = {session.get_inputs()[0].name: x.numpy()}
    return lambda: torch.from_numpy(session.run(None, given)[0])


def _openvino(model: nn.Module, x: Tensor) -> Function:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    with tempfile.TemporaryDirectory() as folder:
        compiled = core.compile_model(core.read_model(_onnx_file(model, x, folder)), "CPU", settings)
    request, given = compiled.create_infer_request(), [x.numpy()]
    return lambda: torch.from_numpy(request.infer(given, share_inputs=True)[0].copy())
