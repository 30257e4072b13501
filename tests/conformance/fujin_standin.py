"""A broker small enough to be read at a glance, for Fujin sessions: topics with one shared reader's place each."""

from collections import deque
from dataclasses import dataclass, field

from headrace.model.batch import Batch, Message
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.parts import RECORD_HEADER_SIZE, batches_in
from headrace.model.requests import (
    Fence,
    Fetch,
    Follow,
    Leave,
    Publish,
    Refuse,
    Request,
    Settle,
    Subscribe,
)
from headrace.protocols.fujin import FujinSession, FujinSettings

MAX_ATTEMPTS = 3


@dataclass
class Stored:
    """A message, how often it was delivered, and by which id."""

    batch: Batch
    index: int
    delivery: int
    attempts: int = 0
    holder: "MemoryStream | None" = None


@dataclass
class Topic:
    """What there is to read, and who waits for it."""

    waiting: deque[Stored] = field(default_factory=deque)
    held: dict[int, Stored] = field(default_factory=dict)
    count: int = 0


@dataclass
class Waiting:
    """A fetch that waits until a deadline, or a follow that begins at a time."""

    stream: "MemoryStream"
    request: Fetch | Follow
    time: int


class StandIn:
    """The broker's memory, shared by its streams."""

    def __init__(self, settings: FujinSettings) -> None:
        self.settings = settings
        self.now = 1_000_000
        self.broken = ""
        self.draining = False
        self.topics: dict[str, Topic] = {}
        self.numbers: list[str] = []
        self.readers: list[Waiting] = []
        self.log: list[Message] = []

    def carry_out(self, stream: "MemoryStream", request: Request) -> None:
        """Do one request and report its outcome."""
        session = stream.session
        match request:
            case Publish(tags=tags) if self.broken:
                session.publish_refused(tags, BrokerError(Code.STORAGE, f"durable publish failed: {self.broken}"))
            case Publish(confirm=True):
                self._publish(request)
                session.published(request.tags)
                self.serve()
            case Subscribe(tag, topic) if topic.startswith("secret"):
                session.refused(tag, BrokerError(Code.FORBIDDEN, f"not allowed to subscribe to {topic}"))
            case Subscribe(tag, topic, 1, "fujin"):
                self.numbers.append(topic)
                session.subscribed(tag, len(self.numbers) - 1)
            case Fetch(wait_us=wait):
                self.readers.append(Waiting(stream, request, self.now + wait))
                self.serve()
            case Follow(after_us=after):
                self.readers.append(Waiting(stream, request, self.now + after))
                self.serve()
            case Settle(tag, subscription, deliveries, failed):
                place = self._topic(self.numbers[subscription])
                session.settled(tag, deliveries, [self._settle(place, number, failed) for number in deliveries])
                self.serve()
            case Fence(tag):
                session.fence_passed(tag)
            case Leave(tag):
                self.gone(stream)
                session.fence_passed(tag)
                stream.ended = True
                self.serve()
            case Refuse(tag, error):
                session.refused(tag, error)
            case _:
                raise AssertionError(request)

    def serve(self) -> None:
        """Hand out what there is to those who wait, the first first."""
        for waiting in list(self.readers):
            request, stream = waiting.request, waiting.stream
            topic = self._topic(self.numbers[request.subscription])
            if isinstance(request, Fetch):
                portions = self._take(topic, stream, request.count, request.settle)
                if portions or self.now >= waiting.time:
                    self.readers.remove(waiting)
                    stream.session.fetched(request.tag, portions)
            elif self.now >= waiting.time:
                room = request.window - sum(1 for stored in topic.held.values() if stored.holder is stream)
                if portions := self._take(topic, stream, room, request.settle):
                    stream.session.pushed(request.tag, portions)

    def gone(self, stream: "MemoryStream") -> None:
        """What the stream held is there again."""
        self.readers = [waiting for waiting in self.readers if waiting.stream is not stream]
        for topic in self.topics.values():
            for stored in [stored for stored in topic.held.values() if stored.holder is stream]:
                self._settle(topic, stored.delivery, True)

    def drain(self) -> None:
        """Nothing more will come."""
        for waiting in self.readers:
            if isinstance(waiting.request, Fetch):
                error = BrokerError(Code.DRAINING, "the server is about to stop")
                waiting.stream.session.refused(waiting.request.tag, error)
        self.readers.clear()

    def _topic(self, name: str) -> Topic:
        return self.topics.setdefault(name, Topic())

    def _publish(self, request: Publish) -> None:
        batches = batches_in(request.record, RECORD_HEADER_SIZE, len(request.record), 0)
        assert sum(batch.count for batch in batches) == request.count
        assert {batch.topic for batch in batches} == set(request.topics or (request.topic,))
        for batch in batches:
            topic = self._topic(batch.topic)
            for index in range(batch.count):
                topic.count += 1
                topic.waiting.append(Stored(batch, index, topic.count))
                self.log.append(batch.message(index))

    def _take(self, topic: Topic, stream: "MemoryStream", count: int, settle: bool) -> list[Portion]:
        portions: list[Portion] = []
        while topic.waiting and len(portions) < count:
            stored = topic.waiting.popleft()
            stored.attempts += 1
            if not settle:
                stored.holder = stream
                topic.held[stored.delivery] = stored
            portions.append(Portion(stored.batch, stored.index, 1, stored.delivery, stored.attempts))
        return portions

    def _settle(self, topic: Topic, delivery: int, failed: bool) -> bool:
        stored = topic.held.pop(delivery, None)
        if stored is None:
            return False
        if failed and stored.attempts < MAX_ATTEMPTS:
            stored.holder = None
            topic.waiting.appendleft(stored)
        return True


