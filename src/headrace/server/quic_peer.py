"""One QUIC connection of a client: who it is, its streams, whether it is still there."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.auth import Identity
from headrace.model.errors import BrokerError
from headrace.quic.link import Link
from headrace.quic.stream import Reader, Stream
from headrace.server.doors import REVOKED, Entrance
from headrace.server.quic_ping import Pinger, Verdict
from headrace.server.quic_stream import StreamDoor, StreamTerms
from headrace.server.quotas import Kind, Lease

CLOSED_NORMALLY = 0
CLOSED_SILENT = 3
CLOSED_UNNAMED = 4
PING = b"\x0b"
UNFINISHED_MAX = 64 << 20

log = logging.getLogger("headrace.quic")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTerms:
    """What every connection of a listener is served with."""

    streams: StreamTerms
    entrance: Entrance
    ping_interval_s: float
    ping_timeout_s: float
    handshake_timeout_s: float


class Registry(Protocol):
    """Who keeps the connections."""

    draining: bool

    def dismiss(self, peer: "QuicPeer") -> None:
        """The connection is over."""

    def shaken(self, peer: "QuicPeer") -> None:
        """The handshake is complete."""

    def forgotten(self, link: Link) -> None:
        """The connection needs no datagrams any more."""

    def identified(self, link: Link, connection_id: bytes, valid: bool) -> None:
        """The connection has got another id, or lost one."""


class QuicPeer:
    """The owner of a link at the server."""

    def __init__(self, registry: Registry, terms: PeerTerms, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.link: Link | None = None
        self.doors: dict[StreamDoor, Lease] = {}
        self._registry = registry
        self._terms = terms
        self._identity: Identity | None = None
        self._lease: Lease | None = None
        self._loop = asyncio.get_running_loop()
        self._pinger: Pinger | None = None
        self._ping: _Ping | None = None
        self._timer = self._loop.call_later(terms.handshake_timeout_s, self._give_up, 0, "no handshake in time")

    def shaken(self, link: Link) -> None:
        """The client is in, with the identity its certificate gives it, if that lets it in."""
        self._registry.shaken(self)
        self._timer.cancel()
        entrance = self._terms.entrance
        try:
            identity = entrance.named(link.connection.common_name) or entrance.anybody()
            self._lease = self._terms.streams.engine.quotas.lease(Kind.CONNECTIONS, identity.owner, self.address)
            self._identity = identity
        except BrokerError as error:
            log.warning("quic.refused", extra={"session": self.name, "peer": self.address, "cause": error.detail})
            self._loop.call_soon(self.close, CLOSED_UNNAMED, error.detail)
            return
        self._pinger = Pinger(self._terms.ping_interval_s, self._terms.ping_timeout_s, self._loop.time())
        self._timer = self._loop.call_at(self._pinger.next_at, self._tick)
        log.debug("quic.opened", extra={"session": self.name, "peer": self.address})

    def opened(self, stream: Stream) -> Reader | None:
        """A conversation of its own for each stream; none is begun while the server stops."""
        if self._identity is None or self._registry.draining:
            return None
        owner, quotas = self._identity.owner, self._terms.streams.engine.quotas
        try:
            lease = quotas.lease(Kind.STREAMS, owner, self.address)
        except BrokerError as error:
            log.warning("quic.refused", extra={"session": self.name, "peer": self.address, "cause": error.detail})
            return None
        door = StreamDoor(stream, self._terms.streams, self._identity, self, self.address)
        self.doors[door] = lease
        return door

    def closed(self, link: Link, code: int, reason: str) -> None:
        """Forget the client."""
        self._timer.cancel()
        for lease in (self._lease, *self.doors.values()):
            if lease is not None:
                lease.end()
        self._registry.dismiss(self)
        log.debug("quic.closed", extra={"session": self.name, "code": code, "cause": reason})

    def forgotten(self, link: Link) -> None:
        """No datagrams any more."""
        self._registry.forgotten(link)
        self.link = None

    def identified(self, link: Link, connection_id: bytes, valid: bool) -> None:
        """Another id."""
        self._registry.identified(link, connection_id, valid)

    def drain(self) -> None:
        """Tell every stream that the server is about to stop."""
        for door in list(self.doors):
            door.drain()
        self._maybe_part()

    def revoke(self, still_valid: Callable[[Identity], bool]) -> None:
        """Cut the client off if what it came in by is not good any more."""
        if self._identity is not None and not still_valid(self._identity):
            self._identity = None
            self._give_up(CLOSED_UNNAMED, REVOKED)

    def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        if self.link is not None:
            self.link.close(code, reason)

    def grown(self, door: StreamDoor) -> None:
        """Cut off a stream whose unfinished request is too much on top of the others'."""
        if sum(each.unfinished for each in self.doors) > UNFINISHED_MAX:
            door.give_up("too many unfinished requests")

    def left(self, door: StreamDoor, cause: str) -> None:
        """A stream's conversation is over."""
        if (lease := self.doors.pop(door, None)) is not None:
            lease.end()
        if cause:
            log.info("quic.stream_closed", extra={"session": self.name, "peer": self.address, "cause": cause})
        self._maybe_part()

    def _maybe_part(self) -> None:
        if self._registry.draining and not self.doors:
            self._loop.call_soon(self.close, CLOSED_NORMALLY, "the server stops")

    def _tick(self) -> None:
        assert self._pinger is not None
        assert self.link is not None
        match self._pinger.judge(self._loop.time(), heard=not self.link.held):
            case Verdict.PING:
                if self._ping is not None:
                    self._ping.finish()
                self._ping = _Ping(self.link, self._answered)
            case Verdict.GIVE_UP:
                self._give_up(CLOSED_SILENT, "no answer to a ping")
                return
        self._timer = self._loop.call_at(self._pinger.next_at, self._tick)

    def _answered(self) -> None:
        assert self._pinger is not None
        self._pinger.answered()
        self._timer.cancel()
        self._timer = self._loop.call_at(self._pinger.next_at, self._tick)

    def _give_up(self, code: int, cause: str) -> None:
        log.warning("quic.aborted", extra={"session": self.name, "peer": self.address, "cause": cause})
        self.close(code, cause)


class _Ping:
    """One ping on a stream of its own: `0b` and the end there, `0b` or just the end back."""

    __slots__ = ("_answered", "_ended", "_stream")

    def __init__(self, link: Link, answered: Callable[[], None]) -> None:
        self._answered = answered
        self._ended = False
        self._stream = link.open(self)
        self._stream.write(PING)
        self._stream.end()

    def received(self, data: bytes, ended: bool) -> None:
        """The answer."""
        self._ended = ended
        if data == PING or (ended and not data):
            self._answered()

    def relieved(self) -> None:
        """Nothing more is ever written."""

    def broke(self, cause: str) -> None:
        """No answer will come; the deadline decides."""
        self._ended = True

    def finish(self) -> None:
        """Do not let a peer that answers without an end keep the stream."""
        if not self._ended:
            self._stream.give_up()
