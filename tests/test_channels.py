# SPDX-License-Identifier: MIT
"""The channels family against cat, view, transpose and split: values, layouts, gradients, bad input."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from torch import Tensor

import opswap
from inputs import COLUMNS, DTYPES, LAYOUTS, channels_last_of, same_bits, values
from opswap import _core
from opswap import functional as F
from opswap.ops._layout import cat_memory_format
from threads import on_threads

WIDTH_DTYPES = {
    8: torch.uint8,
    16: torch.bfloat16,
    32: torch.float32,
    64: torch.float64,
    128: torch.complex128,
}
# The same examples in every run of a seed, however busy the machine is.
HYPOTHESIS = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
SEED = os.environ.get("OPSWAP_TEST_SEED", "")
SPATIAL = {2: (), 3: (5,), 4: (3, 4), 5: (2, 3, 2)}


def oracle(tensors: Sequence[Tensor], groups: int, sizes: Sequence[int] | None = None) -> list[Tensor]:
    """Cat, shuffle and split as ShuffleNet's authors write it."""
    x = torch.cat(list(tensors), 1)
    channels = x.shape[1]
    if channels:
        x = x.unflatten(1, (groups, channels // groups)).transpose(1, 2).flatten(1, 2)
    return list(x.split(list(sizes) if sizes is not None else [channels], 1))


def pair(channels: int = 6, **options: object) -> tuple[Tensor, Tensor]:
    return torch.randn(2, channels, 3, 4, **options), torch.randn(2, channels, 3, 4, **options)


# --- the way around torch's dispatcher ---------------------------------------------------------------------------


@hypothesis_seed(SEED)
@settings(max_examples=300, **HYPOTHESIS)
@given(data=st.data())
def test_described_calls_are_what_python_works_out(data: st.DataObject) -> None:
    """Sizes and memory format that the extension tells of any strided tensors are torch's own."""
    ndim = data.draw(st.integers(2, 6), "ndim")
    size = data.draw(st.lists(st.integers(1, 3), min_size=ndim, max_size=ndim), "size")
    tensors = []
    for _ in range(data.draw(st.integers(1, 2), "tensors")):
        order = data.draw(st.permutations(range(ndim)), "order")
        wide = torch.zeros([size[i] * data.draw(st.sampled_from((1, 2)), "gap") for i in order])
        tensors.append(wide.permute([order.index(i) for i in range(ndim)])[tuple(slice(0, n) for n in size)])
    channels = len(tensors) * size[1]
    chunks = data.draw(st.integers(1, channels + 1), "chunks")
    described = _core.describe_shuffle(tuple(tensors), channels, chunks, True)
    want = tuple(t.shape[1] for t in torch.zeros(1, channels).chunk(chunks, 1))
    assert described == (1, want, cat_memory_format(tensors))
    assert _core.describe_shuffle(tuple(tensors), channels, list(want), False)[1] == want


@pytest.mark.parametrize(
    "tensors",
    [
        (torch.zeros(1, 2, 2, 2, dtype=torch.complex64).conj(),),
        (torch.zeros(1, 2, 2, 2, dtype=torch.complex64).conj().imag,),
        (torch.zeros(1, 2, 2, 2, device="meta"),),
        (torch.zeros(1, 2).to_sparse(),),
        (torch._efficientzerotensor((1, 2)),),
        (torch.zeros(1, 2).as_subclass(type("Sub", (Tensor,), {})),),
        (torch.zeros(1, 2), torch.zeros(1, 2).double()),
        (torch.zeros(1, 2), torch.zeros(2, 2)),
        (torch.zeros(2),),
        (None,),
        (),
    ],
)
def test_what_only_the_dispatcher_can_serve_is_left_to_it(tensors: tuple[Tensor, ...]) -> None:
    assert _core.describe_shuffle(tensors, 2, 1, False) is None
    if len(tensors) == 1 and (tensors[0] is None or tensors[0].dim() > 1):
        assert _core.plain_tensors(tensors) is False


# --- kernels -----------------------------------------------------------------------------------------------------


def rows_of(name: str) -> tuple[str, int, int]:
    operation, rows, width = name.split("_")
    return operation, {"ANY": 5, "PLANES": 2}.get(rows) or int(rows), int(width[1:])


@pytest.mark.parametrize("name", sorted(_core.channels_variants()))
def test_every_variant_runs_and_is_right(name: str, tier: str) -> None:
    operation, rows, width = rows_of(name)
    before = _core.channels_variants()[name]
    for columns in COLUMNS:
        columns = max(columns, rows) if operation != "move" else columns
        channels = rows * columns if operation != "move" else 2 * columns + 1 + (columns + 1) % 2
        x = values((2, channels, 3, 2), WIDTH_DTYPES[width])
        if operation != "copy":
            x = x.contiguous(memory_format=torch.channels_last)
        groups = rows if operation != "deinterleave" else channels // rows
        sizes = [channels]
        if operation == "move":  # an odd cut goes through the middle of a column
            channels = x.shape[1] - x.shape[1] % 2
            x, groups, sizes = x[:, :channels], 2, [channels // 2 | 1, channels - (channels // 2 | 1)]
        outputs = F.cat_channel_shuffle_split((x,), groups, sizes)
        for got, want in zip(outputs, oracle((x,), groups, sizes), strict=True):
            assert same_bits(got, want), f"{columns} columns"
    assert _core.channels_variants()[name] > before


@pytest.mark.parametrize("rows", [*range(1, 13), 16, 17])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64])
def test_every_number_of_rows(rows: int, dtype: torch.dtype, tier: str) -> None:
    for columns in COLUMNS:
        x = values((2, rows * columns, 2, 3), dtype).contiguous(memory_format=torch.channels_last)
        for groups in (rows, columns):
            assert same_bits(F.channel_shuffle(x, groups), oracle((x,), groups)[0]), (columns, groups)


@hypothesis_seed(SEED)
@settings(max_examples=150, **HYPOTHESIS)
@given(data=st.data())
def test_any_cut_of_any_shuffle(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 12), "groups")
    channels = groups * data.draw(st.integers(0, 40), "columns")
    ndim = data.draw(st.integers(2, 5), "ndim")
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    cuts = st.lists(st.integers(0, channels), max_size=3).map(lambda c: [0, *sorted(c), channels])
    widths = [b - a for a, b in itertools.pairwise(data.draw(cuts, "inputs"))]
    sizes = [b - a for a, b in itertools.pairwise(data.draw(cuts, "outputs"))]
    size = (data.draw(st.integers(0, 3), "batch"), *SPATIAL[ndim])
    tensors = [
        LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)), "layout")](values((size[0], w, *size[1:]), dtype))
        for w in widths
    ]
    before = [t.clone() for t in tensors]
    for inverse in (False, True):
        g = channels // groups if inverse and channels else groups
        got = F.cat_channel_shuffle_split(tensors, groups, sizes, inverse=inverse)
        for a, b in zip(got, oracle(tensors, g, sizes), strict=True):
            assert same_bits(a, b)
    assert all(same_bits(a, b) for a, b in zip(tensors, before, strict=True))


