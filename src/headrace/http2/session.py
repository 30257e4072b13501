"""The order of HTTP/2 frames on one connection, the server's side: bytes in, events out; answers in, frames out.

It never waits and knows no clock: `now` is an argument. What it holds is bounded: nothing of a body stays here, and
what waits to be sent is bounded by whoever sends. What a peer may send is decided by the windows it is given.
"""

from collections.abc import Sequence

from headrace.http2 import frames
from headrace.http2.frames import Http2Error, StreamError
from headrace.http2.headers import BLOCK_MAX, HeaderReader
from headrace.http2.ledger import Allowance
from headrace.http2.streams import Event, Opened, Received, Reset, Stream, take
from headrace.model.batch import Buffer

DATA_FRAME_MAX = 256 * 1024
"""The largest frame we send, whatever the peer takes: others have their turn in between."""
CLOSED_KEPT = 256
ENDED, RESET, ANSWERED = range(3)
"""How a stream was closed: by the peer's own end, so nothing more may come; by us; by an answer it may not know of."""
CONTINUATIONS_MAX = 32
NOISE_BURST, NOISE_RATE = 1000, 200.0
"""Frames that bring nothing: pings, priorities, empty DATA, credit nobody needs."""
SETTINGS_BURST, SETTINGS_RATE = 50, 10.0
"""Settings are worked through for every stream there is."""
RESETS_BURST, RESETS_RATE = 2000, 1000.0
"""Calls begun and given up, or refused because there were too many."""
NOISE_EARNED = 4
EVENTS_MAX = 256
"""What is made of a read at once; the rest waits a turn, so that others have theirs."""
LOW_WATER = 65_536
"""So little unsent of a stream, and its writer may go on."""


