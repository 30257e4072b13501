"""The client's side of one BlipMQ connection: frames out, and every reply back to whoever waits for it.

A delivery does not name its subscription, so replies are told apart by their order: each window of POLLs is closed by a
PING, and what arrives before its PONG belongs to it. Correlation ids begin at 2^63, where no delivery tag will come.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence

from headrace.kernels.blipmq import encode_deliveries, scan_publishes
from headrace.model.batch import Batch, build_batch
from headrace.model.errors import HeadraceError, PeerProtocolError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.protocols.blipmq.frames import (
    Frame,
    FrameType,
    decode_frame,
    decode_nack,
    decode_publish,
    decode_subscription_id,
    encode_ack,
    encode_auth,
    encode_hello,
    encode_ping,
    encode_poll,
    encode_subscribe,
)
from headrace.protocols.dialling import ConnectionLost, Wire

FIRST_CORRELATION_ID = 1 << 63

OnDelivery = Callable[[int, str, bytes, int], None]


class Refused(HeadraceError):
    """The broker said no. `indexes` are the refused messages of a publish, by their place in the call."""

    def __init__(self, code: int, message: str, indexes: Sequence[int] = ()) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message
        self.indexes = tuple(indexes)


class _Publication:
    """Messages sent together, settled by the fence that follows them."""

    def __init__(self, first: int, count: int, size: int, settled: asyncio.Future[None]) -> None:
        self.ids = range(first, first + count)
        self.size = size
        self.settled = settled
        self.refusals: list[tuple[int, int, str]] = []

    def settle(self) -> None:
        """The fence has passed: every refusal there will be has come."""
        if self.settled.done():
            return
        if not self.refusals:
            self.settled.set_result(None)
            return
        _, code, message = self.refusals[0]
        self.settled.set_exception(Refused(code, message, [i - self.ids.start for i, _, _ in self.refusals]))


class _Window:
    """POLLs of one subscription and the PING behind them; `closed` becomes the number of deliveries."""

    def __init__(self, polls: range, fence: int, on_delivery: OnDelivery, closed: asyncio.Future[int]) -> None:
        self.polls = polls
        self.fence = fence
        self.on_delivery = on_delivery
        self.closed = closed
        self.arrived = 0


class Link(Wire):
    """One connection, from its handshake to its loss; it is never mended."""

    def __init__(self, reply_timeout_s: float) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._reply_timeout_s = reply_timeout_s
        self._rest = bytearray()
        self._next_id = FIRST_CORRELATION_ID
        self._out: list[bytes] = []
        self._replies: dict[int, asyncio.Future[int]] = {}
        self._windows: deque[_Window] = deque()
        self._unfenced: list[_Publication] = []
        self._fenced: list[_Publication] = []
        self._fence = 0
        self._watch: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.unfenced_bytes = 0
        self.ack_refusals: list[Refused] = []

    async def introduce(self, key: str) -> None:
        """HELLO and AUTH in one write. Raises Refused or ConnectionLost."""
        hello = self._expect_reply()
        self._send(encode_hello(hello))
        auth = self._expect_reply()
        self._send(encode_auth(auth, key))
        await asyncio.gather(self._replies[hello], self._replies[auth])

    def subscribe(self, topic: str, qos: int) -> asyncio.Future[int]:
        """The id of a new subscription."""
        tag = self._expect_reply()
        self._send(encode_subscribe(tag, topic, qos))
        return self._replies[tag]

    def publish(self, topic: str, messages: Sequence[bytes], qos: int) -> asyncio.Future[None]:
        """Done when these messages are as durable as the broker promises."""
        first = self._take_ids(len(messages))
        batch = build_batch(topic, messages, timestamp_us=0, qos=qos)
        frames = encode_deliveries(batch, 0, 0, len(messages), qos, first, b"")
        return self._fence_behind(frames, first, len(messages))

    def fence(self) -> asyncio.Future[None]:
        """Done when everything sent before is as durable as the broker promises."""
        return self._fence_behind(b"", 0, 0)

    def poll(self, subscription: int, count: int, on_delivery: OnDelivery) -> asyncio.Future[int]:
        """Ask for up to `count` messages; done, with how many came, when no more will."""
        first = self._take_ids(count + 1)
        polls = range(first, first + count)
        window = _Window(polls, first + count, on_delivery, self._future())
        self._windows.append(window)
        self._send(b"".join(encode_poll(tag, subscription) for tag in polls) + encode_ping(window.fence))
        self._restart_watch()
        return window.closed

    def ack(self, subscription: int, tags: Sequence[int]) -> None:
        """Acknowledge deliveries. A refusal shows in `ack_refusals` by the next fence."""
        self._send(b"".join(encode_ack(tag, subscription) for tag in tags))

    async def drained(self, unfenced_max: int) -> None:
        """Wait until the socket takes more and at most `unfenced_max` bytes wait for a fence. Raises ConnectionLost."""
        while self.lost is None and (self.unfenced_bytes > unfenced_max or not self._writable.is_set()):
            self._changed.clear()
            await self._changed.wait()
        if self.lost is not None:
            raise self.lost

    async def close(self) -> None:
        """Send what is left, then close."""
        self._flush()
        await super().close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Transport's call: everybody who waits learns of it."""
        self.lost = ConnectionLost(str(exc) if exc else "the broker closed the connection")
        if self._watch is not None:
            self._watch.cancel()
        waiting: list[asyncio.Future[int] | asyncio.Future[None]] = [*self._replies.values()]
        waiting += [window.closed for window in self._windows]
        waiting += [publication.settled for publication in (*self._fenced, *self._unfenced)]
        for future in waiting:
            if not future.done():
                future.set_exception(self.lost)
                future.exception()
        self._changed.set()

    def pause_writing(self) -> None:
        """Transport's call: the broker is behind with reading."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Transport's call: the broker caught up."""
        self._writable.set()
        self._changed.set()

    def data_received(self, data: bytes) -> None:
        """Transport's call: hand out the replies."""
        self._rest += data
        at, end = 0, len(self._rest)
        try:
            while True:
                at = self._take_deliveries(at, end)
                frame = decode_frame(self._rest, at, end)
                if frame is None:
                    break
                at = frame.end
                self._dispatch(frame)
        except HeadraceError as error:
            self._abort(str(error))
        del self._rest[:at]

    def _take_deliveries(self, at: int, end: int) -> int:
        """Hand out the run of deliveries at `at`; the position after it."""
        at, runs = scan_publishes(self._rest, at, end, 0)
        for run in runs:
            batch = Batch(run.record, RECORD_HEADER_SIZE, 0, run.topic)
            ends = struct.unpack_from(f"<{run.count + 1}I", run.record, batch.ends_start)
            values = bytes(run.record[batch.values_start :])
            tags = struct.unpack(f">{run.count}Q", run.tags)
            for tag, first, last in zip(tags, ends, ends[1:], strict=False):
                self._deliver(tag, run.topic, values[first:last], run.qos)
        return at

    def _deliver(self, tag: int, topic: str, message: bytes, qos: int) -> None:
        if not self._windows:
            raise PeerProtocolError("a delivery nobody asked for")
        window = self._windows[0]
        window.arrived += 1
        window.on_delivery(tag, topic, message, qos)

    def _dispatch(self, frame: Frame) -> None:
        if frame.type is FrameType.PUBLISH:
            qos, topic, message = decode_publish(frame.payload)
            self._deliver(frame.correlation_id, topic, message, qos)
        elif frame.type is FrameType.PONG:
            self._pass_fence(frame.correlation_id)
        elif frame.type is FrameType.ACK:
            reply = self._replies.pop(frame.correlation_id, None)
            if reply is not None and not reply.done():
                reply.set_result(decode_subscription_id(FrameType.ACK, frame.payload))
        elif frame.type is FrameType.NACK:
            code, text = decode_nack(frame.payload)
            self._be_refused(frame.correlation_id, code, text)
        else:
            raise PeerProtocolError(f"{frame.type.name} from a broker")

    def _pass_fence(self, fence: int) -> None:
        self._restart_watch()
        if self._windows and self._windows[0].fence == fence:
            window = self._windows.popleft()
            if not window.closed.done():
                window.closed.set_result(window.arrived)
        elif fence == self._fence:
            self._fence = 0
            settled, self._fenced = self._fenced, []
            for publication in settled:
                publication.settle()
                self.unfenced_bytes -= publication.size
            self._changed.set()
            if self._unfenced:
                self._send(b"")

    def _be_refused(self, tag: int, code: int, message: str) -> None:
        refused = Refused(code, message)
        if tag < FIRST_CORRELATION_ID:
            self.ack_refusals.append(refused)
        elif tag in self._replies:
            reply = self._replies.pop(tag)
            if not reply.done():
                reply.set_exception(refused)
        else:
            for publication in (*self._fenced, *self._unfenced):
                if tag in publication.ids:
                    publication.refusals.append((tag, code, message))
                    return
            for window in self._windows:
                if tag in window.polls and not window.closed.done():
                    window.closed.set_exception(refused)

    def _fence_behind(self, frames: bytes, first: int, count: int) -> asyncio.Future[None]:
        settled: asyncio.Future[None] = self._loop.create_future()
        if self.lost is not None:
            settled.set_exception(self.lost)
            return settled
        self._unfenced.append(_Publication(first, count, len(frames), settled))
        self.unfenced_bytes += len(frames)
        self._send(frames)
        return settled

    def _future(self) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        if self.lost is not None:
            future.set_exception(self.lost)
        return future

    def _take_ids(self, count: int) -> int:
        first = self._next_id
        self._next_id += count
        return first

    def _expect_reply(self) -> int:
        tag = self._take_ids(1)
        self._replies[tag] = self._future()
        return tag

    def _send(self, data: bytes) -> None:
        """Queue for one write at the end of this turn of the loop, and one fence for all that is not fenced yet."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        if self._unfenced and not self._fence:
            self._fence = self._take_ids(1)
            self._fenced, self._unfenced = self._unfenced, []
            self._out.append(encode_ping(self._fence))
            self._restart_watch()
        data = b"".join(self._out)
        self._out.clear()
        if data and self.lost is None and self._transport is not None:
            self._transport.write(data)

    def _restart_watch(self) -> None:
        """A broker that leaves a PING unanswered for too long is gone, whatever the socket says."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._fence or self._windows:
            self._watch = self._loop.call_later(self._reply_timeout_s, self._abort, "no reply in time")

    def _abort(self, cause: str) -> None:
        if self._transport is not None and self.lost is None:
            self._transport.abort()
            self.connection_lost(ConnectionError(cause))
