"""The life of one message, told from the log: published, delivered, settled, dead-lettered, redriven.

Knows how to read the log; asks the broker only whether there is still something to look for.
"""

from collections.abc import Iterator, Mapping
from contextlib import aclosing

import msgspec

from headrace.broker.deadletters import ORIGIN_OFFSET
from headrace.broker.views import Status
from headrace.log import Log, Record
from headrace.model.batch import Batch, Column, Message
from headrace.model.events import Event, EventPart
from headrace.model.names import REDRIVEN_TOPIC, is_dead_topic
from headrace.server.engine import Engine
from headrace.server.redrive import REDRIVEN_FROM, redriven_offsets
from headrace.server.shapes import MessageView, message_view
from headrace.server.walk import Walk, messages_from

WALK_COST_MAX = 1 << 30
VALUE_MAX = 1 << 20
ENDINGS = frozenset({"acked", "expired", "dead", "dropped"})


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a message. `after_us` is the time since it was published.

    `name` is the subscription's: that of a door's shared one, empty for a consumer's own, none for one that is gone.
    `copy_offset` is where its dead letter, or the copy that was sent back, is to be found.
    """

    event: str
    timestamp_us: int
    after_us: int
    offset: int
    subscription: int = 0
    name: str | None = None
    attempt: int = 0
    reason: str = ""
    copy_topic: str = ""
    copy_offset: int | None = None

    def ends(self, qos: int) -> bool:
        """Whether the subscription has nothing more to do with the message; at QoS 0 a delivery is the end."""
        return self.event in ENDINGS or (qos == 0 and self.event == "delivered")


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """A message and everything that happened to it, in the order of the log.

    `complete` is false when the walk stopped at its cost limit; what lies behind `walked_to` was not looked at.
    """

    message: MessageView
    events: list[Step]
    complete: bool
    walked_to: int


async def trace(engine: Engine, message: Message) -> Life:
    """The life of this message, from the record that holds it to the end, or to where every subscription is done."""
    walk = Walk(engine.log, message.offset, cost_max=WALK_COST_MAX)
    unseen = _settled_in(engine, message)
    names = {info.id: info.name for info in engine.broker.subscriptions()}
    steps: list[Step] = []
    finished = False
    async with aclosing(walk.records()) as records:
        async for record in records:
            for step in _steps(record, message, names):
                steps.append(step)
                if unseen is not None and step.ends(message.qos):
                    unseen.discard(step.subscription)
                    finished = not unseen
            if finished:
                break
    steps.extend(_redrives(engine.log, message, steps))
    view = message_view(message, value_max=VALUE_MAX)
    return Life(message=view, events=steps, complete=walk.complete or finished, walked_to=walk.position)


async def find_by_id(log: Log, message_id: str, start: int) -> tuple[Message | None, int]:
    """The first message with this publisher's id from an offset on, and how far was looked."""
    wanted = message_id.encode()
    walk = Walk(log, start, cost_max=WALK_COST_MAX)
    async with aclosing(walk.records()) as records:
        async for record in records:
            for part in record.parts():
                if isinstance(part, Batch) and part.columns & Column.MESSAGE_ID and _mentions(part, wanted):
                    for message in map(part.message, range(part.count)):
                        if message.message_id == message_id:
                            return message, walk.position
    return None, walk.position


def _settled_in(engine: Engine, message: Message) -> set[int] | None:
    """The subscriptions that are done with the message; None while one is not, for then more may follow."""
    found = set()
    for info in engine.broker.subscriptions():
        if info.topic == message.topic:
            status = engine.broker.status_of(info.id, message.offset)
            if status is Status.SETTLED:
                found.add(info.id)
            elif status is not Status.OUTSIDE:
                return None
    return found


def _mentions(batch: Batch, wanted: bytes) -> bool:
    return wanted in bytes(batch.buffer[batch.start : batch.start + batch.size])


def _steps(record: Record, message: Message, names: Mapping[int, str]) -> Iterator[Step]:
    """What this record tells about the message."""
    for part in record.parts():
        if isinstance(part, Batch):
            continue
        offset, event = part
        for item in event.ranges:
            if item.first <= message.offset < item.first + item.count:
                yield _step(record, message, offset, event, item.attempt, names.get(event.subscription))


def _step(record: Record, message: Message, offset: int, event: EventPart, attempt: int, name: str | None) -> Step:
    letter = _dead_letter_in(record, message.offset) if event.event is Event.DEAD else None
    return Step(
        event=event.event.name.lower(),
        timestamp_us=event.timestamp_us,
        after_us=event.timestamp_us - message.timestamp_us,
        offset=offset,
        subscription=event.subscription,
        name=name,
        attempt=attempt,
        reason=event.reason,
        copy_topic=letter.topic if letter else "",
        copy_offset=letter.offset if letter else None,
    )


def _dead_letter_in(record: Record, offset: int) -> Message | None:
    """The dead letter of the message that died at this offset: it is in the same record as the event."""
    for part in record.parts():
        if isinstance(part, Batch) and is_dead_topic(part.topic):
            found = _with_header(part, ORIGIN_OFFSET, offset)
            if found is not None:
                return found
    return None


def _redrives(log: Log, message: Message, steps: list[Step]) -> Iterator[Step]:
    """The redrives of the message's dead letters, or of the message itself if it is one."""
    letters = [step.copy_offset for step in steps if step.copy_offset is not None]
    if is_dead_topic(message.topic):
        letters.append(message.offset)
    for letter in letters:
        if letter not in redriven_offsets(log, letter):
            continue
        for mark in messages_from(log, REDRIVEN_TOPIC, letter):
            copy = _copy_beside(log, mark.offset, letter)
            if copy is not None:
                yield Step(
                    event="redriven",
                    timestamp_us=copy.timestamp_us,
                    after_us=copy.timestamp_us - message.timestamp_us,
                    offset=mark.offset,
                    copy_topic=copy.topic,
                    copy_offset=copy.offset,
                )
                break


def _copy_beside(log: Log, mark: int, letter: int) -> Message | None:
    """The copy of a dead letter in the record that holds this mark."""
    for record in log.iter_records(mark, mark + 1):
        for part in record.parts():
            if isinstance(part, Batch) and part.topic != REDRIVEN_TOPIC and part.columns & Column.HEADERS:
                found = _with_header(part, REDRIVEN_FROM, letter)
                if found is not None:
                    return found
    return None


def _with_header(batch: Batch, name: str, number: int) -> Message | None:
    wanted = (name, b"%d" % number)
    return next((m for m in map(batch.message, range(batch.count)) if wanted in m.headers), None)
