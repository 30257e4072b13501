"""Two QUIC connections joined in memory: datagrams carried by hand, time a number."""

from dataclasses import dataclass, field
from pathlib import Path

from qh3.quic import events
from qh3.quic.packet import encode_quic_retry

from headrace.quic.certificates import Authorities
from headrace.quic.connection import Certificate, Connection, configuration
from headrace.quic.headers import CONNECTION_ID_SIZE, Hello, hello

CLIENT_AT, SERVER_AT = ("127.0.0.1", 1000), ("127.0.0.1", 2000)
RETRIED = b"a retry!"


@dataclass
class Pair:
    """A client and, after its first datagram, a server; one that sent the client back, for `retry`."""

    server_file: Path
    client_file: Path | None = None
    client_ca: Path | None = None
    protocol: str = "fujin"
    client_id_size: int = CONNECTION_ID_SIZE
    retry: bool = False
    client_at: tuple[str, int] = CLIENT_AT
    answered_at: set[tuple[str, int]] = field(default_factory=set)
    now: float = 0.0
    server: Connection | None = None
    client: Connection = field(init=False)

    def __post_init__(self) -> None:
        own = Certificate(cert=self.client_file, key=self.client_file) if self.client_file else None
        made = configuration(
            protocol=self.protocol, is_client=True, certificate=own, datagram_max=1350, idle_timeout_s=30
        )
        made.connection_id_length = self.client_id_size
        self.client = Connection(configuration=made)
        self.client.connect(SERVER_AT, self.now)

    def carry(self) -> None:
        """Carry datagrams to and fro until nobody has any."""
        moved = True
        while moved:
            moved = False
            self.now += 0.001
            for datagram, _ in self.client.datagrams_to_send(self.now):
                moved = True
                if (server := self._accept(datagram)) is not None:
                    server.receive_datagram(datagram, self.client_at, self.now)
            for datagram, to in self.server.datagrams_to_send(self.now) if self.server else ():
                moved = True
                self.answered_at.add(to)
                if to != self.client_at:
                    continue
                self.client.receive_datagram(datagram, SERVER_AT, self.now)

    def let_time_pass(self, seconds: float) -> None:
        """Let timers go off, in steps, and carry what comes of it."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            self.client.handle_timer(self.now)
            if self.server is not None:
                self.server.handle_timer(self.now)
            self.carry()

    def _accept(self, datagram: bytes) -> Connection | None:
        """The server, made for the first datagram that it does not send back."""
        if self.server is None:
            head = hello(datagram)
            assert head is not None
            original, retried = head.destination, None
            if self.retry and not head.token:
                self._send_back(head)
                return None
            if self.retry:
                assert head.destination == RETRIED
                original, retried = bytes(head.token or b""), RETRIED
            own = Certificate(cert=self.server_file, key=self.server_file)
            made = configuration(
                protocol="fujin", is_client=False, certificate=own, datagram_max=1350, idle_timeout_s=30
            )
            self.server = Connection(
                configuration=made,
                original_destination_connection_id=original[1:] if self.retry else original,
                retry_source_connection_id=retried,
                nameless_client=not head.source,
                authorities=Authorities.load(self.client_ca) if self.client_ca else None,
            )
        return self.server

    def _send_back(self, head: Hello) -> None:
        packet = encode_quic_retry(
            version=head.version,
            source_cid=RETRIED,
            destination_cid=head.source,
            original_destination_cid=head.destination,
            retry_token=b"#" + head.destination,
        )
        self.client.receive_datagram(packet, SERVER_AT, self.now)


def heard(connection: Connection) -> list[events.QuicEvent]:
    """The events a connection has to tell."""
    found = []
    while (event := connection.next_event()) is not None:
        found.append(event)
    return found


def streamed(connection: Connection, number: int = 0) -> bytes:
    """What a connection has received on a stream and not told yet."""
    return b"".join(
        event.data for event in heard(connection) if isinstance(event, events.StreamDataReceived) and
        event.stream_id == number
    )  # fmt: skip


def is_in(connection: Connection | None) -> bool:
    """Whether the handshake is complete."""
    return connection is not None and any(isinstance(each, events.HandshakeCompleted) for each in heard(connection))
