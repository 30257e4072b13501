"""What a session asks of a JVM that Spark's own scripts start."""

from pathlib import Path

import pytest

from headrace.spark.session import _jvm
from tests.unit.spark.javas import a_java


@pytest.mark.parametrize(
    ("log", "given", "level"),
    [("spark.log", {}, "OFF"), ("spark.log", {"spark.log.level": "INFO"}, None), ("", {}, None)],
    ids=["a command has a log", "the user wants to hear it", "nobody names a log"],
)
def test_a_jvm_that_has_no_file_to_talk_into_is_silent_for_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, given: dict[str, str], level: str | None
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    with _jvm(a_java(tmp_path, "exit 1"), given, "1g", tmp_path / log if log else None) as asked:
        assert asked.get("spark.log.level") == level
        assert asked["spark.driver.memory"] == "1g"
