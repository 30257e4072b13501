"""SSPQ through real sockets: retries, the tail, dead letters, restarts, drains, and who may come in."""

import asyncio
import errno
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.config import ConfigError
from headrace.protocols.sspq.client import ConnectionLost, Declined, SspqClient
from headrace.server.node import Node
from headrace.server.tcp import Connection
from headrace.server.tls import client_context
from headrace.testing import KEY, broker
from tests.harness.peer import publish
from tests.harness.served import served
from tests.harness.sspq import (
    CONFIRM,
    DEAD_RECEIVE,
    FOR_EVER,
    HEAD,
    NO_RECEIVE,
    OTHER,
    RECEIVE,
    SEND,
    Packet,
    SspqPeer,
    packet,
    send,
)
from tests.harness.stream import connected
from tests.unit.server.test_engine import MoodyDisk
from tests.unit.server.test_tls import Authority

OPEN = {"sspq": "127.0.0.1:0"}


class Stream:
    """One connection to a broker in the test's own loop, packet by packet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self) -> Packet:
        _, kind, retries, size = HEAD.unpack(await self.reader.readexactly(HEAD.size))
        return kind, retries, await self.reader.readexactly(size)

    async def take(self, kind: int = RECEIVE) -> tuple[int, bytes]:
        self.send(packet(kind))
        answer, retries, payload = await self.read()
        assert answer == SEND
        return retries, payload

    def confirm(self) -> None:
        self.send(packet(CONFIRM))

    async def closed(self) -> bool:
        return await self.reader.read() == b""

    async def vanish(self) -> None:
        """Hang up without a word."""
        self.writer.transport.abort()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def peers(node: Node, count: int) -> AsyncIterator[list[Stream]]:
    """Connections that are hung up at the end."""
    host, port = node.endpoints["sspq"].removeprefix("tcp://").split(":")
    streams = [Stream(*await asyncio.open_connection(host, int(port))) for _ in range(count)]
    yield streams
    for stream in streams:
        await stream.vanish()


async def until(true: Callable[[], bool]) -> None:
    """Let the broker work until this is so."""
    while True:
        if true():
            return
        await asyncio.sleep(0)


async def stored(node: Node, count: int) -> None:
    """Wait until so many messages of the queue are durable."""
    await until(lambda: node.engine.log.count_from("sspq", 0) == count)


async def waiting(node: Node, count: int) -> None:
    """Wait until so many consumers wait."""
    await until(lambda: sum(info.waiting_consumers for info in node.engine.broker.subscriptions()) == count)


@pytest.mark.parametrize(("retries", "bytes_seen"), [(0, [0]), (1, [1, 0]), (3, [3, 2, 1, 0])])
async def test_a_message_is_delivered_once_more_than_its_retries_and_then_is_a_dead_letter(
    retries: int, bytes_seen: list[int]
) -> None:
    async with broker(listen=OPEN) as node, peers(node, len(bytes_seen) + 2) as (sender, *receivers, graveyard):
        sender.send(send(b"poison", retries))
        for receiver, byte in zip(receivers, bytes_seen, strict=True):
            assert await receiver.take() == (byte, b"poison")
            await receiver.vanish()
        assert await graveyard.take(DEAD_RECEIVE) == (0, b"poison")
        assert node.engine.broker.counters.dead == 1


async def test_with_255_retries_a_message_is_never_given_up() -> None:
    async with broker(listen=OPEN) as node, peers(node, 11) as (sender, *receivers):
        sender.send(send(b"stubborn", FOR_EVER))
        for receiver in receivers:
            assert await receiver.take() == (FOR_EVER, b"stubborn")
            await receiver.vanish()
        assert node.engine.broker.counters.dead == 0


async def test_what_comes_back_goes_behind_everything_stored() -> None:
    async with broker(listen=OPEN) as node, peers(node, 3) as (sender, first, second):
        sender.send(b"".join(send(b"%d" % n) for n in range(1, 5)))
        await stored(node, 4)
        assert await first.take() == (3, b"1")
        await first.vanish()
        await until(lambda: node.engine.broker.counters.nacked == 1)
        sender.send(send(b"5"))
        await stored(node, 5)
        seen = []
        for _ in range(5):
            seen.append(await second.take())
            second.confirm()
        assert seen == [(3, b"2"), (3, b"3"), (3, b"4"), (2, b"1"), (3, b"5")]


async def test_who_has_waited_longest_is_served_first() -> None:
    async with broker(listen=OPEN) as node, peers(node, 6) as (sender, *receivers):
        for number, receiver in enumerate(receivers, 1):
            receiver.send(packet(RECEIVE))
            await waiting(node, number)
        await receivers[0].vanish()
        await waiting(node, len(receivers) - 1)
        sender.send(b"".join(send(b"%d" % n) for n in range(1, 5)))
        assert [await receiver.read() for receiver in receivers[1:]] == [(SEND, 3, b"%d" % n) for n in range(1, 5)]


async def test_a_dead_letter_whose_reader_vanishes_is_always_there_again() -> None:
    async with broker(listen=OPEN) as node, peers(node, 9) as (sender, receiver, *graveyard):
        sender.send(send(b"dead", 0))
        await receiver.take()
        await receiver.vanish()
        for reader in graveyard[:-1]:
            assert await reader.take(DEAD_RECEIVE) == (0, b"dead")
            await reader.vanish()
        assert await graveyard[-1].take(DEAD_RECEIVE) == (0, b"dead")
        graveyard[-1].confirm()
        graveyard[-1].send(send(b"alive") + packet(RECEIVE))
        assert await graveyard[-1].read() == (SEND, 3, b"alive")


async def test_every_packet_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original clients read a packet with single reads, so none may come in pieces."""
    written: list[bytes] = []
    write = Connection.write

    def noted(connection: Connection, data: bytes) -> None:
        written.append(data)
        write(connection, data)

    monkeypatch.setattr(Connection, "write", noted)
    large = bytes(range(256)) * 4096
    async with broker(listen=OPEN) as node, peers(node, 2) as (sender, receiver):
        sender.send(send(large) + send(b"") + send(b"small"))
        for expected in (large, b"", b"small"):
            assert await receiver.take() == (3, expected)
            receiver.confirm()
        receiver.send(packet(RECEIVE))
        await waiting(node, 1)
    assert written == [send(large), send(b""), send(b"small"), packet(NO_RECEIVE)]