class MemoryStream:
    """A session joined to the stand-in, with the leftover a stream would keep."""

    def __init__(self, broker: StandIn) -> None:
        self.session = FujinSession(broker.settings)
        self.ended = False
        self._broker = broker
        self._rest = b""
        self._unread = b""

    def send(self, data: bytes) -> None:
        """Bytes to the broker, as one write."""
        self._rest += data
        try:
            asked = True
            while asked and not self.ended:
                consumed, requests = self.session.receive(memoryview(self._rest), self._broker.now)
                self._rest = self._rest[consumed:]
                asked = bool(requests)
                for request in requests:
                    self._broker.carry_out(self, request)
        except PeerProtocolError:
            self.ended = True
            self._broker.gone(self)

    def finish(self) -> None:
        """End our side."""
        for request in self.session.ended():
            self._broker.carry_out(self, request)

    def receive(self, size: int) -> bytes:
        """Exactly this many bytes, or fewer when the broker has said no more."""
        self._unread += self.session.data_to_send()
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def quiet(self) -> bool:
        """Whether everything the broker said has been read."""
        self._unread += self.session.data_to_send()
        return not self._unread


class MemoryHouse:
    """Streams by name to one stand-in."""

    def __init__(self, settings: FujinSettings) -> None:
        self.broker = StandIn(settings)
        self._streams: dict[str, MemoryStream] = {}

    def stream(self, name: str) -> MemoryStream:
        """The stream of this name, opened if need be."""
        if name not in self._streams:
            self._streams[name] = MemoryStream(self.broker)
        return self._streams[name]

    def drain(self) -> None:
        """Have the server begin to stop."""
        for stream in self._streams.values():
            stream.session.draining()
        self.broker.drain()

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.broker.now += 1000 * milliseconds
        self.broker.serve()

    def fail(self, cause: str) -> None:
        """From now on the disk refuses every write."""
        self.broker.broken = cause

    def heal(self) -> None:
        """The disk works again."""
        self.broker.broken = ""

    def check_nothing_left(self) -> None:
        """Every word was expected."""
        assert all(stream.quiet() for stream in self._streams.values())
