"""A SPARK_HOME of links to pyspark's files, in which JVMs and workers start sooner than in pyspark's own.

It lacks `python/lib`: without the zip in there workers import pyspark from site-packages, where it is compiled, and
each starts four times faster. And slf4j's API has another name there: Spark's scripts would put a jar of that name on
the class path once more, and no JVM maps an archive of classes where a jar is named twice.
"""

import shutil
import tempfile
from pathlib import Path

from headrace.spark.java import fingerprint

NAMED_TWICE = "slf4j-api-"
RENAMED = "api-of-"


def spark_home(cache: Path) -> Path:
    """The home for the pyspark of this process. A new one takes the place of those whose pyspark is gone."""
    import pyspark

    package = Path(pyspark.__file__).resolve().parent
    home = cache / f"spark-{pyspark.__version__}-{fingerprint(package, NAMED_TWICE, RENAMED)}"
    if not home.exists():
        for other in cache.glob("spark-*"):
            if _leads_nowhere(other):
                shutil.rmtree(other, ignore_errors=True)
        _make(home, package)
    return home


def _leads_nowhere(home: Path) -> bool:
    """Whether a file it links to is gone: with all of pyspark, or because another version took its place."""
    links = (link for folder in (home, home / "jars") if folder.is_dir() for link in folder.iterdir())
    return any(link.is_symlink() and not link.exists() for link in links)


def _make(home: Path, package: Path) -> None:
    """Whole or not at all: others may be waiting for it, or making it, too."""
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=home.parent))
    for name in ("bin", "sbin"):
        (draft / name).symlink_to(package / name)
    (draft / "jars").mkdir()
    for jar in (package / "jars").iterdir():
        name = RENAMED + jar.name if jar.name.startswith(NAMED_TWICE) else jar.name
        (draft / "jars" / name).symlink_to(jar)
    draft.chmod(0o755)
    try:
        draft.rename(home)
    except OSError:
        shutil.rmtree(draft)
        if not home.exists():
            raise
