"""Queues in this process, for tests and for trying things out: the whole contract, nothing durable."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.grpcq.adapter import ConsumeResult, Item, ReceiptError, Rejected
from headrace.model.errors import BrokerError
from headrace.protocols.grpcq.envelope import PAYLOAD_MAX, check_message, check_queue
from headrace.protocols.grpcq.grpcq_pb2 import Message

VISIBILITY_S = 30.0
DEDUP_S = 600.0
NACKED = "nacked"
NOT_SETTLED = "not settled in time"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message given up, and why."""

    queue: str
    data: bytes
    reason: str
    attempts: int


@dataclass(slots=True)
class _Stored:
    data: bytes
    attempts: int = 0


@dataclass(slots=True)
class _Queue:
    waiting: deque[_Stored] = field(default_factory=deque)
    delivered: dict[int, tuple[_Stored, float]] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    seen: dict[str, float] = field(default_factory=dict)


class MemoryAdapter:
    """A queue adapter without a broker. Nacked messages are due again at once, in front of the others.

    `clock` gives seconds that only grow.
    """

    def __init__(
        self,
        *,
        max_attempts: int = 3,
        payload_max: int = PAYLOAD_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dead_letters: list[DeadLetter] = []
        self._max_attempts = max_attempts
        self._payload_max = payload_max
        self._clock = clock
        self._queues: dict[str, _Queue] = {}
        self._numbers = itertools.count(1)

    async def publish(self, queue: str, *messages: Message) -> None:
        """Store all messages or none; one whose id the queue got within ten minutes is stored already.

        Raises Rejected.
        """
        try:
            check_queue(queue)
            for message in messages:
                check_message(message, self._payload_max)
        except BrokerError as error:
            raise Rejected(error.detail) from None
        self.put(queue, *(each.SerializeToString() for each in messages if self._is_new(queue, each.message_id)))

    def put(self, queue: str, *data: bytes) -> None:
        """Store bytes as they are, whether or not they are messages."""
        found = self._queue(queue)
        found.waiting.extend(_Stored(each) for each in data)
        found.arrived.set()

    async def consume(
        self, queue: str, max_batch: int, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> ConsumeResult:
        """Up to `max_batch` messages, after waiting up to `wait_s` for the first.

        Raises Rejected.
        """
        try:
            found = self._queue(check_queue(queue))
        except BrokerError as error:
            raise Rejected(error.detail) from None
        until = self._clock() + wait_s
        self._take_back(queue, found)
        while not found.waiting and (left := until - self._clock()) > 0:
            found.arrived.clear()
            due = min((deadline - self._clock() for _, deadline in found.delivered.values()), default=left)
            try:
                async with asyncio.timeout(max(0.0, min(left, due))):
                    await found.arrived.wait()
            except TimeoutError:
                self._take_back(queue, found)
        deadline = self._clock() + (visibility_s or VISIBILITY_S)
        return ConsumeResult([self._deliver(queue, found, deadline) for _ in range(min(max_batch, len(found.waiting)))])

    async def close(self) -> None:
        """Nothing to let go of; the messages live as long as the adapter."""

    def size(self, queue: str) -> int:
        """How many messages a queue holds, those delivered and not settled included."""
        found = self._queue(queue)
        return len(found.waiting) + len(found.delivered)

    def settle(self, queue: str, number: int, failure: str | None, dead: bool) -> None:
        """End a delivery.

        Raises ReceiptError.
        """
        found = self._queue(queue)
        self._take_back(queue, found)
        entry = found.delivered.pop(number, None)
        if entry is None:
            raise ReceiptError("unknown receipt: settled before, or its message was delivered anew")
        if failure is not None:
            self._fail(queue, found, entry[0], failure, dead)

    def _is_new(self, queue: str, message_id: str) -> bool:
        """Whether a message is to be stored; from now on its id is known."""
        if not message_id:
            return True
        seen, now = self._queue(queue).seen, self._clock()
        for known, _ in list(itertools.takewhile(lambda each: now - each[1] >= DEDUP_S, seen.items())):
            del seen[known]
        if message_id in seen:
            return False
        seen[message_id] = now
        return True

    def _queue(self, name: str) -> _Queue:
        return self._queues.setdefault(name, _Queue())

    def _deliver(self, queue: str, found: _Queue, deadline: float) -> Item:
        stored = found.waiting.popleft()
        stored.attempts += 1
        number = next(self._numbers)
        found.delivered[number] = stored, deadline
        return Item(stored.data, _MemoryReceipt(self, queue, number), stored.attempts)

    def _take_back(self, queue: str, found: _Queue) -> None:
        now = self._clock()
        for number in [number for number, (_, deadline) in found.delivered.items() if deadline <= now]:
            stored, _ = found.delivered.pop(number)
            self._fail(queue, found, stored, NOT_SETTLED, False)

    def _fail(self, queue: str, found: _Queue, stored: _Stored, reason: str, dead: bool) -> None:
        if dead or stored.attempts >= self._max_attempts:
            self.dead_letters.append(DeadLetter(queue, stored.data, reason or NACKED, stored.attempts))
        else:
            found.waiting.appendleft(stored)
            found.arrived.set()


class _MemoryReceipt:
    """A receipt of a MemoryAdapter."""

    __slots__ = ("_adapter", "_number", "_queue")

    def __init__(self, adapter: MemoryAdapter, queue: str, number: int) -> None:
        self._adapter = adapter
        self._queue = queue
        self._number = number

    async def ack(self) -> None:
        """The message is done."""
        self._adapter.settle(self._queue, self._number, None, False)

    async def nack(self, reason: str = "", *, dead: bool = False) -> None:
        """The message failed."""
        self._adapter.settle(self._queue, self._number, reason or NACKED, dead)
