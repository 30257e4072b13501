"""`envelopes`: grpcq messages with their fields as columns, one row for each message id of a topic.

`service` is what grpcq calls topic; the payload stays bytes. A message id that comes again within
`Settings.duplicates_within` is the same message sent twice and is left out. What is no envelope is in `quarantine`.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.protocols.grpcq.deliveries import ENVELOPE_TYPE
from headrace.spark.lake.table import TableSpec
from headrace.spark.pipeline.decoding import Decoder
from headrace.spark.pipeline.definition import OWN_TOPICS_LEFT_OUT, PipelineTable
from headrace.spark.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = (
    "offset long, timestamp timestamp, topic string, originator string, service string, action string, "
    "message_id string, sent timestamp, payload binary, metadata map<string,string>"
)
SOURCE = {
    "subscribePattern": OWN_TOPICS_LEFT_OUT,
    "envelopes": "true",
    "columns": "offset,timestamp,topic,protocol,message_id,headers,value",
}
CLAIMS_TO_BE_ONE = f"""protocol = 'grpcq' OR
    exists(headers, h -> h.key = 'content-type' AND h.value = X'{ENVELOPE_TYPE.hex()}')"""
"""It came in by grpcq, or says `content-type: application/grpcq`."""


def decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The envelopes among these messages."""
    decode = Decoder()
    for batch in batches:
        yield decode(batch).envelopes


def without_duplicates(frame: "DataFrame", settings: Settings) -> "DataFrame":
    """The first of each message id."""
    keys = ["topic", "message_id"]
    if not frame.isStreaming:
        return frame.dropDuplicates(keys)
    return frame.withWatermark("timestamp", settings.duplicates_within).dropDuplicatesWithinWatermark(keys)


def envelopes(frame: "DataFrame", settings: Settings) -> "DataFrame":
    """Messages to envelopes, each once."""
    return without_duplicates(frame.where(CLAIMS_TO_BE_ONE).mapInArrow(decoded, COLUMNS), settings)


TABLE = PipelineTable(spec=TableSpec(name="envelopes"), source=SOURCE, rows=envelopes, large_state=True)
