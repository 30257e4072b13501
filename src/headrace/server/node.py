"""One broker process put together: recovery, listeners, signals, drain."""

import asyncio
import gc
import json
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from headrace.auth import Keyring
from headrace.config import Address, Config, load
from headrace.feed.messages import Open
from headrace.kernels import compiled
from headrace.log import Disk, Log, LogDamaged, OsDisk, Report
from headrace.model.errors import HeadraceError, StorageError
from headrace.protocols.blipmq.session import BlipmqSession
from headrace.server.channel import FeedDesk
from headrace.server.clock import Clock
from headrace.server.conversation import Terms
from headrace.server.disk_health import scrub_for_ever
from headrace.server.doors import KEYLESS, Entrance, check_callers, check_keys, sspq_sessions
from headrace.server.engine import Engine
from headrace.server.feed_child import FeedChild, feed_installed
from headrace.server.feed_process import FeedProcess
from headrace.server.fujin_doors import quic_door, tls_door
from headrace.server.grpc_door import grpc_door, queue_settings
from headrace.server.grpc_listener import GrpcListener
from headrace.server.grpc_queues import Queues
from headrace.server.http import build_app
from headrace.server.marks import Marks
from headrace.server.private import keep_private, write_private
from headrace.server.quic import QuicListener
from headrace.server.quotas import Quotas
from headrace.server.recovery import recover_broker, tell_report
from headrace.server.serving import HttpServer, serve_http
from headrace.server.snapshots import Snapshots
from headrace.server.staging import Staging
from headrace.server.tcp import TcpLimits, TcpListener
from headrace.server.tls import server_context
from headrace.server.transactions import Transactions

CHORES_EVERY_S = 30.0
SWITCH_INTERVAL_S = 0.0005
log = logging.getLogger("headrace.node")


