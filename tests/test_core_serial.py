# SPDX-License-Identifier: MIT
"""Kernels where torch has lost the functions through which they run on its threads: in series, with the same bits."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from surviving import survive

# Stands in the place of libtorch_cpu.so where opswap's extension looks for these functions, and nowhere else.
LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

typedef void *open_fn(const char *, int);
typedef int32_t threads_fn(uint32_t *);

static open_fn *real_open(void)
{
    return (open_fn *)dlsym(RTLD_NEXT, "dlopen");
}

void *dlopen(const char *path, int flags)
{
    Dl_info self;
    if (path && strcmp(path, "libtorch_cpu.so") == 0 && (flags & RTLD_NOLOAD))
        if (dladdr((void *)dlopen, &self))
            path = self.dli_fname;
    return real_open()(path, flags);
}

#ifdef REFUSES
int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t grain, void *body, void *context)
{
    (void)begin, (void)end, (void)grain, (void)body, (void)context;
    return 1;
}
#endif

#ifdef COUNTS
int32_t torch_get_num_threads(uint32_t *threads)
{
    void *torch = real_open()("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    return ((threads_fn *)dlsym(torch, "torch_get_num_threads"))(threads);
}
#endif
"""
LACKING = {
    "parallel_for": ["-DCOUNTS"],
    "parallel_for and get_num_threads": [],
    "a parallel_for that runs": ["-DCOUNTS", "-DREFUSES"],
}

# Inputs of several chunks each. Prints how many threads the kernels have, and a digest of every result.
CODE = """
import hashlib
torch.set_num_threads(3)
print("threads", _core.threads())

def digest(name, tensors):
    tensors = [t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors]
    print(name, hashlib.sha256(b"".join(tensors)).hexdigest())

def with_gradients(name, function, *inputs):
    inputs = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in inputs]
    output = function(*inputs)
    output.backward(torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output.dtype))
    digest(name, [output, *(t.grad for t in inputs)])

for layout in (torch.contiguous_format, torch.channels_last):
    x = torch.randn(4, 64, 40, 41).to(memory_format=layout)
    weights = [torch.randn(64), torch.randn(64)]
    for dtype in (torch.float32, torch.bfloat16):
        y = x.to(dtype)
        with_gradients("max", lambda t: F.max_pool2d(t, 3, 2, 1), y)
        with_gradients("avg", lambda t: F.avg_pool2d(t, 3, 2, 1), y)
        with_gradients("adaptive", lambda t: F.adaptive_max_pool2d(t, 7), y)
        with_gradients("global", lambda t: F.global_max_pool2d(t, ties="split"), y)
        with_gradients("shuffle", lambda t: F.channel_shuffle(t, 4), y)
    with_gradients("norm", lambda t, *w: F.batch_norm_act(t, None, None, *w, True, 0.1, 1e-5, "relu"), x, *weights)
    with_gradients("depthwise", lambda t, w: F.depthwise_conv2d(t, w, None, 1, 1), x, torch.randn(64, 1, 3, 3))
    with_gradients("convolution", lambda t, w: F.conv2d(t, w, None, 1, 1), x, torch.randn(64, 64, 3, 3))
    with_gradients("pointwise", F.pointwise_conv2d, x, torch.randn(64, 64, 1, 1))
with_gradients("linear", F.grouped_linear, torch.randn(256, 17, 96), torch.randn(17, 80, 96))
torch.manual_seed(3)
with_gradients("dropout", lambda t: F.dropout(t, 0.3), torch.randn(500_000))
torch.manual_seed(3)
digest("stock dropout", [torch.nn.functional.dropout(torch.randn(500_000), 0.3)])
y = attempt("flush", lambda: opswap.memory.flush_denormals(True))
assert opswap.stats()["kernel"]
"""


def run(**environment: str) -> list[str]:
    # Three threads that wait by spinning would take each other's time on a machine with fewer cores.
    return survive(
        "from opswap import memory\n" + CODE, OMP_WAIT_POLICY="PASSIVE", **environment
    ).splitlines()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return run()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="names are hidden by means of glibc's linker")
@pytest.mark.parametrize("lacking", LACKING)
def test_without(lacking: str, expected: list[str], tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "stands_in.c", tmp_path / "libstands_in.so"
    source.write_text(LIBRARY)
    command = [compiler, "-shared", "-fPIC", *LACKING[lacking], str(source), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    preload = f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()
    lines = run(LD_PRELOAD=preload)
    counted = "-DCOUNTS" in LACKING[lacking]
    assert (expected[0], lines[0]) == ("threads 3", f"threads {3 if counted else 1}")
    results = [i for i, line in enumerate(expected) if len(line.split()[-1]) == 64]
    assert len(results) == 31 and [lines[i] for i in results] == [expected[i] for i in results]
    assert not any("reached" in line for line in expected)
    assert any("1 of 3 threads of the pool were reached" in line for line in lines), "it ran in series"
