# SPDX-License-Identifier: MIT
"""batch_images: the bits of a plain NumPy expression, for every dtype, stride and size, on every tier."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import opswap
from inputs import COLUMNS
from opswap import shapes

Array = NDArray[Any]

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
GIVEN = ("uint8", "uint16", "float16", "float32", "float64")
KEPT = {"uint8": torch.uint8, "uint16": torch.uint16, "float16": torch.float16, "float32": torch.float32}
SCALES = {"uint8": 1 / 255, "uint16": 1 / 65535}
FORMATS = (torch.contiguous_format, torch.channels_last)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = ((20, 30), (25, 10), (8, 9), (1, 1), (1, 40), (32, 1), (32, 40))


def image(shape: Sequence[int], dtype: str, generator: np.random.Generator) -> Array:
    """Random elements; floating point ones with NaN, infinities, -0.0 and denormal numbers among them."""
    if dtype.startswith("uint"):
        return generator.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)
    x = generator.normal(size=shape)
    for special in (np.nan, np.inf, -np.inf, -0.0, 1e-40, 1e30):
        x = np.where(generator.random(shape) < 0.02, special, x)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def _at_odd_address(x: Array) -> Array:
    room = np.empty(x.nbytes + 1, np.uint8)
    moved = room[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


def _read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


# The same image lying in memory in other ways; those of three dimensions leave others as they are.
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "plain": lambda x: x,
    "fortran": np.asfortranarray,
    "rows backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "columns backwards": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "channels backwards": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "channels first": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -1, 0)), 0, -1),
    "crop": lambda x: np.pad(x, [(1, 2), (3, 1)] + [(0, 0)] * (x.ndim - 2))[1:-2, 3:-1],
    "every second": lambda x: x.repeat(2, 0).repeat(2, 1)[::2, ::2],
    "some channels": lambda x: np.concatenate((x, x), -1)[..., : x.shape[-1]] if x.ndim == 3 else x,
    "odd address": _at_odd_address,
    "read-only": _read_only,
}


def reference(
    images: Sequence[Array],
    size: tuple[int, int],
    dtype: torch.dtype,
    scale: float | None,
    mean: Any = 0,
    std: Any = 1,
    value: Any = 0,
) -> Tensor:
    """The batch (N, C, H, W) by NumPy's expression, rounded by torch; a scale of None copies elements."""
    planes = []
    for x in images:
        x = x if x.ndim == 3 else x[..., None]
        with np.errstate(all="ignore"):
            if scale is not None:
                x = x.astype(np.float32)
                x = (x * np.float32(scale) - np.float32(mean)) / np.float32(std)
            y = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
        place = torch.from_numpy(np.broadcast_to(np.asarray(value, np.float64), (*size, x.shape[2])).copy())
        place = place.to(dtype)
        place[: x.shape[0], : x.shape[1]] = y
        planes.append(place.permute(2, 0, 1))
    return torch.stack(planes)


def assert_same_bits(got: Tensor, want: Tensor) -> None:
    """Equal shapes, dtypes and bits; any NaN is the same as another."""
    assert got.shape == want.shape and got.dtype == want.dtype
    if got.is_floating_point():
        assert torch.equal(got.isnan(), want.isnan())
        got, want = got.nan_to_num(7, torch.inf, -torch.inf), want.nan_to_num(7, torch.inf, -torch.inf)
        assert torch.equal(got.signbit(), want.signbit())
    else:
        got, want = got.int(), want.int()  # torch does not compare uint16
    assert torch.equal(got, want)


def factors(channels: int, generator: np.random.Generator) -> tuple[Array, Array]:
    return generator.normal(size=channels), generator.uniform(0.05, 3, channels)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", GIVEN)
