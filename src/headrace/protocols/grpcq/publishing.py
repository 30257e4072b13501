"""A publish call, as serialized, into the batch that stores it. Per-message work is the kernel's."""

from headrace.kernels.grpcq import Scan, fill_part, scan_publish
from headrace.kernels.grpcq_envelope import UUID_SIZE, Reason
from headrace.model.batch import HEADER, HEADER_SIZE, PART_BATCH, Column, Protocol, padded
from headrace.model.errors import BrokerError, Code
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.protocols.grpcq.envelope import check_queue, foreign_character, payload_too_large, refusal
from headrace.protocols.grpcq.grpcq_pb2 import Message

COUNT_MAX = 65_536
UUID_ENTROPY = 16

_TIMESTAMP_TAG = b"\x30"
_VERSION = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))
_DIGIT_PLACES = [place for place in range(UUID_SIZE) if place not in (8, 13, 18, 23)]


class Publishing:
    """A publish call whose envelopes are all right; `queue` is where to, `count` how many they are."""

    def __init__(self, request: bytes, scan: Scan, queue: str) -> None:
        self.queue = queue
        self.count = scan.count
        self._request = request
        self._scan = scan

    @classmethod
    def read(cls, request: bytes, payload_max: int) -> "Publishing":
        """Check a serialized PublishRequest.

        Raises BrokerError(INVALID), or BrokerError(LIMIT) for too large a payload, naming the message by its place.
        """
        scan = scan_publish(request, payload_max, COUNT_MAX)
        if scan.reason == Reason.TOO_MANY:
            raise BrokerError(Code.LIMIT, f"more than {COUNT_MAX} messages in one call")
        if scan.reason != Reason.FINE and scan.failed < 0:
            raise BrokerError(Code.INVALID, "not a PublishRequest")
        try:
            queue = check_queue(scan.queue.decode())
        except UnicodeDecodeError:
            raise BrokerError(Code.INVALID, "bad queue name: not UTF-8") from None
        if scan.reason != Reason.FINE:
            raise _refusal(request, scan, payload_max)
        return cls(request, scan, queue)

    @property
    def entropy_size(self) -> int:
        """How many random bytes `record` needs to make up for missing ids."""
        return UUID_ENTROPY * self._scan.ids_missing

    @property
    def has_ids(self) -> bool:
        """Whether any message came with an id of its publisher's."""
        return self._scan.ids_missing < self._scan.count

    def record(self, *, now: int, entropy: bytes, max_attempts: int = 0) -> bytearray:
        """The batch that stores the messages, with RECORD_HEADER_SIZE free bytes before it, as a Publish has it.

        Ids and timestamps are filled in where they are missing. The value of a message is its envelope; the columns
        beside it hold what other doors understand of it: its id, and as headers its topic, action, originator and
        metadata.
        """
        scan, topic = self._scan, self._scan.queue
        stamp = _TIMESTAMP_TAG + varint(now // 1000)
        values_size = scan.values_size + len(stamp) * scan.stamps_missing
        ends_size = padded(4 * (scan.count + 1))
        topic_at = RECORD_HEADER_SIZE + HEADER_SIZE
        values_at = topic_at + padded(len(topic))
        headers_at = values_at + ends_size + padded(values_size)
        ids_at = headers_at + ends_size + padded(scan.headers_size)
        record = bytearray(ids_at + ends_size + padded(scan.ids_size))
        HEADER.pack_into(
            record, RECORD_HEADER_SIZE,
            len(record) - RECORD_HEADER_SIZE, PART_BATCH, Protocol.GRPCQ, 1, Column.HEADERS | Column.MESSAGE_ID,
            scan.count, len(topic), max_attempts, now, 0, 0, values_size, 0,
        )  # fmt: skip
        record[topic_at : topic_at + len(topic)] = topic
        fill_part(self._request, scan, record, values_at, headers_at, ids_at, stamp, uuids(entropy))
        return record


def varint(number: int) -> bytes:
    """A number that is not negative, as protobuf writes it."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def uuids(entropy: bytes) -> bytes:
    """A random UUID (version 4) for each 16 bytes, as text, back to back."""
    if not entropy:
        return b""
    raw = bytearray(entropy)
    raw[6::16] = raw[6::16].translate(_VERSION)
    raw[8::16] = raw[8::16].translate(_VARIANT)
    digits = raw.hex().encode()
    texts = bytearray(b"-") * (UUID_SIZE * (len(entropy) // UUID_ENTROPY))
    for place, digit in enumerate(_DIGIT_PLACES):
        texts[digit::UUID_SIZE] = digits[place::32]
    return bytes(texts)


def _refusal(request: bytes, scan: Scan, payload_max: int) -> BrokerError:
    """Why the call is refused; only here is an envelope decoded."""
    culprit = request[scan.failed_at : scan.failed_at + scan.failed_size]
    if scan.reason == Reason.PAYLOAD_TOO_LARGE:
        error = payload_too_large(Message.FromString(culprit), payload_max)
    elif scan.reason in (Reason.TOPIC_CHARACTER, Reason.ACTION_CHARACTER):
        error = foreign_character(culprit)
    else:
        error = refusal(Reason(scan.reason))
    return BrokerError(error.code, f"message {scan.failed}: {error.detail}")