# --- layouts and dtypes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", DTYPES)
def test_shuffle_equals_torch_in_bits_and_strides(dtype: torch.dtype, layout: str) -> None:
    for ndim in (3, 4, 5):
        x = LAYOUTS[layout](values((3, 12, *SPATIAL[ndim]), dtype))
        for groups in (1, 2, 3, 4, 12):
            want = torch.channel_shuffle(x, groups)
            got = F.channel_shuffle(x, groups)
            assert same_bits(got, want)
            assert got.stride() == want.stride()
            assert same_bits(F.channel_shuffle(got, groups, inverse=True), x)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "chunk", "channels_last_chunk"])
def test_cat_follows_the_memory_format_of_torch_cat(layout: str) -> None:
    a, b = (LAYOUTS[layout](t) for t in pair())
    other = torch.randn(2, 6, 3, 4)
    for tensors in ((a, b), (a, other), (other, a)):
        want = torch.channel_shuffle(torch.cat(tensors, 1), 2)
        assert F.cat_channel_shuffle(tensors, 2).stride() == want.stride()
        suggested = torch.contiguous_format if want.is_contiguous() else torch.channels_last
        for half in F.cat_channel_shuffle_split(tensors, 2):
            assert half.is_contiguous(memory_format=suggested)


@pytest.mark.parametrize("last", [False, True])
def test_the_usual_layouts_are_read_in_place(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "contiguous", lambda *a, **k: pytest.fail("an input was copied"))
    for ndim in (2, 3, 4, 5):
        wide = torch.randn(4, 24, *SPATIAL[ndim])
        if last and ndim > 3:
            wide = wide.to(memory_format=channels_last_of(ndim))
        x, y = wide.chunk(2, 1)
        F.cat_channel_shuffle_split((x[::2], y[1::2]), 2)
        F.channel_shuffle(y, 3)


