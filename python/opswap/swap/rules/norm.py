# SPDX-License-Identifier: MIT
"""torch's BatchNorm modules, alone or with the activation after them.

Only torch's own are taken, whose parameters and flags are read on every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap.nn.norm import apply_norm, apply_torch_norm
from opswap.ops._function import plain_cpu
from opswap.ops.chain import ConvChain
from opswap.ops.norm import spell, vector_misread
from opswap.ops.norm.batch_norm import BatchNormAct

from ..rule import Refusal, Region, Replacement, Rule, Shapes, Sized, named
from ..runtime.condition_texts import describe_condition
from ..runtime.guards import call_problem, runs_other_code, unhooked
from ..runtime.shown import shown
from .activation import SILU, activation, activation_of, gated
from .conditions import CONVOLUTIONS, normed_alone_fast, normed_fast, poolable, trains

__all__ = [
    "RULES",
    "act_of",
    "behind",
    "calls_problem",
    "identities_behind",
    "is_normed",
    "may_overwrite",
    "module_calls",
    "modules_between",
    "region_of",
    "supported_norm",
]

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def supported_norm(norm: nn.Module, input: Any) -> bool:
    """True for one of torch's own BatchNorms, and a tensor that opswap's batch normalisation supports."""
    return type(norm) in NORMS and poolable(input)


describe_condition(supported_norm, lambda norm, input: f"no kernel for {shown(norm)} of {shown(input)}")


def is_normed(input: Tensor) -> bool:
    """True for what opswap's BatchNorm computed, without an activation behind it, as autograd's graph shows."""
    node: Any = input.grad_fn
    name = "" if node is None else node.name()
    if name == f"{ConvChain.__name__}Backward":
        return node.options[-1][-1] is None
    return name == f"{BatchNormAct.__name__}Backward" and node.activation is None


def may_overwrite(output: Tensor, convolution: nn.Module) -> bool:
    """True if the convolution's output may be overwritten: fresh memory, no hooks, no autograd graph."""
    fresh = type(convolution) in CONVOLUTIONS and unhooked(convolution)
    return fresh and not trains(output) and plain_cpu((output,))


