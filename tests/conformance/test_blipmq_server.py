"""The same vectors against a real broker behind a real socket, all but those that need its clock or disk in hand."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.test_blipmq import hold
from tests.conformance.vectors import Talk, load
from tests.harness.served import Served, served

TALKS = [talk for talk in load("blipmq").talks if not talk.needs]


class SocketPeer:
    """A connection to a broker in another process. Implements peer.Peer without its faults and clock."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open()

    def _open(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reconnect(self) -> None:
        self._socket.close()
        self._open()

    def send(self, data: bytes) -> None:
        """A broker that has hung up meanwhile reads no more; `closed` tells."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := self._socket.recv(size - len(data))):
            data += more
        return data

    def closed(self) -> bool:
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def fail(self, cause: str) -> None:
        raise AssertionError("vectors that need this run against the session alone")

    def heal(self) -> None:
        raise AssertionError("vectors that need this run against the session alone")

    def advance(self, milliseconds: int) -> None:
        raise AssertionError("vectors that need this run against the session alone")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory: Path = tmp_path_factory.mktemp("conformance")
    with served(directory, RETRY__BACKOFF_MS="600000") as running:
        yield running


@pytest.fixture
def peer(broker: Served) -> Iterator[SocketPeer]:
    connected = SocketPeer(broker.port)
    yield connected
    connected.close()


@pytest.mark.parametrize("way", ["whole", "byte by byte", "random 1"])
@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
def test_the_broker_holds_every_talk(peer: SocketPeer, talk: Talk, way: str) -> None:
    hold(peer, talk, way)
