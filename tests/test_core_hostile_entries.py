# SPDX-License-Identifier: MIT
"""Calls that try to crash the process, as in test_core_hostile, of the entries that have no table there."""

from __future__ import annotations

import re
from pathlib import Path

from opswap import _core
from surviving import survive
from test_core_hostile import BEHAVIOURS, INTS, MADE, NUMBERS, ODD

# Each entry with its numbers: a call by what `n` makes of a number and `fresh` of a tensor.
ENTRIES = """
LAST = torch.channels_last
BIG = (4, 64, 64, 64)
ROWS = (4096, 64)
NAN = float("nan")

def image(*size, dtype=torch.float32):
    return fresh(*size, dtype=dtype).to(memory_format=LAST)

def statistics(*size):
    return fresh(*size, dtype=torch.float64)

def four():
    return [fresh(64) for _ in range(4)]

def chain(n, windows=False):
    # A 1x1 convolution, a norm and an activation; windows: the options of evaluation
    first = (1, 1, 0, 0, 1) if windows else (1, n(0.1))
    options = ((*first, n(1e-5), "relu"),)
    tensors = image(*BIG), fresh(64, 64, 1, 1), fresh(64), fresh(64), fresh(64), fresh(64)
    return options, (*tensors, fresh(64)) if windows else tensors

ENTRIES = {
    "group_norm": lambda n: _core.group_norm(n(8), n(1e-5), image(*BIG), fresh(64), fresh(64)),
    "group_norm_backward": lambda n: _core.group_norm_backward(
        n(8), n(1e-5), (True,) * 3, image(*BIG), image(*BIG), statistics(4, 8, 2), fresh(64), fresh(64)),
    "layer_norm": lambda n: _core.layer_norm(n(1e-5), fresh(*ROWS), fresh(64), fresh(64)),
    "layer_norm_backward": lambda n: _core.layer_norm_backward(
        n(1e-5), (True,) * 3, fresh(*ROWS), fresh(*ROWS), statistics(4096, 2), fresh(64), fresh(64)),
    "conv": lambda n: _core.plain_conv(image(*BIG), fresh(64, 64, 3, 3), fresh(64), n(1), n(1), n(1)),
    "conv_backward": lambda n: _core.plain_conv_backward(
        image(*BIG), image(*BIG), fresh(64, 64, 3, 3), n(1), n(1), n(1), True, True, True),
    "depthwise": lambda n: _core.plain_depthwise(image(*BIG), fresh(64, 1, 3, 3), fresh(64), n(1), n(1), n(1)),
    "depthwise_backward": lambda n: _core.plain_depthwise_backward(
        image(*BIG), image(*BIG), fresh(64, 1, 3, 3), n(1), n(1), n(1), True, True, True),
    "depthwise_fits": lambda n: _core.depthwise_fits(
        image(*BIG), fresh(64, 1, 3, 3), fresh(64), n(1), n(1), n(1)),
    "depthwise_fits_but_for_format": lambda n: _core.depthwise_fits_but_for_format(
        image(*BIG), fresh(64, 1, 3, 3), fresh(64), n(1), n(1), n(1)),
    "pointwise": lambda n: _core.plain_pointwise(image(*BIG), fresh(64, 64, 1, 1), fresh(64), n(1)),
    "pointwise_backward": lambda n: _core.plain_pointwise_backward(
        image(*BIG), image(*BIG), fresh(64, 64, 1, 1), n(1), True, True, True),
    "grouped_linear": lambda n: _core.plain_grouped_linear(
        fresh(500, 2, 64), fresh(200, 64), fresh(200), (n(100), 100)),
    "grouped_linear_backward": lambda n: _core.plain_grouped_linear_backward(
        fresh(500, 200), fresh(500, 2, 64), fresh(200, 64), (100, n(100)), True, True, True),
    "batch_norm_max_pool": lambda n: _core.plain_batch_norm_max_pool(
        True, n(0.1), n(1e-5), "relu", n(3), n(2), n(1), n(1), False, image(*BIG), *four(), True),
    "batch_norm_max_pool_backward": lambda n: _core.plain_batch_norm_max_pool_backward(
        True, n(1e-5), "relu", (True,) * 3, (n(3), 3), (n(2), 2), (1, 1), (1, 1), image(4, 64, 32, 32),
        image(4, 64, 32, 32, dtype=torch.uint8), image(*BIG), statistics(2, 64), fresh(64), fresh(64)),
    "over_mean_square": lambda n: _core.plain_over_mean_square(image(*BIG), n(True)),
    "over_mean_square_backward": lambda n: _core.plain_over_mean_square_backward(image(*BIG), image(*BIG), n(1.5)),
    "max_pool": lambda n: _core.plain_max_pool(False, image(*BIG), n(3), n(2), n(1), n(1), False, True),
    "avg_pool": lambda n: _core.plain_avg_pool(True, fresh(2, 8, 8, 32, 32), n(2), n(2), n(0), False, True, n(3), True),
    "adaptive_max_pool": lambda n: _core.plain_adaptive_max_pool(2, image(*BIG), (n(3), n(3)), True),
    "adaptive_max_pool_backward": lambda n: _core.plain_adaptive_max_pool_backward(
        (n(4), 64, 64, n(64)), LAST, image(4, 64, 3, 3, dtype=torch.int32), image(4, 64, 3, 3)),
    "amax": lambda n: _core.plain_amax(n(True), image(*BIG), True),
    "amax_backward": lambda n: _core.plain_amax_backward(
        image(*BIG), image(4, 64, 1, 1), fresh(4, 64, dtype=torch.int32), image(4, 64, 1, 1)),
    "chain": lambda n: _core.plain_chain(*chain(n)),
    "chain_fits": lambda n: _core.chain_fits(*chain(n)),
    "chain_folded_fits": lambda n: _core.chain_folded_fits(*chain(n, windows=True), None),
    "chain_backward": lambda n: _core.plain_chain_backward(
        *chain(n), image(*BIG), statistics(128), (image(*BIG),), (True,) * 6),
    "chain_folded": lambda n: _core.plain_chain_folded(*chain(n, windows=True), None),
}
"""


