"""The few functions that look at every message: plain Python that Cython also compiles.

A kernel is one `.py` source, with a `.pxd` beside it that gives its variables C types. Where the extension was built
it is what `import` finds; without one, or with HEADRACE_PURE=1 in the environment, the same source runs interpreted.
Kernels know byte layouts and nothing of sessions, sockets, clocks or disks.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

MODULES = (
    "gate", "blipmq", "blipmq_exchange", "sspq", "fujin", "fujin_reading", "grpcq", "grpcq_deliveries", "records",
    "columns", "identities", "envelopes",
)  # fmt: skip


def compiled() -> bool:
    """Whether every kernel in use is compiled."""
    return all(importlib.import_module(f"{__name__}.{name}").COMPILED for name in MODULES)


def load_source(name: str, module_name: str) -> ModuleType:
    """Load the interpreted source of kernel `name` as `module_name`, whether or not an extension was built."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


if os.environ.get("HEADRACE_PURE") == "1":
    for _name in MODULES:
        load_source(_name, f"{__name__}.{_name}")
