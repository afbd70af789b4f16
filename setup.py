# SPDX-License-Identifier: MIT
"""Build of opswap._core: C11, no torch and no NumPy needed, every instruction set in one extension.

Environment switches, for work on opswap itself:
  OPSWAP_DEBUG=1             keep asserts, -O1 -g
  OPSWAP_SANITIZE=address,undefined   build with these sanitizers (implies OPSWAP_DEBUG)
  OPSWAP_WERROR=1            warnings are errors
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class ParallelBuild(build_ext):
    """Compiles as many files at a time as there are processors; setuptools alone compiles one after the other."""

    def build_extensions(self):
        compile_all, compile_one = self.compiler.compile, self.compiler._compile

        def compile_in_parallel(*args, **kwargs):
            jobs = []
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                self.compiler._compile = lambda *file: jobs.append(pool.submit(compile_one, *file))
                objects = compile_all(*args, **kwargs)
            for job in jobs:
                job.result()
            return objects

        self.compiler.compile = compile_in_parallel
        super().build_extensions()


sanitize = os.environ.get("OPSWAP_SANITIZE", "")
debug = bool(sanitize) or os.environ.get("OPSWAP_DEBUG") == "1"

compile_args = ["-std=c11", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-Wpedantic"]
link_args = []
compile_args += ["-O1", "-g", "-UNDEBUG"] if debug else ["-O3", "-g0", "-DNDEBUG"]
if os.environ.get("OPSWAP_WERROR") == "1":
    compile_args += ["-Werror"]
if sanitize:
    compile_args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"]
    link_args += [f"-fsanitize={sanitize}"]

setup(
    ext_modules=[
        Extension(
            "opswap._core",
            sources=sorted(str(p) for p in Path("csrc").rglob("*.c")),
            depends=sorted(str(p) for p in Path("csrc").rglob("*.h")),
            include_dirs=["csrc"],
            define_macros=[("Py_LIMITED_API", "0x030A0000"), ("_POSIX_C_SOURCE", "200809L")],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            libraries=["dl", "m"] if os.name == "posix" else [],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": ParallelBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
