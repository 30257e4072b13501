"""A blocking BlipMQ client that keeps no secrets: every frame in and out is spelled out here."""

import socket
import struct
from itertools import count

HEAD = struct.Struct(">IBQ")
HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL = range(1, 10)
DEV_KEY = b"dev-key"


def frame(kind: int, tag: int, payload: bytes = b"") -> bytes:
    """One frame by the document's table."""
    return HEAD.pack(9 + len(payload), kind, tag) + payload


def handshake(key: bytes = DEV_KEY) -> bytes:
    """HELLO and AUTH."""
    return frame(HELLO, 1, b"\x00\x01") + frame(AUTH, 2, struct.pack(">H", len(key)) + key)


def publish(topic: bytes, value: bytes, tag: int = 0, qos: int = 1) -> bytes:
    """One PUBLISH."""
    return frame(PUBLISH, tag, bytes([qos]) + struct.pack(">H", len(topic)) + topic + value)


class Peer:
    """A connection that has said HELLO and AUTH, unless told to stay silent."""

    def __init__(self, port: int, *, silent: bool = False, key: bytes = DEV_KEY) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._buffer = bytearray()
        if not silent:
            self.send(handshake(key))
            assert [self.read()[0], self.read()[0]] == [ACK, ACK]

    def send(self, data: bytes) -> None:
        """All of it."""
        self.socket.sendall(data)

    def read(self) -> tuple[int, int, bytes]:
        """The next frame as (kind, tag, payload). Raises ConnectionError once the broker hung up."""
        while len(self._buffer) < 4 or len(self._buffer) < 4 + int.from_bytes(self._buffer[:4], "big"):
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise ConnectionError("closed")
            self._buffer += chunk
        size, kind, tag = HEAD.unpack_from(self._buffer)
        payload = bytes(self._buffer[HEAD.size : 4 + size])
        del self._buffer[: 4 + size]
        return kind, tag, payload

    def subscribe(self, topic: bytes, qos: int = 1) -> int:
        """The new subscription's id."""
        self.send(frame(SUBSCRIBE, 3, struct.pack(">H", len(topic)) + topic + bytes([qos])))
        kind, _, payload = self.read()
        assert kind == ACK, payload
        return int.from_bytes(payload, "big")

    def until_pong(self) -> list[tuple[int, bytes]]:
        """Deliveries as (tag, value) up to the next PONG; any other frame is a failure."""
        found: list[tuple[int, bytes]] = []
        while True:
            kind, tag, payload = self.read()
            if kind == PONG:
                return found
            assert kind == PUBLISH, (kind, payload)
            topic_size = int.from_bytes(payload[1:3], "big")
            found.append((tag, payload[3 + topic_size :]))

    def fence(self) -> list[tuple[int, bytes]]:
        """Send PING; what was delivered before its PONG."""
        self.send(frame(PING, 0))
        return self.until_pong()

    def settled(self) -> int:
        """Send PING and wait for its PONG, whatever else comes before; how many frames did."""
        self.send(frame(PING, 0))
        for before in count():
            if self.read()[0] == PONG:
                return before
        raise AssertionError("a PONG comes or the connection ends")

    def close(self) -> None:
        """Hang up."""
        self.socket.close()
