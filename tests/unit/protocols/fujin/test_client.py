"""The client against sessions in memory that behave, and streams that do not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.model.errors import BrokerError
from headrace.protocols.fujin import Dialect, FujinSettings, WriteHeaders
from headrace.protocols.fujin.client import (
    ClientSettings,
    ConnectionLost,
    Delivery,
    Disconnected,
    FujinClient,
    NoReply,
    Refused,
    Stopping,
)
from headrace.protocols.fujin.transports import BadEndpoint
from tests.unit.protocols.fujin.loopback import LoopbackStream, LoopbackTransport


@asynccontextmanager
async def joined(
    transport: LoopbackTransport | None = None, **settings: object
) -> AsyncIterator[tuple[FujinClient, LoopbackTransport]]:
    """A client and the transport it uses."""
    transport = transport or LoopbackTransport()
    async with FujinClient(transport, ClientSettings(**settings)) as client:  # type: ignore[arg-type]
        yield client, transport


def stored(transport: LoopbackTransport) -> list[tuple[str, bytes]]:
    return [(message.topic, message.value) for message in transport.house.broker.log]


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
async def test_what_is_written_is_read_and_settled_however_replies_are_cut(piece: int) -> None:
    async with joined(LoopbackTransport(piece=piece)) as (client, transport):
        writer = await client.writer()
        await writer.write("orders", b"one", headers=[("k", b"v")])
        assert await writer.write_many("orders", [b"two", b"", b"x" * 100_000]) == 3
        reader = await client.reader("orders")
        fetched = await reader.fetch(10)
        assert [delivery.value for delivery in fetched] == [b"one", b"two", b"", b"x" * 100_000]
        assert await reader.ack([delivery.id for delivery in fetched[:2]]) == [True, True]
        assert await reader.ack([fetched[0].id, b"?", fetched[2].id]) == [False, False, True]
        assert await fetched[3].nack()
        (again,) = await reader.fetch(10)
        assert (again.value, again.id) == (fetched[3].value, fetched[3].id)
        assert await again.ack()
        assert transport.house.broker.log[0].headers == [("k", b"v")]


async def test_a_first_message_that_looks_like_headers_is_written_as_it_is() -> None:
    for headers in (True, False):
        for message in (b"", b"x" * 70_000):
            async with joined() as (client, transport):
                writer = await client.writer(headers=headers)
                await writer.write("orders", message)
                assert stored(transport) == [("orders", message)]


async def test_nothing_of_finding_the_form_is_stored() -> None:
    async with joined() as (client, transport), await client.writer():
        assert stored(transport) == []


async def test_a_writer_the_broker_does_not_understand_says_what_to_do() -> None:
    never = LoopbackTransport(FujinSettings(write_headers=WriteHeaders.NEVER))
    async with joined(never) as (client, _):
        with pytest.raises(Refused, match="does not read WRITEs with headers"):
            await client.writer()
        writer = await client.writer(headers=False)
        with pytest.raises(ValueError, match="no headers"):
            await writer.write("orders", b"x", headers=[("k", b"v")])


async def test_a_refused_message_is_named_by_its_place() -> None:
    async with joined() as (client, transport):
        writer = await client.writer()
        transport.house.fail("no space")
        with pytest.raises(Refused, match="durable publish failed: no space") as caught:
            await writer.write_many("orders", [b"a", b"b"])
        assert caught.value.indexes == (0, 1)
        transport.house.heal()
        with pytest.raises(Refused, match="empty topic"):
            await writer.write("", b"x")
        await writer.write("orders", b"c")
        assert stored(transport) == [("orders", b"c")]


async def test_thousands_of_writes_are_pipelined_and_all_confirmed() -> None:
    async with joined() as (client, transport):
        writer = await client.writer()
        assert await writer.write_many("orders", (b"%d" % i for i in range(5000))) == 5000
        assert [value for _, value in stored(transport)] == [b"%d" % i for i in range(5000)]
        assert await writer.write_many("orders", []) == 0


async def test_a_transaction_is_stored_at_its_end_all_topics_together() -> None:
    async with joined() as (client, transport):
        writer = await client.writer("w1")
        async with writer.transaction() as open_one:
            await open_one.write("a", b"1")
            await open_one.write_many("b", [b"2", b"3"])
            assert stored(transport) == []
        assert stored(transport) == [("a", b"1"), ("b", b"2"), ("b", b"3")]


async def test_a_transaction_that_raises_is_rolled_back() -> None:
    async with joined() as (client, transport):
        writer = await client.writer()

        async def fail() -> None:
            async with writer.transaction():
                await writer.write("a", b"1")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        await writer.write("a", b"2")
        assert stored(transport) == [("a", b"2")]


async def test_transactions_out_of_order_are_refused() -> None:
    async with joined() as (client, _):
        writer = await client.writer()
        for step in (writer.commit, writer.rollback):
            with pytest.raises(Refused, match="invalid tx state"):
                await step()
        await writer.begin()
        with pytest.raises(Refused, match="invalid tx state"):
            await writer.begin()
        await writer.rollback()


async def test_a_commit_the_disk_refuses_is_refused() -> None:
    async with joined() as (client, transport):
        writer = await client.writer()
        transport.house.fail("broken")
        with pytest.raises(Refused, match="broken"):
            async with writer.transaction():
                await writer.write("a", b"1")
        assert stored(transport) == []


async def test_closing_a_writer_rolls_back() -> None:
    async with joined() as (client, transport):
        async with await client.writer() as writer:
            await writer.begin()
            await writer.write("a", b"1")
        assert stored(transport) == []
        assert transport.streams[0].sent.endswith(b"\x0a")


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_both_dialects_fetch_ack_and_come_back_without_messages(dialect: Dialect) -> None:
    async with joined(LoopbackTransport(FujinSettings(dialect=dialect)), dialect=dialect) as (client, transport):
        await (await client.writer()).write("a", b"1")
        reader = await client.reader("a")
        (delivery,) = await reader.fetch(5)
        assert await reader.ack([delivery.id, b"no such id"]) == [True, False]
        waiting = asyncio.create_task(reader.fetch(5))
        await asyncio.sleep(0)
        transport.advance(500)
        assert await waiting == []


async def test_with_auto_commit_there_are_no_ids() -> None:
    async with joined() as (client, _):
        await (await client.writer()).write_many("a", [b"1", b"2"])
        reader = await client.reader("a", auto_commit=True)
        assert [(d.id, d.value) for d in await reader.fetch(5)] == [(b"", b"1"), (b"", b"2")]


async def test_more_ids_than_one_command_may_have_are_settled_by_several() -> None:
    async with joined(LoopbackTransport(FujinSettings(push_window=40_000)), prefetch=40_000) as (client, transport):
        await (await client.writer()).write_many("a", [b"x"] * 20_000)
        subscription = await client.subscribe("a")
        deliveries: list[Delivery] = []
        while len(deliveries) < 20_000:
            deliveries += await subscription.take(20_000)
        assert await subscription.ack([delivery.id for delivery in deliveries]) == [True] * 20_000
        assert await subscription.nack([]) == []
        assert not transport.house.broker.topics["a"].held


async def test_fetches_that_wait_do_not_hold_back_each_other() -> None:
    async with joined() as (client, _):
        writer, reader = await client.writer(), await client.reader("a")
        first, second = asyncio.create_task(reader.fetch(1)), asyncio.create_task(reader.fetch(1))
        await asyncio.sleep(0)
        await writer.write_many("a", [b"1", b"2"])
        assert [d.value for d in (*await first, *await second)] == [b"1", b"2"]


async def test_a_subscription_is_iterated_over_and_settled() -> None:
    async with joined() as (client, _):
        writer, subscription = await client.writer(), await client.subscribe("a")
        await writer.write_many("a", [b"1", b"2", b"3"])
        seen = []
        async for delivery in subscription:
            seen.append(delivery.value)
            assert await delivery.ack()
            if len(seen) == 3:
                break
        assert seen == [b"1", b"2", b"3"]


async def test_what_nobody_takes_is_not_read() -> None:
    async with joined(LoopbackTransport(piece=10), prefetch=4) as (client, transport):
        writer, subscription = await client.writer(), await client.subscribe("a", auto_commit=True)
        await writer.write_many("a", [b"%03d" % i for i in range(100)])
        stream = transport.streams[1]
        await settle_down(stream)
        assert stream.reads < 12
        taken: list[Delivery] = []
        while len(taken) < 100:
            taken += await subscription.take(7)
        assert [d.value for d in taken] == [b"%03d" % i for i in range(100)]


async def settle_down(stream: LoopbackStream) -> None:
    """Let the loop run until the client reads no more."""
    before = -1
    while stream.reads != before:
        before = stream.reads
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_reply_is_found_behind_messages_nobody_took_yet() -> None:
    async with joined(LoopbackTransport(piece=30), prefetch=1) as (client, _):
        writer, subscription = await client.writer(), await client.subscribe("a")
        await writer.write_many("a", [b"%03d" % i for i in range(50)])
        (first,) = await subscription.take(1)
        assert await first.ack()


async def test_a_closed_subscription_ends_its_iteration() -> None:
    async with joined() as (client, transport):
        subscription = await client.subscribe("a")
        waiting = asyncio.create_task(anext(subscription, None))
        await asyncio.sleep(0)
        await subscription.close()
        assert await waiting is None
        assert transport.streams[0].sent.count(b"\x0a") == 1
        assert transport.streams[0].ended


async def test_a_refused_reader_leaves_no_stream_behind() -> None:
    async with joined() as (client, transport):
        with pytest.raises(Refused, match="not allowed to subscribe to secret"):
            await client.reader("secret")
        assert transport.streams[0].closed
        with pytest.raises(BrokerError, match="empty topic"):
            await client.subscribe("")
        assert len(transport.streams) == 1


async def test_an_idle_writer_leaves_when_the_broker_stops_a_busy_one_when_it_is_done() -> None:
    async with joined() as (client, transport):
        idle, busy = await client.writer(), await client.writer()
        await busy.begin()
        await busy.write("a", b"1")
        transport.drain()
        await settle_down(transport.streams[0])
        assert [stream.peer.ended for stream in transport.streams] == [True, False]
        with pytest.raises(ConnectionLost):
            await idle.write("a", b"late")
        with pytest.raises(Stopping):
            await busy.write("a", b"late")
        await busy.commit()
        await settle_down(transport.streams[1])
        assert transport.streams[1].peer.ended
        assert stored(transport) == [("a", b"1")]


async def test_readers_are_told_that_the_broker_stops_and_can_settle_what_they_hold() -> None:
    async with joined() as (client, transport):
        writer = await client.writer()
        await writer.write_many("a", [b"1", b"2"])
        subscription, reader = await client.subscribe("a"), await client.reader("b")
        deliveries = await subscription.take(2)
        fetching = asyncio.create_task(reader.fetch(1))
        await asyncio.sleep(0)
        transport.drain()
        assert await anext(subscription, None) is None
        assert await deliveries[0].ack()
        with pytest.raises(Stopping):
            await fetching
        with pytest.raises(Stopping):
            await reader.fetch(1)


async def test_what_waits_for_a_stream_that_breaks_learns_of_it() -> None:
    async with joined() as (client, transport):
        writer, reader, subscription = await client.writer(), await client.reader("a"), await client.subscribe("a")
        transport.streams[0].deaf = True
        waiting = [
            asyncio.create_task(writer.write("a", b"1")),
            asyncio.create_task(reader.fetch(1)),
            asyncio.create_task(subscription.take(1)),
        ]
        await asyncio.sleep(0)
        for stream in transport.streams:
            stream.snap("reset")
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost] * 3
        with pytest.raises(ConnectionLost, match="reset"):
            await writer.write("a", b"2")


async def test_a_broker_that_disconnects_is_told_from_one_that_is_lost() -> None:
    async with joined() as (client, transport):
        writer = await client.writer()
        transport.streams[0].inject(b"\x0a")
        await settle_down(transport.streams[0])
        with pytest.raises(Disconnected):
            await writer.write("a", b"1")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x63",
        b"\x02\0\0\0\1\x07",
        b"\x06\0\0\x10\0",
        b"\x02\0\0\0\1\1\xff\xff\xff\xff",
        b"\x07\0\0\0\1\0\0\0\0\1\xff\xff\xff\xff",
    ],
)
async def test_nonsense_ends_the_stream(nonsense: bytes) -> None:
    async with joined() as (client, transport):
        reader = await client.reader("a")
        transport.streams[0].inject(nonsense)
        await settle_down(transport.streams[0])
        with pytest.raises(ConnectionLost, match=r"not Fujin|ended"):
            await reader.fetch(1)


async def test_a_broker_that_says_nothing_is_given_up() -> None:
    async with joined(reply_timeout_s=0.01) as (client, transport):
        writer, reader = await client.writer(), await client.reader("a")
        for stream in transport.streams:
            stream.deaf = True
        with pytest.raises(NoReply, match="WRITE"):
            await writer.write("a", b"1")
        with pytest.raises(NoReply, match="FETCH"):
            await reader.fetch(1)
        with pytest.raises(NoReply):
            await writer.write("a", b"2")


async def test_pings_are_answered() -> None:
    async with joined() as (client, transport):
        ping, other = (LoopbackStream(transport, transport.house.stream(name)) for name in ("ping", "other"))
        for stream, first in ((ping, b"\x0b"), (other, b"\x0c")):
            stream.deaf = stream.peer.ended = True
            stream.inject(first)
            transport.offered.put_nowait(stream)
        await settle_down(other)
        assert (ping.sent, ping.ended, ping.closed) == (b"\x0b", True, False)
        assert (other.sent, other.closed) == (b"", True)
        await client.writer()


async def test_the_end_of_the_connection_ends_the_wait_for_pings() -> None:
    async with joined() as (client, transport):
        transport.offered.put_nowait(None)
        await client.writer()


async def test_correlation_ids_begin_again_after_the_last() -> None:
    async with joined() as (client, transport):
        writer = await client.writer()
        writer._line._next_id = 2**32 - 3
        await writer.write_many("a", [b"%d" % i for i in range(10)])
        assert len(stored(transport)) == 10


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1", "quic://", "quic://h:x", "127.0.0.1:1"])
async def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(BadEndpoint):
        await FujinClient.connect(endpoint)
