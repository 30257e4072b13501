"""Topics of the longest names, and their dead letters, through every door that can say them."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headrace.model.errors import BrokerError, Code
from headrace.model.names import TOPIC_SIZE_MAX, check_topic, dead_topic
from headrace.protocols.blipmq.client import BlipmqClient
from headrace.protocols.blipmq.client import Refused as BlipmqRefused
from headrace.protocols.fujin.client import FujinClient
from headrace.protocols.fujin.client import Refused as FujinRefused
from headrace.protocols.fujin.streams import Security
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.sspq.client import SspqClient
from headrace.server.dev_certificate import DEV_CERT_NAME
from headrace.testing import KEY, broker
from tests.e2e.test_feed_broker import rows
from tests.harness.api import calling

LISTEN = dict.fromkeys(("sspq", "fujin", "grpc", "flight"), "127.0.0.1:0")
ONCE = {"max_attempts": 1, "backoff_ms": 0}


def name_of(size: int, letter: str) -> str:
    """A name of exactly so many bytes, of the letter as far as it goes."""
    width = len(letter.encode())
    return letter * (size // width) + "x" * (size % width)


@pytest.mark.parametrize("letter", ["a", "é", "語", "𝄞"])
@pytest.mark.parametrize("size", [1, 1018, 1019, 1020, 1021, 1022, 1023, TOPIC_SIZE_MAX])
def test_whatever_may_be_published_to_has_dead_letters_that_may_be_read(size: int, letter: str) -> None:
    topic = name_of(size, letter)
    assert check_topic(topic) == topic
    assert check_topic(dead_topic(topic)) == dead_topic(topic)


@pytest.mark.parametrize("letter", ["a", "é", "語", "𝄞"])
@pytest.mark.parametrize("size", [TOPIC_SIZE_MAX + 1, TOPIC_SIZE_MAX + 6, TOPIC_SIZE_MAX + 7])
def test_longer_names_stay_refused_with_and_without_the_prefix(size: int, letter: str) -> None:
    for name in (name_of(size, letter), dead_topic(name_of(size, letter))):
        with pytest.raises(BrokerError) as caught:
            check_topic(name)
        assert caught.value.code is Code.INVALID


@pytest.mark.parametrize(("size", "letter"), [(1019, "a"), (TOPIC_SIZE_MAX, "a"), (1021, "é"), (TOPIC_SIZE_MAX, "語")])
async def test_dead_letters_of_the_longest_names_are_read_by_every_door(tmp_path: Path, size: int, letter: str) -> None:
    topic = name_of(size, letter)
    dead = dead_topic(topic)
    doors: dict[str, Any] = {"retry": ONCE, "sspq": {"topic": topic}, "grpcq": {"max_attempts": 1}, "listen": LISTEN}
    async with broker(tmp_path, **doors) as node, AsyncExitStack() as stack:
        blipmq = await stack.enter_async_context(await BlipmqClient.connect(node.endpoints["blipmq"], KEY))
        security = Security(ca=tmp_path / DEV_CERT_NAME)
        fujin = await stack.enter_async_context(await FujinClient.connect(node.endpoints["fujin"], security=security))
        letters = await blipmq.subscribe(dead)
        await blipmq.publish(topic, b"lost")
        (delivery,) = await (await fujin.reader(topic)).fetch(1)
        assert await delivery.nack()

        assert (await letters.take(1))[0].message == b"lost"
        (found,) = await (await fujin.reader(dead)).fetch(1)
        assert found.value == b"lost"
        sspq = await stack.enter_async_context(await SspqClient.connect(node.endpoints["sspq"]))
        assert (await sspq.receive(dead=True)).payload == b"lost"
        if letter == "a":
            grpcq = await stack.enter_async_context(GrpcqClient(node.endpoints["grpc"], KEY))
            (got,) = await grpcq.consume(dead, 1, wait_s=10)
            assert Message.FromString(got.message).payload == b"lost"
        http = await stack.enter_async_context(calling(node.endpoints["http"]))
        page = (await http.get(f"/api/topics/{quote(dead, safe='')}/messages")).json()
        assert [each["topic"] for each in page["messages"]] == [dead]
        listed = (await http.get("/api/dead-letters", params={"topic": topic})).json()["dead_letters"]
        assert len(listed) == 1
        assert [row["topic"] for row in await rows(node, topics=(dead,))] == [dead]
        reply = await http.post("/api/dead-letters/redrive", json={"offsets": [listed[0]["offset"]]})
        assert reply.status_code == 200
        (again,) = await (await fujin.reader(topic)).fetch(1)
        assert again.value == b"lost"


@pytest.mark.parametrize("size", [TOPIC_SIZE_MAX - 5, TOPIC_SIZE_MAX, TOPIC_SIZE_MAX + 1])
async def test_nobody_publishes_to_dead_letters_however_long_the_name(tmp_path: Path, size: int) -> None:
    dead = dead_topic(name_of(size, "a"))
    async with broker(tmp_path, listen={"fujin": "127.0.0.1:0"}) as node, AsyncExitStack() as stack:
        blipmq = await stack.enter_async_context(await BlipmqClient.connect(node.endpoints["blipmq"], KEY))
        security = Security(ca=tmp_path / DEV_CERT_NAME)
        fujin = await stack.enter_async_context(await FujinClient.connect(node.endpoints["fujin"], security=security))
        with pytest.raises((BlipmqRefused, BrokerError)):
            await blipmq.publish(dead, b"forged")
        with pytest.raises((FujinRefused, BrokerError)):
            await (await fujin.writer()).write(dead, b"forged")
        await blipmq.publish("fine", b"and the connection lives")