def test_as_numpy(tier: str, given: str, seed: int) -> None:
    """Images (h, w, channels), or (h, w) for 0 channels."""
    generator = np.random.default_rng(seed)
    for channels, memory_format in itertools.product((0, 1, 2, 3, 4, 5, 17), FORMATS):
        images = [image((*s, channels) if channels else s, given, generator) for s in SIZES]
        mean, std = factors(max(channels, 1), generator)
        value = generator.normal(size=max(channels, 1))
        for dtype in FLOATS:
            options = {"mean": mean, "std": std, "value": value, "dtype": dtype}
            padded = shapes.batch_images(images, (33, 41), memory_format=memory_format, **options)
            want = reference(images, (33, 41), dtype, SCALES.get(given, 1), mean, std, value)
            assert_same_bits(padded.images, want)
            assert padded.images.is_contiguous(memory_format=memory_format)
            assert padded.sizes == padded.original_sizes == SIZES and set(padded.modes) == {"kept"}


@pytest.mark.parametrize("given", KEPT)
def test_elements_as_they_are(tier: str, given: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for channels, memory_format in itertools.product((0, 1, 2, 3, 4, 5), FORMATS):
        images = [image((*s, channels) if channels else s, given, generator) for s in SIZES]
        value = np.arange(1, max(channels, 1) + 1)
        padded = shapes.batch_images(images, divisor=(33, 41), value=value, memory_format=memory_format)
        assert_same_bits(padded.images, reference(images, (33, 41), KEPT[given], None, value=value))
        for x, y in zip(shapes.unpad_images(padded), images, strict=True):
            assert x.permute(1, 2, 0).numpy().tobytes() == y.tobytes(), "the bits of a NaN too"


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("given", GIVEN)
def test_every_layout(given: str, layout: str, memory_format: torch.memory_format, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for channels in (0, 1, 3, 4):
        images = [image((*s, channels) if channels else s, given, generator) for s in SIZES]
        before = [x.copy() for x in images]
        moved = [LAYOUTS[layout](x) for x in images]
        own = factors(max(channels, 1), generator)
        for dtype in (None, *FLOATS):
            kept = dtype is None and given in KEPT
            options = {} if dtype is None else {"mean": own[0], "std": own[1], "dtype": dtype}
            padded = shapes.batch_images(moved, (32, 40), memory_format=memory_format, **options)
            scale = None if kept else SCALES.get(given, 1)
            mean, std = (0, 1) if dtype is None else own
            to = dtype or KEPT.get(given, torch.float32)
            assert_same_bits(padded.images, reference(images, (32, 40), to, scale, mean, std))
        assert all(x.tobytes() == y.tobytes() for x, y in zip(images, before, strict=True))


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("given", GIVEN)
def test_rows_longer_than_what_is_staged_at_once(
    given: str, memory_format: torch.memory_format, seed: int
) -> None:
    """Images whose pixels do not follow each other, or that become floats first, go through 16 KiB at a time."""
    generator = np.random.default_rng(seed)
    images = [image((2, 7001, 3), given, generator).repeat(2, 1)[:, ::2] for _ in range(2)]
    mean, std = factors(3, generator)
    options = {"mean": mean, "std": std, "dtype": torch.float32, "memory_format": memory_format}
    got = shapes.batch_images(images, (2, 7003), **options).images
    assert_same_bits(got, reference(images, (2, 7003), torch.float32, SCALES.get(given, 1), mean, std))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_every_width(tier: str, channels: int, seed: int) -> None:
    """Rows around the widths of vectors, without padding, so that rows follow each other, and with a little."""
    generator = np.random.default_rng(seed)
    for width, more in itertools.product(COLUMNS, (0, 1)):
        images = [image((2, width, channels), "uint8", generator)]
        for dtype in (torch.float32, torch.float16, torch.uint8):
            options = {} if dtype is torch.uint8 else {"mean": 0.1, "std": 0.7, "dtype": dtype}
            scale = None if dtype is torch.uint8 else 1 / 255
            got = shapes.batch_images(images, (2, width + more), **options).images
            assert_same_bits(got, reference(images, (2, width + more), dtype, scale, 0.1, 0.7))


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_rounding_or_three(tier: str, dtype: torch.dtype, seed: int) -> None:
    """Large batches of bytes may be computed by one fused operation, if no byte of any channel gets other bits."""
    generator = np.random.default_rng(seed)
    levels = np.arange(256, dtype=np.uint8).repeat(64).reshape(128, 128)
    images = [np.stack((levels, levels[::-1], levels.T), -1)]
    for memory_format in FORMATS * (1 if tier.startswith("portable") else 10):
        mean, std = factors(3, generator)
        scale = generator.uniform(0.001, 1)
        options = {"mean": mean, "std": std, "scale": scale, "dtype": dtype, "memory_format": memory_format}
        got = shapes.batch_images(images, 128, **options).images
        assert_same_bits(got, reference(images, (128, 128), dtype, scale, mean, std))


@pytest.mark.parametrize("channels", [1, 3])
def test_every_width_of_large_batches(tier: str, channels: int, seed: int) -> None:
    """As test_every_width, with pixels enough for the fused operation, each channel with its own factors."""
    generator = np.random.default_rng(seed)
    mean, std = np.array(MEAN[:channels]), np.array(STD[:channels])
    for width, more in itertools.product(COLUMNS, (0, 1)):
        size = (16384 // width + 1, width + more)
        images = [image((size[0], width, channels), "uint8", generator)]
        for dtype, memory_format in itertools.product((torch.bfloat16, torch.float32), FORMATS):
            got = shapes.batch_images(
                images, size, mean=mean, std=std, dtype=dtype, memory_format=memory_format
            ).images
            assert_same_bits(got, reference(images, size, dtype, 1 / 255, mean, std))


def test_as_a_transform_of_torch(seed: int) -> None:
    """The steps of torchvision's ToDtype(torch.float32, scale=True) and Normalize."""
    x = image((37, 53, 3), "uint8", np.random.default_rng(seed))
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))
    want = torch.from_numpy(x).permute(2, 0, 1).to(torch.float32).mul_(1 / 255).sub_(mean).div_(std)
    assert torch.equal(shapes.batch_images([x], (37, 53), mean=MEAN, std=STD).images[0], want)


def test_scale_alone_and_dtype_alone() -> None:
    x = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert torch.equal(shapes.batch_images([x], 16, scale=1).images, torch.arange(256.0).view(1, 1, 16, 16))
    want = (torch.arange(256, dtype=torch.float32) * np.float32(1 / 255)).view(1, 1, 16, 16)
    for dtype in FLOATS:
        assert torch.equal(shapes.batch_images([x], 16, dtype=dtype).images, want.to(dtype))
    deep = np.full((1, 1), 65535, np.uint16)
    assert shapes.batch_images([deep], 1, dtype=torch.float32).images.item() == pytest.approx(1)
    assert shapes.batch_images([deep.astype(np.float64)], 1).images.dtype == torch.float32


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, ...]:
    given = draw(st.sampled_from(GIVEN))
    channels = draw(st.integers(0, 6))
    sizes = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 70)), min_size=1, max_size=4))
    layouts = [draw(st.sampled_from(sorted(LAYOUTS))) for _ in sizes]
    more = draw(st.tuples(st.integers(0, 9), st.integers(0, 35)))
    dtype = draw(st.sampled_from((None, *FLOATS)))
    memory_format = draw(st.sampled_from(FORMATS))
    tier = draw(st.sampled_from((*opswap.isa.available(), *opswap.isa.hidden())))
    return given, channels, sizes, layouts, more, dtype, memory_format, tier, draw(st.integers(0, 2**32 - 1))


