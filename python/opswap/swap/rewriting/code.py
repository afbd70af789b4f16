# SPDX-License-Identifier: MIT
"""Give one module instance a new forward, and restore it.

It is stored on the instance, see `instance_forward`: a module stays the same object, of the same class, with the same
parameters, buffers, hooks and children; no class is touched.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
import operator
import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import FunctionType, ModuleType
from typing import Any

from torch import nn
from torch.fx import Graph, Node
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg

from opswap._torch import functions_overridden
from opswap.functional import grouped_linear
from opswap.ops._switch import active, disabled_here
from opswap.ops.linear import register_flops

from ..capture.later_code import LaterCode
from ..capture.paths import Capture
from ..capture.unseen import LISTS_OF_MODULES
from ..replay import is_recording, replay
from ..rule import Region, Replacement
from ..runtime.fallback import arguments, checked, declined, report_fallback
from ..runtime.guards import (
    Record,
    capture_is_valid,
    in_mode,
    listed,
    ordinary,
    size_guard_holds,
    unpackable,
)
from ..runtime.instance_forward import Link, called, fits, link_of, put, recipe_of, take_back
from ..runtime.lists import Listed, as_arguments
from ..runtime.members import owner_of_class, static_attribute, with_inner
from ..runtime.outside import Outside, join
from ..runtime.purity import USER
from ..runtime.read_once import once
from ..runtime.state import observe, observe_call, observe_read
from .forward_text import (
    ENABLED,
    PARAMETERS,
    arguments_text,
    bind_text,
    defaulted,
    entry_text,
    fits_text,
    forward_text,
    original_text,
    required,
)

__all__ = [
    "Recipe",
    "containers_of",
    "install",
    "make_record",
    "recipe_of",
    "replace_region",
    "restore",
    "write",
    "write_whole",
]

_serial = itertools.count()
_SERIAL = "SERIAL"
_WALKS = ("__iter__", "__len__", "__getitem__", "__contains__", "keys", "values", "items")


@dataclass(eq=False)
class Recipe:
    """The text of a rewritten forward and what it needs to run; makes the class, also after pickling.

    modules: names in the text that are modules, by their import name. names: other objects in the text.
    lists: arguments of the forward that are lists or tuples of so many tensors. given: those with a default that a call
    must give, as the calls of the example run did.
    """

    original: type[nn.Module]
    code: str
    modules: dict[str, str]
    names: dict[str, Any]
    lists: dict[str, Listed] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    _cls: type[Any] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cls": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Recipe:
        return self

    def make_class(self) -> type[Any]:
        """The generated subclass of `Link`; one for every recipe."""
        if self._cls is None:
            forward = self._execute()
            if grouped_linear in self.names.values():
                register_flops()
            # For torch.jit.script and inspect, which look at the stock code through this.
            forward.__wrapped__ = self.original.forward
            self._cls = type("Link", (Link,), {"__slots__": (), "recipe": self, "forward": forward})
        return self._cls

    def _stock_names(self) -> dict[str, Any]:
        """The namespace in which torch.jit.script looks up names of the stock code."""
        known = getattr(self.original.forward, "__globals__", {})
        return {name: value for name, value in known.items() if not name.startswith("__")}

    def _execute(self) -> FunctionType:
        scope: dict[str, Any] = {
            **self._stock_names(),
            **self.names,
            "opswap_active": active,
            "opswap_arguments": arguments,
            "opswap_called": called,
            "opswap_checked": checked,
            "opswap_declined": declined,
            "opswap_disabled": disabled_here,
            "opswap_fits": fits,
            "opswap_holds": capture_is_valid,
            "opswap_link_of": link_of,
            "opswap_listed": listed,
            "opswap_report_fallback": report_fallback,
            "opswap_once": once,
            "opswap_ordinary": ordinary,
            "opswap_overridden": functions_overridden,
            "opswap_recipe": self,
            "opswap_recording": is_recording,
            "opswap_replay": replay,
            "opswap_stock": self.original.forward,
        }
        for name, imported in self.modules.items():
            scope[name] = __import__(imported, fromlist=[""])
        for p in defaulted(self.original.forward):
            scope[f"opswap_default_{p.name}"] = p.default
        file = f"<opswap {self.original.__qualname__} {next(_serial)}>"
        linecache.cache[file] = (len(self.code), None, self.code.splitlines(True), file)
        exec(compile(self.code, file, "exec"), scope)
        weakref.finalize(scope["forward"], linecache.cache.pop, file, None)
        return scope["forward"]


def install(module: nn.Module, recipe: Recipe, record: Record) -> None:
    """Put the generated forward and the record on the instance."""
    put(module, recipe)
    module.__dict__["_opswap_record"] = record


def restore(module: nn.Module) -> tuple[Recipe, Record | None]:
    """Put the original forward back and return what was there, for `install`."""
    return take_back(module), module.__dict__.pop("_opswap_record", None)


def write(
    paths: Sequence[tuple[Capture, Sequence[tuple[Region, Replacement]]]],
    *,
    follows: bool = False,
    replays: bool = True,
) -> Recipe:
    """The recipe of the captured module with every region of every path replaced. The graphs are consumed.

    Args: follows: elsewhere than in a recorded call the original runs, as if there was no recipe. replays: a call may
            be recorded for itself.
    """
    scope: dict[str, Any] = {}
    texts = [[_site_text(region, replacement, scope) for region, replacement in c] for _, c in paths]
    unique = dict.fromkeys(text for path in texts for text in path)
    distinct = {text: _stand_in(f"site_{i}") for i, text in enumerate(unique)}
    parts = [text.replace(_SERIAL, str(i)) for i, text in enumerate(distinct)]
    root = paths[0][0].root
    first = _first_condition(paths)
    me = next(iter(inspect.signature(type(root).forward).parameters))
    conditions = []
    for i, ((capture, changes), path) in enumerate(zip(paths, texts, strict=True)):
        conditions.append(_path_text(capture, i, me, scope, parts))
        replaced: dict[Node, Node] = {}
        for (region, _), text in zip(changes, path, strict=True):
            replace_region(capture.graph, region, distinct[text], replaced)
        parts.append(_function_text(capture.graph, f"fused_{i}", scope, ("self",)))
    lists, arguments = dict(paths[0][0].lists), paths[0][0].arguments
    parts.append(forward_text(type(root).forward, arguments, lists, conditions, first, follows, replays))
    code = "\n\n".join(parts)
    used = {name for inner in with_inner(compile(code, "<opswap>", "exec")) for name in inner.co_names}
    scope = {k: v for k, v in scope.items() if k in used and not k.startswith("opswap_site_")}
    modules = {k: v.__name__ for k, v in scope.items() if isinstance(v, ModuleType)}
    names = {k: v for k, v in scope.items() if k not in modules}
    given = tuple(p.name for p in defaulted(type(root).forward) if p.name in arguments)
    return Recipe(type(root), code, modules, names, lists, given)


def _first_condition(paths: Sequence[tuple[Capture, Sequence[tuple[Region, Replacement]]]]) -> str:
    """What is looked at before everything else: the cheap condition of the only region, on an argument; else ""."""
    found = set()
    for capture, changes in paths:
        if len(changes) != 1:
            return ""
        region, replacement = changes[0]
        given = region.inputs[0]
        is_argument = given.op == "placeholder" and given.target in capture.arguments
        found.add(re.sub(r"\bx0\b", given.target, replacement.first) if is_argument else "")
    return found.pop() if len(found) == 1 else ""


def _path_text(capture: Capture, number: int, me: str, scope: dict[str, Any], parts: list[str]) -> str:
    """Add the functions that guard a path to the parts; returns the condition for running it, "" for none."""
    given = as_arguments(capture.arguments, capture.lists)
    names = [n.target for n in capture.graph.nodes if n.op == "placeholder"]
    inputs = ", ".join(("self", *names))
    asked = []
    for j, guard in enumerate((*capture.guards, *capture.size_guards)):
        name = f"guard_{number}_{j}"
        source = next((n.meta["source"] for n in reversed(guard.nodes) if "source" in n.meta), "")
        parts.append(f"# {source}\n{_function_text(guard, name, scope, ('self',))}")
        call = f"opswap_{name}({inputs})"
        if j >= len(capture.guards):
            scope["size_guard_holds"] = size_guard_holds
            read = dict.fromkeys(n.target for n in guard.nodes if n.op in ("call_module", "get_attr"))
            call = f"size_guard_holds(opswap_{name}, {tuple(read)}, {inputs})"
        asked.append(call)
    conditions = []
    if capture.training is not None:
        scope["in_mode"] = in_mode
        conditions.append(f"in_mode({me}, {capture.training})")
    if asked:
        parts.append(
            f"def opswap_path_{number}({inputs}):\n"
            f"    try:\n"
            f"        return {' and '.join(asked)}\n"
            f"    except Exception:\n"
            f"        return False\n"
        )
        conditions.append(f"opswap_path_{number}({', '.join((me, *given))})")
    return " and ".join(conditions)


def _stand_in(name: str) -> FunctionType:
    """A function that prints in generated code as opswap_<name>."""

    def call() -> None: ...

    call.__name__, call.__module__ = name, "opswap"
    return call


def _site_text(region: Region, replacement: Replacement, scope: dict[str, Any]) -> str:
    """Two functions: the region's own code, and the choice between it and the replacement."""
    graph = Graph()
    values: dict[Node, Node] = {}
    for j, node in enumerate(region.inputs):
        values[node] = graph.placeholder(f"x{j}")
    modules = {node: graph.placeholder(f"m{j}") for j, node in enumerate(region.modules)}
    for node in region.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "call_module":
            values[node] = graph.call_method("__call__", (modules[node], *args), kwargs)
        else:
            values[node] = graph.create_node(node.op, node.target, args, kwargs)
        if "unpacked" in node.meta:
            values[node].meta["unpacked"] = node.meta["unpacked"]
    results = tuple(values[n] for n in region.outputs)
    graph.output(results if len(results) > 1 else results[0])
    scope.update(replacement.names)
    arguments = [n.target for n in graph.nodes if n.op == "placeholder"]
    names = ", ".join(arguments)
    values = ", ".join(f"'{n}': {n}" for n in arguments)
    given = ", ".join(arguments[: len(region.inputs)])
    label = f"{region.main.meta['source']} | {replacement.label}"
    return (
        f"# {label}\n"
        + _function_text(graph, f"stock_{_SERIAL}", scope)
        + f"\n\ndef opswap_site_{_SERIAL}({names}):\n"
        f"    if opswap_ordinary({given}) and ({replacement.condition}):\n"
        f"        return {replacement.result}\n"
        f"    opswap_declined('opswap_site_{_SERIAL}', {{{values}}})\n"
        f"    return opswap_stock_{_SERIAL}({names})\n"
    )


