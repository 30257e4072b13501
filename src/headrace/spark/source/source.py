"""The data source itself: what Spark finds under the name `headrace`."""

from dataclasses import replace

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headrace.feed.schema import select
from headrace.spark.daemon import settle
from headrace.spark.source.options import OptionError, ReadOptions, read_options, write_options
from headrace.spark.source.reader import BatchReader, batch_reader
from headrace.spark.source.sink import message_columns
from headrace.spark.source.stream import StreamReader
from headrace.spark.source.tables import is_table, recall, remember
from headrace.spark.source.writer import BatchWriter, StreamWriter


class HeadraceSource(DataSource):
    """`format("headrace")`: topics and events of a broker to read and to follow, topics to write into."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "headrace"

    def schema(self) -> StructType:
        """The columns of the chosen stream, or those that option `columns` names."""
        options = read_options(self.options, streaming=None)
        schema = from_arrow_schema(select(options.stream, options.columns))
        return remember(schema, self.options) if is_table(self.options) else schema

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`."""
        return batch_reader(_narrowed(read_options(recall(schema, self.options), streaming=False), schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """For `spark.readStream`."""
        return StreamReader(_narrowed(read_options(recall(schema, self.options), streaming=True), schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`."""
        if overwrite:
            raise OptionError('a topic only grows: use mode("append")')
        options = write_options(self.options, streaming=False)
        return BatchWriter(options, message_columns(schema, options.topic))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """For `df.writeStream`."""
        settle()
        if overwrite:
            raise OptionError('a topic only grows: use outputMode("append") or outputMode("update")')
        options = write_options(self.options, streaming=True)
        return StreamWriter(options, message_columns(schema, options.topic))


def _narrowed(options: ReadOptions, schema: StructType) -> ReadOptions:
    """The options with the columns of the schema that Spark wants, which the user may have given."""
    names = tuple(schema.fieldNames())
    try:
        own = from_arrow_schema(select(options.stream, names))
    except ValueError as error:
        raise OptionError(f"the schema given: {error}") from None
    wrong = [
        f"{ours.name} must be {ours.dataType.simpleString()}{' and may be null' if ours.nullable else ''}"
        for ours, given in zip(own, schema, strict=True)
        if ours.dataType != given.dataType or ours.nullable > given.nullable
    ]
    if wrong:
        raise OptionError(f"the schema given does not fit: {', '.join(wrong)}")
    loose = tuple(ours.name for ours, given in zip(own, schema, strict=True) if given.nullable > ours.nullable)
    return replace(options, columns=names, nullable=loose)
