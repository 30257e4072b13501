"""What a session of ours does that Spark's own defaults do not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.spark.archive import class_path
from headrace.spark.home import spark_home
from headrace.spark.java import cache_dir, find_java
from headrace.spark.patience import NICENESS, spare_cores

GIVES_WAY = """
import os
from headrace.spark.session import give_way, new_session

spark = new_session("patient", master="local[1]", memory="512m")
give_way(spark, broker_here=True)
pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
ask = lambda _: (os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0)))
worker = spark.sparkContext.parallelize([0], 1).map(ask).first()
print(os.getpriority(os.PRIO_PROCESS, pid), len(os.sched_getaffinity(pid)), *worker)
spark.stop()
"""


def _origin(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import gc

    from headrace.spark.daemon import main_module

    yield pa.record_batch([pa.array([main_module()]), pa.array([gc.get_freeze_count()])], ["module", "kept"])


def test_workers_are_forked_with_what_they_need(spark: SparkSession) -> None:
    found = spark.range(1).mapInArrow(_origin, "module string, kept long").first()
    assert found is not None
    assert found["module"] == "headrace.spark.daemon"
    assert found["kept"] > 50_000, "Arrow and pandas alone are more"


def test_a_session_that_gives_way_stays_behind_others(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", GIVES_WAY], capture_output=True, text=True, check=True, cwd=tmp_path)
    threads, threads_on, worker, worker_on = map(int, told.stdout.split()[-4:])
    assert (threads, worker) == (NICENESS, NICENESS)
    spared = spare_cores() or os.sched_getaffinity(0)
    assert (threads_on, worker_on) == (len(spared), len(spared))


def test_what_sparks_scripts_start_has_the_class_path_of_our_archive() -> None:
    java, home = find_java(), spark_home(cache_dir())
    launcher = [str(java.executable), "-cp", class_path(home), "org.apache.spark.launcher.Main"]
    environ = {"JAVA_HOME": str(java.home), "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}
    done = subprocess.run([*launcher, "Any"], env=environ, capture_output=True, text=True, check=True)
    command = done.stdout.split("\0")
    assert command[command.index("-cp") + 1] == f"{home}/conf:{class_path(home)}"
    assert not (home / "conf").exists(), "a path to nowhere does not count"
