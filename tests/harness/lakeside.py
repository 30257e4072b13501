"""A broker with its feed in processes of their own, that a Spark test may kill and start again on the same ports."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.harness.served import Served, served

KEY = "dev-key"


class Lakeside:
    """`headrace serve --dev` with BlipMQ, HTTP, gRPC and Flight."""

    def __init__(self, data_dir: Path, **settings: str) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir
        self.key = KEY
        self._settings = settings
        self._listen = dict.fromkeys(("BLIPMQ", "HTTP", "GRPC", "FLIGHT"), "127.0.0.1:0")
        self._running = ExitStack()
        self._served: Served | None = None

    @property
    def served(self) -> Served:
        """The process that runs now."""
        assert self._served is not None, "the broker is not running"
        return self._served

    @property
    def endpoint(self) -> str:
        """Where the feed listens."""
        return self.served.endpoints["flight"]

    def start(self) -> None:
        """Start the broker, on the ports it had before if there was one."""
        settings: dict[str, Any] = {f"LISTEN__{name}": address for name, address in self._listen.items()}
        self._served = self._running.enter_context(served(self.data_dir, **(settings | self._settings)))
        self._listen = {name: f"127.0.0.1:{self.served.ports[name.lower()]}" for name in self._listen}

    def kill(self) -> None:
        """End it with -9."""
        self.served.process.kill()
        self.served.process.wait()
        self._served = None
        self._running.close()

    def stop(self) -> int:
        """Have it drain and end; its exit code."""
        self.served.process.send_signal(signal.SIGTERM)
        code = self.served.process.wait(30)
        self._served = None
        self._running.close()
        return code

    def close(self) -> None:
        """End it if it runs."""
        self._served = None
        self._running.close()

    async def publish(self, topic: str, values: list[bytes]) -> None:
        """Publish over BlipMQ; durable on return."""
        from headrace.protocols.blipmq.client import BlipmqClient

        async with await BlipmqClient.connect(self.served.endpoints["blipmq"], self.key) as client:
            await client.publish_many(topic, values)
