# SPDX-License-Identifier: MIT
"""Run the benchmarks: the same as `python3 -m opswap bench`, whose `--help` lists families and options."""

from __future__ import annotations

import sys

from opswap.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
