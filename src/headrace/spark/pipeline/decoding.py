"""grpcq envelopes out of Arrow columns of bytes: the plain ones of a batch at once, all others one by one.

Protobuf's own decoder decides what an envelope is and what it says. Where ptars is installed, and kernels are compiled,
it decodes those that are so plain that both read the same in them, without Python looking at a message; whatever else
somebody sent it never gets to see. Pure: knows no Spark.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from google.protobuf.message import DecodeError

from headrace.kernels.envelopes import COMPILED, mark_plain
from headrace.model.errors import BrokerError
from headrace.protocols.grpcq.envelope import NOT_A_MESSAGE, check_message
from headrace.protocols.grpcq.grpcq_pb2 import Message

pc: Any = pyarrow.compute
TIMESTAMP = pa.timestamp("us", tz="UTC")
METADATA = pa.map_(pa.string(), pa.string())
_PAYLOAD_UNLIMITED = 1 << 62
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999. A timestamp that is no date in them says nothing."""

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
_KINDS: dict[str, Any] = {
    "originator": pa.string(), "topic": pa.string(), "action": pa.string(), "payload": pa.binary(),
    "message_id": pa.string(), "timestamp_ms": pa.int64(), "metadata": METADATA,
}  # fmt: skip
_DECODED = pa.schema(_KINDS)
_PLAIN = [name for name in _KINDS if name != "metadata"]


class Decoded(NamedTuple):
    """A batch's envelopes, and the messages that are none with the reason."""

    envelopes: pa.RecordBatch
    refused: pa.RecordBatch


class Decoder:
    """Decodes batches of messages: columns offset, timestamp, topic, protocol, message_id, headers and value."""

    def __init__(self, *, fast: bool | None = None) -> None:
        """`fast` says whether to use ptars; None means if it is installed, and plain envelopes are found fast."""
        self._fast = _ptars() if (COMPILED and find_spec("ptars") is not None if fast is None else fast) else None

    def __call__(self, batch: pa.RecordBatch) -> Decoded:
        """The envelopes and the rest; every row is in one of them."""
        fields, reasons = self._fields(batch.column("value"))
        refused = pc.is_valid(reasons)
        good = pc.invert(refused)
        return Decoded(_envelopes(batch.filter(good), fields), _refused(batch.filter(refused), reasons.filter(refused)))

    def _fields(self, values: Any) -> tuple[pa.RecordBatch, Any]:
        """The fields of those values that are envelopes, and for each value the reason why it is none, or null."""
        reasons = np.full(len(values), None, object)
        plain = _plain(values) if self._fast is not None else np.zeros(len(values), np.bool_)
        tables, places = self._fast_fields(values, plain)
        others = np.flatnonzero(~plain)
        if len(others):
            tables.append(_each(values.take(pa.array(others)), others, reasons))
            places.append(np.array([at for at in others if reasons[at] is None], np.int64))
        table = pa.concat_tables(tables) if tables else _DECODED.empty_table()
        if len(tables) > 1:
            order: Any = pa.array(np.argsort(np.concatenate(places), kind="stable"))
            table = table.take(order)
        table = table.combine_chunks()
        empty = pc.or_(pc.equal(table["topic"], ""), pc.equal(table["action"], ""))
        if pc.any(empty).as_py():
            at = np.flatnonzero([reason is None for reason in reasons])[np.asarray(empty)]
            for index in at:
                reasons[index] = _reason(values[int(index)].as_py())
            table = table.filter(pc.invert(empty)).combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], _DECODED), pa.array(reasons, pa.string())

    def _fast_fields(self, values: Any, plain: Flags) -> tuple[list[pa.Table], list[Places]]:
        """The fields of the plain values, and which those are. Should they not decode, they are plain no more."""
        if self._fast is None or not plain.any():
            return [], []
        chosen = values if plain.all() else values.filter(pa.array(plain))
        try:
            decoded = self._fast.array_to_record_batch(chosen).cast(_DECODED)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # ptars panics with a class of its own, which is no Exception
            plain[:] = False
            return [], []
        return [pa.Table.from_batches([decoded])], [np.flatnonzero(plain)]


def _plain(values: Any) -> Flags:
    """Which of the values are plain envelopes."""
    cells = pc.fill_null(values, b"").cast(pa.binary())
    _, ends, data = cells.buffers()
    marks = np.zeros(len(cells), np.uint8)
    if len(cells):
        bounds = np.frombuffer(ends, np.int32, len(cells) + 1, 4 * cells.offset)
        mark_plain(bounds.data, memoryview(data).cast("B") if data is not None else b"", marks.data)
    found: Flags = marks.astype(np.bool_) & np.asarray(pc.is_valid(values))
    return found


def _each(values: Any, places: Places, reasons: "np.ndarray[Any, Any]") -> pa.Table:
    """The same by protobuf's own decoder, one message after the other; `places` are theirs among the reasons."""
    rows: list[dict[str, Any]] = []
    for index, value in zip(places, values.to_pylist(), strict=True):
        try:
            message = Message.FromString(value or b"")
        except DecodeError as error:
            reasons[index] = f"{NOT_A_MESSAGE}: {error}"
            continue
        rows.append({name: getattr(message, name) for name in _PLAIN} | {"metadata": list(message.metadata.items())})
    return pa.Table.from_pylist(rows, _DECODED)


def _envelopes(batch: pa.RecordBatch, fields: pa.RecordBatch) -> pa.RecordBatch:
    """Where the messages are in the log, and what their envelopes say."""
    fallback = pc.binary_join_element_wise("headrace-", batch.column("offset").cast(pa.string()), "")
    own = pc.if_else(pc.equal(fields["message_id"], ""), None, fields["message_id"])
    stamp = fields["timestamp_ms"]
    is_date = pc.and_(pc.greater_equal(stamp, _FIRST_MS), pc.less_equal(stamp, _LAST_MS))
    stamp = pc.if_else(pc.and_(is_date, pc.not_equal(stamp, 0)), stamp, None)
    columns: dict[str, Any] = {
        "offset": batch.column("offset"),
        "timestamp": batch.column("timestamp").cast(TIMESTAMP),
        "topic": batch.column("topic"),
        "originator": fields["originator"],
        "service": fields["topic"],
        "action": fields["action"],
        "message_id": pc.coalesce(own, batch.column("message_id"), fallback),
        "sent": pc.multiply(stamp, 1000).cast(TIMESTAMP),
        "payload": fields["payload"],
        "metadata": fields["metadata"],
    }
    return pa.record_batch(columns)


def _refused(batch: pa.RecordBatch, reasons: Any) -> pa.RecordBatch:
    names = ("offset", "timestamp", "topic", "protocol", "message_id")
    columns: dict[str, Any] = {name: batch.column(name) for name in names}
    columns["timestamp"] = columns["timestamp"].cast(TIMESTAMP)
    columns |= {"reason": reasons, "value": batch.column("value"), "headers": batch.column("headers")}
    return pa.record_batch(columns)


def _reason(value: bytes | None) -> str:
    """Why these bytes are no envelope, in protobuf's words or ours."""
    try:
        check_message(Message.FromString(value or b""), _PAYLOAD_UNLIMITED)
    except DecodeError as error:
        return f"{NOT_A_MESSAGE}: {error}"
    except BrokerError as error:
        return error.detail
    return NOT_A_MESSAGE


def _ptars() -> Any:
    from ptars import HandlerPool

    return HandlerPool([Message.DESCRIPTOR.file]).get_for_message(Message.DESCRIPTOR)
