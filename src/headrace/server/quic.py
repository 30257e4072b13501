"""QUIC: one UDP address that speaks one protocol, each connection routed by the ids it was given.

Clients whose address is not proven yet are served at once while few are at it and there is room, and else sent back
with a token to prove it, so that forged addresses cost next to nothing. Clients without a connection id of their own
are always sent back, for their connection needs an id that we chose (`quic.connection`); so are those that chose us
one that is too short.

What a client sends before it is in waits for its turn (`quic_strangers`), so that handshakes, which take milliseconds
each, get at most half of the time however many there are, and no more memory than they are allowed. Everybody else is
served in between.
"""

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import perf_counter

from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnectionError
from qh3.quic.packet import encode_quic_retry, encode_quic_version_negotiation

from headrace.auth import Identity
from headrace.quic.certificates import Authorities
from headrace.quic.connection import Connection
from headrace.quic.datagrams import Address, DatagramSocket, bind
from headrace.quic.headers import (
    CONNECTION_ID_SIZE,
    INITIAL_SIZE_MIN,
    LONG_HEADER,
    VERSION_1,
    Hello,
    destination,
    hello,
)
from headrace.quic.link import Link
from headrace.quic.retry import RetryTokens
from headrace.server.engine import Engine
from headrace.server.quic_peer import CLOSED_NORMALLY, PeerTerms, QuicPeer
from headrace.server.quic_strangers import Queue, Strangers

CONNECTION_REFUSED = 2
UNPROVEN_MAX = 64
ANSWERS_PER_TURN = 64
"""To datagrams of nobody: what one turn of the event loop answers with a Retry or the version that is spoken."""
STRANGERS_SLICE_S = 0.002
"""How long strangers are served before everybody else is; one handshake takes longer and is not cut."""

log = logging.getLogger("headrace.quic")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicLimits:
    """Bounds on what peers may cost."""

    connections_max: int
    connections_per_address_max: int
    stop_timeout_s: float


