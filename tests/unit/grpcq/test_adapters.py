"""The adapter contract, held by every adapter: in memory, a broker over gRPC, a broker in the same process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from headrace.broker.deadletters import REASON
from headrace.grpcq import (
    ConsumeResult,
    HeadraceAdapter,
    MemoryAdapter,
    Message,
    NotAMessage,
    QueueAdapter,
    ReceiptError,
    Rejected,
    Unavailable,
)
from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.names import dead_topic
from headrace.server.node import Node
from headrace.testing import KEY, broker
from tests.harness.clock import TurnedClock

QUEUE = "orders"
WAIT_S = 10.0


@dataclass
class Bench:
    """An adapter, and hands on what is behind it."""

    adapter: QueueAdapter
    dead: Callable[[], list[tuple[bytes, str]]]
    put: Callable[[bytes], Awaitable[None]]
    turn: Callable[[float], None]


def dead_letters(node: Node) -> list[tuple[bytes, str]]:
    found = []
    batch: Batch | None = node.engine.log.batch_at(dead_topic(QUEUE), 0)
    while batch is not None:
        messages = [batch.message(i) for i in range(batch.count)]
        found += [(message.value, dict(message.headers)[REASON].decode()) for message in messages]
        batch = node.engine.log.batch_at(dead_topic(QUEUE), batch.end)
    return found


class MemoryClock:
    """Seconds a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(params=["memory", "grpc", "embedded"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "memory":
        clock = MemoryClock()
        memory = MemoryAdapter(clock=clock)

        async def put(data: bytes) -> None:
            memory.put(QUEUE, data)

        yield Bench(memory, lambda: [(d.data, d.reason) for d in memory.dead_letters], put, clock.turn)
        return
    turned = TurnedClock()
    async with broker(listen={"grpc": "127.0.0.1:0"}, retry={"backoff_ms": 0}, clock=turned) as node:
        if request.param == "grpc":
            adapter = HeadraceAdapter.connect(node.endpoints["grpc"], KEY)
        else:
            adapter = HeadraceAdapter.embedded(node)

        async def store(data: bytes) -> None:
            part = build_batch(QUEUE, [data], timestamp_us=1, protocol=Protocol.GRPCQ)
            await node.engine.publish_durably(QUEUE, part, 1)

        yield Bench(adapter, lambda: dead_letters(node), store, turned.turn)
        await adapter.close()


def message(number: int = 0, **fields: object) -> Message:
    known: dict[str, object] = {"topic": "shop.Orders", "action": "Place", "payload": b"%d" % number}
    return Message(**(known | fields))  # type: ignore[arg-type]


def payloads(result: ConsumeResult) -> list[bytes]:
    return [item.message().payload for item in result.items]


async def test_messages_come_in_order_and_once(bench: Bench) -> None:
    await bench.adapter.publish(QUEUE, *(message(i) for i in range(5)))
    first = await bench.adapter.consume(QUEUE, 3, wait_s=WAIT_S)
    second = await bench.adapter.consume(QUEUE, 3)
    assert payloads(first) == [b"0", b"1", b"2"]
    assert payloads(second) == [b"3", b"4"]
    for item in (*first.items, *second.items):
        await item.receipt.ack()
    assert (await bench.adapter.consume(QUEUE, 10)).items == []


async def test_an_empty_queue_gives_nothing_at_once(bench: Bench) -> None:
    assert (await bench.adapter.consume(QUEUE, 10)).items == []


async def test_a_consumer_waits_for_the_first_message(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.adapter.consume(QUEUE, 10, wait_s=WAIT_S))
    await bench.adapter.publish(QUEUE, message())
    assert payloads(await waiting) == [b"0"]


@pytest.mark.parametrize(
    "bad",
    [
        {"topic": ""},
        {"action": ""},
        {"topic": " shop.Orders"},
        {"action": "Place\n"},
        {"payload": bytes(262_145)},
    ],
    ids=["no topic", "no action", "space in a topic", "newline in an action", "payload too large"],
)
async def test_one_bad_message_keeps_all_out(bench: Bench, bad: dict[str, object]) -> None:
    with pytest.raises(Rejected):
        await bench.adapter.publish(QUEUE, message(1), message(2, **bad), message(3))
    assert (await bench.adapter.consume(QUEUE, 10)).items == []


async def test_what_is_published_again_under_its_id_is_stored_once(bench: Bench) -> None:
    await bench.adapter.publish(QUEUE, message(1, message_id="one"), message(2, message_id=""))
    await bench.adapter.publish(QUEUE, message(1, message_id="one"), message(2, message_id=""), message(3))
    found = payloads(await bench.adapter.consume(QUEUE, 10, wait_s=WAIT_S))
    assert found == [message(n).payload for n in (1, 2, 2, 3)]


async def test_a_payload_that_is_too_large_is_named_with_both_sizes(bench: Bench) -> None:
    with pytest.raises(Rejected, match=r"shop\.Orders\.Place has 262145 bytes, more than the 262144 allowed"):
        await bench.adapter.publish(QUEUE, message(payload=bytes(262_145)))


@pytest.mark.parametrize("size", [0, 262_144])
async def test_an_empty_and_a_just_fitting_payload_pass(bench: Bench, size: int) -> None:
    await bench.adapter.publish(QUEUE, message(payload=bytes(size)))
    assert payloads(await bench.adapter.consume(QUEUE, 1, wait_s=WAIT_S)) == [bytes(size)]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "$own", "a\n"])
