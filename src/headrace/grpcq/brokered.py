"""Queues of a headrace broker, over gRPC or in the same process, behind one adapter."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from headrace.grpcq.adapter import ConsumeResult, Item, ReceiptError, Rejected, Unavailable
from headrace.model.errors import BrokerError, Code, HeadraceError
from headrace.protocols.grpcq.client import ConnectionLost, GrpcqClient, Refused
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import Delivery, Refusal

if TYPE_CHECKING:
    from headrace.server.node import Node

_PASSING = frozenset((Code.STORAGE, Code.DRAINING))


class Service(Protocol):
    """The queue service, wherever it is: GrpcqClient is one, EmbeddedQueues another."""

    async def publish(self, queue: str, messages: Iterable[Message | bytes]) -> None:
        """Store all messages or none."""

    async def consume(
        self, queue: str, max_batch: int = 10, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> list[Delivery]:
        """Take messages."""

    async def ack(self, receipts: Sequence[bytes]) -> list[Refusal]:
        """Settle deliveries that are done."""

    async def nack(self, receipts: Sequence[bytes], reason: str = "", *, dead: bool = False) -> list[Refusal]:
        """Settle deliveries that failed."""

    async def close(self) -> None:
        """Let go of it."""


class HeadraceAdapter:
    """A queue adapter on a broker. What several handlers settle at a time goes out in one call."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._settler = _Settler(service)

    @classmethod
    def connect(cls, endpoint: str, key: str = "", **options: Any) -> Self:
        """An adapter on the broker at grpc://host:port; options are those of GrpcqClient."""
        return cls(GrpcqClient(endpoint, key, **options))

    @classmethod
    def embedded(cls, node: "Node") -> Self:
        """An adapter on a broker in this process and event loop; it needs no listener."""
        from headrace.grpcq.embedded import EmbeddedQueues  # a client needs no broker's code

        return cls(EmbeddedQueues(node.queues))

    async def publish(self, queue: str, *messages: Message) -> None:
        """Store all messages or none; durable on return.

        Raises Rejected or Unavailable.
        """
        await self.publish_bytes(queue, [message.SerializeToString() for message in messages])

    async def publish_bytes(self, queue: str, messages: Iterable[bytes]) -> None:
        """Store serialized messages, all or none; durable on return.

        Raises Rejected or Unavailable.
        """
        try:
            await self._service.publish(queue, messages)
        except HeadraceError as error:
            raise _translated(error) from None

    async def consume(
        self, queue: str, max_batch: int, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> ConsumeResult:
        """Up to `max_batch` messages, after waiting up to `wait_s` for the first.

        Raises Rejected or Unavailable.
        """
        try:
            found = await self._service.consume(queue, max_batch, wait_s=wait_s, visibility_s=visibility_s)
        except HeadraceError as error:
            raise _translated(error) from None
        return ConsumeResult([Item(d.message, _BrokerReceipt(self._settler, d.receipt), d.attempt) for d in found])

    async def close(self) -> None:
        """Settle what is being settled, then let go of the broker."""
        await self._settler.close()
        await self._service.close()


class _BrokerReceipt:
    """A receipt of a broker; an empty one is of a message that is settled already."""

    __slots__ = ("_receipt", "_settler")

    def __init__(self, settler: "_Settler", receipt: bytes) -> None:
        self._settler = settler
        self._receipt = receipt

    async def ack(self) -> None:
        """The message is done; durable on return."""
        if self._receipt:
            await self._settler.settle(self._receipt, None)

    async def nack(self, reason: str = "", *, dead: bool = False) -> None:
        """The message failed; durable on return."""
        if self._receipt:
            await self._settler.settle(self._receipt, (reason, dead))


_Outcome = tuple[str, bool] | None


class _Settler:
    """Gathers what is to be settled while a call is out, and sends it in the next."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: dict[_Outcome, list[tuple[bytes, asyncio.Future[None]]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def settle(self, receipt: bytes, outcome: _Outcome) -> None:
        """Ack a delivery, or nack it with (reason, dead).

        Raises ReceiptError, Rejected or Unavailable.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(outcome, []).append((receipt, done))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        await done

    async def close(self) -> None:
        """Return when everything asked for so far is answered."""
        if self._task is not None:
            await self._task

    async def _work(self) -> None:
        try:
            while self._waiting:
                outcome = next(iter(self._waiting))
                await self._send(outcome, self._waiting.pop(outcome))
        finally:
            self._task = None

    async def _send(self, outcome: _Outcome, waiting: list[tuple[bytes, asyncio.Future[None]]]) -> None:
        receipts = [receipt for receipt, _ in waiting]
        try:
            if outcome is None:
                refused = await self._service.ack(receipts)
            else:
                refused = await self._service.nack(receipts, outcome[0], dead=outcome[1])
        except HeadraceError as error:
            failure = _translated(error)
            errors: dict[int, HeadraceError] = dict.fromkeys(range(len(waiting)), failure)
        else:
            errors = {refusal.index: ReceiptError(refusal.error) for refusal in refused}
        for place, (_, done) in enumerate(waiting):
            if done.done():
                continue
            if place in errors:
                done.set_exception(errors[place])
            else:
                done.set_result(None)


def _translated(error: HeadraceError) -> HeadraceError:
    """A broker's error as the contract says it."""
    if isinstance(error, ConnectionLost):
        return Unavailable(str(error))
    if isinstance(error, Refused):
        return Rejected(error.message)
    if isinstance(error, BrokerError):
        return Unavailable(error.detail) if error.code in _PASSING else Rejected(error.detail)
    return error
