# SPDX-License-Identifier: MIT
"""Rewrites that keep a size, spelled for the user's own line.

Each turns an expression whose size depends on data into one with the same value and gradients and a fixed size.
`N` in a rewrite is the user's to choose: the largest number that may come.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from . import losses
from .expressions import (
    ELEMENTWISE,
    GUARDED,
    OF_TORCH,
    call_of,
    counted,
    is_constant,
    is_number,
    masks_are_known,
    may_be_infinite,
    nonzero_argument,
    selection_of,
    selects,
    tensor_of,
    text_of,
    without_bodies,
)
from .syntax import SIZED, called

__all__ = ["Observed", "advice", "rewrite"]


@dataclass(frozen=True)
class Observed:
    """What the run showed.

    op: the operator's name. mask_dims, trailing: dimensions of a mask, and of what it selects from behind those.
    floating: False if it selects integers. each: a store has a value for each selected element, not one for all.
    """

    op: str
    mask_dims: int = 1
    trailing: int = 0
    floating: bool = True
    each: bool = False


_SELECTIONS = ("index", "masked_select", "index_put")
_VIEWS = ("flatten", "long", "reshape", "squeeze", "t", "unbind", "view")
_LOSSES = {
    "l1_loss": "l1",
    "smooth_l1_loss": "smooth_l1",
    "mse_loss": "mse",
    "cross_entropy": "cross_entropy",
    "binary_cross_entropy_with_logits": "bce_with_logits",
}


def rewrite(statement: ast.stmt, observed: Observed) -> str:
    """The statement's code with the first expression replaced that a rewrite knows; "" if none does.

    Of a compound statement only the first line is given.
    """
    tree = without_bodies(copy.deepcopy(statement))
    if observed.op in _SELECTIONS and not masks_are_known(tree):
        return ""
    changed = _store(tree, observed) if observed.op in _SELECTIONS else None
    if changed is None:
        replacer = _Replacer(observed)
        changed = replacer.visit(tree)
        if not replacer.found and not (observed.op == "nonzero" and _keep_indices(tree)):
            return ""
    text = ast.unparse(ast.fix_missing_locations(changed))
    return text.splitlines()[0]


def advice(statement: ast.stmt, observed: Observed) -> str:
    """What to do on a line that selects by one mask, in its own names, if no rewrite of it has the same value; "" for
    another line."""
    head = without_bodies(copy.deepcopy(statement))
    stored = observed.op == "index_put"
    nodes = [n for n in ast.walk(head) if isinstance(n, ast.expr)]
    places = [selection_of(n) for n in nodes if stored or not isinstance(getattr(n, "ctx", None), ast.Store)]
    found = {ast.unparse(x): mask for x, mask in filter(None, places)}
    masks = {ast.unparse(mask) for mask in found.values()}
    if observed.op not in _SELECTIONS or len(masks) != 1 or not masks_are_known(head):
        return ""
    (x, mask), *others = found.items()
    if stored:
        written = selection_of(head.targets[0]) if isinstance(head, ast.Assign) else None
        if written is None:
            return ""
        x = ast.unparse(written[0])
        return f"`{x} = torch.where({_mask(mask, observed)}, value, {x})`, with a value for every element"
    if others:
        names = " and ".join(f"`{name}`" for name in found)
        whole = f"keep all of {names}, and `{ast.unparse(mask)}` as a mask"
        return f"{whole}: torch.where, or opswap.shapes.losses with `valid={ast.unparse(mask)}`"
    where = _mask(mask, observed) if observed.trailing else ast.unparse(mask)
    return (
        f"keep all elements and the mask: `torch.where({where}, {x}, 0)`, "
        f"or a loss of opswap.shapes.losses with `valid={ast.unparse(mask)}`"
    )


class _Replacer(ast.NodeTransformer):
    """Replaces the outermost expression for which there is a rewrite."""

    def __init__(self, observed: Observed) -> None:
        self.found = False
        self._observed = observed

    def visit(self, node: ast.AST) -> ast.AST:
        if self.found:
            return node
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load):
            text = _expression(node, self._observed)
            if text is not None:
                self.found = True
                return ast.parse(text, mode="eval").body
        return self._visit_tensors(node) if self._observed.op == "item" else self.generic_visit(node)

    def _visit_tensors(self, node: ast.AST) -> ast.AST:
        """Where a tensor can be in place of a number: not in indices, sizes and tests, which read it again."""
        if isinstance(node, (ast.If, ast.While, ast.For, ast.Assert)):
            return node
        if isinstance(node, ast.Subscript):
            return ast.Subscript(self.visit(node.value), node.slice, node.ctx)  # type: ignore[arg-type]
        if isinstance(node, ast.Call) and called(node) in SIZED:
            return ast.Call(self.visit(node.func), node.args, node.keywords)  # type: ignore[arg-type]
        return self.generic_visit(node)


def _expression(node: ast.expr, observed: Observed) -> str | None:
    """The text that replaces one expression, None if there is none."""
    for known in _BY_OPERATOR.get(observed.op, ()):
        text = known(node, observed)
        if text is not None:
            return text
    return None


def _mask(mask: ast.expr, observed: Observed) -> str:
    """The mask with as many dimensions as what it selects from."""
    text = text_of(mask)
    return f"{text}[{', '.join(['...'] + ['None'] * observed.trailing)}]" if observed.trailing else text


# --- the rewrites ---------------------------------------------------------------------------------------------------


def _count_of_selection(node: ast.expr, observed: Observed) -> str | None:
    found = counted(node)
    chosen = selection_of(found) if found is not None else None
    if chosen is None or (observed.trailing and "numel" in ast.unparse(node)):
        return None
    return f"{text_of(chosen[1])}.sum()"


def _reduction(node: ast.expr, observed: Observed, at_least: str = "") -> str | None:
    """A reduction of a selection to one number or row; `at_least` bounds the number of elements of a mean."""
    call = call_of(node)
    chosen = selection_of(call[1][0]) if call is not None and call[1] else None
    if call is None or chosen is None:
        return None
    (name, arguments, keywords), (x, mask) = call, chosen
    dim = arguments[1] if len(arguments) == 2 else keywords.get("dim")
    if len(arguments) > 2 or set(keywords) - {"dim"} or (dim is not None and ast.unparse(dim) != "0"):
        return None
    places = "0" if observed.mask_dims == 1 else str(tuple(range(observed.mask_dims)))
    inner = "" if dim is None else places
    where = f"torch.where({_mask(mask, observed)}, {ast.unparse(x)}, 0)"
    if name in ("sum", "norm") and not (name == "norm" and dim is not None):
        return f"{where}.{name}({inner})"
    if name == "mean":
        whole = observed.trailing and dim is None
        count = f"{_mask(mask, observed)}.expand_as({ast.unparse(x)})" if whole else text_of(mask)
        return f"{where}.sum({inner}) / {count}.sum(){at_least}"
    if name == "prod" and (dim is None or observed.mask_dims == 1):
        return f"torch.where({_mask(mask, observed)}, {ast.unparse(x)}, 1).prod({inner})"
    if name in ("max", "min", "amax", "amin", "logsumexp") and (dim is None or name not in ("max", "min")):
        if not observed.floating:
            end = "max" if name in ("min", "amin") else "min"
            limit = f"torch.iinfo({text_of(x)}.dtype).{end}"
            filled = f"torch.where({_mask(mask, observed)}, {ast.unparse(x)}, {limit})"
            return None if name == "logsumexp" else f"{filled}.{name}({inner})"
        sign = "" if name in ("min", "amin") else "-"
        return f"{text_of(x)}.masked_fill(~{_mask(mask, observed)}, float('{sign}inf')).{name}({inner})"
    return None


def _loss(node: ast.expr, observed: Observed) -> str | None:
    call = call_of(node)
    if call is None or call[0] not in _LOSSES or len(call[1]) != 2:
        return None
    if set(call[2]) - set(inspect.signature(getattr(losses, _LOSSES[call[0]])).parameters):
        return None
    chosen = [found for found in map(selection_of, call[1]) if found is not None]
    if len(chosen) != 2 or ast.unparse(chosen[0][1]) != ast.unparse(chosen[1][1]):
        return None
    options = "".join(f", {k}={ast.unparse(v)}" for k, v in call[2].items())
    x, target, mask = ast.unparse(chosen[0][0]), ast.unparse(chosen[1][0]), ast.unparse(chosen[0][1])
    if call[0] == "cross_entropy" and observed.mask_dims > 1:
        return None
    return f"opswap.shapes.losses.{_LOSSES[call[0]]}({x}, {target}, {mask}{options})"


def _store(statement: ast.AST, observed: Observed) -> ast.AST | None:
    """x[mask] = value and x[mask] += value."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
        value = ast.BinOp(copy.deepcopy(target), statement.op, statement.value)
    else:
        return None
    chosen = selection_of(target) if isinstance(target, ast.Subscript) else None
    if chosen is None:
        return None
    x, mask = chosen
    if observed.each and not selects(value):
        return None  # as many values as are selected
    if not observed.floating and is_constant(
        value
    ):  # torch.where would make floats of integers, integers of bools
        text = f"{ast.unparse(x)} = {text_of(x)}.masked_fill({_mask(mask, observed)}, {ast.unparse(value)})"
        return ast.parse(text).body[0]
    whole = _Whole(mask, observed).of(value)
    if whole is None:
        return None
    text = f"{ast.unparse(x)} = torch.where({_mask(mask, observed)}, {ast.unparse(whole)}, {ast.unparse(x)})"
    return ast.parse(text).body[0]


