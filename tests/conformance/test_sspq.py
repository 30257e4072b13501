"""Every vector of SSPQ, whole, byte by byte and at random cuts: splitting a stream never changes what it means."""

import re
import tomllib
from pathlib import Path
from typing import Protocol

import pytest

from headrace.protocols.sspq import SspqSettings, frames
from tests.conformance.sspq_standin import MemoryHouse
from tests.conformance.test_blipmq import CUTS, cut
from tests.conformance.vectors import FrameVector, Talk, fill, load

VECTORS = load("sspq")
ROOT = Path(__file__).resolve().parents[2]
READING = ROOT / "docs" / "protocols" / "sspq.md"
MEMORY = "memory"


class Peer(Protocol):
    """One connection to a broker."""

    def send(self, data: bytes) -> None:
        """Bytes to the broker, as one write."""

    def receive(self, size: int) -> bytes:
        """Exactly this many bytes, or fewer when the broker closes or says no more."""

    def closed(self) -> bool:
        """Whether the broker has closed the connection, having said nothing more."""

    def vanish(self) -> None:
        """Hang up."""


class House(Protocol):
    """Connections by name to one broker with empty queues."""

    def peer(self, name: str) -> Peer:
        """The connection of this name, made if need be."""

    def drain(self) -> None:
        """Needs `memory`: have the server begin to stop."""

    def check_nothing_left(self) -> None:
        """Every word was expected, and both queues are empty."""


def settings_of(talk: Talk) -> dict[str, str]:
    """The settings a talk needs, as their names and texts."""
    return dict(word.split("=") for word in talk.needs.split() if word != MEMORY)


def hold(house: House, talk: Talk, way: str) -> None:
    """Hold a talk; nothing must be said that no step expects, and nothing be left."""
    peer = house.peer("a")
    for action, *argument in talk.steps:
        match action:
            case "send":
                for piece in cut(fill(argument[0], {}), way):
                    peer.send(piece)
            case "expect":
                expected = fill(argument[0], {})
                assert peer.receive(len(expected)).hex(" ") == expected.hex(" ")
            case "closed":
                assert peer.closed()
            case "as":
                peer = house.peer(argument[0])
            case "vanish":
                peer.vanish()
            case "drain":
                house.drain()
            case _:
                raise AssertionError(action)
    house.check_nothing_left()


@pytest.mark.parametrize("way", CUTS)
@pytest.mark.parametrize("talk", VECTORS.talks, ids=lambda talk: talk.name)
def test_the_session_holds_every_talk(talk: Talk, way: str) -> None:
    given = settings_of(talk)
    settings = SspqSettings(
        dead_letter=given.get("dead_letter") != "false",
        force_retries=int(given["force_retries"]) if "force_retries" in given else None,
        max_payload=int(given.get("max_payload", 1 << 20)),
    )
    hold(MemoryHouse(settings), talk, way)


@pytest.mark.parametrize("vector", VECTORS.frames, ids=lambda vector: vector.name)
def test_every_packet_is_encoded_as_its_vector(vector: FrameVector) -> None:
    encode = getattr(frames, f"encode_{vector.encode}")
    if vector.encode == "send":
        assert encode(vector.fields[0], str(vector.fields[1]).encode()) == vector.data
    else:
        assert encode() == vector.data


@pytest.mark.parametrize("vector", VECTORS.frames, ids=lambda vector: vector.name)
def test_every_packet_is_decoded_as_its_vector(vector: FrameVector) -> None:
    head = frames.decode_head(vector.data, 0, len(vector.data), 1 << 20)
    assert head is not None
    assert frames.PacketType(head.kind).name == vector.encode.upper()
    assert head.size == len(vector.data) - frames.HEAD_SIZE
    assert head.retries == (vector.fields[0] if vector.fields else 0)


def test_every_type_of_the_document_has_a_vector() -> None:
    assert {vector.encode.upper() for vector in VECTORS.frames} == {kind.name for kind in frames.PacketType}


def test_every_row_of_our_reading_is_held_by_a_vector_or_named_elsewhere() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", READING.read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == VECTORS.rows


def test_rows_held_elsewhere_name_a_test_that_exists() -> None:
    document = tomllib.loads((ROOT / "tests" / "vectors" / "sspq.toml").read_text())
    for entry in document["elsewhere"]:
        path, name = entry["held_by"].split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), entry["row"]
