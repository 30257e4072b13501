"""The example for Spark Declarative Pipelines, run as its README says."""

import os
import subprocess
import sys
from pathlib import Path

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
    tables = {
        name: ds.dataset(tmp_path / "sdp" / "warehouse" / name, format="parquet").to_table()
        for name in ("messages", "dead_letters", "traffic")
    }
    assert sorted(tables["messages"]["offset"].to_pylist()) == list(range(1000))
    assert tables["dead_letters"].num_rows == 0
    assert sum(tables["traffic"]["messages"].to_pylist()) == 1000
