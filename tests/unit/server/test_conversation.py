"""Strict order and back-pressure of one connection, over real sockets."""

import struct

from headrace.testing import broker
from tests.harness.peer import ACK, NACK, PING, POLL, PONG, PUBLISH, frame, publish
from tests.harness.stream import connected


async def test_a_poll_behind_a_publish_of_the_same_write_delivers_it() -> None:
    async with broker() as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        poll = frame(POLL, 7, subscription.to_bytes(8))
        peer.send(publish(b"demo", b"one") + poll + publish(b"demo", b"two") + poll + frame(PING, 9))
        frames = [await peer.read() for _ in range(3)]
        assert [(kind, tag) for kind, tag, _ in frames] == [(PUBLISH, 1), (PUBLISH, 2), (PONG, 9)]


async def test_a_poll_with_nothing_pending_is_answered_by_the_fence_alone() -> None:
    async with broker() as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        assert await peer.take(subscription, 3) == []


async def test_an_ack_guessed_ahead_of_its_delivery_counts_in_order_of_arrival() -> None:
    async with broker() as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        peer.send(publish(b"demo", b"one"))
        await peer.fence()
        named = subscription.to_bytes(8)
        peer.send(frame(POLL, 0, named) + frame(ACK, 1, named) + frame(ACK, 1, named) + frame(PING, 0))
        frames = [await peer.read() for _ in range(3)]
        assert [(kind, tag) for kind, tag, _ in frames] == [(PUBLISH, 1), (NACK, 1), (PONG, 0)]
        assert node.engine.broker.counters.acked == 1


async def test_each_unknown_ack_of_a_run_is_refused_by_name_and_the_others_count() -> None:
    async with broker() as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        peer.send(b"".join(publish(b"demo", b"%d" % n) for n in range(3)))
        await peer.fence()
        assert len(await peer.take(subscription, 3)) == 3
        peer.ack(subscription, 2, 9, 1, 1)
        refused = await peer.fence()
        assert [(kind, tag, payload[:2]) for kind, tag, payload in refused] == [
            (NACK, 9, struct.pack(">H", 404)),
            (NACK, 1, struct.pack(">H", 404)),
        ]
        assert node.engine.broker.counters.acked == 2


async def test_what_was_promised_is_sent_to_a_peer_that_stopped_sending() -> None:
    async with broker() as node, connected(node) as peer:
        peer.send(publish(b"demo", b"one") + frame(PING, 5))
        peer.writer.write_eof()
        assert await peer.read() == (PONG, 5, b"")
        assert await peer.reader.read() == b""


async def test_a_message_of_sixteen_mebibytes_passes_through() -> None:
    value = bytes(range(256)) * 65535
    async with broker(retry={"ack_wait_ms": 60_000}) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"wide")
        peer.send(publish(b"wide", value) + publish(b"wide", b"small"))
        await peer.fence()
        assert [value for _, value in await peer.take(subscription, 2)] == [value, b"small"]


async def test_publishes_wait_while_the_log_is_behind() -> None:
    limits, retry = {"pending_bytes_max": 1 << 20}, {"ack_wait_ms": 60_000}
    async with broker(limits=limits, retry=retry) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"much")
        for _ in range(64):
            peer.send(publish(b"much", bytes(256 << 10)))
            await peer.writer.drain()
        await peer.fence()
        assert len(await peer.take(subscription, 64)) == 64


async def test_qos_zero_is_tagged_with_the_poll_and_needs_no_ack() -> None:
    async with broker() as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo", qos=0)
        peer.send(publish(b"demo", b"one") + frame(POLL, 77, subscription.to_bytes(8)))
        kind, tag, payload = await peer.read()
        assert (kind, tag, payload[0]) == (PUBLISH, 77, 0)
        assert node.engine.broker.counters.inflight == 0


async def test_scopes_are_held_for_topics() -> None:
    keys = [{"name": "svc", "key": "test-key", "publish": ["orders.*"], "subscribe": ["orders.new"]}]
    async with broker(auth={"api_keys": keys}) as node, connected(node) as peer:
        await peer.subscribe(b"orders.new")
        peer.send(publish(b"orders.old", b"x", 4) + publish(b"secret", b"x", 5))
        refused = await peer.fence()
        assert [(kind, tag, payload[:2]) for kind, tag, payload in refused] == [(NACK, 5, struct.pack(">H", 401))]
        peer.send(frame(4, 6, b"\x00\x06secret\x01"))
        assert (await peer.read())[:2] == (NACK, 6)


async def test_only_the_broker_publishes_to_its_own_topics() -> None:
    async with broker() as node, connected(node) as peer:
        peer.send(publish(b"$dead.demo", b"x", 4) + publish(b"$redriven", b"x", 5))
        assert [(kind, tag) for kind, tag, _ in await peer.fence()] == [(NACK, 4), (NACK, 5)]
