"""grpcq envelopes out of Arrow columns of bytes: a whole batch at once, culprits found when one does not decode.

With ptars a batch is decoded without Python looking at a message; without it each is decoded by protobuf. Pure: knows
no Spark.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from google.protobuf.message import DecodeError

from headrace.model.errors import BrokerError
from headrace.protocols.grpcq.envelope import NOT_A_MESSAGE, check_message
from headrace.protocols.grpcq.grpcq_pb2 import Message

pc: Any = pyarrow.compute
TIMESTAMP = pa.timestamp("us", tz="UTC")
METADATA = pa.map_(pa.string(), pa.string())
_PAYLOAD_UNLIMITED = 1 << 62
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
        """`fast` says whether to use ptars; None means if it is installed."""
        self._fast = _ptars() if (find_spec("ptars") is not None if fast is None else fast) else None

    def __call__(self, batch: pa.RecordBatch) -> Decoded:
        """The envelopes and the rest; every row is in one of them."""
        fields, reasons = self._fields(batch.column("value"))
        refused = pc.is_valid(reasons)
        good = pc.invert(refused)
        return Decoded(_envelopes(batch.filter(good), fields), _refused(batch.filter(refused), reasons.filter(refused)))

    def _fields(self, values: Any) -> tuple[pa.RecordBatch, Any]:
        """The fields of those values that are envelopes, and for each value the reason why it is none, or null."""
        reasons = np.full(len(values), None, object)
        if self._fast is None:
            fields = _each(values, 0, reasons)
        else:
            fields = pa.Table.from_batches(self._halved(pc.fill_null(values, b""), 0, reasons), _DECODED)
        table = fields.combine_chunks()
        empty = pc.or_(pc.equal(table["topic"], ""), pc.equal(table["action"], ""))
        if pc.any(empty).as_py():
            at = np.flatnonzero([reason is None for reason in reasons])[np.asarray(empty)]
            for index in at:
                reasons[index] = _reason(values[int(index)].as_py())
            table = table.filter(pc.invert(empty)).combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], _DECODED), pa.array(reasons, pa.string())

    def _halved(self, values: Any, start: int, reasons: "np.ndarray[Any, Any]") -> list[pa.RecordBatch]:
        """Decode at once; when that fails, each half by itself, until the culprits are alone."""
        if not len(values):
            return []
        try:
            assert self._fast is not None
            return [self._fast.array_to_record_batch(values).cast(_DECODED)]
        except ValueError:
            if len(values) == 1:
                reasons[start] = _reason(values[0].as_py())
                return []
        middle = len(values) // 2
        left = self._halved(values[:middle], start, reasons)
        return left + self._halved(values[middle:], start + middle, reasons)


def _each(values: Any, start: int, reasons: "np.ndarray[Any, Any]") -> pa.Table:
    """The same by protobuf's own decoder, one message after the other."""
    rows: list[dict[str, Any]] = []
    for index, value in enumerate(values.to_pylist(), start):
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
    sent = pc.multiply(fields["timestamp_ms"], 1000).cast(TIMESTAMP)
    columns: dict[str, Any] = {
        "offset": batch.column("offset"),
        "timestamp": batch.column("timestamp").cast(TIMESTAMP),
        "topic": batch.column("topic"),
        "originator": fields["originator"],
        "service": fields["topic"],
        "action": fields["action"],
        "message_id": pc.coalesce(own, batch.column("message_id"), fallback),
        "sent": pc.if_else(pc.equal(fields["timestamp_ms"], 0), None, sent),
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
