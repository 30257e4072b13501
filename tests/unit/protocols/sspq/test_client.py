"""The client against a broker that behaves, and one that does not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.protocols.sspq import SspqSettings, frames
from headrace.protocols.sspq.client import (
    ClientClosed,
    ClientSettings,
    ConnectionLost,
    Declined,
    NotConfirmed,
    SspqClient,
)
from tests.conformance.sspq_standin import MemoryPeer, StandIn

IMPATIENT = ClientSettings(reconnect_min_s=0.001, reconnect_max_s=0.01)


class SocketBroker:
    """The stand-in behind a real socket, which can be cut off, stop reading, or talk nonsense."""

    def __init__(self) -> None:
        self.memory = StandIn(SspqSettings())
        self.connections: set[SocketConnection] = set()
        self.connected = 0
        self.nonsense = b""
        self.reading = True
        self.heard = asyncio.Event()
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection."""
        for connection in list(self.connections):
            connection.transport.abort()

    def flush(self) -> None:
        """Write what every session has to say."""
        for connection in self.connections:
            connection.transport.write(connection.peer.session.data_to_send())


class SocketConnection(asyncio.Protocol):
    def __init__(self, broker: SocketBroker) -> None:
        self._broker = broker
        self.peer = MemoryPeer(broker.memory)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._broker.connections.add(self)
        self._broker.connected += 1
        if not self._broker.reading:
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.connections.discard(self)
        self.peer.vanish()
        self._broker.flush()

    def data_received(self, data: bytes) -> None:
        self._broker.heard.set()
        if self._broker.nonsense:
            self.transport.write(self._broker.nonsense)
            return
        self.peer.send(data)
        self._broker.flush()


@asynccontextmanager
async def broker_on_a_socket() -> AsyncIterator[SocketBroker]:
    broker = SocketBroker()
    server = await asyncio.get_running_loop().create_server(lambda: SocketConnection(broker), "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        broker.cut()
        await server.wait_closed()


@pytest.fixture
async def broker() -> AsyncIterator[SocketBroker]:
    async with broker_on_a_socket() as running:
        yield running


@pytest.fixture
async def client(broker: SocketBroker) -> AsyncIterator[SspqClient]:
    async with await SspqClient.connect(broker.endpoint, settings=IMPATIENT) as connected:
        yield connected


async def until(true: Callable[[], bool]) -> None:
    """Let the broker work until this is so."""
    while True:
        if true():
            return
        await asyncio.sleep(0)


async def lose(client: SspqClient, broker: SocketBroker) -> None:
    """Break the connection, and wait until the client knows."""
    link = await client.link()
    broker.cut()
    await until(lambda: link.lost is not None)


async def test_what_is_sent_is_received_in_order_and_confirmed(client: SspqClient, broker: SocketBroker) -> None:
    await client.send(b"one")
    await client.send(b"", retries=0)
    await client.send(b"three", retries=255)
    seen = []
    for _ in range(3):
        delivery = await client.receive()
        seen.append((delivery.payload, delivery.retries, delivery.dead))
        await delivery.confirm()
    assert seen == [(b"one", 3, False), (b"", 0, False), (b"three", 255, False)]
    await until(lambda: not any(connection.peer.held for connection in broker.connections))


async def test_many_messages_are_pipelined(client: SspqClient, broker: SocketBroker) -> None:
    values = [b"%d" % i for i in range(20_000)] + [bytes(300_000)]
    assert await client.send_many(iter(values)) == len(values)
    await until(lambda: len(broker.memory.queues[1]) == len(values))
    assert [stored.batch.value(stored.index) for stored in broker.memory.queues[1]] == values


async def test_sending_nothing_is_nothing(client: SspqClient, broker: SocketBroker) -> None:
    assert await client.send_many([]) == 0


async def test_a_message_may_come_later_and_messages_be_sent_meanwhile(client: SspqClient) -> None:
    receiving = asyncio.create_task(client.receive())
    await client.send(b"late")
    assert (await receiving).payload == b"late"


async def test_a_dead_letter_is_received_as_one(client: SspqClient, broker: SocketBroker) -> None:
    await client.send(b"poison", retries=0)
    await client.receive()
    await lose(client, broker)
    delivery = await client.receive(dead=True)
    assert (delivery.payload, delivery.retries, delivery.dead) == (b"poison", 0, True)
    await delivery.confirm()
    assert broker.connected == 2


async def test_one_message_at_a_time(client: SspqClient) -> None:
    await client.send_many([b"one", b"two"])
    delivery = await client.receive()
    with pytest.raises(NotConfirmed):
        await client.receive()
    await delivery.confirm()
    await delivery.confirm()
    assert (await client.receive()).payload == b"two"


async def test_one_task_at_a_time(client: SspqClient, broker: SocketBroker) -> None:
    receiving = asyncio.create_task(client.receive())
    await broker.heard.wait()
    with pytest.raises(NotConfirmed, match="another task"):
        await client.receive()
    await client.send(b"one")
    assert (await receiving).payload == b"one"


async def test_a_message_that_came_too_late_is_kept_for_the_next_receive(
    client: SspqClient, broker: SocketBroker
) -> None:
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0.001)
    await client.send(b"late")
    await until(lambda: any(connection.peer.held for connection in broker.connections))
    assert (await client.receive(timeout=30)).payload == b"late"
    assert broker.memory.delivered == 1


