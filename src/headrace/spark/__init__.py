"""The data pipeline on Spark: topics as tables, and back again by query."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`from headrace.spark import handler`, loaded when it is wanted: it needs pyarrow."""
    if name == "handler":
        from headrace.spark.pipeline.handlers import handler

        return handler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
