# SPDX-License-Identifier: MIT
"""Fixtures and settings that every test file shares.

Environment variables change the conditions of a run; a failing test shows the first two in its output:

    OPSWAP_TEST_SEED=7              other random inputs: the number is mixed into the seed of every test
    OPSWAP_TEST_THREADS=3           number of threads of torch, in the tests' own processes too
    OPSWAP_TEST_HIDDEN=portable64   the hidden tiers that tests run on; all without it
"""

from __future__ import annotations

import getpass
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import opswap
from opswap.ops import chain, reduced_precision
from opswap.swap.planning import gains
from opswap.swap.rules import DEFAULT, OPTIONAL, conditions
from opswap.swap.rules import chain as chain_rule
from threads import on_threads

# torch's database of operators forbids the whole process to set flags of backends, when it is imported.
torch.backends.disable_global_flags = lambda: None


def _keep_builtins() -> None:
    """Keep the functions that torch.jit.script looks up by their id, which its table has longer than they live.

    torch.compile registers some operators of quantization twice; a later object of any kind (the padding of a
    convolution) at the address of a freed one is taken for that operator, and cannot be scripted.
    """
    table = torch.jit._builtins
    register, kept = table._register_builtin, []

    def register_and_keep(function: Callable[..., object], name: str) -> None:
        kept.append(function)
        register(function, name)

    table._register_builtin = register_and_keep


_keep_builtins()

TIERS = ("scalar", "neon", "avx2", "avx512", "portable16", "portable32", "portable64")

# Files whose family has kernels in the hidden tiers.
HIDDEN_TIERS_OF = (
    "test_batch",
    "test_chain",
    "test_chain_dense",
    "test_chain_planes",
    "test_channels",
    "test_conv",
    "test_depthwise",
    "test_depthwise_kernels",
    "test_dropout",
    "test_group_norm",
    "test_layer_norm",
    "test_linear",
    "test_mean_square",
    "test_norm",
    "test_norm_activations",
    "test_norm_errors",
    "test_norm_modules",
    "test_norm_pool",
    "test_pointwise",
    "test_pointwise_planes",
    "test_pool",
    "test_pool_adaptive",
    "test_pool_avg",
    "test_pool_errors",
    "test_pool_modules",
    "test_pool_planes",
    "test_pool_windows",
)
# Test files, by the beginning of their names, about code that calls no kernel, or has kernels only as an example.
# Single tests have the marker itself.
TIER_INDEPENDENT = (
    "test_channels_modules",
    "test_cli",
    "test_core_hostile",
    "test_core_serial",
    "test_core_truth",
    "test_default_device",
    "test_demo",
    "test_driver",
    "test_exporters",
    "test_finding",
    "test_import",
    "test_kernels",
    "test_layout",
    "test_memory_denormals",
    "test_merge",
    "test_models",
    "test_nearness",
    "test_optimizer",
    "test_permutation",
    "test_pool_operators",
    "test_transforms",
    "test_shapes",
    "test_structure",
    "test_swap_adversarial",
    "test_swap_again",
    "test_swap_aliases",
    "test_swap_bytecode",
    "test_swap_collect",
    "test_swap_costs",
    "test_swap_devices",
    "test_swap_distributed",
    "test_swap_dry_runs",
    "test_swap_element_writes",
    "test_swap_explain",
    "test_swap_flags_of_others",
    "test_swap_guards",
    "test_swap_hostile",
    "test_swap_kept_forwards",
    "test_swap_known_dimensions",
    "test_swap_live",
    "test_swap_look_ups",
    "test_swap_named_parts",
    "test_swap_outside",
    "test_swap_random",
    "test_swap_rules",
    "test_swap_state",
    "test_swap_types",
    "test_swap_unseen",
    "test_swap_verify",
    "test_swap_watch",
)
SEED = os.environ.get("OPSWAP_TEST_SEED", "")
THREADS = os.environ.get("OPSWAP_TEST_THREADS", "")
THREADS_OF_TORCH = torch.get_num_threads()
HIDDEN = os.environ.get("OPSWAP_TEST_HIDDEN", "portable16 portable32 portable64").split()


