"""The brokers under test and their variants: how each is configured, started and spoken to.

Every peer is given its fast path: pipelining, batched reads, blocking reads instead of polling, windows found by
trying several. Files of all brokers lie in the same directory, so on the same disk.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from bench.process import Server, free_port, start_announcing, start_listening

MIB = 1 << 20

_HEADRACE_CONFIG = """\
data_dir = "{directory}/data"

[listen]
blipmq = "127.0.0.1:0"
http = "127.0.0.1:0"
sspq = "127.0.0.1:0"
fujin = "{fujin}"
fujin_tcp = "{fujin_tcp}"
grpc = "{grpc}"
flight = "{flight}"

[log]
sync = "{sync}"

[fujin]
push_window = 16384
"""

_NATS_CONFIG = """\
listen: "127.0.0.1:{port}"
max_pending: 512MB
write_deadline: "60s"
"""

_JETSTREAM_CONFIG = """\
jetstream {{
  store_dir: "{directory}/jetstream"
  {sync}
}}
"""
_JETSTREAM_SYNC = "sync_interval: always"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One broker with one configuration, and how the load client speaks to it.

    `client` is the command of a load client of its own; the C client is used without one.
    """

    name: str
    title: str
    protocol: str
    durable: bool
    start: Callable[[Path], Server]
    window: Callable[[int], int]
    batch: int
    poll_us: int
    program: str
    package: str = ""
    client: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether its program is on this machine."""
        return find_program(self.program) is not None


@cache
def find_program(name: str) -> str | None:
    """Where a program is, looking also where Debian keeps servers."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


@cache
def version_of(program: str) -> str:
    """A program's own one-line version, empty when it is absent."""
    found = find_program(program)
    if found is None:
        return ""
    done = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().splitlines()[0]


def start_headrace(directory: Path, *, sync: str, pure: bool, door: str = "blipmq", feed: bool = False) -> Server:
    """`headrace serve --dev` in a directory; called again on the same one, it recovers what is there.

    `door` is the listener whose port is wanted; `feed` adds the one for Spark.
    """
    config = directory / "headrace.toml"
    doors = {name: "127.0.0.1:0" if door == name else "" for name in ("fujin", "fujin_tcp", "grpc")}
    doors["flight"] = "127.0.0.1:0" if feed else ""
    config.write_text(_HEADRACE_CONFIG.format(directory=directory, sync=sync, **doors))
    environ = {name: text for name, text in os.environ.items() if not name.startswith("HEADRACE_")}
    if pure:
        environ["HEADRACE_PURE"] = "1"
    command = [sys.executable, "-m", "headrace", "serve", "--dev", "--config", str(config)]
    return start_announcing(command, door, directory / "broker.log", environ, own_session=feed)


def start_redis(directory: Path, *, appendfsync: str) -> Server:
    """redis-server with an append-only file synced as said, or without one for "off"; no snapshots either way."""
    port = free_port()
    persistence = ["--appendonly", "no"]
    if appendfsync != "off":
        persistence = ["--appendonly", "yes", "--appendfsync", appendfsync, "--auto-aof-rewrite-percentage", "0"]
    command = [
        find_program("redis-server") or "", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory),
        "--save", "", *persistence,
    ]  # fmt: skip
    return start_listening(command, port, directory / "broker.log")


def start_nats(directory: Path, *, jetstream: bool) -> Server:
    """nats-server, with JetStream on disk or with nothing stored at all."""
    port = free_port()
    text = _NATS_CONFIG.format(port=port)
    if jetstream:
        sync = _JETSTREAM_SYNC if jetstream_can_sync() else ""
        text += _JETSTREAM_CONFIG.format(directory=directory, sync=sync)
    config = directory / "nats.conf"
    config.write_text(text)
    program = find_program("nats-server") or ""
    return start_listening([program, "-c", str(config)], port, directory / "broker.log")


