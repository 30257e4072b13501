"""Scripts that stand for a Java."""

from pathlib import Path

from headrace.spark.java import Java

WRITES_ITS_ARCHIVE = '[ "$1" = -Xshare:dump ] && : > "${2#*=}"; exit 0'


def a_java(folder: Path, script: str) -> Java:
    """A Java that does what the script says."""
    executable = folder / "java"
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    return Java(folder, executable, bundled=True)
