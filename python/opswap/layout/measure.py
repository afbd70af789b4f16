# SPDX-License-Identifier: MIT
"""Run torch's image operators on channels_last tensors and write down which lose the format or convert inside.

`python -m opswap.layout.measure` prints `measured.py` for the installed torch, made on the CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import profiler

from opswap._dispatch_mode import DispatchMode
from opswap._torch import OpOverload
from opswap.finding.operators import SKIPPED, op_name, tensors_in
from opswap.finding.storages import storage_key
from opswap.ops._layout import CHANNELS_LAST, to_channels_last

from .formats import Format, format_of
from .operators import CONVERTERS, NOT_IMAGES

__all__ = ["SAMPLES", "Measurement", "measure"]

Sample = Callable[[Tensor], Tensor]
_COPIES = {"aten::contiguous", "aten::clone", "aten::to", "aten::_to_copy"}


_ACTIVATIONS = """
    relu relu6 silu gelu mish elu selu hardswish hardsigmoid hardtanh leaky_relu softplus sigmoid tanh logsigmoid
"""


def _images() -> dict[str, Sample]:
    """Operators on (N, C, H, W), by torch's name."""
    return {
        "max_pool2d": lambda x: F.max_pool2d(x, 2),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "lp_pool2d": lambda x: F.lp_pool2d(x, 2, 2),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
        "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
        "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x, 2, output_size=3),
        "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), [2, 2]),
        "conv2d": lambda x: F.conv2d(x, _weight(4, 8, 3, 3)),
        "conv2d depthwise": lambda x: F.conv2d(x, _weight(8, 1, 3, 3), groups=8),
        "conv2d dilated": lambda x: F.conv2d(x, _weight(4, 8, 3, 3), padding=2, dilation=2),
        "conv_transpose2d": lambda x: F.conv_transpose2d(x, _weight(8, 4, 3, 3)),
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
        "group_norm": lambda x: F.group_norm(x, 4, torch.ones(8), torch.zeros(8)),
        "instance_norm": lambda x: F.instance_norm(x),
        "layer_norm": lambda x: F.layer_norm(x, [8, 6, 6]),
        "rms_norm": lambda x: F.rms_norm(x, [6]),
        "local_response_norm": lambda x: F.local_response_norm(x, 3),
        "normalize": lambda x: F.normalize(x, dim=1),
        "upsample nearest": lambda x: F.interpolate(x, scale_factor=2),
        "upsample nearest-exact": lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
        "upsample bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "upsample bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        "upsample area": lambda x: F.interpolate(x, size=3, mode="area"),
        "upsample bilinear antialias": lambda x: F.interpolate(x, size=3, mode="bilinear", antialias=True),
        "upsample bicubic antialias": lambda x: F.interpolate(x, size=3, mode="bicubic", antialias=True),
        "grid_sample": lambda x: F.grid_sample(x, torch.zeros(2, 4, 4, 2), align_corners=False),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
        "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
        "unfold": lambda x: F.unfold(x, 3),
        "pad constant": lambda x: F.pad(x, (1, 1, 1, 1)),
        "pad reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        "pad replicate": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
        "pad circular": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
        "softmax": lambda x: F.softmax(x, 1),
        "log_softmax": lambda x: F.log_softmax(x, 1),
        "prelu": lambda x: F.prelu(x, _weight(8)),
        "glu": lambda x: F.glu(x, 1),
        "dropout": lambda x: F.dropout(x, 0.5),
        "dropout2d": lambda x: F.dropout2d(x, 0.5),
        **_rearrangements(),
        **_pointwise(),
    }


def _rearrangements() -> dict[str, Sample]:
    return {
        "cumsum": lambda x: x.cumsum(2),
        "flip": lambda x: x.flip(3),
        "roll": lambda x: x.roll(1, 3),
        "rot90": lambda x: torch.rot90(x, 1, (2, 3)),
        "cat": lambda x: torch.cat((x, x), 1),
        "stack": lambda x: torch.stack((x, x), 1),
        "repeat": lambda x: x.repeat(1, 2, 1, 1),
        "repeat_interleave": lambda x: x.repeat_interleave(2, 2),
        "index_select": lambda x: x.index_select(1, torch.tensor([1, 0])),
        "index": lambda x: x[:, torch.tensor([1, 0])],
        "gather": lambda x: x.gather(1, torch.zeros(2, 3, 6, 6, dtype=torch.long)),
        "topk": lambda x: x.topk(2, 1)[0],
        "sort": lambda x: x.sort(1)[0],
        "median": lambda x: x.median(1, keepdim=True)[0],
        "where": lambda x: torch.where(x > 0, x, 0.0),
        "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
        "tril": lambda x: x.tril(),
        "matmul": lambda x: x @ x,
        "einsum": lambda x: torch.einsum("nchw,oc->nohw", x, torch.randn(4, 8)),
        "rfft2": lambda x: torch.fft.rfft2(x).real,
        "bfloat16": lambda x: x.bfloat16(),
    }


def _pointwise() -> dict[str, Sample]:
    plain: dict[str, Sample] = {name: getattr(F, name) for name in _ACTIVATIONS.split()}
    return plain | {
        "add": lambda x: x + x,
        "mul by a vector": lambda x: x * torch.randn(2, 8, 1, 1),
        "pow": lambda x: x.abs().pow(1.5),
        "clamp": lambda x: x.clamp(0, 1),
        "exp": torch.exp,
        "sum over channels": lambda x: x.sum(1, keepdim=True),
        "mean": lambda x: x.mean((2, 3), keepdim=True),
    }