def test_every_entry_has_a_table() -> None:
    """What takes tensors is called in one of the two files."""
    others = re.compile(
        r"isa_|memory_|\w+_(variants|leads)$|threads$|plain_eager\w*$|unaltered$|record\w*$|_\w+"
    )
    names = [n for n in dir(_core) if callable(getattr(_core, n)) and not others.match(n)]
    folder = Path(__file__).parent
    text = "".join((folder / name).read_text() for name in ("test_core_hostile.py", Path(__file__).name))
    missing = [n for n in names if not re.search(rf"_core\.{n}\b", text)]
    assert len(names) > 30 and not missing


def test_numbers() -> None:
    """Sizes at and beyond every edge, NaN and infinities, in the place of each number by itself and of all."""
    survive(
        INTS
        + """
def fresh(*size, dtype=torch.float32):
    return torch.ones(1, dtype=dtype).expand(size).contiguous()
"""
        + ENTRIES
        + """
declined = []
for name, call in ENTRIES.items():
    places = []
    if call(lambda value: places.append(value) or value) is NotImplemented:
        declined.append(name)
    for odd in (*INTS, NAN, float("inf"), -1.0, 1e-320, None, "2", (1, 2), [3], torch.tensor(2)):
        for place in (*range(len(places)), None):
            at = iter(range(len(places)))
            attempt(f"{name} {odd} {place}", lambda: call(lambda v: odd if next(at) == place or place is None else v))
assert opswap.isa.current() == "scalar" or not declined, declined
""",
        timeout=500,
    )


