"""The zip for executors: complete by itself, and the same for the same sources."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.shipping import archive

FIND = """
import sys
sys.path[:] = [path for path in sys.path if not path.endswith("src")]
sys.path.insert(0, sys.argv[1])
from pkgutil import iter_modules
assert "pyspark_headrace" in [module.name for module in iter_modules([sys.argv[1]])]
import pyspark_headrace
print(pyspark_headrace.__file__, pyspark_headrace.DefaultSource.name())
"""


def test_the_source_runs_from_the_zip_alone(tmp_path: Path) -> None:
    path = archive(tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", FIND, str(path)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert found.stdout.split() == [f"{path}/pyspark_headrace.py", "headrace"]


def test_the_same_sources_make_the_same_zip(tmp_path: Path) -> None:
    first = archive(tmp_path)
    content = first.read_bytes()
    assert archive(tmp_path) == first
    assert first.read_bytes() == content
    assert archive(tmp_path, extra=["headrace/spark/session.py"]) != first


def test_what_is_not_there_cannot_be_shipped(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="headrace/spark/nothing"):
        archive(tmp_path, extra=["headrace/spark/nothing"])
