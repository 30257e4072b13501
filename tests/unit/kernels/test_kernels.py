"""Which kernels are in use, and how the environment chooses."""

import os
import subprocess
import sys

from headrace import kernels

ASK = (
    "from headrace import kernels; import headrace.protocols.blipmq.session as s; print(kernels.compiled(), s.COMPILED)"
)


def test_pure_mode_runs_the_sources_even_where_extensions_were_built() -> None:
    environment = os.environ | {"HEADRACE_PURE": "1"}
    answer = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "False"]


def test_every_kernel_has_a_source_that_loads() -> None:
    for name in kernels.MODULES:
        assert kernels.load_source(name, f"source_of_{name}").COMPILED is False
