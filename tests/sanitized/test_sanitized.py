"""The compiled kernels once more with bounds checks and AddressSanitizer: their own tests, and everything hostile.

They are built into a directory of their own, anew when a source has changed; a process of its own runs the tests with
them, every allocation checked.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanitized"
SUITES = (
    "tests/unit/kernels", "tests/unit/model", "tests/unit/feed/test_incoming.py", "tests/unit/feed/test_rows.py",
    "tests/unit/feed/test_reading.py", "tests/unit/log/test_scribe.py", "tests/unit/spark_lake/test_decoding.py",
)  # fmt: skip
OVERFLOW = """
import struct
from array import array
from headrace.kernels import columns
from headrace.kernels.records import BATCH_COLUMNS, BATCH_COUNT, ROWS, WIDTH
assert columns.COMPILED, "these are to be compiled"
table = array("q", bytes(8 * WIDTH))
table[ROWS], table[BATCH_COUNT], table[BATCH_COLUMNS], table[BATCH_COLUMNS + 2] = 1, 1, 8, 1 << 16
columns.gather_cells(bytes(64), table, 1, 0, memoryview(bytearray(4)).cast("I"), bytearray(8))
"""


def sources() -> list[Path]:
    """What the kernels are made of."""
    kernels = ROOT / "src" / "headrace" / "kernels"
    scribe = ROOT / "src" / "headrace" / "log" / "scribe.pyx"
    return [ROOT / "setup.py", scribe, *sorted(kernels.glob("*.py")), *sorted(kernels.glob("*.pxd"))]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """The environment of a process that finds the sanitized kernels, built if they are not there."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    found = Path(library.stdout.strip())
    if not found.is_absolute():
        pytest.skip("the C compiler has no AddressSanitizer")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()
    stamp = BUILD / "digest"
    if not stamp.exists() or stamp.read_text() != digest:
        _build()
        stamp.write_text(digest)
    _copy_python()
    return os.environ | {
        "PYTHONPATH": str(BUILD / "src"),
        "LD_PRELOAD": str(found),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "HEADRACE_PURE": "",
    }


def _build() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, BUILD / name)
    _copy_python()
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=BUILD, check=True, capture_output=True,
        env=os.environ | {"HEADRACE_SANITIZE": "1", "HEADRACE_PURE": ""},
    )  # fmt: skip


def _copy_python() -> None:
    """Everything but what was compiled, as it is now."""
    for stale in (BUILD / "src").rglob("*.p*"):
        if stale.suffix in (".py", ".pxd"):
            stale.unlink()
    compiled = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", BUILD / "src", ignore=compiled, dirs_exist_ok=True)


def test_the_sanitizer_is_awake(environment: dict[str, str]) -> None:
    """A kernel that is lied to beyond what any gate lets through is caught in the act."""
    done = subprocess.run([sys.executable, "-c", OVERFLOW], env=environment, capture_output=True, text=True)
    assert done.returncode
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "gather_cells" in done.stderr


def test_kernels_stay_inside_their_buffers_whatever_they_are_given(environment: dict[str, str]) -> None:
    ask = "from headrace import kernels; print(kernels.compiled(), kernels.__file__)"
    told = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", str(BUILD / "src" / "headrace" / "kernels" / "__init__.py")]
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile", "glance", *SUITES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-20_000:]