class Node:
    """A running broker. Make one with `Node.start`, end it with `stop`."""

    def __init__(
        self, config: Config, engine: Engine, keyring: Keyring, staging: Staging, feed: FeedProcess | None
    ) -> None:
        self.config = config
        self.engine = engine
        self.feed = feed
        self.endpoints: dict[str, str] = {}
        self.entrances: dict[str, Entrance] = {}
        self.warnings: list[str] = []
        self.reread: Callable[[], Config] | None = None
        self.queues = Queues(engine, queue_settings(config))
        self._keyring = keyring
        self._marks = Marks(engine.log)
        self.transactions = Transactions(engine, staging, self._marks)
        self._listeners: list[TcpListener | QuicListener | GrpcListener] = []
        self._http: HttpServer | None = None
        self._chores: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        config: Config,
        *,
        accept_damage: bool = False,
        disk: Disk | None = None,
        clock: Clock | None = None,
        feed_child: FeedChild | None = None,
        reread: Callable[[], Config] | None = None,
    ) -> "Node":
        """Recover the log, open every listener, write endpoints.json.

        `disk` and `clock` are the real ones unless a test brings its own; `feed_child` is a feed process that runs.
        `reread` reads the configuration anew, for its keys.

        Raises LogDamaged, StorageError (the disk fails, or another broker has the directory), ConfigError or
        OSError; nothing stays open then.
        """
        keyring = Keyring.from_settings(config.auth.api_keys, config.auth.certificates)
        data_dir = Path(config.data_dir)
        warnings = check_keys(config) + _private(data_dir)
        settings = config.log_settings()
        disk = disk or OsDisk()
        clock = clock or Clock()
        async with AsyncExitStack() as undo:
            feed = None
            if feed_child is not None or (config.listen.flight is not None and feed_installed()):
                feed = FeedProcess(feed_child)
                undo.push_async_callback(feed.stop, config.limits.drain_timeout_s)
            stored = Log.open(data_dir / "log", disk, settings, accept_damage=accept_damage, now=clock.now())
            undo.callback(stored.close)
            tell_report(stored.report)
            engine = Engine(
                stored, recover_broker(stored, config.broker_settings(), clock.now()), clock, Snapshots(),
                quotas=Quotas(config.limits),
            )  # fmt: skip
            if stored.damage and not accept_damage:
                raise LogDamaged(Report(damage=list(stored.damage)))
            engine.broker.bound(
                topics=config.limits.topics_per_key_max,
                subscriptions=config.limits.subscriptions_per_key_max,
                readers=config.limits.readers_per_key_max,
                writers=config.limits.writers_per_key_max,
            )
            engine.journal()
            node = cls(config, engine, keyring, Staging(data_dir / "staging", disk), feed)
            node.warnings, node.reread = warnings, reread
            undo.pop_all()
        try:
            node.transactions.recover(accept_damage=accept_damage)
            await node._open_listeners()
        except BaseException:
            await node.stop()
            raise
        write_private(data_dir / "endpoints.json", (json.dumps(node.endpoints, indent=2) + "\n").encode())
        node._chores.append(asyncio.create_task(node._tend()))
        node._chores.append(asyncio.create_task(scrub_for_ever(engine, settings)))
        engine.ready = True
        return node

    async def stop(self) -> None:
        """Drain: no newcomers, no new requests, what was asked for is synced and answered, then close."""
        self.engine.ready = False
        timeout_s = self.config.limits.drain_timeout_s
        for listener in self._listeners:
            listener.stop_listening()
        await self.transactions.drained(timeout_s)
        if self.feed is not None:
            await self.feed.stop(timeout_s)
        await self.engine.drained(timeout_s)
        await asyncio.gather(*(listener.close(timeout_s) for listener in self._listeners))
        for chore in self._chores:
            chore.cancel()
        if self._http is not None:
            await self._http.stop()
        await self.engine.close(timeout_s)

    def reload_keys(self, config: Config) -> None:
        """Take the keys and certificates of a configuration read anew; who would not get in any more is cut off.

        Raises BadKeyEntry or ConfigError; the old ones stay then.
        """
        auth = config.auth
        for warning in check_keys(msgspec.structs.replace(self.config, auth=auth)):
            log.warning("keys.weak", extra={"cause": warning})
        self._keyring = Keyring.from_settings(auth.api_keys, auth.certificates)
        if self.feed is not None:
            self.feed.take_keys(auth)
        for listener in self._listeners:
            listener.revoke(self.entrances[listener.name].still_valid)
        if self._http is not None:
            self._http.revoke(self.entrances["http"].still_valid)
        log.info("keys.reloaded", extra={"keys": len(auth.api_keys), "certificates": len(auth.certificates)})

    def reload(self) -> str:
        """Read the configuration anew for its keys; why that did not work, if it did not."""
        assert self.reread is not None
        try:
            self.reload_keys(self.reread())
        except (HeadraceError, OSError) as error:
            log.error("keys.reload_failed", extra={"cause": str(error)})
            return str(error)
        return ""

    def admissions(self) -> list[str]:
        """Who may come in by which door, a line each, and what there is to be warned of."""
        lines = [f"admits {name}: {entrance.described()}" for name, entrance in self.entrances.items()]
        return lines + [f"warning: {warning}" for warning in self.warnings]

    async def _open_listeners(self) -> None:
        config, limits = self.config, self.config.limits
        tls = server_context(config.tls) if config.tls.cert else None
        terms = Terms(
            keyring=lambda: self._keyring,
            pending_bytes_max=limits.pending_bytes_max,
        )
        bounds = TcpLimits(
            connections_max=limits.connections_max,
            connections_per_address_max=limits.connections_per_address_max,
            write_buffer_max=limits.write_buffer_max,
            write_timeout_s=limits.write_timeout_s,
            auth_timeout_s=limits.auth_timeout_s,
        )
        if (at := self._opens("blipmq")) is not None:
            new_session = partial(BlipmqSession, limits.auth_failures_max)
            polled = replace(terms, stand_us=1000 * config.blipmq.poll_wait_ms)
            certify = self.entrances["blipmq"].by_certificate
            listener = TcpListener("blipmq", self.engine, new_session, polled, bounds, tls, certify=certify)
            await self._listen(listener, at)
        if (at := self._opens("sspq")) is not None:
            who = self.entrances["sspq"].identify
            await self._listen(TcpListener("sspq", self.engine, sspq_sessions(config), terms, bounds, tls, who), at)
        if (at := self._opens("fujin")) is not None:
            await self._listen(quic_door(config, at, self.engine, terms), at, "quic")
        if (at := self._opens("fujin_tcp")) is not None:
            await self._listen(tls_door(config, at, self.engine, terms, bounds), at, "tls")
        if (at := self._opens("grpc")) is not None:
            grpc = grpc_door(config, self.queues, self.entrances["grpc"])
            await self._listen(grpc, at, "grpcs" if tls else "grpc")
        if (at := self._opens("http")) is not None:
            app = build_app(
                self.engine, terms.keyring, config.http, self.queues, self._marks,
                certified=bool(config.tls.client_ca), reload=self.reload,
            )  # fmt: skip
            self._http = await serve_http(app, at, config.tls if tls else None, limits)
            self.endpoints["http"] = _url("https" if tls else "http", self._http.address)
        if self.feed is not None and (at := self._opens("flight")) is not None:
            await self._open_feed(self.feed, at)

    def _opens(self, name: str) -> Address | None:
        """Where to open this door; None if it is switched off, or nobody could come in by it.

        Raises ConfigError.
        """
        address = self.config.listen.addresses().get(name)
        if address is None:
            return None
        if name in KEYLESS:
            check_callers(self.config, name, address)
        self.entrances[name] = entrance = Entrance.of(self.config, name, address, lambda: self._keyring)
        return None if entrance.closed else address

    async def _listen(self, listener: TcpListener | QuicListener | GrpcListener, at: Address, scheme: str = "") -> None:
        self._listeners.append(listener)
        address = await listener.start(at.host, at.port)
        scheme = scheme or ("tls" if self.config.tls.cert else "tcp")
        self.endpoints[listener.name] = _url(scheme, Address(*address))

    async def _open_feed(self, feed: FeedProcess, at: Address) -> None:
        config, data_dir = self.config, Path(self.config.data_dir)
        opening = Open(
            log=str(data_dir / "log"),
            staging=str(data_dir / "staging"),
            host=at.host,
            port=at.port,
            cert=config.tls.cert,
            key=config.tls.key,
            client_ca=config.tls.client_ca,
            api_keys=config.auth.api_keys,
            certificates=config.auth.certificates,
            allow_unauthenticated=config.flight.allow_unauthenticated,
            uploads_max=config.limits.uploads_per_key_max,
            staged_files_max=config.limits.staged_files_per_key_max,
            staged_bytes_max=config.limits.staged_bytes_per_key_max,
            staging_free_min=config.limits.staging_free_bytes_min,
        )
        port = await feed.open(opening, FeedDesk(self.engine, self.transactions).answer)
        self.endpoints["flight"] = _url("grpc+tls" if config.tls.cert else "grpc", Address(at.host, port))

    async def _tend(self) -> None:
        """Now and then let go of old segments nobody needs, and of what transactions left lying."""
        while True:
            await self.transactions.tend()
            await asyncio.sleep(CHORES_EVERY_S)
            self.engine.retire()