class _CodeGen(CodeGen):
    def __init__(self, name: str, first: tuple[str, ...]) -> None:
        super().__init__()
        self._name, self._first = name, first

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        return f"def opswap_{self._name}({', '.join((*self._first, *free_vars))}):"


def _function_text(graph: Graph, name: str, scope: dict[str, Any], first: tuple[str, ...] = ()) -> str:
    for node in list(graph.nodes):
        node.type = None
        if "unpacked" in node.meta:  # raise what Python raises for another number of values
            with graph.inserting_after(node):
                graph.call_function(unpackable, (node, node.meta["unpacked"]))
    graph.set_codegen(_CodeGen(name, first))
    code = graph.python_code("self")
    for key, value in code.globals.items():
        if scope.setdefault(key, value) is not value:
            raise ValueError(f"two different objects are called {key!r} in generated code")
    return code.src.strip() + "\n"


def replace_region(graph: Graph, region: Region, function: FunctionType, replaced: dict[Node, Node]) -> None:
    """Call function in place of the region; `replaced` maps old outputs to the nodes that replace them."""
    inputs = tuple(replaced.get(n, n) for n in region.inputs)
    with graph.inserting_before(region.anchor):
        modules = tuple(graph.create_node("get_attr", n.target) for n in region.modules)
        call = graph.call_function(function, inputs + modules)
        outputs = [call]
        if len(region.outputs) > 1:
            result = outputs[0]
            outputs = [graph.call_function(operator.getitem, (result, j)) for j in range(len(region.outputs))]
    for old, new in zip(region.outputs, outputs, strict=True):
        # What the region writes to is an input too, and its sizes may have been read before.
        old.replace_all_uses_with(new, lambda user: call < user)
        replaced[old] = new
    for node in reversed(region.nodes):
        if not node.users:
            graph.erase_node(node)