def pytest_configure() -> None:
    # Before collection, which draws the inputs that test files make when they are imported.
    torch.manual_seed(_seed("collection"))
    if THREADS:
        os.environ["OMP_NUM_THREADS"] = THREADS  # read by the processes that tests start
        torch.set_num_threads(int(THREADS))
    capability = os.environ.get("ATEN_CPU_CAPABILITY")
    if capability:  # inductor keeps its code by the graph alone, and code for other vectors does not compile
        folder = Path(tempfile.gettempdir(), f"torchinductor_{capability}_{getpass.getuser()}")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem.startswith(TIER_INDEPENDENT) or "tier" in getattr(item, "fixturenames", ()):
            item.add_marker("once")


def _seed(name: str) -> int:
    return random.Random(name + SEED).randrange(2**31)


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once on every instruction-set tier, hidden ones included."""
    if request.param not in (*opswap.isa.available(), *opswap.isa.hidden()):
        pytest.skip(f"this machine, or OPSWAP_ISA, has no {request.param}")
    if request.param in opswap.isa.hidden() and request.param not in HIDDEN:
        pytest.skip("OPSWAP_TEST_HIDDEN does not name it")
    if request.param in opswap.isa.hidden() and request.module.__name__ not in HIDDEN_TIERS_OF:
        pytest.skip("the family is not written on core/simd.h")
    with opswap.isa.limit(request.param):
        yield request.param


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, so that sums do not depend on how work is divided."""
    with on_threads(1):
        yield


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed every random generator from the test's name and OPSWAP_TEST_SEED."""
    value = _seed(request.node.nodeid)
    # A command that a test ran may have changed it. In a new thread torch's convolutions use the number of the start.
    torch.set_num_threads(int(THREADS or THREADS_OF_TORCH))
    print(f"seed {value} (OPSWAP_TEST_SEED={SEED!r}), {torch.get_num_threads()} threads")
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)
    return value


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What this machine's user has measured and kept is not read, in the processes that tests start neither."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def recorded_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables that are shipped decide which rules are applied, not those that `tune` has kept on this machine."""
    monkeypatch.setattr(gains, "cache_file", lambda: Path(os.devnull, "costs.json"))


@pytest.fixture
def fresh_is_nan() -> Iterator[None]:
    """New tensors are filled with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def fresh_counts() -> None:
    """Statistics of this test alone."""
    opswap.reset_stats()


@pytest.fixture
def chains_on_every_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains run in their kernels whether they are faster on the tier or not."""
    for module in (chain, chain_rule):
        monkeypatch.setattr(module, "chain_wins", lambda: True)


@pytest.fixture
def every_rule_applies(recorded_gains: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are applied whatever was measured; for tests that count what was replaced."""
    monkeypatch.setattr(gains, "_table", dict)
    monkeypatch.setattr(conditions, "_NORMED", conditions._FLOATS)
    monkeypatch.setattr(conditions, "_FEWEST_ALONE", 0)


@pytest.fixture
def every_half_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU with AVX2 alone, for bfloat16 and float16; nothing is counted yet."""
    for name in ("SLOW", "SLOW_DEPTHWISE"):
        monkeypatch.setattr(reduced_precision, name, frozenset((torch.bfloat16, torch.float16)))
    opswap.reset_stats()


@pytest.fixture
def lose(recorded_gains: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function after whose call every rule is recorded as slower than torch in one memory format."""

    def lose_in(memory_format: str) -> None:
        ratios = {"contiguous": 2.0, "channels_last": 2.0} | {memory_format: 0.5}
        table = {rule.name: ratios for rule in DEFAULT + OPTIONAL}
        monkeypatch.setattr(gains, "_table", lambda: table)

    return lose_in


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """A function that writes a module into the test's new working folder, and returns the folder."""
    written = []

    def write(name: str, text: str) -> Path:
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return tmp_path

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def third_thread() -> Iterator[None]:
    """So that the process has another thread throughout, as one that trains, or the monitor that tqdm starts."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join(60)