def test_two_dimensions_and_one_pixel() -> None:
    x = torch.arange(24.0).view(2, 12)
    want = x.view(2, 3, 4).transpose(1, 2).reshape(2, 12)
    assert torch.equal(F.channel_shuffle(x, 3), want)
    assert torch.equal(F.channel_shuffle(x[:, :, None, None], 3), want[:, :, None, None])
    assert torch.equal(F.channel_shuffle(x.t().contiguous().t(), 3), want)


def test_outputs_never_alias_inputs() -> None:
    x = torch.randn(2, 6, 3, 4)
    for y in (F.channel_shuffle(x, 1), F.channel_shuffle(x, 6), *F.cat_channel_shuffle_split((x,), 1)):
        assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    with opswap.force_reference():
        y = F.channel_shuffle(x, 1)
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "channels, sections, sizes",
    [
        (12, 2, (6, 6)),
        (15, 2, (8, 7)),
        (10, 4, (3, 3, 3, 1)),
        (12, 5, (3, 3, 3, 3)),
        (12, [5, 0, 7], (5, 0, 7)),
    ],
)
def test_sections_are_those_of_chunk_and_split(
    channels: int, sections: object, sizes: tuple[int, ...]
) -> None:
    x = torch.randn(2, channels, 3)
    outputs = F.cat_channel_shuffle_split((x,), 1, sections)
    assert tuple(t.shape[1] for t in outputs) == sizes
    if isinstance(sections, int):
        assert sizes == tuple(t.shape[1] for t in x.chunk(sections, 1))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads: int) -> None:
    with on_threads(threads):
        assert _core.threads() == threads
        for fmt in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(7, 58, 33, 31).to(memory_format=fmt)
            assert same_bits(F.channel_shuffle(x, 2), oracle((x,), 2)[0])
            wide = torch.randn(3, 116, 33, 31).to(memory_format=fmt)[::2, :58]
            assert same_bits(F.channel_shuffle(wide, 29), oracle((wide,), 29)[0])


# --- gradients ---------------------------------------------------------------------------------------------------


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("sizes", [[12], [6, 6], [5, 7], [1, 0, 11]])
def test_gradients_equal_those_of_torch(sizes: list[int], last: bool) -> None:
    fmt = torch.channels_last if last else torch.contiguous_format
    tensors = [t.to(memory_format=fmt) for t in (torch.randn(2, 5, 3, 4), torch.randn(2, 7, 3, 4))]
    for groups in (1, 2, 3, 6, 12):
        ours, theirs = leaves(*tensors), leaves(*tensors)
        got = F.cat_channel_shuffle_split(ours, groups, sizes)
        want = oracle(theirs, groups, sizes)
        grads = [torch.randn_like(t) for t in want]
        torch.autograd.backward(got, grads)
        torch.autograd.backward(want, grads)
        for a, b in zip(ours, theirs, strict=True):
            assert same_bits(a.grad, b.grad)
            assert a.grad.is_contiguous(memory_format=fmt)


