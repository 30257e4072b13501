"""The real broker inside a test process: real sockets on free ports, a real log in a directory of your choice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.config import Config, load
from headrace.log import Disk
from headrace.server.clock import Clock
from headrace.server.node import Node

KEY = "test-key"


@asynccontextmanager
async def broker(
    data_dir: Path | str | None = None,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    **overrides: object,
) -> AsyncIterator[Node]:
    """A running broker; `node.endpoints` says where, `KEY` is its API key.

    Without `data_dir` the log lives in a temporary directory. `disk` and `clock` let a test break the
    disk and turn the clock. `overrides` are sections of the configuration: `broker(retry={"max_attempts": 1})`.
    BlipMQ and HTTP listen; other doors are opened by `broker(listen={"sspq": "127.0.0.1:0"})`.
    """
    with TemporaryDirectory(prefix="headrace-") as scratch:
        node = await Node.start(_config(data_dir or scratch, overrides), disk=disk, clock=clock)
        try:
            yield node
        finally:
            await node.stop()


def _config(data_dir: Path | str, overrides: dict[str, object]) -> Config:
    listen = dict.fromkeys(("sspq", "fujin", "grpc", "flight"), "")
    listen |= {"blipmq": "127.0.0.1:0", "http": "127.0.0.1:0"}
    given = overrides.get("listen", {})
    assert isinstance(given, dict)
    settings: dict[str, object] = {"data_dir": str(data_dir), "auth": {"api_keys": [KEY]}}
    return load(None, {}, settings | overrides | {"listen": listen | given})