class _Whole:
    """Code that computes on all of x what an expression computes on x[mask], element by element.

    Arguments for which a function may have no finite gradient are 1 outside the mask: torch.where multiplies the
    gradient of what it leaves out by 0, which is NaN for an infinite one.
    """

    def __init__(self, mask: ast.expr, observed: Observed) -> None:
        self._observed, self._mask, self._guard = observed, ast.unparse(mask), _mask(mask, observed)

    def of(self, node: ast.expr) -> ast.expr | None:
        """None if the result would differ."""
        if isinstance(node, (ast.Name, ast.Attribute)) or is_constant(node):
            return node
        chosen = selection_of(node)
        if chosen is not None:
            return chosen[0] if ast.unparse(chosen[1]) == self._mask else None
        if isinstance(node, ast.BinOp):
            left, right = self.of(node.left), self.of(node.right)
            if left is None or right is None:
                return None
            if isinstance(node.op, ast.Pow):
                left = self._guarded(node.left, left)
            elif isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod)):
                right = self._guarded(node.right, right)
            return ast.BinOp(left, node.op, right)
        if isinstance(node, ast.UnaryOp):
            operand = self.of(node.operand)
            return None if operand is None else ast.UnaryOp(node.op, operand)
        return self._of_call(node) if isinstance(node, ast.Call) else None

    def _of_call(self, node: ast.Call) -> ast.expr | None:
        """Of torch's elementwise ones, of reductions, and of what makes a number of constants."""
        call = call_of(node)
        if call is None:
            return None
        name, arguments, _ = call
        chosen = selection_of(arguments[0]) if arguments else None
        if chosen is not None and ast.unparse(chosen[1]) == self._mask:
            # Where nothing is selected nothing is stored, but a mean's gradient would be NaN.
            text = _reduction(node, self._observed, ".clamp(min=1)")
            if text is not None:
                return ast.parse(text, mode="eval").body
        if name not in ELEMENTWISE or not all(is_constant(k.value) for k in node.keywords):
            return None
        if not any(map(selects, arguments)):
            return node
        wholes: list[ast.expr] = []
        for place, argument in enumerate(arguments):
            whole = self.of(argument)
            if whole is None:
                return None
            wholes.append(self._guarded(argument, whole) if GUARDED.get(name) == place else whole)
        func = node.func
        if isinstance(func, ast.Attribute) and ast.unparse(func.value) not in OF_TORCH:
            func = ast.Attribute(wholes.pop(0), func.attr, ast.Load())
        return ast.Call(func, wholes, node.keywords)

    def _guarded(self, node: ast.expr, whole: ast.expr) -> ast.expr:
        """What `node` has become, 1 outside the mask."""
        if not selects(node):
            return whole
        return ast.parse(f"torch.where({self._guard}, {ast.unparse(whole)}, 1)", mode="eval").body


