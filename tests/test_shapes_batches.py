# SPDX-License-Identifier: MIT
"""Batches of one size: images, targets, what a DataLoader makes of them, and the way back."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from opswap import shapes

SIZES = ((20, 30), (25, 10), (8, 9), (1, 1))


def images(channels: int = 3, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [(torch.rand(channels, h, w) * 200).to(dtype) for h, w in SIZES]


class TestPadImages:
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.int64, torch.bool])
    @pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_round_trip(self, dtype: torch.dtype, memory_format: torch.memory_format, channels: int) -> None:
        given = images(channels, dtype)
        padded = shapes.pad_images(given, (32, 40), memory_format=memory_format)
        assert padded.images.shape == (4, channels, 32, 40) and padded.images.dtype == dtype
        assert padded.images.is_contiguous(memory_format=memory_format)
        assert all(torch.equal(a, b) for a, b in zip(shapes.unpad_images(padded), given, strict=True))
        assert not padded.images[~padded.valid()[:, None].expand_as(padded.images)].any()
        assert padded.valid().sum() == sum(h * w for h, w in SIZES)
        assert padded.sizes == padded.original_sizes == SIZES and set(padded.modes) == {"kept"}

    def test_images_that_require_a_gradient(self) -> None:
        given = [x.requires_grad_() for x in images()]
        shapes.pad_images(given, 32).images.sum().backward()
        assert all(torch.equal(x.grad, torch.ones_like(x)) for x in given if x.grad is not None)
        assert all(x.grad is not None for x in given)

    @pytest.mark.parametrize("stride", [1, 2, 3, 8, 40])
    def test_valid_features(self, stride: int) -> None:
        padded = shapes.pad_images(images(), (32, 40))
        assert torch.equal(padded.valid(stride), padded.valid()[:, ::stride, ::stride])
        assert padded.valid(stride).is_contiguous()

    @pytest.mark.parametrize("stride", [0, -2])
    def test_stride_of_features(self, stride: int) -> None:
        with pytest.raises(ValueError, match=f"stride must be at least 1, got {stride}"):
            shapes.pad_images(images(), 40).valid(stride)

    @pytest.mark.parametrize(
        ("options", "want"),
        [
            ({"size": 32}, (32, 32)),
            ({"size": (25, 30)}, (25, 30)),
            ({"divisor": 16}, (32, 32)),
            ({"divisor": (8, 32)}, (32, 32)),
            ({"divisor": (5, 10)}, (25, 30)),
            ({"buckets": [(64, 64), 32, (16, 99), (25, 31)]}, (25, 31)),
            ({"buckets": [(30, 100), (40, 40)]}, (40, 40)),
        ],
    )
    def test_sizes(self, options: dict[str, Any], want: tuple[int, int]) -> None:
        assert shapes.pad_images(images(), **options).images.shape[-2:] == want

    def test_values_of_channels(self) -> None:
        padded = shapes.pad_images(images(), 32, value=(0.1, 0.2, 0.3))
        outside = padded.images.movedim(1, -1)[~padded.valid()]
        assert torch.equal(outside, torch.tensor([0.1, 0.2, 0.3]).expand_as(outside))

    def test_crop(self) -> None:
        given = images()
        padded = shapes.pad_images(given, (22, 16), mode="crop")
        assert padded.modes == ("cropped", "cropped", "kept", "kept")
        assert padded.sizes == ((20, 16), (22, 10), (8, 9), (1, 1))
        assert torch.equal(shapes.unpad_images(padded)[0], given[0][:, :, :16])

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
    def test_resize(self, dtype: torch.dtype) -> None:
        """A larger image gets smaller by one factor; a constant one stays constant."""
        given = [torch.full((3, 40, 20), 7, dtype=dtype), torch.full((3, 5, 6), 9, dtype=dtype)]
        padded = shapes.pad_images(given, 10, mode="resize")
        assert padded.sizes == ((10, 5), (5, 6)) and padded.modes == ("resized", "kept")
        assert padded.scale(0) == (0.25, 0.25) and padded.scale(1) == (1, 1)
        assert (shapes.unpad_images(padded)[0] == 7).all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_resize_of_16_bits(self, dtype: torch.dtype) -> None:
        """That of float32, rounded."""
        image = torch.rand(3, 40, 20).to(dtype)
        (found,) = shapes.pad_images([image], 10, mode="resize").images
        (want,) = shapes.pad_images([image.float()], 10, mode="resize").images
        assert torch.equal(found, want.to(dtype))

    @pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
    def test_resize_of_large_whole_numbers(self, dtype: torch.dtype) -> None:
        for value in (torch.iinfo(dtype).max, torch.iinfo(dtype).min, 2**24 + 1, -(2**24) - 1):
            if abs(value) > 2**15 and dtype is torch.int16:
                continue
            image = torch.full((1, 40, 40), value, dtype=dtype)
            found = shapes.pad_images([image], 10, mode="resize").images
            # 53 bits are kept.
            assert found.dtype is dtype and all(
                abs(v - value) <= abs(value) >> 53 for v in found.flatten().tolist()
            )

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda: shapes.pad_images([], 3), ValueError, "no images"),
            (lambda: shapes.pad_images([np.zeros((3, 2, 2))], 3), TypeError, "image 0 is a ndarray"),
            (lambda: shapes.pad_images(images()), TypeError, "exactly one of"),
            (lambda: shapes.pad_images(images(), 32, divisor=2), TypeError, "exactly one of"),
            (lambda: shapes.pad_images(images(), 0), ValueError, "size .* got 0"),
            (lambda: shapes.pad_images(images(), (8, 2.5)), ValueError, r"size .* \(8, 2.5\)"),
            (lambda: shapes.pad_images(images(), buckets=[]), ValueError, "buckets is empty"),
            (lambda: shapes.pad_images(images(), 24), ValueError, r"image 0 of 20 x 30 .* size \(24, 24\)"),
            (lambda: shapes.pad_images(images(), buckets=[8, 16]), ValueError, "image 0 of 20 x 30"),
            (
                lambda: shapes.pad_images(images(), buckets=[(20, 30), (25, 10)]),
                ValueError,
                r"needs \(25, 30\)|image 1",
            ),
            (lambda: shapes.pad_images(images(), 32, mode="shrink"), ValueError, "'shrink'"),
            (
                lambda: shapes.pad_images(images(), 32, memory_format=torch.channels_last_3d),
                ValueError,
                "pad_images: memory_format must be contiguous or channels_last, got torch.channels_last_3d",
            ),
            (
                lambda: shapes.pad_images([*images(), torch.zeros(1, 2, 2)], 32),
                ValueError,
                "image 4 has 1 channels",
            ),
            (
                lambda: shapes.pad_images([*images(), torch.zeros(3, 2, 2).double()], 32),
                TypeError,
                "image 4 is torch.float64",
            ),
            (lambda: shapes.pad_images([torch.zeros(3, 0, 2)], 32), ValueError, r"image 0 .* \(3, 0, 2\)"),
            (lambda: shapes.pad_images([torch.zeros(2, 2)], 32), ValueError, r"image 0 .* \(2, 2\)"),
            (lambda: shapes.pad_images(images(), 32, value=(1, 2)), ValueError, "2.* 3 channels"),
            (lambda: shapes.pad_images(images(dtype=torch.uint8), 32, value=300), ValueError, "300"),
            (lambda: shapes.pad_images(images(dtype=torch.uint8), 32, value=0.5), ValueError, "0.5"),
        ],
    )
    def test_errors(self, call: Callable[[], Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            call()


def target(n: int, size: tuple[int, int] = (20, 30), **more: Any) -> dict[str, Any]:
    corner = torch.rand(n, 2) * 8
    return {
        "boxes": torch.cat([corner, corner + 1 + torch.rand(n, 2) * 8], 1),
        "labels": torch.randint(1, 5, (n,)),
        "masks": (torch.rand(n, *size) < 0.5).to(torch.uint8),
        "keypoints": torch.rand(n, 4, 3),
        "area": torch.rand(n),
        "iscrowd": torch.zeros(n, dtype=torch.int64),
        "embedding": torch.rand(n, 6),
        "image_id": torch.tensor([n]),
        "name": f"image {n}",
        **more,
    }


class TestPadTargets:
    @pytest.mark.parametrize("counts", [(3, 0, 5), (1, 1), (0, 0), (8, 2)])
    def test_round_trip(self, counts: tuple[int, ...]) -> None:
        given = [target(n) for n in counts]
        padded = shapes.pad_targets(given, 8)
        for p, t, n in zip(padded, given, counts, strict=True):
            assert all(len(p[k]) == 8 for k in p.per_box)
            assert p["valid"].tolist() == [True] * n + [False] * (8 - n)
            assert p["image_id"] is t["image_id"] and p["name"] == t["name"]
            assert (p["labels"][n:] == -1).all() and (p["area"][n:] == 1).all()
            assert not any(p[k][n:].any() for k in ("masks", "keypoints", "iscrowd", "embedding"))
            assert (p["boxes"][:, 2:] > p["boxes"][:, :2]).all(), "what torchvision's detectors check"
        for back, t in zip(shapes.unpad_targets(padded), given, strict=True):
            assert back.keys() == t.keys()
            assert all(
                torch.equal(back[k], t[k]) and back[k].dtype == t[k].dtype
                if isinstance(t[k], Tensor)
                else back[k] == t[k]
                for k in t
            )

    def test_plain_dicts_come_back(self) -> None:
        given = [target(2), target(3)]
        plain = [dict(p) for p in pickle.loads(pickle.dumps(shapes.pad_targets(given, 4)))]
        back = shapes.unpad_targets(
            plain, per_box=["boxes", "labels", "masks", "keypoints", "area", "iscrowd", "embedding"]
        )
        assert all(torch.equal(b["embedding"], t["embedding"]) for b, t in zip(back, given, strict=True))

    def test_overflow_largest(self) -> None:
        t = target(6)
        (p,) = shapes.pad_targets([t], 4, overflow="largest")
        area = (t["boxes"][:, 2:] - t["boxes"][:, :2]).prod(1)
        kept = area.argsort(descending=True)[:4].sort().values
        assert all(torch.equal(p[k], t[k][kept]) for k in ("boxes", "labels", "masks", "embedding"))
        assert p["valid"].all()

    def test_overflow_random(self) -> None:
        t = target(6)
        options = {"overflow": "random"}
        draws = [
            shapes.pad_targets([t], 4, generator=torch.Generator().manual_seed(s), **options)[0]
            for s in range(30)
        ]
        chosen = {tuple(p["area"].tolist()) for p in draws}
        assert len(chosen) > 5
        order = t["area"].tolist()
        assert all(list(c) == sorted(c, key=order.index) for c in chosen), "boxes keep their order"

    def test_masks_are_padded(self) -> None:
        given = [target(2, (10, 12)), target(1, (9, 16))]
        padded = shapes.pad_targets(given, 3, size=(16, 16))
        assert all(p["masks"].shape == (3, 16, 16) for p in padded)
        assert torch.equal(padded[0]["masks"][:2, :10, :12], given[0]["masks"])
        assert padded[0]["masks"].sum() == given[0]["masks"].sum()
        assert shapes.pad_targets(given, 3, size=16)[1]["masks"].shape == (3, 16, 16)

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda: shapes.pad_targets([target(5)], 4), ValueError, "target 0 has 5 boxes.* max_boxes=4"),
            (lambda: shapes.pad_targets([target(5)], 0), ValueError, "max_boxes .* got 0"),
            (lambda: shapes.pad_targets([target(5)], 4, overflow="drop"), ValueError, "'drop'"),
            (lambda: shapes.pad_targets([{"labels": torch.ones(2)}], 4), ValueError, "target 0 needs boxes"),
            (lambda: shapes.pad_targets([target(1, boxes=torch.ones(4))], 4), ValueError, r"\(4,\)"),
            (
                lambda: shapes.pad_targets([target(2), target(2, labels=torch.ones(3))], 4),
                ValueError,
                "'labels' of target 1 has 3 entries for 2",
            ),
            (
                lambda: shapes.pad_targets([target(1, labels=torch.tensor([3]))], 4, label=3),
                ValueError,
                "label 3 .* target 0",
            ),
            (
                lambda: shapes.pad_targets([target(2, odd=torch.ones(2)), target(3, odd=torch.ones(5))], 4),
                ValueError,
                "'odd'.*per_box",
            ),
            (
                lambda: shapes.pad_targets([target(2)], 4, size=(8, 8)),
                ValueError,
                r"masks of 20 x 30 .*\(8, 8\)",
            ),
            (lambda: shapes.unpad_targets([target(2)]), ValueError, "target 0 has no field 'valid'"),
            (
                lambda: shapes.pad_targets([target(2), target(1, labels=[1])], 4),
                TypeError,
                "'labels' of target 1 is a list",
            ),
            (
                lambda: shapes.pad_targets([target(1, area=torch.ones(()))], 4),
                TypeError,
                "'area' of target 0 is a tensor without entries",
            ),
            (
                lambda: shapes.pad_targets([target(1), [target(1)]], 4),
                TypeError,
                "target 1 is a list, .* dict",
            ),
            (
                lambda: shapes.collate_fixed(8, max_boxes=1)([torch.zeros(3, 2, 2)]),
                TypeError,
                r"collate_fixed: sample 0 is a Tensor, expected a pair \(image, target\)",
            ),
            (
                lambda: shapes.collate_fixed(8, max_boxes=1)([]),
                ValueError,
                "collate_fixed: there are no samples",
            ),
            (
                lambda: shapes.collate_fixed(8, max_boxes=1)([(torch.zeros(3, 2, 2), None)]),
                TypeError,
                "target 0 is a NoneType",
            ),
        ],
    )
    def test_errors(self, call: Callable[[], Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            call()

    def test_an_image_field_of_one_length_stays(self) -> None:
        """`size` has two entries whatever the number of boxes, also if one image has two boxes."""
        padded = shapes.pad_targets([target(2, hw=torch.ones(2)), target(3, hw=torch.ones(2))], 4)
        assert [len(p["hw"]) for p in padded] == [2, 2]


class Boxes(Dataset):
    """Images of different sizes with boxes, the same in every process."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        generator = torch.Generator().manual_seed(index)
        h, w, n = (int(torch.randint(a, b, (), generator=generator)) for a, b in ((12, 30), (12, 30), (0, 5)))
        found = target(n, (h, w))
        return torch.full((3, h, w), index, dtype=torch.uint8), {
            "boxes": found["boxes"],
            "labels": found["labels"],
            "index": index,
        }


