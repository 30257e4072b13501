"""The contract between grpcq and whatever keeps its messages: publish all or nothing, consume with receipts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.model.errors import BrokerError, HeadraceError
from headrace.protocols.grpcq.envelope import decode
from headrace.protocols.grpcq.grpcq_pb2 import Message


class AdapterError(HeadraceError):
    """Something an adapter could not do."""


class Rejected(AdapterError):
    """A queue or message nobody would take; trying again does not help."""


class Unavailable(AdapterError):
    """The queue cannot be reached, or not be written; what was asked may or may not have happened."""


class ReceiptError(AdapterError):
    """A receipt that cannot be settled: it was settled before, or its message was delivered anew meanwhile."""


class NotAMessage(HeadraceError):
    """Bytes from a queue that are no grpcq.Message."""


class Receipt(Protocol):
    """The right to settle one delivery, once."""

    async def ack(self) -> None:
        """The message is done.

        Raises ReceiptError or Unavailable.
        """

    async def nack(self, reason: str = "", *, dead: bool = False) -> None:
        """The message failed: it is tried again, or becomes a dead letter; if `dead`, at once.

        Raises ReceiptError or Unavailable.
        """


@dataclass(frozen=True, slots=True)
class Item:
    """One delivery: the message as it was stored, at its `attempt`-th try."""

    data: bytes
    receipt: Receipt
    attempt: int = 1

    def message(self) -> Message:
        """The message.

        Raises NotAMessage.
        """
        try:
            return decode(self.data)
        except BrokerError as error:
            raise NotAMessage(error.detail) from None


@dataclass(frozen=True, slots=True)
class ConsumeResult:
    """What a consume brought; nothing when there was nothing in time."""

    items: Sequence[Item]


class QueueAdapter(Protocol):
    """Where messages are kept."""

    async def publish(self, queue: str, *messages: Message) -> None:
        """Store all messages or none; one whose id the queue knows is stored already.

        Raises Rejected or Unavailable.
        """

    async def consume(
        self, queue: str, max_batch: int, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> ConsumeResult:
        """Up to `max_batch` messages, after waiting up to `wait_s` for the first.

        Each comes back to the queue unless it is settled within `visibility_s`; 0 leaves that to the queue.
        Raises Rejected or Unavailable.
        """

    async def close(self) -> None:
        """Let go of everything; what is not settled comes back to its queue."""
