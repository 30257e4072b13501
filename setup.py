"""Compiles the kernels when a C compiler is there; without one the same sources run interpreted."""

import os
from pathlib import Path

from setuptools import setup

KERNELS = sorted(p for p in Path("src/headrace/kernels").glob("*.py") if p.name != "__init__.py")


def kernel_extensions() -> list:
    """One optional extension for each kernel module, none when HEADRACE_PURE is set or Cython fails."""
    if os.environ.get("HEADRACE_PURE") == "1":
        return []
    from Cython.Build import cythonize
    from setuptools import Extension

    extensions = [
        Extension(f"headrace.kernels.{path.stem}", [str(path)], optional=True, extra_compile_args=["-O3"])
        for path in KERNELS
    ]
    directives = {
        "language_level": "3",
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
        "annotation_typing": True,
    }
    return cythonize(extensions, compiler_directives=directives, build_dir="build/cython")


setup(ext_modules=kernel_extensions())
