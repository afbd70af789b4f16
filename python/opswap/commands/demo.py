# SPDX-License-Identifier: MIT
"""`python3 -m opswap demo`: networks trained on real images, stock against swapped."""

from __future__ import annotations

import argparse
import sys

from opswap._command_line import (
    Commands,
    add_command,
    add_json,
    add_threads,
    at_least_one,
    natural,
    require,
    writable_file,
)

__all__ = ["add"]

_NEEDED = ("rich.console", "matplotlib.figure", "sklearn.datasets")


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command to a command line."""
    demo = add_command(
        commands,
        "demo",
        help="train ShuffleNetV2, LPRNet, a multi-branch net and a detector on handwritten digits, in two forms each",
        description="Train stock and optimized copies of two networks on the same batches: ShuffleNetV2 x0.5, "
        "which classifies handwritten digits, and LPRNet, which reads strips of seven of them. The losses of the "
        "bit-equal rules must be equal in the first steps. Then train a net with twelve branches, in a loop and "
        "merged, whose losses must be equal within a tolerance, and a small detector, whose sizes depend on data, and "
        "its form of fixed sizes, of which torch.compile builds one graph. Prints accuracies and step times, draws a "
        "plot.",
        examples="demo\ndemo --only shufflenet --threads 2 --output shufflenet.png --json shufflenet.json",
        statuses={0: "all comparisons hold", 1: "losses or parameters differ, or an accuracy is too low"},
        run=lambda arguments: _run(demo, arguments),
    )
    _add_arguments(demo)


def _add_arguments(demo: argparse.ArgumentParser) -> None:
    demo.add_argument(
        "--only",
        choices=("shufflenet", "lprnet", "multi_branch", "detection", "ddp"),
        help="one part; by default all but ddp, which trains on two processes",
    )
    demo.add_argument("--batch-size", type=_batch_size, default=32, help="images in a training step")
    demo.add_argument("--seed", type=_seed, default=0, help="of the weights, the split and the batches")
    add_threads(demo)
    demo.add_argument(
        "--rounds", type=natural, default=8, help="timed steps of each memory format, 0 for no such timing"
    )
    demo.add_argument("--output", type=writable_file, default="opswap-demo.png", help="the plot, a PNG file")
    demo.add_argument("--verbose", action="store_true", help="print the whole report of each swap and merge")
    add_json(demo, "losses, accuracies and times")
    shufflenet = demo.add_argument_group("ShuffleNetV2")
    shufflenet.add_argument("--epochs", type=at_least_one, default=8, help="passes over the training images")
    shufflenet.add_argument(
        "--image-size", type=_image_size, default=48, help="side of a scaled-up image, in pixels"
    )
    shufflenet.add_argument(
        "--min-accuracy", type=_percent, default=95.0, help="fail below this held-out accuracy, in percent"
    )
    lprnet = demo.add_argument_group("LPRNet")
    lprnet.add_argument(
        "--full",
        action="store_true",
        help="train longer, fail if fewer than 90 %% of held-out strips are read; ShuffleNetV2 in 16 bits too",
    )
    lprnet.add_argument("--steps", type=at_least_one, help="training steps in place of those of the demo")
    lprnet.add_argument(
        "--compared-steps",
        type=at_least_one,
        default=8,
        help="steps, of ShuffleNetV2 too, with bit-equal rules",
    )
    branches = demo.add_argument_group("multi-branch net")
    branches.add_argument(
        "--branch-steps", type=at_least_one, default=132, help="training steps of both forms"
    )
    detection = demo.add_argument_group("detector with sizes that depend on data, and with fixed sizes")
    detection.add_argument(
        "--detection-steps", type=at_least_one, default=40, help="training steps of both forms"
    )
    ddp = demo.add_argument_group("DistributedDataParallel on two processes")
    ddp.add_argument("--ddp-steps", type=at_least_one, default=20, help="timed training steps")


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    for module in _NEEDED:
        require(module, "the demo", "demo")
    from opswap import demo

    given = {key: value for key, value in vars(arguments).items() if key not in ("run", "command")}
    try:
        settings = demo.Settings(**given)
    except ValueError as error:
        parser.error(str(error))
    try:
        demo.run(settings)
    except demo.DemoError as error:
        print(f"opswap demo: {error}", file=sys.stderr)
        return 1
    return 0


def _batch_size(text: str) -> int:
    value = at_least_one(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"batch normalisation needs at least 2 images, got {text!r}")
    return value


def _seed(text: str) -> int:
    value = natural(text)
    if value >= 2**32:
        raise argparse.ArgumentTypeError(f"expected a seed below 2**32, got {text!r}")
    return value


def _image_size(text: str) -> int:
    value = at_least_one(text)
    if value < 32:
        raise argparse.ArgumentTypeError(f"the network halves an image five times: at least 32, got {text!r}")
    return value


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 100.0:
        raise argparse.ArgumentTypeError(f"expected a percentage from 0 to 100, got {text!r}")
    return value
