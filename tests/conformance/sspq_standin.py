"""A broker small enough to be read at a glance, for SSPQ sessions: one queue, one dead-letter queue, in memory."""

from collections import deque
from dataclasses import dataclass

from headrace.model.batch import ATTEMPTS_UNLIMITED, Batch
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.parts import RECORD_HEADER_SIZE
from headrace.model.requests import Ack, Fetch, Publish, Request, Subscribe
from headrace.protocols.sspq import SspqSession, SspqSettings

QUEUE, GRAVEYARD = 1, 2


@dataclass
class Stored:
    """A message and how often it was delivered."""

    batch: Batch
    index: int
    attempts: int = 0


class StandIn:
    """The broker's memory, shared by its connections."""

    def __init__(self, settings: SspqSettings) -> None:
        self.settings = settings
        self.queues: dict[int, deque[Stored]] = {QUEUE: deque(), GRAVEYARD: deque()}
        self.waiting: deque[tuple[int, MemoryPeer]] = deque()
        self.delivered = 0

    def carry_out(self, peer: "MemoryPeer", request: Request) -> None:
        """Do one request and report its outcome."""
        match request:
            case Subscribe(tag, topic, name="sspq", tail=True):
                peer.session.subscribed(tag, GRAVEYARD if topic == f"$dead.{self.settings.topic}" else QUEUE)
            case Publish(topic, 1, count, record):
                assert topic == self.settings.topic
                batch = Batch(record, RECORD_HEADER_SIZE, 0)
                self.queues[QUEUE].extend(Stored(batch, index) for index in range(count))
                self.serve()
            case Fetch(_, subscription, 1):
                self.waiting.append((subscription, peer))
                self.serve()
            case Ack(subscription, [(delivery, 1)]):
                assert peer.held == (subscription, delivery)
                peer.held = peer.message = None
            case _:
                raise AssertionError(request)

    def serve(self) -> None:
        """Hand out what there is to those who wait, the first first."""
        for subscription, peer in list(self.waiting):
            queue = self.queues[subscription]
            if not queue:
                continue
            self.waiting.remove((subscription, peer))
            message = queue.popleft()
            message.attempts += 1
            self.delivered += 1
            peer.held, peer.message = (subscription, self.delivered), message
            portion = Portion(message.batch, message.index, 1, self.delivered, message.attempts)
            peer.session.fetched(-3, [portion])

    def gone(self, peer: "MemoryPeer") -> None:
        """The peer's connection is lost: it waits no more, and what it held is tried again or given up."""
        self.waiting = deque(entry for entry in self.waiting if entry[1] is not peer)
        if peer.held is None or peer.message is None:
            return
        subscription, message = peer.held[0], peer.message
        peer.held = peer.message = None
        limit = message.batch.max_attempts
        alive = subscription == GRAVEYARD or limit == ATTEMPTS_UNLIMITED or message.attempts < limit
        self.queues[subscription if alive else GRAVEYARD].append(message)
        self.serve()

    def drain(self) -> None:
        """The server is about to stop."""
        for _, peer in self.waiting:
            peer.session.refused(-3, BrokerError(Code.DRAINING, "the server is about to stop"))
        self.waiting.clear()


class MemoryPeer:
    """A session joined to the stand-in, with the leftover a connection would keep."""

    def __init__(self, broker: StandIn) -> None:
        self.session = SspqSession(broker.settings)
        self.held: tuple[int, int] | None = None
        self.message: Stored | None = None
        self._broker = broker
        self._rest = b""
        self._unread = b""
        self._closed = False

    def send(self, data: bytes) -> None:
        """Bytes to the broker, as one write."""
        self._rest += data
        try:
            asked = True
            while asked and not self._closed:
                consumed, requests = self.session.receive(memoryview(self._rest), 0)
                self._rest = self._rest[consumed:]
                asked = bool(requests)
                for request in requests:
                    self._broker.carry_out(self, request)
        except PeerProtocolError:
            self._closed = True
            self._broker.gone(self)

    def receive(self, size: int) -> bytes:
        """Exactly this many bytes, or fewer when the broker has said no more."""
        self._unread += self.session.data_to_send()
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def closed(self) -> bool:
        """Whether the broker has closed the connection, having said nothing more."""
        return self._closed and self.quiet()

    def quiet(self) -> bool:
        """Whether everything the broker said has been read."""
        self._unread += self.session.data_to_send()
        return not self._unread

    def vanish(self) -> None:
        """Hang up."""
        if not self._closed:
            self._closed = True
            self._broker.gone(self)


class MemoryHouse:
    """Connections by name to one stand-in."""

    def __init__(self, settings: SspqSettings) -> None:
        self._broker = StandIn(settings)
        self._peers: dict[str, MemoryPeer] = {}

    def peer(self, name: str) -> MemoryPeer:
        """The connection of this name, made if need be."""
        if name not in self._peers:
            self._peers[name] = MemoryPeer(self._broker)
        return self._peers[name]

    def drain(self) -> None:
        """Have the server begin to stop."""
        for peer in self._peers.values():
            peer.session.draining()
        self._broker.drain()

    def check_nothing_left(self) -> None:
        """Every word was expected, and both queues are empty."""
        assert all(peer.quiet() for peer in self._peers.values())
        assert not any(self._broker.queues.values())
        assert not any(peer.held for peer in self._peers.values())
