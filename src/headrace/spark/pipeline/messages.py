"""`messages`: every message of every topic, as it was published. A row for each offset that is a message."""

from headrace.spark.lake.table import TableSpec
from headrace.spark.pipeline.definition import PipelineTable

TABLE = PipelineTable(spec=TableSpec(name="messages"), source={"subscribePattern": ".*"}, prompt=True)
