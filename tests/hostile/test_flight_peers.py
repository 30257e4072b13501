"""Peers of the feed that are wrong on purpose: by class, before a key and after it.

After each of them the process lives, an honest client gets everything, no file is left, and memory, by the kernel's own
books, grew by no more than one peer or a crowd of them may cost.
"""

import asyncio
import gzip
import json
import random
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from headrace.feed.client import FeedError
from headrace.feed.messages import Keys
from headrace.feed.ticket import Ticket
from headrace.feed.wire import SERVICE, FlightData, field, flight_data
from headrace.http2 import frames
from headrace.log import Log, LogSettings, OsDisk
from tests.harness.eventually import eventually
from tests.harness.feed import KEY, Feeding, feeding
from tests.harness.http2 import Peer, frame, message
from tests.unit.log.records import batch, flushed, record

PEER_MAX = 64 << 20
CROWD_MAX = 300 << 20
HONEST_MAX = 40 << 20
"""What those who read meanwhile take."""

THREADS_MAX = 40
ROWS = 80_000
OTHER_KEY = "other-key-0123456789"
KNOWN = ("authorization", f"Bearer {KEY}")
COMMAND = json.dumps({"writer": "w", "batch": 0, "part": "0", "topic": "out"}).encode()
DESCRIPTOR = b"\x08\x02" + field(2, COMMAND)
METHODS = ["DoGet", "DoPut", "DoAction", "Handshake", "ListFlights", "GetFlightInfo", "GetSchema", "ListActions"]


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feeding]:
    directory = tmp_path_factory.mktemp("data") / "log"
    with closing(Log.open(directory, OsDisk(), LogSettings(fill_bytes=0))) as log:
        for _ in range(ROWS // 1000):
            log.append(record(batch("orders", count=1000, size=1024)), refusable=True)
        flushed(log)
        with feeding(directory, api_keys=(KEY, OTHER_KEY)) as process:
            with process.client() as client:
                list(client.read(Ticket()))
                client.stage("warm", 0, "0", "out", [pa.RecordBatch.from_pydict({"value": [b"x"], "topic": ["out"]})])
            for file in staged(directory):
                file.unlink()
            process.directory = directory  # type: ignore[attr-defined]
            yield process


def staged(directory: Path) -> list[Path]:
    return list((directory.parent / "staging").iterdir())


def path(name: str) -> str:
    return f"/{SERVICE}/{name}"


@asynccontextmanager
async def unharmed(feed: Feeding, cost_max: int) -> AsyncIterator[None]:
    """What happens inside must not cost more, nor hurt anybody."""
    before = feed.resident_bytes()
    clear_peak(feed)
    yield
    assert feed.resident_bytes("VmHWM") - before < cost_max
    await asyncio.to_thread(honest, feed)
    assert threads(feed) < THREADS_MAX
    await eventually(lambda: not staged(feed.directory))  # type: ignore[attr-defined]
    assert feed.process.poll() is None


def clear_peak(feed: Feeding) -> None:
    Path(f"/proc/{feed.process.pid}/clear_refs").write_text("5")


def threads(feed: Feeding) -> int:
    return int(Path(f"/proc/{feed.process.pid}/status").read_text().split("Threads:")[1].split()[0])


def honest(feed: Feeding) -> None:
    with feed.client(OTHER_KEY) as client:
        assert client.span().latest == ROWS
        assert sum(each.num_rows for each in client.read(Ticket(columns=("offset", "value")))) == ROWS


def refused_upload(feed: Feeding, rows: pa.RecordBatch, codec: str | None = None) -> None:
    """By Arrow's own client."""
    write = pa.ipc.IpcWriteOptions(compression=codec)  # type: ignore[arg-type]  # any name of one
    header = (b"authorization", f"Bearer {KEY}".encode())
    options = flight.FlightCallOptions(headers=[header], write_options=write)  # type: ignore[list-item]
    with flight.FlightClient(feed.url) as plain:
        sink, answers = plain.do_put(flight.FlightDescriptor.for_command(COMMAND), rows.schema, options)
        with pytest.raises((flight.FlightError, pa.ArrowException), match="at most"):  # noqa: PT012
            sink.write_batch(rows)
            sink.done_writing()
            answers.read()  # type: ignore[attr-defined]  # wrong in the stubs
            sink.close()


def ticket(**fields: object) -> bytes:
    return field(1, json.dumps(fields).encode())


def upload(*batches: pa.RecordBatch, codec: str | None = None) -> list[bytes]:
    """The messages of a DoPut."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)  # type: ignore[arg-type]  # any name of one
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for each in batches:
            writer.write_batch(each)
    found = []
    for sent in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        body = [memoryview(sent.body)] if sent.body is not None and sent.body.size else []
        found.append(b"".join(flight_data(memoryview(sent.metadata), b"", body)))
    found[0] = field(1, DESCRIPTOR) + found[0]
    return found


async def known(feed: Feeding) -> Peer:
    """A peer that has shown its key, and so has the credit of one."""
    peer = await Peer.dial(feed.port)
    await peer.send(peer.wire.call(1, path("DoAction"), field(1, b"span"), KNOWN))
    assert (await peer.status(1))["grpc-status"] == "0"
    return peer


async def ended(peer: Peer) -> dict[str, str]:
    """How the peer's one call ended; nothing when the connection did, for what was sent beyond the credit."""
    try:
        return await peer.status(1)
    except ConnectionError:
        return {}


@pytest.mark.parametrize("name", METHODS)
async def test_a_stranger_costs_next_to_nothing_whatever_he_sends(feed: Feeding, name: str) -> None:
    async with unharmed(feed, 8 << 20):
        for length in (5, 1 << 20, (1 << 32) - 1):
            peer = await Peer.dial(feed.port)
            body = struct.pack(">BI", 0, length) + bytes(min(length, 8 << 20))
            await peer.send(peer.wire.headers(1, path(name)))
            sending = asyncio.create_task(peer.send(peer.wire.data(1, body)))
            assert (await ended(peer)).get("grpc-status", "16") == "16"
            sending.cancel()
            await peer.close()


async def test_a_crowd_of_strangers_costs_what_a_crowd_may(feed: Feeding) -> None:
    async with unharmed(feed, PEER_MAX):
        peers = [await Peer.dial(feed.port) for _ in range(300)]
        for peer in peers:
            for number in range(40):
                await peer.send(peer.wire.headers(2 * number + 1, path(METHODS[number % len(METHODS)])))
                await peer.send(peer.wire.data(2 * number + 1, bytes(16_384)))
        for peer in peers:
            await peer.close()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("length", [25 << 20, (1 << 32) - 1])
async def test_a_message_that_is_too_long_is_refused_before_it_is_there(feed: Feeding, name: str, length: int) -> None:
    async with unharmed(feed, PEER_MAX):
        peer = await Peer.dial(feed.port)
        await peer.send(peer.wire.headers(1, path(name), KNOWN))
        await peer.send(peer.wire.data(1, struct.pack(">BI", 0, length) + bytes(16_000)))
        assert (await ended(peer)).get("grpc-status", "8") in ("2", "3", "8", "13")
        await peer.close()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_uploads_that_unpack_to_too_much_are_refused(feed: Feeding, codec: str) -> None:
    bombs = [
        pa.record_batch({"value": pa.array([bytes(500 << 20)], pa.large_binary())}),
        pa.record_batch({"value": pa.array([b""] * 30_000_000, pa.binary())}),
        pa.record_batch({"value": pa.array([bytes(100 << 20)], pa.binary()).dictionary_encode()}),
    ]
    async with unharmed(feed, PEER_MAX):
        for bomb in bombs:
            await asyncio.to_thread(refused_upload, feed, bomb, codec)


@pytest.mark.parametrize("known", [True, False])
async def test_a_message_that_grpc_itself_packed_is_bounded_too(feed: Feeding, known: bool) -> None:
    packed = gzip.compress(bytes(200 << 20))
    async with unharmed(feed, PEER_MAX):
        for name in ("DoPut", "DoAction"):
            peer = await Peer.dial(feed.port)
            also = (KNOWN,) if known else ()
            await peer.send(peer.wire.headers(1, path(name), ("grpc-encoding", "gzip"), *also))
            sending = asyncio.create_task(peer.send(peer.wire.data(1, message(packed, 1), end=True)))
            assert (await ended(peer)).get("grpc-status") != "0"
            sending.cancel()
            await peer.close()


async def test_uploads_that_never_go_on_hold_no_thread_and_are_bounded_in_number(feed: Feeding) -> None:
    schema, rows = upload(pa.record_batch({"value": [b"x" * 100] * 10}))
    refused = 0
    async with unharmed(feed, PEER_MAX):
        peers = [await known(feed) for _ in range(4)]
        for peer in peers:
            for number in range(1, 501):
                begun = message(schema) + message(rows)
                await peer.send(
                    peer.wire.headers(2 * number + 1, path("DoPut"), KNOWN) + peer.wire.data(2 * number + 1, begun)
                )
        for peer in peers:
            await peer.send(peer.wire.call(1003, path("DoAction"), field(1, b"span"), KNOWN))
            while True:
                block = await peer.until(frames.HEADERS)
                said = peer.wire.fields(block)
                if block.stream == 1003:
                    break
                if "uploads of one" in said.get("grpc-message", ""):
                    refused += 1
        open_files = len(staged(feed.directory))  # type: ignore[attr-defined]
        for peer in peers:
            await peer.close()
    assert open_files <= 256
    assert refused >= 1700


async def test_readers_that_never_read_keep_nobody_waiting(feed: Feeding) -> None:
    async with unharmed(feed, PEER_MAX + HONEST_MAX):
        peers = []
        for _ in range(40):
            peer = await Peer.dial(feed.port, hello=False)
            await peer.send(peer.wire.hello({frames.INITIAL_WINDOW_SIZE: (1 << 31) - 1}) + frames.SETTINGS_ACK)
            await peer.send(frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - (1 << 16) - 1)))
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's
            await peer.send(peer.wire.call(1, path("DoGet"), ticket(), KNOWN))
            peers.append(peer)
        for _ in range(3):
            await asyncio.to_thread(honest, feed)
        for peer in peers:
            await peer.close()


