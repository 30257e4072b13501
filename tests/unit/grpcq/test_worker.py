"""How the worker brings messages to their end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from headrace.grpcq import ConsumeResult, MemoryAdapter, Message, Producer, Registry, Rejected, Unavailable, Worker


class Scene:
    """A queue, a registry and a worker on them."""

    def __init__(self, adapter: MemoryAdapter | None = None) -> None:
        self.adapter = adapter or MemoryAdapter()
        self.registry = Registry()
        self.producer = Producer(self.adapter)

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker that is stopped at the end."""
        worker = Worker(self.adapter, self.registry, "q", wait_s=0.05, **options)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            await worker.stop()
            await running

    async def work_off(self) -> None:
        """Work until nothing is left."""
        async with self.working():
            await self.until(lambda: not self.adapter.size("q"))

    async def until(self, reached: Callable[[], bool]) -> None:
        """Let others go on until something is so."""
        async with asyncio.timeout(10):
            while not reached():  # noqa: ASYNC110  # handlers in threads set no event of this loop
                await asyncio.sleep(0)

    def reasons(self) -> list[tuple[str, int]]:
        """Why messages died, and after how many attempts."""
        return [(letter.reason, letter.attempts) for letter in self.adapter.dead_letters]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("way", ["function", "coroutine"])
async def test_a_handler_that_returns_acks_its_message(scene: Scene, way: str) -> None:
    seen: list[tuple[str, str, int]] = []

    def function(request: StringValue, context: Any) -> StringValue:
        seen.append((request.value, dict(context.invocation_metadata())["user_id"], context.attempt))
        return StringValue(value="an answer nobody hears")

    async def coroutine(request: StringValue, context: Any) -> StringValue:
        return function(request, context)

    scene.registry.register("a", "b", function if way == "function" else coroutine, StringValue)
    await scene.producer.send("q", "a", "b", StringValue(value="x"), {"user_id": "ann"})
    await scene.work_off()
    assert seen == [("x", "ann", 1)]
    assert scene.reasons() == []


async def test_an_unknown_call_is_retried_then_dead_with_its_reason(scene: Scene) -> None:
    await scene.producer.send("q", "no.Such", "Call", b"")
    await scene.work_off()
    assert scene.reasons() == [("no handler for no.Such.Call", 3)]


@pytest.mark.parametrize("way", ["function", "coroutine"])
async def test_an_exception_is_retried_then_dead_with_its_reason(scene: Scene, way: str) -> None:
    attempts: list[int] = []

    def function(request: bytes, context: Any) -> None:
        attempts.append(context.attempt)
        raise KeyError("lost")

    async def coroutine(request: bytes, context: Any) -> None:
        function(request, context)

    scene.registry.register("a", "b", function if way == "function" else coroutine)
    await scene.producer.send("q", "a", "b", b"")
    await scene.work_off()
    assert attempts == [1, 2, 3]
    assert scene.reasons() == [("KeyError: 'lost'", 3)]


async def test_codes_and_aborts_are_failures(scene: Scene) -> None:
    def sets(request: bytes, context: Any) -> None:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("no order")

    async def aborts(request: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "bad order")

    def swallows(request: bytes, context: Any) -> None:
        try:
            context.abort(grpc.StatusCode.INTERNAL, "still counts")
        except Exception:
            return

    for action, function in (("sets", sets), ("aborts", aborts), ("swallows", swallows)):
        scene.registry.register("a", action, function)
        await scene.producer.send("q", "a", action, b"")
    await scene.work_off()
    assert sorted(reason for reason, _ in scene.reasons()) == [
        "INTERNAL: still counts",
        "INVALID_ARGUMENT: bad order",
        "NOT_FOUND: no order",
    ]


async def test_a_failure_that_heals_is_done(scene: Scene) -> None:
    def function(request: bytes, context: Any) -> None:
        if context.attempt < 3:
            raise OSError("not yet")

    scene.registry.register("a", "b", function)
    await scene.producer.send("q", "a", "b", b"")
    await scene.work_off()
    assert scene.reasons() == []


async def test_bytes_that_are_no_message_die_at_once_and_alone(scene: Scene) -> None:
    handled: list[bytes] = []
    scene.registry.register("a", "b", lambda request, context: handled.append(request))
    await scene.producer.send("q", "a", "b", b"1")
    scene.adapter.put("q", b"\xff\xff\xff")
    await scene.producer.send("q", "a", "b", b"2")
    await scene.work_off()
    assert sorted(handled) == [b"1", b"2"]
    ((reason, attempts),) = scene.reasons()
    assert reason.startswith("not a grpcq.Message")
    assert attempts == 1


