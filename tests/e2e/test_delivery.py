"""What becomes of messages over time, through a real socket and across restarts: retries, dead letters, expiry."""

import asyncio
from pathlib import Path

import pytest

from headrace.testing import broker
from tests.harness.clock import StillClock, TurnedClock
from tests.harness.eventually import eventually
from tests.harness.peer import NACK, POLL, frame, publish
from tests.harness.stream import connected, delivered

LITERAL = {"ack_wait_ms": 0}
"""BlipMQ's printed timer: the backoff alone."""


async def test_what_is_not_acked_in_time_comes_again_with_its_tag_and_then_dies() -> None:
    clock = TurnedClock()
    async with broker(clock=clock, retry=LITERAL) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        graveyard = await peer.subscribe(b"$dead.demo")
        peer.send(publish(b"demo", b"one"))
        await peer.fence()
        for backoff_s in (0.1, 0.2, 0.4):
            assert await peer.take(subscription, 5) == [(1, b"one")]
            clock.turn(backoff_s * 0.5)
            assert await peer.take(subscription, 5) == []
            clock.turn(backoff_s * 0.51)
        assert await peer.take(subscription, 5) == []
        await node.engine.drained(10)
        assert await peer.take(graveyard, 5) == [(1, b"one")]
        assert node.engine.broker.counters.dead == 1


async def test_a_late_ack_counts_until_the_message_is_delivered_again() -> None:
    clock = TurnedClock()
    async with broker(clock=clock, retry=LITERAL) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        peer.send(publish(b"demo", b"one"))
        await peer.fence()
        await peer.take(subscription, 1)
        clock.turn(0.15)
        peer.ack(subscription, 1)
        assert await peer.fence() == []
        assert await peer.take(subscription, 1) == []
        peer.ack(subscription, 1)
        assert [(kind, tag) for kind, tag, _ in await peer.fence()] == [(NACK, 1)]


async def test_attempts_survive_a_restart(tmp_path: Path) -> None:
    clock = TurnedClock()
    for attempt in (1, 2, 3):
        async with broker(tmp_path, clock=clock, retry=LITERAL) as node, connected(node) as peer:
            subscription = await peer.subscribe(b"demo")
            if attempt == 1:
                peer.send(publish(b"demo", b"one"))
                await peer.fence()
            assert await peer.take(subscription, 1) == [(1, b"one")]
            (info,) = node.engine.broker.subscriptions()
            assert (info.id, info.in_flight) == (subscription, 1)
        clock.turn(1)
    async with broker(tmp_path, clock=clock, retry=LITERAL) as node, connected(node) as peer:
        assert await peer.take(subscription, 1) == []
        assert node.engine.broker.counters.dead == 1


async def test_a_recovered_subscription_goes_to_the_first_who_asks_and_only_to_him(tmp_path: Path) -> None:
    async with broker(tmp_path) as node, connected(node) as peer:
        first = await peer.subscribe(b"demo")
        assert await peer.subscribe(b"demo") == first + 1
    async with broker(tmp_path) as node, connected(node) as peer:
        peer.send(publish(b"demo", b"one"))
        assert [await peer.subscribe(b"demo") for _ in range(3)] == [first, first + 1, first + 2]


async def test_messages_of_a_topic_with_a_time_to_live_expire_and_are_counted() -> None:
    clock = TurnedClock()
    async with broker(clock=clock, topics={"brief": {"ttl_s": 10}}) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"brief")
        peer.send(publish(b"brief", b"old"))
        await peer.fence()
        clock.turn(11)
        peer.send(publish(b"brief", b"new"))
        await peer.fence()
        assert [value for _, value in await peer.take(subscription, 5)] == [b"new"]
        assert node.engine.broker.counters.expired == 1


async def test_messages_of_a_topic_with_a_delay_come_when_they_are_due() -> None:
    clock = TurnedClock()
    async with broker(clock=clock, topics={"later": {"delay_ms": 60_000}}) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"later")
        peer.send(publish(b"later", b"one"))
        await peer.fence()
        assert await peer.take(subscription, 5) == []
        clock.turn(61)
        assert [value for _, value in await peer.take(subscription, 5)] == [b"one"]


async def test_a_qos_zero_subscription_keeps_the_newest_and_counts_the_rest() -> None:
    async with broker(broker={"qos0_pending_max": 10}) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo", qos=0)
        peer.send(b"".join(publish(b"demo", b"%d" % n) for n in range(25)))
        await peer.fence()
        assert [value for _, value in await peer.take(subscription, 50)] == [b"%d" % n for n in range(15, 25)]
        assert node.engine.broker.counters.dropped == 15


async def test_an_abandoned_subscription_is_removed() -> None:
    async with broker(broker={"subscription_expiry_s": 1}) as node, connected(node) as peer:
        await peer.subscribe(b"demo")
        while node.engine.broker.subscriptions():
            await asyncio.sleep(0)
            await peer.fence()


@pytest.mark.parametrize(("late_s", "got"), [(0, [(1, b"one")]), (2, [])])
async def test_a_poll_in_vain_is_good_for_what_comes_a_moment_later(late_s: int, got: list[tuple[int, bytes]]) -> None:
    clock = StillClock()
    async with (
        broker(clock=clock, blipmq={"poll_wait_ms": 1000}) as node,
        connected(node) as peer,
        connected(node) as publisher,
    ):
        subscription = await peer.subscribe(b"demo")
        peer.send(frame(POLL, 0, subscription.to_bytes(8)))
        await eventually(lambda: node.engine.standing)
        clock.turn(late_s)
        publisher.send(publish(b"demo", b"one"))
        assert await publisher.fence() == []
        assert delivered(await peer.fence()) == got
