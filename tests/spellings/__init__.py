# SPDX-License-Identifier: MIT
"""Small models that spell a channel shuffle as people do, and models that only look as if they did."""

from .base import CAT, IDENTITY, PERMUTATION, PLAIN, SPLIT, Joined, Spelling, Wrapped
from .blocks import BLOCKS, Cut, Split, StartOfBlock, chunk
from .permutations import PERMUTATIONS
from .shuffles import SHUFFLES, Shuffle, all_constants, by_size
from .traps import TRAPS

SPELLINGS = SHUFFLES + BLOCKS + PERMUTATIONS

__all__ = [
    "BLOCKS",
    "CAT",
    "IDENTITY",
    "PERMUTATION",
    "PERMUTATIONS",
    "PLAIN",
    "SHUFFLES",
    "SPELLINGS",
    "SPLIT",
    "TRAPS",
    "Cut",
    "Joined",
    "Shuffle",
    "Spelling",
    "Split",
    "StartOfBlock",
    "Wrapped",
    "all_constants",
    "by_size",
    "chunk",
]
