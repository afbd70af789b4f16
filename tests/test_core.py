# SPDX-License-Identifier: MIT
"""Instruction-set tiers, threads, and the C prototypes of torch's functions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

import opswap
from opswap import _core
from surviving import python
from threads import on_threads

CSRC = Path(__file__).resolve().parent.parent / "csrc"


def test_tiers_are_ordered_and_limit_restores() -> None:
    tiers = opswap.isa.available()
    assert tiers[0] == "scalar" and list(tiers) == ["scalar", "avx2", "avx512"][: len(tiers)]
    before = opswap.isa.current()
    assert before == tiers[-1]
    with opswap.isa.limit("scalar") as tier:
        assert tier == opswap.isa.current() == "scalar"
        with opswap.isa.limit("avx512") as tier:
            assert tier == tiers[-1]
        assert opswap.isa.current() == "scalar"
    assert opswap.isa.current() == before


@pytest.mark.parametrize("bad, error", [("sse9", ValueError), (3, TypeError), (None, TypeError)])
def test_limit_refuses_other_names(bad: object, error: type[Exception]) -> None:
    before = opswap.isa.current()
    with pytest.raises(error, match=str(bad)):
        opswap.isa.limit(bad)
    assert opswap.isa.current() == before


def test_the_environment_caps_the_tier() -> None:
    code = "import opswap; opswap.isa.limit('avx512'); print(opswap.isa.current(), *opswap.isa.available())"
    assert python(code, OPSWAP_ISA="scalar").split() == ["scalar", "scalar"]
    with pytest.raises(AssertionError, match="expected scalar, neon, avx2 or avx512, got 'fast'"):
        python("import opswap", OPSWAP_ISA="fast")


def test_threads_follow_torch() -> None:
    for count in (1, 2, 3):
        with on_threads(count):
            assert _core.threads() == count


def test_prototypes_agree_with_torch(tmp_path: Path) -> None:
    """Both declarations in one C++ file: where they differ, it does not compile."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    header = CSRC / "core" / "torch_abi.h"
    if not compiler or not header.exists():
        pytest.skip("needs a C++ compiler and the source tree")
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]

    def compiles(text: str) -> subprocess.CompletedProcess[str]:
        source = tmp_path / "both.cpp"
        source.write_text(f"#include <torch/csrc/stable/c/shim.h>\n{text}")
        command = [compiler, "-std=c++17", "-fsyntax-only", *includes, str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good = compiles(header.read_text())
    assert good.returncode == 0, good.stderr
    assert compiles(header.read_text().replace("int64_t grain_size", "int32_t grain_size")).returncode != 0


def test_the_functions_of_torch_are_there() -> None:
    """On the torch that is installed the kernels run on torch's threads, not serially."""
    import ctypes

    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    for name in ("torch_parallel_for", "torch_get_num_threads"):
        assert hasattr(library, name)
