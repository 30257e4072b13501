"""Puts gRPC calls into queues: checks them, gives them ids, timestamps and the trace they belong to."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import Message as ProtobufMessage

from headrace.grpcq.adapter import QueueAdapter, Rejected
from headrace.grpcq.tracing import inject, sending
from headrace.model.errors import BrokerError
from headrace.protocols.grpcq.envelope import PAYLOAD_MAX, check_message, check_queue
from headrace.protocols.grpcq.grpcq_pb2 import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A gRPC call to be made later: service, method and request, which may be serialized already."""

    topic: str
    action: str
    request: ProtobufMessage | bytes
    metadata: Mapping[str, str] = field(default_factory=dict)
    message_id: str = ""


class Producer:
    """Sends calls through an adapter. `originator` says who sends: a service's name, an instance."""

    def __init__(self, adapter: QueueAdapter, originator: str = "", *, payload_max: int = PAYLOAD_MAX) -> None:
        self._adapter = adapter
        self._originator = originator
        self._payload_max = payload_max

    async def send(
        self,
        queue: str,
        topic: str,
        action: str,
        request: ProtobufMessage | bytes,
        metadata: Mapping[str, str] | None = None,
        *,
        message_id: str = "",
    ) -> str:
        """Send one call; its message id, a new UUID unless one is given.

        Raises Rejected or Unavailable. After the latter it may be sent again under the same id: it is stored once.
        """
        call = Call(topic=topic, action=action, request=request, metadata=metadata or {}, message_id=message_id)
        return (await self.send_batch(queue, [call]))[0]

    async def send_batch(self, queue: str, calls: Sequence[Call]) -> list[str]:
        """Send all calls or none; their message ids.

        Raises Rejected or Unavailable.
        """
        with sending(queue):
            try:
                check_queue(queue)
                messages = [self._message(call) for call in calls]
            except BrokerError as error:
                raise Rejected(error.detail) from None
            await self._adapter.publish(queue, *messages)
        return [message.message_id for message in messages]

    def _message(self, call: Call) -> Message:
        metadata = dict(call.metadata)
        inject(metadata)
        request = call.request
        message = Message(
            originator=self._originator,
            topic=call.topic,
            action=call.action,
            payload=request if isinstance(request, bytes) else request.SerializeToString(),
            message_id=call.message_id or str(uuid.uuid4()),
            timestamp_ms=time.time_ns() // 1_000_000,
            metadata=metadata,
        )
        check_message(message, self._payload_max)
        return message
