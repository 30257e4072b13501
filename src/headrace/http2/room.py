"""Room for what a connection's calls are still to receive: promised before the peer is told that it may send."""

from collections.abc import Callable

from headrace.http2.call import Call
from headrace.http2.ledger import Ledger
from headrace.http2.session import Session

FIRST_WINDOW = 16_384
"""What a peer may send on a new stream before anybody looked at who it is."""


class Room:
    """What one connection has been promised, within its own bound and the ledger of the whole server."""

    def __init__(self, session: Session, ledger: Ledger, *, bound: int, ahead: int, moved: Callable[[], None]) -> None:
        self._session = session
        self._ledger = ledger
        self._bound = bound
        self._ahead = max(0, ahead - FIRST_WINDOW)
        self._moved = moved
        self._promised = 0
        self._waiting: dict[Call, None] = {}

    def settle(self, call: Call) -> bool:
        """Promise a call as much as it needs by now, or take back what it does not; False when it has to wait."""
        least, wish = self._needs(call)
        if wish < call.reserved:
            self._give(call, call.reserved - wish)
        elif wish > call.reserved and not self._take(call, wish - call.reserved):
            if least <= call.reserved:
                wish = call.reserved
            elif self._take(call, least - call.reserved):
                wish = least
            else:
                self._waiting[call] = None
                self._ledger.wait(self._again)
                return False
        self._waiting.pop(call, None)
        call.reserved = wish
        starves = call.incoming.unfinished and call.incoming.held + call.stream.left < call.incoming.wanted
        self._session.open_stream(call.stream, FIRST_WINDOW + wish, at_once=starves)
        return True

    def leave(self, call: Call) -> None:
        """The call is over."""
        self._waiting.pop(call, None)
        size, call.reserved = call.reserved, 0
        self._give(call, size)

    def close(self) -> None:
        """The connection is gone, and its calls are over."""
        self._waiting.clear()
        self._ledger.forget(self._again)

    def _needs(self, call: Call) -> tuple[int, int]:
        """The least that its next message can be received with, and what would be good."""
        if call.identity is None:
            return 0, 0
        if call.half_closed:
            held = max(0, call.incoming.held - FIRST_WINDOW)
            return held, held
        least = max(0, call.incoming.wanted - FIRST_WINDOW) if call.incoming.unfinished else 0
        return least, max(least, self._ahead)

    def _take(self, call: Call, size: int) -> bool:
        if self._promised and self._promised + size > self._bound:
            return False
        if not self._ledger.take(call.identity, size):
            return False
        self._promised += size
        return True

    def _give(self, call: Call, size: int) -> None:
        self._promised -= size
        self._ledger.give(call.identity, size)

    def _again(self) -> bool:
        """Try once more for the calls that wait; whether none waits any longer."""
        while self._waiting:
            if not self.settle(next(iter(self._waiting))):
                return False
            self._moved()
        return True