def test_numbers_that_run_code() -> None:
    """An __index__ or a __float__ that takes the memory of a tensor of the call."""
    survive(
        NUMBERS
        + """
class Index(Number, int):
    def __new__(cls, value, spoil):
        return int.__new__(cls, value)

def fresh(*size, dtype=torch.float32):
    tensors.append(torch.ones(*size, dtype=dtype))
    if len(size) == 4:
        tensors[-1] = tensors[-1].to(memory_format=torch.channels_last)
    return tensors[-1]
"""
        + ENTRIES
        + """
for spoil in ("resize", "set"):
    for kind in (Number, Index):
        for name, call in ENTRIES.items():
            places = []
            call(lambda value: places.append(value) or value)
            for place in range(len(places)):
                tensors.clear()
                at = iter(range(len(places)))
                def n(value):
                    chosen = next(at) == place and (kind is Number or value == int(value))
                    return kind(value, spoil) if chosen else value
                attempt(f"{spoil} {kind.__name__} {name} {place}", lambda: call(n))
""",
        MALLOC_MMAP_THRESHOLD_="65536",  # what is freed is unmapped at once, and read no more
    )


def test_what_a_subclass_makes_and_is() -> None:
    """Outputs that are not what was asked for, and inputs that have lost their memory or say they are elsewhere."""
    survive(
        """
from torch import Tensor
"""
        + BEHAVIOURS
        + """
for behaviour in (other_size, shorter, all_one_place, other_dtype, nothing, resizes):
"""
        + ODD
        + """
    def fresh(*size, dtype=torch.float32):
        return torch.ones(size, dtype=dtype).as_subclass(Odd)
"""
        + ENTRIES.replace("\n", "\n    ")
        + """
    for name, call in ENTRIES.items():
        attempt(f"{behaviour.__name__} {name}", lambda: call(lambda v: v))

gone = None

def fresh(*size, dtype=torch.float32):
    global number
    t = torch.ones(size, dtype=dtype)
    if number == gone:
        t.untyped_storage().resize_(0)
    elif number == -gone:
        t = torch.empty(size, dtype=dtype, device="meta")
    number += 1
    return t
"""
        + ENTRIES
        + """
def image(*size, dtype=torch.float32):
    return fresh(*size, dtype=dtype)  # torch itself would read what is gone

for name, call in ENTRIES.items():
    for gone in (0, 1, 2, 3, -1, -2, -3):
        number = 0
        attempt(f"{name} {gone}", lambda: call(lambda v: v))
"""
    )


