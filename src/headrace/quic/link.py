"""One QUIC connection driven by the event loop: what one turn brings and what it answers goes as one.

A link has streams (`stream`) and an owner that opens and closes with it. Everything written during a turn of the event
loop leaves together, one write for each stream and one burst for the connection.
"""

import asyncio
from typing import Protocol

from qh3.quic import events
from qh3.quic.connection import QuicConnectionError

from headrace.quic.connection import Connection
from headrace.quic.datagrams import Address, DatagramSocket
from headrace.quic.stream import Reader, Stream

NO_ERROR = 0
INTERNAL_ERROR = 1
UNIDIRECTIONAL = 2


class Owner(Protocol):
    """Whom a link belongs to."""

    def shaken(self, link: "Link") -> None:
        """The handshake is complete; streams may come and be opened from now on."""

    def opened(self, stream: Stream) -> Reader | None:
        """The peer opened a bidirectional stream; None refuses it."""

    def closed(self, link: "Link", code: int, reason: str) -> None:
        """The connection is over; its streams have heard of it."""

    def forgotten(self, link: "Link") -> None:
        """Nothing will be sent or expected any more."""

    def identified(self, link: "Link", connection_id: bytes, valid: bool) -> None:
        """Datagrams to this id belong to the link from now on, or no longer do."""


