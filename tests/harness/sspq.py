"""A blocking SSPQ client that keeps no secrets: every packet in and out is spelled out here."""

import contextlib
import select
import socket
import struct

HEAD = struct.Struct(">HBBI")
MAGIC = 0x5599
SEND, RECEIVE, CONFIRM, DEAD_RECEIVE, NO_RECEIVE, OTHER = 0x5E, 0xEC, 0xC0, 0xDE, 0x0E, 0xFF
FOR_EVER = 255

Packet = tuple[int, int, bytes]


def packet(kind: int, retries: int = 0, payload: bytes = b"") -> bytes:
    """One packet by the document's table."""
    return HEAD.pack(MAGIC, kind, retries, len(payload)) + payload


def send(payload: bytes, retries: int = 3) -> bytes:
    """One SEND."""
    return packet(SEND, retries, payload)


class SspqPeer:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        """All of it; a broker that has hung up meanwhile reads no more, and `closed` tells."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """Exactly this many bytes, or fewer when the broker closes."""
        data = b""
        while len(data) < size and (more := self.socket.recv(size - len(data))):
            data += more
        return data

    def read(self) -> Packet:
        """The next packet as (kind, retries, payload). Raises ConnectionError once the broker hung up."""
        head = self.receive(HEAD.size)
        if len(head) < HEAD.size:
            raise ConnectionError("closed")
        _, kind, retries, size = HEAD.unpack(head)
        return kind, retries, self.receive(size)

    def take(self, kind: int = RECEIVE) -> tuple[int, bytes]:
        """Ask for a message, wait for it and hold it: (retries, payload)."""
        self.send(packet(kind))
        answer, retries, payload = self.read()
        assert answer == SEND
        return retries, payload

    def confirm(self) -> None:
        """Confirm what is held."""
        self.send(packet(CONFIRM))

    def closed(self) -> bool:
        """Whether the broker closes the connection, having said nothing more; waits for it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def quiet(self) -> bool:
        """Whether nothing the broker said is unread now."""
        return not select.select([self.socket], [], [], 0)[0] or self.closed()

    def reset(self) -> None:
        """Hang up without a word."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def vanish(self) -> None:
        """Hang up."""
        self.socket.close()
