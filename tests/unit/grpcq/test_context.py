"""The stand-ins for gRPC's contexts: the same names, and the same behaviour where there is any."""

import time

import grpc
import pytest

from headrace.grpcq.context import Aborted, AioQueueContext, QueueContext


def make(kind: type[QueueContext] | type[AioQueueContext], seconds: float = 60.0) -> QueueContext | AioQueueContext:
    return kind("q", {"Trace_Id": "abc", "user_id": "u"}, attempt=2, deadline=time.monotonic() + seconds)


def plain(seconds: float = 60.0) -> QueueContext:
    context = make(QueueContext, seconds)
    assert isinstance(context, QueueContext)
    return context


def aio() -> AioQueueContext:
    context = make(AioQueueContext)
    assert isinstance(context, AioQueueContext)
    return context


@pytest.mark.parametrize("kind", [QueueContext, AioQueueContext])
def test_what_both_know(kind: type[QueueContext] | type[AioQueueContext]) -> None:
    context = make(kind)
    assert dict(context.invocation_metadata()) == {"trace_id": "abc", "user_id": "u"}
    assert 59 < context.time_remaining() <= 60
    assert context.peer() == "queue:q"
    assert context.attempt == 2
    assert context.auth_context() == {}
    assert context.peer_identities() is None
    assert context.peer_identity_key() is None
    context.set_trailing_metadata((("k", "v"),))
    assert context.trailing_metadata() == (("k", "v"),)
    context.set_compression(grpc.Compression.Gzip)
    context.disable_next_message_compression()
    assert context.failure() == ""


@pytest.mark.parametrize("kind", [QueueContext, AioQueueContext])
def test_a_code_that_is_not_ok_is_a_failure(kind: type[QueueContext] | type[AioQueueContext]) -> None:
    context = make(kind)
    context.set_code(grpc.StatusCode.NOT_FOUND)
    assert context.failure() == "NOT_FOUND"
    context.set_details("no such order")
    assert context.failure() == "NOT_FOUND: no such order"
    assert (context.code(), context.details()) == (grpc.StatusCode.NOT_FOUND, "no such order")
    context.set_code(grpc.StatusCode.OK)
    assert context.failure() == ""


def test_abort_of_a_plain_function() -> None:
    context = plain()
    with pytest.raises(Aborted, match="PERMISSION_DENIED: no"):
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
    assert context.failure() == "PERMISSION_DENIED: no"
    with pytest.raises(ValueError, match="not OK"):
        context.abort(grpc.StatusCode.OK, "")


async def test_abort_of_a_coroutine() -> None:
    context = aio()
    with pytest.raises(Aborted, match="ABORTED"):
        await context.abort(grpc.StatusCode.ABORTED)
    assert context.failure() == "ABORTED"


class _Status:
    code, details = grpc.StatusCode.INTERNAL, "broken"


async def test_abort_with_a_status() -> None:
    with pytest.raises(Aborted, match="INTERNAL: broken"):
        plain().abort_with_status(_Status())
    with pytest.raises(Aborted, match="INTERNAL: broken"):
        await aio().abort_with_status(_Status())


async def test_there_is_nobody_to_talk_to() -> None:
    plain().send_initial_metadata(())
    context = aio()
    await context.send_initial_metadata(())
    with pytest.raises(grpc.aio.UsageError):
        await context.read()
    with pytest.raises(grpc.aio.UsageError):
        await context.write(b"")


def test_a_plain_function_can_be_told_of_the_end_and_give_up() -> None:
    context = plain()
    told: list[str] = []
    assert context.is_active()
    assert context.add_callback(lambda: told.append("end"))
    assert context.cancel()
    assert not context.is_active()
    assert context.failure().startswith("CANCELLED")
    context.end()
    assert told == ["end"]
    assert not context.add_callback(lambda: told.append("late"))
    assert not plain(seconds=-1).is_active()


def test_a_coroutine_can_be_told_of_the_end() -> None:
    context = aio()
    told: list[object] = []
    context.add_done_callback(told.append)
    assert not context.done()
    context.end()
    assert told == [context]
    assert context.done()
    assert not context.cancelled()


def test_every_method_of_the_real_contexts_is_there() -> None:
    for real, ours in ((grpc.ServicerContext, QueueContext), (grpc.aio.ServicerContext, AioQueueContext)):
        names = {name for name in dir(real) if not name.startswith("_")}
        assert names <= set(dir(ours)), names - set(dir(ours))
