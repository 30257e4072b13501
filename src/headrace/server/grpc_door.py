"""The grpcq door as the configuration describes it."""

from collections.abc import Callable

from headrace.auth import Keyring
from headrace.config import Config
from headrace.server.grpc_listener import GrpcListener
from headrace.server.grpc_queues import Queues, QueueSettings


def queue_settings(config: Config) -> QueueSettings:
    """What the grpcq door grants."""
    return QueueSettings(
        payload_max=config.grpcq.payload_max,
        max_attempts=config.grpcq.max_attempts,
        ack_wait_s=config.grpcq.ack_wait_ms / 1000,
        publishing_bytes_max=config.limits.pending_bytes_max,
        topics=config.broker_settings().topics,
    )


def grpc_door(config: Config, queues: Queues, keyring: Callable[[], Keyring]) -> GrpcListener:
    """The listener of the grpcq door."""
    return GrpcListener(
        queues,
        keyring,
        allow_unauthenticated=config.grpcq.allow_unauthenticated,
        request_max=config.grpcq.request_max,
        write_timeout_s=config.limits.write_timeout_s,
        tls=config.tls if config.tls.cert else None,
    )
