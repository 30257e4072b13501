"""Every vector of BlipMQ, whole, byte by byte and at random cuts: splitting a stream never changes what it means."""

import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocols.blipmq import frames
from tests.conformance.peer import Peer
from tests.conformance.standin import MemoryPeer
from tests.conformance.vectors import FrameVector, Talk, fill, load, match, size

VECTORS = load("blipmq")
READING = Path(__file__).resolve().parents[2] / "docs" / "protocols" / "blipmq.md"
CUTS = ["whole", "byte by byte", *(f"random {seed}" for seed in range(8))]
PROBE_ID = 0xFACADE


def cut(data: bytes, way: str) -> Iterator[bytes]:
    """The data in the pieces of this way of cutting."""
    if way == "whole":
        yield data
        return
    chance = random.Random(f"{way} {len(data)}")
    at = 0
    while at < len(data):
        step = 1 if way == "byte by byte" else chance.choice([1, 2, 3, 5, 8, 13, 21, 34, 55])
        yield data[at : at + step]
        at += step


def enter(peer: Peer, state: str) -> None:
    """Bring a silent connection into a state."""
    if state != "new":
        peer.send(frames.encode_hello(1))
        assert peer.receive(21) == frames.encode_ack(1)
    if state == "ready":
        peer.send(frames.encode_auth(2, "dev-key"))
        assert peer.receive(21) == frames.encode_ack(2)


def hold(peer: Peer, talk: Talk, way: str) -> None:
    """Hold a talk; unless it ends in a close, a PING must be answered by exactly one frame after it."""
    names: dict[str, bytes] = {}
    enter(peer, talk.state)
    for action, *argument in talk.steps:
        match action:
            case "send":
                for piece in cut(fill(argument[0], names), way):
                    peer.send(piece)
            case "expect":
                match_received(peer, argument[0], names)
            case "closed":
                assert peer.closed()
                return
            case "reconnect":
                peer.reconnect()
                enter(peer, "ready")
            case "fail":
                peer.fail(argument[0])
            case "heal":
                peer.heal()
            case "advance":
                peer.advance(int(argument[0]))
            case _:
                raise AssertionError(action)
    peer.send(frames.encode_ping(PROBE_ID))
    head = peer.receive(13)
    length, kind, tag = frames.HEAD.unpack(head)
    assert tag == PROBE_ID, "something was said that no step expected"
    assert kind in (frames.FrameType.PONG, frames.FrameType.NACK)
    peer.receive(length - 9)


def match_received(peer: Peer, expected: str, names: dict[str, bytes]) -> None:
    match(expected, peer.receive(size(expected)), names)


@pytest.mark.parametrize("way", CUTS)
@pytest.mark.parametrize("talk", VECTORS.talks, ids=lambda talk: talk.name)
def test_the_session_holds_every_talk(talk: Talk, way: str) -> None:
    hold(MemoryPeer(), talk, way)


@pytest.mark.parametrize("vector", VECTORS.frames, ids=lambda vector: vector.name)
def test_every_frame_is_encoded_as_its_vector(vector: FrameVector) -> None:
    arguments: list[object] = list(vector.fields)
    if vector.encode == "publish":
        arguments[2] = str(vector.fields[2]).encode()
    assert getattr(frames, f"encode_{vector.encode}")(*arguments) == vector.data


@pytest.mark.parametrize("vector", VECTORS.frames, ids=lambda vector: vector.name)
def test_every_frame_is_decoded_as_its_vector(vector: FrameVector) -> None:
    frame = frames.decode_frame(vector.data, 0, len(vector.data))
    assert frame is not None
    assert (frame.type.name, frame.end) == (vector.encode.upper(), len(vector.data))
    assert frame.correlation_id == vector.fields[0]


def test_every_row_of_our_reading_is_held_by_a_vector_or_named_elsewhere() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", READING.read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == VECTORS.rows


def test_rows_held_elsewhere_name_a_test_that_exists() -> None:
    root = Path(__file__).resolve().parents[2]
    document = tomllib.loads((root / "tests" / "vectors" / "blipmq.toml").read_text())
    for entry in document["elsewhere"]:
        path, name = entry["held_by"].split("::")
        assert f"def {name}(" in (root / path).read_text(), entry["row"]
