# SPDX-License-Identifier: MIT
"""Run a user's script, module or model under a finder, and report at its end, whatever ends it."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.util
import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from opswap._command_line import (
    INTERRUPTED,
    STANDARD_OUTPUT,
    UsageError,
    add_json,
    at_least_one,
    require,
    writable_file,
    write_json,
)

__all__ = [
    "InputSize",
    "StepsDone",
    "Target",
    "UsageError",
    "add_arguments",
    "add_input",
    "factory_step",
    "load_model",
    "parse_target",
    "process_state",
    "require_matplotlib",
    "run_script",
    "run_under",
    "stop_after",
]


class StepsDone(BaseException):
    """Ends the user's program after --steps; not an Exception, so that a training loop does not catch it."""


@dataclass(frozen=True)
class Target:
    """What to run. kind: "script" (name is a file), "module" (as python -m) or "factory" ("package.module:name")."""

    kind: str
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputSize:
    """Sizes and dtype of one input of a model."""

    size: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    @staticmethod
    def parse(text: str) -> InputSize:
        """ "32x3x224x224" or "8x16:int64". Raises: argparse.ArgumentTypeError."""
        sizes, _, name = text.partition(":")
        parts = sizes.split("x")
        dtype = getattr(torch, name or "float32", None)
        if not all(p.isdecimal() and p.isascii() for p in parts) or not isinstance(dtype, torch.dtype):
            raise argparse.ArgumentTypeError(
                f"expected sizes such as 32x3x224x224 or 8x16:int64, got {text!r}"
            )
        return InputSize(tuple(map(int, parts)), dtype)

    def make(self) -> Tensor:
        """Random numbers if floating point, zeros otherwise."""
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(self.size, dtype=self.dtype)
        return torch.zeros(self.size, dtype=self.dtype)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that every finder has."""
    parser.add_argument(
        "target",
        nargs="*",
        metavar="-- script.py ... | -- -m package.module ... | package.module:factory",
        help="a script or module with its own arguments, after --; or a model, or what returns one when called",
    )
    add_input(parser, "for a factory: an input of the model")
    parser.add_argument("--backward", action="store_true", help="for a factory: run the backward too")
    parser.add_argument(
        "--steps",
        type=at_least_one,
        help="stop after so many optimizer steps; without an optimizer, so many backward passes; "
        "for a factory, so many runs",
    )
    add_json(parser)
    parser.add_argument("--plot", metavar="FILE", type=_writable, help="draw the report, a PNG file")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="NAME",
        help="a known finding: an operator, a module or a line such as net.py:31, with wildcards; again for more",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 if something was found, for continuous integration",
    )


def add_input(parser: argparse.ArgumentParser, what: str, required: bool = False) -> None:
    """The argument `--input`, a list of `InputSize`."""
    parser.add_argument(
        "--input",
        type=InputSize.parse,
        action="append",
        required=required,
        metavar="32x3x224x224[:dtype]",
        help=f"{what}; again for further inputs",
    )


def _writable(text: str) -> Path:
    """Absolute, as the user's script may change the working directory."""
    return writable_file(text).absolute()


def parse_target(words: list[str], inputs: list[InputSize] | None) -> Target:
    """What the words after the options name. Raises: UsageError."""
    if not words:
        raise UsageError("name a script after --, or a package.module:factory")
    first, *rest = words
    if first == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module")
        return Target("module", rest[0], tuple(rest[1:]))
    module, colon, name = first.partition(":")
    if colon and module and name and not os.path.exists(first):
        if rest:
            raise UsageError(f"a factory accepts no arguments, got {' '.join(rest)!r}")
        if not inputs:
            raise UsageError(f"{first!r} needs at least one --input, such as --input 32x3x224x224")
        return Target("factory", first)
    if inputs:
        raise UsageError(f"--input is for a package.module:factory, got the script {first!r}")
    if not os.path.isfile(first):
        raise UsageError(f"there is no script {first!r}")
    return Target("script", first, tuple(rest))


def require_matplotlib() -> None:
    """Raises: UsageError without matplotlib, before a long run ends without its picture."""
    require("matplotlib", "--plot", "demo")