def _find_act(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        if node.op != "call_module" or type(node.meta["module"]) not in NORMS:
            continue
        nodes = (node, *behind(node))
        if len(nodes) == 1 or len(node.all_input_nodes) != 1:
            continue
        yield region_of(nodes, _producer(node.all_input_nodes[0]))


def behind(norm: Node) -> tuple[Node, ...]:
    """The nodes after a normalisation: Identities, then an activation, or a sigmoid and a product."""
    nodes = identities_behind(norm)
    last = (norm, *nodes)[-1]
    users = gated(last) or tuple(u for u in last.users if activation(u) is not None)[:1]
    return (*nodes, *users) if users else ()


def identities_behind(node: Node) -> tuple[Node, ...]:
    """The calls of Identities that a result goes through, as long as nothing else reads it."""
    nodes: tuple[Node, ...] = ()
    while len(node.users) == 1 and _is_identity(*node.users):
        (node,) = node.users
        nodes = (*nodes, node)
    return nodes


def _is_identity(node: Node) -> bool:
    return node.op == "call_module" and type(node.meta["module"]) is nn.Identity


def module_calls(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(n for n in nodes if n.op == "call_module")


def modules_between(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Other calls of modules between the nodes: code or a hook there may change a module among them but the first."""
    if not module_calls(nodes[1:]):
        return ()
    found, node = [], nodes[0]
    while node is not nodes[-1]:
        node = node.next
        if node.op == "call_module" and node not in nodes:
            found.append(node)
    return tuple(found)


def calls_problem(nodes: tuple[Node, ...], between: tuple[Node, ...]) -> str:
    """Why the calls of modules among the nodes may not be joined, or "". Args: between: see `modules_between`."""
    for node in between:
        if runs_other_code(node.meta["module"]):
            return f"{node.target} runs in between: its code may change the activation"
    for node in module_calls(nodes):
        if problem := call_problem(node.target, node.meta["module"]):
            return problem
    return ""


def region_of(nodes: tuple[Node, ...], read: tuple[Node, ...] = ()) -> Region:
    """The region of calls of which each reads the result of the one before. read: modules that it reads besides."""
    between = modules_between(nodes)
    leaks = not all(n.users.keys() <= set(nodes) for n in nodes[:-1])
    return Region(
        inputs=tuple(nodes[0].all_input_nodes),
        nodes=nodes,
        outputs=nodes[-1:],
        anchor=nodes[0],
        main=nodes[-1],
        problem="an intermediate result is used elsewhere" if leaks else calls_problem(nodes, between),
        modules=module_calls(nodes) + read,
        passed=between,
    )


def act_of(region: Region) -> tuple[str, str, dict[str, Any]]:
    """The activation behind a region's normalisation: its text, the condition that modules are still what they were.

    The condition, if any, begins with " and "; the third result are the names in it.
    """
    found, conditions = None, []
    calls = module_calls(region.nodes)
    for node in region.nodes[1:]:
        module = f"m{calls.index(node)}" if node in calls else ""
        if _is_identity(node):
            conditions.append(f" and type({module}) is Identity")
            continue
        found = found or activation(node)
        if module:
            conditions.append(f" and activation_of({module}) == {activation(node)!r}")
    if len(region.nodes) > 2 and gated(region.nodes[-3]):
        found = SILU
    if found is None:
        raise Refusal("its activation is not known")
    names = named(activation_of, nn.Identity)
    return spell(*found), "".join(conditions), names if conditions else {}


def _producer(node: Node) -> tuple[Node, ...]:
    """The call of a convolution whose output nothing but the normalisation reads."""
    convolution = node.op == "call_module" and type(node.meta["module"]) in CONVOLUTIONS
    return (node,) if convolution and len(node.users) == 1 else ()


def _prove_act(region: Region, shapes: Shapes) -> Replacement:
    """The graph holds torch's own modules, so that no run has to show what they compute."""
    name, still, names = act_of(region)
    calls = [f"m{i}" for i, _ in enumerate(module_calls(region.nodes))]
    condition = f"unhooked({', '.join(calls)}) and supported_norm(m0, x0) and normed_fast(x0){still}"
    names |= named(unhooked, supported_norm, apply_norm, normed_fast)
    inplace = ""
    if len(region.modules) > len(calls):
        inplace = f", inplace=may_overwrite(x0, m{len(calls)})"
        names["may_overwrite"] = may_overwrite
    return Replacement(condition, f"apply_norm(m0, x0, {name!r}{inplace})", names)


def _find_in_place(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        if node.op != "call_module" or type(node.meta["module"]) not in NORMS:
            continue
        inputs = tuple(node.all_input_nodes)
        convolution = _producer(inputs[0]) if len(inputs) == 1 else ()
        if convolution:
            yield Region.of_call(node, (node, *convolution))


def _prove_in_place(region: Region, shapes: Shapes) -> Replacement:
    return Replacement(
        "not m0.training and unhooked(m0) and supported_norm(m0, x0) and may_overwrite(x0, m1) and normed_fast(x0)",
        "apply_norm(m0, x0, None, inplace=True)",
        named(unhooked, supported_norm, may_overwrite, normed_fast, apply_norm),
    )


def norm_misread(norm: nn.Module, input: Any) -> bool:
    """`vector_misread` for a module."""
    return vector_misread(input, *_read(norm))


def _read(norm: nn.Module) -> tuple[Any, ...]:
    """What torch's backward reads of a module."""
    return norm.weight, norm.running_mean, norm.running_var


def _declines_contiguous(norm: nn.Module) -> str | None:
    return None if all(v is None or v.is_contiguous() for v in _read(norm)) else ""


describe_condition(norm_misread, lambda *_: "its weight and statistics are contiguous, or need no gradient")

# With given statistics and a new result torch's own is as fast: both read and write at the speed of memory.
_ALONE = Replacement(
    "poolable(x0) and (norm_misread(m0, x0) or m0.training and normed_alone_fast(x0))",
    "apply_norm(m0, x0, None)",
    named(poolable, norm_misread, normed_alone_fast, apply_norm),
)
_MENDED = Replacement(
    "norm_misread(m0, x0)", "apply_torch_norm(m0, x0)", named(norm_misread, apply_torch_norm)
)


def _example(*after: nn.Module) -> Sized:
    return nn.Sequential(nn.BatchNorm2d(58), *after), ((32, 58, 28, 28),)


RULES = (
    Rule("batch_norm_act", False, _find_act, _prove_act, calls=NORMS, example=lambda: _example(nn.ReLU())),
    Rule("batch_norm_in_place", False, _find_in_place, _prove_in_place, calls=NORMS, inference=True),
    Rule("batch_norm", False, modules=NORMS, whole=_ALONE, example=_example),
    # After the rules above, for what they do not replace, and with exact=True.
    Rule("batch_norm_gradient", True, modules=NORMS, whole=_MENDED, declines=_declines_contiguous),
)