@settings(deadline=None, max_examples=150)
@given(calls())
def test_any_call(call: tuple[Any, ...]) -> None:
    given_dtype, channels, sizes, layouts, more, dtype, memory_format, tier, number = call
    generator = np.random.default_rng(number)
    plain = [image((*s, channels) if channels else s, given_dtype, generator) for s in sizes]
    images = [LAYOUTS[name](x) for name, x in zip(layouts, plain, strict=True)]
    mean, std = factors(max(channels, 1), generator)
    size = max(h for h, _ in sizes) + more[0], max(w for _, w in sizes) + more[1]
    options: dict[str, Any] = {"memory_format": memory_format, "value": generator.integers(0, 9)}
    if dtype is not None:
        options |= {"mean": mean, "std": std, "dtype": dtype}
    scale = None if dtype is None and given_dtype in KEPT else SCALES.get(given_dtype, 1)
    with opswap.isa.limit(tier):
        got = shapes.batch_images(images, size, **options).images
    want_dtype = dtype or KEPT.get(given_dtype, torch.float32)
    used = (mean, std) if dtype is not None else (0, 1)
    assert_same_bits(got, reference(plain, size, want_dtype, scale, *used, options["value"]))


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.uint8, *FLOATS])
def test_out_and_nothing_around_it(
    tier: str, dtype: torch.dtype, memory_format: torch.memory_format, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    images = [image((h, w, 3), "uint8", generator) for h, w in SIZES]
    options = {"mean": MEAN, "std": STD, "dtype": dtype} if dtype in FLOATS else {}
    want = shapes.batch_images(images, (32, 40), memory_format=memory_format, value=1, **options).images
    for first in (1, 3, 16):
        room = torch.full((want.numel() + 64,), 77, dtype=dtype)
        out = room[first : first + want.numel()].as_strided(want.shape, want.stride(), first)
        version = out._version
        got = shapes.batch_images(
            images, (32, 40), memory_format=memory_format, value=1, out=out, **options
        ).images
        assert got is out and torch.equal(out, want) and out._version > version
        assert (room[:first] == 77).all() and (room[first + want.numel() :] == 77).all()


def test_out_as_an_array() -> None:
    x = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    out = np.zeros((1, 3, 4, 4), np.float32)
    got = shapes.batch_images([x], 4, scale=1, out=out).images
    assert got.data_ptr() == out.ctypes.data and out[0, 1, :2, :2].tolist() == [[1, 4], [7, 10]]
    last = np.zeros((1, 4, 4, 3), np.float32)
    shapes.batch_images([x], 4, scale=1, memory_format=torch.channels_last, out=last.transpose(0, 3, 1, 2))
    assert np.array_equal(last.transpose(0, 3, 1, 2), out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None])
