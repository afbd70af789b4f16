# SPDX-License-Identifier: MIT
"""The swapped ShuffleNetV2 under DistributedDataParallel, on processes of this machine over gloo:

    torchrun --standalone --nproc-per-node 2 -m opswap.demo.ddp

`python3 -m opswap demo --only ddp` starts the same with two processes.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

import opswap

from . import digits
from .settings import DemoError, Settings

__all__ = ["launch", "main"]

_PROCESSES = 2
_PROVEN_STEPS = 3
_TOLERANCE = 1e-10  # of the largest parameter, in float64
_LEARNING_RATE = 0.05
_EPOCHS = 1000  # more than any run needs


def launch(settings: Settings) -> str:
    """Run this file by torchrun's module on two processes. Returns: what it prints. Raises: DemoError if it fails."""
    _check_batch(settings.batch_size, _PROCESSES)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(_PROCESSES)]
    options = {
        "--steps": settings.ddp_steps,
        "--batch-size": settings.batch_size,
        "--image-size": settings.image_size,
        "--seed": settings.seed,
    }
    arguments = [str(value) for pair in options.items() for value in pair]
    threads = settings.threads or max(torch.get_num_threads() // _PROCESSES, 1)
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "opswap.demo.ddp", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"the processes failed:\n{done.stderr}")
    return done.stdout


def main(arguments: list[str] | None = None) -> None:
    """What each process runs.

    Raises: SystemExit if torchrun did not start it; DemoError if processes or losses differ.
    """
    parser = argparse.ArgumentParser(prog="torchrun -m opswap.demo.ddp", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="timed training steps (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images of all processes together")
    parser.add_argument("--image-size", type=int, default=48, help="side of an image, in pixels")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if "WORLD_SIZE" not in os.environ:
        parser.error("start it with torchrun --standalone --nproc-per-node 2 -m opswap.demo.ddp")
    dist.init_process_group("gloo")
    try:
        _run(given)
        dist.barrier()  # no process closes its connections while another one needs them
    finally:
        dist.destroy_process_group()


def _run(given: argparse.Namespace) -> None:
    world = dist.get_world_size()
    _check_batch(given.batch_size, world)
    side = given.image_size, given.image_size
    data = digits.standardised(digits.load(side, given.seed))
    feed = digits.batches(data, given.batch_size, _EPOCHS, given.seed)
    torch.manual_seed(given.seed)
    model = opswap.optimize(opswap.models.shufflenet_v2_x0_5(num_classes=digits.CLASSES))
    error = _prove(model, list(islice(feed, _PROVEN_STEPS)))
    joint = _images_per_second(model, feed, given.steps)
    count = _check_equal(model)
    lines = [
        f"{world} processes, {torch.get_num_threads()} thread(s) each, {given.batch_size} images in a step",
        f"joint batch: after {_PROVEN_STEPS} steps in float64 with fixed BatchNorm statistics, the parameters equal "
        f"those of one process to {error:.1g} of the largest (allowed: {_TOLERANCE:g})",
        f"processes: after {given.steps} steps all {count} parameters are equal bit for bit",
        f"speed: {joint:.0f} images per second",
    ]
    if dist.get_rank() == 0:
        print("\n".join(lines), flush=True)


def _check_batch(size: int, processes: int) -> None:
    if size % processes:
        raise DemoError(f"{size} images cannot be divided among {processes} processes")


def _prove(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Train copies on shares of batches, and on whole batches in each process.

    BatchNorm computes with the statistics of its own share, and SyncBatchNorm needs GPUs. Its statistics are therefore
    held fixed here: then the mean of the gradients of equal shares is the gradient of the whole.

    Returns: the largest difference of a parameter, as a part of the largest parameter.
    """
    alone = _fixed(copy.deepcopy(model).double())
    shared = _fixed(copy.deepcopy(alone))
    _train(DistributedDataParallel(shared), (_share(batch) for batch in batches), torch.float64)
    _train(alone, batches, torch.float64)
    pairs = list(zip(alone.parameters(), shared.parameters(), strict=True))
    error = max((a - b).abs().max().item() for a, b in pairs) / max(a.abs().max().item() for a, _ in pairs)
    if not error <= _TOLERANCE:
        raise DemoError(f"shares and joint batch differ by {error:g} of the largest parameter")
    _check_equal(shared)
    return error


def _fixed(model: nn.Module) -> nn.Module:
    """In training, but for the statistics of BatchNorm."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    return model


def _share(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The part of a batch that this process trains on."""
    images, labels = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in batch)
    return images, labels


def _train(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], dtype: torch.dtype) -> None:
    optimizer = torch.optim.SGD(model.parameters(), _LEARNING_RATE, momentum=0.9)
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(images.to(dtype)), labels).backward()
        optimizer.step()


def _images_per_second(model: nn.Module, feed: Iterator[tuple[Tensor, Tensor]], steps: int) -> float:
    """Of all processes together, without the first step, in which buffers are made."""
    batches = list(islice(feed, steps + 1))
    trained = DistributedDataParallel(model.train())
    _train(trained, [_share(batches[0])], torch.float32)
    dist.barrier()
    start = time.perf_counter()
    _train(trained, map(_share, batches[1:]), torch.float32)
    dist.barrier()
    return steps * len(batches[0][1]) / (time.perf_counter() - start)


def _check_equal(model: nn.Module) -> int:
    """Raise DemoError, in all processes, unless the parameters of all are equal; returns their number."""
    parameters = list(model.parameters())
    differing = torch.zeros(len(parameters))
    for i, p in enumerate(parameters):
        first = p.detach().clone().contiguous()
        dist.broadcast(first, 0)
        differing[i] = not torch.equal(first, p)
    dist.all_reduce(differing)
    if differing.any():
        raise DemoError(f"{int(differing.count_nonzero())} parameters differ between the processes")
    return len(parameters)


if __name__ == "__main__":
    main()
    # After a backward of DDP torch keeps the group's threads even if it is destroyed, and at times they abort an
    # interpreter that ends in the ordinary way.
    sys.stdout.flush()
    os._exit(0)
