"""Works off queues: takes messages, finds their handlers, settles them by how the handlers end."""

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from headrace.grpcq.adapter import AdapterError, Item, NotAMessage, QueueAdapter, Unavailable
from headrace.grpcq.context import Aborted, AioQueueContext, QueueContext
from headrace.grpcq.registry import Handler, NoHandler, Registry
from headrace.grpcq.tracing import processing
from headrace.protocols.grpcq.grpcq_pb2 import Message

BATCH = 10
CONCURRENCY = 10
WAIT_S = 1.0
VISIBILITY_S = 30.0
DEADLINE_SHARE = 0.9
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0

log = logging.getLogger("headrace.grpcq")


class _Failed(Exception):
    """A handler that did not succeed; `dead` when trying again cannot help."""

    def __init__(self, reason: str, *, dead: bool = False) -> None:
        super().__init__(reason)
        self.dead = dead


class Worker:
    """Runs the handlers of a registry on the messages of one queue.

    At most `concurrency` handlers run at once, and no message is taken that none is free for. A handler has nine
    tenths of `visibility_s`; after that a coroutine is cancelled and its message has failed. Plain functions run in
    threads and cannot be cancelled: when one takes longer, its message is delivered again meanwhile.
    """

    def __init__(
        self,
        adapter: QueueAdapter,
        registry: Registry,
        queue: str,
        *,
        batch: int = BATCH,
        concurrency: int = CONCURRENCY,
        visibility_s: float = VISIBILITY_S,
        wait_s: float = WAIT_S,
    ) -> None:
        if batch < 1 or concurrency < 1:
            raise ValueError("batch and concurrency must be at least 1")
        self._adapter = adapter
        self._registry = registry
        self._queue = queue
        self._batch = batch
        self._concurrency = concurrency
        self._visibility_s = visibility_s
        self._wait_s = wait_s
        self._handling: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="grpcq")

    async def run(self) -> None:
        """Work until `stop`, then until every handler in flight has ended.

        A queue that cannot be reached is tried again, with growing pauses. Raises Rejected when it never can be.
        """
        try:
            while not self._stopping.is_set():
                if len(self._handling) >= self._concurrency:
                    await asyncio.wait(self._handling, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for item in await self._take():
                    task = asyncio.create_task(self._handle(item))
                    self._handling.add(task)
                    task.add_done_callback(self._handling.discard)
        finally:
            await asyncio.gather(*self._handling, return_exceptions=True)
            self._threads.shutdown(wait=False)
            self._stopped.set()

    async def stop(self) -> None:
        """Take no more messages, and return when `run` has ended."""
        self._stopping.set()
        await self._stopped.wait()

    async def _take(self) -> list[Item]:
        """The next messages there is a handler free for; none after a while."""
        room = min(self._batch, self._concurrency - len(self._handling))
        pause_s = PAUSE_S_MIN
        while not self._stopping.is_set():
            try:
                result = await self._adapter.consume(
                    self._queue, room, wait_s=self._wait_s, visibility_s=self._visibility_s
                )
                return list(result.items)
            except Unavailable as error:
                log.warning("grpcq.unavailable", extra={"queue": self._queue, "cause": str(error)})
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        return []

    async def _handle(self, item: Item) -> None:
        """Bring one message to its end: ack, or nack with the reason."""
        try:
            message = item.message()
        except NotAMessage as error:
            await self._settle(item.receipt.nack(str(error), dead=True), "")
            return
        deadline = time.monotonic() + DEADLINE_SHARE * self._visibility_s
        try:
            call = f"{message.topic}.{message.action}"
            with processing(self._queue, call, message.message_id, message.metadata):
                await self._process(message, item.attempt, deadline)
        except _Failed as failed:
            about = {"queue": self._queue, "message_id": message.message_id, "attempt": item.attempt}
            log.warning("grpcq.failed", extra=about | {"cause": str(failed)})
            await self._settle(item.receipt.nack(str(failed), dead=failed.dead), message.message_id)
        else:
            await self._settle(item.receipt.ack(), message.message_id)

    async def _process(self, message: Message, attempt: int, deadline: float) -> None:
        """Find and run the handler.

        Raises _Failed unless it succeeds.
        """
        try:
            handler = self._registry.find(message.topic, message.action)
        except NoHandler as error:
            raise _Failed(str(error)) from None
        try:
            request = handler.request(message.payload)
        except Exception as error:
            reason = f"payload of {message.topic}.{message.action} does not decode: {error}"
            raise _Failed(reason, dead=True) from error
        kind = AioQueueContext if handler.is_async else QueueContext
        context = kind(self._queue, message.metadata, attempt=attempt, deadline=deadline)
        try:
            await self._call(handler, request, context)
        except Aborted as error:
            raise _Failed(str(error)) from error
        except TimeoutError as error:
            raise _Failed(f"TimeoutError: {error}" if str(error) else "handler took too long") from error
        except Exception as error:
            raise _Failed(f"{type(error).__name__}: {error}") from error
        finally:
            context.end()
        if reason := context.failure():
            raise _Failed(reason)

    async def _call(self, handler: Handler, request: Any, context: AioQueueContext | QueueContext) -> None:
        if handler.is_async:
            async with asyncio.timeout(context.time_remaining()):
                await cast(Awaitable[object], handler.function(request, context))
        else:
            loop = asyncio.get_running_loop()
            here = contextvars.copy_context()
            await loop.run_in_executor(self._threads, here.run, handler.function, request, context)

    async def _settle(self, settling: Awaitable[None], message_id: str) -> None:
        """Settle; a message that cannot be comes back by itself, so that is worth a line and no more."""
        try:
            await settling
        except AdapterError as error:
            about = {"queue": self._queue, "message_id": message_id, "cause": str(error)}
            log.warning("grpcq.not_settled", extra=about)
