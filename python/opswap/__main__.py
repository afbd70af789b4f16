# SPDX-License-Identifier: MIT
"""`python -m opswap`."""

import sys

from .cli import main

sys.exit(main())
