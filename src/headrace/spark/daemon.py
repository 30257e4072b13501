"""The process from which Spark forks its Python workers: what they need is loaded once, before they are.

Spark's own daemon forks first, so that each worker imports Arrow and ourselves anew, and has its workers collect
garbage after every task: through all they ever imported, which takes longer than a small task does. Here both are done
by the parent, and collections pass over what came from it.
"""

import gc
import sys
from functools import cache
from importlib import import_module

SPARKS_OWN = "pyspark.daemon"
LOADED = (
    "pandas", "headrace.feed.nearby", "headrace.spark.lake.parquet", "headrace.spark.lake.sink",
    "headrace.spark.pipeline.decoding", "headrace.spark.source.source",
)  # fmt: skip


def main_module() -> str:
    """The name of the module this process was started with; empty when it was none."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name if spec is not None else ""


@cache
def settle() -> None:
    """Have collections pass over what this process has loaded so far, if it is a worker of Spark's own daemon.

    Spark asks that one for the workers of the driver, whatever daemon it is told to use for those of tasks.
    """
    if main_module() == SPARKS_OWN:
        gc.freeze()


def serve() -> None:
    """Load everything, then be Spark's daemon."""
    for name in (*LOADED, *sys.argv[1:]):
        import_module(name)
    gc.collect()
    gc.freeze()
    import_module(SPARKS_OWN).manager()


if __name__ == "__main__":
    serve()