async def test_a_payload_the_handler_cannot_read_dies_at_once(scene: Scene) -> None:
    scene.registry.register("a", "b", lambda request, context: None, StringValue)
    await scene.producer.send("q", "a", "b", b"\x0a\xff")
    await scene.work_off()
    ((reason, attempts),) = scene.reasons()
    assert reason.startswith("payload of a.b does not decode")
    assert attempts == 1


async def test_no_more_run_at_once_than_allowed_and_a_batch_takes_no_more(scene: Scene) -> None:
    running = most = 0
    release = asyncio.Event()

    async def handle(request: bytes, context: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    scene.registry.register("a", "b", handle)
    for _ in range(20):
        await scene.producer.send("q", "a", "b", b"")
    scene.adapter = watched = Watched(scene.adapter)
    async with scene.working(concurrency=4, batch=3):
        await scene.until(lambda: running == 4)
        assert watched.asked == [3, 1]
        release.set()
        await scene.until(lambda: not watched.size("q"))
    assert most == 4
    assert max(watched.asked) == 3


@pytest.mark.parametrize("way", ["function", "coroutine"])
async def test_stop_waits_for_handlers_in_flight(scene: Scene, way: str) -> None:
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    def function(request: bytes, context: Any) -> None:
        began.set()
        assert release.wait(10)
        ended.set()

    async def coroutine(request: bytes, context: Any) -> None:
        began.set()
        await asyncio.to_thread(release.wait, 10)
        ended.set()

    scene.registry.register("a", "b", function if way == "function" else coroutine)
    await scene.producer.send("q", "a", "b", b"")
    worker = Worker(scene.adapter, scene.registry, "q", wait_s=0.05)
    work = asyncio.create_task(worker.run())
    await scene.until(began.is_set)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    assert not ended.is_set()
    release.set()
    await stopping
    assert ended.is_set()
    await work
    assert (await scene.adapter.consume("q", 1)).items == []
    assert scene.reasons() == []


class Patient(MemoryAdapter):
    """Takes no message back, however slow the machine is."""

    async def consume(
        self, queue: str, max_batch: int, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> ConsumeResult:
        """Let the message be out for long."""
        return await super().consume(queue, max_batch, wait_s=wait_s, visibility_s=60.0)


async def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    scene = Scene(Patient())

    async def handle(request: bytes, context: Any) -> None:
        assert context.time_remaining() <= 0.09
        await asyncio.Event().wait()

    scene.registry.register("a", "b", handle)
    await scene.producer.send("q", "a", "b", b"")
    async with scene.working(visibility_s=0.1):
        await scene.until(lambda: bool(scene.adapter.dead_letters))
    assert scene.reasons() == [("handler took too long", 3)]


class Watched(MemoryAdapter):
    """Notes how many messages are asked for; has those of another adapter."""

    def __init__(self, other: MemoryAdapter) -> None:
        super().__init__()
        self._queues = other._queues
        self.asked: list[int] = []

    async def consume(
        self, queue: str, max_batch: int, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> ConsumeResult:
        """Note it."""
        self.asked.append(max_batch)
        return await super().consume(queue, max_batch, wait_s=wait_s, visibility_s=visibility_s)


class Flaky(MemoryAdapter):
    """Cannot be reached the first few times."""

    def __init__(self, failures: int, error: type[Exception]) -> None:
        super().__init__()
        self.failures = failures
        self.error = error

    async def consume(
        self, queue: str, max_batch: int, *, wait_s: float = 0.0, visibility_s: float = 0.0
    ) -> ConsumeResult:
        """Fail, or not any more."""
        if self.failures:
            self.failures -= 1
            raise self.error("gone")
        return await super().consume(queue, max_batch, wait_s=wait_s, visibility_s=visibility_s)


async def test_a_queue_that_cannot_be_reached_is_tried_again(scene: Scene) -> None:
    scene.adapter = Flaky(2, Unavailable)
    handled = asyncio.Event()

    async def handle(request: bytes, context: Any) -> None:
        handled.set()

    scene.registry.register("a", "b", handle)
    scene.adapter.put("q", Message(topic="a", action="b").SerializeToString())
    async with scene.working():
        await asyncio.wait_for(handled.wait(), 10)


async def test_a_queue_that_never_can_be_reached_ends_the_worker(scene: Scene) -> None:
    worker = Worker(Flaky(1, Rejected), scene.registry, "q")
    with pytest.raises(Rejected):
        await worker.run()
    await worker.stop()


def test_impossible_numbers_are_refused(scene: Scene) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Worker(scene.adapter, scene.registry, "q", concurrency=0)