@pytest.mark.parametrize("given", ["uint8", "float32", "uint16"])
def test_no_byte_before_or_after_an_image_is_read(tier: str, given: str, dtype: torch.dtype | None) -> None:
    """The image ends where a page begins that nobody may read, then begins after such a page."""
    page, memory = mmap.PAGESIZE, mmap.mmap(-1, 3 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    middle = np.frombuffer(memory, np.uint8)[page : 2 * page]
    middle[:] = np.arange(page) % 127
    for locked in (0, 2):
        assert protect(address + locked * page, page, 0) == 0
        for channels, width in itertools.product((1, 2, 3, 4, 5), (1, 7, 8, 9, 16, 17, 33)):
            size = 2 * width * channels * np.dtype(given).itemsize
            part = middle[:size] if locked == 0 else middle[page - size :]
            x = part.view(given).reshape(2, width, channels)
            for out_width in (width, width + 1):
                options = {} if dtype is None else {"mean": 0.5, "dtype": dtype}
                got = shapes.batch_images([x], (2, out_width), **options).images
                scale = None if dtype is None else SCALES.get(given, 1)
                want = reference([x.copy()], (2, out_width), dtype or KEPT[given], scale, 0.5 if dtype else 0)
                assert_same_bits(got, want)
        assert protect(address + locked * page, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["crop", "resize"])
@pytest.mark.parametrize("given", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("channels", [0, 3])
def test_larger_images_become_as_those_of_pad_images(mode: str, given: str, channels: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    images = [image((*s, channels) if channels else s, "uint8", generator).astype(given) for s in SIZES]
    tensors = [torch.from_numpy(x if channels else x[..., None]).permute(2, 0, 1) for x in images]
    want = shapes.pad_images(tensors, (22, 16), mode=mode)
    got = shapes.batch_images([_read_only(x) for x in images], (22, 16), mode=mode)
    assert_same_bits(got.images, want.images)
    assert got[1:] == want[1:]


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"size": 40}, (40, 40)),
        ({"divisor": (8, 32)}, (32, 64)),
        ({"buckets": [(64, 64), 40, (16, 99)]}, (40, 40)),
    ],
)
def test_sizes(options: dict[str, Any], want: tuple[int, int]) -> None:
    images = [np.zeros((*s, 3), np.uint8) for s in SIZES]
    assert shapes.batch_images(images, **options).images.shape == (len(SIZES), 3, *want)


