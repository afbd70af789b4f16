# SPDX-License-Identifier: MIT
"""What batch_images refuses, by name and with values, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from opswap import _np, shapes


def images(dtype: str = "uint8", channels: int = 3) -> list[Any]:
    return [np.ones((4, 5, channels), dtype), np.ones((3, 6, channels), dtype)]


def batch(*others: Any, **options: Any) -> Any:
    given = {"size": 8, **options}
    return shapes.batch_images([*images(), *others], **given)


OBJECTS = np.empty((2, 2, 3), object)
READ_ONLY = np.zeros((2, 3, 8, 8), np.uint8)
READ_ONLY.flags.writeable = False

CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no images": (lambda: shapes.batch_images([], 8), ValueError, "there are no images"),
    "a list": (lambda: batch([[1]]), TypeError, "image 2 is a list, expected a NumPy array"),
    "a tensor": (lambda: batch(torch.ones(2, 2, 3)), TypeError, "image 2 is a Tensor"),
    "none": (lambda: batch(None), TypeError, "image 2 is a NoneType"),
    "a masked array": (lambda: batch(np.ma.ones((2, 2, 3))), TypeError, "image 2 is a MaskedArray"),
    "objects": (lambda: batch(OBJECTS), TypeError, "image 2 is object, expected uint8"),
    "int64": (lambda: shapes.batch_images([np.ones((2, 2, 3), int)], 8), TypeError, "image 0 is int64"),
    "bool": (lambda: batch(np.ones((2, 2, 3), bool)), TypeError, "image 2 is bool"),
    "complex": (lambda: batch(np.ones((2, 2, 3), complex)), TypeError, "image 2 is complex128"),
    "strings": (lambda: batch(np.ones((2, 2, 3), "U1")), TypeError, "image 2 is <U1"),
    "other byte order": (
        lambda: shapes.batch_images([np.ones((2, 2, 3), ">u2")], 8),
        TypeError,
        "image 0 is >u2.* byte order",
    ),
    "other dtype": (
        lambda: batch(np.ones((2, 2, 3), "f4")),
        TypeError,
        "image 2 is float32, image 0 is uint8",
    ),
    "other channels": (
        lambda: batch(np.ones((2, 2, 1), "u1")),
        ValueError,
        "image 2 has 1 channels, image 0 has 3",
    ),
    "grey among colours": (lambda: batch(np.ones((2, 2), "u1")), ValueError, "image 2 has 1 channels"),
    "one dimension": (lambda: batch(np.ones(3, "u1")), ValueError, r"image 2 has the shape \(3,\)"),
    "four dimensions": (lambda: batch(np.ones((1, 2, 2, 3), "u1")), ValueError, r"\(1, 2, 2, 3\)"),
    "no rows": (lambda: batch(np.ones((0, 2, 3), "u1")), ValueError, r"image 2 .* \(0, 2, 3\)"),
    "no channels": (lambda: batch(np.ones((2, 2, 0), "u1")), ValueError, r"image 2 .* \(2, 2, 0\)"),
    "no size": (lambda: shapes.batch_images(images()), TypeError, "batch_images: give exactly one of"),
    "size 0": (lambda: batch(size=0), ValueError, "batch_images: size .* got 0"),
    "too small": (lambda: batch(size=5), ValueError, r"image 1 of 3 x 6 pixels is larger than size \(5, 5\)"),
    "empty buckets": (lambda: batch(size=None, buckets=[]), ValueError, "batch_images: buckets is empty"),
    "mode": (lambda: batch(mode="shrink"), ValueError, "'shrink'"),
    "memory format": (lambda: batch(memory_format=torch.channels_last_3d), ValueError, "channels_last_3d"),
    "two means": (lambda: batch(mean=(1, 2)), ValueError, r"mean has the shape \(2,\) for 3 channels"),
    "a square of means": (lambda: batch(mean=np.ones((3, 3))), ValueError, r"mean has the shape \(3, 3\)"),
    "nan mean": (lambda: batch(mean=float("nan")), ValueError, "mean must be finite in float32, got nan"),
    "large mean": (lambda: batch(mean=1e300), ValueError, r"mean must be finite in float32, got 1e\+300"),
    "a word": (lambda: batch(mean="grey"), TypeError, "mean must be a number or numbers, got 'grey'"),
    "four stds": (lambda: batch(std=(1, 1, 1, 1)), ValueError, r"std has the shape \(4,\)"),
    "std 0": (lambda: batch(std=(1, 0, 1)), ValueError, r"std must be positive in float32, got \(1, 0, 1\)"),
    "std -1": (lambda: batch(std=-1), ValueError, "std must be positive in float32, got -1"),
    "std that rounds to 0": (
        lambda: batch(std=1e-60),
        ValueError,
        "std must be positive in float32, got 1e-60",
    ),
    "infinite std": (lambda: batch(std=float("inf")), ValueError, "std must be finite"),
    "scale 0": (lambda: batch(scale=0), ValueError, "scale must not be zero in float32, got 0"),
    "two scales": (lambda: batch(scale=(1, 2)), ValueError, r"scale must be one number, got \(1, 2\)"),
    "nan scale": (lambda: batch(scale=float("nan")), ValueError, "scale must be finite"),
    "huge scale": (lambda: batch(scale=10**400), TypeError, "scale must be a number"),
    "normalised bytes": (
        lambda: batch(mean=0.5, dtype=torch.uint8),
        TypeError,
        "uint8 images that are normalised cannot become torch.uint8, only torch.float32",
    ),
    "bytes as int64": (
        lambda: batch(dtype=torch.int64),
        TypeError,
        "cannot become torch.int64.* stay torch.uint8",
    ),
    "bytes as float64": (lambda: batch(dtype=torch.float64), TypeError, "cannot become torch.float64"),
    "floats as bytes": (
        lambda: shapes.batch_images(images("float32"), 8, dtype=torch.uint8),
        TypeError,
        "float32 images cannot become torch.uint8",
    ),
    "two values": (
        lambda: batch(value=(1, 2)),
        ValueError,
        r"batch_images: value has \(2,\) entries for 3 channels",
    ),
    "value of text": (
        lambda: batch(value="x"),
        TypeError,
        "batch_images: value must be a number or numbers, got 'x'",
    ),
    "ragged value": (
        lambda: batch(value=([1], [2, 3])),
        TypeError,
        "batch_images: value must be a number or numbers",
    ),
    "value 256": (lambda: batch(value=256), ValueError, "value 256 is not a number of torch.uint8"),
    "value 0.5": (lambda: batch(value=0.5), ValueError, "value 0.5 is not a number"),
    "nan value of bytes": (lambda: batch(value=float("nan")), ValueError, "value nan is not"),
    "large value": (
        lambda: batch(value=1e6, dtype=torch.float16),
        ValueError,
        "value 1000000.0 is too large for torch.float16",
    ),
    "out of another type": (lambda: batch(out=[0]), TypeError, "out is a list"),
    "out of another dtype": (
        lambda: batch(out=torch.zeros(2, 3, 8, 8)),
        TypeError,
        "out is torch.float32 on cpu, expected torch.uint8",
    ),
    "out elsewhere": (
        lambda: batch(out=torch.zeros(2, 3, 8, 8, dtype=torch.uint8, device="meta")),
        TypeError,
        "out is torch.uint8 on meta",
    ),
    "out with a gradient": (
        lambda: batch(scale=1, out=torch.zeros(2, 3, 8, 8, requires_grad=True)),
        TypeError,
        "requires grad",
    ),
    "out of another shape": (
        lambda: batch(out=torch.zeros(3, 3, 8, 8, dtype=torch.uint8)),
        ValueError,
        r"out has the shape \(3, 3, 8, 8\), the batch has \(2, 3, 8, 8\)",
    ),
    "out of another format": (
        lambda: batch(out=torch.zeros(2, 3, 8, 8, dtype=torch.uint8), memory_format=torch.channels_last),
        ValueError,
        r"strides \(192, 64, 8, 1\), which is not torch.channels_last",
    ),
    "expanded out": (
        lambda: batch(out=torch.zeros(1, 3, 8, 8, dtype=torch.uint8).expand(2, 3, 8, 8)),
        ValueError,
        r"strides \(0, 64, 8, 1\)",
    ),
    "read-only out": (lambda: batch(out=READ_ONLY), ValueError, "out is read-only"),
}


@pytest.mark.parametrize("name", CASES)
def test_errors(name: str) -> None:
    call, error, message = CASES[name]
    with pytest.raises(error, match=message) as raised:
        call()
    assert str(raised.value).startswith("batch_images: ")


@pytest.mark.parametrize("backwards", [False, True])
def test_out_that_shares_memory_with_an_image(backwards: bool) -> None:
    room = torch.zeros(2 * 3 * 8 * 8 + 4, dtype=torch.uint8)
    out = room[: 2 * 3 * 8 * 8].view(2, 3, 8, 8)
    shared = room.numpy()[-7:-1].reshape(1, 2, 3)
    shared = shared[:, ::-1] if backwards else shared
    with pytest.raises(ValueError, match="out shares memory with image 1"):
        shapes.batch_images([np.ones((2, 2, 3), np.uint8), shared], 8, out=out)
    after = room.numpy()[-3:].reshape(1, 1, 3)
    assert shapes.batch_images([np.ones((2, 2, 3), np.uint8), after], 8, out=out).images is out


@pytest.mark.parametrize(
    "bad",
    [np.ones((2, 2, 1), "u1"), np.ones((9, 2, 3), "u1"), np.ones((2, 2, 3), "f4"), OBJECTS, "image", None],
    ids=lambda x: str(getattr(x, "shape", x)),
)
def test_nothing_is_written(bad: Any) -> None:
    out = torch.full((3, 3, 8, 8), 7, dtype=torch.uint8)
    version = out._version
    with pytest.raises((TypeError, ValueError)):
        batch(bad, out=out)
    assert (out == 7).all() and out._version == version


def test_a_nan_is_a_pixel_like_others() -> None:
    x = np.array([[[np.nan, np.inf, 1.0]]], np.float32)
    got = shapes.batch_images([x], 2, mean=0.5, std=2, dtype=torch.bfloat16, value=float("nan")).images
    assert got[0, 0, 0, 0].isnan() and got[0, 1, 0, 0].isposinf() and got[0, 2, 0, 0] == 0.25
    assert got.isnan().sum() == 9 + 1


ONES = np.ones(3, np.float32)


@pytest.mark.parametrize(
    "change",
    [
        {"arrays": []},
        {"arrays": [np.ones((2, 2, 3), "u1")]},
        {"arrays": ()},
        {"batch": np.zeros((1, 3, 4, 4))},
        {"batch": np.zeros((1, 3, 4, 8), np.float32)[..., ::2]},
        {"batch": np.zeros((3, 4, 4), np.float32)},
        {"batch": np.zeros((2, 3, 4, 4), np.float32)},
        {"batch": np.zeros((1, 4, 3, 4), np.float32)},
        {"batch": np.zeros((1, 3, 1, 4), np.float32)},
        {"batch": None},
        {"dtype": "float64"},
        {"dtype": "uint8"},
        {"dtype": "bfloat16"},
        {"dtype": "int"},
        {"dtype": 3},
        {"padding": np.zeros(2, np.float32)},
        {"padding": np.zeros(3)},
        {"padding": (0, 0, 0)},
        {"scale": None},
        {"scale": "1"},
        {"mean": np.zeros(2, np.float32)},
        {"mean": [0, 0, 0]},
        {"std": np.ones(3)},
        {"std": np.ones(6, np.float32)[::2]},
    ],
    ids=str,
)
def test_the_extension_checks_by_itself(change: dict[str, Any]) -> None:
    call: dict[str, Any] = {
        "arrays": (np.ones((2, 2, 3), np.uint8),),
        "batch": np.full((1, 3, 4, 4), 5, np.float32),
        "dtype": "float32",
        "last": False,
        "padding": ONES,
        "scale": 1.0,
        "mean": ONES,
        "std": ONES,
    }
    _np.fill(*call.values())
    assert (call["batch"][:, :, :2, :2] == 0).all() and call["batch"].sum() == 3 * 12
    call["batch"][...] = 5
    call |= change
    with pytest.raises((TypeError, ValueError)):
        _np.fill(*call.values())
    assert "batch" in change or (call["batch"] == 5).all()


def test_an_unknown_tier() -> None:
    before = _np.isa_current()
    for bad, error in (("sse9", ValueError), (3, TypeError)):
        with pytest.raises(error):
            _np.isa_limit(bad)
    assert _np.isa_current() == before