def _count_of_nonzero(node: ast.expr, observed: Observed) -> str | None:
    found = counted(node)
    part = isinstance(found, ast.Subscript) and is_constant(found.slice)
    indices = _indices(found.value if part and isinstance(found, ast.Subscript) else found)
    if indices is None or indices[1] is not part:
        return None
    rows = part or "numel" not in ast.unparse(node)
    return f"torch.count_nonzero({ast.unparse(indices[0])})" if rows else None


def _indices(node: ast.expr | None) -> tuple[ast.expr, bool] | None:
    """(x, True if the result is a tuple) of nonzero(x), argwhere(x) and where(x)."""
    x, call = (nonzero_argument(node), call_of(node)) if node is not None else (None, None)
    if x is None or call is None:
        return None
    tuples = call[2].pop("as_tuple", ast.Constant(False))
    if call[2] or not isinstance(tuples, ast.Constant):
        return None
    return x, call[0] == "where" or bool(tuples.value)


def _keep_indices(statement: ast.stmt) -> bool:
    """Put N indices in place of those that a statement keeps as they are: its value, or a part or view of them.

    What is computed of the indices, or turns with them, would count the padding too.
    """
    holder: ast.AST = statement
    while isinstance(holder, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr, ast.Subscript, ast.Attribute)):
        value = holder.value
        found = _indices(value)
        if found is not None:
            fixed = f"torch.nonzero_static({ast.unparse(found[0])}, size=N, fill_value=0)"
            text = f"{fixed}.unbind(1)" if found[1] else fixed
            holder.value = ast.parse(text, mode="eval").body
            return True
        view = (
            isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and called(value) in _VIEWS
        )
        holder = value.func if isinstance(value, ast.Call) and view else value  # type: ignore[assignment]
        if isinstance(holder, ast.Attribute) and not view:
            return False
    return False


