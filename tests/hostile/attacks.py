"""Attacks by class, on every door: what a stranger, or a key that is good for a few topics, can do to a broker.

Each is a function that does it as so many peers, to the end or until the door has had enough; what it does to others
is for the ledger to see. Strangers' attacks on streams of bytes are made out of greetings and what follows them,
one for each door and kind, so that a new door needs one line.
"""

import contextlib
import json
import random
import selectors
import socket
import struct
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from threading import Event
from time import monotonic
from typing import Any

import grpc
import pyarrow as pa
from pyarrow import flight

from headrace.feed.client import FeedClient, FeedError
from tests.harness.peer import PING, POLL, SUBSCRIBE, Peer, frame, publish

MIB = 1 << 20
JUNK = random.Random(0).randbytes(1 << 16)
ZEROS = bytes(1 << 16)
GIANT = 0x40000000
EACH_MAX = 256 * MIB
GIANT_SIZE = 128 * MIB
UNFINISHED_SIZE = 4 * MIB - 64
CONNECT_S = 5.0
OWN = "mine."
"""What the topics of the scoped key begin with."""


@dataclass(frozen=True)
class Site:
    """A broker to attack: its ports, and a key that may publish and subscribe to topics that begin with `mine.`."""

    ports: dict[str, int]
    key: str
    patience_s: float = 4.0


@dataclass(frozen=True)
class Attack:
    """One attack, to be done by so many peers."""

    name: str
    act: Callable[[Site, int], None]


def flood(port: int, peers: int, greeting: bytes, after: Callable[[], Iterator[bytes]], patience_s: float) -> None:
    """So many connections that send as fast as they may, until they are hung up on, or for so long."""
    with contextlib.ExitStack() as stack:
        chosen = stack.enter_context(selectors.DefaultSelector())
        until = monotonic() + patience_s
        for _ in range(peers):
            with contextlib.suppress(OSError):
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), CONNECT_S))
                peer.setblocking(False)
                chosen.register(peer, selectors.EVENT_WRITE | selectors.EVENT_READ, _Sender(greeting, after()))
        while chosen.get_map() and monotonic() < until:
            for entry, events in chosen.select(0.2):
                match entry.data.step(entry.fileobj, events):
                    case 0:
                        chosen.unregister(entry.fileobj)
                    case wanted if wanted != entry.events:
                        chosen.modify(entry.fileobj, wanted, entry.data)


class _Sender:
    """What one connection has still to send."""

    def __init__(self, greeting: bytes, after: Iterator[bytes]) -> None:
        self._left = memoryview(greeting)
        self._after = after
        self._sent = 0

    def step(self, peer: socket.socket, events: int) -> int:
        """Send and read what can be; what to wait for next, 0 when it is over."""
        try:
            if events & selectors.EVENT_READ and not peer.recv(1 << 16):
                return 0
            if events & selectors.EVENT_WRITE:
                if not self._left:
                    self._left = memoryview(next(self._after, b""))
                if not self._left:
                    return selectors.EVENT_READ
                sent = peer.send(self._left)
                self._left = self._left[sent:]
                self._sent += sent
        except BlockingIOError:
            pass
        except OSError:
            return 0
        return selectors.EVENT_WRITE | selectors.EVENT_READ if self._sent < EACH_MAX else 0


