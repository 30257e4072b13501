"""An archive of Spark's classes, which a JVM maps instead of reading thousands of them from jars.

The first JVM leaves it behind when it ends. It fits only where the class path begins with the same words.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

from headrace.spark.java import Java, fingerprint

SETTLED_S = 3.0


def class_path(home: Path) -> str:
    """Where a JVM finds Spark."""
    return f"{home}/jars/*"


def archive_of(java: Java, home: Path) -> Path:
    """Where the archive is, once there is one."""
    return home / f"classes-{fingerprint(java.executable)}.jsa"


def archive_options(java: Java, home: Path) -> list[str]:
    """Options that map the archive of classes, or have this JVM write it when it ends."""
    archive = archive_of(java, home)
    base = archive.with_suffix(".base.jsa")
    if not base.exists():
        draft = base.with_suffix(f".{os.getpid()}")
        options = [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={draft}"]
        made = subprocess.run(options, capture_output=True, check=False)
        if made.returncode or not draft.exists():
            return []
        draft.replace(base)
    quiet = ["-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"]
    _adopt(java, archive)
    if archive.exists():
        return [f"-XX:SharedArchiveFile={archive}", *quiet]
    return [
        f"-XX:SharedArchiveFile={base}",
        f"-XX:ArchiveClassesAtExit={archive.with_suffix(f'.{os.getpid()}.draft')}",
        *quiet,
    ]


def _adopt(java: Java, archive: Path) -> None:
    """Take an archive that a JVM wrote when it ended, once it is written and if it can be used; one is enough."""
    for draft in archive.parent.glob(f"{archive.stem}.*.draft"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime < SETTLED_S:
                continue
            if archive.exists() or not _usable(java, draft):
                draft.unlink()
            else:
                draft.replace(archive)


def _usable(java: Java, archive: Path) -> bool:
    options = ["-cp", class_path(archive.parent), f"-XX:SharedArchiveFile={archive}", "-Xshare:on", "-version"]
    return subprocess.run([str(java.executable), *options], capture_output=True, check=False).returncode == 0
