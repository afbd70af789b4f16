# SPDX-License-Identifier: MIT
"""Many small layers as one, and back: trained weights and the optimizer's state are carried over."""

from .optimizer import move_optimizer_state, move_parameters

__all__ = ["move_optimizer_state", "move_parameters"]
