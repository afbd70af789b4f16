# SPDX-License-Identifier: MIT
"""Build of opswap._core and opswap._np: C11, no torch needed, every instruction set in one extension.

opswap._core needs no NumPy either; opswap._np is compiled with NumPy's headers and runs with NumPy 1.22 and later.


Environment switches, for work on opswap itself:
  OPSWAP_DEBUG=1             keep asserts, -O1 -g
  OPSWAP_SANITIZE=address,undefined   build with these sanitizers (implies OPSWAP_DEBUG)
  OPSWAP_WERROR=1            warnings are errors
  OPSWAP_TEST_TIERS=1|0      with or without the hidden tiers portable16, portable32 and portable64; the default is with
                             them in place, where tests are run, and without them in a wheel
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, "csrc")
import recipe


class ParallelBuild(build_ext):
    """Compiles as many files at a time as there are processors; setuptools alone compiles one after the other.

    Files *_portable.c hold the kernels of hidden tiers: compiled once per width of a vector, or left out.
    """

    def finalize_options(self):
        super().finalize_options()
        self.parallel = (
            None  # of extensions, which would share one compiler: its files are compiled in parallel
        )
        self.test_tiers = os.environ.get("OPSWAP_TEST_TIERS", "1" if self.inplace else "0") == "1"

    def build_extensions(self):
        for extension in self.extensions:
            if self.test_tiers:
                extension.define_macros.append(("OSW_TEST_TIERS", "1"))
            else:
                extension.sources = [
                    source for source in extension.sources if not source.endswith("_portable.c")
                ]
        compile_all, compile_one = self.compiler.compile, self.compiler._compile

        def compile_in_parallel(*args, **kwargs):
            jobs, more = [], []

            def collect(target, source, extension, flags, postargs, macros):
                for suffix, own in recipe.variants(source):
                    named = target.replace(".o", f"{suffix}.o") if suffix else target
                    jobs.append((named, source, extension, flags, [*postargs, *own], macros))
                    if suffix:
                        more.append(named)

            self.compiler._compile = collect
            objects = [name for name in compile_all(*args, **kwargs) if not name.endswith("_portable.o")]
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # pools, which take longest, first
                done = [pool.submit(compile_one, *job) for job in reversed(jobs)]
            for job in done:
                job.result()
            return objects + more

        self.compiler.compile = compile_in_parallel
        super().build_extensions()


sanitize = os.environ.get("OPSWAP_SANITIZE", "")
debug = bool(sanitize) or os.environ.get("OPSWAP_DEBUG") == "1"

compile_args = [*recipe.FLAGS, *(recipe.DEBUG if debug else recipe.RELEASE)]
link_args = []
if os.environ.get("OPSWAP_WERROR") == "1":
    compile_args += ["-Werror"]
if sanitize:
    compile_args += recipe.sanitizing(sanitize)
    link_args += [f"-fsanitize={sanitize}"]

# The extension with NumPy has these, and of core what they need.
with_numpy = [Path("csrc/batch"), Path("csrc/binding_np")]
shared = [Path("csrc/core/isa.c"), Path("csrc/core/prefetch.c")]


def is_for_numpy(path):
    return any(folder in path.parents for folder in with_numpy)


def extension(name, sources, macros, flags, libraries):
    return Extension(
        name,
        sources=sorted(map(str, sources)),
        depends=sorted(str(p) for p in Path("csrc").rglob("*.[hi]*")),
        include_dirs=["csrc"],
        define_macros=[("Py_LIMITED_API", "0x030A0000"), *recipe.DEFINED, *macros],
        extra_compile_args=[*compile_args, *flags],
        extra_link_args=link_args,
        libraries=libraries if os.name == "posix" else [],
        py_limited_api=True,
    )


every = list(Path("csrc").rglob("*.c"))
numpy_macros = [
    ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
    ("NPY_TARGET_VERSION", "NPY_1_22_API_VERSION"),
]

setup(
    ext_modules=[
        extension("opswap._core", [p for p in every if not is_for_numpy(p)], [], [], ["dl", "m"]),
        extension(
            "opswap._np",
            [*shared, *filter(is_for_numpy, every)],
            numpy_macros,
            ["-isystem", numpy.get_include()],  # warnings in headers of NumPy are not ours
            ["m"],
        ),
    ],
    cmdclass={"build_ext": ParallelBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
