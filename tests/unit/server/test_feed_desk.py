"""What the feed asks for on behalf of keys: who may read nothing reports nothing, and lists come however long."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.feed.messages import Report, Subscriptions
from headrace.model.errors import BrokerError, Code
from headrace.server.channel import FeedDesk
from headrace.server.engine import Engine
from headrace.testing import broker
from tests.harness.web import Hand


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with broker(tmp_path) as node:
        yield node.engine


def desk(engine: Engine) -> FeedDesk:
    return FeedDesk(engine, None)  # type: ignore[arg-type]  # no transaction is asked for


def report(subscribe: tuple[str, ...], topics: tuple[str, ...] | None) -> Report:
    return Report(id=1, owner="ann", subscribe=subscribe, reader="lake", topics=topics, offset=0)


@pytest.mark.parametrize(
    ("subscribe", "topics"), [((), None), ((), ()), ((), ("own",)), (("own",), ("own", "other")), (("own",), ("ow",))]
)
async def test_nobody_reports_about_what_he_may_not_read(
    engine: Engine, subscribe: tuple[str, ...], topics: tuple[str, ...] | None
) -> None:
    with pytest.raises(BrokerError) as refused:
        await desk(engine).answer(report(subscribe, topics))
    assert refused.value.code is Code.FORBIDDEN
    assert not engine.broker.readers.all()


@pytest.mark.parametrize("topics", [None, (), ("own",), ("$dead.own", "own.b")])
async def test_what_one_may_read_one_may_report(engine: Engine, topics: tuple[str, ...] | None) -> None:
    await desk(engine).answer(report(("own*",), topics))
    (reader,) = engine.broker.readers.all()
    assert (reader.owner, reader.reader, reader.topics) == ("ann", "lake", topics)


async def test_every_subscription_is_told_of(engine: Engine) -> None:
    hand = Hand(engine)
    ids = [hand.subscribe(f"t{number % 7}", name=f"n{number}") for number in range(1000)]
    listed = await desk(engine).answer(Subscriptions(id=1))
    assert isinstance(listed, list)
    assert sorted(each["id"] for each in listed) == ids
    assert {"id": ids[3], "topic": "t3", "name": "n3", "owner": "somebody"} in listed