async def test_asking_for_the_other_kind_gives_a_late_message_back(client: SspqClient, broker: SocketBroker) -> None:
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0.001)
    await client.send(b"late", retries=0)
    assert (await client.receive(dead=True)).payload == b"late"
    assert broker.connected == 2


async def test_no_receive_is_an_error_of_its_own(client: SspqClient, broker: SocketBroker) -> None:
    receiving = asyncio.create_task(client.receive())
    await broker.heard.wait()
    await until(lambda: bool(broker.memory.waiting))
    broker.memory.drain()
    broker.flush()
    with pytest.raises(Declined):
        await receiving
    await client.send(b"still there")
    assert (await client.receive()).payload == b"still there"


async def test_a_lost_connection_takes_back_what_was_held(client: SspqClient, broker: SocketBroker) -> None:
    await client.send(b"one")
    delivery = await client.receive()
    await lose(client, broker)
    with pytest.raises(ConnectionLost):
        await delivery.confirm()
    again = await client.receive()
    assert (again.payload, again.retries) == (b"one", 2)
    await again.confirm()


async def test_a_receive_whose_connection_breaks_says_so(client: SspqClient, broker: SocketBroker) -> None:
    receiving = asyncio.create_task(client.receive())
    await broker.heard.wait()
    broker.cut()
    with pytest.raises(ConnectionLost):
        await receiving
    await client.send(b"one")
    assert (await client.receive()).payload == b"one"


async def test_a_broker_that_does_not_read_holds_the_sender_back(broker: SocketBroker) -> None:
    broker.reading = False
    client = await SspqClient.connect(broker.endpoint)
    sending = asyncio.create_task(client.send_many([bytes(100_000)] * 1000))
    await until(lambda: bool(broker.connections))
    done, _ = await asyncio.wait([sending], timeout=0.2)
    assert not done
    for connection in broker.connections:
        connection.transport.resume_reading()
    assert await sending == 1000
    await client.close()


@pytest.mark.parametrize(
    "nonsense",
    [b"HTTP/1.1 400 Bad Request", frames.encode_send(0, b"one") * 2, frames.HEAD.pack(0x5599, 0x5E, 0, 2**32 - 1)],
    ids=["no packet", "two answers", "too large"],
)
async def test_a_broker_that_talks_nonsense_is_left(client: SspqClient, broker: SocketBroker, nonsense: bytes) -> None:
    broker.nonsense = nonsense
    with pytest.raises(ConnectionLost):
        await (await client.receive()).confirm()
    broker.nonsense = b""
    await client.send(b"one")
    assert (await client.receive()).payload == b"one"


async def test_packets_a_client_has_no_use_for_are_ignored(client: SspqClient, broker: SocketBroker) -> None:
    broker.nonsense = frames.encode_other() + frames.encode_confirm() + frames.encode_send(7, b"one")
    assert (await client.receive()).payload == b"one"


async def test_nobody_listening_is_a_lost_connection(unused_tcp_port: int) -> None:
    with pytest.raises(ConnectionLost):
        await SspqClient.connect(f"tcp://127.0.0.1:{unused_tcp_port}")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1", "tcp://", "udp://host:1"])
async def test_an_endpoint_must_be_one(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        await SspqClient.connect(endpoint)


@pytest.mark.parametrize("retries", [-1, 256])
async def test_retries_must_fit_into_a_byte(client: SspqClient, retries: int) -> None:
    with pytest.raises(ValueError, match="retries"):
        await client.send(b"one", retries=retries)


async def test_a_message_that_fits_into_no_packet_is_not_sent(
    client: SspqClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.protocols.sspq.client.PAYLOAD_MAX", 10)
    with pytest.raises(ValueError, match="fit into a packet"):
        await client.send(bytes(11))


async def test_a_closed_client_says_so(broker: SocketBroker) -> None:
    async with await SspqClient.connect(broker.endpoint) as client:
        await client.send(b"one")
    with pytest.raises(ClientClosed):
        await client.send(b"two")
    with pytest.raises(ClientClosed):
        await client.receive()
    await until(lambda: len(broker.memory.queues[1]) == 1)
