"""A stream that writes: confirmed WRITEs and transactions.

Runs of WRITEs are read by a kernel; what it leaves alone is read here one by one, and is nearly always refused. A
transaction is kept as it arrived and becomes one record of batches, one for each topic, at its COMMIT.
"""

import struct
from collections.abc import Callable
from itertools import chain

from headrace.kernels.fujin import Form, scan_writes
from headrace.kernels.fujin_reading import encode_confirmations
from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError, Code
from headrace.model.names import check_topic
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Publish, Request
from headrace.protocols.fujin.errors import INVALID_TX_STATE, text_of
from headrace.protocols.fujin.frames import (
    HEADER_KEY_SIZE_MAX,
    HEADER_STRINGS_MAX,
    Command,
    Cursor,
    Response,
    TooLong,
    Write,
    decode_correlation_id,
    decode_write,
    encode_reply,
    size_behind_topic,
    tells_headers,
)
from headrace.protocols.fujin.replies import Replies
from headrace.protocols.fujin.settings import FujinSettings, WriteHeaders

IN_DOUBT = (
    "The first WRITE of this stream was taken for one with headers. If it has none, set fujin.write_headers to never, "
    "or for the original client fujin.dialect to reference"
)


class Transaction:
    """The WRITEs of an open transaction; once one of them was refused all there is left is to end it."""

    def __init__(self) -> None:
        self.writes = bytearray()
        self.broken: BrokerError | None = None


class Writer:
    """What a stream does after CONNECT WRITER."""

    def __init__(self, settings: FujinSettings, replies: Replies) -> None:
        self._settings = settings
        self._replies = replies
        self._form: Form | None = None
        self._in_doubt = False
        self._transaction: Transaction | None = None
        if settings.form is not WriteHeaders.AUTO:
            self._lock(settings.form is WriteHeaders.ALWAYS)

    def step(self, data: Buffer, at: int, end: int, now: int, requests: list[Request]) -> int:
        """Read the command at `at`, or a run of WRITEs; the position after it.

        Raises Incomplete, and TooLong when it can never be read.
        """
        command = data[at]
        if command != Command.WRITE:
            cursor = Cursor(data, at + 1, end)
            requests.append(STEPS[Command(command)](self, decode_correlation_id(cursor), now))
            return cursor.at
        if self._form is None:
            size = size_behind_topic(Cursor(data, at + 1, end))
            self._in_doubt = size > 0xFFFF
            self._lock(tells_headers(size))
        scanned = self._scan(data, at, end, now, requests)
        return scanned if scanned > at else self._refuse_write(data, at, end, requests)

    def measure(self, view: memoryview) -> None:
        """Raises Incomplete for the unfinished command `view` begins with."""
        cursor = Cursor(view, 1, len(view))
        if view[0] != Command.WRITE:
            decode_correlation_id(cursor)
        elif self._form is None:
            size_behind_topic(cursor)
        else:
            self._decode(cursor)

    def published(self, tags: bytes) -> None:
        """The WRITEs or the COMMIT with these tags are durable."""
        self._replies.say(encode_confirmations(tags))

    def publish_refused(self, tags: bytes, error: BrokerError) -> None:
        """The WRITEs or the COMMIT with these tags were not stored."""
        response, text = Response(tags[0]), text_of(error)
        ids = struct.iter_unpack(">I", tags[1:])
        self._replies.say(b"".join(encode_reply(response, correlation_id, text) for (correlation_id,) in ids))

    def _lock(self, with_headers: bool) -> None:
        settings = self._settings
        self._form = Form(
            with_headers, settings.message_size_max, settings.headers_size_max, HEADER_STRINGS_MAX, settings.names
        )

    def _scan(self, data: Buffer, at: int, end: int, now: int, requests: list[Request]) -> int:
        """Read the run of valid WRITEs at `at`; the position after it."""
        assert self._form is not None
        transaction = self._transaction
        room = _command_size_max(self._settings)
        if transaction is not None:
            room = 0 if transaction.broken else self._settings.transaction_size_max - len(transaction.writes)
        start = at
        at, publishes = scan_writes(data, at, min(end, at + room), self._form, now)
        if transaction is None:
            requests += publishes
        elif publishes:
            transaction.writes += data[start:at]
            replies = b"".join(encode_confirmations(publish.tags) for publish in publishes)
            requests.append(self._replies.in_turn(Response.WRITE, 0, replies))
        return at

    def _refuse_write(self, data: Buffer, at: int, end: int, requests: list[Request]) -> int:
        """Say what is wrong with a WRITE the kernel left alone."""
        cursor = Cursor(data, at + 1, end)
        write = self._decode(cursor)
        error = self._fault(write)
        if self._transaction is not None:
            self._transaction.broken = self._transaction.broken or error
        requests.append(self._replies.refusal(Response.WRITE, write.correlation_id, error))
        return cursor.at

    def _decode(self, cursor: Cursor) -> Write:
        assert self._form is not None
        try:
            return decode_write(
                cursor,
                with_headers=self._form.with_headers,
                headers_max=self._settings.headers_size_max,
                message_max=self._settings.message_size_max,
            )
        except TooLong as error:
            if not self._in_doubt:
                raise
            raise TooLong(f"{error}. {IN_DOUBT}") from None

    def _fault(self, write: Write) -> BrokerError:
        try:
            topic_of(write.topic, self._settings.names)
            _check_headers(write.strings)
        except BrokerError as error:
            return error
        transaction = self._transaction
        assert transaction is not None, "the kernel takes every valid WRITE"
        if transaction.broken:
            return transaction.broken
        return BrokerError(Code.LIMIT, f"transaction larger than {self._settings.transaction_size_max} bytes")

    def _begin(self, correlation_id: int, _now: int) -> Request:
        if self._transaction is not None:
            return self._invalid_state(Response.BEGIN, correlation_id)
        self._transaction = Transaction()
        return self._done(Response.BEGIN, correlation_id)

    def _rollback(self, correlation_id: int, _now: int) -> Request:
        if self._transaction is None:
            return self._invalid_state(Response.ROLLBACK, correlation_id)
        self._transaction = None
        return self._done(Response.ROLLBACK, correlation_id)

    def _commit(self, correlation_id: int, now: int) -> Request:
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return self._invalid_state(Response.COMMIT, correlation_id)
        if transaction.broken:
            error = BrokerError(transaction.broken.code, f"rolled back: {text_of(transaction.broken)}")
            return self._replies.refusal(Response.COMMIT, correlation_id, error)
        if not transaction.writes:
            return self._done(Response.COMMIT, correlation_id)
        assert self._form is not None
        _, publishes = scan_writes(transaction.writes, 0, len(transaction.writes), self._form, now)
        return _as_one(publishes, struct.pack(">BI", Response.COMMIT, correlation_id))

    def _done(self, response: Response, correlation_id: int) -> Request:
        return self._replies.in_turn(response, correlation_id, encode_reply(response, correlation_id))

    def _invalid_state(self, response: Response, correlation_id: int) -> Request:
        return self._replies.refusal(response, correlation_id, BrokerError(Code.INVALID, INVALID_TX_STATE))


