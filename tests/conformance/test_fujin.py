"""Every vector of Fujin, whole, byte by byte and at random cuts: splitting a stream never changes what it means."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from headrace.protocols.fujin import Dialect, FujinSettings, WriteHeaders, frames
from headrace.protocols.fujin.frames import Command, ReaderType, Response
from tests.conformance.fujin_standin import MemoryHouse
from tests.conformance.test_blipmq import CUTS, cut
from tests.conformance.vectors import FrameVector, Talk, fill, load, match, size

VECTORS = load("fujin")
ROOT = Path(__file__).resolve().parents[2]
READING = ROOT / "docs" / "protocols" / "fujin.md"
DOCUMENT = FujinSettings(routes={"in": "orders"})
SETTINGS = {
    "document": DOCUMENT,
    "reference": replace(DOCUMENT, dialect=Dialect.REFERENCE),
    "reference with headers": replace(
        DOCUMENT, dialect=Dialect.REFERENCE, write_headers=WriteHeaders.AUTO
    ),
    "always": replace(DOCUMENT, write_headers=WriteHeaders.ALWAYS),
    "never": replace(DOCUMENT, write_headers=WriteHeaders.NEVER),
    "small": replace(
        DOCUMENT, message_size_max=64, headers_size_max=32, transaction_size_max=48, push_window=2,
    ),
}  # fmt: skip


class Stream(Protocol):
    """One stream to a broker."""

    def send(self, data: bytes) -> None:
        """Bytes to the broker, as one write."""

    def finish(self) -> None:
        """End our side."""

    def receive(self, size: int) -> bytes:
        """Exactly this many bytes, or fewer when the broker ends its side or says no more."""

    @property
    def ended(self) -> bool:
        """Whether the broker has ended its side."""


class House(Protocol):
    """Streams by name to one broker with empty topics."""

    def stream(self, name: str) -> Stream:
        """The stream of this name, opened if need be."""

    def drain(self) -> None:
        """Have the server begin to stop."""

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""

    def fail(self, cause: str) -> None:
        """From now on the disk refuses every write."""

    def heal(self) -> None:
        """The disk works again."""

    def check_nothing_left(self) -> None:
        """Every word was expected."""


def hold(house: House, talk: Talk, way: str) -> None:
    """Hold a talk."""
    names: dict[str, bytes] = {}
    for who, action, *argument in talk.steps:
        stream = house.stream(who)
        match action:
            case "send":
                for piece in cut(fill(argument[0], names), way):
                    stream.send(piece)
            case "expect":
                match(argument[0], stream.receive(size(argument[0])), names)
            case "finish":
                stream.finish()
            case "ended":
                assert stream.receive(1) == b""
                assert stream.ended
            case "drain":
                house.drain()
            case "advance":
                house.advance(int(argument[0]))
            case "fail":
                house.fail(argument[0])
            case "heal":
                house.heal()
            case _:
                raise AssertionError(action)
    house.check_nothing_left()


@pytest.mark.parametrize("way", CUTS)
@pytest.mark.parametrize("talk", VECTORS.talks, ids=lambda talk: talk.name)
def test_the_session_holds_every_talk(talk: Talk, way: str) -> None:
    hold(MemoryHouse(SETTINGS[talk.state]), talk, way)


def encoded(vector: FrameVector) -> bytes:
    """The frame as our own encoders make it."""
    first, *rest = vector.fields
    match vector.encode, rest:
        case "connect_writer", _:
            return frames.encode_connect_writer(first)
        case "connect_reader", (auto_commit, topic):
            return frames.encode_connect_reader(ReaderType(int(first)), bool(auto_commit), str(topic))
        case "write", (topic, message):
            return frames.encode_write(int(first), str(topic), str(message).encode(), None)
        case "write", (topic, message, *strings):
            pairs = zip(strings[::2], strings[1::2], strict=True)
            headers = [(str(key), str(value).encode()) for key, value in pairs if key]
            return frames.encode_write(int(first), str(topic), str(message).encode(), headers)
        case "begin" | "commit" | "rollback", _:
            return frames.encode_command(Command[vector.encode.upper()], int(first))
        case "fetch", (count,):
            return frames.encode_fetch(int(first), int(count))
        case "ack" | "nack", ids:
            names = [str(name).encode() for name in ids]
            return frames.encode_settle(Command[vector.encode.upper()], int(first), names)
        case "connected", _:
            return frames.encode_connected(str(first) or None)
        case "reply", (tag, error):
            return frames.encode_reply(Response[str(first)], int(tag), str(error) or None)
        case "msg", _:
            name = str(rest[0]).encode() if rest else None
            return bytes((Response.MSG,)) + frames.encode_message(name, str(first).encode())
        case "fetched", values:
            items = b"".join(frames.encode_message(None, str(value).encode()) for value in values)
            return frames.encode_fetched(int(first), len(values)) + items
        case "acked", (dialect, *results):
            answers = [
                (str(name).encode(), str(error) or None)
                for name, error in zip(results[::2], results[1::2], strict=True)
            ]
            return frames.encode_results(Response.ACK, int(first), answers, reference=dialect == "reference")
        case "disconnect" | "ping" | "stop", _:
            return bytes(getattr(frames, vector.encode.upper()))
        case _:
            raise AssertionError(vector)


@pytest.mark.parametrize("vector", VECTORS.frames, ids=lambda vector: vector.name)
def test_every_frame_is_encoded_as_its_vector(vector: FrameVector) -> None:
    assert encoded(vector).hex(" ") == vector.data.hex(" ")


def test_every_row_of_our_reading_is_held_by_a_vector_or_named_elsewhere() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", READING.read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == VECTORS.rows


def test_rows_held_elsewhere_name_a_test_that_exists() -> None:
    document = tomllib.loads((ROOT / "tests" / "vectors" / "fujin.toml").read_text())
    for entry in document["elsewhere"]:
        path, name = entry["held_by"].split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), entry["row"]


def test_the_examples_of_fetch_in_the_document_are_not_what_its_table_says() -> None:
    """They put a count before the error; read by the table the third one is a success with one message."""
    third = bytes([7, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 42]) + b"kafka: poll fetches: [{ -1 client closed}]"
    cursor = frames.Cursor(third, 1, len(third))
    assert (cursor.u32(), cursor.error(), cursor.u32()) == (1, None, 1)
    assert cursor.string("message", 100).startswith(b"kafka: poll fetches")
