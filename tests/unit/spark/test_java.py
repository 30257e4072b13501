"""Which Java is taken, and what the shim does to the options."""

import subprocess
from pathlib import Path

import pytest

from headrace.spark.java import VECTOR_MODULE, SparkUnavailable, cache_dir, find_java, shim_home


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_java_home_wins(tmp_path: Path) -> None:
    java = executable(tmp_path / "own" / "bin" / "java", "exit 0")
    found = find_java({"JAVA_HOME": str(tmp_path / "own")}, tmp_path)
    assert found.executable == java
    assert not found.bundled


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable, match=str(tmp_path)):
        find_java({"JAVA_HOME": str(tmp_path)}, tmp_path)


def test_without_java_home_the_bundled_one_is_used(tmp_path: Path) -> None:
    found = find_java({}, tmp_path)
    assert found.bundled
    said = subprocess.run([found.home / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    assert 'version "21' in said.stderr


def test_the_shim_itself_may_be_java_home(tmp_path: Path) -> None:
    bundled = find_java({}, tmp_path)
    assert find_java({"JAVA_HOME": str(bundled.home)}, tmp_path) == bundled


def test_the_shim_drops_one_option_and_keeps_the_rest_as_they_are(tmp_path: Path) -> None:
    java = executable(tmp_path / "real", 'for option; do printf "<%s>" "$option"; done')
    shim = shim_home(java, tmp_path) / "bin" / "java"
    said = subprocess.run([shim, "-a", VECTOR_MODULE, "b c", "", "*"], capture_output=True, text=True, check=True)
    assert said.stdout == "<-a><b c><><*>"


def test_the_shim_follows_a_moved_installation(tmp_path: Path) -> None:
    java = executable(tmp_path / "real", "exit 7")
    stale = shim_home(java, tmp_path) / "bin" / "java"
    stale.write_text("#!/bin/sh\nexit 1\n")
    assert subprocess.run([shim_home(java, tmp_path) / "bin" / "java"], check=False).returncode == 7


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cache_dir({"XDG_CACHE_HOME": str(blocked)}).is_dir()