async def test_bad_queue_names_are_refused(bench: Bench, name: str) -> None:
    with pytest.raises(Rejected):
        await bench.adapter.publish(name, message())
    with pytest.raises(Rejected):
        await bench.adapter.consume(name, 1)


async def test_queues_do_not_mix(bench: Bench) -> None:
    await bench.adapter.publish("a.b_c-D9", message(1))
    assert (await bench.adapter.consume(QUEUE, 1)).items == []
    assert payloads(await bench.adapter.consume("a.b_c-D9", 1, wait_s=WAIT_S)) == [b"1"]


async def test_publishing_nothing_is_fine(bench: Bench) -> None:
    await bench.adapter.publish(QUEUE)
    assert (await bench.adapter.consume(QUEUE, 1)).items == []


@pytest.mark.parametrize("first", ["ack", "nack"])
@pytest.mark.parametrize("second", ["ack", "nack"])
async def test_a_receipt_is_good_once(bench: Bench, first: str, second: str) -> None:
    await bench.adapter.publish(QUEUE, message())
    (item,) = (await bench.adapter.consume(QUEUE, 1, wait_s=WAIT_S)).items
    await getattr(item.receipt, first)()
    with pytest.raises(ReceiptError):
        await getattr(item.receipt, second)()


async def test_a_nacked_message_comes_back_with_its_attempt_counted_and_dies_after_the_last(bench: Bench) -> None:
    await bench.adapter.publish(QUEUE, message(7))
    for attempt in (1, 2, 3):
        (item,) = (await bench.adapter.consume(QUEUE, 1, wait_s=WAIT_S)).items
        assert item.attempt == attempt
        await item.receipt.nack(f"reason {attempt}")
    assert (await bench.adapter.consume(QUEUE, 1)).items == []
    ((data, reason),) = bench.dead()
    assert Message.FromString(data).payload == b"7"
    assert reason == "reason 3"


async def test_a_message_may_die_at_once(bench: Bench) -> None:
    await bench.adapter.publish(QUEUE, message(1), message(2))
    first, second = (await bench.adapter.consume(QUEUE, 2, wait_s=WAIT_S)).items
    await first.receipt.nack("hopeless", dead=True)
    await second.receipt.ack()
    assert [reason for _, reason in bench.dead()] == ["hopeless"]


async def test_what_is_not_settled_in_time_comes_back_and_the_old_receipt_is_worthless(bench: Bench) -> None:
    await bench.adapter.publish(QUEUE, message())
    (old,) = (await bench.adapter.consume(QUEUE, 1, wait_s=WAIT_S, visibility_s=5)).items
    bench.turn(4.9)
    assert (await bench.adapter.consume(QUEUE, 1)).items == []
    bench.turn(0.2)
    (new,) = (await bench.adapter.consume(QUEUE, 1)).items
    assert new.attempt == 2
    with pytest.raises(ReceiptError):
        await old.receipt.ack()
    await new.receipt.ack()


async def test_consumers_compete(bench: Bench) -> None:
    await bench.adapter.publish(QUEUE, *(message(i) for i in range(20)))
    results = await asyncio.gather(*(bench.adapter.consume(QUEUE, 5, wait_s=WAIT_S) for _ in range(4)))
    assert sorted(int(p) for result in results for p in payloads(result)) == list(range(20))


async def test_unknown_fields_and_everything_known_survive(bench: Bench) -> None:
    unknown = b"\xc2\x3e\x05hello"
    sent = message(originator="me", message_id="m-1", timestamp_ms=17, metadata={"trace_id": "abc"})
    sent.MergeFromString(unknown)
    await bench.adapter.publish(QUEUE, sent)
    (item,) = (await bench.adapter.consume(QUEUE, 1, wait_s=WAIT_S)).items
    assert item.message() == sent
    assert unknown in item.data


async def test_bytes_that_are_no_message_are_delivered_as_such(bench: Bench) -> None:
    await bench.adapter.publish(QUEUE, message(1))
    await bench.put(b"\xff\xff")
    await bench.adapter.publish(QUEUE, message(2))
    first, bad, last = (await bench.adapter.consume(QUEUE, 3, wait_s=WAIT_S)).items
    assert (first.message().payload, last.message().payload) == (b"1", b"2")
    with pytest.raises(NotAMessage):
        bad.message()


async def test_a_broker_that_is_gone_is_unavailable() -> None:
    async with broker(listen={"grpc": "127.0.0.1:0"}) as node:
        adapter = HeadraceAdapter.connect(node.endpoints["grpc"], KEY)
        await adapter.publish(QUEUE, message())
        (item,) = (await adapter.consume(QUEUE, 1, wait_s=WAIT_S)).items
    with pytest.raises(Unavailable):
        await adapter.publish(QUEUE, message())
    with pytest.raises(Unavailable):
        await adapter.consume(QUEUE, 1)
    with pytest.raises(Unavailable):
        await item.receipt.ack()
    await adapter.close()


async def test_a_wrong_key_is_rejected() -> None:
    async with broker(listen={"grpc": "127.0.0.1:0"}) as node:
        adapter = HeadraceAdapter.connect(node.endpoints["grpc"], "guess")
        with pytest.raises(Rejected, match="key is not known"):
            await adapter.publish(QUEUE, message())
        await adapter.close()
