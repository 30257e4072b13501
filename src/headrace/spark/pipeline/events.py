"""`events`: everything that happened to messages after they were published. A row for each message of an event."""

from headrace.spark.lake.table import TableSpec
from headrace.spark.pipeline.definition import PipelineTable

TABLE = PipelineTable(spec=TableSpec(name="events"), source={"stream": "events"})
