# SPDX-License-Identifier: MIT
"""Which blocks a forward has inlined because a rule may join the code of one with that of another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from torch import fx, nn

from ..rule import Rule
from ..rules.activation import Activation, activation
from ..rules.norm_pool import POOLS, is_pool
from ..runtime.guards import call_adds
from .block_ends import (
    before_identities,
    begins_with_activation,
    continues,
    ends_with_norm,
    ends_with_normed,
    is_continuation,
    last_module,
    only_reader,
)

if TYPE_CHECKING:
    from .planner import Known

__all__ = ["Blocks"]


_Halves = tuple[Callable[[nn.Module], bool], Callable[[fx.Graph], bool]]  # `Rule.starts` and `Rule.ends`


class Blocks:
    """Searches in the modules that are known.

    Args: known: the modules that were captured so far. called: classes of torch whose calls the rules look for.
        rules: which of them compute once what several blocks begin with, or join blocks that are links.
    """

    def __init__(
        self, known: Mapping[nn.Module, Known], called: Collection[type], rules: Collection[Rule]
    ) -> None:
        self._known, self._called = known, called
        self._behind = any(rule.behind for rule in rules)
        self._shares = any(rule.branches for rule in rules)
        self._links = [rule.links for rule in rules if rule.links is not None]
        halved = [(r.starts, r.ends, r.single) for r in rules if r.starts is not None and r.ends is not None]
        self._halves = [(starts, ends) for starts, ends, _ in halved]
        self._single = [(starts, ends) for starts, ends, single in halved if single]

    def chained(self, found: Known) -> Iterator[nn.Module]:
        """Children that a rule may join with the next call: the second cuts what the first has joined, or a block ends
        with a module of torch and the next call is another one, an activation, or a block that begins with one; blocks
        that are links of a chain, or the rest of one behind a convolution."""
        for graph in found.graphs:
            yield from self._rests_of_links(graph)
            if any(map(self._shares_a_beginning, graph.nodes)):
                # All of them: a block that is only called may write to what the others read.
                for node in graph.nodes:
                    yield from self._whole(node.meta["module"]) or () if node.op == "call_module" else ()
            for node in graph.nodes:
                before = node.args[0] if node.args else None
                if not isinstance(before, fx.Node) or before.op != "call_module":
                    continue
                if is_continuation(node, self._called):
                    yield from self.down_to_end(before.meta["module"])
                if self._behind and is_pool(node):
                    yield from self.down_to_normed(before.meta["module"])
                if node.op != "call_module" or type(node.meta["module"]) in self._called:
                    continue
                if len(before.users) == 1:
                    yield from self.linked(before.meta["module"], node.meta["module"])
                if len(before.users) == 1 and (begun := self.begins_with_activation(node.meta["module"])):
                    ended = self.down_to_end(before.meta["module"])
                    yield from (*ended, *begun) if ended else ()
                first, second = (self._known.get(n.meta["module"]) for n in (before, node))
                if first is None or second is None or any(call_adds(m.root) for m in (first, second)):
                    continue
                if first.joins_its_output() and second.cuts_its_input():
                    for m in (first, second):
                        yield from (m.root, *m.inlined)

    def down_to_end(self, module: nn.Module | None) -> tuple[nn.Module, ...]:
        """The block and the blocks that it ends with, down to a module or function whose calls a rule looks for, ()
        without one."""
        return self._down_to(module, self._ends_with_called)

    def pools(self, module: nn.Module | None) -> bool:
        """True for a pool that a rule may join with the block before it."""
        return self._behind and module is not None and type(module) in POOLS

    def down_to_normed(self, module: nn.Module | None) -> tuple[nn.Module, ...]:
        """The same, down to a normalisation or an activation of one, which a rule may join with a pool behind them."""
        return self._down_to(module, ends_with_normed)

    def _ends_with_called(self, graph: fx.Graph) -> bool:
        return type(last_module(graph)) in self._called or (bool(self._called) and ends_with_norm(graph))

    def _down_to(self, module: nn.Module | None, ends: Callable[[fx.Graph], bool]) -> tuple[nn.Module, ...]:
        if module is None or call_adds(module):
            return ()
        known = self._known.get(module)
        if known is None:  # a Sequential of blocks, which was not captured
            *_, last = (None, *module.children()) if type(module) is nn.Sequential else (None,)
            inside = self._down_to(last, ends)
            return (module, *inside) if inside else ()
        for graph in known.graphs:
            inside = self._down_to(last_module(graph), ends)
            if inside or ends(graph):
                return (known.root, *known.inlined, *inside)
        return ()

    def begins_with_activation(self, module: nn.Module | None) -> tuple[nn.Module, ...]:
        """The block and what is inlined in it, if all that reads its input is an activation; () if not."""
        known = self._known.get(module) if module is not None else None
        if known is None or call_adds(known.root) or len(known.graphs) != 1:
            return ()
        begins = begins_with_activation(known.graphs[0], self._called)
        return (known.root, *known.inlined) if begins else ()

    def linked(self, module: nn.Module, after: nn.Module | None) -> tuple[nn.Module, ...]:
        """Both of two calls in a row that are links of a chain, with what is inlined in them; () if one is not.

        A convolution may begin a link, and an activation or a normalisation end one.
        """
        first, second = self._link(module), self._link(after)
        ends = bool(first) or continues(module, self._called)
        begins = bool(second) or type(after) is nn.Conv2d
        return (*first, *second) if ends and begins else ()

    def _rests_of_links(self, graph: fx.Graph) -> Iterator[nn.Module]:
        """Blocks that are the rest of links of a chain, as timm's BatchNormAct2d behind a convolution: two in a row, or
        one if a rule needs no more."""
        for node in graph.nodes if self._halves else ():
            rest = self._rest(node, self._halves)
            before = self._rest(before_identities(node.args[0].args[0]), self._halves) if rest else ()
            yield from (*before, *rest) if before else self._rest(node, self._single)

    def _rest(self, node: object, halves: Collection[_Halves]) -> tuple[nn.Module, ...]:
        """The block that a node calls and what is inlined in it, if it is the rest of a link, on the result of a
        module that begins one; () if not."""
        if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1:
            return ()
        (start,) = node.args
        if not isinstance(start, fx.Node) or start.op != "call_module":
            return ()
        if len(start.users) != 1 or len(start.args) != 1:
            return ()
        return self._rest_of(start.meta["module"], node.meta["module"], halves)

    def rest_of(self, start: nn.Module, module: nn.Module | None) -> tuple[nn.Module, ...]:
        """A block that is the rest of the link that `start` begins, with what is inlined in it; () if it is not."""
        return self._rest_of(start, module, self._halves)

    def _rest_of(
        self, start: nn.Module, module: nn.Module | None, halves: Collection[_Halves]
    ) -> tuple[nn.Module, ...]:
        known = self._known.get(module) if module is not None else None
        if known is None or call_adds(known.root):
            return ()
        fits = any(starts(start) and all(map(ends, known.graphs)) for starts, ends in halves)
        return (known.root, *known.inlined) if fits else ()

    def _link(self, module: nn.Module | None) -> tuple[nn.Module, ...]:
        """The block and what is inlined in it, if it is one link of what a rule joins; () if not."""
        known = self._known.get(module) if module is not None else None
        if known is None or call_adds(known.root) or len(known.graphs) != 1:
            return ()
        is_link = any(links(known.graphs[0]) for links in self._links)
        return (known.root, *known.inlined) if is_link else ()

    def _shares_a_beginning(self, node: fx.Node) -> bool:
        """True if several of the calls that read a node begin with the same activation."""
        if not self._shares or len(node.users) < 2:
            return False
        begun = [act for user in node.users if (act := self._first(user)) is not None]
        return len(set(begun)) < len(begun)

    def _first(self, node: fx.Node) -> Activation | None:
        """The activation that a call computes of its only tensor before all else."""
        act = activation(node)
        known = self._known.get(node.meta["module"]) if node.op == "call_module" and act is None else None
        if known is None or len(node.all_input_nodes) != 1 or len(known.graphs) != 1:
            return act
        reader = only_reader(known.graphs[0])
        return None if reader is None else self._first(reader)

    def _whole(self, module: nn.Module) -> tuple[nn.Module, ...] | None:
        """A block with all blocks inside it; () for a module of torch, None if one of them is not inlined."""
        known = self._known.get(module)
        if known is None:
            return () if next(module.children(), None) is None else None
        if call_adds(known.root) or len(known.graphs) != 1:
            return None
        inside: list[nn.Module] = [known.root, *known.inlined]
        for node in known.graphs[0].nodes:
            if node.op == "call_module" and node.meta["module"] not in known.inlined:
                below = self._whole(node.meta["module"])
                if below is None:
                    return None
                inside += below
        return tuple(inside)