def load_model(name: str) -> nn.Module:
    """The model that "package.module:factory" names, or returns when called. Raises: UsageError."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except TypeError:
        if not module_name.startswith("."):
            raise
        raise UsageError(
            f"{name!r}: {module_name!r} is not the name of a module, such as package.module"
        ) from None
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise
        raise UsageError(f"{name!r}: there is no module {missing.name!r}") from None
    except AttributeError:
        if hasattr(sys.modules.get(module_name), attribute):
            raise
        raise UsageError(f"{name!r}: {module_name!r} has no {attribute!r}") from None
    model = found if isinstance(found, nn.Module) or not callable(found) else _called(name, found)
    if not isinstance(model, nn.Module):
        raise UsageError(f"{name!r} gave an object of type {type(model).__name__}, not a torch.nn.Module")
    return model


def _called(name: str, factory: Callable[[], Any]) -> Any:
    try:
        inspect.signature(factory).bind()
    except TypeError as missing:
        raise UsageError(f"{name!r} cannot be called without arguments: {missing}") from None
    except ValueError:  # a function in C that does not say what it accepts
        pass
    return factory()


def factory_step(model: nn.Module, inputs: tuple[Tensor, ...], *, backward: bool) -> Callable[[], None]:
    """A function that runs the model once, with a backward of the sum of its outputs' means if requested."""

    def run() -> None:
        with torch.set_grad_enabled(backward):
            outputs = model(*inputs)
        if backward:
            losses = [t.float().mean() for t in _tensors(outputs) if t.requires_grad]
            if not losses:
                raise UsageError("--backward: no output of the model needs a gradient")
            torch.stack(losses).sum().backward()

    return run


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _execute(target: Target) -> None:
    """Run a script or a module as `python` does: as __main__, with its arguments and its folder first on the path."""
    if target.kind == "module":
        sys.argv = [target.name, *target.arguments]
        sys.path.insert(0, os.getcwd())
        try:
            found = importlib.util.find_spec(target.name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise UsageError(f"there is no module {target.name!r}")
        runpy.run_module(target.name, run_name="__main__", alter_sys=True)
    else:
        path = os.path.abspath(target.name)  # as python: the script may change the working directory
        sys.argv = [target.name, *target.arguments]
        sys.path.insert(0, os.path.dirname(path))
        runpy.run_path(path, run_name="__main__")


@contextlib.contextmanager
def process_state() -> Iterator[None]:
    """Give sys.argv and sys.path back as they were."""
    arguments, path = sys.argv, list(sys.path)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = arguments, path


def run_script(run: Callable[[], None] | Target, finish: Callable[[], None]) -> int:
    """Run a program, or a function, then `finish`, and return the exit status that the program would have had.

    An error of the program is printed as python prints it, without the frames of the tool; Ctrl-C gives 130, and
    StepsDone 0. Whatever ended it, `finish` runs, but not in a process that the program forked.
    Raises: UsageError of the program's own target.
    """
    process = os.getpid()
    status = 0
    with process_state():
        try:
            _execute(run) if isinstance(run, Target) else run()
        except UsageError:
            raise
        except StepsDone:
            pass
        except SystemExit as stop:
            status = _exit_status(stop)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            status = INTERRUPTED
        except BaseException as error:
            _print_traceback(error)
            status = 1
    if os.getpid() == process:
        finish()
    return status


def run_under(context: Any, run: Callable[[], None] | Target, arguments: argparse.Namespace) -> int:
    """Run a program under a finder's context and write the parts of its report that `arguments` select.

    Returns: the exit status of the program; 1 if it is 0, something was found, and the arguments are strict.
    """
    with stop_after(arguments.steps) as after_operator:
        context._after_operator = after_operator
        report = context.__enter__()

        def finish() -> None:
            context.__exit__(None, None, None)
            sys.stdout.flush()
            if arguments.json != STANDARD_OUTPUT:
                print(report)
            if arguments.json is not None:
                write_json(arguments.json, report.to_json())
            if arguments.plot is not None:
                report.plot(arguments.plot)

        try:
            status = run_script(run, finish)
        except UsageError:
            context.__exit__(None, None, None)
            raise
    return 1 if not status and arguments.strict and report.findings else status


def _exit_status(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException) -> None:
    """As python does, from the first frame of the program on."""
    own = (__file__, runpy.__file__, "<frozen runpy>")
    start: TracebackType | None = error.__traceback__
    while start is not None and start.tb_frame.f_code.co_filename in own:
        start = start.tb_next
    traceback.print_exception(type(error), error, start)


@contextlib.contextmanager
def stop_after(steps: int | None) -> Iterator[Callable[[bool], None]]:
    """Raise StepsDone after so many optimizer steps; without any optimizer, after so many backward passes.

    Yields: a function that a dispatch mode calls with whether its operator ran inside a backward; it raises at the
        first operator after the last backward.
    """
    if steps is None:
        yield lambda inside: None
        return
    counter = _Counter(steps)
    handle = register_optimizer_step_post_hook(counter.optimizer_stepped)
    try:
        yield counter.operator_ran
    finally:
        handle.remove()


class _Counter:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._optimizer_steps = 0
        self._backwards = 0
        self._inside = False

    def optimizer_stepped(self, *_: Any) -> None:
        self._optimizer_steps += 1
        if self._optimizer_steps >= self._steps:
            raise StepsDone

    def operator_ran(self, inside: bool) -> None:
        if self._inside and not inside:
            self._backwards += 1
            if self._backwards >= self._steps and not self._optimizer_steps and not _has_optimizer():
                self._inside = False
                raise StepsDone
        self._inside = inside


def _has_optimizer() -> bool:
    return any(issubclass(type(thing), Optimizer) for thing in gc.get_objects())
