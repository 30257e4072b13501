"""The client against a broker that behaves, and one that does not."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.model.batch import Batch
from headrace.model.errors import BrokerError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.protocols.blipmq.client import BlipmqClient, ClientClosed, ClientSettings, ConnectionLost, Refused
from headrace.protocols.blipmq.frames import LENGTH_MAX
from tests.unit.protocols.blipmq.broker_on_a_socket import SocketBroker, broker_on_a_socket

KEY = "dev-key"
IMPATIENT = ClientSettings(reconnect_min_s=0.001, reconnect_max_s=0.01, empty_wait_max_s=0.002)


@pytest.fixture
async def broker() -> AsyncIterator[SocketBroker]:
    async with broker_on_a_socket() as running:
        yield running


@pytest.fixture
async def client(broker: SocketBroker) -> AsyncIterator[BlipmqClient]:
    async with await BlipmqClient.connect(broker.endpoint, KEY, settings=IMPATIENT) as connected:
        yield connected


def stored(broker: SocketBroker) -> list[bytes]:
    """Every value the broker was given, in order."""
    batches = [Batch(publish.record, RECORD_HEADER_SIZE, 0) for publish in broker.published]
    return [batch.value(i) for batch in batches for i in range(batch.count)]


async def test_what_is_published_is_delivered_in_order_and_acknowledged(client: BlipmqClient) -> None:
    subscription = await client.subscribe("orders")
    for value in (b"one", b"two", b"three"):
        await client.publish("orders", value)
    seen = []
    async for delivery in subscription:
        seen.append((delivery.tag, delivery.topic, delivery.message, delivery.qos))
        await delivery.ack()
        if len(seen) == 3:
            break
    await client.fence()
    assert seen == [(1, "orders", b"one", 1), (2, "orders", b"two", 1), (3, "orders", b"three", 1)]


async def test_ten_thousand_messages_are_pipelined_and_read_ahead(client: BlipmqClient, broker: SocketBroker) -> None:
    subscription = await client.subscribe("orders")
    values = [b"%d" % i for i in range(10_000)]
    assert await client.publish_many("orders", iter(values)) == len(values)
    assert stored(broker) == values
    got: list[bytes] = []
    while len(got) < len(values):
        deliveries = await subscription.take(500)
        await subscription.ack(deliveries)
        got += [delivery.message for delivery in deliveries]
    await client.fence()
    assert got == values


async def test_publishing_nothing_needs_no_broker(client: BlipmqClient, broker: SocketBroker) -> None:
    assert await client.publish_many("orders", []) == 0
    assert broker.published == []


async def test_two_subscriptions_of_one_topic_are_told_apart(client: BlipmqClient) -> None:
    first = await client.subscribe("orders")
    await client.publish("orders", b"only for the first")
    second = await client.subscribe("orders", qos=0)
    await client.publish("orders", b"for both")
    ones, twos = await asyncio.gather(first.take(1), second.take(1))
    assert [d.message for d in ones] == [b"only for the first"]
    assert [(d.message, d.qos) for d in twos] == [(b"for both", 0)]
    await twos[0].ack()
    await client.fence()


async def test_an_empty_subscription_says_so_without_waiting(client: BlipmqClient) -> None:
    subscription = await client.subscribe("orders")
    assert await subscription.take(10, wait=False) == []
    await client.publish("orders", b"late")
    assert [d.message for d in await subscription.take(10, wait=False)] == [b"late"]


async def test_a_wrong_key_is_refused(broker: SocketBroker) -> None:
    with pytest.raises(Refused) as refused:
        await BlipmqClient.connect(broker.endpoint, "wrong")
    assert (refused.value.code, refused.value.message) == (401, "invalid API key")


async def test_nobody_listening_is_a_lost_connection(unused_tcp_port: int) -> None:
    with pytest.raises(ConnectionLost):
        await BlipmqClient.connect(f"tcp://127.0.0.1:{unused_tcp_port}", KEY)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1", "tcp://", "udp://host:1"])
async def test_an_endpoint_must_be_one(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        await BlipmqClient.connect(endpoint, KEY)


async def test_a_refused_publish_names_the_messages(client: BlipmqClient, broker: SocketBroker) -> None:
    broker.memory.broken = "No space left on device"
    with pytest.raises(Refused) as refused:
        await client.publish_many("orders", [bytes(200_000)] * 3)
    assert refused.value.code == 500
    assert refused.value.message == "durable publish failed: No space left on device"
    assert refused.value.indexes == (0, 1, 2)
    broker.memory.broken = ""
    await client.publish("orders", b"again")


async def test_a_refused_ack_shows_at_the_fence(client: BlipmqClient) -> None:
    subscription = await client.subscribe("orders")
    await client.publish("orders", b"one")
    (delivery,) = await subscription.take(1)
    await delivery.ack()
    await delivery.ack()
    with pytest.raises(Refused) as refused:
        await client.fence()
    assert (refused.value.code, refused.value.message) == (404, "unknown subscription or delivery tag")
    await client.fence()


@pytest.mark.parametrize(("topic", "message"), [("", b"x"), ("a\nb", b"x"), ("t" * 1025, b"x")])
async def test_a_bad_topic_is_not_sent(client: BlipmqClient, topic: str, message: bytes) -> None:
    with pytest.raises(BrokerError):
        await client.publish(topic, message)
    with pytest.raises(BrokerError):
        await client.subscribe(topic)


async def test_a_message_that_fits_into_no_frame_is_not_sent(client: BlipmqClient) -> None:
    with pytest.raises(ValueError, match="fit into a frame"):
        await client.publish("t", bytes(LENGTH_MAX - 12))


async def test_the_largest_message_comes_through(client: BlipmqClient) -> None:
    subscription = await client.subscribe("t")
    message = bytes(LENGTH_MAX - 13)
    await client.publish("t", message)
    (delivery,) = await subscription.take(1)
    assert delivery.message == message


async def test_a_publish_without_its_fence_is_lost_with_the_connection(
    client: BlipmqClient, broker: SocketBroker
) -> None:
    broker.holding = True
    publishing = asyncio.create_task(client.publish("orders", b"one"))
    await broker.fence_arrived.wait()
    broker.cut()
    with pytest.raises(ConnectionLost):
        await publishing
    broker.holding = False
    await client.publish("orders", b"two")
    assert stored(broker) == [b"one", b"two"]


async def test_a_publish_that_is_retried_is_stored_at_least_once(client: BlipmqClient, broker: SocketBroker) -> None:
    broker.holding = True
    publishing = asyncio.create_task(client.publish_many("orders", [b"one", b"two"], retry=True))
    await broker.fence_arrived.wait()
    broker.holding = False
    broker.cut()
    assert await publishing == 2
    assert stored(broker) == [b"one", b"two"] * 2


async def test_retried_chunks_keep_their_order(client: BlipmqClient, broker: SocketBroker) -> None:
    values = [b"%d" % i + bytes(100_000) for i in range(20)]
    broker.holding = True
    publishing = asyncio.create_task(client.publish_many("orders", values, retry=True))
    await broker.fence_arrived.wait()
    broker.cut()
    broker.fence_arrived.clear()
    broker.published.clear()
    broker.holding = False
    assert await publishing == len(values)
    assert stored(broker) == values


async def test_a_subscription_outlives_the_connection(client: BlipmqClient, broker: SocketBroker) -> None:
    subscription = await client.subscribe("orders")
    await client.publish("orders", b"one")
    (first,) = await subscription.take(1)
    broker.cut()
    waiting = asyncio.create_task(subscription.take(1))
    await client.publish("orders", b"two", retry=True)
    (second,) = await waiting
    await subscription.ack([first, second])
    await client.fence()
    assert [(d.tag, d.message) for d in (first, second)] == [(1, b"one"), (2, b"two")]
    assert broker.connected == 2


async def test_unfenced_bytes_are_bounded(broker: SocketBroker) -> None:
    settings = ClientSettings(unfenced_bytes_max=300_000)
    async with await BlipmqClient.connect(broker.endpoint, KEY, settings=settings) as client:
        broker.holding = True
        publishing = asyncio.create_task(client.publish_many("orders", [bytes(100_000)] * 50))
        await broker.fence_arrived.wait()
        link = await client.link()
        assert link.unfenced_bytes < 1_000_000
        broker.release()
        assert await publishing == 50
        assert link.unfenced_bytes == 0


async def test_concurrent_publishers_share_fences(client: BlipmqClient, broker: SocketBroker) -> None:
    await asyncio.gather(*(client.publish("orders", b"%d" % i) for i in range(200)))
    assert sorted(stored(broker), key=int) == [b"%d" % i for i in range(200)]


async def test_a_broker_that_talks_nonsense_is_left(broker: SocketBroker) -> None:
    broker.babbling = True
    with pytest.raises(ConnectionLost):
        await BlipmqClient.connect(broker.endpoint, KEY)


async def test_a_broker_that_never_answers_is_left(broker: SocketBroker) -> None:
    settings = ClientSettings(reply_timeout_s=0.01)
    async with await BlipmqClient.connect(broker.endpoint, KEY, settings=settings) as client:
        broker.silent = True
        with pytest.raises(ConnectionLost, match="no reply in time"):
            await client.publish("orders", b"one")
    broker.silent = True
    with pytest.raises(ConnectionLost):
        await BlipmqClient.connect(broker.endpoint, KEY, settings=ClientSettings(connect_timeout_s=0.01))


async def test_a_closed_client_says_so(broker: SocketBroker) -> None:
    async with await BlipmqClient.connect(broker.endpoint, KEY) as client:
        subscription = await client.subscribe("orders")
    with pytest.raises(ClientClosed):
        await client.publish("orders", b"one")
    with pytest.raises(ClientClosed):
        await subscription.take(1)
