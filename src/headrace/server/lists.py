"""The lists of the API: topics, subscriptions and readers as rows, for one who may see only some of them.

Knows the broker and the log; nothing of requests. What a row costs is bounded whatever it tells of.
"""

from collections.abc import Sequence

import msgspec

from headrace.auth import Identity
from headrace.broker.readers import Reader
from headrace.model.names import dead_topic, is_dead_topic
from headrace.server.engine import Engine
from headrace.server.pages import CHUNK, Page, visible_subscriptions, visible_topics
from headrace.server.walk import Turns

COUNTED_MAX = 1000
"""How many subscriptions of a topic, and how many topics of a reader of all, are counted one by one."""

NAMES_SHOWN_MAX = 100


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. With `partial` it has more subscriptions than were looked at for what waits in them."""

    topic: str
    messages: int
    published: int
    first_offset: int | None
    next_offset: int
    subscriptions: int
    shared_by: list[str]
    pending: int
    in_flight: int
    dead: int
    partial: bool


class ReaderRow(msgspec.Struct, frozen=True, kw_only=True):
    """A reader outside the broker. `lag` counts the messages of its topics (null: all) from `offset` on.

    Of a reader of more topics than are listed `topics_left_out` tells how many others. `lag_estimated`: there are too
    many topics to count in, and it is told from how far the offset is behind.
    """

    reader: str
    owner: str
    topics: Sequence[str] | None
    topics_left_out: int
    offset: int
    lag: int | None
    lag_estimated: bool
    reported_us: int


async def fill_topics(engine: Engine, identity: Identity, page: Page, *, after: str, prefix: str) -> str | None:
    """Fill a page with topics, by name; where the next one goes on, None when this is the last."""
    turns = Turns()
    last = after
    async for name in visible_topics(identity, engine.broker, turns, after=after, prefix=prefix):
        row = await _topic_row(engine, name, turns)
        if row is None:
            continue
        if not page.add(row):
            return last
        last = name
    return None


async def fill_subscriptions(
    engine: Engine, identity: Identity, page: Page, *, after: tuple[str, int]
) -> tuple[str, int] | None:
    """Fill a page with subscriptions, by topic and id; where the next one goes on, None when this is the last."""
    turns = Turns()
    last = after
    async for place in visible_subscriptions(identity, engine.broker, turns, after=after):
        info = engine.broker.subscription(place[1])
        if info is None:
            continue
        if not page.add(info):
            return last
        last = place
    return None


async def fill_readers(
    engine: Engine, identity: Identity, page: Page, *, after: tuple[str, str]
) -> tuple[str, str] | None:
    """Fill a page with readers, by name and owner; where the next one goes on, None when this is the last."""
    turns = Turns()
    readers = engine.broker.readers
    last = after
    while found := readers.page((after[0], after[1] + "\0") if any(after) else after, CHUNK):
        for reader in found:
            after = reader.reader, reader.owner
            await turns.step()
            if not may_see(identity, reader):
                continue
            if not page.add(await reader_row(engine, identity, reader, turns)):
                return last
            last = after
    return None


def may_see(identity: Identity, reader: Reader) -> bool:
    """Whether the reader is one's own, or reads nothing but what this identity may read."""
    if "*" in identity.subscribe.patterns or identity.owner == reader.owner:
        return True
    return reader.topics is not None and all(map(identity.may_subscribe, reader.topics))


async def reader_row(engine: Engine, identity: Identity, reader: Reader, turns: Turns) -> ReaderRow:
    """A reader with its lag, as far as the identity may know it."""
    topics = reader.topics
    lag, estimated = await _lag(engine, identity, reader, turns)
    return ReaderRow(
        reader=reader.reader,
        owner=reader.owner,
        topics=topics[:NAMES_SHOWN_MAX] if topics is not None else None,
        topics_left_out=max(0, len(topics) - NAMES_SHOWN_MAX) if topics is not None else 0,
        offset=reader.offset or 0,
        lag=lag,
        lag_estimated=estimated,
        reported_us=reader.reported_us,
    )


async def _lag(engine: Engine, identity: Identity, reader: Reader, turns: Turns) -> tuple[int | None, bool]:
    """How many messages a reader has yet to come to, and whether that is an estimate; of all topics one may see."""
    log, offset = engine.log, reader.offset or 0
    lag = 0
    if reader.topics is not None:
        for name in reader.topics:
            lag += log.count_from(name, offset) if identity.may_subscribe(name) else 0
            await turns.step()
        return lag, False
    counted = 0
    async for name in visible_topics(identity, engine.broker, turns):
        counted += 1
        if counted > COUNTED_MAX:
            return _estimated_lag(engine, identity, offset), True
        lag += log.count_from(name, offset)
    return lag, False


def _estimated_lag(engine: Engine, identity: Identity, offset: int) -> int | None:
    """The offsets behind this one, which number messages and events alike; unknown to whom most of it is not told."""
    return max(0, engine.log.durable_offset - offset) if "*" in identity.subscribe.patterns else None


async def _topic_row(engine: Engine, name: str, turns: Turns) -> TopicRow | None:
    log, broker = engine.log, engine.broker
    topic = broker.topic(name)
    if topic is None:
        return None
    pending = in_flight = 0
    shared: set[str] = set()
    placed = broker.placed(name, 0, min(topic.subscriptions, COUNTED_MAX))
    for _, number in placed:
        info = broker.subscription(number)
        if info is not None and info.topic == name:
            pending += info.pending + info.deferred
            in_flight += info.in_flight
            if info.name:
                shared.add(info.name)
        await turns.step(things=2)
    await turns.step(things=5)
    return TopicRow(
        topic=name,
        messages=log.count_from(name, 0),
        published=topic.published,
        first_offset=log.next_in(name, 0),
        next_offset=log.topic_end(name),
        subscriptions=topic.subscriptions,
        shared_by=sorted(shared)[:NAMES_SHOWN_MAX],
        pending=pending,
        in_flight=in_flight,
        dead=0 if is_dead_topic(name) else log.count_from(dead_topic(name), 0),
        partial=topic.subscriptions > COUNTED_MAX,
    )
