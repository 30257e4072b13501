"""Every kernel as the tests want it: the interpreted source, and what was compiled from it where that was built."""

import importlib
from types import ModuleType

import pytest

from headrace.kernels import load_source


def both_ways(name: str) -> list[object]:
    """Parameters: the kernel interpreted, and compiled if it is."""
    interpreted = load_source(name, f"interpreted_{name}")
    imported = importlib.import_module(f"headrace.kernels.{name}")
    modules: list[ModuleType] = [interpreted, imported] if imported.COMPILED else [interpreted]
    return [pytest.param(module, id="compiled" if module.COMPILED else "interpreted") for module in modules]
