"""Reads tests/vectors/*.toml: bytes with texts in them, and names for bytes only the broker knows."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "vectors"
TOKEN = re.compile(
    r'"(?P<text>[^"]*)"|\{(?P<name>\w+)\}|(?P<hex>(?:[0-9a-fA-F]{2})+)(?:\*(?P<times>\d+))?|(?P<bad>\S+)'
)
NAME_SIZE = 8


@dataclass(frozen=True)
class Talk:
    """A conversation from a state on; `needs` is what the other side must be able to do for it."""

    name: str
    rows: tuple[str, ...]
    state: str
    steps: tuple[tuple[str, ...], ...]
    needs: str


@dataclass(frozen=True)
class FrameVector:
    """One frame and what it is made of."""

    name: str
    data: bytes
    encode: str
    fields: tuple[int | str, ...]


@dataclass(frozen=True)
class Vectors:
    """Everything about one protocol."""

    frames: tuple[FrameVector, ...]
    talks: tuple[Talk, ...]
    rows: frozenset[str]


def load(protocol: str) -> Vectors:
    """The vectors of one protocol; each must say where it comes from."""
    document = tomllib.loads((FOLDER / f"{protocol}.toml").read_text())
    for entry in (*document["frame"], *document["talk"]):
        assert entry["provenance"] in {"printed", "derived", "corrected"}, entry["name"]
        assert entry["why"], entry["name"]
        assert entry["rows"], entry["name"]
    frames = tuple(
        FrameVector(e["name"], fill(e["bytes"], {}), e["encode"], tuple(e["fields"])) for e in document["frame"]
    )
    talks = tuple(_talk(entry) for entry in document["talk"])
    assert len({talk.name for talk in talks}) == len(talks)
    here = {row for entry in (*document["frame"], *document["talk"]) for row in entry["rows"]}
    return Vectors(frames, talks, frozenset(here | {entry["row"] for entry in document["elsewhere"]}))


def _talk(entry: dict[str, Any]) -> Talk:
    steps = tuple(tuple(step) for step in entry["steps"])
    return Talk(entry["name"], tuple(entry["rows"]), entry.get("state", "new"), steps, entry.get("needs", ""))


def fill(text: str, names: dict[str, bytes]) -> bytes:
    """The bytes a vector stands for."""
    return b"".join(names[t["name"]] if t["name"] else _literal(t) for t in TOKEN.finditer(text))


def size(text: str) -> int:
    """How many bytes a vector stands for."""
    return sum(NAME_SIZE if t["name"] else len(_literal(t)) for t in TOKEN.finditer(text))


def match(text: str, data: bytes, names: dict[str, bytes]) -> None:
    """Check bytes against a vector, taking over what new names stand for."""
    at = 0
    for token in TOKEN.finditer(text):
        if token["name"] and token["name"] not in names:
            names[token["name"]] = data[at : at + NAME_SIZE]
            at += NAME_SIZE
        else:
            at += len(names[token["name"]]) if token["name"] else len(_literal(token))
    assert data.hex(" ") == fill(text, names).hex(" ")


def _literal(token: re.Match[str]) -> bytes:
    assert token["bad"] is None, token["bad"]
    return bytes.fromhex(token["hex"]) * int(token["times"] or 1) if token["hex"] else token["text"].encode()
