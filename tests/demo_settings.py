# SPDX-License-Identifier: MIT
"""The smallest demo there is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from opswap.demo import Settings

__all__ = ["settings"]


def settings(tmp_path: Path, **changed: object) -> Settings:
    small = Settings(
        only=None,
        batch_size=479,
        seed=0,
        threads=1,
        rounds=0,
        output=tmp_path / "plot",
        epochs=1,
        image_size=32,
        min_accuracy=0.0,
        steps=3,
        compared_steps=1,
        full=False,
        branch_steps=2,
        detection_steps=4,
    )
    return dataclasses.replace(small, **changed)
