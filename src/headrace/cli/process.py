"""A broker of one's own as a child process: started until it says `ready`, stopped kindly or killed."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.cli.failure import Failure
from headrace.cli.target import DEV_KEY, Target, endpoints_of

READY = "ready"
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 15
LOG_FILE = "broker.log"
LAST_WORDS = 5

LISTENERS = ("blipmq", "sspq", "fujin", "fujin_tcp", "grpc", "http", "flight")
FREE_PORT = "127.0.0.1:0"


class BrokerProcess:
    """`headrace serve --dev` on free ports in a directory; the same directory can be served again after a kill."""

    def __init__(self, directory: Path, extra: str = "", listen: Collection[str] = ("blipmq", "http")) -> None:
        """`listen` names the listeners to open; `extra` is TOML appended to the configuration: other sections."""
        self._directory = directory
        self._config = directory / "headrace.toml"
        self._listen = {name: FREE_PORT if name in listen else "" for name in LISTENERS}
        self._extra = extra
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.ready_s = 0.0

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended by us."""
        return self._process is not None

    @property
    def target(self) -> Target:
        """Where it listens now."""
        data = self._directory / "data"
        return Target(endpoints=endpoints_of(data), source=str(data), key=DEV_KEY, directory=data)

    async def start(self) -> None:
        """Start it and return when it serves; `ready_s` is how long that took.

        Raises Failure with the broker's own last words when it does not.
        """
        began = time.perf_counter()
        self._configure()
        with (self._directory / LOG_FILE).open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "headrace", "serve", "--dev", "--config", str(self._config),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        lines = self._process.stdout
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                async for line in lines:
                    if line.decode().strip() == READY:
                        break
                else:
                    raise Failure(f"the broker did not start: {self._last_words()}")
        except TimeoutError:
            await self.kill()
            raise Failure(f"the broker was not ready after {START_TIMEOUT_S} s: {self._last_words()}") from None
        self.ready_s = time.perf_counter() - began
        self._reading = asyncio.create_task(_drain(lines))

    def keep_port(self, name: str) -> None:
        """Have this listener at the same port when it is started again."""
        self._listen[name] = self.target.endpoints[name].partition("://")[2]

    def _configure(self) -> None:
        doors = "".join(f'{name} = "{address}"\n' for name, address in self._listen.items())
        self._config.write_text(f'data_dir = "{self._directory}/data"\n\n[listen]\n{doors}{self._extra}')

    async def kill(self) -> None:
        """End it at once, as a crash would (kill -9)."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Let it drain and end; killed if that takes too long."""
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._end(signal.SIGTERM)
        except TimeoutError:
            await self.kill()

    async def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(how)
            await process.wait()
        if self._reading is not None:
            await self._reading
        self._process = self._reading = None

    def _last_words(self) -> str:
        lines = (self._directory / LOG_FILE).read_text(errors="replace").splitlines()
        return "\n".join(lines[-LAST_WORDS:]) or "it said nothing"


async def _drain(lines: asyncio.StreamReader) -> None:
    """Read what the broker still prints, so that it never waits for us."""
    while await lines.read(65536):
        pass


@asynccontextmanager
async def own_broker(directory: Path, extra: str = "") -> AsyncIterator[BrokerProcess]:
    """A running broker in this directory, stopped at the end."""
    broker = BrokerProcess(directory, extra)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
