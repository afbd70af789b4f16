# SPDX-License-Identifier: MIT
"""What the code of an expression says: what it calls, what it selects, and if its value may be infinite.

Nothing is evaluated: functions and methods are known by the names that they have in torch.
"""

from __future__ import annotations

import ast
import copy

from .syntax import READS

__all__ = [
    "ELEMENTWISE",
    "GUARDED",
    "OF_TORCH",
    "call_of",
    "counted",
    "is_constant",
    "is_number",
    "masks_are_known",
    "may_be_infinite",
    "nonzero_argument",
    "selection_of",
    "selects",
    "tensor_of",
    "text_of",
    "without_bodies",
]

OF_TORCH = ("torch", "F", "nn.functional", "torch.nn.functional", "functional")
# Functions and methods of which one element of the result depends on the same element of the arguments alone.
_BY_ELEMENT = """
    abs add ceil clamp clamp_max clamp_min clip cos div double erf exp expm1 float floor gelu half log log1p
    log2 maximum minimum mul neg pow relu reciprocal round rsqrt sigmoid sign silu sin softplus sqrt square
    sub tanh
"""
ELEMENTWISE = frozenset(_BY_ELEMENT.split())
# Of these the place of the argument for which the gradient may be infinite, or the result.
GUARDED = {
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


def call_of(node: ast.expr) -> tuple[str, list[ast.expr], dict[str, ast.expr]] | None:
    """(name, tensors and other arguments, keywords) of torch.name(x, ...) and of x.name(...) alike."""
    if not isinstance(node, ast.Call):
        return None
    keywords = {k.arg: k.value for k in node.keywords if k.arg}
    if isinstance(node.func, ast.Name):
        return node.func.id, list(node.args), keywords
    if not isinstance(node.func, ast.Attribute):
        return None
    holder = node.func.value
    of_torch = ast.unparse(holder) in OF_TORCH
    return node.func.attr, [*([] if of_torch else [holder]), *node.args], keywords


def text_of(node: ast.expr) -> str:
    """The code of an expression, in brackets if it would not bind as a name does."""
    text = ast.unparse(node)
    simple = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
    return text if isinstance(node, simple) else f"({text})"


def is_constant(node: ast.expr) -> bool:
    """True for numbers, also with a sign."""
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def is_number(node: ast.expr) -> bool:
    """True if an expression is made of Python's numbers alone: constants, counts, and what is read from tensors."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    call = call_of(node)
    return is_constant(node) or counted(node) is not None or (call is not None and call[0] in READS)


def selection_of(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """(x, mask) of x[mask], x.masked_select(mask) and torch.masked_select(x, mask)."""
    if isinstance(node, ast.Subscript) and not (
        isinstance(node.slice, (ast.Slice, ast.Tuple)) or is_constant(node.slice) or _is_list(node.slice)
    ):
        return node.value, node.slice
    call = call_of(node)
    if call is not None and call[0] == "masked_select" and len(call[1]) == 2:
        return call[1][0], call[1][1]
    return None


def selects(node: ast.expr) -> bool:
    """True if an expression has a selection in it."""
    return any(isinstance(n, ast.expr) and selection_of(n) is not None for n in ast.walk(node))


def counted(node: ast.expr) -> ast.expr | None:
    """x of len(x), x.numel(), x.shape[0] and x.size(0)."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
    ):
        return node.value.value if ast.unparse(node.slice) == "0" else None
    call = call_of(node)
    if call is None or not call[1]:
        return None
    name, (first, *rest), _ = call
    if name in ("len", "numel") and not rest:
        return first
    return first if name == "size" and [ast.unparse(r) for r in rest] == ["0"] else None


def nonzero_argument(node: ast.expr) -> ast.expr | None:
    """x of nonzero(x), argwhere(x) and where(x)."""
    call = call_of(node)
    if call is not None and call[0] in ("nonzero", "argwhere") and len(call[1]) == 1:
        return call[1][0]
    if call is not None and call[0] == "where" and len(call[1]) == 1:
        return call[1][0]
    return None


def without_bodies(statement: ast.stmt) -> ast.stmt:
    """A compound statement as its first line alone: what is read in a body is read on another line."""
    for holder in (statement, *getattr(statement, "cases", ())):
        for name in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(getattr(holder, name, None), list):
                setattr(holder, name, [ast.Pass()] if name == "body" else [])
    return statement


def masks_are_known(statement: ast.stmt) -> bool:
    """False if a line has several indices, as x[i] + x[mask], of which the text does not say which are masks."""
    indices: dict[str, bool] = {}
    for node in ast.walk(statement):
        call = call_of(node) if isinstance(node, ast.expr) else None
        if call is not None and call[0] == "masked_select" and len(call[1]) == 2:
            indices[ast.unparse(call[1][1])] = True
        elif isinstance(node, ast.Subscript) and not _is_plain_index(node.slice):
            indices[ast.unparse(node.slice)] = _is_mask(node.slice)
    return len(indices) < 2 or all(indices.values())


def _is_list(node: ast.expr) -> bool:
    """True for lists that are written out: of indices, or of as many bools in each step."""
    return isinstance(node, (ast.List, ast.ListComp))


def _is_plain_index(node: ast.expr) -> bool:
    """True for numbers, slices and lists, which select as many elements as the text says."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(part, ast.Slice) or is_constant(part) or _is_list(part) for part in parts)


def _is_mask(node: ast.expr) -> bool:
    """True for comparisons, and what combines them."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
    return isinstance(node, ast.Compare) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)
    )


def may_be_infinite(node: ast.expr) -> bool:
    """True if the value or gradient of an expression may be infinite: of a quotient, a power, a logarithm, ..."""
    for n in ast.walk(node):
        if isinstance(n, ast.BinOp):
            if isinstance(n.op, (ast.Div, ast.FloorDiv, ast.Mod)) and not is_constant(n.right):
                return True
            if isinstance(n.op, ast.Pow) and not _is_smooth_exponent(n.right):
                return True
        call = call_of(n) if isinstance(n, ast.expr) else None
        if call is None or call[0] not in _UNBOUNDED:
            continue
        numbers = [*call[1][1:], *call[2].values()]
        if call[0] in ("pow", "float_power") and len(numbers) == 1 and _is_smooth_exponent(numbers[0]):
            continue
        if call[0] in _QUOTIENTS and len(numbers) == 1 and is_constant(numbers[0]):
            continue
        return True
    return False


def _is_smooth_exponent(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and (node.value >= 1)


def tensor_of(node: ast.expr, kept: str = "") -> str:
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
        call = call_of(node)
        if call is None or call[0] not in ("item", "int", "float", "bool") or len(call[1]) != 1:
            if isinstance(node.func, ast.Name) or ast.unparse(node.func).startswith("math."):
                return node  # max(n, 1), math.log(n): of Python's numbers
            # Of the arguments int(x) may be a size.
            sizes = {id(a): a for a in node.args if (found := call_of(a)) is not None and found[0] == "int"}
            node.func = self.visit(node.func)
            node.args = [a if id(a) in sizes else self.visit(a) for a in node.args]
            node.keywords = [self.visit(k) for k in node.keywords]
            return node
        name, (x,), _ = call
        if not any(isinstance(n, ast.Name) for n in ast.walk(x)):
            return node  # float("inf")
        text = text_of(_Tensors("").visit(x))
        behind = {"int": ".long()", "bool": ".bool()"}.get(name, self._kept)
        return ast.parse(f"{text}{behind}", mode="eval").body
