# SPDX-License-Identifier: MIT
"""Networks of the libraries that people use, a small one of each family, listed in networks.json.

Wheels of torchvision are built for one torch each, with operators in C++ that torch for CPUs cannot load. Here its
Python code is used, with the declarations of these operators, `nms` in Python, and cheaper targets of Mask R-CNN.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LISTED = Path(__file__).with_name("networks.json")

# Pixels. Detectors enlarge their images, by default to 800, where checking a step in float64 needs more than 24 GB.
_DETECTOR_SIDE = 320
# Of an image; with torchvision's 2,000 and 512 its masks need more than 24 GB in float64.
_REGIONS = {"rpn_post_nms_top_n_train": 200, "rpn_post_nms_top_n_test": 200, "box_batch_size_per_image": 64}

_kept: list[Any] = []


def listed() -> dict[str, dict[str, str]]:
    """By library and family: the name of a small network."""
    return json.loads(LISTED.read_text())


def make(library: str, name: str) -> nn.Module:
    """A network with random weights.

    Raises: ImportError if the library is not installed.
    """
    return _MAKERS[library](name)


def convert(model: nn.Module, memory_format: torch.memory_format) -> None:
    """`Module.to(memory_format=...)`, which raises for channels_last and parameters of five dimensions."""
    with torch.no_grad():
        for t in (*model.parameters(), *model.buffers()):
            if t.dim() == 4:
                t.data = t.data.contiguous(memory_format=memory_format)


def sizes(library: str, name: str) -> tuple[int, ...]:
    """Sides of the square images to try, in this order: some networks support a single size, or only larger ones."""
    if is_detector(library, name):
        return (128,)
    return (96, 128, 224, 256, 299)


def arguments(
    library: str, name: str, batch: int, size: int, memory_format: torch.memory_format
) -> tuple[Any, ...]:
    """The arguments of a forward in training mode: `batch` images, and for a detector its targets."""
    images = torch.randn(batch, 3, size, size).contiguous(memory_format=memory_format)
    if not is_detector(library, name):
        return (images,)
    target: dict[str, Tensor] = {
        "boxes": torch.tensor([[10.0, 20.0, 60.0, 90.0]]),
        "labels": torch.tensor([1]),
    }
    if name.startswith("mask"):
        target["masks"] = torch.ones(1, size, size, dtype=torch.uint8)
    if name.startswith("keypoint"):
        target["keypoints"] = torch.tensor([[[30.0, 40.0, 1.0]] * 17])
    return list(images), [dict(target) for _ in range(batch)]


def chosen(libraries: Iterable[str], texts: Iterable[str]) -> list[tuple[str, str, str]]:
    """Library, family and name of the listed networks of these libraries, of whose texts one is in the name."""
    texts = tuple(texts)
    return [
        (library, family, name)
        for library in libraries
        for family, name in listed().get(library, {}).items()
        if any(text in name for text in texts)
    ]


def first_arguments(
    model: nn.Module,
    library: str,
    name: str,
    batch: int,
    memory_format: torch.memory_format,
    sides: Iterable[int] = (),
) -> tuple[tuple[Any, ...], int]:
    """The first arguments that the network supports, by the sides of their images: of these, or else of `sizes`.

    Raises: what the network raises for the last of them.
    """
    error: Exception = ValueError("no size")
    for side in tuple(sides) or sizes(library, name):
        given = arguments(library, name, batch, side, memory_format)
        try:
            model(*given)
        except Exception as found:  # too small a picture, or not the one size that it supports
            error = found
        else:
            return given, side
    raise error


def is_detector(library: str, name: str) -> bool:
    """True for a network whose forward takes a list of images and, in training, their targets."""
    return library == "torchvision" and ("rcnn" in name or name.startswith(("ssd", "retina", "fcos")))


def _torchvision() -> Any:
    if not _kept and not _imports("torchvision"):
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        declared.impl("nms", _nms, "CPU")
        _kept.append(declared)
    models = importlib.import_module("torchvision.models")
    importlib.import_module("torchvision.ops.boxes")._assert_has_ops = lambda: None
    return models


def _imports(name: str) -> bool:
    """False if the library's operators were built for another torch; ImportError if it is not installed."""
    try:
        importlib.import_module(name)
    except RuntimeError:
        return False
    return True


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The indices of the boxes that no better one covers, best first."""
    order = scores.detach().argsort(descending=True, stable=True)
    boxes = boxes.detach()[order]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    low, high = (
        torch.maximum(boxes[:, None, :2], boxes[:, :2]),
        torch.minimum(boxes[:, None, 2:], boxes[:, 2:]),
    )
    shared = (high - low).clamp(min=0).prod(2)
    covers = (shared > iou_threshold * (areas[:, None] + areas - shared)).numpy()
    kept, covered = [], torch.zeros(len(order), dtype=torch.bool).numpy()
    for i in range(len(order)):
        if not covered[i]:
            kept.append(i)
            covered |= covers[i]
    return order[torch.tensor(kept, dtype=torch.int64)]


def _simplify_masks() -> None:
    """Read torchvision's targets of masks at 2 x 2 points per bin, and run its Python code for regions uncompiled.

    It reads them at as many points as the image has pixels, and drops most: 0.3 GB per region and intermediate
    result, also if it is compiled for numbers of regions that change. The C++ operator reads only those that count.
    """
    regions = importlib.import_module("torchvision.ops.roi_align")
    regions._roi_align = getattr(regions._roi_align, "__wrapped__", regions._roi_align)
    heads = importlib.import_module("torchvision.models.detection.roi_heads")
    heads.roi_align = functools.partial(regions.roi_align, sampling_ratio=2)


def _of_torchvision(name: str) -> nn.Module:
    options: dict[str, Any] = {"weights": None}
    models = _torchvision()
    if name.startswith(("deeplab", "fcn_", "lraspp")) or is_detector("torchvision", name):
        options["weights_backbone"] = None
    if name == "inception_v3" or name == "googlenet":
        options |= {"init_weights": False, "aux_logits": False}
    if name.endswith("resnet50_fpn") and is_detector("torchvision", name):
        options["min_size"] = _DETECTOR_SIDE
    if name.startswith("maskrcnn"):
        options |= _REGIONS
        _simplify_masks()
    return models.get_model(name, **options)


def _timm() -> Any:
    _torchvision()
    return importlib.import_module("timm")


def _pytorchcv() -> Any:
    _torchvision()
    return importlib.import_module("pytorchcv.model_provider")


def _segmentation() -> Any:
    _timm()
    return importlib.import_module("segmentation_models_pytorch")


_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "MobileNetV1": {},
    "MobileNetV2": {},
    "MobileViT": {"image_size": 96},
    "MobileViTV2": {"image_size": 96},
    "ResNet": {"depths": [1, 1, 1, 1]},
    "RegNet": {"depths": [1, 1, 1, 1]},
    "EfficientNet": {},
    "ConvNext": {"depths": [1, 1, 2, 1]},
    "ConvNextV2": {"depths": [1, 1, 2, 1]},
    "Bit": {"depths": [1, 1, 1, 1]},
    "PoolFormer": {},
    "Segformer": {},
}


def _of_transformers(name: str) -> nn.Module:
    _torchvision()
    transformers = importlib.import_module("transformers")
    config = getattr(transformers, f"{name}Config")(**_TRANSFORMERS[name])
    task = "ForSemanticSegmentation" if name == "Segformer" else "ForImageClassification"
    return _Logits(getattr(transformers, name + task)(config))


class _Logits(nn.Module):
    """A network of transformers that returns a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def _of_segmentation(name: str) -> nn.Module:
    return getattr(_segmentation(), name)(encoder_name="resnet18", encoder_weights=None)