def test_results_do_not_depend_on_the_default_device_and_dtype() -> None:
    x = np.full((2, 3, 3), 200, np.uint8)
    want = shapes.batch_images([x], 4, mean=MEAN, std=STD, value=0.1).images
    try:
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        got = shapes.batch_images([x], 4, mean=MEAN, std=STD, value=0.1).images
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.equal(got, want)


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("last", [0, 1])
def test_padding_of_channels_that_differ_late(
    last: int, memory_format: torch.memory_format, seed: int
) -> None:
    """Only the last channel, or all but the first one, is padded with other bytes than 0."""
    generator = np.random.default_rng(seed)
    for channels in (2, 3, 4, 7):
        images = [image((*size, channels), "uint8", generator) for size in SIZES]
        value = [0.0] * (channels - 1) + [1.0] if last else [0.0] + [1.0] * (channels - 1)
        for dtype in (torch.uint8, *FLOATS):
            options = {"value": value, "dtype": dtype, "memory_format": memory_format}
            got = shapes.batch_images(images, (33, 47), **options).images
            want = torch.tensor(value, dtype=dtype).view(-1, 1, 1)
            for place, (h, w) in zip(got, SIZES, strict=True):
                assert torch.equal(place[:, h:], want.expand_as(place[:, h:]))
                assert torch.equal(place[:, :h, w:], want.expand_as(place[:, :h, w:]))


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("size", [(61, 200), (64, 65), (3, 5000), (9, 1000), (33, 20)])
def test_narrow_padding_beside_many_rows(
    tier: str, size: tuple[int, int], memory_format: torch.memory_format, seed: int
) -> None:
    """Padding beside a row is written in steps, whose ends the next row covers if it is long enough."""
    generator = np.random.default_rng(seed)
    height, width = size
    lacking = [(0, 1), (2, 7), (0, 0), (1, 64), (2, 60), (1, 21), (1, 22), (0, 128), (0, width - 5), (1, 256)]
    sizes = [(height - down, width - less) for down, less in lacking if less < width]
    images = [image((*s, 3), "uint8", generator) for s in sizes]
    forms = (images, [x[:, ::-1] for x in images], [x[..., ::-1] for x in images])
    value = (7, 7, 9)
    for form in forms:
        plain = [x.copy() for x in form]
        got = shapes.batch_images(form, size, value=value, memory_format=memory_format).images
        assert_same_bits(got, reference(plain, size, torch.uint8, None, value=value))
        for dtype in (torch.bfloat16, torch.float32):
            options = {"mean": MEAN, "std": STD, "value": value, "dtype": dtype}
            got = shapes.batch_images(form, size, memory_format=memory_format, **options).images
            assert_same_bits(got, reference(plain, size, dtype, 1 / 255, MEAN, STD, value))


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_batches_beyond_the_caches(dtype: torch.dtype, memory_format: torch.memory_format, seed: int) -> None:
    """Some CPUs write them in strips of rows: whole images, padded ones, and one that ends within the first strip."""
    generator = np.random.default_rng(seed)
    images = [
        image((*s, 3), "uint8", generator) for s in ((701, 1040), (350, 333), (1, 1), (701, 1039), (60, 1040))
    ]
    images[3] = images[3][::-1, :, ::-1]
    options = {} if dtype is torch.uint8 else {"mean": MEAN, "std": STD}
    want = reference(
        images, (701, 1040), dtype, None if dtype is torch.uint8 else 1 / 255, *options.values(), value=3
    )
    for out in (None, torch.empty(5 * 3 * 701 * 1040 + 1, dtype=dtype)[1:].view(5, 3, 701, 1040)):
        if out is not None and memory_format is torch.channels_last:
            out = out.view(5, 701, 1040, 3).permute(0, 3, 1, 2)
        given = {"value": 3, "dtype": dtype, "memory_format": memory_format, "out": out, **options}
        got = shapes.batch_images(images, (701, 1040), **given).images
        assert_same_bits(got, want)