STEPS: dict[Command, Callable[[Writer, int, int], Request]] = {
    Command.BEGIN: Writer._begin,
    Command.COMMIT: Writer._commit,
    Command.ROLLBACK: Writer._rollback,
}
"""What a writer makes of each command but WRITE."""


def topic_of(raw: bytes, routes: dict[bytes, str]) -> str:
    """The topic these bytes name. Raises BrokerError when nobody may use it."""
    route = routes.get(raw)
    if route is not None:
        return route
    try:
        return check_topic(raw.decode())
    except UnicodeDecodeError:
        raise BrokerError(Code.INVALID, "topic is not UTF-8") from None


def _check_headers(strings: list[bytes]) -> None:
    if len(strings) % 2:
        raise BrokerError(Code.INVALID, f"{len(strings)} header strings are not pairs of key and value")
    for key in strings[::2]:
        if len(key) > HEADER_KEY_SIZE_MAX:
            raise BrokerError(Code.INVALID, f"header key longer than {HEADER_KEY_SIZE_MAX} bytes")
        try:
            key.decode()
        except UnicodeDecodeError:
            raise BrokerError(Code.INVALID, "header key is not UTF-8") from None


def _command_size_max(settings: FujinSettings) -> int:
    """Bounds a batch; every WRITE that may be is smaller."""
    return settings.message_size_max + settings.headers_size_max + 8192


def _as_one(publishes: list[Publish], tags: bytes) -> Publish:
    """Several batches as one record, all or nothing."""
    parts = (publish.record[RECORD_HEADER_SIZE:] for publish in publishes)
    record = bytearray().join(chain((bytes(RECORD_HEADER_SIZE),), parts)) if len(publishes) > 1 else publishes[0].record
    topics = tuple(dict.fromkeys(publish.topic for publish in publishes))
    return Publish(topics[0], 1, sum(publish.count for publish in publishes), record, tags, True, topics)