def test_what_is_no_tuple_of_options() -> None:
    """Options, tensors and needs of chains that hold too few, are made on the fly, or are of other kinds."""
    survive(
        """
def fresh(*size, dtype=torch.float32):
    return torch.ones(size, dtype=dtype)
"""
        + ENTRIES
        + MADE
        + """
class Tuple(tuple):
    def __len__(self): return 10**6
    def __getitem__(self, i): return None

x = image(2, 8, 4, 4)
odds = (Made(1), Made(6), Tuple((1,)), Tuple(), (), (1,), ((),), ((1,) * 4,), ((1, 0.1, 1e-5, "relu"),) * 1000, None, 5,
        "1234", {1: 2}, iter(()), range(6), x, [x] * 6, (x,) * 6, (None,) * 6, (x, *(None,) * 5), (None,) * 10**5)
options, tensors = chain(lambda v: v)
wide, _ = chain(lambda v: v, windows=True)
prepared = _core.plain_chain_folded(*chain(lambda v: v, windows=True), True)
if prepared is not NotImplemented:
    prepared = _core.prepare_chain(*chain(lambda v: v, windows=True), prepared[1])
for odd in odds:
    attempt("options", lambda: _core.plain_chain(odd, tensors))
    attempt("tensors", lambda: _core.plain_chain(options, odd))
    attempt("fits", lambda: _core.chain_fits(odd, tensors))
    attempt("fits", lambda: _core.chain_fits(options, odd))
    attempt("folds", lambda: _core.chain_folded_fits(odd, tensors, None))
    attempt("folds", lambda: _core.chain_folded_fits(wide, odd, None))
    attempt("folds", lambda: _core.chain_folded_fits(wide, tensors, odd))
    attempt("format", lambda: _core.new_format(odd, True))
    attempt("format", lambda: _core.new_format(x, odd))
    attempt("folded options", lambda: _core.plain_chain_folded(odd, tensors, None))
    attempt("folded tensors", lambda: _core.plain_chain_folded(wide, odd, None))
    attempt("folded", lambda: _core.plain_chain_folded(wide, tensors, odd))
    for place in range(4):
        rest = [image(*BIG), statistics(128), (image(*BIG),), (True,) * 6]
        rest[place] = odd
        attempt(f"backward {place}", lambda: _core.plain_chain_backward(options, tensors, *rest))
    attempt("needed", lambda: _core.group_norm_backward(8, 1e-5, odd, x, x, statistics(2, 8, 2), None, None))
    attempt("needed", lambda: _core.layer_norm_backward(1e-5, odd, x, x, statistics(2, 8, 4, 2), None, None))
    attempt("seals", lambda: _core.unaltered(odd, odd))
    attempt("seals", lambda: _core.unaltered((torch.nn.ReLU(),), odd))
    attempt("seals", lambda: _core.pack_seals(odd))
    attempt("seals", lambda: _core.pack_seals((odd,)))
    attempt("kinds", lambda: _core.pack_kinds(odd, True))
    attempt("kinds", lambda: _core.pack_kinds((x, odd), False))
    attempt("kinds", lambda: _core.are_as(odd, _core.pack_kinds((x,), True)))
    attempt("kinds", lambda: _core.are_as((odd,), _core.pack_kinds((x,), True)))
    attempt("kinds", lambda: _core.are_as((x,), odd))
    attempt("kinds", lambda: _core.kind_of(odd, 9))
    attempt("kinds", lambda: _core.kind_of(x, odd))
    attempt("entries", lambda: _core.pack_entries(odd))
    attempt("entries", lambda: _core.pack_entries((odd,)))
    attempt("entries", lambda: _core.pack_entries((({}, "a", odd),)))
    attempt("entries", lambda: _core.entries_stand(odd))
    attempt("prepared", lambda: _core.prepare_chain(odd, tensors, None))
    attempt("prepared", lambda: _core.prepare_chain(wide, odd, None))
    attempt("prepared", lambda: _core.prepare_chain(wide, tensors, odd))
    attempt("prepared", lambda: _core.run_prepared_chain(odd, x))
    attempt("prepared", lambda: _core.run_prepared_chain(prepared, odd))
    for kind in odds[:9]:
        attempt("window", lambda: _core.plain_conv(x, fresh(8, 8, 3, 3), None, odd, kind, 1))
        attempt("window", lambda: _core.plain_depthwise(x, fresh(8, 1, 3, 3), None, 1, odd, kind))
        attempt("window", lambda: _core.plain_max_pool(False, x, odd, kind, 0, 1, False, True))
        attempt("window", lambda: _core.plain_batch_norm_max_pool(
            True, 0.1, 1e-5, None, odd, kind, 0, 1, False, x, None, None, None, None, True))
for ndim in range(9):
    t = torch.ones((1,) * ndim)
    attempt("ndim", lambda: _core.group_norm(1, 1e-5, t, None, None))
    attempt("ndim", lambda: _core.layer_norm(1e-5, t, None, None))
    attempt("ndim", lambda: _core.group_norm_backward(1, 1e-5, (True,) * 3, t, t, statistics(1, 1, 2), None, None))
    attempt("ndim", lambda: _core.layer_norm_backward(1e-5, (True,) * 3, t, t, t.double(), None, None))
    attempt("ndim", lambda: _core.plain_conv(t, t, None, 1, 0, 1))
    attempt("ndim", lambda: _core.plain_pointwise(t, t, None, 1))
    attempt("ndim", lambda: _core.plain_chain(options, (t,) * 6))
    attempt("ndim", lambda: _core.chain_fits(options, (t,) * 6))
    attempt("ndim", lambda: _core.chain_folded_fits(wide, (t,) * 6, None))
    for last in (False, True):
        attempt("ndim", lambda: _core.new_format(t, last))
    attempt("ndim", lambda: _core.plain_chain_folded(wide, (t,) * 6, None))
"""
    )
