"""Where a broker is, and a connection to it that is made again."""

import asyncio
import socket
import ssl

import pytest

from headrace.model.errors import HeadraceError
from headrace.protocols.dialling import Address, ClientClosed, ConnectionLost, Dialling, Wire


class Quiet(Wire):
    """Says nothing."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = ConnectionLost("gone")
        self._changed.set()


class Exchange:
    """Dials as often as it is asked to, in vain so many times."""

    def __init__(self, failures: int = 0) -> None:
        self.calls = 0
        self._failures = failures

    async def dial(self) -> Quiet:
        self.calls += 1
        if self.calls <= self._failures:
            raise ConnectionLost("nobody there")
        return Quiet()


def test_an_address_is_what_the_endpoint_says() -> None:
    assert Address.parse("tcp://broker:1234", 5555, None) == ("broker", 1234, None)
    assert Address.parse("broker", 5555, None) == ("broker", 5555, None)
    assert isinstance(Address.parse("tls://broker", 5555, None).tls, ssl.SSLContext)
    own = ssl.create_default_context()
    assert Address.parse("tls://broker", 5555, own).tls is own


@pytest.mark.parametrize("endpoint", ["http://broker:1", "tcp://", "tls://:99", ""])
def test_anything_else_is_no_address(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is not tcp://host:port or tls://host:port"):
        Address.parse(endpoint, 5555, None)


async def test_nobody_there_is_said_with_the_address() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}: "):
            await Address("127.0.0.1", port, None).dial(Quiet, 10)


async def test_a_greeting_that_is_refused_hangs_up() -> None:
    wires = []

    async def refuse(wire: Quiet) -> None:
        wires.append(wire)
        raise HeadraceError("no")

    server = await asyncio.start_server(lambda _, writer: None, "127.0.0.1", 0)
    async with server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1], None)
        with pytest.raises(HeadraceError, match="no"):
            await address.dial(Quiet, 10, refuse)
        assert wires[0].lost is not None


async def test_a_connection_is_kept_until_it_is_lost() -> None:
    exchange = Exchange()
    dialling = Dialling(exchange.dial, 0, 0)
    await dialling.connect()
    first = await dialling.wire()
    assert await dialling.wire() is first
    first.lost = ConnectionLost("gone")
    assert await dialling.wire() is not first
    assert exchange.calls == 2


async def test_the_first_connection_fails_at_once_and_later_ones_are_tried_again() -> None:
    exchange = Exchange(failures=3)
    dialling = Dialling(exchange.dial, 0, 0)
    with pytest.raises(ConnectionLost):
        await dialling.connect()
    both = await asyncio.gather(dialling.wire(), dialling.wire())
    assert both[0] is both[1]
    assert exchange.calls == 4


async def test_a_closed_client_dials_no_more() -> None:
    exchange = Exchange()
    dialling = Dialling(exchange.dial, 0, 0)
    await dialling.close()
    with pytest.raises(ClientClosed):
        await dialling.wire()
    assert exchange.calls == 0