class Session:
    """One connection. After Http2Error from `receive` only `data_to_send` makes sense: it holds the GOAWAY."""

    def __init__(self, *, streams_max: int, window: int, header_list_max: int) -> None:
        self.streams: dict[int, Stream] = {}
        self.streams_max = streams_max
        self.events: list[Event] = []
        self.acked = False
        self.queued = 0
        self.drained: list[Stream] = []
        self._window = window
        self._out: list[Buffer] = [
            frames.settings({
                frames.MAX_CONCURRENT_STREAMS: streams_max,
                frames.INITIAL_WINDOW_SIZE: window,
                frames.MAX_HEADER_LIST_SIZE: header_list_max,
            })
        ]  # fmt: skip
        self._greeting = frames.PREFACE
        self._settled = False
        self._headers = HeaderReader()
        self._block: bytearray | None = None
        self._block_stream = 0
        self._block_flags = 0
        self._block_own = False
        self._continuations = 0
        self._last = 0
        self._closed: dict[int, int] = {}
        self._leaving: int | None = None
        self._last_taken = 0
        self._left = self._target = frames.WINDOW_DEFAULT
        self._unread = 0
        self._send_window = frames.WINDOW_DEFAULT
        self._peer_window = frames.WINDOW_DEFAULT
        self._frame_max = frames.FRAME_SIZE_MAX
        self._table_note = b""
        self._sendable: dict[Stream, None] = {}
        self._noise = Allowance(NOISE_BURST, NOISE_RATE)
        self._resets = Allowance(RESETS_BURST, RESETS_RATE)
        self._changes = Allowance(SETTINGS_BURST, SETTINGS_RATE)
        self._now = 0.0
        self._others = {
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }

    # what comes in

    def receive(self, data: memoryview, now: float) -> int:
        """Take in what has arrived; how much of it was used. What it means is appended to `events`.

        Raises Http2Error; the GOAWAY is among the data to send then.
        """
        self._now = now
        try:
            return self._receive(data)
        except Http2Error as error:
            self.go_away(error.code, str(error))
            raise

    def _receive(self, data: memoryview) -> int:
        at, end = self._greet(data), len(data)
        unpack = frames.HEAD.unpack_from
        events = self.events
        while end - at >= frames.HEAD_SIZE and len(events) < EVENTS_MAX:
            high, low, kind, flags, number = unpack(data, at)
            size = high << 8 | low
            if size > frames.FRAME_SIZE_MAX:
                raise Http2Error(frames.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            start = at + frames.HEAD_SIZE
            if end - start < size:
                break
            at = start + size
            payload = data[start:at]
            number &= 0x7FFF_FFFF
            if self._block is not None and (kind != frames.CONTINUATION or number != self._block_stream):
                raise Http2Error(frames.PROTOCOL_ERROR, "another frame within a header block")
            if not self._settled and (kind != frames.SETTINGS or flags & frames.ACK):
                raise Http2Error(frames.PROTOCOL_ERROR, "the first frame must be SETTINGS")
            try:
                if kind == frames.DATA:
                    self._on_data(flags, number, payload)
                elif (handle := self._others.get(kind)) is not None:
                    handle(flags, number, payload)
                else:
                    self._bother("frames of kinds nobody knows")
            except StreamError as error:
                self._break(number, error)
        return at

    def _greet(self, data: memoryview) -> int:
        """Check as much of the preface as is there; how many bytes it took."""
        if not self._greeting:
            return 0
        size = min(len(self._greeting), len(data))
        if data[:size] != self._greeting[:size]:
            raise Http2Error(frames.PROTOCOL_ERROR, "not HTTP/2")
        self._greeting = self._greeting[size:]
        return size

    def _on_data(self, flags: int, number: int, payload: memoryview) -> None:
        size = len(payload)
        self._left -= size
        if self._left < 0:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, "more data than the connection's window")
        self._unread += size
        stream = self.streams.get(number)
        if stream is None or stream.remote_ended:
            self._drop(size)
            if stream is not None or not self._passed_over(number, flags):
                raise StreamError(frames.STREAM_CLOSED, "data after the end")
            return
        stream.left -= size
        stream.unread += size
        # "After the peer acknowledged": until then it may count on the window every connection begins with
        if size and stream.left < (0 if self.acked else self._window - frames.WINDOW_DEFAULT):
            self._drop(size)
            raise StreamError(frames.FLOW_CONTROL_ERROR, "more data than the stream's window")
        data = frames.unpadded(payload) if flags & frames.PADDED else payload
        ended = bool(flags & frames.END_STREAM)
        if not len(data) and not ended:
            self._bother("empty data")
        if stream.expected is not None:
            stream.expected -= len(data)
            if stream.expected < 0 or (ended and stream.expected):
                self._drop(size)
                raise StreamError(frames.PROTOCOL_ERROR, "a body that is not as long as content-length says")
        if ended:
            stream.remote_ended = True
        self.events.append(Received(stream, data, size, ended))

    def _on_headers(self, flags: int, number: int, payload: memoryview) -> None:
        if not number & 1:
            raise Http2Error(frames.PROTOCOL_ERROR, "HEADERS on a stream no client opens")
        stream = self.streams.get(number)
        if stream is None and number <= self._last and self._closed.get(number, ENDED) == ENDED:
            raise Http2Error(frames.STREAM_CLOSED, "HEADERS on a stream that has ended")
        if stream is not None and stream.remote_ended:
            raise Http2Error(frames.STREAM_CLOSED, "HEADERS after the end of the request")
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        self._block_own = False
        if flags & frames.WITH_PRIORITY:
            if len(payload) < 5:
                raise Http2Error(frames.FRAME_SIZE_ERROR, "HEADERS without the priority they announce")
            self._block_own = frames.U32.unpack_from(payload)[0] & 0x7FFF_FFFF == number
            payload = payload[5:]
        self._block_stream, self._block_flags, self._continuations = number, flags, 0
        if flags & frames.END_HEADERS:
            self._on_block(bytes(payload))
        else:
            self._block = bytearray(payload)

    def _on_continuation(self, flags: int, number: int, payload: memoryview) -> None:
        if self._block is None:
            raise Http2Error(frames.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._continuations += 1
        self._block += payload
        if self._continuations > CONTINUATIONS_MAX or len(self._block) > BLOCK_MAX:
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._on_block(block)

    def _on_block(self, block: bytes) -> None:
        number, ended = self._block_stream, bool(self._block_flags & frames.END_STREAM)
        stream = self.streams.get(number)
        if stream is not None:
            self._on_trailers(stream, block, ended)
            return
        if number <= self._last:
            self._headers.trailers(block)
            return
        self._last = number
        try:
            request = self._headers.request(block)
        except StreamError:
            self._closed[number] = ENDED if ended else RESET
            raise
        if self._leaving is not None:
            self._remember(number, ENDED if ended else RESET)
            return
        if self._block_own:
            self._remember(number, ENDED if ended else RESET)
            raise StreamError(frames.PROTOCOL_ERROR, "a stream that depends on itself")
        if len(self.streams) >= self.streams_max:
            self._remember(number, ENDED if ended else RESET)
            raise StreamError(frames.REFUSED_STREAM, "too many streams")
        if ended and request.content_length:
            self._remember(number, ENDED)
            raise StreamError(frames.PROTOCOL_ERROR, "no body, though content-length announces one")
        stream = self.streams[number] = Stream(number, self._peer_window, self._window)
        stream.expected = request.content_length
        stream.remote_ended = ended
        self.events.append(Opened(stream, request, ended))

    def _on_trailers(self, stream: Stream, block: bytes, ended: bool) -> None:
        self._headers.trailers(block)
        if not ended:
            raise StreamError(frames.PROTOCOL_ERROR, "a second HEADERS that does not end the request")
        if stream.expected:
            raise StreamError(frames.PROTOCOL_ERROR, "a body that is not as long as content-length says")
        stream.remote_ended = True
        self.events.append(Received(stream, memoryview(b""), 0, True))

    def _on_priority(self, flags: int, number: int, payload: memoryview) -> None:
        if not number:
            raise Http2Error(frames.PROTOCOL_ERROR, "PRIORITY of the connection")
        self._bother("priorities")
        if len(payload) != 5:
            raise StreamError(frames.FRAME_SIZE_ERROR, "PRIORITY is five bytes")
        if frames.U32.unpack_from(payload)[0] & 0x7FFF_FFFF == number:
            raise StreamError(frames.PROTOCOL_ERROR, "a stream that depends on itself")

    def _on_rst_stream(self, flags: int, number: int, payload: memoryview) -> None:
        if len(payload) != 4:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "RST_STREAM is four bytes")
        if not number or number > self._last:
            raise Http2Error(frames.PROTOCOL_ERROR, "RST_STREAM of a stream nobody opened")
        self._give_up("calls given up")
        stream = self.streams.get(number)
        if stream is not None:
            self._forget(stream, ENDED)
            self.events.append(Reset(stream, frames.U32.unpack(payload)[0]))

    def _on_settings(self, flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise Http2Error(frames.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if len(payload):
                raise Http2Error(frames.FRAME_SIZE_ERROR, "SETTINGS that acknowledge and say more")
            self._on_settings_ack()
            return
        if len(payload) % 6:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "SETTINGS are six bytes each")
        if self._settled and not self._changes.spend(self._now):
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "too many settings")
        self._settled = True
        for key, value in dict(frames.SETTING.iter_unpack(payload)).items():
            self._on_setting(key, value)
        self._out.append(frames.SETTINGS_ACK)

    def _on_settings_ack(self) -> None:
        if self.acked:
            self._bother("acknowledgements")
            return
        self.acked = True

    def _on_setting(self, key: int, value: int) -> None:
        if key == frames.INITIAL_WINDOW_SIZE:
            if value > frames.WINDOW_MAX:
                raise Http2Error(frames.FLOW_CONTROL_ERROR, "an initial window of more than 2^31-1")
            change, self._peer_window = value - self._peer_window, value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > frames.WINDOW_MAX:
                    raise Http2Error(frames.FLOW_CONTROL_ERROR, "a window of more than 2^31-1")
                self._may_send(stream)
        elif key == frames.MAX_FRAME_SIZE:
            if not frames.FRAME_SIZE_MAX <= value < 1 << 24:
                raise Http2Error(frames.PROTOCOL_ERROR, "a MAX_FRAME_SIZE out of bounds")
            self._frame_max = min(value, DATA_FRAME_MAX)
        elif key == frames.ENABLE_PUSH and value > 1:
            raise Http2Error(frames.PROTOCOL_ERROR, "an ENABLE_PUSH that is neither 0 nor 1")
        elif key == frames.HEADER_TABLE_SIZE and value < frames.TABLE_SIZE_DEFAULT:
            # "its encoder MUST start the next field block with a Dynamic Table Size Update": we use none of it
            self._table_note = b"\x20"

    def _on_push_promise(self, flags: int, number: int, payload: memoryview) -> None:
        raise Http2Error(frames.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_ping(self, flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise Http2Error(frames.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "PING is eight bytes")
        self._bother("pings")
        if not flags & frames.ACK:
            self._out.append(frames.ping_ack(bytes(payload)))

    def _on_goaway(self, flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise Http2Error(frames.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "GOAWAY is eight bytes at least")
        self._bother("goodbyes")

    def _on_window_update(self, flags: int, number: int, payload: memoryview) -> None:
        if len(payload) != 4:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE is four bytes")
        credit = frames.U32.unpack(payload)[0] & 0x7FFF_FFFF
        self._bother("credit that nobody needs")
        if not number:
            self._send_window += credit
            if not credit:
                raise Http2Error(frames.PROTOCOL_ERROR, "credit of nothing")
            if self._send_window > frames.WINDOW_MAX:
                raise Http2Error(frames.FLOW_CONTROL_ERROR, "a window of more than 2^31-1")
            return
        if number > self._last or not number & 1:
            raise Http2Error(frames.PROTOCOL_ERROR, "credit for a stream nobody opened")
        stream = self.streams.get(number)
        if stream is None:
            return
        if not credit:
            raise StreamError(frames.PROTOCOL_ERROR, "credit of nothing")
        stream.send_window += credit
        if stream.send_window > frames.WINDOW_MAX:
            raise StreamError(frames.FLOW_CONTROL_ERROR, "a window of more than 2^31-1")
        self._may_send(stream)

    def _passed_over(self, number: int, flags: int) -> bool:
        """Whether data for a stream that is not open may have been sent before its end was known."""
        if not number or number > self._last or not number & 1:
            raise Http2Error(frames.PROTOCOL_ERROR, "data for a stream nobody opened")
        how = self._closed.get(number, ENDED)
        if how == ANSWERED:
            # "A server can send a complete response before the client sends an entire request": it need not go on
            self._closed[number] = ENDED if flags & frames.END_STREAM else RESET
            if not flags & frames.END_STREAM:
                self._out.append(frames.rst_stream(number, frames.NO_ERROR))
        return how != ENDED

    def _bother(self, what: str) -> None:
        if not self._noise.spend(self._now):
            raise Http2Error(frames.ENHANCE_YOUR_CALM, f"too many {what}")

    def _give_up(self, what: str) -> None:
        if not self._resets.spend(self._now):
            raise Http2Error(frames.ENHANCE_YOUR_CALM, f"too many {what}")

    def _break(self, number: int, error: StreamError) -> None:
        """End a stream for what the peer did on it."""
        self._give_up("broken calls")
        stream = self.streams.get(number)
        if stream is not None:
            self.reset(stream, error.code)
            self.events.append(Reset(stream, error.code))
            return
        self._remember(number, self._closed.get(number, ENDED))
        self._out.append(frames.rst_stream(number, error.code))

    def _remember(self, number: int, how: int) -> None:
        """Know for a while how a stream ended: whether more of it may still be on its way."""
        self._closed[number] = how
        if len(self._closed) > CLOSED_KEPT:
            del self._closed[next(iter(self._closed))]

    def _forget(self, stream: Stream, how: int) -> None:
        if self.streams.pop(stream.id, None) is None:
            return
        self._remember(stream.id, how)
        self._sendable.pop(stream, None)
        self.queued -= stream.queued
        stream.queue.clear()
        stream.queued = 0
        stream.local_ended = stream.remote_ended = True
        self._drop(stream.unread)
        stream.unread = 0

    # credit for the peer

    def open_connection(self, target: int) -> None:
        """Let the peer have so much under way on all streams together."""
        self._target = max(target, self._target)
        self._drop(0)

    def open_stream(self, stream: Stream, target: int, *, at_once: bool = False) -> None:
        """Let the peer have so much under way on this stream; tell it `at_once`, be it little that is new."""
        stream.target = target
        self._release(stream, 0, least=0 if at_once else target)

    def release(self, stream: Stream, size: int) -> None:
        """So many received bytes are out of our hands: the peer may send as many again."""
        self._release(stream, size, least=stream.target)

    def _release(self, stream: Stream, size: int, *, least: int) -> None:
        """The same; the peer is told when twice the credit it has is at `least` so much."""
        if stream.id not in self.streams:
            return
        stream.unread -= size
        credit = stream.target - stream.left - stream.unread
        if not stream.remote_ended and credit > 0 and credit * 2 >= least:
            stream.left += credit
            self._out.append(frames.window_update(stream.id, credit))
        self._drop(size)

    def _drop(self, size: int) -> None:
        self._unread -= size
        credit = self._target - self._left - self._unread
        if credit > 0 and credit * 2 >= self._target:
            self._left += credit
            self._out.append(frames.window_update(0, credit))

    # what goes out

    def send_headers(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """Send a block; the answer's first, or with `end` its last."""
        if stream.local_ended:
            return
        note, self._table_note = self._table_note, b""
        self._out.append(frames.header_block(stream.id, note + block, end=end))
        if end:
            self._end(stream)

    def send_data(self, stream: Stream, pieces: Sequence[Buffer], size: int) -> None:
        """Send pieces, as the peer's windows allow; they must not change any more."""
        if stream.local_ended:
            return
        stream.queue.extend(pieces)
        stream.queued += size
        self.queued += size
        self._may_send(stream)

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """End the answer, once everything before is sent."""
        if stream.queued:
            stream.trailers = block
        else:
            self.send_headers(stream, block, end=True)

    def abandon(self, stream: Stream) -> bool:
        """Send nothing more of what waits; whether that cut something off."""
        waited = bool(stream.queued)
        self.queued -= stream.queued
        stream.queue.clear()
        stream.queued = 0
        self._sendable.pop(stream, None)
        return waited

    def reset(self, stream: Stream, code: int) -> None:
        """End a stream at once."""
        if stream.id in self.streams:
            self._forget(stream, ENDED if stream.remote_ended else RESET)
            self._out.append(frames.rst_stream(stream.id, code))

    def ping(self) -> None:
        """Ask whether the peer lives."""
        self._out.append(frames.head(8, frames.PING, 0, 0) + bytes(8))

    def go_away(self, code: int, detail: str = "") -> None:
        """Take no new streams; those there are go on, if the code says nothing is wrong."""
        if self._leaving is None or code:
            if self._leaving is None:
                self._last_taken = self._last
            self._leaving = code
            self._out.append(frames.goaway(self._last_taken, code, detail))

    @property
    def leaving(self) -> bool:
        """Whether GOAWAY was sent."""
        return self._leaving is not None

    @property
    def greeted(self) -> bool:
        """Whether the peer has shown that it speaks HTTP/2."""
        return self._settled

    @property
    def unsent(self) -> int:
        """How many frames wait that no window holds back."""
        return len(self._out)

    @property
    def held(self) -> int:
        """Bytes of bodies and unfinished header blocks that are here or with whoever reads, and of answers unsent."""
        return self._unread + self.queued + (len(self._block) if self._block is not None else 0)

    def data_to_send(self, size_max: int) -> list[Buffer]:
        """What is to be written now: all that is not DATA, and about `size_max` bytes of that, each stream in turn."""
        out, self._out = self._out, []
        sendable = self._sendable
        while sendable and self._send_window > 0 and size_max > 0:
            stream = next(iter(sendable))
            del sendable[stream]
            size = min(stream.queued, stream.send_window, self._send_window, self._frame_max)
            stream.send_window -= size
            self._send_window -= size
            stream.queued -= size
            if not stream.queued:
                stream.stuck_since = None
            self.queued -= size
            size_max -= size
            self._noise.earn(NOISE_EARNED)
            if stream.waiting and stream.queued <= LOW_WATER:
                stream.waiting = False
                self.drained.append(stream)
            last = not stream.queued and stream.trailers is not None
            out.append(frames.HEAD.pack(size >> 8, size & 0xFF, frames.DATA, 0, stream.id))
            take(stream.queue, size, out)
            if last and stream.trailers is not None:
                self._out = out
                self.send_headers(stream, stream.trailers, end=True)
                self._out = []
            else:
                self._may_send(stream)
        return out

    def _may_send(self, stream: Stream) -> None:
        if stream.queued and stream.send_window > 0:
            self._sendable[stream] = None
        else:
            self._sendable.pop(stream, None)

    def _end(self, stream: Stream) -> None:
        stream.local_ended = True
        self._forget(stream, ENDED if stream.remote_ended else ANSWERED)
