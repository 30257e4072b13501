"""The process that Spark's workers are forked from; that they really are is seen in tests/spark."""

import gc
import subprocess
import sys
from pathlib import Path

from headrace.spark.daemon import settle

WORKER = """
import gc
from headrace.spark.daemon import settle
settle()
loaded = gc.get_freeze_count()
print(loaded > 1000)
settle()
print(gc.get_freeze_count() == loaded)
"""


def test_who_is_no_worker_is_left_alone() -> None:
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() == before


def test_a_worker_keeps_what_it_has_loaded_once(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "daemon.py").write_text(WORKER)
    told = subprocess.run(
        [sys.executable, "-m", "pyspark.daemon"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert told.stdout.split() == ["True", "True"]


def test_a_process_knows_what_it_was_started_as() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from headrace.spark.daemon import main_module; print(repr(main_module()))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "''"
