# SPDX-License-Identifier: MIT
"""explain: which rewrites of a swapped model run on given inputs, and which condition keeps the others from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from .capture.dry_run import DryRuns
from .capture.quiet import copied_inputs, generators_kept, hooks_left_out, quiet_call
from .capture.shell import Shell
from .planning.planned import planned_report
from .report import Site, table
from .rules.activation import activation_of
from .rules.norm import is_normed
from .runtime.fallback import listener, why_declined, why_missed
from .runtime.guards import replaces
from .runtime.instance_forward import is_rewritten, overridden, put_as, recipe_of
from .runtime.reasons import failure, site_names

__all__ = ["Explanation", "Outcome", "explain"]


@dataclass(frozen=True)
class Outcome:
    """What became of one rewrite in one run of the model.

    path, rule, source: as in `Site`. calls: how often the run reached the rewrite. ran: in how many of these calls
    the replacement ran; in the others the original code ran. reason: why, for the first such call; or why the run
    did not reach it.
    """

    path: str
    rule: str
    source: str
    calls: int
    ran: int
    reason: str = ""

    @property
    def result(self) -> str:
        """ "ran", "original", "not called", or how many of the calls ran."""
        if not self.calls:
            return "not called"
        if self.ran in (0, self.calls):
            return "ran" if self.ran else "original"
        return f"ran {self.ran} of {self.calls}"


@dataclass(frozen=True)
class Explanation:
    """What `opswap.explain` found; prints as a table.

    outcomes: one for each rewrite of the model, in the order of its modules. kept: what was refused at the swap.
    note: a sentence if the model was not swapped; else "".
    """

    outcomes: list[Outcome] = field(default_factory=list)
    kept: list[Site] = field(default_factory=list)
    note: str = ""

    def to_json(self) -> str:
        """One object with the fields above, and each outcome's `result`."""
        outcomes = [{**asdict(o), "result": o.result} for o in self.outcomes]
        return json.dumps({**asdict(self), "outcomes": outcomes}, indent=2)

    def __str__(self) -> str:
        ran = sum(bool(o.ran) for o in self.outcomes)
        rows = [(o.path, o.rule or "-", o.result, o.reason, o.source) for o in self.outcomes]
        rows += [(s.path, s.rule or "-", "not swapped", s.reason, s.source) for s in self.kept]
        lines = [f"{ran} of {len(self.outcomes)} replacements ran, {len(self.kept)} were refused at the swap"]
        lines += table(("module", "rule", "result", "reason", "source"), rows)
        return "\n".join([*lines, "", self.note] if self.note else lines)


