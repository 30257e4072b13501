"""A stream that reads one topic: pushed or fetched, settled by the delivery itself or by ACK and NACK."""

from collections.abc import Iterator

from headrace.kernels.fujin_reading import SETTLED_BIT, encode_messages, encode_results, scan_settles, settle_size
from headrace.model.batch import Buffer
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code
from headrace.model.requests import Fetch, Follow, Request, Settle
from headrace.protocols.fujin.errors import NO_MESSAGES, NOT_HELD, text_of
from headrace.protocols.fujin.frames import (
    ID_SIZE_MAX,
    IDS_MAX,
    Command,
    Cursor,
    Incomplete,
    ReaderType,
    Response,
    TooLong,
    decode_fetch,
    encode_error,
    encode_fetched,
    encode_reply,
)
from headrace.protocols.fujin.replies import Replies, correlation_id
from headrace.protocols.fujin.settings import Dialect, FujinSettings

FETCHES_MAX = 1024
NACK_REASON = "NACK"
REFERENCE_PAUSE_US = 50_000
"""The client that exists loses a MSG that follows too closely upon the reply to its CONNECT READER."""


class Reader:
    """What a stream does after CONNECT READER."""

    def __init__(
        self, settings: FujinSettings, replies: Replies, subscription: int, kind: ReaderType, *, auto_commit: bool
    ) -> None:
        self._settings = settings
        self._replies = replies
        self._subscription = subscription
        self._kind = kind
        self._auto_commit = auto_commit
        self._reference = settings.dialect is Dialect.REFERENCE
        self._refusal = encode_error(NOT_HELD) if self._reference else b""
        self._fetching: set[int] = set()
        self._settling: dict[int, bytes] = {}

    def opening(self) -> list[Request]:
        """What to ask for as soon as the reader is connected."""
        if self._kind is ReaderType.PULL:
            return []
        pause_us = REFERENCE_PAUSE_US if self._reference else 0
        tag = self._replies.tag(Response.MSG)
        return [Follow(tag, self._subscription, self._settings.push_window, self._auto_commit, pause_us)]

    def step(self, data: Buffer, at: int, end: int, _now: int, requests: list[Request]) -> int:
        """Read the command at `at`, or a run of them; the position after it.

        Raises Incomplete, and TooLong when it can never be read.
        """
        if data[at] == Command.FETCH:
            cursor = Cursor(data, at + 1, end)
            tag, count = decode_fetch(cursor)
            requests.append(self._fetch(tag, count))
            return cursor.at
        scanned, deliveries = scan_settles(data, at, end, IDS_MAX, ID_SIZE_MAX)
        if scanned == at:
            raise _unreadable(data, at, end)
        self._settle(bytes(data[at:scanned]), deliveries, requests)
        return scanned

    def measure(self, view: memoryview) -> None:
        """Raises Incomplete for the unfinished command `view` begins with."""
        if view[0] == Command.FETCH:
            decode_fetch(Cursor(view, 1, len(view)))
        else:
            raise _unreadable(view, 0, len(view))

    def fetched(self, tag: int, portions: list[Portion]) -> None:
        """What a FETCH brought."""
        self._fetching.discard(tag)
        if not portions and self._reference:
            self._replies.say(encode_reply(Response.FETCH, correlation_id(tag), NO_MESSAGES))
            return
        head = encode_fetched(correlation_id(tag), sum(portion.count for portion in portions))
        self._replies.mention(b"".join((head, *self._messages(portions, 0))))

    def pushed(self, portions: list[Portion]) -> None:
        """What has come for a push reader."""
        for data in self._messages(portions, Response.MSG):
            self._replies.mention(data)

    def settled(self, tag: int, accepted: list[bool]) -> None:
        """What became of the deliveries of the ACKs or NACKs with this tag."""
        self._replies.say(encode_results(self._settling.pop(tag), accepted, self._refusal))

    def refused(self, tag: int, error: BrokerError) -> None:
        """A FETCH, or a run of ACKs or NACKs, was refused."""
        self._fetching.discard(tag)
        run = self._settling.pop(tag, None)
        if run is None:
            self._replies.refused(tag, error)
        else:
            self._replies.say(b"".join(encode_reply(Response(run[0]), key, text_of(error)) for key in _ids_of(run)))

    def _messages(self, portions: list[Portion], code: int) -> Iterator[bytes]:
        for portion in portions:
            batch = portion.batch
            held = portion.qos and batch.qos
            first = portion.first_delivery if held else portion.first_delivery | SETTLED_BIT
            yield encode_messages(
                batch.buffer,
                batch.start,
                portion.index,
                portion.count,
                code,
                first,
                not self._auto_commit,
                self._reference,
            )

    def _fetch(self, correlation: int, count: int) -> Request:
        error = ""
        if self._kind is ReaderType.PUSH:
            error = "a push reader does not fetch"
        elif count == 0:
            error = "FETCH of no messages"
        elif len(self._fetching) >= FETCHES_MAX:
            error = f"{FETCHES_MAX} fetches wait already"
        if error:
            return self._replies.refusal(Response.FETCH, correlation, BrokerError(Code.INVALID, error))
        tag = self._replies.tag(Response.FETCH, correlation)
        self._fetching.add(tag)
        return Fetch(tag, self._subscription, count, self._settings.fetch_wait_ms * 1000, self._auto_commit)

    def _settle(self, run: bytes, deliveries: list[int], requests: list[Request]) -> None:
        response = Response(run[0])
        if not deliveries:
            requests.append(self._replies.in_turn(response, 0, encode_results(run, [], self._refusal)))
            return
        tag = self._replies.tag(response)
        self._settling[tag] = run
        failed = response is Response.NACK
        requests.append(Settle(tag, self._subscription, deliveries, failed, NACK_REASON if failed else ""))


def _unreadable(data: Buffer, at: int, end: int) -> Incomplete | TooLong:
    """Why the ACK or NACK at `at` was left alone."""
    cursor = Cursor(data, at + 5, end)
    count = cursor.u32()
    if count > IDS_MAX:
        return TooLong(f"{count} message ids; at most {IDS_MAX} are allowed")
    size = settle_size(data, at, end, count, ID_SIZE_MAX)
    return Incomplete(at - size) if size else TooLong(f"message id longer than {ID_SIZE_MAX} bytes")


def _ids_of(run: bytes) -> list[int]:
    """The correlation ids of a run of ACKs or NACKs."""
    found = []
    at = 0
    while at < len(run):
        cursor = Cursor(run, at + 1, len(run))
        found.append(cursor.u32())
        at += settle_size(run, at, len(run), cursor.u32(), ID_SIZE_MAX)
    return found