def _count_of_unique(node: ast.expr, observed: Observed) -> str | None:
    found = counted(node)
    call = call_of(found) if found is not None else None
    if call is None or call[0] not in ("unique", "unique_consecutive") or len(call[1]) != 1 or call[2]:
        return None
    flat = f"{text_of(call[1][0])}.flatten()"
    ordered = flat if call[0] == "unique_consecutive" else f"{flat}.sort().values"
    # Not by diff(), which is NaN between two infinities.
    return f"((ordered := {ordered})[1:] != ordered[:-1]).sum() + (ordered.numel() > 0)"


def _bincount(node: ast.expr, observed: Observed) -> str | None:
    call = call_of(node)
    if call is None or call[0] != "bincount" or len(call[1]) > 2:
        return None
    x = ast.unparse(call[1][0])
    weights = call[1][1] if len(call[1]) == 2 else call[2].get("weights")
    size = ast.unparse(call[2]["minlength"]) if "minlength" in call[2] else "N"
    added = f"torch.ones_like({x})" if weights is None else ast.unparse(weights)
    holder = text_of(call[1][0] if weights is None else weights)
    return f"torch.zeros({size}, dtype={holder}.dtype).index_add(0, {x}, {added})"


def _repeat_interleave(node: ast.expr, observed: Observed) -> str | None:
    call = call_of(node)
    if call is None or call[0] != "repeat_interleave" or "output_size" in call[2]:
        return None
    return f"{ast.unparse(node)[:-1]}, output_size=N)"


def _choice(node: ast.expr, observed: Observed) -> str | None:
    """a if condition else b."""
    if not isinstance(node, ast.IfExp):
        return None
    if any(isinstance(n, (ast.BoolOp, ast.Not)) for n in ast.walk(node.test)):
        return None  # these ask for Python's own True and False
    for part in (node.body, node.orelse):
        if isinstance(part, ast.Constant) and not isinstance(part.value, (int, float)):
            return None  # torch.where has tensors and numbers
        if may_be_infinite(part):
            return None  # torch.where multiplies the gradient of the side that it leaves out by 0
    return f"torch.where({tensor_of(node.test)}, {ast.unparse(node.body)}, {ast.unparse(node.orelse)})"


def _number(node: ast.expr, observed: Observed) -> str | None:
    """x.item(), float(x) among tensors: the tensor itself will do, without its gradient."""
    if not isinstance(node, ast.BinOp) or is_number(node):
        return None
    text = tensor_of(node, ".detach()")
    return None if text == ast.unparse(node) else text


def _first_rows(node: ast.expr, observed: Observed) -> str | None:
    """x[:n].sum(): n, a number made of a tensor, becomes a mask. None if a sign or difference may make n negative,
    which counts from the end."""
    call = call_of(node)
    part = call[1][0] if call is not None and call[1] else None
    if (
        call is None
        or call[0] != "sum"
        or not isinstance(part, ast.Subscript)
        or not isinstance(part.slice, ast.Slice)
    ):
        return None
    cut = part.slice
    if cut.lower is not None or cut.step is not None or cut.upper is None or len(call[1]) > 1 or call[2]:
        return None
    if any(isinstance(n, (ast.USub, ast.Sub)) for n in ast.walk(cut.upper)):
        return None
    x = ast.unparse(part.value)
    rows = f"torch.arange({text_of(part.value)}.shape[0]) < {tensor_of(cut.upper)}"
    return f"torch.where(({rows}).reshape(-1, *[1] * ({text_of(part.value)}.dim() - 1)), {x}, 0).sum()"


_Rewrite = Callable[[ast.expr, Observed], "str | None"]
_OF_SELECTIONS: tuple[_Rewrite, ...] = (_loss, _count_of_selection, _reduction)
_BY_OPERATOR: dict[str, tuple[_Rewrite, ...]] = {
    "index": _OF_SELECTIONS,
    "masked_select": _OF_SELECTIONS,
    "index_put": (),
    "nonzero": (_count_of_nonzero,),
    "unique": (_count_of_unique,),
    "bincount": (_bincount,),
    "repeat_interleave": (_repeat_interleave,),
    "item": (_choice, _first_rows, _number),
}