def test_only_the_inputs_that_need_a_gradient_get_one() -> None:
    a, b = pair(5)
    for needs in ((True, False), (False, True)):
        tensors = [t.clone().requires_grad_(n) for t, n in zip((a, b), needs, strict=True)]
        for last in (False, True):
            fmt = torch.channels_last if last else torch.contiguous_format
            inputs = [t.to(memory_format=fmt) for t in tensors]
            outputs = F.cat_channel_shuffle_split(inputs, 2, [3, 7])
            (grad,) = torch.autograd.grad(
                sum((t * t).sum() for t in outputs), [t for t in tensors if t.requires_grad]
            )
            assert torch.equal(grad, 2 * (a if needs[0] else b))


def test_a_gradient_may_be_undefined_expanded_or_strided() -> None:
    a, b = leaves(*pair())
    first, second = F.cat_channel_shuffle_split((a, b), 2)
    for loss in (
        lambda x, y: y.sum(),
        lambda x, y: x.sum(),
        lambda x, y: (x[..., ::2] * 2).sum() + y.permute(3, 2, 1, 0).reshape(-1)[::3].sum(),
        lambda x, y: x.mean((2, 3)).sum() + y.sum(),
    ):
        c, d = leaves(a, b)
        want = torch.autograd.grad(loss(*oracle((c, d), 2, (6, 6))), (c, d))
        got = torch.autograd.grad(loss(first, second), (a, b), retain_graph=True)
        assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))


