# SPDX-License-Identifier: MIT
"""The benchmarks: operators and whole networks against what a user would call instead; see benchmarks/README.md."""
