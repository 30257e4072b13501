"""The feed process: told when the log may be read, watched, started again when it dies or hangs.

How it is started is told by `feed_child`; what is asked over the socket is `channel`'s business. The feed ends by
itself when its socket is closed, so it outlives neither a stop nor the death of the broker.
"""

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import Sequence

import msgspec

from headrace.config import AuthSection
from headrace.feed.messages import Keys, Open
from headrace.model.errors import HeadraceError
from headrace.server.channel import Answer, Channel
from headrace.server.feed_child import COMMAND, FeedChild, start_feed

BACKOFF_S = 0.1
BACKOFF_S_MAX = 10.0
STEADY_S = 60.0
LISTENING_S = 30.0
PING_EVERY_S = 2.0
UNANSWERED_MAX = 6
EXIT_S = 5.0
log = logging.getLogger("headrace.feed")


class FeedFailed(HeadraceError):
    """The feed process could not be started as configured."""


class FeedProcess:
    """One feed process at a time, the first of them started already if there is a `child`.

    `open` it when the log is recovered, `stop` it at the end.
    """

    def __init__(
        self, child: FeedChild | None = None, command: Sequence[str] = COMMAND, *, ping_every_s: float = PING_EVERY_S
    ) -> None:
        self._command = command
        self._child = child or start_feed(command)
        self._channel: Channel | None = None
        self._opening: Open | None = None
        self._talking: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ping_every_s = ping_every_s

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        return self._child.process.pid if self._child.process.returncode is None else None

    async def open(self, opening: Open, answer: Answer) -> int:
        """Have the log served from now on, whatever happens to the process; the port it listens at.

        Raises FeedFailed when the first process cannot do it.
        """
        self._opening = opening
        port = await self._begin(answer)
        self._opening = msgspec.structs.replace(opening, port=port)
        self._supervisor = asyncio.create_task(self._supervise(answer), name="feed-supervisor")
        self._watch = asyncio.create_task(self._ping(), name="feed-watch")
        return port

    def take_keys(self, auth: AuthSection) -> None:
        """Other API keys and certificates from now on."""
        keys, certificates = auth.api_keys, auth.certificates
        if self._opening is not None:
            self._opening = msgspec.structs.replace(self._opening, api_keys=keys, certificates=certificates)
        if self._channel is not None:
            self._channel.send(Keys(api_keys=keys, certificates=certificates))

    async def stop(self, timeout_s: float) -> None:
        """Let requests under way be answered, then end the process."""
        for task in filter(None, (self._watch, self._supervisor)):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._channel is not None:
            await self._channel.drain(timeout_s)
        self._child.end.close()
        await self._reap()

    async def _begin(self, answer: Answer) -> int:
        """Have the process that was started serve; the port."""
        assert self._opening is not None
        self._channel = channel = Channel(*await asyncio.open_connection(sock=self._child.end), answer)
        self._talking = asyncio.create_task(channel.run(), name="feed-channel")
        channel.send(self._opening)
        try:
            said = await asyncio.wait_for(channel.listening(), LISTENING_S)
        except TimeoutError:
            raise FeedFailed(f"it did not listen within {LISTENING_S:.0f} s") from None
        if said.failure:
            raise FeedFailed(said.failure)
        log.info("feed.started", extra={"pid": self.pid, "port": said.port})
        return said.port

    async def _supervise(self, answer: Answer) -> None:
        loop = asyncio.get_running_loop()
        pause_s, began = 0.0, loop.time()
        while True:
            if self._talking is not None:
                await asyncio.wait({self._talking})
            code = await self._reap()
            steady = loop.time() - began > STEADY_S
            pause_s = BACKOFF_S if steady or not pause_s else min(2 * pause_s, BACKOFF_S_MAX)
            log.error("feed.died", extra={"code": code, "again_in_s": pause_s})
            await asyncio.sleep(pause_s)
            began = loop.time()
            try:
                self._child = start_feed(self._command)
                await self._begin(answer)
            except (OSError, FeedFailed) as error:
                log.error("feed.failed", extra={"cause": str(error)})
                self._child.process.kill()

    async def _ping(self) -> None:
        """Ask now and then whether the process answers, and end one that does not: then it is started again.

        Questions are counted, not seconds, so that a broker that stood still itself blames nobody.
        """
        while True:
            await asyncio.sleep(self._ping_every_s)
            channel = self._channel
            if channel is None or not channel.is_listening:
                continue
            if channel.unanswered >= UNANSWERED_MAX:
                log.error("feed.hangs", extra={"pid": self.pid, "unanswered": channel.unanswered})
                channel.unanswered = 0
                self._child.process.kill()
            else:
                channel.ping()

    async def _reap(self) -> int:
        """Wait for the process to end, not for ever; its exit code."""
        process = self._child.process
        try:
            return await asyncio.to_thread(process.wait, EXIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return await asyncio.to_thread(process.wait)
