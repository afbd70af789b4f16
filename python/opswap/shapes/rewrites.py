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

__all__ = ["Facts", "advice", "rewrite"]


@dataclass(frozen=True)
class Facts:
    """What the run showed.

    op: the operator's name. mask_dims, trailing: dimensions of a mask, and of what it selects from behind those.
    floating: False if it selects integers.
    """

    op: str
    mask_dims: int = 1
    trailing: int = 0
    floating: bool = True


_OF_TORCH = ("torch", "F", "nn.functional", "torch.nn.functional", "functional")
_SELECTIONS = ("index", "masked_select", "index_put")
_LOSSES = {
    "l1_loss": "l1",
    "smooth_l1_loss": "smooth_l1",
    "mse_loss": "mse",
    "cross_entropy": "cross_entropy",
    "binary_cross_entropy_with_logits": "bce_with_logits",
}
# Functions and methods of which one element of the result depends on the same element of the arguments alone.
_ELEMENTWISE = frozenset(
    {
        *(
            "abs",
            "add",
            "ceil",
            "clamp",
            "clamp_max",
            "clamp_min",
            "clip",
            "cos",
            "div",
            "double",
            "erf",
            "exp",
            "expm1",
        ),
        *(
            "float",
            "floor",
            "gelu",
            "half",
            "log",
            "log1p",
            "log2",
            "maximum",
            "minimum",
            "mul",
            "neg",
            "pow",
            "relu",
        ),
        *(
            "reciprocal",
            "round",
            "rsqrt",
            "sigmoid",
            "sign",
            "silu",
            "sin",
            "softplus",
            "sqrt",
            "square",
            "sub",
            "tanh",
        ),
    }
)
# Of these the place of the argument for which the gradient may be infinite, or the result.
_GUARDED = {
    **dict.fromkeys(("exp", "expm1", "log", "log1p", "log2", "pow", "reciprocal", "rsqrt", "sqrt"), 0),
    "div": 1,
}
_DIVIDING = """
    div div_ divide divide_ floor_divide floor_divide_ fmod fmod_ remainder remainder_ true_divide
    true_divide_
"""
# Functions and methods whose value or gradient may be infinite, or not a number, for finite arguments.
_GROWING = """
    acos acosh addcdiv arccos arccosh arcsin arctanh asin atan2 atanh cdist corrcoef cosh
    cosine_similarity cov det digamma dist eigh erfinv exp exp2 exp_ expm1 float_power hypot inv
    inverse lgamma log log10 log1p log2 log_ logdet logit logsumexp matrix_norm nanmean norm
    pinverse pow pow_ qr reciprocal reciprocal_ renorm rsqrt rsqrt_ sinh slogdet solve sqrt sqrt_
    std std_mean svd tan var var_mean vector_norm xlogy
"""
_QUOTIENTS = frozenset(_DIVIDING.split())
_UNBOUNDED = _QUOTIENTS | frozenset(_GROWING.split())


def rewrite(statement: ast.stmt, facts: Facts) -> str:
    """The statement's code with the first expression replaced that a rewrite knows; "" if none does.

    Of a compound statement only the first line is given.
    """
    tree = _without_bodies(copy.deepcopy(statement))
    if facts.op in _SELECTIONS and not _masks_are_known(tree):
        return ""
    changed = _store(tree, facts) if facts.op in _SELECTIONS else None
    if changed is None:
        replacer = _Replacer(facts)
        changed = replacer.visit(tree)
        if not replacer.found:
            return ""
    text = ast.unparse(ast.fix_missing_locations(changed))
    return text.splitlines()[0]


def _without_bodies(statement: ast.stmt) -> ast.stmt:
    """A compound statement as its first line alone: what is read in a body is read on another line."""
    for holder in (statement, *getattr(statement, "cases", ())):
        for name in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(getattr(holder, name, None), list):
                setattr(holder, name, [ast.Pass()] if name == "body" else [])
    return statement


def _masks_are_known(statement: ast.stmt) -> bool:
    """False if a line has several indices, as x[i] + x[mask], of which the text does not say which are masks."""
    indices: dict[str, bool] = {}
    for node in ast.walk(statement):
        call = _call(node) if isinstance(node, ast.expr) else None
        if call is not None and call[0] == "masked_select" and len(call[1]) == 2:
            indices[ast.unparse(call[1][1])] = True
        elif isinstance(node, ast.Subscript) and not _is_plain_index(node.slice):
            indices[ast.unparse(node.slice)] = _is_mask(node.slice)
    return len(indices) < 2 or all(indices.values())