def test_messages_attempts_and_dead_letters_survive_kill_9(tmp_path: Path) -> None:
    """A message is delivered only once it is durable, and so is everything the broker did before it was stored."""
    with served(tmp_path, LISTEN__SSPQ="127.0.0.1:0") as running:
        port = running.ports["sspq"]
        peer = SspqPeer(port)
        peer.send(b"".join(send(name, retries) for name, retries in ((b"a", 3), (b"b", 0), (b"c", 255), (b"d", 3))))
        assert peer.take() == (3, b"a")
        peer.confirm()
        assert peer.take() == (0, b"b")
        peer.vanish()
        holder, other = SspqPeer(port), SspqPeer(port)
        assert holder.take() == (255, b"c")
        assert other.take() == (3, b"d")
        other.vanish()
        graveyard, last = SspqPeer(port), SspqPeer(port)
        assert graveyard.take(DEAD_RECEIVE) == (0, b"b")
        last.send(send(b"e"))
        later = [SspqPeer(port), SspqPeer(port)]
        assert {last.take()[1], later[0].take()[1]} == {b"d", b"e"}
        last.send(send(b"f"))
        assert later[1].take() == (3, b"f")
        running.process.kill()
        running.process.wait()
    with served(tmp_path, LISTEN__SSPQ="127.0.0.1:0") as running:
        peer = SspqPeer(running.ports["sspq"])
        seen = {}
        for _ in range(4):
            retries, payload = peer.take()
            seen[payload] = retries
            peer.confirm()
        assert seen.pop(b"f") in (2, 3)
        assert seen == {b"c": 255, b"d": 1, b"e": 2}
        assert peer.take(DEAD_RECEIVE) == (0, b"b")
        peer.confirm()
        peer.send(send(b"after"))
        assert peer.take() == (3, b"after")


def test_who_waits_when_the_broker_is_told_to_stop_hears_so(tmp_path: Path) -> None:
    with served(tmp_path, LISTEN__SSPQ="127.0.0.1:0") as running:
        port = running.ports["sspq"]
        waiting, holding = SspqPeer(port), SspqPeer(port)
        holding.send(send(b"held", 1))
        assert holding.take() == (1, b"held")
        waiting.send(packet(DEAD_RECEIVE) + packet(OTHER, 0, b"behind it"))
        assert running.wait_for_log("sspq.ignored")["packet"] == "0xff"
        running.process.send_signal(signal.SIGTERM)
        assert waiting.read() == (NO_RECEIVE, 0, b"")
        assert waiting.closed()
        assert holding.closed()
        assert running.process.wait() == 0