def _h2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header as HPACK writes it without any table."""
    return b"\x10" + bytes([len(name)]) + name + b"\x7f" * (len(value) > 126) + (
        _hpack_rest(len(value) - 127) if len(value) > 126 else bytes([len(value)])
    ) + value  # fmt: skip


def _hpack_rest(number: int) -> bytes:
    out = b""
    while number >= 128:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def _call(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    told = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"),
            (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more]  # fmt: skip
    return b"".join(_literal(name, value) for name, value in told)


def _h2(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The beginning of a call by somebody who shows no key: preface, settings, headers."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _h2_frame(4, 0, 0)
    return preface + _h2_frame(1, 4, 1, _call(path, *more))


def _data(stream: int = 1, payload: bytes = ZEROS[:16384]) -> bytes:
    return _h2_frame(0, 0, stream, payload)


def _gzip_bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    packed = b"".join(packer.compress(ZEROS) for _ in range(4096)) + packer.flush()
    return b"\x01" + struct.pack(">I", len(packed)) + packed


HEALTH, PUBLISH, DO_ACTION, DO_GET, DO_PUT, HANDSHAKE = (
    b"/grpc.health.v1.Health/Check",
    b"/headrace.grpcq.v1.Queues/Publish",
    *(b"/arrow.flight.protocol.FlightService/" + name for name in (b"DoAction", b"DoGet", b"DoPut", b"Handshake")),
)
GRPC_LENGTH = b"\x00" + struct.pack(">I", GIANT)


def _many_calls(path: bytes) -> bytes:
    """Ten thousand calls begun on one connection, none of them finished."""
    calls = (_h2_frame(1, 4, 2 * n + 1, _call(path)) for n in range(10_000))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _h2_frame(4, 0, 0) + b"".join(calls)


def _reset_calls(path: bytes) -> Iterator[bytes]:
    for n in range(1, 200_000, 2):
        yield _h2_frame(1, 4, n, _call(path)) + _h2_frame(3, 0, n, struct.pack(">I", 8))


def _endless(piece: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: repeat(piece)


def _nothing() -> Iterator[bytes]:
    return iter(())


def _stranger(door: str, what: str, greeting: bytes, after: Callable[[], Iterator[bytes]]) -> Attack:
    def act(site: Site, peers: int) -> None:
        flood(site.ports[door], peers, greeting, after, site.patience_s)

    return Attack(f"stranger-{door}-{what}", act)


def _strangers() -> Iterator[Attack]:
    for door in ("blipmq", "sspq", "fujin_tcp", "grpc", "http", "flight"):
        yield _stranger(door, "silent", b"", _nothing)
        yield _stranger(door, "junk", b"", _endless(JUNK))
        yield _stranger(door, "zeros", b"", _endless(ZEROS))
        yield _stranger(door, "slow", b"", lambda: (bytes([byte]) for byte in JUNK[:40]))
    yield _stranger("blipmq", "long-frame", struct.pack(">IBQ", GIANT, 3, 1), _endless(ZEROS))
    yield _stranger("blipmq", "frames-before-auth", frame(PING, 1), _endless(publish(b"t", ZEROS[:1000]) * 60))
    yield _stranger("sspq", "long-packet", b"\x55\x99\x5e\x03" + struct.pack(">I", GIANT), _endless(ZEROS))
    for door, path in (("grpc", HEALTH), ("grpc", PUBLISH), ("flight", DO_ACTION), ("flight", DO_GET),
                       ("flight", DO_PUT), ("flight", HANDSHAKE)):  # fmt: skip
        name = path.decode().rpartition("/")[2]
        yield _stranger(door, f"{name}-giant", _h2(path) + _data(payload=GRPC_LENGTH), _endless(_data()))
        gzip = _h2(path, (b"grpc-encoding", b"gzip"))
        yield _stranger(door, f"{name}-gzip", gzip, lambda: (_data(payload=p) for p in _pieces(_gzip_bomb())))
        yield _stranger(door, f"{name}-many-calls", _many_calls(path), _nothing)
        yield _stranger(door, f"{name}-resets", _h2(path), partial(_reset_calls, path))
        block = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _h2_frame(4, 0, 0) + _h2_frame(1, 0, 1, _call(path))
        yield _stranger(door, f"{name}-headers", block, _endless(_h2_frame(9, 0, 1, _literal(b"x", ZEROS[:16000]))))
        yield _stranger(door, f"{name}-pings", _h2(path), _endless(_h2_frame(6, 0, 0, bytes(8)) * 900))
        yield _stranger(door, f"{name}-settings", _h2(path), _endless(_h2_frame(4, 0, 0) * 1500))
        for what in ("giant", "gzip", "unfinished"):
            yield _polite(door, path, what)
    for place in ("/api/topics", "/queues/q/messages", "/metrics", "/api/dead-letters/redrive"):
        head = f"POST {place} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
        name = place.rpartition("/")[2]
        yield _stranger("http", f"{name}-long-body", head + b"content-length: 1073741824\r\n\r\n", _endless(ZEROS))
        chunk = b"10000\r\n" + ZEROS + b"\r\n"
        yield _stranger("http", f"{name}-chunks", head + b"transfer-encoding: chunked\r\n\r\n", _endless(chunk))
        yield _stranger("http", f"{name}-headers", head, _endless(b"x: " + b"y" * 60_000 + b"\r\n"))


def _polite(door: str, path: bytes, what: str) -> Attack:
    """Messages by a client of the field, which waits for credit as it should: giant ones, or many never whole."""
    compression = grpc.Compression.Gzip if what == "gzip" else grpc.Compression.NoCompression
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    size, calls = (UNFINISHED_SIZE, 300) if what == "unfinished" else (GIANT_SIZE, 2)

    def act(site: Site, peers: int) -> None:
        def one(number: int) -> None:
            ended = Event()

            def messages() -> Iterator[bytes]:
                yield bytes(size)
                ended.wait(site.patience_s)

            target = f"127.0.0.1:{site.ports[door]}"
            with grpc.insecure_channel(target, options=options, compression=compression) as channel:
                call = channel.stream_unary(path.decode(), _as_is, _as_is)
                begun = [call.future(messages(), timeout=4 * site.patience_s) for _ in range(calls)]
                for each in begun:
                    each.exception()
                ended.set()

        _together(one, peers)

    return Attack(f"stranger-{door}-{path.decode().rpartition('/')[2]}-polite-{what}", act)


def _as_is(data: bytes) -> bytes:
    return data


def _pieces(data: bytes, size: int = 16384) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _get(site: Site, path: str) -> None:
    told = {"authorization": f"Bearer {site.key}"}
    request = urllib.request.Request(f"http://127.0.0.1:{site.ports['http']}{path}", headers=told)
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def _together(work: Callable[[int], Any], peers: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(peers, 64)) as pool:
        for done in [pool.submit(work, number) for number in range(peers)]:
            with contextlib.suppress(OSError, AssertionError, FeedError, pa.ArrowException, flight.FlightError):
                done.result()


def big_pages(site: Site, peers: int) -> None:
    """Pages of messages as large as may be."""
    peer = Peer(site.ports["blipmq"], key=site.key.encode())
    for _ in range(8):
        peer.send(b"".join(publish(f"{OWN}big".encode(), bytes(MIB)) for _ in range(8)))
        peer.fence()
    peer.close()
    paths = [f"/api/topics/{OWN}big/messages?limit=500&value_max=16777216", "/api/dead-letters?limit=500"]
    _together(lambda number: _get(site, paths[number % 2]), 4 * peers)


def many_topics(site: Site, peers: int) -> None:
    """As many topics as one is given, and the lists of them."""

    def act(number: int) -> None:
        peer = Peer(site.ports["blipmq"], key=site.key.encode())
        for first in range(0, 20_000, 1000):
            names = (f"{OWN}{number}.{n}".encode() for n in range(first, first + 1000))
            peer.send(b"".join(publish(name, b"x") for name in names) + frame(PING, 0))
            peer.settled()
        for path in ("/api/topics", "/metrics", "/api/status", "/api/subscriptions"):
            _get(site, path)

    _together(act, peers)


def many_subscriptions(site: Site, peers: int) -> None:
    """As many subscriptions to one topic as one is given, and a page of its messages."""
    topic = f"{OWN}wide".encode()
    subscribe = frame(SUBSCRIBE, 3, struct.pack(">H", len(topic)) + topic + b"\x01")

    def act(number: int) -> None:
        peer = Peer(site.ports["blipmq"], key=site.key.encode())
        for _ in range(20):
            peer.send(subscribe * 1000 + frame(PING, 0))
            peer.settled()
        peer.send(publish(topic, b"x") * 100)
        peer.settled()
        _get(site, f"/api/topics/{OWN}wide/messages?limit=500")
        _get(site, "/api/subscriptions")

    _together(act, peers)


def never_read(site: Site, peers: int) -> None:
    """Subscribers that ask for everything and read nothing."""
    topic = f"{OWN}deaf".encode()
    first = Peer(site.ports["blipmq"], key=site.key.encode())
    first.send(publish(topic, bytes(MIB)) * 4)
    first.settled()
    deaf = []
    for _ in range(peers):
        peer = Peer(site.ports["blipmq"], key=site.key.encode())
        subscription = peer.subscribe(topic)
        deaf.append((peer, frame(POLL, 0, struct.pack(">Q", subscription)) * 200))
    for _ in range(8):
        first.send(publish(topic, bytes(MIB)) * 8)
        first.settled()
    for peer, ask in deaf:
        peer.send(ask)
    first.settled()
    for peer, _ in deaf:
        peer.close()


def hungry_readers(site: Site, peers: int) -> None:
    """Flight readers that take the first row and then no more."""
    first = Peer(site.ports["blipmq"], key=site.key.encode())
    for _ in range(16):
        first.send(publish(f"{OWN}rows".encode(), bytes(MIB)) * 4)
        first.settled()
    headers = [(b"authorization", f"Bearer {site.key}".encode())]
    ticket = flight.Ticket(json.dumps({"topics": [f"{OWN}rows"]}).encode())
    with contextlib.ExitStack() as stack:
        for _ in range(40 * peers):
            client = stack.enter_context(flight.connect(f"grpc://127.0.0.1:{site.ports['flight']}"))
            with contextlib.suppress(flight.FlightError, pa.ArrowException):
                reader = client.do_get(ticket, flight.FlightCallOptions(headers=headers, timeout=5))  # type: ignore[arg-type]
                reader.read_chunk()
                stack.callback(reader.cancel)
        for _ in range(50):
            first.settled()


def compressed_rows(site: Site, peers: int) -> None:
    """Uploads of Arrow rows that unpack to a thousand times their size."""
    rows = pa.record_batch({"value": pa.array([bytes(64 * MIB)] * 8, pa.large_binary())})
    command = json.dumps({"writer": "bomb", "batch": 0, "part": "0", "topic": f"{OWN}bomb"}).encode()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    headers = [(b"authorization", f"Bearer {site.key}".encode())]

    def act(number: int) -> None:
        with flight.connect(f"grpc://127.0.0.1:{site.ports['flight']}") as client:
            call = flight.FlightCallOptions(headers=headers, write_options=options, timeout=30)  # type: ignore[arg-type]
            sink, answers = client.do_put(flight.FlightDescriptor.for_command(command), rows.schema, call)
            sink.write_batch(rows)
            sink.done_writing()
            answers.read()  # type: ignore[attr-defined]  # wrong in the stubs

    _together(act, 2 * peers)


def stalled_uploads(site: Site, peers: int) -> None:
    """Uploads that begin and never go on."""
    rows = pa.record_batch({"value": [b"x"]})
    headers = [(b"authorization", f"Bearer {site.key}".encode())]
    call = flight.FlightCallOptions(headers=headers)  # type: ignore[arg-type]
    with contextlib.ExitStack() as stack:
        for number in range(50 * peers):
            with contextlib.suppress(flight.FlightError, pa.ArrowException):
                client = stack.enter_context(flight.connect(f"grpc://127.0.0.1:{site.ports['flight']}"))
                command = json.dumps({"writer": "w", "batch": 0, "part": str(number), "topic": f"{OWN}s"}).encode()
                sink, _ = client.do_put(flight.FlightDescriptor.for_command(command), rows.schema, call)
                sink.write_batch(rows)
        witness = FeedClient(f"grpc://127.0.0.1:{site.ports['flight']}", key=site.key, retry_s=5)
        witness.span()


def dear_patterns(site: Site, peers: int) -> None:
    """Regular expressions that a machine with backtracking never ends."""

    def act(number: int) -> None:
        ticket = json.dumps({"pattern": f"({OWN}|a|aa|(a+)+)*$" + "(.*a){20}" * (number % 5)}).encode()
        headers = [(b"authorization", f"Bearer {site.key}".encode())]
        with flight.connect(f"grpc://127.0.0.1:{site.ports['flight']}") as client:
            call = flight.FlightCallOptions(headers=headers, timeout=20)  # type: ignore[arg-type]
            client.do_get(flight.Ticket(ticket), call).read_all()

    peer = Peer(site.ports["blipmq"], key=site.key.encode())
    peer.send(b"".join(publish(f"{OWN}{'a' * n}!".encode(), b"x") for n in range(100)))
    peer.settled()
    _together(act, 4 * peers)


ATTACKS: tuple[Attack, ...] = (
    *_strangers(),
    *(
        Attack(f"key-{act.__name__.replace('_', '-')}", act)
        for act in (
            big_pages, many_topics, many_subscriptions, never_read, hungry_readers, compressed_rows, stalled_uploads,
            dear_patterns,
        )
    ),
)  # fmt: skip
