"""The tables there are, in the order in which they are shown."""

from collections.abc import Iterable

from headrace.spark.lake.table import LakeError
from headrace.spark.pipeline import dead_letters, envelopes, events, latency, messages, quarantine, traffic
from headrace.spark.pipeline.definition import PipelineTable

_FILES = (messages, events, envelopes, quarantine, dead_letters, traffic, latency)
TABLES: dict[str, PipelineTable] = {file.TABLE.name: file.TABLE for file in _FILES}


def chosen(names: Iterable[str] | None) -> list[PipelineTable]:
    """The tables of these names, or all of them.

    Raises LakeError for a name that is none.
    """
    if names is None:
        return list(TABLES.values())
    wanted = list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in TABLES]
    if unknown or not wanted:
        raise LakeError(f"unknown table {', '.join(map(repr, unknown))}; there are {', '.join(TABLES)}")
    return [TABLES[name] for name in wanted]
