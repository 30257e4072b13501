"""grpcq's publish endpoint over HTTP: `POST /queues/{queue}/messages` with envelopes in base64."""

import binascii
from base64 import b64decode
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.model.errors import BrokerError, Code, OverQuota
from headrace.protocols.grpcq.envelope import check_queue
from headrace.protocols.grpcq.queues_pb2 import PublishRequest
from headrace.server.grpc_queues import Queues
from headrace.server.guard import identity_of
from headrace.server.replies import failure


class _Body(msgspec.Struct, frozen=True):
    """What a publish holds; other fields are not ours to judge."""

    messages: list[str]


def queue_routes(queues: Queues) -> Sequence[BaseRoute]:
    """Where the endpoint is."""

    async def publish(request: Request) -> Response:
        """Store all messages or none: 204; what is wrong with them otherwise."""
        queue = check_queue(request.path_params["queue"])
        try:
            encoded = msgspec.json.decode(await request.body(), type=_Body).messages
        except msgspec.DecodeError as error:
            raise BrokerError(Code.INVALID, f"bad body: {error}") from None
        messages = [_envelope(place, text) for place, text in enumerate(encoded)]
        call = PublishRequest(queue=queue, messages=messages)
        try:
            address = request.client.host if request.client is not None else ""
            await queues.publish(identity_of(request.scope), call.SerializeToString(), address)
        except BrokerError as error:
            if error.code is Code.LIMIT and not isinstance(error, OverQuota):
                return failure(413, error.detail)
            raise
        return Response(status_code=204)

    return (Route("/queues/{queue:path}/messages", publish, methods=["POST"]),)


def _envelope(place: int, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BrokerError(Code.INVALID, f"message {place}: not base64") from None
