"""Compiles the kernels when a C compiler is there; without one the same sources run interpreted.

With HEADRACE_SANITIZE=1 in the environment they are compiled for tests: bounds checked, and with AddressSanitizer.
"""

import os
import warnings
from pathlib import Path

from setuptools import Extension, setup

KERNELS = sorted(path.with_suffix(".py") for path in Path("src/headrace/kernels").glob("*.pxd"))
SCRIBE = Path("src/headrace/log/scribe.pyx")

SANITIZE = os.environ.get("HEADRACE_SANITIZE") == "1"
DIRECTIVES = {
    "language_level": "3",
    "annotation_typing": False,
    "boundscheck": SANITIZE,
    "cdivision": True,
    "initializedcheck": SANITIZE,
    "wraparound": False,
}
FLAGS = ["-O1", "-g", "-fsanitize=address", "-fno-omit-frame-pointer"] if SANITIZE else ["-O3"]
LINKED = ["-fsanitize=address"] if SANITIZE else []


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts[1:])


def kernel_extensions() -> list[Extension]:
    """One optional extension for each kernel; none when HEADRACE_PURE is set or Cython cannot do it."""
    if os.environ.get("HEADRACE_PURE") == "1":
        return []
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
    except ImportError:
        return []
    extensions = [
        Extension(
            ".".join(path.with_suffix("").parts[1:]), [str(path)], extra_compile_args=FLAGS, extra_link_args=LINKED
        )
        for path in (*KERNELS, SCRIBE)
    ]
    try:
        built: list[Extension] = cythonize(extensions, compiler_directives=DIRECTIVES, build_dir="build/cython")
    except CompileError as error:
        warnings.warn(f"the kernels will run interpreted: {error}", stacklevel=1)
        return []
    for extension in built:
        extension.optional = True  # cythonize drops it
    return built


setup(ext_modules=kernel_extensions(), options={"build_ext": {"parallel": os.cpu_count()}})