def test_gradcheck_twice_and_forward_mode() -> None:
    a, b = leaves(*(t.double() for t in pair(3)))

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return F.cat_channel_shuffle_split((x, y), 3, [2, 4])

    assert torch.autograd.gradcheck(run, (a, b), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(run, (a, b))
    assert torch.autograd.gradgradcheck(lambda x: run(x, b.detach()), (a,))


def test_no_grad_and_inference_mode_make_no_graph() -> None:
    a, b = leaves(*pair())
    with torch.no_grad():
        assert F.cat_channel_shuffle((a, b), 2).grad_fn is None
    with torch.inference_mode():
        assert F.cat_channel_shuffle((a, b), 2).is_inference()
    assert F.channel_shuffle(torch.randn(1, 4, 2), 2).grad_fn is None
    assert "CatChannelShuffle" in type(F.cat_channel_shuffle((a, b), 2).grad_fn).__name__


def test_a_contiguous_shuffle_is_left_to_torch() -> None:
    x = torch.randn(2, 6, 3, 4)
    opswap.reset_stats()
    F.channel_shuffle(x, 2)
    assert not opswap.stats()["kernel"]
    for y in (x.to(memory_format=torch.channels_last), x[:, :4], x[:, :, 0, 0], x.to(torch.float8_e5m2)):
        assert same_bits(F.channel_shuffle(y, 2), oracle((y,), 2)[0])
    assert opswap.stats()["kernel"] == {"cat_channel_shuffle_split": 4}


# --- bad input ---------------------------------------------------------------------------------------------------

X = torch.randn(2, 6, 3, 4)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: F.channel_shuffle(X, 4), RuntimeError, "6 channels cannot be split into 4 groups"),
        (lambda: F.channel_shuffle(X, 0), RuntimeError, "groups must be positive, got 0"),
        (lambda: F.channel_shuffle(X, -2), RuntimeError, "groups must be positive, got -2"),
        (lambda: F.channel_shuffle(X, 2.0), TypeError, "groups must be an int, got 2.0"),
        (lambda: F.channel_shuffle(X, True), TypeError, "groups must be an int, got True"),
        (lambda: F.channel_shuffle(torch.randn(6), 2), RuntimeError, r"at least 2 dimensions .* got \(6,\)"),
        (lambda: F.channel_shuffle(torch.tensor(1.0), 1), RuntimeError, r"at least 2 dimensions"),
        (lambda: F.channel_shuffle([X], 2), TypeError, "must be a tensor, got list"),
        (lambda: F.channel_shuffle(None, 2), TypeError, "must be a tensor, got NoneType"),
        (lambda: F.cat_channel_shuffle([], 2), RuntimeError, "non-empty list of tensors"),
        (lambda: F.cat_channel_shuffle(X, 2), TypeError, "list or tuple of tensors, got Tensor"),
        (lambda: F.cat_channel_shuffle([X, 3], 2), TypeError, r"tensors\[1\] must be a tensor, got int"),
        (lambda: F.cat_channel_shuffle([X, X.double()], 2), RuntimeError, "tensor 1 is torch.float64"),
        (lambda: F.cat_channel_shuffle([X, X.to("meta")], 2), RuntimeError, "tensor 1 is on meta"),
        (lambda: F.cat_channel_shuffle([X, X[:1]], 2), RuntimeError, r"\(2, 6, 3, 4\) and \(1, 6, 3, 4\)"),
        (
            lambda: F.cat_channel_shuffle([X, X[..., 1:]], 2),
            RuntimeError,
            r"\(2, 6, 3, 4\) and \(2, 6, 3, 3\)",
        ),
        (lambda: F.cat_channel_shuffle([X, X[0]], 2), RuntimeError, r"and \(6, 3, 4\)"),
        (lambda: F.cat_channel_shuffle_split([X], 2, [3, 4]), RuntimeError, r"\[3, 4\] must be .* sum to 6"),
        (lambda: F.cat_channel_shuffle_split([X], 2, [7, -1]), RuntimeError, r"\[7, -1\] must be"),
        (lambda: F.cat_channel_shuffle_split([X], 2, 0), RuntimeError, "sections must be positive, got 0"),
        (lambda: F.cat_channel_shuffle_split([X], 2, 1.5), TypeError, "sections must be an int, got 1.5"),
        (
            lambda: F.cat_channel_shuffle_split([X], 2, [3, "3"]),
            TypeError,
            "sections must be an int, got '3'",
        ),
    ],
)
def test_bad_input_is_refused_with_its_values(call: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
    if error is RuntimeError:
        with opswap.force_reference(), pytest.raises(error, match=message):
            call()


def test_the_extension_refuses_what_would_write_outside() -> None:
    """Calls that opswap.ops never makes."""
    for inputs, groups, sections in (
        ((X,), 2, (5,)),
        ((X,), 2, (6, 1)),
        ((X,), 2, (2**63 - 1, 2**63 - 1, 8)),
        ((X,), 2, (-1, 7)),
        ((X,), 5, (6,)),
        ((X,), 0, (6,)),
        ((X, X[:1]), 2, (12,)),
        ((X, X.double()), 2, (12,)),
        ((X, X[..., :3]), 2, (12,)),
        ((X[0, 0, 0],), 2, (6,)),
        ((X.to_sparse(),), 2, (6,)),
        ((X.to("meta"),), 2, (6,)),
    ):
        with pytest.raises(RuntimeError):
            _core.new_shuffled(inputs, groups, sections, None, False)
    for arguments in (
        ((X,), 2, (6,)),
        ([X], 2, (6,), None, False),
        ((), 2, (6,), None, False),
        ((X,), "2", (6,), None, False),
        ((X,), 2, ("6",), None, False),
        ((X,), 2, (6,), (True, True), False),
        ((3,), 2, (6,), None, False),
    ):
        with pytest.raises(TypeError):
            _core.new_shuffled(*arguments)
    with pytest.raises(RuntimeError, match="memory"):
        fake = torch._subclasses.FakeTensorMode().from_tensor(X)
        _core.new_shuffled((fake,), 2, (6,), None, False)
