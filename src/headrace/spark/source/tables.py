"""Options of a table in Spark's catalog, kept in the table's schema: Spark 4 hands a Python source the options when the
table is created, and none when it is read. The API key is left out, because schemas travel far; the environment has it.
"""

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

METADATA = "headrace.options"
_LEFT_OUT = {"key", "provider", "owner", "comment", "location", "external", "is_managed_location", "table_type"}


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the options of a table that is being created."""
    return "provider" in options


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema with the options in the metadata of its first column."""
    kept = {name: text for name, text in options.items() if name not in _LEFT_OUT and not name.startswith("option.")}
    first, *rest = schema.fields
    marked = StructField(first.name, first.dataType, first.nullable, {**first.metadata, METADATA: json.dumps(kept)})
    return StructType([marked, *rest])


def recall(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """The options remembered in a schema; those given for this read win."""
    kept = schema.fields[0].metadata.get(METADATA) if schema.fields else None
    return {**(json.loads(kept) if kept else {}), **options}