def run(
    config: Config,
    *,
    accept_damage: bool = False,
    reread: Callable[[], Config] | None = None,
    feed_child: FeedChild | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; SIGHUP reads the keys anew through `reread`. The process's exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return uvloop.run(_serve(config, accept_damage, reread or load, feed_child))


async def _serve(
    config: Config, accept_damage: bool, reread: Callable[[], Config], feed_child: FeedChild | None
) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        node = await Node.start(config, accept_damage=accept_damage, feed_child=feed_child, reread=reread)
    except LogDamaged as error:
        sys.stderr.write(f"headrace: {error}\n")
        return 1
    for damage in node.engine.log.report.damage:
        sys.stderr.write(f"headrace: accepted as lost: {damage}\n")
    gc.collect()
    gc.freeze()
    loop.add_signal_handler(signal.SIGHUP, node.reload)
    for name, url in node.endpoints.items():
        sys.stdout.write(f"listening {name} {url}\n")
    for line in node.admissions():
        sys.stdout.write(f"{line}\n")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    log.info("node.ready", extra={"kernels": "compiled" if compiled() else "interpreted"})
    await stopping.wait()
    log.info("node.draining")
    await node.stop()
    return 0


def _private(data_dir: Path) -> list[str]:
    """Keep the data directory private; what could not be. Raises StorageError."""
    try:
        return keep_private(data_dir)
    except OSError as error:
        raise StorageError(f"{data_dir}: {error.strerror}") from error


def _url(scheme: str, address: Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{scheme}://{host}:{address.port}"