class TestCollate:
    @pytest.mark.parametrize("context", ["fork", "spawn"])
    def test_workers(self, context: str) -> None:
        collate = shapes.collate_fixed(32, max_boxes=6)
        loader = DataLoader(Boxes(), 4, collate_fn=collate, num_workers=1, multiprocessing_context=context)
        for batch, targets in loader:
            assert batch.images.shape == (4, 3, 32, 32)
            assert all(t["boxes"].shape == (6, 4) for t in targets)
            for x, t in zip(shapes.unpad_images(batch), targets, strict=True):
                assert (x == t["index"]).all()

    def test_resized_boxes_follow_and_come_back(self) -> None:
        image, t = torch.rand(3, 40, 20), target(3, (40, 20))
        t["boxes"] = torch.tensor([[0.0, 0, 20, 40], [2, 4, 10, 20], [8, 8, 12, 16]])
        batch, (p,) = shapes.collate_fixed(10, max_boxes=4, mode="resize")([(image, t)])
        assert p["boxes"][:3].tolist() == [[0, 0, 5, 10], [0.5, 1, 2.5, 5], [2, 2, 3, 4]]
        assert p["masks"].shape == (4, 10, 10)
        prediction = {
            "boxes": p["boxes"][:3],
            "masks": p["masks"][:3, None].float(),
            "scores": torch.ones(3),
            "keypoints": p["keypoints"][:3],
        }
        (back,) = shapes.unpad_predictions([prediction], batch)
        torch.testing.assert_close(back["boxes"], t["boxes"])
        torch.testing.assert_close(back["keypoints"], t["keypoints"])
        assert back["masks"].shape == (3, 1, 40, 20) and back["scores"] is prediction["scores"]

    def test_cropped_boxes(self) -> None:
        t = target(3, (40, 20))
        t["boxes"] = torch.tensor([[0.0, 0, 20, 40], [2, 4, 8, 8], [12, 12, 16, 16]])
        batch, (p,) = shapes.collate_fixed(10, max_boxes=4, mode="crop")([(torch.rand(3, 40, 20), t)])
        assert p["valid"].tolist() == [True, True, False, False]
        assert p["boxes"][:2].tolist() == [[0, 0, 10, 10], [2, 4, 8, 8]]
        assert torch.equal(p["area"][:2], p["masks"][:2].flatten(1).sum(1).float())
        (back,) = shapes.unpad_predictions([{"boxes": p["boxes"][:2], "masks": p["masks"][:2]}], batch)
        assert back["masks"].shape == (2, 40, 20)

    def test_fields_of_the_image_keep_their_length(self) -> None:
        """A crop drops boxes; fields that have as many entries as one target has boxes stay whole."""
        one = {"boxes": torch.tensor([[9.0, 9, 11, 11]]), "labels": torch.tensor([1])}
        two = {"boxes": torch.tensor([[1.0, 1, 6, 6], [9, 9, 11, 11]]), "labels": torch.tensor([1, 2])}
        targets = [
            {
                **one,
                "image_id": torch.tensor([7]),
                "orig_size": torch.tensor([480, 640]),
                "mean": torch.ones(1),
            },
            {
                **two,
                "image_id": torch.tensor([8]),
                "orig_size": torch.tensor([480, 640]),
                "mean": torch.ones(1),
            },
        ]
        collate = shapes.collate_fixed(8, max_boxes=3, mode="crop")
        _, (a, b) = collate([(torch.rand(3, 12, 12), t) for t in targets])
        assert a["image_id"].tolist() == [7] and b["image_id"].tolist() == [8]
        assert b["orig_size"].tolist() == [480, 640] and len(a["mean"]) == len(b["mean"]) == 1
        assert a["valid"].tolist() == [False] * 3 and b["labels"].tolist() == [1, -1, -1]

    def test_whole_coordinates_are_scaled(self) -> None:
        target = {"boxes": torch.tensor([[2, 2, 10, 8]]), "keypoints": torch.tensor([[[4, 6, 1]]])}
        batch, (found,) = shapes.collate_fixed(8, max_boxes=1, mode="resize")(
            [(torch.rand(3, 16, 12), target)]
        )
        assert found["boxes"].tolist() == [[1, 1, 5, 4]] and found["keypoints"].tolist() == [[[2, 3, 1]]]
        back = {"boxes": torch.tensor([[0, 1, 3, 4]]), "keypoints": torch.tensor([[[2, 3, 1]]])}
        (back,) = shapes.unpad_predictions([back], batch)
        assert back["boxes"].tolist() == [[0, 2, 6, 8]] and back["keypoints"].tolist() == [[[4, 6, 1]]]

    def test_keypoints_that_a_crop_cuts_off_are_not_visible(self) -> None:
        points = torch.tensor([[[2.0, 3, 2], [9, 3, 2], [3, 9, 1], [7, 7, 1]]])
        target = {"boxes": torch.tensor([[1.0, 1, 11, 11]]), "keypoints": points}
        _, (found,) = shapes.collate_fixed(8, max_boxes=1, mode="crop")([(torch.rand(3, 12, 12), target)])
        assert found["keypoints"][0, :, 2].tolist() == [2, 0, 0, 1]
        assert torch.equal(found["keypoints"][..., :2], points[..., :2])

    def test_predictions_end_at_the_image(self) -> None:
        """Boxes that reach into the padding, or before the image, come back within it."""
        batch = shapes.pad_images([torch.rand(3, 16, 12), torch.rand(3, 4, 5)], 8, mode="resize")
        boxes = torch.tensor([[-1.0, -2, 3, 4], [2, 2, 8, 8]])
        first, second = shapes.unpad_predictions([{"boxes": boxes}, {"boxes": boxes}], batch)
        assert first["boxes"].tolist() == [[0, 0, 6, 8], [4, 4, 12, 16]]
        assert second["boxes"].tolist() == [[0, 0, 3, 4], [2, 2, 5, 4]]

    def test_a_label_that_the_dtype_has_not(self) -> None:
        for dtype in (torch.uint8, torch.bool):
            given = [{"boxes": torch.rand(1, 4), "labels": torch.ones(1, dtype=dtype)}]
            with pytest.raises(ValueError, match=f"label -1 of padding does not fit {dtype}"):
                shapes.pad_targets(given, 2)
        (found,) = shapes.pad_targets(
            [{"boxes": torch.rand(1, 4), "labels": torch.ones(1).byte()}], 2, label=255
        )
        assert found["labels"].tolist() == [1, 255]

    @pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.float16, torch.bfloat16])
    def test_the_largest_of_boxes_in_small_dtypes(self, dtype: torch.dtype) -> None:
        """Their areas exceed the dtype."""
        large = 255 if dtype is torch.uint8 else 600
        boxes = torch.tensor([[0, 0, 10, 10], [0, 0, large, large], [0, 0, large // 2, large]]).to(dtype)
        (found,) = shapes.pad_targets([{"boxes": boxes}], 1, overflow="largest")
        assert torch.equal(found["boxes"], boxes[1:2])

    @pytest.mark.parametrize("mode", ["resize", "crop"])
    def test_nothing_was_found(self, mode: str) -> None:
        batch = shapes.pad_images([torch.rand(3, 16, 12)], 8, mode=mode)
        for sizes in ((0, 8, 8), (0, 1, 8, 8)):
            empty = {"boxes": torch.zeros(0, 4), "masks": torch.zeros(sizes, dtype=torch.uint8)}
            (found,) = shapes.unpad_predictions([empty], batch)
            assert found["masks"].shape == (*sizes[:-2], 16, 12) and found["masks"].dtype is torch.uint8
        target = {"boxes": torch.zeros(0, 4), "masks": torch.zeros(0, 16, 12)}
        _, (padded,) = shapes.collate_fixed(8, max_boxes=2, mode=mode)([(torch.rand(3, 16, 12), target)])
        assert padded["masks"].shape == (2, 8, 8) and not padded["valid"].any()

    def test_wrong_number_of_predictions(self) -> None:
        with pytest.raises(ValueError, match="2 predictions for 4 images"):
            shapes.unpad_predictions([{}, {}], shapes.pad_images(images(), 32))


class TestHistogram:
    def test_batches_of_every_kind(self) -> None:
        x = torch.zeros(2, 3, 8, 9)
        ragged = [torch.zeros(3, 4, 5), torch.zeros(3, 6, 7)]
        found = shapes.histogram(
            [x, (x, 1), {"label": torch.zeros(2), "image": x}, ragged, (ragged, [{}]), (x[0], 3)]
        )
        assert found.sizes == Counter({(8, 9): 7, (4, 5): 2, (6, 7): 2})
        assert found.shapes == Counter({(2, 3, 8, 9): 3}) and found.batches == 6

    def test_padded_batches_count_their_content(self) -> None:
        batch = shapes.pad_images(images(), 32)
        assert shapes.histogram([(batch, [])]).sizes == Counter(SIZES)

    def test_stops_after_batches(self) -> None:
        assert shapes.histogram((torch.zeros(1, 3, 2, 2) for _ in range(100)), batches=3).batches == 3

    def test_suggestions_hold_every_image(self) -> None:
        sizes = [(10, 40)] * 5 + [(40, 10)] * 5 + [(12, 12)] * 90
        found = shapes.histogram([[torch.zeros(1, h, w) for h, w in sizes]])
        one, two, four = (found.suggest(n) for n in (1, 2, 4))
        assert one.sizes == ((40, 40),) and one.padding == pytest.approx(
            1 - (10 * 400 + 90 * 144) / (100 * 1600)
        )
        assert two.sizes == ((12, 12), (40, 40)) and four.padding == 0
        assert four.padding <= two.padding <= one.padding
        assert found.suggest(2, divisor=16).sizes == ((16, 16), (48, 48))
        assert "100 images of 3 sizes" in str(found) and "padding" in str(found)

    def test_many_sizes(self) -> None:
        sizes = torch.randint(100, 900, (2000, 2), generator=torch.Generator().manual_seed(0)).tolist()
        found = shapes.histogram([[torch.empty(1, 1, 1).expand(1, h, w) for h, w in sizes]])
        costs = [found.suggest(n).padding for n in (1, 2, 4, 8)]
        assert costs == sorted(costs, reverse=True) and costs[0] > costs[-1]
        wide = found.suggest(4, divisor=24)
        assert not any(side % 24 for size in wide.sizes for side in size)
        assert wide.padding == found.padding(wide.sizes), "each image fits one of them"

    def test_errors(self) -> None:
        with pytest.raises(TypeError, match="batch 1 is a str"):
            shapes.histogram(["x"])
        with pytest.raises(TypeError, match=r"batch 2 is a tensor of shape \(3,\)"):
            shapes.histogram([torch.zeros(1, 3, 2, 2), torch.zeros(3)])
        with pytest.raises(ValueError, match="no images"):
            shapes.histogram([]).suggest()
        with pytest.raises(ValueError, match="got 0"):
            shapes.histogram([torch.zeros(1, 3, 2, 2)]).suggest(0)
        with pytest.raises(ValueError, match="holds an image of 2 x 2"):
            shapes.histogram([torch.zeros(1, 3, 2, 2)]).padding([(1, 5)])
