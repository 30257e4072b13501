"""What executors need of headrace, as one zip for `addPyFile` or `addArtifacts`. Starts no Spark."""

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace.spark.java import cache_dir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(headrace.__file__).resolve().parents[1]
MODULES = (
    "pyspark_headrace.py",
    "headrace/__init__.py",
    "headrace/feed/__init__.py",
    "headrace/feed/client.py",
    "headrace/feed/schema.py",
    "headrace/feed/ticket.py",
    "headrace/feed/whereabouts.py",
    "headrace/spark/__init__.py",
    "headrace/spark/daemon.py",
    "headrace/spark/source",
)
"""Files, and packages with all that is in them."""

WHOLE = "headrace"
"""The package with all that tables, replays and ledgers run on executors."""

_TIME = (1980, 1, 1, 0, 0, 0)


def archive(directory: Path | str, extra: Iterable[str] = ()) -> Path:
    """Write the zip into a directory and return its path; the same sources give the same bytes and name.

    `extra` names more files or packages below the sources, such as `headrace/spark/lake`. The zip stands before an
    installed headrace on an executor's path, so it must hold all that executors import of it.
    """
    names = sorted({name for entry in (*MODULES, *extra) for name in _files(entry)})
    contents = {name: (ROOT / name).read_bytes() for name in names}
    digest = hashlib.sha256(b"\0".join(name.encode() + b"\0" + data for name, data in contents.items())).hexdigest()
    path = Path(directory, f"headrace-{headrace.__version__}-{digest[:12]}.zip")
    draft = path.with_suffix(".tmp")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in contents.items():
            file.writestr(zipfile.ZipInfo(name, _TIME), data)
    return draft.replace(path)


def ship(spark: "SparkSession", cache: Path | None = None) -> "SparkSession":
    """The session, with the headrace of this process given to its executors elsewhere, whatever they have installed.

    The server behind Spark Connect gets the data source as well: it looks for those it has only when it starts.
    """
    remote = type(spark).__module__.startswith("pyspark.sql.connect.")
    if not remote and str(spark.sparkContext.master).startswith("local"):
        return spark
    directory = (cache or cache_dir()) / "shipped"
    directory.mkdir(exist_ok=True)
    path = str(archive(directory, [WHOLE]))
    if not remote:
        spark.sparkContext.addPyFile(path)
        return spark
    from headrace.spark.source.source import HeadraceSource

    spark.addArtifacts(path, pyfile=True)
    spark.dataSource.register(HeadraceSource)
    return spark


def _files(entry: str) -> list[str]:
    place = ROOT / entry
    if place.is_dir():
        return [str(path.relative_to(ROOT)) for path in place.rglob("*.py")]
    if not place.is_file():
        raise FileNotFoundError(f"there is no {entry} below {ROOT}")
    return [entry]