@pytest.mark.parametrize("seed", range(4))
async def test_generated_uploads_are_taken_or_refused_one_by_one(feed: Feeding, seed: int) -> None:
    """Messages changed, cut, doubled, left out, in any order; each ends with a status and hurts nobody."""
    chance = random.Random(seed)
    good = [
        upload(pa.RecordBatch.from_pydict({"value": [b"one", b"two"], "topic": ["a", "b"]})),
        upload(pa.record_batch({"value": pa.array(["a", "b", "a"]).dictionary_encode()}), codec="zstd"),
        upload(pa.RecordBatch.from_pydict({"value": [b"x"] * 50, "redriven_from": pa.array(range(50))}), codec="lz4"),
    ]
    async with unharmed(feed, PEER_MAX):
        peer = await Peer.dial(feed.port)
        for number in range(100):
            parts = [bytearray(each) for each in chance.choice(good)]
            for _ in range(chance.randint(0, 3)):
                what, place = chance.randrange(5), chance.randrange(len(parts))
                if what == 0:
                    parts[place] = parts[place][: chance.randrange(len(parts[place]) + 1)]
                elif what == 1:
                    parts.append(parts[place])
                elif what == 2:
                    chance.shuffle(parts)
                elif parts[place]:
                    parts[place][chance.randrange(len(parts[place]))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
            sent = b"".join(message(bytes(each)) for each in parts)
            stream = 2 * number + 1
            await peer.send(peer.wire.headers(stream, path("DoPut"), KNOWN) + peer.wire.data(stream, sent, end=True))
            status = await peer.status(stream)
            assert status["grpc-status"] in ("0", "2", "7"), status
            assert "internal error" not in status.get("grpc-message", "")
            for file in staged(feed.directory):  # type: ignore[attr-defined]
                file.unlink()
        await peer.close()


@pytest.mark.parametrize("seed", range(3))
async def test_generated_requests_are_answered_or_refused_one_by_one(feed: Feeding, seed: int) -> None:
    chance = random.Random(seed)
    bodies = [ticket(topics=["orders"], end=10), field(1, b"split") + field(2, b'{"parts":3}'), DESCRIPTOR, b""]
    async with unharmed(feed, PEER_MAX):
        peer = await Peer.dial(feed.port)
        for number in range(150):
            body = bytearray(chance.choice(bodies))
            for _ in range(chance.randint(0, 3)):
                if body and chance.random() < 0.7:
                    body[chance.randrange(len(body))] = chance.randrange(256)
                else:
                    body += chance.randbytes(chance.randrange(20))
            name = chance.choice([*METHODS, "DoExchange", "PollFlightInfo", "Nonsense"])
            await peer.send(peer.wire.call(2 * number + 1, path(name), bytes(body), KNOWN))
            status = await peer.status(2 * number + 1)
            assert status["grpc-status"] in ("0", "2", "7", "12"), status
            assert "internal error" not in status.get("grpc-message", "")
        await peer.close()


async def test_a_revoked_key_ends_streams_that_nobody_reads(tmp_path: Path) -> None:
    with closing(Log.open(tmp_path / "log", OsDisk(), LogSettings(fill_bytes=0))) as log:
        for _ in range(40):
            log.append(record(batch("orders", count=1000, size=1024)), refusable=True)
        flushed(log)
        with feeding(tmp_path / "log", api_keys=(KEY, OTHER_KEY)) as feed:
            peer = await Peer.dial(feed.port)
            await peer.send(peer.wire.call(1, path("DoGet"), ticket(), KNOWN))
            first = await peer.until(frames.DATA)
            assert FlightData.decode(bytes(first.payload[5:])).header if first.payload[0] == 0 else False
            feed.say(Keys(api_keys=(OTHER_KEY,)))
            said = [each.kind for each in await asyncio.wait_for(peer.rest(), 20)]
            assert frames.RST_STREAM in said or frames.HEADERS in said or frames.GOAWAY in said
            with feed.client(OTHER_KEY) as other:
                assert (await asyncio.to_thread(other.span)).latest == 40_000


def test_a_client_that_writes_too_much_at_once_is_told_how_much_is_taken(feed: Feeding) -> None:
    rows = pa.record_batch({"value": pa.array([b"x" * 1000] * 18_000)})
    refused_upload(feed, rows)
    with feed.client() as client:
        receipt = client.stage("w", 0, "0", "out", [rows])
        assert receipt["rows"] == 18_000
        huge = pa.record_batch({"value": pa.array([bytes(17 << 20)])})
        with pytest.raises(FeedError) as refused:
            client.stage("w", 0, "0", "out", [huge])
        assert refused.value.code == "limit"
    for file in staged(feed.directory):  # type: ignore[attr-defined]
        file.unlink()