def make_record(
    captures: Sequence[Capture], sites: Sequence[Any], passed: Iterable[str], follows: bool
) -> Record:
    """The state that `capture_is_valid` compares with later; recorded while every class is the original one.

    Args: passed: paths of the modules that regions pass, see `Region`. follows: see `Record`, which has no sites then.
    """
    root, inlined = captures[0].root, captures[0].inlined
    reading = reduce(operator.or_, (c.reading for c in captures))
    containers = dict.fromkeys(m for c in captures for m in containers_of(c))
    states = [tuple((m, observe(m, reading)) for m in modules) for modules in (inlined, containers)]
    found = [(m, observe_read(m, reading)) for m in reading.modules if m not in containers]
    read = tuple((m, state) for m, state in found if reading.classes or state.matters)
    below = (*_forwards_below(root), *_walks_below(root))
    outside = join((*(c.outside for c in captures), Outside(below)))
    paths = dict.fromkeys(n.target for c in captures for n in c.graph.nodes if n.op == "call_module")
    later = LaterCode(map(root.get_submodule, paths), reading.every_name)
    calls = dict.fromkeys(m for path in passed for m in root.get_submodule(path).modules())
    between = tuple((m, observe_call(m)) for m in calls)
    named = () if follows else tuple(sites)
    return Record(observe(root, reading), *states, named, read, outside, between, later, follows=follows)