_MMPRETRAIN: dict[str, dict[str, Any]] = {
    "ConvNeXt": {"arch": "atto"},
    "CSPDarkNet": {"depth": 53},
    "CSPResNet": {"depth": 50},
    "DenseNet": {"arch": "121"},
    "EdgeNeXt": {"arch": "xxsmall"},
    "EfficientFormer": {"arch": "l1"},
    "EfficientNet": {"arch": "b0"},
    "EfficientNetV2": {"arch": "b0"},
    "HorNet": {"arch": "tiny"},
    "LeViT": {"arch": "128s"},
    "MobileNetV3": {"arch": "small"},
    "MobileOne": {"arch": "s0"},
    "MobileViT": {"arch": "xx_small"},
    "PoolFormer": {"arch": "s12"},
    "RegNet": {"arch": "regnetx_400mf"},
    "RepVGG": {"arch": "A0"},
    "Res2Net": {"depth": 50},
    "ResNeSt": {"depth": 50},
    "ResNet": {"depth": 18},
    "ResNetV1d": {"depth": 50},
    "ResNeXt": {"depth": 50},
    "RIFormer": {"arch": "s12"},
    "SEResNet": {"depth": 50},
    "TinyViT": {"arch": "5m", "img_size": (224, 224)},
    "VAN": {"arch": "tiny"},
    "VGG": {"depth": 11, "norm_cfg": {"type": "BN"}},
}


_MODEL_INDEX: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("modelindex", ()),
    ("modelindex.load_model_index", ("load",)),
    ("modelindex.models", ()),
    ("modelindex.models.Model", ("Model",)),
    ("modelindex.models.ModelIndex", ("ModelIndex",)),
)


def _of_mmpretrain(name: str) -> nn.Module:
    """A backbone. Of mmcv the wheel mmcv-lite is enough, and of modelindex, which lists trained weights, the names."""
    _torchvision()
    missing = "modelindex" not in sys.modules and importlib.util.find_spec("modelindex") is None
    for module, names in _MODEL_INDEX if missing else ():
        stand_in = sys.modules.setdefault(module, types.ModuleType(module))
        for attribute in names:
            setattr(stand_in, attribute, object)
    backbones = importlib.import_module("mmpretrain.models.backbones")
    return getattr(backbones, name)(**_MMPRETRAIN.get(name, {}))


_MAKERS: dict[str, Callable[[str], nn.Module]] = {
    "timm": lambda name: _timm().create_model(name),
    "torchvision": _of_torchvision,
    "pytorchcv": lambda name: _pytorchcv().get_model(name),
    "transformers": _of_transformers,
    "segmentation_models_pytorch": _of_segmentation,
    "mmpretrain": _of_mmpretrain,
}