def _is_plain_index(node: ast.expr) -> bool:
    """True for numbers and slices, which select a fixed number of elements."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(part, ast.Slice) or _is_constant(part) for part in parts)


def _is_mask(node: ast.expr) -> bool:
    """True for comparisons, and what combines them."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
    return isinstance(node, ast.Compare) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)
    )


def advice(statement: ast.stmt, facts: Facts) -> str:
    """What to do on a line that selects by one mask, in its own names, if no rewrite of it has the same value; "" for
    another line."""
    head = _without_bodies(copy.deepcopy(statement))
    stored = facts.op == "index_put"
    nodes = [n for n in ast.walk(head) if isinstance(n, ast.expr)]
    places = [_selection(n) for n in nodes if stored or not isinstance(getattr(n, "ctx", None), ast.Store)]
    found = {ast.unparse(x): mask for x, mask in filter(None, places)}
    masks = {ast.unparse(mask) for mask in found.values()}
    if facts.op not in _SELECTIONS or len(masks) != 1 or not _masks_are_known(head):
        return ""
    (x, mask), *others = found.items()
    if stored:
        written = _selection(head.targets[0]) if isinstance(head, ast.Assign) else None
        if written is None:
            return ""
        x = ast.unparse(written[0])
        return f"`{x} = torch.where({_mask(mask, facts)}, value, {x})`, with a value for every element"
    if others:
        names = " and ".join(f"`{name}`" for name in found)
        whole = f"keep all of {names}, and `{ast.unparse(mask)}` as a mask"
        return f"{whole}: torch.where, or opswap.shapes.losses with `valid={ast.unparse(mask)}`"
    where = _mask(mask, facts) if facts.trailing else ast.unparse(mask)
    return (
        f"keep all elements and the mask: `torch.where({where}, {x}, 0)`, "
        f"or a loss of opswap.shapes.losses with `valid={ast.unparse(mask)}`"
    )


class _Replacer(ast.NodeTransformer):
    """Replaces the outermost expression for which there is a rewrite."""

    def __init__(self, facts: Facts) -> None:
        self.found = False
        self._facts = facts

    def visit(self, node: ast.AST) -> ast.AST:
        if self.found:
            return node
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load):
            text = _expression(node, self._facts)
            if text is not None:
                self.found = True
                return ast.parse(text, mode="eval").body
        if isinstance(node, ast.Subscript) and self._facts.op == "item":
            value = self.visit(node.value)  # not the index, which reads the number again
            return ast.Subscript(value, node.slice, node.ctx)  # type: ignore[arg-type]
        return self.generic_visit(node)


def _expression(node: ast.expr, facts: Facts) -> str | None:
    """The text that replaces one expression, None if there is none."""
    for known in _BY_OPERATOR.get(facts.op, ()):
        text = known(node, facts)
        if text is not None:
            return text
    return None


# --- parts of expressions -------------------------------------------------------------------------------------------


def _text(node: ast.expr) -> str:
    """The code of an expression, in brackets if it would not bind as a name does."""
    text = ast.unparse(node)
    simple = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
    return text if isinstance(node, simple) else f"({text})"


def _call(node: ast.expr) -> tuple[str, list[ast.expr], dict[str, ast.expr]] | None:
    """(name, tensors and other arguments, keywords) of torch.name(x, ...) and of x.name(...) alike."""
    if not isinstance(node, ast.Call):
        return None
    keywords = {k.arg: k.value for k in node.keywords if k.arg}
    if isinstance(node.func, ast.Name):
        return node.func.id, list(node.args), keywords
    if not isinstance(node.func, ast.Attribute):
        return None
    holder = node.func.value
    of_torch = ast.unparse(holder) in _OF_TORCH
    return node.func.attr, [*([] if of_torch else [holder]), *node.args], keywords


