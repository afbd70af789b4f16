# SPDX-License-Identifier: MIT
"""Copies of a model, by all the ways in which models are copied."""

from __future__ import annotations

import copy
import io
import pickle
from typing import TypeVar

import torch
from torch import nn

__all__ = ["saved", "twins"]

Model = TypeVar("Model", bound=nn.Module)


def saved(model: Model) -> Model:
    """What comes back from a file."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def twins(model: Model) -> tuple[Model, Model, Model]:
    """A deep copy, one by pickle, one by a file."""
    return copy.deepcopy(model), pickle.loads(pickle.dumps(model)), saved(model)
