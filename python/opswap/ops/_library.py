# SPDX-License-Identifier: MIT
"""The one torch.library namespace that every family registers its operators in."""

import torch

__all__ = ["library"]

library = torch.library.Library("opswap", "DEF")
