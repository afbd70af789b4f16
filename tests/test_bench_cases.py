# SPDX-License-Identifier: MIT
"""Every kind of case of the benchmarks runs, and its results agree with torch's."""

from __future__ import annotations

import dataclasses
import re
from math import prod

import pytest

import opswap
from opswap.bench.case import Case, _check_results, _usable
from opswap.bench.cases import FAMILIES

# Those of whole networks, of scripts and of other packages take minutes.
_OPERATORS = [
    name for name in FAMILIES if name not in ("models", "half", "finders", "compiled", "peers", "merge")
]


def size_of(case: Case) -> int:
    """Of the input, the first number of the text with commas."""
    numbers = re.match(r"[\d,x]+", case.shape)
    return prod(map(int, re.findall(r"\d+", numbers[0]))) if numbers else 1 << 62


def smallest(family: str) -> list[Case]:
    """One case per name, direction and dtype."""
    kinds: dict[tuple[str, str, str], Case] = {}
    for case in sorted(FAMILIES[family](1), key=size_of):
        kinds.setdefault((case.case, case.direction, case.dtype), case)
    return list(kinds.values())


def check(case: Case, draws: int) -> None:
    """The results agree with one of so many draws."""
    for draw in range(1, draws + 1):
        functions, refused = _usable(case, case.build())
        assert not set(refused) & set(case.ours), case.label
        try:
            _check_results(dataclasses.replace(case, kernels=False), functions)
        except RuntimeError:
            if draw == draws:
                raise
        else:
            return


@pytest.mark.skipif(
    opswap.isa.current() not in ("avx2", "avx512"),
    reason="some cases call kernels that this tier does not have",
)
@pytest.mark.parametrize("family", _OPERATORS)
def test_cases(family: str) -> None:
    cases = smallest(family)
    assert cases
    for case in cases:
        # Behind a chain's normalisation, a value at the kink of an activation falls on either side by rounding alone,
        # and moves the few gradients of one image by more than that.
        check(case, draws=3 if family == "chain" else 1)


def test_the_copy_of_a_batch_allocates_as_many_bytes() -> None:
    """Page faults weigh on fresh memory, and the allocator keeps smaller blocks for the next call."""
    for case in smallest("batch"):
        result = case.build()["opswap"]()
        assert case.copy_in_turn == result.nbytes >= case.payload
