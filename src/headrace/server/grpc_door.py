"""The grpcq door as the configuration describes it."""

from headrace.config import Config
from headrace.http2 import Http2Limits
from headrace.server.doors import Entrance
from headrace.server.grpc_listener import GrpcListener
from headrace.server.grpc_queues import Queues, QueueSettings
from headrace.server.tls import server_context


def queue_settings(config: Config) -> QueueSettings:
    """What the grpcq door grants."""
    return QueueSettings(
        payload_max=config.grpcq.payload_max,
        max_attempts=config.grpcq.max_attempts,
        ack_wait_s=config.grpcq.ack_wait_ms / 1000,
        publishing_bytes_max=config.limits.pending_bytes_max,
        topics=config.broker_settings().topics,
    )


def grpc_door(config: Config, queues: Queues, entrance: Entrance) -> GrpcListener:
    """The listener of the grpcq door.

    Raises TlsError when the certificate cannot be used.
    """
    bounds = config.limits
    limits = Http2Limits(
        message_max=config.grpcq.request_max,
        connections_max=bounds.connections_max,
        connections_per_address_max=bounds.connections_per_address_max,
        auth_timeout_s=bounds.auth_timeout_s,
        write_timeout_s=bounds.write_timeout_s,
        write_buffer_max=bounds.write_buffer_max,
    )
    return GrpcListener(queues, entrance, limits, server_context(config.tls) if config.tls.cert else None)