class Link:
    """A connection, its timer and its streams."""

    def __init__(self, connection: Connection, socket: DatagramSocket, owner: Owner, *, connected: bool) -> None:
        self.connection = connection
        self.streams: dict[int, Stream] = {}
        self.names: set[bytes] = set()
        self.over = False
        self._socket = socket
        self._owner = owner
        self._connected = connected
        self._is_client = connection.configuration.is_client
        self._loop = asyncio.get_running_loop()
        self._written: dict[Stream, None] = {}
        self._crowded: dict[Stream, None] = {}
        self._holders: set[Stream] = set()
        self._next_number = 0 if self._is_client else 1
        self._turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._forgotten = False

    def receive(self, data: bytes, segment_size: int, address: Address) -> None:
        """Take datagrams in; `turn` must follow."""
        try:
            if len(data) > segment_size:
                self.connection.receive_gro_buffer(data, segment_size, address, self._loop.time())
            else:
                self.connection.receive_datagram(data, address, self._loop.time())
        except Exception as error:
            self._fail(error)

    def turn(self) -> None:
        """Tell the streams what has come, then send what there is to send."""
        self._turn_due = False
        if self._forgotten:
            return
        self._hear()
        self._send()
        self._relieve()
        self._set_timer()

    def due(self) -> None:
        """See to it that a turn comes, once, after what is going on now."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._late_turn)

    @property
    def may_open(self) -> bool:
        """Whether the peer allows another stream of ours; if not, it may later, when others are done."""
        return self._next_number // 4 < self.connection.max_concurrent_bidi_streams

    def open(self, reader: Reader) -> Stream:
        """A new bidirectional stream; it breaks at the first write if the peer does not allow it."""
        number = self._next_number
        self._next_number += 4
        stream = self.streams[number] = Stream(self, number, reader)
        return stream

    def written(self, stream: Stream) -> None:
        """A stream has something to send."""
        self._written[stream] = None
        self.due()

    def crowded(self, stream: Stream) -> None:
        """A stream wants to be asked after every burst whether it has room again."""
        self._crowded[stream] = None

    def backlog(self) -> int:
        """Bytes of all streams not yet sent for the first time."""
        return 0 if self.over else self.connection.get_send_buffer_size()

    def hold(self, stream: Stream, held: bool) -> None:
        """Grant the peer no more credit while a stream wants that."""
        if held:
            self._holders.add(stream)
        else:
            self._holders.discard(stream)
        self.connection.hold(bool(self._holders))
        if not self._holders:
            self.due()

    def breathe(self) -> None:
        """Hear what has been held back so far, though streams still want to hold."""
        self.connection.hold(False)
        self._hear()
        self.connection.hold(bool(self._holders))
        self.due()

    @property
    def held(self) -> bool:
        """Whether the peer's words are left unheard for now."""
        return bool(self._holders)

    def forget(self, stream: Stream) -> None:
        """Both sides of a stream are done."""
        self.streams.pop(stream.number, None)
        self._crowded.pop(stream, None)
        if stream in self._holders:
            self.hold(stream, False)

    def close(self, code: int, reason: str = "") -> None:
        """Close the connection; streams break at once, what they had written is lost."""
        if not self.over:
            self.connection.close(code, reason_phrase=reason)
            self._end(code, reason)
            self.due()

    def abandon(self) -> None:
        """Forget the connection without a word."""
        self._end(NO_ERROR, "abandoned")
        self._forget()

    def _fail(self, error: Exception) -> None:
        """Something came that qh3 was not prepared for: say so if that is possible still, and be done with the peer."""
        try:
            self.close(INTERNAL_ERROR, str(error))
        except Exception:
            self.abandon()

    def _late_turn(self) -> None:
        if self._turn_due:
            self.turn()

    def _hear(self) -> None:
        """Hand out what has come, once for each stream; of a connection that is over also what was held back."""
        if self._holders and self.connection.over:
            self._holders.clear()
            self.connection.hold(False)
        data: dict[int, list[bytes]] = {}
        ended: set[int] = set()
        while (event := self.connection.next_event()) is not None:
            if isinstance(event, events.StreamDataReceived):
                data.setdefault(event.stream_id, []).append(event.data)
                if event.end_stream:
                    ended.add(event.stream_id)
            else:
                self._note(event)
        for number, parts in data.items():
            stream = self._find(number)
            if stream is not None:
                stream.take_in(parts[0] if len(parts) == 1 else b"".join(parts), number in ended)
        if self.connection.over and not self.over:
            self._end(*self.connection.closed_with)

    def _note(self, event: events.QuicEvent) -> None:
        match event:
            case events.HandshakeCompleted():
                self._owner.shaken(self)
            case events.StreamReset(error_code=code, stream_id=number):
                if (stream := self._find(number)) is not None:
                    stream.reset_by_peer(code)
            case events.StopSendingReceived(error_code=code, stream_id=number):
                if (stream := self._find(number)) is not None:
                    stream.stopped_by_peer(code)
            case events.ConnectionIdIssued(connection_id=name):
                self._owner.identified(self, name, True)
            case events.ConnectionIdRetired(connection_id=name):
                self._owner.identified(self, name, False)
            case events.ConnectionTerminated(error_code=code, reason_phrase=reason):
                self._end(code, reason)
                self._forget()

    def _find(self, number: int) -> Stream | None:
        """The stream of this number, opened here and now if it is the peer's and new."""
        if (stream := self.streams.get(number)) is not None:
            return stream
        ours = bool(number & 1) is not self._is_client
        if ours or self.over:
            return None
        stream = self.streams[number] = Stream(self, number, None)
        if number & UNIDIRECTIONAL:
            stream.refuse(one_way=True)
        elif (reader := self._owner.opened(stream)) is not None:
            stream.reader = reader
        else:
            stream.refuse()
        return stream

    def _send(self) -> None:
        if self._socket.blocked:
            self._socket.when_writable(self.turn)
            return
        written, self._written = self._written, {}
        for stream in written:
            stream.hand_over()
        burst: list[bytes] = []
        to: Address | None = None
        for datagram, address in self._datagrams():
            if address != to and burst:
                self._socket.send(burst, None if self._connected else to)
                burst = []
            to = address
            burst.append(datagram)
        if burst:
            self._socket.send(burst, None if self._connected else to)

    def _datagrams(self) -> list[tuple[bytes, Address]]:
        try:
            return self.connection.datagrams_to_send(self._loop.time())
        except QuicConnectionError as error:
            self._end(INTERNAL_ERROR, str(error))
            self._forget()
            return []

    def _relieve(self) -> None:
        for stream in list(self._crowded):
            if stream.ask_for_room():
                self._crowded.pop(stream, None)

    def _set_timer(self) -> None:
        """Wake up when the connection asks for it; a timer that goes off too early sets itself anew."""
        when = self.connection.get_timer()
        if when is None or self._forgotten:
            return
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        when = self.connection.get_timer()
        if when is not None and when <= now:
            try:
                self.connection.handle_timer(now)
            except Exception as error:
                self._fail(error)
        self.turn()

    def _end(self, code: int, reason: str) -> None:
        if self.over:
            return
        self.over = True
        self._written.clear()
        self._crowded.clear()
        self._holders.clear()
        self.connection.hold(False)
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.lose(reason)
        self._owner.closed(self, code, reason)

    def _forget(self) -> None:
        if not self._forgotten:
            self._forgotten = True
            if self._timer is not None:
                self._timer.cancel()
            self._owner.forgotten(self)
            self.connection.let_go()
