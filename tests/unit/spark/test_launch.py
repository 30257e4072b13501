"""The JVM's command line, and the Python it is told to start."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from headrace.spark import launch
from headrace.spark.java import SparkUnavailable
from headrace.spark.launch import UNCHECKED, command, gateway, interpreter
from tests.unit.spark.javas import a_java


def test_settings_go_to_spark_and_options_to_the_jvm(tmp_path: Path) -> None:
    java = a_java(tmp_path, "exit 1")
    line = command(java, tmp_path, {"spark.a": "b c", "spark.driver.extraJavaOptions": "-Dx=1 -Dy=2"}, "3g")
    at = line.index("org.apache.spark.deploy.SparkSubmit")
    assert {"-Xmx3g", "-Dx=1", "-Dy=2"} <= set(line[:at])
    assert line[at + 1 :] == ["--conf=spark.a=b c", "pyspark-shell"]


def test_the_users_collector_wins(tmp_path: Path) -> None:
    java = a_java(tmp_path, "exit 1")
    ours = command(java, tmp_path, {}, "1g")
    theirs = command(java, tmp_path, {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}, "1g")
    collectors = [[word for word in line if word.endswith("GC")] for line in (ours, theirs)]
    assert collectors == [["-XX:+UseParallelGC"], ["-XX:+UseSerialGC"]]


def test_the_users_options_come_last_so_that_they_win(tmp_path: Path) -> None:
    checked = "-Darrow.enable_unsafe_memory_access=false"
    line = command(a_java(tmp_path, "exit 1"), tmp_path, {"spark.driver.extraJavaOptions": checked}, "1g")
    assert line.index(checked) > max(line.index(word) for word in UNCHECKED)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]"])
def test_what_runs_here_is_forked(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert interpreter({"spark.master": master}).startswith(tempfile.gettempdir())


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_executors_elsewhere_are_named_an_interpreter_they_can_have(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert interpreter({"spark.master": master}) == sys.executable


def test_the_users_python_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert interpreter({"spark.master": "local[2]"}) == "/opt/python"
    assert interpreter({"spark.master": "local[2]", "spark.pyspark.python": "/set/python"}) == "/set/python"


def test_a_jvm_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "START_TIMEOUT_S", 20.0)
    with (
        pytest.raises(SparkUnavailable, match="ended with 3 before Spark was up; see its output above"),
        gateway(a_java(tmp_path, "exit 3"), tmp_path, {}, "1g"),
    ):
        pass
    assert "PYSPARK_GATEWAY_PORT" not in os.environ


def test_what_the_jvm_says_can_be_kept(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    java = a_java(tmp_path, "echo no memory; exit 3")
    with pytest.raises(SparkUnavailable, match=str(log)), gateway(java, tmp_path, {}, "1g", log):
        pass
    assert "no memory" in log.read_text()
