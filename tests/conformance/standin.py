"""A broker small enough to be read at a glance: it does what the session asks, one message at a time, in memory."""

from collections import deque
from dataclasses import dataclass, field

from headrace.model.batch import Batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Ack, Authenticate, Exchange, Fence, Publish, Refuse, Request, Subscribe, Take
from headrace.protocols.blipmq import BLIPMQ
from headrace.protocols.spec import Session

KEY = b"dev-key"
MAX_ATTEMPTS = 3
BACKOFF_US = 100_000


@dataclass
class Held:
    """A delivered message that nobody acknowledged yet."""

    batch: Batch
    index: int
    attempt: int
    due: int


@dataclass
class Cursor:
    """A subscription."""

    topic: str
    qos: int
    waiting: deque[tuple[Batch, int]] = field(default_factory=deque)
    held: dict[int, Held] = field(default_factory=dict)
    passed: int = 0


class StandIn:
    """The broker's memory, shared by its connections."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.broken = ""
        self.cursors: dict[int, Cursor] = {}

    def carry_out(self, session: Session, request: Request) -> None:
        """Do one request and report its outcome."""
        match request:
            case Authenticate(tag, key) if key == KEY:
                session.authenticated(tag)
            case Authenticate(tag):
                session.refused(tag, BrokerError(Code.UNAUTHENTICATED, "invalid API key"))
            case Publish(tags=tags) if self.broken:
                session.publish_refused(tags, BrokerError(Code.STORAGE, f"durable publish failed: {self.broken}"))
            case Publish(topic, _, count, record):
                batch = Batch(record, RECORD_HEADER_SIZE, 0)
                for cursor in self.cursors.values():
                    if cursor.topic == topic:
                        cursor.waiting.extend((batch, index) for index in range(count))
            case Subscribe(tag, topic, qos):
                number = 42 + len(self.cursors)
                self.cursors[number] = Cursor(topic, qos)
                session.subscribed(tag, number)
            case Take(subscription, count, tags):
                for i in range(count):
                    self._deliver(session, subscription, tags[8 * i : 8 * i + 8])
            case Ack(subscription, ranges):
                for first, count in ranges:
                    for tag in range(first, first + count):
                        self._ack(session, subscription, tag)
            case Exchange():
                for step in request.steps:
                    self.carry_out(session, step)
            case Fence(tag):
                session.fence_passed(tag)
            case Refuse(tag, error):
                session.refused(tag, error)
            case _:
                raise AssertionError(request)

    def _deliver(self, session: Session, subscription: int, tag: bytes) -> None:
        cursor = self.cursors.get(subscription)
        if cursor is None:
            return
        for number, held in list(cursor.held.items()):
            if held.due > self.now:
                continue
            if held.attempt == MAX_ATTEMPTS:
                del cursor.held[number]
                continue
            held.attempt += 1
            held.due = self.now + (BACKOFF_US << (held.attempt - 1))
            session.deliver(Portion(held.batch, held.index, 1, number, held.attempt, cursor.qos), tag)
            return
        if cursor.waiting:
            batch, index = cursor.waiting.popleft()
            cursor.passed += 1
            session.deliver(Portion(batch, index, 1, cursor.passed, 1, cursor.qos), tag)
            if cursor.qos and batch.qos:
                cursor.held[cursor.passed] = Held(batch, index, 1, self.now + BACKOFF_US)

    def _ack(self, session: Session, subscription: int, tag: int) -> None:
        cursor = self.cursors.get(subscription)
        if cursor is None or cursor.held.pop(tag, None) is None:
            session.refused(tag, BrokerError(Code.UNKNOWN, "no such delivery"))


class MemoryPeer:
    """A session joined to the stand-in, with the leftover a connection would keep. Implements peer.Peer."""

    def __init__(self) -> None:
        self._broker = StandIn()
        self.reconnect()

    def reconnect(self) -> None:
        self._session = BLIPMQ.new_session()
        self._rest = b""
        self._sent = bytearray()
        self._closed = False

    def send(self, data: bytes) -> None:
        self._rest += data
        try:
            while not self._closed:
                consumed, requests = self._session.receive(memoryview(self._rest), self._broker.now)
                self._rest = self._rest[consumed:]
                for request in requests:
                    self._broker.carry_out(self._session, request)
                if not requests:
                    break
        except PeerProtocolError:
            self._closed = True
        self._sent += self._session.data_to_send()

    def receive(self, size: int) -> bytes:
        data = bytes(self._sent[:size])
        del self._sent[:size]
        return data

    def closed(self) -> bool:
        return self._closed and not self._sent

    def fail(self, cause: str) -> None:
        self._broker.broken = cause

    def heal(self) -> None:
        self._broker.broken = ""

    def advance(self, milliseconds: int) -> None:
        self._broker.now += 1000 * milliseconds
