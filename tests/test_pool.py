# SPDX-License-Identifier: MIT
"""Max pools against torch's, bit for bit: values, indices, gradients, layouts, memory formats, saved
bytes.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as T

import opswap
from inputs import LAYOUTS, channels_last_of, same_bits, values
from nearness import assert_within_roundings
from opswap import _core
from opswap import functional as F
from opswap.ops.pool import max_pool
from pool_cases import FLOATS, INTEGERS, Case, alike, gradient, random_case, ties
from step import saved_bytes

OURS = {2: F.max_pool2d, 3: F.max_pool3d}
TORCH = {2: T.max_pool2d, 3: T.max_pool3d}
OPERATORS = torch.ops.opswap
LPRNET = (
    ((1, 3, 3), (1, 1, 1), (2, 64, 9, 14)),
    ((1, 3, 3), (2, 1, 2), (2, 35, 9, 20)),
    ((1, 3, 3), (4, 1, 2), (1, 66, 8, 33)),
)
_DTYPE_NAMES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}


def compare(case: Case, dtype: torch.dtype, layout: str) -> None:
    """Values, indices and gradient of one case; where torch refuses it, ours must."""
    spatial = len(case.kernel_size)
    ours, theirs = OURS[spatial], TORCH[spatial]
    dense = ties(case.size, dtype)
    x = LAYOUTS[layout](dense)
    dense = x.contiguous()
    try:
        want, want_indices = theirs(dense, *case.window, return_indices=True)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            ours(x, *case.window)
        return
    got, indices = ours(x, *case.window, return_indices=True)
    assert alike(got, want), (case, layout)
    assert torch.equal(indices, want_indices), (case, layout)
    assert alike(ours(x, *case.window), want), (case, layout)
    if dtype.is_floating_point:
        grad = torch.randn(want.shape).to(dtype)
        want = gradient(theirs, dense, grad, *case.window)
        assert same_bits(gradient(ours, x, grad, *case.window), want), (case, layout)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("spatial", [2, 3])
def test_random_windows_equal_torch(spatial: int, dtype: torch.dtype, tier: str) -> None:
    for layout in LAYOUTS:
        for _ in range(4):
            compare(random_case(spatial), dtype, layout)


@pytest.mark.parametrize("name", sorted(_core.pool_variants()))
def test_every_variant_runs(name: str, tier: str) -> None:
    operation, form, dtype_name = name.rsplit("_", 2)
    x = values((2, 5, 6, 7), _DTYPE_NAMES[dtype_name])
    x = x if form == "planes" else x.contiguous(memory_format=torch.channels_last)
    if operation.endswith("backward") or operation == "amax":
        x.requires_grad_(x.is_floating_point())
    run = {
        "max": lambda: F.max_pool2d(x, 2),
        "avg": lambda: F.avg_pool2d(x, 2),
        "adaptive_max": lambda: F.adaptive_max_pool2d(x, 2),
        "amax": lambda: F.global_max_pool2d(x, ties="split"),
    }[operation.removesuffix("_backward")]
    before = _core.pool_variants()[name]
    output = run()
    if name.startswith("avg_backward") and not x.is_floating_point():
        torch.ops.opswap.avg_pool_backward(
            output, x.shape, [2, 2], [2, 2], [0, 0], False, True, None, 1, suggested(x)
        )
    elif operation.endswith("backward"):
        output.sum().backward()
    assert _core.pool_variants()[name] > before


def suggested(x: torch.Tensor) -> torch.memory_format:
    return torch.contiguous_format if x.is_contiguous() else channels_last_of(x.dim())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("width", [1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 65, 92])
def test_widths_around_the_vectors(width: int, memory_format: torch.memory_format, tier: str) -> None:
    for dtype in FLOATS:
        for kernel, stride, padding in ((3, 2, 1), (3, 1, 0), (2, 2, 0), (5, 3, 2)):
            size = (2, width, 7, 9) if memory_format is torch.channels_last else (2, 3, 7, width + kernel - 1)
            x = ties(size, dtype).contiguous(memory_format=memory_format)
            window = (kernel, stride, padding)
            want, indices = T.max_pool2d(x, *window, return_indices=True)
            got, got_indices = F.max_pool2d(x, *window, return_indices=True)
            assert alike(got, want) and torch.equal(indices, got_indices), (dtype, window)
            grad = torch.randn(want.shape).to(dtype)
            want = gradient(T.max_pool2d, x, grad, *window)
            assert same_bits(gradient(F.max_pool2d, x, grad, *window), want), (dtype, window)


@pytest.mark.parametrize("kernel,stride,size", LPRNET)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_volumes_of_one_plane_a_channel(
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    size: tuple[int, ...],
    dtype: torch.dtype,
    channels_last: bool,
    tier: str,
) -> None:
    """MaxPool3d on a batch of images, in the format that torch takes and in the one that it refuses."""
    dense = ties(size, dtype)
    x = dense.contiguous(memory_format=torch.channels_last) if channels_last else dense
    want, want_indices = T.max_pool3d(dense, kernel, stride, return_indices=True)
    got, indices = F.max_pool3d(x, kernel, stride, return_indices=True)
    assert alike(got, want) and torch.equal(indices, want_indices)
    assert got.is_contiguous(memory_format=suggested(x))
    grad = torch.randn(want.shape).to(dtype)
    got = gradient(F.max_pool3d, x, grad, kernel, stride)
    assert same_bits(got, gradient(T.max_pool3d, dense, grad, kernel, stride))
    assert got.is_contiguous(memory_format=suggested(x))


@pytest.mark.parametrize("spatial", [2, 3])
def test_unbatched(spatial: int) -> None:
    x = ties((5, 6, 7, 8)[: spatial + 1], torch.float32)
    permuted = x.permute(1, 2, 0).contiguous().permute(2, 0, 1) if spatial == 2 else x
    for input in (x, permuted):
        got, indices = OURS[spatial](input, 2, 1, 1, return_indices=True)
        want, want_indices = TORCH[spatial](input, 2, 1, 1, return_indices=True)
        assert alike(got, want) and torch.equal(indices, want_indices) and got.stride() == want.stride()


def test_deep_windows_on_images_keep_channels_last() -> None:
    dense = ties((3, 6, 7, 8), torch.float32)
    x = dense.contiguous(memory_format=torch.channels_last)
    got, indices = F.max_pool3d(x, (2, 3, 3), (2, 1, 2), (1, 0, 1), return_indices=True)
    want, want_indices = T.max_pool3d(dense, (2, 3, 3), (2, 1, 2), (1, 0, 1), return_indices=True)
    assert alike(got, want) and torch.equal(indices, want_indices)
    assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("shape", [(2, 4, 6, 6), (2, 1, 6, 6), (2, 4, 1, 1), (1, 4, 6, 6), (2, 4, 5, 6, 6)])
def test_memory_format_is_torchs(shape: tuple[int, ...], layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(shape)).requires_grad_()
    spatial = len(shape) - 2
    got, want = OURS[spatial](x, 1, 2), TORCH[spatial](x, 1, 2)
    assert got.stride() == want.stride()
    strides = [torch.autograd.grad(y.sum(), x)[0].stride() for y in (got, want)]
    assert strides[0] == strides[1]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "window",
    [
        *(((1, 3, 3), 1), ((1, 3, 3), (1, 2, 2), (0, 1, 1)), ((1, 3, 3), (2, 1, 2)), ((1, 2, 2), 2)),
        *((3, 2, 1), ((1, 3, 2), 1), ((1, 4, 5), (4, 1, 3)), ((1, 2, 2), 2, 0, 1, True)),
    ],
    ids=str,
)
def test_gradients_of_every_width(window: tuple[object, ...], dtype: torch.dtype, tier: str) -> None:
    """Whole vectors, what is left of a row after them, and rows that are cut into strips."""
    for width in (1, 2, 7, 8, 33, 46, 70, 92, 270, 541):
        dense = ties((2, 9, 4, 7, width) if window[0] == 3 else (2, 9, 7, width), dtype)
        try:
            want = T.max_pool3d(dense, *window)
        except RuntimeError:
            continue
        grad = torch.randn(want.shape).to(dtype)
        want = gradient(T.max_pool3d, dense, grad, *window)
        memory_format = torch.channels_last_3d if dense.dim() == 5 else torch.channels_last
        for x in (dense, dense.contiguous(memory_format=memory_format)):
            assert same_bits(gradient(F.max_pool3d, x, grad, *window), want), (width, x.stride())


def test_last_nan_wins_and_first_maximum_else(tier: str) -> None:
    nan = float("nan")
    plane = torch.tensor(
        [[1.0, nan, 3.0, 3.0], [nan, 5.0, 3.0, 3.0], [-0.0, 0.0, -1.0, -2.0], [0.0, 0.0, -2.0, -1.0]]
    )
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = plane.expand(1, 19, 4, 4).contiguous(memory_format=memory_format)
        output, indices = F.max_pool2d(x, 2, return_indices=True)
        assert indices[0, :, 0, 0].unique().tolist() == [4]
        assert indices[0, :, 0, 1].unique().tolist() == [2]
        assert indices[0, :, 1, 0].unique().tolist() == [8]
        assert output[0, :, 1, 0].signbit().all()
        assert indices[0, :, 1, 1].unique().tolist() == [10]
    lowest = torch.full((1, 9, 4, 4), -float("inf"))
    for theirs, ours in zip(
        *(f(lowest, 3, 2, 1, return_indices=True) for f in (T.max_pool2d, F.max_pool2d)), strict=True
    ):
        assert torch.equal(theirs, ours)


def test_windows_without_a_tap_in_the_input() -> None:
    """The dilation steps over the whole input: torch's value and index, and no gradient (torch's index is
    outside).
    """
    x = torch.arange(8.0).view(1, 2, 1, 4)
    arguments = ((2, 1), 1, (1, 0), (2, 1))
    for memory_format in (torch.contiguous_format, torch.channels_last):
        leaf = x.contiguous(memory_format=memory_format).requires_grad_()
        output, indices = F.max_pool2d(leaf, *arguments, return_indices=True)
        want, want_indices = T.max_pool2d(x, *arguments, return_indices=True)
        assert torch.equal(output, want) and torch.equal(indices, want_indices)
        (grad,) = torch.autograd.grad(output.nan_to_num().sum(), leaf, create_graph=True)
        assert not grad.any()
    geometry = ([2, 1], [1, 1], [1, 0], [2, 1])
    output, offsets = OPERATORS.max_pool_with_offsets(x, *geometry, False, 1)
    backward = (torch.ones_like(output), offsets, x.shape, *geometry, 1, torch.contiguous_format)
    with opswap.force_reference():
        assert torch.equal(OPERATORS.max_pool_with_offsets(x, *geometry, False, 1)[1], offsets)
        assert not OPERATORS.max_pool_backward(*backward).any()
    tangent = torch.ones_like(x)
    _, derivative = torch.func.jvp(lambda t: F.max_pool2d(t, *arguments), (x,), (tangent,))
    assert not derivative.any()
    low = F.max_pool2d(x.int(), *arguments)
    assert torch.equal(low, T.max_pool2d(x.int(), *arguments))


@pytest.mark.parametrize("kernel", [(16, 16), (17, 16), (2, 150)])
def test_offsets_are_bytes_up_to_256_taps(kernel: tuple[int, int], tier: str) -> None:
    x = ties((2, 3, 40, 170), torch.float32)
    wanted = torch.uint8 if kernel[0] * kernel[1] <= 256 else torch.int32
    output, offsets = torch.ops.opswap.max_pool_with_offsets(x, kernel, [5, 7], [1, 8], [1, 1], False, 1)
    assert offsets.dtype == wanted and offsets.stride() == output.stride()
    for memory_format in (torch.contiguous_format, torch.channels_last):
        y = x.contiguous(memory_format=memory_format)
        got, indices = F.max_pool2d(y, kernel, (5, 7), (1, 8), return_indices=True)
        want, want_indices = T.max_pool2d(y, kernel, (5, 7), (1, 8), return_indices=True)
        assert alike(got, want) and torch.equal(indices, want_indices)
        grad = torch.randn_like(want)
        want = gradient(T.max_pool2d, y, grad, kernel, (5, 7), (1, 8))
        assert same_bits(gradient(F.max_pool2d, y, grad, kernel, (5, 7), (1, 8)), want)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_gradients_of_any_layout(layout: str, memory_format: torch.memory_format) -> None:
    x = ties((3, 8, 7, 9), torch.float32).contiguous(memory_format=memory_format)
    grad = LAYOUTS[layout](torch.randn(3, 8, 4, 5))
    want = gradient(T.max_pool2d, x, grad.contiguous(), 3, 2, 1)
    assert same_bits(gradient(F.max_pool2d, x, grad, 3, 2, 1), want)
    one = torch.ones(()).expand(3, 8, 4, 5)
    assert same_bits(
        gradient(F.max_pool2d, x, one, 3, 2, 1), gradient(T.max_pool2d, x, one.contiguous(), 3, 2, 1)
    )


def test_input_is_not_changed_and_shared_with_nothing() -> None:
    x = torch.randn(2, 4, 6, 6)
    before = x.clone()
    output = F.max_pool2d(x, 1)
    output.zero_()
    assert torch.equal(x, before)


@pytest.mark.parametrize("size,window", [((4, 8, 16, 16), (3, 2, 1)), ((4, 8, 16, 16), (2,))])
def test_backward_keeps_a_byte_an_output_pixel(size: tuple[int, ...], window: tuple[int, ...]) -> None:
    x = torch.randn(size, requires_grad=True)
    ours, theirs = (saved_bytes(partial(f, x, *window)) for f in (F.max_pool2d, T.max_pool2d))
    assert ours == F.max_pool2d(x, *window).numel()
    assert theirs >= 8 * ours + x.nbytes


def test_calls_without_a_gradient_write_no_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for holder, name in ((_core, "max_pool"), (max_pool._plain_call, "_kernel")):
        kernel = getattr(holder, name)
        monkeypatch.setattr(holder, name, lambda *a, kernel=kernel: made.append(kernel(*a)) or made[-1])
    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    with torch.no_grad():
        F.max_pool2d(x, 2)
    F.max_pool2d(x.detach(), 2)
    with torch.inference_mode():
        F.max_pool3d(x, (1, 2, 2))
    torch.ops.opswap.max_pool(x.detach(), [2, 2], [2, 2], [0, 0], [1, 1], False, 1)
    assert all(isinstance(output, torch.Tensor) for output in made[:3])
    assert len(made) == 4 and made[3][1] is None
    F.max_pool2d(x, 2)
    assert made[-1][1].dtype == torch.uint8


@pytest.mark.parametrize("spatial", [2, 3])
@pytest.mark.parametrize("return_indices", [False, True])
def test_reference_equals_torch(spatial: int, return_indices: bool) -> None:
    opswap.reset_stats()
    with opswap.force_reference():
        for _ in range(12):
            case = random_case(spatial, batch=2)
            x = ties(case.size, torch.float32)
            try:
                want = TORCH[spatial](x, *case.window, return_indices)
            except RuntimeError:
                continue
            got = OURS[spatial](x, *case.window, return_indices)
            for a, b in zip(*((t if return_indices else (t,)) for t in (got, want)), strict=True):
                assert alike(a, b), case
            if not return_indices:
                grad = torch.randn(want.shape)
                ours, stock = (gradient(f[spatial], x, grad, *case.window) for f in (OURS, TORCH))
                truth, magnitude, terms = (
                    gradient(TORCH[spatial], x.double(), change(grad.double()), *case.window)
                    for change in (lambda t: t, torch.abs, torch.ones_like)
                )
                for result in (ours, stock):
                    assert_within_roundings(result, truth, magnitude, terms, case)
    assert "max_pool" in opswap.stats()["reference"] and not opswap.stats()["kernel"]


@pytest.mark.parametrize("spatial", [2, 3])
def test_reference_operators_equal_the_kernels(spatial: int) -> None:
    for _ in range(20):
        case = random_case(spatial, batch=2)
        x = ties(case.size, torch.float32)
        if x.dim() == 4 and torch.rand(()) < 0.5:
            x = x.contiguous(memory_format=torch.channels_last)
        step = 1 + int(torch.randint(3, ()))
        try:
            output, offsets = OPERATORS.max_pool_with_offsets(x, *case.window, step)
        except RuntimeError:
            continue
        geometry = case.window[:4]
        backward = (torch.randn_like(output), offsets, x.shape, *geometry, step, suggested(x))
        grad = OPERATORS.max_pool_backward(*backward)
        indices = OPERATORS.max_pool_indices(offsets, x.shape[2:], *geometry)
        with opswap.force_reference():
            reference = OPERATORS.max_pool_with_offsets(x, *case.window, step)
            assert alike(output, reference[0]) and torch.equal(offsets, reference[1]), case
            assert alike(OPERATORS.max_pool(x, *case.window, step), output), case
            assert same_bits(OPERATORS.max_pool_backward(*backward), grad), case
            assert torch.equal(OPERATORS.max_pool_indices(offsets, x.shape[2:], *geometry), indices), case