async def test_a_message_that_cannot_be_stored_ends_the_connection(tmp_path: Path) -> None:
    disk = MoodyDisk()
    async with broker(tmp_path, disk=disk, listen=OPEN) as node, peers(node, 2) as (sender, receiver):
        sender.send(send(b"kept"))
        await stored(node, 1)
        disk.write_error = errno.ENOSPC
        sender.send(send(b"lost"))
        await until(lambda: node.engine.refused_total == 1)
        sender.send(packet(CONFIRM))
        assert await sender.closed()
        disk.write_error = 0
        await until(lambda: node.engine.log.failing is None)
        assert await receiver.take() == (3, b"kept")


async def test_messages_of_another_protocol_come_with_the_topics_retries() -> None:
    topics = {"sspq": {"max_attempts": 6}}
    async with (
        broker(listen=OPEN, topics=topics) as node,
        connected(node) as blipmq,
        peers(node, 1) as (receiver,),
    ):
        blipmq.send(publish(b"sspq", b"from afar"))
        assert await receiver.take() == (5, b"from afar")


async def test_an_address_others_can_reach_needs_certificates_or_a_word(tmp_path: Path) -> None:
    everywhere = {"sspq": "0.0.0.0:0"}
    with pytest.raises(ConfigError, match=r"tls.client_ca.*sspq.allow_unauthenticated = true"):
        async with broker(listen=everywhere):
            raise AssertionError("opened")
    async with broker(listen=everywhere, sspq={"allow_unauthenticated": True}) as node:
        assert node.endpoints["sspq"].startswith("tcp://0.0.0.0:")
    authority = Authority(tmp_path, "ours")
    server = str(authority.issue("localhost"))
    tls = {"cert": server, "key": server, "client_ca": str(authority.path)}
    auth = {"api_keys": [KEY], "certificates": ["worker"]}
    async with broker(listen=everywhere, tls=tls, auth=auth) as node:
        port = node.endpoints["sspq"].rpartition(":")[2]
        assert node.endpoints["sspq"].startswith("tls://")
        known = client_context(authority.path, cert=authority.issue("worker"))
        known.check_hostname = False
        async with await SspqClient.connect(f"tls://127.0.0.1:{port}", tls=known) as client:
            await client.send(b"hello")
            assert (await client.receive()).payload == b"hello"
        stranger = client_context(authority.path)
        stranger.check_hostname = False
        with pytest.raises((ConnectionLost, ssl.SSLError)):
            async with await SspqClient.connect(f"tls://127.0.0.1:{port}", tls=stranger) as client:
                await client.receive()


async def test_a_certificates_scopes_are_held(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    server = str(authority.issue("localhost"))
    tls = {"cert": server, "key": server, "client_ca": str(authority.path)}
    keys = [{"name": "sender", "key": "unused", "publish": ["sspq"]}]
    async with broker(listen=OPEN, tls=tls, auth={"api_keys": keys, "certificates": ["worker"]}) as node:
        sender, worker = (client_context(authority.path, cert=authority.issue(name)) for name in ("sender", "worker"))
        for context in (sender, worker):
            context.check_hostname = False
        endpoint = node.endpoints["sspq"]
        async with await SspqClient.connect(endpoint, tls=sender) as client:
            await client.send(b"allowed")
            with pytest.raises(Declined):
                await client.receive()
        async with await SspqClient.connect(endpoint, tls=worker) as client:
            assert (await client.receive()).payload == b"allowed"


async def test_a_client_gets_through_a_drain_and_a_restart(tmp_path: Path) -> None:
    async with broker(tmp_path, listen=OPEN) as node:
        endpoint = node.endpoints["sspq"]
        client = await SspqClient.connect(endpoint)
        await client.send_many((b"%d" % n for n in range(1000)), retries=FOR_EVER)
        first = await client.receive()
        await first.confirm()
        held = await client.receive()
        other = await SspqClient.connect(endpoint)
        receiving = asyncio.create_task(other.receive(dead=True))
        await stored(node, 1000)
        await waiting(node, 1)
    with pytest.raises(Declined):
        await receiving
    with pytest.raises(ConnectionLost):
        await held.confirm()
    async with broker(tmp_path, listen={"sspq": endpoint.removeprefix("tcp://")}):
        seen = set()
        for _ in range(999):
            delivery = await client.receive()
            seen.add(int(delivery.payload))
            await delivery.confirm()
        assert seen == set(range(1, 1000))
        await client.close()
        await other.close()
