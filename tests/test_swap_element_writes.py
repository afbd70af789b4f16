# SPDX-License-Identifier: MIT
"""What byte code says of writes to elements is the same under every version of Python that can be found."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from opswap.swap.capture.follow import Follower
from test_swap_bytecode import FOUND, pythons, told  # noqa: F401 (fixtures)

TABLE = """
def reads(s, x): return x * TABLE["a"] * LIST[-1] + s.cfg.steps[0]
def its_own_list(s, x):
    found = []
    found.append(x)
    return found
def a_method(s, x): LIST.append(x)
def a_method_with_keywords(s, x): TABLE.update(a=x)
def a_method_in_C(s, x): TABLE.get("a").clear()
def a_key_of_a_variable(s, x):
    t = TABLE
    t["a"] = x
def a_key_of_an_argument(s, x, t): t["a"] = x
def a_key_by_a_variable(s, x, t, k): t[k] = x
def a_key_that_is_deleted(s, x, t): del t["a"]
def a_sum(s, x):
    x += 1
    return x
def a_union(s, x):
    t = TABLE
    t |= x
    return t
def a_key_of_a_global(s, x): TABLE["a"] = x
def a_key_that_is_computed(s, x, t): t[x.a + 1] = x
def a_key_of_an_attribute(s, x): s.t["a"] = x
def a_deleted_key_of_a_global(s, x): del TABLE["a"]
def a_slice(s, x): LIST[:] = [x]
def a_slice_between(s, x, a, b): LIST[a:b] = [x]
def a_sum_of_elements(s, x): TABLE["a"] += x
def a_sum_of_an_attribute(s, x): s.log += [x]
def a_method_as_a_value(s, x): return map(LIST.append, x)
def a_method_with_star(s, x): LIST.extend(*x)
def a_method_in_a_variable(s, x):
    f = LIST.append
    f(x)
def a_method_by_name(s, x): getattr(LIST, "append")(x)
def an_operator(s, x): operator.setitem(TABLE, "a", x)
def a_heap(s, x): heappush(LIST, x)
def a_dunder(s, x): LIST.__setitem__(0, x)
"""
# name: (elements of anything, of what these variables hold)
EXPECTED = {
    "reads": "False []",
    "its_own_list": "False []",
    "a_method": "False []",
    "a_method_in_C": "False []",
    "a_key_of_a_variable": "False ['t']",
    "a_key_of_an_argument": "False ['t']",
    "a_key_by_a_variable": "False ['t']",
    "a_key_that_is_deleted": "False ['t']",
    "a_sum": "False ['x']",
    "a_union": "False ['t']",
}
SCRIPT = f"""
{FOUND}
from rules import element_writes
scope = {{}}
exec(compile({TABLE!r}, "table.py", "exec"), scope)
for name, f in scope.items():
    if not name.startswith("__"):
        found = element_writes.element_writes(f.__code__)
        print(name, found.anywhere, sorted(found.variables))
"""


def test_writes_to_elements(told: Callable[[str], dict[str, str]]) -> None:  # noqa: F811
    found = told(SCRIPT)
    assert len(found) == TABLE.count("def ")
    # Python 3.10 reads such a method as it reads one that is not called.
    assert found.pop("a_method_with_keywords") in ("False []", "True []")
    for name, text in found.items():
        if name in EXPECTED:
            assert text == EXPECTED[name], name
        else:
            assert text.startswith("True"), name


class LocalsOf313(UserDict):  # type: ignore[type-arg]
    """The local variables of a frame under Python 3.13: a mapping whose keys are a list."""

    def keys(self) -> list[str]:  # type: ignore[override]
        return list(self.data)


def test_variables_under_python_3_13() -> None:
    code = test_writes_to_elements.__code__
    given: list[Any] = []
    follower: Any = SimpleNamespace(_variables={id(code): frozenset(("out", "later"))}, _written=set())
    frame: Any = SimpleNamespace(f_code=code, f_locals=LocalsOf313(out=given, x=1))
    Follower._note_variables(follower, frame)
    assert follower._written == {id(given)}