def _forwards_below(root: nn.Module) -> Iterator[tuple[type, str, Any]]:
    """The forwards of torch's layers in a module, for which replacements stand."""
    for cls in dict.fromkeys(type(m) for m in root.modules() if m is not root):
        forward = static_attribute(cls, "forward")
        if isinstance(forward, FunctionType) and owner_of_class(cls) != USER:
            yield cls, "forward", forward


def _walks_below(root: nn.Module) -> Iterator[tuple[type, str, Any]]:
    """How code walks through modules in lists and dicts of a user's class, which may get a method of its own later."""
    for cls in dict.fromkeys(map(type, root.modules())):
        if issubclass(cls, LISTS_OF_MODULES) and owner_of_class(cls) == USER:
            for name in _WALKS:
                walk = static_attribute(cls, name)
                if isinstance(walk, FunctionType):
                    yield cls, name, walk


def containers_of(capture: Capture) -> Iterator[nn.Module]:
    """Modules between the root and those it calls, which are not called themselves."""
    found = {capture.root, *capture.inlined}
    for node in capture.graph.nodes:
        if node.op != "call_module":
            continue
        module = capture.root
        for name in node.target.split(".")[:-1]:
            module = module.get_submodule(name)
            if module not in found:
                found.add(module)
                yield module


def write_whole(original: type[nn.Module], replacement: Replacement) -> Recipe:
    """The recipe of a class of one input whose whole forward is replaced."""
    stock = "type(opswap_module).forward is opswap_stock"
    holds = f"opswap_ordinary(x0) and ({replacement.condition})"
    condition = f"{fits_text('opswap_module')} and {stock} and {ENABLED} and {holds}"
    lines = [
        f"# | {replacement.label}",
        *bind_text(original.forward, required(original.forward)),
        "",
        f"def forward({PARAMETERS}):",
        *entry_text("opswap_module"),
        *arguments_text(original.forward, required(original.forward)),
        "    if opswap_bound is not None:",
        "        x0, = opswap_bound",
        "        same = type(opswap_module) is opswap_link.cls",
        "        m0 = opswap_module if same else opswap_once(opswap_module, opswap_link.cls)",
        f"        if {condition}:",
        f"            return {replacement.result}",
        "        opswap_declined('forward', {'m0': opswap_module, 'x0': x0})",
        "        return type(opswap_module).forward(m0, *opswap_args, **opswap_kwargs)",
        *original_text("opswap_module"),
    ]
    code = "\n".join(lines) + "\n"
    return Recipe(original, code, {}, dict(replacement.names))
