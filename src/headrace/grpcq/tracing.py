"""Trace context in the metadata of messages, by OpenTelemetry where its API is installed; nothing happens without."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

try:
    from opentelemetry import propagate, trace

    INSTALLED = True
except ImportError:
    INSTALLED = False

LIBRARY = "headrace.grpcq"
SYSTEM = "grpcq"


@contextmanager
def sending(queue: str) -> Iterator[None]:
    """A span around a publish."""
    if not INSTALLED:
        yield
        return
    attributes = {"messaging.system": SYSTEM, "messaging.destination.name": queue, "messaging.operation.type": "send"}
    tracer = trace.get_tracer(LIBRARY)
    with tracer.start_as_current_span(f"send {queue}", kind=trace.SpanKind.PRODUCER, attributes=attributes):
        yield


def inject(metadata: MutableMapping[str, str]) -> None:
    """Put the current trace context into a message's metadata."""
    if INSTALLED:
        propagate.inject(metadata)


@contextmanager
def processing(queue: str, call: str, message_id: str, metadata: Mapping[str, str]) -> Iterator[None]:
    """A span around a handler, linked to the one the message was sent in. An exception passes through and marks it."""
    if not INSTALLED:
        yield
        return
    origin = trace.get_current_span(propagate.extract(metadata)).get_span_context()
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.type": "process",
        "messaging.message.id": message_id,
    }
    with trace.get_tracer(LIBRARY).start_as_current_span(
        f"process {call}",
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=[trace.Link(origin)] if origin.is_valid else [],
    ):
        yield
