# SPDX-License-Identifier: MIT
"""Which dtypes of 16 bits torch's library multiplies on this CPU, by what torch says of its instructions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from opswap import _torch
from opswap.ops.linear import _run

HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture
def fresh_instructions(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(_torch.platform, "machine", lambda: "x86_64")
    yield monkeypatch


class TestInstructions:
    @pytest.mark.parametrize(
        ("bf16", "fp16", "vectors", "tiles", "found"),
        [
            (False, False, False, False, set()),
            (True, False, False, False, set()),  # AVX-512 that converts
            (True, False, True, False, {torch.bfloat16}),
            (True, True, True, False, {torch.bfloat16}),  # AVX512-FP16: no gradient of a weight
            (True, True, True, True, {torch.bfloat16, torch.float16}),
        ],
    )
    def test_x86(
        self,
        fresh_instructions: pytest.MonkeyPatch,
        bf16: bool,
        fp16: bool,
        vectors: bool,
        tiles: bool,
        found: set[torch.dtype],
    ) -> None:
        class Library:
            _is_mkldnn_bf16_supported = staticmethod(lambda: bf16)
            _is_mkldnn_fp16_supported = staticmethod(lambda: fp16)

        fresh_instructions.setattr(_torch, "_mkldnn", Library)
        fresh_instructions.setattr(_torch, "_is_bf16", lambda: vectors)
        fresh_instructions.setattr(_torch, "_is_amx", lambda: False)
        fresh_instructions.setattr(_torch, "_is_amx_fp16", lambda: tiles)
        assert _torch.half_instructions() == found

    @pytest.mark.parametrize("dtype", HALVES)
    @pytest.mark.parametrize("asked", [None, False, True])
    def test_a_grouped_product_of_a_torch_that_tells_less(
        self, fresh_instructions: pytest.MonkeyPatch, dtype: torch.dtype, asked: bool | None
    ) -> None:
        """On a CPU that is not x86 the library alone knows, or nobody."""

        class Library:
            if asked is not None:
                _is_mkldnn_bf16_supported = _is_mkldnn_fp16_supported = staticmethod(lambda: asked)

        fresh_instructions.setattr(_torch, "_mkldnn", Library)
        fresh_instructions.setattr(_torch, "_is_amx", None)
        _run._matrix_units.cache_clear()
        try:
            assert _torch.library_takes(dtype) is asked and _run._matrix_units(dtype) is bool(asked)
        finally:
            fresh_instructions.undo()
            _run._matrix_units.cache_clear()

    def test_elsewhere(self, fresh_instructions: pytest.MonkeyPatch) -> None:
        fresh_instructions.setattr(_torch, "_is_amx", None)
        assert _torch.half_instructions() is None
        fresh_instructions.setattr(_torch.platform, "machine", lambda: "aarch64")
        assert _torch.half_instructions() is None