@cache
def jetstream_can_sync() -> bool:
    """Whether this nats-server knows `sync_interval: always` (2.10 and later)."""
    program = find_program("nats-server")
    if program is None:
        return False
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "nats.conf"
        config.write_text(_JETSTREAM_CONFIG.format(directory=directory, sync=_JETSTREAM_SYNC))
        return subprocess.run([program, "-t", "-c", str(config)], capture_output=True, check=False).returncode == 0


def _headrace(name: str, title: str, *, sync: str = "always", pure: bool = False, door: str = "blipmq") -> Variant:
    return Variant(
        name=name,
        title=title,
        protocol=door,
        durable=sync == "always",
        start=partial(start_headrace, sync=sync, pure=pure, door=door),
        window=lambda size: 16 * MIB,
        batch=8192,
        poll_us=600,
        program=sys.executable,
    )


def _grpcq(name: str, title: str, *, batch: int, pure: bool = False) -> Variant:
    client = (sys.executable, "-m", "bench.grpcq_load")
    return replace(_headrace(name, title, pure=pure, door="grpc"), batch=batch, client=client)


def _fujin(name: str, title: str, *, pure: bool = False) -> Variant:
    client = (sys.executable, "-m", "bench.fujin_load")
    return replace(_headrace(name, title, pure=pure, door="fujin"), client=client)


def _redis(name: str, title: str, *, appendfsync: str) -> Variant:
    return Variant(
        name=name,
        title=title,
        protocol="redis",
        durable=appendfsync == "always",
        start=partial(start_redis, appendfsync=appendfsync),
        window=lambda size: 4 * MIB,
        batch=1000,
        poll_us=1000,
        program="redis-server",
        package="redis-server",
    )


def _nats(name: str, title: str, *, jetstream: bool) -> Variant:
    return Variant(
        name=name,
        title=title,
        protocol="jetstream" if jetstream else "nats",
        durable=jetstream and jetstream_can_sync(),
        start=partial(start_nats, jetstream=jetstream),
        window=lambda size: min(8192 * (size + 40), 16 * MIB) if jetstream else MIB,
        batch=2000,
        poll_us=1000,
        program="nats-server",
        package="nats-server",
    )


def all_variants() -> dict[str, Variant]:
    """Every variant by name, headrace first; peers that are not installed included."""
    jetstream = "JetStream file, sync always" if jetstream_can_sync() else "JetStream file, never synced¹"
    found = [
        _headrace("headrace", "headrace durable, compiled"),
        _headrace("headrace-pure", "headrace durable, interpreted", pure=True),
        _headrace("headrace-nosync", "headrace sync none, compiled", sync="none"),
        _headrace("sspq", "headrace SSPQ durable, compiled", door="sspq"),
        _headrace("sspq-pure", "headrace SSPQ durable, interpreted", door="sspq", pure=True),
        _grpcq("grpcq", "headrace grpcq durable, 1,000 messages a call, compiled", batch=1000),
        _grpcq("grpcq-pure", "headrace grpcq durable, 1,000 messages a call, interpreted", batch=1000, pure=True),
        _grpcq("grpcq-unary", "headrace grpcq durable, one message a call", batch=1),
        _fujin("fujin", "headrace Fujin over QUIC, durable, compiled"),
        _fujin("fujin-pure", "headrace Fujin over QUIC, durable, interpreted", pure=True),
        _headrace("fujin-tcp", "headrace Fujin over TLS, durable, compiled", door="fujin_tcp"),
        _headrace("fujin-tcp-pure", "headrace Fujin over TLS, durable, interpreted", door="fujin_tcp", pure=True),
        _redis("redis-always", "Redis streams, AOF always", appendfsync="always"),
        _redis("redis-everysec", "Redis streams, AOF everysec", appendfsync="everysec"),
        _redis("redis-none", "Redis streams, no AOF", appendfsync="off"),
        _nats("jetstream", jetstream, jetstream=True),
        _nats("nats-core", "NATS core, nothing stored", jetstream=False),
    ]
    return {variant.name: variant for variant in found}
