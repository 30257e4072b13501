"""The options of `format("headrace")`, checked: what the user asked for, as plain values that travel to executors.

Spark gives option names in lower case; errors give them back as they are documented, with the nearest right name.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar

from headrace.feed.client import DEFAULT_ENDPOINT, FeedClient
from headrace.feed.schema import STREAMS, BadColumns, select
from headrace.feed.ticket import Ticket
from headrace.spark.source import values
from headrace.spark.source.values import EARLIEST, LATEST, Position

Stream = Literal["messages", "events"]
V = TypeVar("V")

READER_SIZE_MAX = 200
_SPARKS_OWN = {
    "checkpointlocation", "collation", "comment", "external", "is_managed_location", "location", "owner", "path",
    "provider", "queryname", "table_type",
}  # fmt: skip
"""What Spark puts among the options of streams and of tables in its catalog."""

_SCHEMES = ("grpc://", "grpc+tls://", "grpc+tcp://", "grpc+unix://")

CONNECTION_OPTIONS = ("endpoint", "key", "tlsRoots", "retryTimeout")
READ_OPTIONS = (
    *CONNECTION_OPTIONS, "subscribe", "subscribePattern", "stream", "events", "envelopes", "columns", "includeHeaders",
    "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp", "failOnDataLoss",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition", "shortCircuit", "reader",
)  # fmt: skip
WRITE_OPTIONS = (*CONNECTION_OPTIONS, "topic", "writer", "batch")


class OptionError(ValueError):
    """An option that is unknown, missing, or makes no sense; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where the broker's feed is and how to get in."""

    endpoint: str = DEFAULT_ENDPOINT
    key: str | None = field(default=None, repr=False)
    tls_roots: bytes | None = field(default=None, repr=False)
    retry_timeout_s: float = 60.0

    def client(self, retry_s: float | None = None) -> FeedClient:
        """A client that connects when it is first used."""
        patience_s = self.retry_timeout_s if retry_s is None else retry_s
        return FeedClient(self.endpoint, key=self.key, ca=self.tls_roots, retry_s=patience_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, from where to where, how fast and in how many pieces.

    `nullable` are columns that never are null, but that Spark was told might be.
    """

    connection: Connection
    stream: Stream = "messages"
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    events: tuple[str, ...] | None = None
    envelopes: bool = False
    columns: tuple[str, ...]
    starting: Position | None = None
    ending: Position | None = None
    fail_on_data_loss: bool = True
    offsets_max: int | None = None
    offsets_min: int | None = None
    bytes_max: int | None = None
    trigger_delay_max_s: float = 900.0
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    short_circuit: bool = True
    reader: str | None = None
    nullable: tuple[str, ...] = ()

    def ticket(self, start: int, end: int) -> Ticket:
        """What to ask the feed for to get the rows from `start` up to, not including, `end`."""
        return Ticket(
            stream=self.stream,
            topics=self.topics,
            pattern=self.pattern,
            start=start,
            end=end,
            columns=self.columns,
            lossy=not self.fail_on_data_loss,
            events=self.events,
            envelopes=self.envelopes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where rows go, and under which name a batch write is remembered."""

    connection: Connection
    topic: str | None = None
    writer: str | None = None
    batch: int = 0


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """The options of a read or readStream; while it is not known which (None), what fits one of them is right.

    Raises OptionError.
    """
    options = _Given(given, READ_OPTIONS, "readStream" if streaming else "read")
    stream = options.one_of("stream", STREAMS, "messages")
    topics, pattern = _selection(options, stream)
    starting, ending = _range(options, streaming=streaming)
    offsets_max = options.value("maxOffsetsPerTrigger", values.count)
    offsets_min = options.value("minOffsetsPerTrigger", values.count)
    if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
        raise OptionError(f"option minOffsetsPerTrigger is {offsets_min}, more than maxOffsetsPerTrigger {offsets_max}")
    return ReadOptions(
        connection=_connection(options),
        stream=stream,
        topics=topics,
        pattern=pattern,
        events=_for_stream(options, "events", "events", stream, values.names),
        envelopes=_for_stream(options, "envelopes", "messages", stream, values.flag) or False,
        columns=_columns(options, stream),
        starting=starting,
        ending=ending,
        fail_on_data_loss=options.value("failOnDataLoss", values.flag, default=True),
        offsets_max=offsets_max,
        offsets_min=offsets_min,
        bytes_max=options.value("maxBytesPerTrigger", values.size),
        trigger_delay_max_s=options.value("maxTriggerDelay", values.duration_s, default=900.0),
        partitions_min=options.value("minPartitions", values.count),
        records_per_partition_max=options.value("maxRecordsPerPartition", values.count),
        short_circuit=options.value("shortCircuit", values.flag, default=True),
        reader=_reader(options, stream, topics, pattern),
    )


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """The options of a write or writeStream. Raises OptionError."""
    options = _Given(given, WRITE_OPTIONS, "writeStream" if streaming else "write")
    if streaming:
        for name in ("writer", "batch"):
            if name in options:
                raise OptionError(f"option {name} is for df.write; a stream is known by its query, leave it out")
    elif "batch" in options and "writer" not in options:
        raise OptionError("option batch counts the batches of a writer; name it by option writer")
    return WriteOptions(
        connection=_connection(options),
        topic=options.value("topic", _filled),
        writer=options.value("writer", _filled),
        batch=options.value("batch", values.batch_number, default=0),
    )


class _Given:
    """The options as given, looked up by their documented names."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], action: str) -> None:
        self._given = {name.lower(): text for name, text in given.items()}
        by_lower = {name.lower(): name for name in known}
        for name in self._given:
            if name not in by_lower and name not in _SPARKS_OWN and not name.startswith(("__", "option.")):
                near = get_close_matches(name, by_lower, n=1, cutoff=0.5)
                hint = f"did you mean {by_lower[near[0]]}?" if near else f"there are {', '.join(known)}"
                raise OptionError(f"unknown option {name} for {action}; {hint}")

    def __len__(self) -> int:
        return len(self._given)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def value(self, name: str, parse: Callable[[str], V], default: Any = None) -> Any:
        """The option's value, or the default when it is not given. Raises OptionError naming the option."""
        if name not in self:
            return default
        text = self._given[name.lower()]
        try:
            return parse(text)
        except ValueError as error:
            raise OptionError(f"option {name} is {text!r}: {error}") from None

    def one_of(self, name: str, known: Mapping[str, object], default: str) -> Any:
        """One of a few words. Raises OptionError naming them."""
        word = self._given.get(name.lower(), default).strip().lower()
        if word not in known:
            raise OptionError(f"option {name} is {word!r}: expected {' or '.join(known)}")
        return word


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text.strip()


def _connection(options: _Given) -> Connection:
    endpoint: str = options.value("endpoint", str.strip, default=DEFAULT_ENDPOINT)
    if not endpoint.startswith(_SCHEMES):
        raise OptionError(f"option endpoint is {endpoint!r}: expected grpc://host:port or grpc+tls://host:port")
    return Connection(
        endpoint=endpoint,
        key=options.value("key", str.strip, default=os.environ.get("HEADRACE_KEY")),
        tls_roots=options.value("tlsRoots", _certificates),
        retry_timeout_s=options.value("retryTimeout", values.duration_s, default=60.0),
    )


def _certificates(text: str) -> bytes:
    """PEM certificates: the text itself, or the contents of the file it names on the driver."""
    if "-----BEGIN" in text:
        return text.encode()
    try:
        return Path(text).read_bytes()
    except OSError as error:
        raise ValueError(f"no certificates there: {error.strerror}") from None


def _selection(options: _Given, stream: Stream) -> tuple[tuple[str, ...] | None, str | None]:
    topics = options.value("subscribe", values.names)
    pattern = options.value("subscribePattern", values.pattern)
    if topics is not None and pattern is not None:
        raise OptionError("give option subscribe or option subscribePattern, not both")
    if topics is None and pattern is None and stream == "messages":
        hint = "" if options else ". For a table declared with columns Spark keeps no options: declare it without"
        raise OptionError(f"which topics? Give option subscribe (names) or subscribePattern (.* for all){hint}")
    return topics, None if pattern == ".*" else pattern


def _for_stream(options: _Given, name: str, of: Stream, stream: Stream, parse: Callable[[str], Any]) -> Any:
    """An option that only one of the streams has."""
    if name in options and stream != of:
        raise OptionError(f"option {name} is for stream {of}, this one is {stream}")
    return options.value(name, parse)


def _columns(options: _Given, stream: Stream) -> tuple[str, ...]:
    headers = options.value("includeHeaders", values.flag, default=True)
    columns = options.value("columns", values.names)
    if columns is None:
        return tuple(name for name in STREAMS[stream].names if headers or name != "headers")
    if not headers and "headers" in columns:
        raise OptionError("option columns names headers, option includeHeaders is false")
    try:
        select(stream, columns)
    except BadColumns as error:
        raise OptionError(f"option columns: {error}") from None
    return tuple(columns)


def _range(options: _Given, *, streaming: bool | None) -> tuple[Position, Position]:
    """Where reading begins and ends; a timestamp wins over offsets, as with Kafka's source."""
    if streaming:
        for name in ("endingOffsets", "endingTimestamp"):
            if name in options:
                raise OptionError(f"option {name} is for spark.read; a stream has no end")
    starting = options.value("startingOffsets", values.position, default=LATEST if streaming else EARLIEST)
    ending = options.value("endingOffsets", values.position, default=LATEST)
    if streaming is False and starting == LATEST:
        raise OptionError("option startingOffsets is latest: spark.read would find nothing; give earliest or an offset")
    if ending == EARLIEST:
        raise OptionError("option endingOffsets is earliest: nothing is before it; give latest or an offset")
    starting = options.value("startingTimestamp", values.moment, default=starting)
    ending = options.value("endingTimestamp", values.moment, default=ending)
    if starting.kind == ending.kind and starting.kind in ("offset", "timestamp") and starting.value > ending.value:
        name = "Offsets" if starting.kind == "offset" else "Timestamp"
        raise OptionError(f"option starting{name} lies behind option ending{name}")
    return starting, ending


def _reader(options: _Given, stream: Stream, topics: tuple[str, ...] | None, pattern: str | None) -> str | None:
    """The name under which the broker lists the query; None when the user wants none."""
    name: str | None = options.value("reader", str.strip)
    if name is None:
        chosen = ",".join(topics) if topics else pattern or "*"
        name = f"spark:{chosen}" if stream == "messages" else f"spark:{stream}:{chosen}"
        if len(name) > READER_SIZE_MAX:
            name = f"{name[: READER_SIZE_MAX - 9]}#{sha256(name.encode()).hexdigest()[:8]}"
    if len(name) > READER_SIZE_MAX:
        raise OptionError(f"option reader has {len(name)} characters; at most {READER_SIZE_MAX} are kept")
    return name or None
