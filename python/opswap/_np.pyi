# SPDX-License-Identifier: MIT
# The kernels that read NumPy's arrays, for opswap.shapes alone.

from typing import Any

def examine(images: tuple[Any, ...], /) -> tuple[str, int, tuple[tuple[int, int], ...]]: ...
def fill(
    images: tuple[Any, ...],
    batch: Any,
    dtype: str,
    channels_last: bool,
    padding: Any,
    scale: Any,
    mean: Any,
    std: Any,
    /,
) -> None: ...
def huge_pages(batch: Any, /) -> None: ...
def isa_current() -> str: ...
def isa_limit(tier: str, /) -> None: ...
