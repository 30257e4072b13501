"""`quarantine`: messages that claim to be envelopes and are none, with the reason and all their bytes."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.spark.lake.table import TableSpec
from headrace.spark.pipeline.decoding import Decoder
from headrace.spark.pipeline.definition import PipelineTable
from headrace.spark.pipeline.envelopes import CLAIMS_TO_BE_ONE, SOURCE
from headrace.spark.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = (
    "offset long, timestamp timestamp, topic string, protocol string, message_id string, reason string, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


def refused(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The messages that do not decode."""
    decode = Decoder()
    for batch in batches:
        yield decode(batch).refused


def quarantined(frame: "DataFrame", settings: Settings) -> "DataFrame":
    """What claims to be an envelope and is none."""
    return frame.where(CLAIMS_TO_BE_ONE).mapInArrow(refused, COLUMNS)


TABLE = PipelineTable(spec=TableSpec(name="quarantine"), source=SOURCE, rows=quarantined)