def _volumes() -> dict[str, Sample]:
    """Operators on (N, C, D, H, W)."""
    return {
        "max_pool3d": lambda x: F.max_pool3d(x, 2),
        "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
        "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, 3),
        "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 3),
        "conv3d": lambda x: F.conv3d(x, _weight(4, 8, 3, 3, 3)),
        "conv_transpose3d": lambda x: F.conv_transpose3d(x, _weight(8, 4, 3, 3, 3)),
        "batch_norm 5-D": lambda x: F.batch_norm(x, None, None, training=True),
        "group_norm 5-D": lambda x: F.group_norm(x, 4, torch.ones(8), torch.zeros(8)),
        "upsample nearest 5-D": lambda x: F.interpolate(x, scale_factor=2),
        "upsample trilinear": lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
        "pad constant 5-D": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1)),
        "pad reflect 5-D": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="reflect"),
        "relu 5-D": F.relu,
        "cat 5-D": lambda x: torch.cat((x, x), 1),
    }


SAMPLES: Mapping[int, Mapping[str, Sample]] = {4: _images(), 5: _volumes()}


def _weight(*size: int) -> Tensor:
    """In channels_last, so that no operator has to convert it."""
    weight = torch.randn(size)
    return (
        weight.to(memory_format=CHANNELS_LAST[len(size)]).requires_grad_()
        if len(size) > 3
        else weight.requires_grad_()
    )


@dataclass
class Measurement:
    """Names of torch's operators, forward and backward ones.

    loses: a channels_last image came in, a contiguous one out. inside: a copy in another format was made within.
    refuses: raised an error. kept: the operators that did none of this.
    """

    loses: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)


class _Watch(DispatchMode):
    """Profiles every operator by itself, so that the operators that it calls in C++ are seen."""

    def __init__(self, found: Measurement) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload):
            return func(*args, **(kwargs or {}))
        name = op_name(func)
        try:
            with profiler.profile(use_kineto=False, record_shapes=True) as record:
                out = func(*args, **(kwargs or {}))
        except RuntimeError:
            self._found.refuses.add(name)
            raise
        other_at, _ = NOT_IMAGES.get(name, (None, None))
        images = [t for t in tensors_in(args) if other_at is None or t is not args[other_at]]
        formats = {format_of(t) for t in images}
        if (
            name in SKIPPED | CONVERTERS
            or Format.LAST not in formats
            or formats & {Format.CONTIGUOUS, Format.OTHER}
        ):
            return out
        memory = {storage_key(t) for t in images}
        results = {format_of(t) for t in tensors_in(out) if storage_key(t) not in memory}
        shapes = {tuple(t.shape) for t in images if format_of(t) is Format.LAST}
        copies = any(_copies(event, shapes) for event in record.function_events or ())
        if Format.CONTIGUOUS in results:
            self._found.loses.add(name)
        elif copies:
            self._found.inside.add(name)
        else:
            self._found.kept.add(name)
        return out


def _copies(event: Any, shapes: set[tuple[int, ...]]) -> bool:
    """True for a copy of a whole image that the operator makes to get another format."""
    if event.name != "aten::copy_" or tuple(event.input_shapes[0]) not in shapes:
        return False
    parent = event.cpu_parent
    return parent is not None and parent.name in _COPIES


def measure(samples: Mapping[int, Mapping[str, Sample]] = SAMPLES) -> Measurement:
    """Forward and backward of each sample, on a small channels_last tensor in float32."""
    found = Measurement()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for ndim, cases in samples.items():
            for run in cases.values():
                _measure_one(run, ndim, found)
    found.kept -= found.loses | found.inside
    found.inside -= found.loses
    return found


def _measure_one(run: Sample, ndim: int, found: Measurement) -> None:
    size = (2, 8, *[6] * (ndim - 2))
    x = torch.randn(size).to(memory_format=CHANNELS_LAST[ndim]).requires_grad_()
    try:
        with _Watch(found):
            y = run(x)
            y.backward(to_channels_last(torch.ones_like(y)))
    except RuntimeError:
        return  # noted by _Watch


def _lines(names: set[str]) -> Iterator[str]:
    for name in sorted(names):
        yield f'        "{name}",'


def main() -> None:
    """Print the module `measured`."""
    torch.manual_seed(0)
    found = measure()
    print("# SPDX-License-Identifier: MIT")
    print(
        '"""Made by `python -m opswap.layout.measure`: torch\'s operators on channels_last images, on the CPU."""\n'
    )
    print('__all__ = ["COPIED_INSIDE", "LOSES", "MEASURED_WITH"]\n')
    print(f'MEASURED_WITH = "torch {torch.__version__.partition("+")[0]}, CPU"\n')
    for name, names, comment in (
        ("LOSES", found.loses, "A channels_last image goes in, a contiguous one comes out."),
        ("COPIED_INSIDE", found.inside, "Copies its input into another format and gives the format back."),
    ):
        print(f"# {comment}\n{name} = frozenset(\n    {{")
        print("\n".join(_lines(names)))
        print("    }\n)\n")


if __name__ == "__main__":
    main()
