"""The real broker inside a test process: real sockets on free ports, a real log in a directory of your choice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from headrace.config import Address, Config, load
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
    accept_damage: bool = False,
    **overrides: object,
) -> AsyncIterator[Node]:
    """A running broker; `node.endpoints` says where, `KEY` is its API key.

    Without `data_dir` the log lives in a temporary directory. `disk` and `clock` let a test break the
    disk and turn the clock. `overrides` are sections of the configuration: `broker(retry={"max_attempts": 1})`.
    BlipMQ and HTTP listen; other doors are opened by `broker(listen={"sspq": "127.0.0.1:0"})`. Those that have no keys
    let everybody in, unless the test says by `auth` who may come in.
    """
    with TemporaryDirectory(prefix="headrace-") as scratch:
        node = await Node.start(
            _config(data_dir or scratch, overrides), disk=disk, clock=clock, accept_damage=accept_damage
        )
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
    settings |= overrides | {"listen": listen | given}
    config = load(None, {}, settings)
    return config if "auth" in overrides else _opened(config, overrides)


def _opened(config: Config, overrides: dict[str, object]) -> Config:
    """The same with doors that have no keys open to this machine, but for what the test says of them."""
    doors: dict[str, list[Address | None]] = {
        "sspq": [config.listen.sspq],
        "fujin": [config.listen.fujin, config.listen.fujin_tcp],
    }
    for name, addresses in doors.items():
        own = overrides.get(name, {})
        assert isinstance(own, dict)
        if "allow_unauthenticated" not in own and all(at.is_loopback for at in addresses if at is not None):
            section = msgspec.structs.replace(getattr(config, name), allow_unauthenticated=True)
            config = msgspec.structs.replace(config, **{name: section})
    return config
