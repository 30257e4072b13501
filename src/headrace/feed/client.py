"""The feed's client: topics, offsets, rows, and rows on their way back, over Arrow Flight.

Knows pyarrow, the standard library, tickets and schemas, so that it can be shipped to executors. A client holds plain
settings, can be pickled, and connects when it is first used. Calls block; one client may be used by several threads.
"""

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import flight

from headrace.feed.schema import select
from headrace.feed.ticket import Ticket
from headrace.feed.whereabouts import Whereabouts

DEFAULT_ENDPOINT = "grpc://127.0.0.1:8815"
RETRY_S = 30.0
WAIT_S_MAX = 30.0
SEND_BYTES = 8 << 20
SEND_ROWS = 1 << 19

_PAUSE_S = 0.05
_PAUSE_S_MAX = 1.0
_ACTION_S = 60.0
_COMMIT_S = 3600.0
"""A commit takes as long as the disk needs for what was staged."""
_OPTIONS: list[tuple[str, int | str]] = [("grpc.use_local_subchannel_pool", 1)]
"""A new connection does not inherit the pauses of one that failed."""

_AWAY = ("unavailable", "draining")
"""Not there yet, or about to be restarted."""

T = TypeVar("T")


class FeedError(Exception):
    """A refused or failed call; `code` is the feed's own (invalid, unauthenticated, forbidden, unavailable, …)."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.detail)


class DataLoss(FeedError):
    """`count` offsets from `first` on were asked for and are gone, by retention or by damage."""

    def __init__(self, detail: str, first: int, count: int) -> None:
        super().__init__("data_loss", detail)
        self.first = first
        self.count = count

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.detail, self.first, self.count)


class Span(NamedTuple):
    """The offsets there are: from `earliest` up to, not including, `latest`."""

    earliest: int
    latest: int


class TopicSpan(NamedTuple):
    """One topic: the offset of its oldest message, the offset after its newest, how many there are in between."""

    topic: str
    earliest: int
    latest: int
    messages: int


class Part(NamedTuple):
    """One of the ranges a bigger one was split into, and about how many rows and bytes it holds."""

    start: int
    end: int
    rows: int
    bytes: int


class FeedClient:
    """A connection to the feed of one broker."""

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        key: str | None = None,
        ca: bytes | None = None,
        cert: bytes | None = None,
        cert_key: bytes | None = None,
        server_name: str | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        """`ca`, `cert` and `cert_key` are PEM; `server_name` is what the server's certificate is expected to say.

        Calls that find the feed away are tried again for `retry_s` seconds.
        """
        self.endpoint = endpoint
        self._settings: dict[str, Any] = {
            "key": key, "ca": ca, "cert": cert, "cert_key": cert_key, "server_name": server_name, "retry_s": retry_s,
        }  # fmt: skip
        self._retry_s = retry_s
        self._headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        self._flight: flight.FlightClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint, **self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FeedClient.__init__(self, **state)

    def __enter__(self) -> "FeedClient":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back; the next call makes a new one."""
        connection, self._flight = self._flight, None
        if connection is not None:
            connection.close()

    def topics(self) -> list[TopicSpan]:
        """The topics this key may read, by name."""
        return [TopicSpan(**each) for each in self._act("topics", {})]

    def span(self) -> Span:
        """The oldest and the newest offset of the log."""
        return Span(**self._act("span", {}))

    def wait(self, beyond: int, timeout_s: float) -> int:
        """The newest offset, as soon as it is greater than `beyond`, or after the time-out whatever it is."""
        ends = time.monotonic() + timeout_s
        while True:
            left = max(0.0, ends - time.monotonic())
            latest = int(self._act("wait", {"beyond": beyond, "timeout_s": min(left, WAIT_S_MAX)})["latest"])
            if latest > beyond or left <= WAIT_S_MAX:
                return latest

    def offset_at(self, timestamp_us: int) -> int:
        """The first offset whose time is at or after this one; the newest offset when there is none."""
        return int(self._act("offset_at", {"timestamp_us": timestamp_us})["offset"])

    def split(self, ticket: Ticket, parts: int) -> list[Part]:
        """The ticket's range as at most `parts` neighbouring ranges that hold about equally many bytes."""
        body = json.loads(ticket.encode())
        for name in ("columns", "skip", "lossy"):
            del body[name]
        return [Part(**each) for each in self._act("split", {**body, "parts": parts})]

    def whereabouts(self) -> Whereabouts | None:
        """Where the log is, for those who may read all of it and happen to be on that machine; None for others."""
        said = self._act("whereabouts", {})
        return Whereabouts(**said) if said else None

    def schema(self, ticket: Ticket) -> pa.Schema:
        """The schema of the ticket's rows."""
        return select(ticket.stream, ticket.columns)

    def read(self, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        """The ticket's rows in the order of their offsets.

        A connection that breaks is made anew, and reading goes on behind the last row that was given out.
        Raises DataLoss when offsets are gone and the ticket is not lossy.
        """
        patience = _Patience(self._retry_s)
        while True:
            try:
                with _cancelled(self._connection().do_get(flight.Ticket(ticket.encode()), self._call())) as chunks:
                    for chunk in chunks:
                        position = chunk.app_metadata
                        ticket = ticket.behind(None if position is None else position.to_pybytes())
                        patience.renew()
                        if chunk.data is not None and chunk.data.num_rows:
                            yield chunk.data
                return
            except flight.FlightError as error:
                self._bear(error, patience)
            except pa.ArrowException as error:
                raise FeedError("internal", _first_line(error)) from error

    def report(self, reader: str, topics: Sequence[str] | None, offset: int) -> None:
        """Tell the broker that this reader of these topics (None: of all) needs nothing before `offset` any more."""
        self._act("report", {"reader": reader, "topics": None if topics is None else list(topics), "offset": offset})

    def stage(
        self, writer: str, batch: int, part: str, topic: str | None, batches: Iterable[pa.RecordBatch]
    ) -> dict[str, Any]:
        """Store rows as one part of a transaction, durable but visible to nobody; returns the receipt for `commit`.

        `topic` is where rows without one go. Tried again only when `batches` is a list. There must be a batch, so that
        its schema is known; it may be empty.
        """
        command = json.dumps({"writer": writer, "batch": batch, "part": part, "topic": topic}).encode()
        descriptor = flight.FlightDescriptor.for_command(command)

        def _put() -> dict[str, Any]:
            rows = iter(batches)
            first = next(rows)
            sink, answers = self._connection().do_put(descriptor, first.schema, self._call())
            with sink:
                for each in chain((first,), rows):
                    for piece in sendable(each):
                        sink.write_batch(piece)
                sink.done_writing()
                answer: pa.Buffer | None = answers.read()  # type: ignore[attr-defined]  # wrong in the stubs
            if answer is None:
                raise FeedError("internal", "the feed gave no receipt")
            receipt: dict[str, Any] = json.loads(answer.to_pybytes())
            return receipt

        return self._tried(_put, self._retry_s if isinstance(batches, list) else 0.0)

    def commit(self, writer: str, batch: int, staged: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make everything staged visible at once; returns when it is durable.

        A batch that the writer committed before is not written again; the answer then says `replayed`.
        """
        body = {"writer": writer, "batch": batch, "staged": list(staged)}
        outcome: dict[str, Any] = self._act("commit", body, _COMMIT_S)
        return outcome

    def abort(self, staged: Sequence[dict[str, Any]]) -> None:
        """Throw away what was staged and never committed."""
        self._act("abort", {"staged": list(staged)})

    def committed(self, writer: str) -> int | None:
        """The newest batch this writer committed; None when there is none."""
        batch: int | None = self._act("committed", {"writer": writer})["batch"]
        return batch

    def _act(self, name: str, body: dict[str, Any], answer_s: float = _ACTION_S) -> Any:
        action = flight.Action(name, json.dumps(body).encode())

        def _once() -> Any:
            results = list(self._connection().do_action(action, self._call(answer_s + body.get("timeout_s", 0))))
            return json.loads(b"".join(result.body.to_pybytes() for result in results))

        return self._tried(_once, self._retry_s)

    def _tried(self, call: Callable[[], T], retry_s: float) -> T:
        patience = _Patience(retry_s)
        while True:
            try:
                return call()
            except flight.FlightError as error:
                self._bear(error, patience)
            except pa.ArrowException as error:
                raise FeedError("internal", _first_line(error)) from error

    def _bear(self, error: flight.FlightError, patience: "_Patience") -> None:
        """Wait a little when the feed is away. Raises everything else, and that as well once patience has ended."""
        known = _known(error)
        if known.code not in _AWAY or not patience.pause():
            raise known from error
        self.close()

    def _call(self, timeout_s: float | None = None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(headers=self._headers, timeout=timeout_s)  # type: ignore[arg-type]  # bytes

    def _connection(self) -> flight.FlightClient:
        if self._flight is None:
            settings = self._settings
            extra = {
                "tls_root_certs": settings["ca"],
                "cert_chain": settings["cert"],
                "private_key": settings["cert_key"],
                "override_hostname": settings["server_name"],
            }
            given = {name: value for name, value in extra.items() if value is not None}
            self._flight = flight.FlightClient(self.endpoint, generic_options=_OPTIONS, **given)
        return self._flight


@contextmanager
def _cancelled(chunks: flight.FlightStreamReader) -> Iterator[flight.FlightStreamReader]:
    """The reader leaves before the end: the feed need not send the rest."""
    try:
        yield chunks
    finally:
        chunks.cancel()


def sendable(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in batches that the feed takes as one message, which is bounded there."""
    if rows.num_rows > 1 and (rows.nbytes > SEND_BYTES or rows.num_rows > SEND_ROWS):
        half = rows.num_rows // 2
        yield from sendable(rows.slice(0, half))
        yield from sendable(rows.slice(half))
    else:
        yield rows


class _Patience:
    """Pauses that grow, until they have added up."""

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self.renew()

    def renew(self) -> None:
        """Begin anew: something worked."""
        self._ends: float | None = None
        self._next_s = _PAUSE_S

    def pause(self) -> bool:
        """Sleep a little; False when there is no patience left."""
        now = time.monotonic()
        if self._ends is None:
            self._ends = now + self._total_s
        if now >= self._ends:
            return False
        time.sleep(min(self._next_s * random.uniform(0.5, 1.0), self._ends - now))
        self._next_s = min(2 * self._next_s, _PAUSE_S_MAX)
        return True


def _known(error: flight.FlightError) -> FeedError:
    """The feed's own words for an error, where it gave them."""
    try:
        said = json.loads(error.extra_info or b"{}")
    except ValueError:
        said = {}
    if said.get("code") == "data_loss":
        return DataLoss(said["detail"], said["first"], said["count"])
    if "code" in said:
        return FeedError(said["code"], said["detail"])
    for kind, code in _CODES:
        if isinstance(error, kind):
            return FeedError(code, _first_line(error))
    return FeedError("internal", _first_line(error))


_CODES = (
    (flight.FlightUnavailableError, "unavailable"),
    (flight.FlightUnauthenticatedError, "unauthenticated"),
    (flight.FlightUnauthorizedError, "forbidden"),
    (flight.FlightTimedOutError, "timeout"),
    (flight.FlightCancelledError, "cancelled"),
)


def _first_line(error: Exception) -> str:
    return str(error).partition(". Detail:")[0].partition("\n")[0]
