"""What on a connection has taken too long: a deadline of the peer's own, half a message, an answer nobody takes."""

from headrace.http2.call import Call
from headrace.http2.limits import Http2Limits
from headrace.http2.status import GrpcError, Status
from headrace.http2.streams import Stream

PROGRESS = 65_536
"""So many bytes taken, and a peer counts as reading."""
FOREVER = float("inf")


def stuck(stream: Stream, now: float, limits: Http2Limits) -> GrpcError | None:
    """Why a stream has to end whose peer does not take what there is, or never says what it wants."""
    if not stream.queued:
        if stream.call is not None:
            stream.stuck_since = None
        elif stream.stuck_since is None:
            stream.stuck_since = now
    elif stream.stuck_since is None or not stream.stuck_at - PROGRESS < stream.queued <= stream.stuck_at:
        stream.stuck_since, stream.stuck_at = now, stream.queued
    if stream.stuck_since is None or now - stream.stuck_since < limits.write_timeout_s:
        return None
    return GrpcError(Status.RESOURCE_EXHAUSTED, "the stream is not being read")


def overdue(call: Call, now: float, limits: Http2Limits) -> GrpcError | None:
    """Why a call has to end by now."""
    if call.deadline is not None and now >= call.deadline:
        return GrpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
    if _stalls_at(call, limits) <= now:
        return GrpcError(Status.DEADLINE_EXCEEDED, "the rest of a message did not come in time")
    return None


def due(call: Call, limits: Http2Limits) -> float:
    """When a call will have to end unless something happens."""
    return min(_stalls_at(call, limits), FOREVER if call.deadline is None else call.deadline)


def _stalls_at(call: Call, limits: Http2Limits) -> float:
    """When a message that has begun, or the first, will have been waited for long enough."""
    if call.touched is None or call.half_closed:
        return FOREVER
    return call.touched + limits.stall_timeout_s