class QuicListener:
    """One address, one socket, all its connections."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        configuration: QuicConfiguration,
        authorities: Authorities | None,
        terms: PeerTerms,
        limits: QuicLimits,
    ) -> None:
        self.draining = False
        self.peers: set[QuicPeer] = set()
        self.name = name
        self._engine = engine
        self._configuration = configuration
        self._authorities = authorities
        self._terms = terms
        self._limits = limits
        self._links: dict[bytes, Link] = {}
        self._touched: dict[Link, None] = {}
        self._per_address: Counter[str] = Counter()
        self._strangers: Strangers[Link] = Strangers()
        self._waiting = Queue()
        self._serving: asyncio.Handle | None = None
        self._answers = ANSWERS_PER_TURN
        self._tokens = RetryTokens()
        self._ids = count(1)
        self._deserted = asyncio.Event()
        self._deserted.set()
        self._socket: DatagramSocket | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address really bound. Raises OSError."""
        self._socket = DatagramSocket(
            bind(host, port), received=self._received, turned=self._turned, failed=self._failed
        )
        address = self._socket.address
        return address[0], address[1]

    def stop_listening(self) -> None:
        """Refuse newcomers and tell everybody; peers may say goodbye, and what they ask until then is served."""
        self.draining = True
        for peer in list(self.peers):
            peer.drain()

    def revoke(self, still_valid: Callable[[Identity], bool]) -> None:
        """Cut off whoever came in by a certificate that is not good any more."""
        for peer in list(self.peers):
            peer.revoke(still_valid)

    async def close(self, timeout_s: float) -> None:
        """Return when every peer has left; those that have not in time are closed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._deserted.wait(), max(timeout_s, self._limits.stop_timeout_s))
        for peer in list(self.peers):
            peer.close(CLOSED_NORMALLY, "the server stops")
        await asyncio.sleep(0)
        if self._serving is not None:
            self._serving.cancel()
        for link in set(self._links.values()):
            link.abandon()
        if self._socket is not None:
            self._socket.close()

    def dismiss(self, peer: QuicPeer) -> None:
        """Count a connection out."""
        if peer in self.peers:
            self.peers.remove(peer)
            self._engine.connections -= 1
            self._per_address[peer.address] -= 1
            if not self._per_address[peer.address]:
                del self._per_address[peer.address]
            if not self.peers:
                self._deserted.set()

    def shaken(self, peer: QuicPeer) -> None:
        """A connection is complete."""
        if peer.link is not None:
            self._strangers.over(peer.link)

    def forgotten(self, link: Link) -> None:
        """Route no more datagrams to a connection."""
        for name in [name for name in link.names if self._links.get(name) is link]:
            del self._links[name]
        link.names.clear()
        self._touched.pop(link, None)
        self._strangers.over(link)

    def identified(self, link: Link, connection_id: bytes, valid: bool) -> None:
        """Route an id to a connection, or no longer."""
        if valid:
            self._links[connection_id] = link
            link.names.add(connection_id)
        elif self._links.get(connection_id) is link:
            del self._links[connection_id]
            link.names.discard(connection_id)

    def _received(self, data: bytes, segment_size: int, address: Address) -> None:
        """Route a buffer of datagrams, whole where all of it is for one connection, as nearly always."""
        first = destination(data)
        if len(data) > segment_size and {data[at + 1 : at + 9] for at in range(0, len(data), segment_size)} != {first}:
            for at in range(0, len(data), segment_size):
                self._received(data[at : at + segment_size], segment_size, address)
            return
        link = self._links.get(first)
        if link is not None and link not in self._strangers:
            link.receive(data, segment_size, address)
            self._touched[link] = None
            return
        for at in range(0, len(data), segment_size):
            datagram = data[at : at + segment_size]
            if link is not None or self._may_wait(datagram, address):
                self._waiting.put(address, datagram)
        if self._waiting and self._serving is None:
            self._serving = asyncio.get_running_loop().call_soon(self._serve_strangers)

    def _turned(self) -> None:
        self._answers = ANSWERS_PER_TURN
        touched, self._touched = self._touched, {}
        for link in touched:
            link.turn()

    def _failed(self, error: OSError) -> None:
        log.warning("quic.socket_failed", extra={"session": self.name, "cause": str(error)})

    def _serve_strangers(self) -> None:
        """Serve some, then leave the loop to everybody else for as long as that took."""
        began = perf_counter()
        try:
            while self._waiting and perf_counter() - began < STRANGERS_SLICE_S:
                self._serve_stranger(*self._waiting.take())
        finally:
            again = asyncio.get_running_loop().call_later
            self._serving = again(perf_counter() - began, self._serve_strangers) if self._waiting else None

    def _serve_stranger(self, address: Address, datagram: bytes) -> None:
        link = self._links.get(destination(datagram)) or self._welcome(datagram, address)
        if link is None or (link in self._strangers and not self._may_cost(link, datagram)):
            return
        while (costly := self._strangers.excess()) is not None:
            log.debug("quic.stranger_dropped", extra={"session": self.name, "cause": "too many at once"})
            costly.abandon()
        if link.names:
            link.receive(datagram, len(datagram), address)
            link.turn()

    def _may_cost(self, link: Link, datagram: bytes) -> bool:
        """Whether a stranger's datagram is for its connection.

        Ahead of the handshake's end many send what comes behind it; nothing can be done with that, so it costs nothing.
        """
        return bool(datagram[0] & LONG_HEADER) and self._strangers.more(link, len(datagram))

    def _may_wait(self, data: bytes, address: Address) -> bool:
        """Whether a datagram of nobody's may begin a connection; any other is answered at once, or not at all."""
        head = hello(data)
        if head is None or len(data) < INITIAL_SIZE_MIN or (head.version == VERSION_1 and head.token is None):
            return False
        if head.version == VERSION_1 and (
            self._proof(head, address) is not None or not self._must_prove(head, address)
        ):
            return True
        if self._answers and head.version:
            self._answers -= 1
            self._send(_version_spoken(head) if head.version != VERSION_1 else self._way_back(head, address), address)
        return False

    def _proof(self, head: Hello, address: Address) -> tuple[bytes, bytes] | None:
        """The ids of the Retry this datagram answers: the client's first choice, and ours."""
        proof = self._tokens.check(address, head.token, self._now()) if head.token else None
        return proof if proof is not None and proof[1] == head.destination else None

    def _must_prove(self, head: Hello, address: Address) -> bool:
        """Whether a client has to show first that it receives at its address, under an id that we choose."""
        if _ill_named(head) or not self._strangers.affords(address):
            return True
        return len(self._strangers) + len(self._waiting) >= UNPROVEN_MAX or bool(self._full(address[0]))

    def _welcome(self, data: bytes, address: Address) -> Link | None:
        """The new connection that a datagram asks for, if there is room for one still."""
        head = hello(data)
        if head is None or not self._strangers.affords(address):
            return None
        original, retried = self._proof(head, address) or (head.destination, None)
        if retried is None and _ill_named(head):
            return None
        connection = Connection(
            configuration=self._configuration,
            original_destination_connection_id=original,
            retry_source_connection_id=retried,
            nameless_client=not head.source,
            authorities=self._authorities,
        )
        host = address[0]
        if cause := self._full(host):
            log.warning("quic.refused", extra={"session": self.name, "peer": host, "cause": cause})
            self._refuse(connection, data, address, cause)
            return None
        assert self._socket is not None
        peer = QuicPeer(self, self._terms, f"{self.name}-{next(self._ids)}", host)
        link = peer.link = Link(connection, self._socket, peer, connected=False)
        self.identified(link, head.destination, True)
        self.identified(link, connection.host_cid, True)
        self.peers.add(peer)
        self._strangers.begin(link, address)
        self._per_address[host] += 1
        self._engine.connections += 1
        self._deserted.clear()
        return link

    def _full(self, host: str) -> str:
        if self.draining:
            return "the server stops"
        loopback = host.startswith("127.") or host == "::1"
        if len(self.peers) >= self._limits.connections_max:
            return "too many connections"
        if not loopback and self._per_address[host] >= self._limits.connections_per_address_max:
            return "too many connections from this address"
        return ""

    def _refuse(self, connection: Connection, data: bytes, address: Address, cause: str) -> None:
        """Say no in the one datagram that the client's first allows, and keep nothing."""
        now = self._now()
        with contextlib.suppress(QuicConnectionError, RuntimeError, ValueError):
            connection.receive_datagram(data, address, now)
            connection.close(CONNECTION_REFUSED, 0, cause)
            for datagram, to in connection.datagrams_to_send(now):
                self._send(datagram, to)

    def _way_back(self, head: Hello, address: Address) -> bytes:
        retried = os.urandom(CONNECTION_ID_SIZE)
        return encode_quic_retry(
            version=head.version,
            source_cid=retried,
            destination_cid=head.source,
            original_destination_cid=head.destination,
            retry_token=self._tokens.make(address, head.destination, retried, self._now()),
        )

    def _send(self, datagram: bytes, address: Address) -> None:
        assert self._socket is not None
        if not self._socket.blocked:
            self._socket.send([datagram], address)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _version_spoken(head: Hello) -> bytes:
    return encode_quic_version_negotiation(
        source_cid=head.destination, destination_cid=head.source, supported_versions=[VERSION_1]
    )


def _ill_named(head: Hello) -> bool:
    return not head.source or len(head.destination) < CONNECTION_ID_SIZE
