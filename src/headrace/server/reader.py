"""Reading a topic from a coroutine of the server: for doors that speak in calls instead of bytes."""

import asyncio

from headrace.auth import SHARED_OWNER, Identity
from headrace.model.delivery import Portion
from headrace.model.errors import StorageError
from headrace.model.requests import Publish, Settle, Start
from headrace.server.engine import Engine
from headrace.server.quotas import Kind, Lease
from headrace.server.readings import TAKE_BYTES_MAX, TAKE_MAX, settle_each


class Reader:
    """One consumer of one shared subscription. What it holds goes back by `release`, or by the timer if `timed`."""

    def __init__(self, engine: Engine, identity: Identity, address: str = "") -> None:
        """`address` is where the caller is, if it is far."""
        self._address = address
        self.subscription = 0
        self._lease: Lease | None = None
        self._engine = engine
        self._identity = identity
        self._moved = asyncio.Event()
        self._called = asyncio.Event()

    async def join(self, topic: str, name: str, *, tail: bool = False) -> None:
        """Join the subscription everybody who uses this name on the topic shares; durable on return.

        It counts as a stream of the caller's until it is left by `forget` or `release`.
        Raises BrokerError: FORBIDDEN, LIMIT, and STORAGE while the log cannot be written.
        """
        engine = self._engine
        lease = engine.quotas.lease(Kind.STREAMS, self._identity.owner, self._address)
        try:
            self.subscription = engine.subscribe(
                self._identity, topic, qos=1, name=name, start=Start.EARLIEST, tail=tail
            )
            await self._durable(engine.journal())
        except BaseException:
            lease.end()
            raise
        self._lease = lease

    async def fetch(
        self,
        count: int,
        wait_s: float,
        *,
        size_max: int = TAKE_BYTES_MAX,
        timed: bool = False,
        ack_wait_s: float = 0,
    ) -> list[Portion]:
        """Up to `count` messages, after waiting up to `wait_s` for the first; none when the time is up.

        What is `timed` comes back after `ack_wait_s`, or else the topic's ack wait, unless it is settled. A cancelled
        fetch waits no more.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        broker = self._engine.broker
        try:
            while not (portions := self._take(count, size_max, timed, ack_wait_s)):
                self._called.clear()
                broker.wait(self.subscription, self)
                async with asyncio.timeout_at(until):
                    await self._called.wait()
        except TimeoutError:
            portions = []
        finally:
            broker.stop_waiting(self)
            self._engine.journal()
        return portions

    async def settle(self, deliveries: list[int], *, failed: bool = False, reason: str = "") -> list[bool]:
        """Settle each delivery, or with `failed` have it tried again; which could be, durable on return."""
        request = Settle(0, self.subscription, deliveries, failed, reason)
        accepted = settle_each(self._engine, request)
        await self._durable(self._engine.journal())
        return accepted

    def forget(self) -> None:
        """Leave what was taken to the timer."""
        self._engine.broker.forget(self)
        self._leave()

    def release(self) -> None:
        """Give back what is not settled and wait for nothing any more."""
        self._engine.broker.release(self, self._engine.clock.now())
        self._engine.journal()
        self._leave()

    def called(self) -> None:
        """Engine's call: there may be something to take."""
        self._called.set()

    def settled(self) -> None:
        """Engine's call: a watermark moved."""
        self._moved.set()

    def publish_refused(self, request: Publish, cause: StorageError) -> None:
        """Engine's call; a reader publishes nothing."""

    def _leave(self) -> None:
        if self._lease is not None:
            self._lease.end()

    def _take(self, count: int, size_max: int, timed: bool, ack_wait_s: float) -> list[Portion]:
        engine = self._engine
        return engine.broker.take(
            self.subscription, min(count, TAKE_MAX), owner=SHARED_OWNER, consumer=self,
            size_max=size_max, timed=timed, ack_wait_us=int(ack_wait_s * 1e6), now=engine.clock.now(),
        )  # fmt: skip

    async def _durable(self, ticket: int) -> None:
        while self._engine.events_settled < ticket:
            self._moved.clear()
            self._engine.when_settled(self)
            await self._moved.wait()
