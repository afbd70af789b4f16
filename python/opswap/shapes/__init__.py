# SPDX-License-Identifier: MIT
"""Find shapes that depend on data; batches of one size, and losses that know which elements are padding."""

from . import losses
from .arrays import batch_images
from .collate import CollateFixed, collate_fixed
from .detector import detect
from .images import PaddedImages, pad_images, unpad_images, unpad_predictions
from .report import ShapesReport, ShapesSite
from .sizes import Buckets, SizeHistogram, histogram
from .targets import PaddedTarget, pad_targets, unpad_targets

__all__ = [
    "Buckets",
    "CollateFixed",
    "PaddedImages",
    "PaddedTarget",
    "ShapesReport",
    "ShapesSite",
    "SizeHistogram",
    "batch_images",
    "collate_fixed",
    "detect",
    "histogram",
    "losses",
    "pad_images",
    "pad_targets",
    "unpad_images",
    "unpad_predictions",
    "unpad_targets",
]
