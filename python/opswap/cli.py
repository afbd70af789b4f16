# SPDX-License-Identifier: MIT
"""The command line: `opswap demo | scan | layout | shapes | denormals | doctor`."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence

from ._arguments import at_least_one, writable_file

__all__ = ["main"]


def _batch_size(text: str) -> int:
    value = at_least_one(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"batch normalisation needs at least 2 images, got {text!r}")
    return value


def _natural(text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    value = _natural(text)
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


def _factory(text: str) -> str:
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise argparse.ArgumentTypeError(f"expected package.module:factory, got {text!r}")
    return text


def _size(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not all(p.isdecimal() and p.isascii() for p in parts):
        raise argparse.ArgumentTypeError(f"expected sizes such as 32x3x224x224, got {text!r}")
    return tuple(map(int, parts))


def _parser() -> argparse.ArgumentParser:
    from . import __version__
    from .layout.command import COMMAND as LAYOUT
    from .memory.command import COMMAND as DENORMALS
    from .shapes.command import COMMAND as SHAPES

    parser = argparse.ArgumentParser(
        prog="opswap", description="Fast, verified replacements for slow operators in PyTorch models."
    )
    parser.add_argument("--version", action="version", version=f"opswap {__version__}")
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="{demo,scan,layout,shapes,denormals,doctor}"
    )
    _add_demo(commands)
    _add_scan(commands)
    for finder in (LAYOUT, SHAPES, DENORMALS):
        finder.add_to(commands)
    doctor = commands.add_parser("doctor", help="print versions and processor, and check every kernel tier")
    doctor.set_defaults(run=_run_doctor)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="train ShuffleNetV2, LPRNet, a multi-branch net and a detector on handwritten digits, in two forms each",
        description="Train stock and optimized copies of two networks on the same batches: ShuffleNetV2 x0.5, "
        "which tells handwritten digits apart, and LPRNet, which reads strips of seven of them. The losses of the "
        "bit-equal rules must be equal in the first steps. Then train a net with twelve branches, in a loop and "
        "merged, whose losses must be equal within a tolerance, and a small detector, whose sizes depend on data, and "
        "its form of fixed sizes, of which torch.compile builds one graph. Prints accuracies and step times, draws a "
        "plot.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument(
        "--only",
        choices=("shufflenet", "lprnet", "multi_branch", "detection", "ddp"),
        help="one part, None for all but ddp, which trains on two processes",
    )
    demo.add_argument("--batch-size", type=_batch_size, default=32, help="images in a training step")
    demo.add_argument("--seed", type=_seed, default=0, help="of the weights, the split and the batches")
    demo.add_argument("--threads", type=at_least_one, help="threads of torch, None for torch's own choice")
    demo.add_argument(
        "--rounds", type=_natural, default=8, help="timed steps of each memory format, 0 for no such timing"
    )
    demo.add_argument("--output", type=writable_file, default="opswap-demo.png", help="the plot, a PNG file")
    demo.add_argument("--verbose", action="store_true", help="print the whole report of each swap and merge")
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
        help="train longer, fail where fewer than 90 %% of held-out strips are read",
    )
    lprnet.add_argument("--steps", type=at_least_one, help="training steps, None for those of the demo")
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
    demo.set_defaults(run=functools.partial(_run_demo, demo))


def _add_scan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    scan = commands.add_parser(
        "scan",
        help="list what swap would replace in a model",
        description="List what swap would replace in a model, how much faster each replacement was measured, and "
        "why other candidates stay. Exit status 1 where it finds nothing.",
    )
    scan.add_argument(
        "model",
        type=_factory,
        metavar="package.module:factory",
        help="a model, or what returns one when called",
    )
    scan.add_argument("--exact", action="store_true", help="only replacements with bit-equal results")
    scan.add_argument(
        "--input",
        type=_size,
        action="append",
        metavar="32x3x224x224",
        help="run a copy once on an input of this size; again for further inputs",
    )
    scan.add_argument("--json", action="store_true", help="print the report as JSON")
    scan.add_argument(
        "--strict", action="store_true", help="exit status 1 also where a module could not be analysed"
    )
    scan.set_defaults(run=_run_scan)


def _fail(message: str) -> int:
    print(f"opswap: error: {message}", file=sys.stderr)
    return 1


def _run_demo(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    try:
        from . import demo
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in ("rich", "matplotlib", "sklearn"):
            raise
        return _fail(f"the demo needs {missing.name}, which is not installed: pip install 'opswap[demo]'")
    try:
        settings = demo.Settings(**{key: value for key, value in vars(arguments).items() if key != "run"})
    except ValueError as error:
        parser.error(str(error))
    try:
        demo.run(settings)
    except demo.DemoError as error:
        return _fail(str(error))
    return 0


def _run_scan(arguments: argparse.Namespace) -> int:
    import torch

    from .finding.script import UsageError, load_model
    from .swap import scan

    try:
        model = load_model(arguments.model)
    except UsageError as error:
        return _fail(str(error))
    inputs = None if arguments.input is None else tuple(map(torch.zeros, arguments.input))
    try:
        found = scan(model, exact=arguments.exact, example_inputs=inputs)
    except ValueError as error:
        return _fail(str(error))
    print(found.to_json() if arguments.json else found)
    unknown = arguments.strict and any(not site.rule for site in found.kept)
    return 0 if found.swapped and not unknown else 1


def _run_doctor(arguments: argparse.Namespace) -> int:
    from .doctor import check_kernels, describe

    for key, value in describe().items():
        print(f"{key:<11} {value}")
    faults = check_kernels()
    print(f"{'kernels':<11} " + ("every tier agrees with the reference" if not faults else "FAULTY"))
    for fault in faults:
        print(f"  {fault}")
    return 1 if faults else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args: argv: the arguments, those of the process where None.
    Returns: the exit status: 0 done, 1 failed (or, for scan, nothing found), 141 where whoever reads the output
        has stopped, as shells say of what SIGPIPE ended. Wrong arguments exit with 2.
    """
    try:
        try:
            arguments = _parser().parse_args(argv)
            return arguments.run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # for what the interpreter flushes at its end
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 141
