"""The life of one message, told from the log: published, delivered, settled, dead-lettered, redriven.

Knows how to read the log; asks the broker only whether there is still something to look for.
"""

from collections.abc import Iterator
from contextlib import aclosing

import msgspec

from headrace.auth import Identity
from headrace.broker.views import Status
from headrace.log import Log, Record
from headrace.model.batch import Batch, Column, Message, encode_headers
from headrace.model.events import Event, EventPart, Range
from headrace.model.names import REDRIVEN_TOPIC, is_dead_topic
from headrace.server.engine import Engine
from headrace.server.marks import Marks
from headrace.server.pages import CHUNK
from headrace.server.redrive import REDRIVEN_FROM
from headrace.server.shapes import VALUE_SHOWN_MAX, MessageView, message_view
from headrace.server.walk import Finder, Turns, Walk, read_message, unreadable

WALK_COST_MAX = 256 << 20
STEPS_MAX = 500
"""The most events of one life that are told at once: their reasons may have a thousand bytes each."""

Place = tuple[Batch, int]
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
    """A message and what happened to it, in the order of the log.

    `complete` is false when the walk stopped at its cost limit, or at more events than are told at once: what lies
    behind `walked_to` was not looked at. Otherwise nothing behind it is about the message.
    """

    message: MessageView
    events: list[Step]
    complete: bool
    walked_to: int


class Tracer:
    """Tells lives to one caller: nothing of a topic that the identity may not read."""

    def __init__(self, engine: Engine, marks: Marks, identity: Identity) -> None:
        self._engine = engine
        self._log = engine.log
        self._marks = marks
        self._identity = identity

    def at(self, offset: int) -> Place | None:
        """Where the message at this offset is; None when there is none that the caller may read."""
        batch = Finder(self._log).batch(offset)
        if batch is None or not self._identity.may_subscribe(batch.topic):
            return None
        return batch, offset - batch.base

    async def by_id(self, message_id: str, start: int) -> tuple[Place | None, int, bool]:
        """The caller's first message with this publisher's id from an offset on.

        Also how far was looked, and whether that is the end of the log.
        """
        wanted = message_id.encode()
        walk, turns = Walk(self._log, start, cost_max=WALK_COST_MAX), Turns()
        async with aclosing(walk.records()) as records:
            async for record in records:
                for part in record.parts():
                    if not isinstance(part, Batch) or not self._identity.may_subscribe(part.topic):
                        continue
                    for index in part.rows_containing(Column.MESSAGE_ID, wanted):
                        message = read_message(part, index, 0)
                        if message is not None and message.message_id == message_id:
                            return (part, index), walk.position, False
                        await turns.step()
        return None, walk.position, walk.complete

    async def life(self, place: Place) -> Life:
        """The life of this message, from the record that holds it to where every subscription is done with it."""
        batch, index = place
        message = read_message(batch, index, 0) or unreadable(batch, index)
        walk, turns = Walk(self._log, message.offset, cost_max=WALK_COST_MAX), Turns()
        unseen = await self._settled_in(message, turns)
        steps: list[Step] = []
        finished = False
        async with aclosing(walk.records()) as records:
            async for record in records:
                for step in self._steps(record, message):
                    if len(steps) > STEPS_MAX:
                        break
                    steps.append(step)
                    if unseen is not None and step.ends(message.qos):
                        unseen.discard(step.subscription)
                        finished = not unseen
                if finished or len(steps) > STEPS_MAX:
                    break
        cut = len(steps) > STEPS_MAX
        del steps[STEPS_MAX:]
        await self._add_redrives(message, steps)
        view = message_view(batch, index, value_max=VALUE_SHOWN_MAX)
        complete = (walk.complete or finished) and not cut
        walked_to = max([message.offset, *(step.offset for step in steps)]) + 1 if complete else walk.position
        return Life(message=view, events=steps, complete=complete, walked_to=walked_to)

    async def _settled_in(self, message: Message, turns: Turns) -> set[int] | None:
        """The subscriptions that are done with the message; None while one is not, for then more may follow."""
        broker = self._engine.broker
        found: set[int] = set()
        placed = broker.placed(message.topic, 0, CHUNK)
        while placed:
            for topic, number in placed:
                if topic != message.topic:
                    return found
                status = broker.status_of(number, message.offset)
                if status is Status.SETTLED:
                    found.add(number)
                elif status is not Status.OUTSIDE:
                    return None
                await turns.step()
            placed = broker.placed(message.topic, placed[-1][1] + 1, CHUNK)
        return found

    def _steps(self, record: Record, message: Message) -> Iterator[Step]:
        """What this record tells about the message."""
        batch: Batch | None = None
        for part in record.parts():
            if isinstance(part, Batch):
                batch = part
                continue
            offset, event = part
            for item in event.ranges:
                if item.first <= message.offset < item.first + item.count:
                    letters = batch if event.event is Event.DEAD and batch and batch.count == item.count else None
                    yield self._step(message, offset, event, item, letters)

    def _step(self, message: Message, offset: int, event: EventPart, item: Range, letters: Batch | None) -> Step:
        """One event; a death stands behind the batch of the dead letters it made, in the same order."""
        definition = self._engine.broker.definition(event.subscription)
        return Step(
            event=event.event.name.lower(),
            timestamp_us=event.timestamp_us,
            after_us=event.timestamp_us - message.timestamp_us,
            offset=offset,
            subscription=event.subscription,
            name=definition.name if definition is not None else None,
            attempt=item.attempt,
            reason=event.reason,
            copy_topic=letters.topic if letters is not None else "",
            copy_offset=letters.base + message.offset - item.first if letters is not None else None,
        )

    async def _add_redrives(self, message: Message, steps: list[Step]) -> None:
        """The redrives of the message's dead letters, or of the message itself if it is one."""
        letters = [step.copy_offset for step in steps if step.copy_offset is not None]
        if is_dead_topic(message.topic):
            letters.append(message.offset)
        if not letters:
            return
        await self._marks.refresh()
        turns = Turns()
        for letter in letters:
            mark = self._marks.mark_of(letter)
            copy = _copy_beside(self._log, mark, letter) if mark is not None else None
            if mark is not None and copy is not None:
                steps.append(self._redriven(message, mark, copy))
            await turns.step()

    def _redriven(self, message: Message, mark: int, copy: Message) -> Step:
        """A redrive, and where the copy is if the caller may read it there."""
        seen = self._identity.may_subscribe(copy.topic)
        return Step(
            event="redriven",
            timestamp_us=copy.timestamp_us,
            after_us=copy.timestamp_us - message.timestamp_us,
            offset=mark,
            copy_topic=copy.topic if seen else "",
            copy_offset=copy.offset if seen else None,
        )


def _copy_beside(log: Log, mark: int, letter: int) -> Message | None:
    """The copy of a dead letter in the record that holds this mark; its value is left where it is."""
    header = REDRIVEN_FROM, b"%d" % letter
    for record in log.iter_records(mark, mark + 1):
        for part in record.parts():
            if isinstance(part, Batch) and part.topic != REDRIVEN_TOPIC:
                for index in part.rows_containing(Column.HEADERS, encode_headers([header])):
                    message = read_message(part, index, 0)
                    if message is not None and header in message.headers:
                        return message
    return None
