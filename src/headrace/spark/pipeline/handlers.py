"""User functions over grpcq envelopes, run inside Spark on whole Arrow batches.

    @handler("user.UserService", "CreateUser", to="users.created")
    def create_user(calls: pa.RecordBatch) -> pa.RecordBatch | None: ...

A handler is given the envelopes of its calls (the columns of the table `envelopes`) and may return rows with a column
`value` and optionally `key`, `headers` and `message_id`, which are published to `to`. When it raises, its calls are
tried one by one; those that fail are published to `dead.<topic>` with their origin and the reason, the others count.
Results and failures of a micro-batch enter the broker in one transaction, once. The handler itself may see a call again
after a crash: what it does outside must be repeatable.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.broker.deadletters import ATTEMPTS, ORIGIN_OFFSET, ORIGIN_SUBSCRIPTION, ORIGIN_TOPIC, REASON
from headrace.feed.schema import HEADERS
from headrace.protocols.grpcq.deliveries import ENVELOPE_TYPE
from headrace.spark.lake.table import LakeError
from headrace.spark.pipeline.decoding import Decoder
from headrace.spark.pipeline.envelopes import CLAIMS_TO_BE_ONE, COLUMNS, without_duplicates
from headrace.spark.pipeline.settings import READER_PREFIX, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pc: Any = pyarrow.compute
NAME = "handlers"
DEAD_PREFIX = "dead."
ENVELOPE = "envelope"
PUBLISHED = (
    "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>, message_id string"
)
_REASON_MAX = 500
_KINDS: dict[str, Any] = {
    "topic": pa.string(), "key": pa.binary(), "value": pa.binary(), "headers": HEADERS, "message_id": pa.string(),
}  # fmt: skip
_SCHEMA = pa.schema(_KINDS)

Call = tuple[str, str]
Function = Callable[[pa.RecordBatch], pa.RecordBatch | None]


@dataclass(frozen=True)
class Handler:
    """A function and the topic its results go to."""

    function: Function
    to: str | None


_registered: dict[Call, Handler] = {}


def handler(service: str, action: str, *, to: str | None = None) -> Callable[[Function], Function]:
    """Have a function handle the calls of one method; its results, if any, are published to the topic `to`.

    Raises ValueError when the method has a handler already.
    """

    def _register(function: Function) -> Function:
        known = _registered.get((service, action))
        if known is not None and known.function.__module__ != function.__module__:
            raise ValueError(f"{service}.{action} has a handler already, in {known.function.__module__}")
        _registered[service, action] = Handler(function, to)
        return function

    return _register


def load(modules: Iterable[str]) -> dict[Call, Handler]:
    """The handlers that importing these modules registers.

    Raises LakeError for a module that cannot be imported or has none.
    """
    found: dict[Call, Handler] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise LakeError(f"cannot import the handlers' module {name}: {error}") from error
        own = {call: each for call, each in _registered.items() if each.function.__module__ == module.__name__}
        if not own:
            raise LakeError(f"the module {name} has no function with @handler(service, action)")
        _travel_by_value(module)
        found |= own
    return found


def handled(frame: "DataFrame", settings: Settings, handlers: Mapping[Call, Handler]) -> "DataFrame":
    """Messages in, rows to publish out."""
    calls = dict(handlers)

    def _handle(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from handle(batch, calls)

    whole = frame.where(CLAIMS_TO_BE_ONE).mapInArrow(_decoded_whole, f"{COLUMNS}, {ENVELOPE} binary")
    return without_duplicates(whole, settings).mapInArrow(_handle, PUBLISHED)


def handle(batch: pa.RecordBatch, handlers: Mapping[Call, Handler]) -> Iterator[pa.RecordBatch]:
    """What the handlers of these calls want published, and the calls that failed."""
    for (service, action), each in handlers.items():
        mine = pc.and_(pc.equal(batch.column("service"), service), pc.equal(batch.column("action"), action))
        calls = batch.filter(mine)
        if calls.num_rows:
            yield from _outcome(calls, each)


def _outcome(calls: pa.RecordBatch, each: Handler) -> Iterator[pa.RecordBatch]:
    try:
        result = _published(each.function(calls.drop_columns([ENVELOPE])), each.to)
    except Exception as error:
        if calls.num_rows == 1:
            yield _failure(calls, error)
            return
        for index in range(calls.num_rows):
            yield from _outcome(calls.slice(index, 1), each)
        return
    if result is not None:
        yield result


def _published(result: pa.RecordBatch | None, to: str | None) -> pa.RecordBatch | None:
    """A handler's result as rows to publish. Raises TypeError when it is none."""
    if result is None:
        return None
    if not isinstance(result, pa.RecordBatch) or "value" not in result.schema.names:
        raise TypeError("a handler returns a RecordBatch with a column `value`, or None")
    if to is None or not result.num_rows:
        return None
    columns: dict[str, Any] = {"topic": pa.repeat(to, result.num_rows)}
    for name, kind in list(_KINDS.items())[1:]:
        given = name in result.schema.names
        columns[name] = result.column(name).cast(kind) if given else pa.nulls(result.num_rows, kind)
    return pa.record_batch(columns, schema=_SCHEMA)


def _failure(call: pa.RecordBatch, error: Exception) -> pa.RecordBatch:
    """The call as it was published, on its way to the dead letters of its topic."""
    [row] = call.select(["topic", "offset", "message_id", ENVELOPE]).to_pylist()
    headers = [
        ("content-type", ENVELOPE_TYPE),
        (ORIGIN_TOPIC, row["topic"].encode()),
        (ORIGIN_SUBSCRIPTION, (READER_PREFIX + NAME).encode()),
        (REASON, f"{type(error).__name__}: {error}"[:_REASON_MAX].encode()),
        (ATTEMPTS, b"1"),
        (ORIGIN_OFFSET, b"%d" % row["offset"]),
    ]
    dead = {
        "topic": DEAD_PREFIX + row["topic"],
        "value": row[ENVELOPE],
        "headers": [{"key": name, "value": value} for name, value in headers],
        "message_id": row["message_id"],
    }
    return pa.RecordBatch.from_pylist([dead], _SCHEMA)


def _decoded_whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Envelopes with all their bytes beside the fields."""
    decode = Decoder()
    for batch in batches:
        fields = decode(batch).envelopes
        whole = batch.filter(pc.is_in(batch.column("offset"), fields.column("offset")))
        yield fields.append_column(ENVELOPE, whole.column("value"))


def _travel_by_value(module: ModuleType) -> None:
    """Workers need not be able to import the module."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