def _selection(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """(x, mask) of x[mask], x.masked_select(mask) and torch.masked_select(x, mask)."""
    if isinstance(node, ast.Subscript) and not (
        isinstance(node.slice, (ast.Slice, ast.Tuple)) or _is_constant(node.slice)
    ):
        return node.value, node.slice
    call = _call(node)
    if call is not None and call[0] == "masked_select" and len(call[1]) == 2:
        return call[1][0], call[1][1]
    return None


def _is_constant(node: ast.expr) -> bool:
    """True for numbers, also with a sign."""
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _mask(mask: ast.expr, facts: Facts) -> str:
    """The mask with as many dimensions as what it selects from."""
    text = _text(mask)
    return f"{text}[{', '.join(['...'] + ['None'] * facts.trailing)}]" if facts.trailing else text


def _counted(node: ast.expr) -> ast.expr | None:
    """x of len(x), x.numel(), x.shape[0] and x.size(0)."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
    ):
        return node.value.value if ast.unparse(node.slice) == "0" else None
    call = _call(node)
    if call is None or not call[1]:
        return None
    name, (first, *rest), _ = call
    if name in ("len", "numel") and not rest:
        return first
    return first if name == "size" and [ast.unparse(r) for r in rest] == ["0"] else None


# --- the rewrites ---------------------------------------------------------------------------------------------------


def _count_of_selection(node: ast.expr, facts: Facts) -> str | None:
    found = _counted(node)
    chosen = _selection(found) if found is not None else None
    if chosen is None or (facts.trailing and "numel" in ast.unparse(node)):
        return None
    return f"{_text(chosen[1])}.sum()"


def _reduction(node: ast.expr, facts: Facts, at_least: str = "") -> str | None:
    """A reduction of a selection to one number or row; `at_least` bounds the number of elements of a mean."""
    call = _call(node)
    chosen = _selection(call[1][0]) if call is not None and call[1] else None
    if call is None or chosen is None:
        return None
    (name, arguments, keywords), (x, mask) = call, chosen
    dim = arguments[1] if len(arguments) == 2 else keywords.get("dim")
    if len(arguments) > 2 or set(keywords) - {"dim"} or (dim is not None and ast.unparse(dim) != "0"):
        return None
    places = "0" if facts.mask_dims == 1 else str(tuple(range(facts.mask_dims)))
    inner = "" if dim is None else places
    where = f"torch.where({_mask(mask, facts)}, {ast.unparse(x)}, 0)"
    if name in ("sum", "norm") and not (name == "norm" and dim is not None):
        return f"{where}.{name}({inner})"
    if name == "mean":
        whole = facts.trailing and dim is None
        count = f"{_mask(mask, facts)}.expand_as({ast.unparse(x)})" if whole else _text(mask)
        return f"{where}.sum({inner}) / {count}.sum(){at_least}"
    if name == "prod" and (dim is None or facts.mask_dims == 1):
        return f"torch.where({_mask(mask, facts)}, {ast.unparse(x)}, 1).prod({inner})"
    if name in ("max", "min", "amax", "amin", "logsumexp") and (dim is None or name not in ("max", "min")):
        if not facts.floating:
            end = "max" if name in ("min", "amin") else "min"
            limit = f"torch.iinfo({_text(x)}.dtype).{end}"
            filled = f"torch.where({_mask(mask, facts)}, {ast.unparse(x)}, {limit})"
            return None if name == "logsumexp" else f"{filled}.{name}({inner})"
        sign = "" if name in ("min", "amin") else "-"
        return f"{_text(x)}.masked_fill(~{_mask(mask, facts)}, float('{sign}inf')).{name}({inner})"
    return None


def _loss(node: ast.expr, facts: Facts) -> str | None:
    call = _call(node)
    if call is None or call[0] not in _LOSSES or len(call[1]) != 2:
        return None
    if set(call[2]) - set(inspect.signature(getattr(losses, _LOSSES[call[0]])).parameters):
        return None
    chosen = [found for found in map(_selection, call[1]) if found is not None]
    if len(chosen) != 2 or ast.unparse(chosen[0][1]) != ast.unparse(chosen[1][1]):
        return None
    options = "".join(f", {k}={ast.unparse(v)}" for k, v in call[2].items())
    x, target, mask = ast.unparse(chosen[0][0]), ast.unparse(chosen[1][0]), ast.unparse(chosen[0][1])
    if call[0] == "cross_entropy" and facts.mask_dims > 1:
        return None
    return f"opswap.shapes.losses.{_LOSSES[call[0]]}({x}, {target}, {mask}{options})"


def _store(statement: ast.AST, facts: Facts) -> ast.AST | None:
    """x[mask] = value and x[mask] += value."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
        value = ast.BinOp(copy.deepcopy(target), statement.op, statement.value)
    else:
        return None
    chosen = _selection(target) if isinstance(target, ast.Subscript) else None
    if chosen is None:
        return None
    x, mask = chosen
    whole = _Whole(mask, facts).of(value)
    if whole is None:
        return None
    text = f"{ast.unparse(x)} = torch.where({_mask(mask, facts)}, {ast.unparse(whole)}, {ast.unparse(x)})"
    return ast.parse(text).body[0]


class _Whole:
    """Code that computes on all of x what an expression computes on x[mask], element by element.

    Arguments for which a function may have no finite gradient are 1 outside the mask: torch.where multiplies the
    gradient of what it leaves out by 0, which is NaN for an infinite one.
    """

    def __init__(self, mask: ast.expr, facts: Facts) -> None:
        self._facts, self._mask, self._guard = facts, ast.unparse(mask), _mask(mask, facts)

    def of(self, node: ast.expr) -> ast.expr | None:
        """None if the result would differ."""
        if isinstance(node, (ast.Name, ast.Attribute)) or _is_constant(node):
            return node
        chosen = _selection(node)
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
        call = _call(node)
        if call is None:
            return None
        name, arguments, _ = call
        chosen = _selection(arguments[0]) if arguments else None
        if chosen is not None and ast.unparse(chosen[1]) == self._mask:
            # Where nothing is selected nothing is stored, but a mean's gradient would be NaN.
            text = _reduction(node, self._facts, ".clamp(min=1)")
            if text is not None:
                return ast.parse(text, mode="eval").body
        if name not in _ELEMENTWISE or not all(_is_constant(k.value) for k in node.keywords):
            return None
        if not any(map(_selects, arguments)):
            return node
        wholes: list[ast.expr] = []
        for place, argument in enumerate(arguments):
            whole = self.of(argument)
            if whole is None:
                return None
            wholes.append(self._guarded(argument, whole) if _GUARDED.get(name) == place else whole)
        func = node.func
        if isinstance(func, ast.Attribute) and ast.unparse(func.value) not in _OF_TORCH:
            func = ast.Attribute(wholes.pop(0), func.attr, ast.Load())
        return ast.Call(func, wholes, node.keywords)

    def _guarded(self, node: ast.expr, whole: ast.expr) -> ast.expr:
        """What `node` has become, 1 outside the mask."""
        if not _selects(node):
            return whole
        return ast.parse(f"torch.where({self._guard}, {ast.unparse(whole)}, 1)", mode="eval").body


def _selects(node: ast.expr) -> bool:
    return any(isinstance(n, ast.expr) and _selection(n) is not None for n in ast.walk(node))


def _nonzero_argument(node: ast.expr) -> ast.expr | None:
    call = _call(node)
    if call is not None and call[0] in ("nonzero", "argwhere") and len(call[1]) == 1:
        return call[1][0]
    if call is not None and call[0] == "where" and len(call[1]) == 1:
        return call[1][0]
    return None


def _count_of_nonzero(node: ast.expr, facts: Facts) -> str | None:
    found = _counted(node)
    x = _nonzero_argument(found) if found is not None else None
    if (
        found is None
        or x is None
        or "where" in ast.unparse(found).split("(")[0].rpartition(".")[2].replace("argwhere", "")
    ):
        return None
    return None if "numel" in ast.unparse(node) else f"torch.count_nonzero({ast.unparse(x)})"


def _nonzero(node: ast.expr, facts: Facts) -> str | None:
    x, call = _nonzero_argument(node), _call(node)
    if x is None or call is None:
        return None
    fixed = f"torch.nonzero_static({ast.unparse(x)}, size=N, fill_value=0)"
    tuples = call[2].pop("as_tuple", ast.Constant(False))
    if call[2] or not isinstance(tuples, ast.Constant):
        return None
    several = call[0] == "where" or bool(tuples.value)
    return f"{fixed}.unbind(1)" if several else fixed


def _count_of_unique(node: ast.expr, facts: Facts) -> str | None:
    found = _counted(node)
    call = _call(found) if found is not None else None
    if call is None or call[0] not in ("unique", "unique_consecutive") or len(call[1]) != 1 or call[2]:
        return None
    flat = f"{_text(call[1][0])}.flatten()"
    ordered = flat if call[0] == "unique_consecutive" else f"{flat}.sort().values"
    # Not by diff(), which is NaN between two infinities.
    return f"((ordered := {ordered})[1:] != ordered[:-1]).sum() + (ordered.numel() > 0)"


def _bincount(node: ast.expr, facts: Facts) -> str | None:
    call = _call(node)
    if call is None or call[0] != "bincount" or len(call[1]) > 2:
        return None
    x = ast.unparse(call[1][0])
    weights = call[1][1] if len(call[1]) == 2 else call[2].get("weights")
    size = ast.unparse(call[2]["minlength"]) if "minlength" in call[2] else "N"
    added = f"torch.ones_like({x})" if weights is None else ast.unparse(weights)
    holder = _text(call[1][0] if weights is None else weights)
    return f"torch.zeros({size}, dtype={holder}.dtype).index_add(0, {x}, {added})"


def _repeat_interleave(node: ast.expr, facts: Facts) -> str | None:
    call = _call(node)
    if call is None or call[0] != "repeat_interleave" or "output_size" in call[2]:
        return None
    return f"{ast.unparse(node)[:-1]}, output_size=N)"


def _choice(node: ast.expr, facts: Facts) -> str | None:
    """a if condition else b."""
    if not isinstance(node, ast.IfExp):
        return None
    if any(isinstance(n, (ast.BoolOp, ast.Not)) for n in ast.walk(node.test)):
        return None  # these ask for Python's own True and False
    for part in (node.body, node.orelse):
        if isinstance(part, ast.Constant) and not isinstance(part.value, (int, float)):
            return None  # torch.where has tensors and numbers
        if _may_be_infinite(part):
            return None  # torch.where multiplies the gradient of the side that it leaves out by 0
    return f"torch.where({_tensor(node.test)}, {ast.unparse(node.body)}, {ast.unparse(node.orelse)})"


def _may_be_infinite(node: ast.expr) -> bool:
    """True if the value or gradient of an expression may be infinite: of a quotient, a power, a logarithm, ..."""
    for n in ast.walk(node):
        if isinstance(n, ast.BinOp):
            if isinstance(n.op, (ast.Div, ast.FloorDiv, ast.Mod)) and not _is_constant(n.right):
                return True
            if isinstance(n.op, ast.Pow) and not _is_smooth_exponent(n.right):
                return True
        call = _call(n) if isinstance(n, ast.expr) else None
        if call is None or call[0] not in _UNBOUNDED:
            continue
        numbers = [*call[1][1:], *call[2].values()]
        if call[0] in ("pow", "float_power") and len(numbers) == 1 and _is_smooth_exponent(numbers[0]):
            continue
        if call[0] in _QUOTIENTS and len(numbers) == 1 and _is_constant(numbers[0]):
            continue
        return True
    return False


def _is_smooth_exponent(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and (node.value >= 1)


def _number(node: ast.expr, facts: Facts) -> str | None:
    """x.item(), float(x) among tensors: the tensor itself will do, without its gradient."""
    if not isinstance(node, ast.BinOp):
        return None
    text = _tensor(node, ".detach()")
    return None if text == ast.unparse(node) else text


def _first_rows(node: ast.expr, facts: Facts) -> str | None:
    """x[:n].sum(): n, a number made of a tensor, becomes a mask. None if a sign or difference may make n negative,
    which counts from the end."""
    call = _call(node)
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
    rows = f"torch.arange({_text(part.value)}.shape[0]) < {_tensor(cut.upper)}"
    return f"torch.where(({rows}).reshape(-1, *[1] * ({_text(part.value)}.dim() - 1)), {x}, 0).sum()"


def _tensor(node: ast.expr, kept: str = "") -> str:
    """The expression with the tensors in place of x.item(), int(x), float(x) and bool(x).

    Args: kept: what is put behind a tensor whose gradient could go on, which that of a number does not.
    """
    return ast.unparse(_Tensors(kept).visit(copy.deepcopy(node)))


class _Tensors(ast.NodeTransformer):
    def __init__(self, kept: str) -> None:
        self._kept = kept

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.visit(node.value)  # but no index, which is a number again
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        call = _call(node)
        if call is None or call[0] not in ("item", "int", "float", "bool") or len(call[1]) != 1:
            # Of the arguments int(x) may be a size.
            sizes = {id(a): a for a in node.args if (found := _call(a)) is not None and found[0] == "int"}
            node.func = self.visit(node.func)
            node.args = [a if id(a) in sizes else self.visit(a) for a in node.args]
            node.keywords = [self.visit(k) for k in node.keywords]
            return node
        name, (x,), _ = call
        if not any(isinstance(n, ast.Name) for n in ast.walk(x)):
            return node  # float("inf")
        text = _text(_Tensors("").visit(x))
        behind = {"int": ".long()", "bool": ".bool()"}.get(name, self._kept)
        return ast.parse(f"{text}{behind}", mode="eval").body


_Rewrite = Callable[[ast.expr, Facts], "str | None"]
_OF_SELECTIONS: tuple[_Rewrite, ...] = (_loss, _count_of_selection, _reduction)
_BY_OPERATOR: dict[str, tuple[_Rewrite, ...]] = {
    "index": _OF_SELECTIONS,
    "masked_select": _OF_SELECTIONS,
    "index_put": (),
    "nonzero": (_count_of_nonzero, _nonzero),
    "unique": (_count_of_unique,),
    "bincount": (_bincount,),
    "repeat_interleave": (_repeat_interleave,),
    "item": (_choice, _first_rows, _number),
}
