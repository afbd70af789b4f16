# SPDX-License-Identifier: MIT
"""Decide what to rewrite: every module on its own, then the Sequentials whose blocks continue each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx, nn

from ..capture.example_run import ModelInputs
from ..capture.paths import Capture, CaptureError, capture
from ..capture.shell import Shell
from ..capture.tracer import class_name
from ..report import Report, Site
from ..rewriting.code import containers_of
from ..rule import UNPROBED, Region
from ..rules import Rule
from ..rules.activation import is_activation
from ..runtime.guards import NOT_MERGED, call_adds
from .advice import group_loop_hint
from .apart import RULE as apart_rule
from .apart import activations_apart, key_of, norm_at_end
from .block_ends import continues, cuts_its_input, is_norm_call, joins_its_output
from .blocks import Blocks
from .changes import Change, apply_rules, without_kernel
from .contiguity import (
    Contiguity,
    calls_convolution,
    contiguity_of,
    order_matters,
    order_matters_in,
    restricted,
)
from .gains import gain
from .module_kinds import (
    copies_itself,
    is_compiled,
    is_library,
    is_own,
    is_sequential,
    may_view,
    source_of,
    unsupported,
)
from .seen_inside import SEEN_INSIDE, seen_inside

__all__ = ["ModuleReplacement", "Plan", "in_order", "make_plan"]


@dataclass
class Path:
    """One captured path of a forward: what can be rewritten in it and what was refused."""

    capture: Capture
    changes: list[Change] = field(default_factory=list)
    refused: list[Site] = field(default_factory=list)

    def shuffles(self) -> list[Region]:
        """What is replaced by a call that keeps the memory format."""
        return [c.region for c in self.changes if c.replacement.contiguous]


@dataclass
class Known:
    """What is known of one module. merged: its calls are parts of other changes, which the report names instead."""

    name: str
    root: nn.Module
    inlined: tuple[nn.Module, ...]
    paths: list[Path]
    merged: bool = False

    @property
    def graphs(self) -> list[fx.Graph]:
        return [p.capture.graph for p in self.paths]

    @property
    def changes(self) -> list[Change]:
        return [c for p in self.paths for c in p.changes]

    @property
    def refused(self) -> list[Site]:
        return [s for p in self.paths for s in p.refused]

    def sites(self) -> list[Site]:
        """Where it changes; what several paths share counts once. Nowhere if its calls are merged with others."""
        counts: Counter[Site] = Counter()
        for path in () if self.merged else self.paths:
            counts |= Counter(c.site for c in path.changes)
        return list(counts.elements())

    def calls_no_module(self) -> bool:
        return all(n.op != "call_module" for p in self.paths for n in p.capture.graph.nodes)

    def cuts_its_input(self) -> bool:
        return any(cuts_its_input(p.capture.graph) for p in self.paths)

    def joins_its_output(self) -> bool:
        return any(joins_its_output(p.capture.graph) for p in self.paths)


@dataclass
class ModuleReplacement:
    """A module whose whole forward is replaced; `sites` is empty if the report names it elsewhere."""

    path: str
    module: nn.Module
    rule: Rule
    sites: tuple[Site, ...] = ()


@dataclass
class Plan:
    """Modules to rewrite, children before parents, and the entries of the report.

    The modules are twins of those that `shell.live` gives; `paths` are those of all twins. `contiguity`: which
    code of the model needs contiguous tensors. `followed`: modules that change nowhere, but whose captured forward a
    recorded call of the whole model goes through.
    """

    modules: list[Known]
    module_replacements: list[ModuleReplacement]
    report: Report
    shell: Shell
    paths: dict[nn.Module, str]
    contiguity: Contiguity = Contiguity.NONE
    followed: tuple[Known, ...] = ()


def make_plan(model: nn.Module, rules: Sequence[Rule], example_inputs: tuple[Any, ...] | None) -> Plan:
    """Analyse the model as its authors wrote it, on twins of its modules: the model itself is only read."""
    shell = Shell(model)
    inputs = None if example_inputs is None else ModelInputs(shell.root, example_inputs)
    return _Planner(shell, rules, inputs).plan()


def in_order(sites: Iterable[Site], paths: Mapping[nn.Module, str]) -> list[Site]:
    """The sites in the order of their modules."""
    order = {path: i for i, path in enumerate(paths.values())}
    return sorted(sites, key=lambda s: order.get(s.path, 0))


class _Planner:
    def __init__(self, shell: Shell, rules: Sequence[Rule], inputs: ModelInputs | None) -> None:
        self.shell, self.model, self.rules, self.inputs = shell, shell.root, rules, inputs
        self.whole_rules = [rule for rule in rules if rule.whole]
        taken = {cls for rule in self.whole_rules for cls in rule.modules}
        self.searched = {cls for rule in rules for cls in rule.modules} - taken
        self.called = {cls for rule in rules for cls in rule.calls}
        self.inference = {rule.name for rule in rules if rule.inference}
        self.inlined = {cls for rule in rules for cls in rule.opens}
        self.known: dict[nn.Module, Known] = {}
        self.blocks = Blocks(self.known, self.called, rules)
        self.kept: list[Site] = []
        self.paths = {m: path for path, m in self.model.named_modules()}
        self.contiguity = Contiguity.NONE

    def plan(self) -> Plan:
        paths = self.paths
        closed = [*self.shell.rigid, *filter(is_compiled, paths)]
        compiled = {d for m in closed for d in m.modules() if d is not m}
        for module in reversed(paths):
            if module not in compiled and (type(module) in self.searched or not is_library(module)):
                self._look_at(module, paths[module])
        self._respect_layout()
        self._respect_order()
        seen = self._seen_inside()
        chosen = self._choose()
        inlined = {o for m in chosen for o in m.inlined}
        top = [m for m in reversed(chosen) if m.root not in inlined]
        merged = self._merged(top)
        for m in top:
            m.merged = m.root in merged
        module_replacements = list(self._module_replacements(merged, compiled, seen))
        swapped = [s.below(m.name) for m in top for s in m.sites()]
        swapped += [s.below(w.path) for w in module_replacements for s in w.sites]
        kept = [s.below(m.name) for m in reversed(self.known.values()) for s in m.refused]
        places = {(s.path, s.source) for s in swapped}
        for m in self.known.values():
            if m.changes and copies_itself(m.root):
                reason = f"class {type(m.root).__name__} controls how it is copied"
                kept += [replace(s.below(m.name), reason=reason, gain=None) for s in m.sites()]
        kept = list({(s.path, s.source, s.reason): s for s in reversed([*self.kept, *kept])}.values())[::-1]
        kept = [s for s in kept if (s.path, s.source) not in places]
        apart = dict.fromkeys(self._activations_apart(top))
        known = {(s.path, s.source) for s in apart}
        kept = [s for s in kept if s.rule != apart_rule or (s.path, s.source) not in known]
        report = Report(in_order(swapped, paths), in_order([*kept, *apart], paths))
        followed = tuple(self._followed(chosen)) if chosen or module_replacements else ()
        return Plan(chosen, module_replacements, report, self.shell, paths, self.contiguity, followed)

    def _activations_apart(self, top: Sequence[Known]) -> Iterator[Site]:
        """Activations behind a normalisation that no change joins with it."""
        if not self.called:
            return
        nodes = [(n, m.name) for m in top for c in m.changes for n in c.region.nodes]
        joined = {key_of(n, name) for n, name in nodes if "owner" in n.meta}
        for module, path in self.paths.items():
            known = self.known.get(module)
            for p in known.paths if known is not None else ():
                yield from activations_apart(p.capture.graph, path, joined, self._norm_at_end)

    def _norm_at_end(self, module: nn.Module) -> nn.Module | None:
        def graphs(m: nn.Module) -> list[fx.Graph] | None:
            known = self.known.get(m)
            return None if known is None else [p.capture.graph for p in known.paths]

        return norm_at_end(module, graphs)

    def _respect_order(self) -> None:
        """What runs if code of the model depends on the order of tensors in memory."""
        changes = [c for m in self.known.values() for c in m.changes if c.replacement.ordered]
        if changes and self._order_matters():
            for change in changes:
                change.replacement = change.replacement.ordered

    def _order_matters(self) -> bool:
        kept = {s.path for s in self.kept}
        for module, path in self.paths.items():
            if path in kept and module not in self.known and not is_library(module):
                return True  # a forward that was not captured
            if is_sequential(module) and order_matters_in(module, module is self.model):
                return True
        # What calls a module of torch tells more than its own forward.
        known = [m for m in self.known.values() if not is_library(m.root) or m.root is self.model]
        paths = [p.capture for m in known for p in m.paths]
        return any(order_matters(c.graph, c.root is self.model) for c in paths)

    def _respect_layout(self) -> None:
        """Restrict replacements that keep channels_last, if code of the model needs contiguous tensors."""
        paths = [p for m in self.known.values() for p in m.paths]
        unknown = [m for m, path in self.paths.items() if path in {s.path for s in self.kept} and may_view(m)]
        asked = [
            contiguity_of(p.capture.graph, p.capture.root is self.model, p.shuffles(), unknown) for p in paths
        ]
        self.contiguity = contiguity = max(
            [*asked, *(Contiguity.BEFORE_CONVOLUTIONS for _ in unknown)], default=Contiguity.NONE
        )
        if contiguity is Contiguity.NONE:
            return
        for change in (c for m in self.known.values() for c in m.changes):
            if change.replacement.contiguous:
                change.region, change.replacement = restricted(change.region, change.replacement, contiguity)

    def _seen_inside(self) -> set[nn.Module]:
        """Modules whose own dictionary other code of the model reads, in which a new forward or a record would be."""
        seen = {child for m in self.paths if not is_library(m) for child in seen_inside(m)}
        for module in seen & self.known.keys():
            found = self.known.pop(module)
            sites = [replace(s.below(found.name), reason=SEEN_INSIDE, gain=None) for s in found.sites()]
            self.kept += [*sites, *(s.below(found.name) for s in found.refused)]
        return seen

    def _choose(self) -> list[Known]:
        """Modules with a change that no smaller module has, except modules whose children are called directly."""
        chosen = [
            m
            for m in self.known.values()
            if not copies_itself(m.root) and any(self._is_new(m, c) for c in m.changes)
        ]
        containers = {q for m in chosen for p in m.paths for q in containers_of(p.capture)}
        return [m for m in chosen if m.root not in containers]

    def _followed(self, chosen: Sequence[Known]) -> Iterator[Known]:
        """Modules of the user that are called and were captured, but are not among the chosen ones."""
        roots = {m.root for m in chosen}
        rest = [
            m
            for root, m in self.known.items()
            if root not in roots and not is_library(root) and not copies_itself(root)
        ]
        apart = {o for m in chosen for o in m.inlined}
        apart |= {q for m in (*chosen, *rest) for p in m.paths for q in containers_of(p.capture)}
        for m in rest:
            paths = [p for p in m.paths if p.capture.training is not True]
            if paths and m.root not in apart:
                yield replace(m, paths=paths)

    def _merged(self, top: Sequence[Known]) -> set[nn.Module]:
        """The modules whose calls are merged with the calls around them, in training too."""
        changes = [c for m in top for c in m.changes if c.site.rule not in self.inference]
        return {n.meta["module"] for c in changes for n in c.region.nodes if n.op == "call_module"}

    def _module_replacements(
        self, merged: Collection[nn.Module], compiled: Collection[nn.Module], seen: Collection[nn.Module]
    ) -> Iterator[ModuleReplacement]:
        for module, path in self.paths.items():
            rule, declined = self._whole_for(module)
            if rule is None or module in compiled:
                continue
            reason = (
                without_kernel(rule, self._devices(module))
                or declined
                or unsupported(module)
                or (SEEN_INSIDE if module in seen else "")
            )
            site = Site("", rule.name, class_name(module), rule.exact, reason, gain(rule.name))
            if reason and module not in merged:
                self.kept.append(replace(site, gain=None).below(path))
            elif not reason:
                yield ModuleReplacement(path, module, rule, () if module in merged else (site,))

    def _loses_contiguity(self, rule: Rule) -> str:
        """Why a rule would break code of the model that needs contiguous tensors, or ""."""
        keeps = rule.whole is None or not rule.whole.contiguous or self.contiguity is Contiguity.NONE
        return "" if keeps else "code of the model needs contiguous tensors, as torch's returns"

    def _whole_for(self, module: nn.Module) -> tuple[Rule | None, str]:
        """The first rule that replaces the module, or else the first rule about it, with the reason why it does not."""
        about: tuple[Rule | None, str] = (None, "")
        for rule in self.whole_rules:
            declined = rule.declines(module) if type(module) in rule.modules else None
            if declined == "":
                declined = self._loses_contiguity(rule)
            if declined == "":
                return rule, ""
            if declined and about[0] is None:
                about = rule, declined
        return about

    def _look_at(self, module: nn.Module, path: str) -> None:
        reason = unsupported(module)
        if not reason and module in self.shell.rigid:
            reason = f"class {type(module).__name__} has a base written in C"
        if not reason:
            try:
                inlined = tuple(dict.fromkeys(self._inlinable(module)))
                calls = any(type(child) in self.called for child in module.children())
                if is_sequential(module) and not inlined and not calls:
                    return
                found = self._capture(module, path, inlined)
                self.known[module] = self._with_chains(found)
                return
            except CaptureError as error:
                if is_own(module):
                    return
                reason = str(error)
                if "example_inputs" not in reason:
                    reason += '; torch.compile(backend="opswap") may reach it'
            except Exception as error:
                reason = f"could not be analysed: {type(error).__name__}: {error}"
        self.kept.append(Site(path, "", source_of(module), False, reason + group_loop_hint(module)))

    def _with_chains(self, found: Known) -> Known:
        """The same module, with the blocks inlined that its forward calls one after another, if that helps."""
        chained = dict.fromkeys((*found.inlined, *self.blocks.chained(found)))
        if is_sequential(found.root) or len(chained) == len(found.inlined):
            return found
        try:
            inlined = self._capture(found.root, found.name, tuple(chained))
        except CaptureError:
            return found
        return inlined if any(self._is_new(inlined, c) for c in inlined.changes) else found

    def _capture(self, module: nn.Module, path: str, inlined: tuple[nn.Module, ...]) -> Known:
        found = Known(path, module, inlined, [Path(c) for c in self._captures(module, inlined)])
        for p in found.paths:
            self._apply_rules(p)
        return found

    def _captures(self, module: nn.Module, inlined: tuple[nn.Module, ...]) -> list[Capture]:
        """The paths for the arguments of the example run, or else for those without a default alone."""
        if self.inputs is None:
            return capture(module, inlined)
        if self.inputs.given(module):
            with suppress(CaptureError):
                return capture(module, inlined, self.inputs.examples(module))
        return capture(module, inlined, self.inputs.examples(module, defaults=True))

    def _inlinable(self, module: nn.Module) -> Iterator[nn.Module]:
        """Descendants whose calls are inlined: modules that only move data, activations, and blocks of a Sequential."""
        children = list(module.children())
        for child, after in zip(children, [*children[1:], None], strict=False):
            if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
                yield from self._inlinable(child)
                yield from self._list_of_one_kind(child)
                continue
            if type(child) in self.searched:
                continue
            known = self.known.get(child)
            shuffles = type(child) is nn.ChannelShuffle
            if known is not None:
                meets = after in self.known and self.known[after].cuts_its_input()
                joins = known.cuts_its_input() or (meets and known.joins_its_output())
                joins = joins or any(map(_moves, known.changes))
                moves = (known.changes or known.refused) and known.calls_no_module()
                shuffles = bool(moves or (is_sequential(module) and joins)) or self._is_activation(known)
            if is_sequential(module):
                yield from self.blocks.linked(child, after) or self.blocks.rest_of(child, after)
            if shuffles and (adds := call_adds(child)):
                reason = f"{adds}: {NOT_MERGED}"
                self.kept.append(Site(self.paths[child], "", source_of(child), False, reason))
            elif shuffles:
                yield child
                yield from known.inlined if known is not None else ()
            elif is_sequential(module) and continues(after, self.called):
                yield from self.blocks.down_to_end(child)
            elif is_sequential(module) and self.blocks.pools(after):
                yield from self.blocks.down_to_normed(child)
            elif is_sequential(module) and (begun := self.blocks.begins_with_activation(after)):
                ended = self.blocks.down_to_end(child)
                yield from (*ended, *begun) if ended else ()

    def _is_activation(self, known: Known) -> bool:
        """True for the user's own module of an activation, which a rule can join with the normalisation before it."""
        alone = not known.inlined and len(known.paths) == 1
        return bool(self.called) and alone and is_activation(known.paths[0].capture.graph)

    def _list_of_one_kind(self, modules: nn.Module) -> Iterator[nn.Module]:
        """The list and its members, if these are to be looked at as part of the forward that calls them."""
        members = list(modules.children())
        kinds = {type(m) for m in members}
        several = isinstance(modules, nn.ModuleList) and len(members) > 1
        if several and len(kinds) == 1 and kinds <= self.inlined and not any(map(call_adds, members)):
            yield from (modules, *members)

    def _is_new(self, found: Known, change: Change) -> bool:
        """True if no smaller module holds all of it and was rewritten for it, with convolutions if these decide."""
        common = _common_path([n.meta["owner"] for n in change.region.nodes])
        module = found.root.get_submodule(common)
        holder = self.known.get(module)
        if module is found.root or holder is None or not holder.changes:
            return True
        if self.contiguity is Contiguity.BEFORE_CONVOLUTIONS and change.replacement.contiguous:
            weights = not any(calls_convolution(p.capture.graph) for p in holder.paths)
            return (weights and calls_convolution(change.region.anchor.graph)) or copies_itself(module)
        return copies_itself(module)

    def _apply_rules(self, found: Path) -> None:
        shapes = self.inputs.shapes(found.capture) if self.inputs is not None else {}
        devices = self._devices(found.capture.root)
        found.changes, refused = apply_rules(self.rules, found.capture.graph, shapes, lambda _: devices)
        found.refused = refused if shapes else [_with_advice(s) for s in refused]

    def _devices(self, module: nn.Module) -> set[str]:
        """Types of the devices that the module computes on, as far as its parameters or else the model's show."""
        for m in (module, self.model):
            found = {t.device.type for t in (*m.parameters(), *m.buffers())}
            if found:
                return found
        return set()


def _with_advice(site: Site) -> Site:
    """The site; its reason says to pass example inputs if the region did not run because its sizes were not seen."""
    unseen = site.reason.startswith(UNPROBED)
    return replace(site, reason=f"{site.reason}; pass example_inputs") if unseen else site


def _moves(change: Change) -> bool:
    """True for a change that holds neither a call of a module nor of F.batch_norm."""
    return all(n.op != "call_module" and not is_norm_call(n) for n in change.region.nodes)


def _common_path(paths: Sequence[str]) -> str:
    """The deepest module path that all of these are at or below."""
    common = []
    for names in zip(*(p.split(".") for p in paths), strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)
