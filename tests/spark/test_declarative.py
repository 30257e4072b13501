"""The example for Spark Declarative Pipelines, run as its README says."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.harness.lakeside import Lakeside
from tests.spark.conftest import Publish

RUN = Path(__file__).parents[2] / "examples" / "declarative" / "run.py"


@pytest.mark.slow
def test_the_tables_are_filled_in_one_pass(feed_broker: Lakeside, publish: Publish, tmp_path: Path) -> None:
    publish("orders", [b"%06d" % number for number in range(1000)])
    environ = os.environ | {
        "HEADRACE_FLIGHT": feed_broker.endpoint,
        "HEADRACE_KEY": feed_broker.key,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, str(RUN), str(tmp_path / "sdp")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    warehouse = tmp_path / "sdp" / "warehouse"
    assert sorted(column(warehouse / "messages", "offset")) == list(range(1000))
    assert column(warehouse / "dead_letters", "offset") == []
    assert sum(column(warehouse / "traffic", "messages")) == 1000


def column(table: Path, name: str) -> list[Any]:
    """A column of a table."""
    values: list[Any] = ds.dataset(table, format="parquet").to_table(columns=[name]).column(0).to_pylist()
    return values