def explain(model: nn.Module, *inputs: Any, **keywords: Any) -> Explanation:
    """Run a swapped model once, and report for each rewrite whether it ran, and if not, which condition failed.

    A copy of the model runs, in the mode that the model is in and under the gradient mode of the caller: parameters,
    buffers, random generators and the inputs stay as they are. Your hooks are not called, but a condition that
    looks for hooks sees them. The calls count in `opswap.stats()`. The random generators of the process are put back as
    they were: numbers that other threads draw from them meanwhile are drawn again.

    While gradients are recorded, the outcomes have also the activations that read what a BatchNorm of another forward
    computed: no rewrite joins these.

    The same sentences go to `logging.getLogger("opswap")` at level INFO, once for each rewritten forward and for each
    replacement in it, when their original code runs for the first time; not under torch.compile.

    Of a model that was not swapped, the result has no outcomes and a `note`.

    Args: inputs, keywords: the arguments of one call of the model.
    Returns: an outcome for each rewrite, and the sites that the swap refused.
    Raises: TypeError if model is not a module; what the model itself raises on these inputs, and without your hooks.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    for module in filter(is_rewritten, model.modules()):
        record = vars(module).get("_opswap_record")
        if record is not None:  # of the model itself: hooks of a copy write to the model
            record.conflict(module)
    record = _Recorder()
    shell = Shell(model, own=True, stock=False, call=record.call)
    paths = {shell.copy_of(m): path for path, m in model.named_modules()}
    watched = {m: path for m, path in paths.items() if is_rewritten(m) and replaces(m)}
    for module in watched:
        record.watch(module)
    token = listener.set(record)
    try:
        with generators_kept(), DryRuns(model).undone():
            *given, named = copied_inputs((*inputs, keywords))
            shell.root(*given, **named)
    except Exception as error:
        left_out = hooks_left_out(shell.root)
        if left_out and hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(left_out)
        raise
    finally:
        listener.reset(token)
    planned = planned_report(model)
    outcomes = record.outcomes(watched, paths)
    known = {(o.path, o.rule, o.source) for o in outcomes}
    kept = [s for s in planned.kept if (s.path, s.rule, s.source) not in known]
    return Explanation(outcomes, kept, planned.note)


@dataclass
class _Count:
    calls: int = 0
    ran: int = 0
    reason: str = ""


@dataclass
class _Running:
    """A function of generated code that is running, and why it runs the stock operators if it does."""

    module: nn.Module
    reason: str | None = None


class _Recorder:
    """Counts what the generated code of one copy of a model does."""

    def __init__(self) -> None:
        self.counts: dict[tuple[nn.Module, str], _Count] = {}
        self.called: dict[nn.Module, int] = {}
        self.missed: dict[nn.Module, _Count] = {}
        self.entered: dict[nn.Module, int] = {}  # calls of generated forwards that are replaced as a whole
        self._scopes: dict[nn.Module, dict[str, Any]] = {}  # of these
        self._sites: list[_Running] = []
        self.apart: dict[nn.Module, int] = {}  # calls on what a BatchNorm of another forward computed
        self._arguments: list[tuple[Any, ...]] = [()]  # of the modules that are running

    def call(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Runs in place of Module.__call__ of every copied module."""
        self.called[module] = self.called.get(module, 0) + 1
        if activation_of(module) is not None and args and _is_from_outside(args[0], self._arguments[-1]):
            self.apart[module] = self.apart.get(module, 0) + 1
        self._arguments.append((*args, *kwargs.values()))
        try:
            return quiet_call(module, *args, **kwargs)
        finally:
            self._arguments.pop()

    def watch(self, module: nn.Module) -> None:
        """Give the copy a class of its own, whose functions are counted."""
        recipe = replace(recipe_of(module), _cls=None)
        cls = recipe.make_class()
        scope = cls.forward.__globals__
        sites = site_names(recipe.code)
        for name in sites:
            scope[name] = self._counted(module, name, scope[name])
        if not sites:
            self._scopes[module] = scope
            cls.forward = self._entered(module, cls.forward)
        put_as(module, module, recipe)

    def _entered(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.entered[module] = self.entered.get(module, 0) + 1
            return forward(*args, **kwargs)

        return call

    def _counted(self, module: nn.Module, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            count = self.counts.setdefault((module, name), _Count())
            self._sites.append(_Running(module))
            try:
                return function(*args)
            finally:
                reason = self._sites.pop().reason
                count.calls += 1
                count.ran += reason is None
                count.reason = count.reason or reason or ""

        return call

    def module_missed(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        count = self.missed.setdefault(module, _Count())
        count.calls += 1
        count.reason = count.reason or why_missed(module, args, kwargs)

    def site_declined(self, name: str, values: dict[str, Any]) -> None:
        if name == "forward":
            module = values["m0"]
            count = self.missed.setdefault(module, _Count())
            count.calls += 1
            values = {**self._scopes[module], **values}
            count.reason = count.reason or why_declined(module, name, values)
        else:
            running = self._sites[-1]
            running.reason = why_declined(running.module, name, values)

    def outcomes(self, paths: dict[nn.Module, str], all_paths: dict[nn.Module, str]) -> list[Outcome]:
        """One for each rewrite, and for each activation in `apart`.

        A module that is inlined where it is called has those of its caller alone.
        """
        inlined = {
            block
            for m in paths
            if self.called.get(m) and m not in self.missed
            for block, _ in m._opswap_record.inlined
        }
        found: list[Outcome] = []
        for module, path in paths.items():
            if self.called.get(module) or module not in inlined:
                sites = site_names(recipe_of(module).code)
                found += self._of_sites(module, path, sites) if sites else self._of_whole(module, path)
        for module, calls in self.apart.items():
            found.append(Outcome(all_paths[module], "batch_norm_act", "", calls, 0, _APART))
        order = {path: i for i, path in enumerate(all_paths.values())}
        return sorted(found, key=lambda o: order.get(o.path, 0))

    def _of_sites(self, module: nn.Module, path: str, sites: dict[str, str]) -> list[Outcome]:
        missed, called = self.missed.get(module, _Count()), self.called.get(module, 0)
        found = []
        for name, comment in sites.items():
            source, rule, inner = [*comment.split(" | "), "", ""][:3]
            count = self.counts.get((module, name), _Count())
            calls, reason = count.calls + missed.calls, missed.reason or count.reason
            if not calls:
                reason = _bypassed(module, _PATH) if called else failure(module) or ""
            whole = ".".join(p for p in (path, inner.strip()) if p)
            found.append(Outcome(whole, rule, source, calls, count.ran, reason))
        return found

    def _of_whole(self, module: nn.Module, path: str) -> list[Outcome]:
        missed, entered = self.missed.get(module, _Count()), self.entered.get(module, 0)
        called = max(entered, self.called.get(module, 0))
        sites = module._opswap_record.sites
        if not sites and not called:
            return []  # what replaced it together with its neighbour ran
        code = recipe_of(module).code
        rule = code.splitlines()[0].strip("#| ")
        source = sites[0].source if sites else ""
        reason = missed.reason or (_bypassed(module, "") if entered < called else "")
        return [Outcome(path, rule, source, called, entered - missed.calls, reason)]


_PATH = "another path of the forward ran"
_APART = (
    "it reads the result of a BatchNorm in another forward, which may have other readers: "
    "they are joined where one forward calls both"
)


def _is_from_outside(input: Any, arguments: tuple[Any, ...]) -> bool:
    """True for an argument that a BatchNorm computed, as autograd's graph shows."""
    return any(input is a for a in arguments) and isinstance(input, Tensor) and is_normed(input)


def _bypassed(module: nn.Module, otherwise: str) -> str:
    """Why calls of the module do not come to its generated forward; `otherwise` if they do."""
    if not overridden(module):
        return otherwise
    return "its forward was replaced" if "forward" in vars(module) else "its new forward was removed"
