"""The queue service of a broker in the same process and event loop: the same calls as over gRPC, without a network."""

from collections.abc import Iterable, Sequence

from headrace.auth import Identity
from headrace.protocols.grpcq.deliveries import encoded
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import ConsumeResponse, Delivery, PublishRequest, Refusal
from headrace.server.grpc_queues import Failure, Queues

EMBEDDED = Identity("embedded")


class EmbeddedQueues:
    """Calls the queues directly, as an identity that may do everything unless another is given.

    Every method raises BrokerError where a client would be refused.
    """

    def __init__(self, queues: Queues, identity: Identity = EMBEDDED) -> None:
        self._queues = queues
        self._identity = identity

    async def publish(self, queue: str, messages: Iterable[Message | bytes]) -> None:
        """Store all messages or none; durable on return."""
        serialized = [m if isinstance(m, bytes) else m.SerializeToString() for m in messages]
        request = PublishRequest(queue=queue, messages=serialized)
        await self._queues.publish(self._identity, request.SerializeToString())

    async def consume(
        self, queue: str, max_batch: int = 10, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> list[Delivery]:
        """Up to `max_batch` messages, after waiting for the first up to `wait_s`."""
        taken = await self._queues.consume(self._identity, queue, max_batch, wait_s, visibility_s)
        return list(ConsumeResponse.FromString(encoded(*taken)).deliveries)

    async def ack(self, receipts: Sequence[bytes]) -> list[Refusal]:
        """The messages are done; what could not be settled. Durable on return."""
        return _refused(receipts, await self._queues.settle(self._identity, receipts))

    async def nack(self, receipts: Sequence[bytes], reason: str = "", *, dead: bool = False) -> list[Refusal]:
        """The messages failed; what could not be settled. Durable on return."""
        return _refused(receipts, await self._queues.settle(self._identity, receipts, Failure(reason, dead)))

    async def close(self) -> None:
        """Nothing to let go of; the broker is somebody else's."""


def _refused(receipts: Sequence[bytes], refused: dict[int, str]) -> list[Refusal]:
    return [Refusal(index=place, receipt=receipts[place], error=refused[place]) for place in sorted(refused)]
