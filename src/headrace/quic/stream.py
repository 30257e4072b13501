"""One stream of a link: writes put together and counted, what arrives handed to a reader.

QUIC buffers what it is given without limit, so a stream says when it has enough (`crowded`) and tells its reader when
there is room again. A stream alone may fill STREAM_ROOM; all of a connection may fill the link's share together, and
beyond that each still gets STREAM_ROOM_SURE, so that one that is not read never silences the others.
"""

from typing import TYPE_CHECKING, Protocol

from qh3.quic.connection import QuicConnectionError

if TYPE_CHECKING:
    from headrace.quic.link import Link

STREAM_ROOM = 1 << 20
STREAM_ROOM_SURE = 1 << 16
CONNECTION_ROOM = 4 << 20
REFUSED = 1
GIVEN_UP = 2


class Reader(Protocol):
    """Who a stream belongs to."""

    def received(self, data: bytes, ended: bool) -> None:
        """Bytes have come; `ended` says they were the last."""

    def relieved(self) -> None:
        """The stream has room again."""

    def broke(self, cause: str) -> None:
        """The peer reset the stream or wants no more of it, or the connection is over. Comes once, if at all."""


class Stream:
    """A bidirectional stream, or a refused one that waits for its peer to notice."""

    __slots__ = ("_ended_here", "_ended_there", "_link", "_parts", "_unsent", "crowded", "number", "reader")

    def __init__(self, link: "Link", number: int, reader: Reader | None) -> None:
        self.number = number
        self.reader = reader
        self.crowded = False
        self._link = link
        self._parts: list[bytes] = []
        self._unsent = 0
        self._ended_here = False
        self._ended_there = False

    def write(self, data: bytes) -> None:
        """Send behind what was written before, with everything else of this turn."""
        if self._ended_here or self._link.over:
            return
        self._parts.append(data)
        self._unsent += len(data)
        self._link.written(self)
        if not self.crowded and self.backlog() > self._room():
            self.crowded = True
            self._link.crowded(self)

    def end(self) -> None:
        """End our side behind what was written."""
        if not self._ended_here and not self._link.over:
            self._ended_here = True
            self._link.written(self)

    def give_up(self, code: int = GIVEN_UP) -> None:
        """Be done with both sides: what was not sent yet is dropped, the peer hears a code."""
        self.reader = None
        if not self._link.over:
            if not self._ended_here or self.backlog():
                self._drop(code)
            if not self._ended_there:
                self._link.connection.stop_listening_to(self.number, code)
            self._maybe_forget()
            self._link.due()

    def refuse(self, *, one_way: bool = False) -> None:
        """Turn the peer's stream away; one that only the peer may write has nothing of ours to end."""
        self._ended_here = one_way
        self.give_up(REFUSED)

    def hold(self, held: bool) -> None:
        """Take no more from the peer, or take it again. Holds the whole connection; credit is granted in order."""
        self._link.hold(self, held)

    def backlog(self) -> int:
        """Bytes written and not yet sent for the first time."""
        if self._link.over:
            return 0
        return self._unsent + self._link.connection.get_send_buffer_size(self.number)

    def hand_over(self) -> None:
        """The link's call: give QUIC what was written since the last time."""
        parts, self._parts, self._unsent = self._parts, [], 0
        if not parts and not self._ended_here:
            return
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            self._link.connection.send_stream_data(self.number, data, self._ended_here)
        except (ValueError, QuicConnectionError) as error:
            self._break(str(error))
        if self._ended_here:
            self._link.crowded(self)

    def ask_for_room(self) -> bool:
        """The link's call after a burst: whether there is no more need to ask; the reader hears of room."""
        backlog = self.backlog()
        if self.crowded and backlog <= self._room() // 2:
            self.crowded = False
            if self.reader is not None:
                self.reader.relieved()
        if self._ended_here and not backlog:
            self._maybe_forget()
        return not self.crowded and not (self._ended_here and backlog)

    def take_in(self, data: bytes, ended: bool) -> None:
        """The link's call: this has come."""
        self._ended_there |= ended
        if self.reader is not None:
            self.reader.received(data, ended)
        self._maybe_forget()

    def reset_by_peer(self, code: int) -> None:
        """The link's call: the peer gave up its side, and with it what it had sent."""
        self._ended_there = True
        self._break(f"reset by the peer with code {code}")

    def stopped_by_peer(self, code: int) -> None:
        """The link's call: the peer will read no more."""
        self._parts.clear()
        self._unsent = 0
        self._ended_here = True
        self._break(f"no longer read by the peer, code {code}")

    def lose(self, cause: str) -> None:
        """The link's call: the connection is over."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.broke(cause)

    def _break(self, cause: str) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.broke(cause)
        self.give_up()

    def _drop(self, code: int) -> None:
        """Give up our side."""
        self._parts.clear()
        self._unsent = 0
        self._ended_here = True
        self._link.connection.give_up_stream(self.number, code)

    def _room(self) -> int:
        return STREAM_ROOM if self._link.backlog() <= CONNECTION_ROOM else STREAM_ROOM_SURE

    def _maybe_forget(self) -> None:
        if self._ended_here and self._ended_there and not self.backlog():
            self._link.forget(self)
