# SPDX-License-Identifier: MIT
"""opswap._np without torch, and batch_images in the workers of a DataLoader."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

import opswap
from opswap import _np, shapes
from surviving import python
from threads import at_once, meanwhile

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Loads the extension alone; a symbol of torch that it needed would be missing.
_ALONE = """
import importlib.machinery, importlib.util, sys
import numpy as np

loader = importlib.machinery.ExtensionFileLoader("opswap._np", sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("opswap._np", loader))
loader.exec_module(module)
images = (np.full((2, 3, 3), 255, np.uint8), np.full((1, 1, 3), 51, np.uint8)[::-1, ::-1])
batch, padding = np.empty((2, 3, 2, 4), np.float32), np.full(3, 9, np.float32)
module.fill(images, batch, "float32", False, padding, 1 / 255, np.zeros(3, np.float32), np.ones(3, np.float32))
assert (batch[0, :, :, :3] == 1).all() and (batch[0, :, :, 3] == 9).all()
assert (batch[1, :, 0, 0] == np.float32(51) * np.float32(1 / 255)).all() and (batch[1, :, 1] == 9).all()
assert not any(name.split(".")[0] in ("torch", "opswap") for name in sys.modules if name != "opswap._np")
print(module.isa_current())
"""


@pytest.mark.parametrize("tier", ["scalar", ""])
def test_the_extension_needs_no_torch(tier: str) -> None:
    found = python(_ALONE, _np.__file__, OPSWAP_ISA=tier).strip()
    assert found == (tier or found)


def test_the_tier_follows_that_of_opswap() -> None:
    assert _np.isa_current() == opswap.isa.current()
    with opswap.isa.limit("scalar"):
        assert _np.isa_current() == "scalar"
    assert _np.isa_current() == opswap.isa.current()


class Pictures(Dataset):
    """Images of different sizes with boxes, the same in every process."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[NDArray[Any], dict[str, Any]]:
        generator = np.random.default_rng(index)
        h, w = generator.integers(12, 30, 2)
        boxes = torch.tensor([[0.0, 0, w, h]] * (index % 3)).view(-1, 4)
        labels = torch.ones(len(boxes), dtype=torch.int64)
        pixels = generator.integers(0, 256, (h, w, 3), dtype=np.uint8)
        return pixels[:, ::-1, ::-1], {"boxes": boxes, "labels": labels}


@pytest.mark.parametrize(
    ("context", "dtype"),
    [("fork", torch.float32), ("fork", torch.bfloat16), ("fork", None), ("spawn", torch.bfloat16)],
)
def test_workers(context: str, dtype: torch.dtype | None) -> None:
    options: dict[str, Any] = {} if dtype is None else {"mean": MEAN, "std": STD, "dtype": dtype}
    collate = shapes.collate_fixed(32, max_boxes=4, memory_format=torch.channels_last, **options)
    data = Pictures()
    here = [collate([data[i], data[i + 1]]) for i in range(0, 8, 2)]
    loader = DataLoader(data, 2, collate_fn=collate, num_workers=1, multiprocessing_context=context)
    for (batch, targets), (want, want_targets) in zip(loader, here, strict=True):
        assert torch.equal(batch.images, want.images) and batch[1:] == want[1:]
        assert batch.images.is_contiguous(memory_format=torch.channels_last) and batch.images.is_shared()
        assert all(torch.equal(t["boxes"], u["boxes"]) for t, u in zip(targets, want_targets, strict=True))


class Batches(Dataset):
    """Whole batches, made by the worker; whether they were in shared memory there."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[bool, torch.Tensor]:
        made = shapes.batch_images(
            [np.full((3, 4, 3), index, np.uint8)], 5, dtype=torch.bfloat16, scale=1
        ).images
        return made.is_shared(), made


def test_a_worker_writes_to_shared_memory() -> None:
    for index, (shared, made) in enumerate(DataLoader(Batches(), batch_size=None, num_workers=1)):
        assert shared and made.shape == (1, 3, 5, 5) and (made[:, :, :3, :4] == index).all()
    assert not Batches()[0][0], "in the main process nothing is shared"


def is_advised(address: int) -> bool:
    """True if the system was asked for huge pages at this address of the process."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    return False


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without huge pages"
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_large_batches_ask_for_huge_pages(memory_format: torch.memory_format) -> None:
    images = [np.full((1300, 1300, 3), 7, np.uint8)] * 8  # 40 MB: mapped by itself, not cut from freed memory
    made = shapes.batch_images(images, 1300, memory_format=memory_format).images
    assert is_advised(made.data_ptr() + made.nbytes // 2) and (made == 7).all()
    for bad in (None, np.zeros((4, 4))[:, ::2]):
        with pytest.raises(TypeError, match="C order"):
            _np.huge_pages(bad)


def test_collate_can_be_pickled_and_takes_tensors() -> None:
    collate = pickle.loads(pickle.dumps(shapes.collate_fixed(8, max_boxes=1)))
    target = {"boxes": torch.zeros(0, 4)}
    assert collate([(torch.ones(3, 2, 2), target)])[0].images.shape == (1, 3, 8, 8)
    assert collate([(np.ones((2, 2, 3), np.uint8), target)])[0].images.shape == (1, 3, 8, 8)
    with pytest.raises(TypeError, match="image 1 is a Tensor"):
        collate([(np.ones((2, 2, 3), np.uint8), target), (torch.ones(3, 2, 2), target)])
    normalised = shapes.collate_fixed(8, max_boxes=1, mean=MEAN, dtype=torch.float16)
    with pytest.raises(TypeError, match="collate_fixed: mean, dtype need images that are NumPy arrays"):
        normalised([(torch.ones(3, 2, 2), target)])


def test_threads_side_by_side() -> None:
    """Calls on several threads, while another changes the tier."""
    x = np.random.default_rng(0).integers(0, 256, (120, 150, 3), dtype=np.uint8)
    want = shapes.batch_images([x], 160, mean=MEAN, std=STD).images
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            if not torch.equal(shapes.batch_images([x], 160, mean=MEAN, std=STD).images, want):
                wrong.append(1)

    def limit() -> None:
        with opswap.isa.limit("scalar"):
            pass

    with meanwhile(limit):
        at_once(work, work, work)
    assert not wrong


def test_images_and_results_are_not_leaked() -> None:
    x = np.ones((4, 4, 3), np.uint8)
    before = sys.getrefcount(x)
    for _ in range(20):
        shapes.batch_images([x, x], 8, mean=0.5)
        with pytest.raises(ValueError, match="channels"):
            shapes.batch_images([x, x[..., :1]], 8)
    assert sys.getrefcount(x) == before
