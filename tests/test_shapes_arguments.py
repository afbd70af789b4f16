# SPDX-License-Identifier: MIT
"""Arguments of the functions for batches that are no lists, no images or no numbers; batches as loaders yield them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from opswap import shapes


def images() -> list[Tensor]:
    return [torch.rand(3, 4, 5), torch.rand(3, 7, 5)]


def target(**more: Any) -> dict[str, Any]:
    return {"boxes": torch.tensor([[1.0, 1, 5, 6]]), "labels": torch.tensor([3]), **more}


ARRAYS = [np.zeros((4, 5, 3), np.uint8)]


def test_what_can_be_read_once_only() -> None:
    want = shapes.pad_images(images(), 8).images.shape
    assert shapes.pad_images(iter(images()), buckets=iter([8])).images.shape == want
    (padded,) = shapes.pad_targets(iter([target()]), 4)
    assert padded["valid"].tolist() == [True, False, False, False]
    (again,) = shapes.unpad_targets(iter([padded]))
    assert torch.equal(again["boxes"], target()["boxes"])
    collate = shapes.collate_fixed(buckets=(side for side in (8,)), max_boxes=2)  # type: ignore[arg-type]
    for _ in range(2):
        assert collate([(images()[0], target())])[0].images.shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: shapes.pad_images(None, 8), TypeError, "images must be several, .* got None"),
        (lambda: shapes.pad_images(images(), 8.0), ValueError, "size must be a positive int .* got 8.0"),
        (lambda: shapes.pad_images(images(), buckets=8), TypeError, "buckets must be several, .* got 8"),
        (
            lambda: shapes.pad_images([torch.rand(3, 4, 5).to_sparse()], 8),
            TypeError,
            "image 0 is torch.sparse",
        ),
        (lambda: shapes.unpad_images(images()), TypeError, "unpad_images: expected PaddedImages, got list"),
        (lambda: shapes.unpad_predictions([], images()), TypeError, "expected PaddedImages, got list"),
        (lambda: shapes.pad_targets(None, 4), TypeError, "targets must be several, .* got None"),
        (lambda: shapes.pad_targets([target()], 4, label="a"), TypeError, "label must be a number, got 'a'"),
        (
            lambda: shapes.pad_targets([target()], 4, label=None),
            TypeError,
            "label must be a number, got None",
        ),
        (lambda: shapes.pad_targets([target()], 4, size=8.5), ValueError, "size must be .* got 8.5"),
        (lambda: shapes.pad_targets([target()], 4, per_box="labels"), TypeError, r"such as \('labels',\)"),
        (
            lambda: shapes.pad_targets([target(masks=torch.ones(1, 4))], 4, size=8),
            ValueError,
            r"masks of target 0 have the shape \(1, 4\), expected \(n, h, w\)",
        ),
        (
            lambda: shapes.pad_targets(shapes.pad_targets([{"boxes": torch.zeros(0, 4)}], 4), 4),
            ValueError,
            "target 0 has a field 'valid'",
        ),
        (lambda: shapes.unpad_targets([1]), TypeError, "target 0 is a int, expected a dict"),
        (
            lambda: shapes.batch_images(None, 8),
            TypeError,
            "batch_images: images must be several, .* got None",
        ),
        (lambda: shapes.batch_images(ARRAYS, 8, mean={}), TypeError, "mean must be a number or numbers"),
        (lambda: shapes.batch_images(ARRAYS, 8, value={1}), TypeError, "value must be a number or numbers"),
        (lambda: shapes.histogram(5), TypeError, "expected a DataLoader or batches, got int"),
        (lambda: shapes.histogram([], batches=-1), ValueError, "must not be negative, got -1"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_images_without_memory() -> None:
    assert shapes.pad_images([torch.rand(3, 4, 5, device="meta")], 8, value=0.5).images.shape == (1, 3, 8, 8)


class Pairs:
    """Iterable by its places only, as a Dataset is."""

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        return images()[index], target()


@pytest.mark.parametrize(
    ("batches", "shapes_of_batches"),
    [
        ([[(x, target()) for x in images()]], []),
        ([[[x, target(masks=torch.ones(1, *x.shape[1:]))] for x in images()]], []),
        ([[{"image": x, "target": target()} for x in images()]], []),
        ([[(x, x[:1]) for x in images()]], []),
        ([list(zip(*[(x, x + 1) for x in images()], strict=True))], []),
        ([tuple(zip(*[(x, target(masks=x)) for x in images()], strict=True))], []),
        (Pairs(), []),
        ([{"x": shapes.pad_images(images(), 8), "y": 0}], [(2, 3, 8, 8)]),
        ([(shapes.pad_images(images(), 8), [target()] * 2)], [(2, 3, 8, 8)]),
    ],
)
def test_every_image_of_a_batch_is_counted(batches: Any, shapes_of_batches: list[tuple[int, ...]]) -> None:
    found = shapes.histogram(batches)
    assert found.sizes == {(4, 5): 1, (7, 5): 1} and list(found.shapes) == shapes_of_batches
