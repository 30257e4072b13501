"""SSPQ's bytes: every packet, encoded and decoded. Knows nothing of the order in which packets may come.

55 99 | u8 type | u8 retries | u32 size | payload          big-endian; size counts the payload alone
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from headrace.model.batch import Buffer
from headrace.model.errors import PeerProtocolError

MAGIC = b"\x55\x99"
HEAD = struct.Struct(">HBBI")
HEAD_SIZE = HEAD.size
KIND_AT = 2
RETRIES_UNLIMITED = 255
PAYLOAD_MAX = 512 * 1024 * 1024
"""The most a `max_payload` may allow: with its batch's header it must fit into one record of the log."""

_MAGIC_WORD = int.from_bytes(MAGIC)


class PacketType(IntEnum):
    """What a packet is."""

    NO_RECEIVE = 0x0E
    SEND = 0x5E
    CONFIRM = 0xC0
    DEAD_RECEIVE = 0xDE
    RECEIVE = 0xEC
    OTHER = 0xFF


class Head(NamedTuple):
    """What a packet says before its payload; `kind` may be a number no type has."""

    kind: int
    retries: int
    size: int


def decode_head(data: Buffer, at: int, end: int, payload_max: int) -> Head | None:
    """The head of the packet at `at`, or None while it is incomplete.

    Raises PeerProtocolError for bytes that begin no packet, from the first of them on, and for a payload too large.
    """
    if end - at < HEAD_SIZE:
        start = bytes(data[at : min(end, at + len(MAGIC))])
        if not MAGIC.startswith(start):
            raise _no_packet(start)
        return None
    magic, kind, retries, size = HEAD.unpack_from(data, at)
    if magic != _MAGIC_WORD:
        raise _no_packet(bytes(data[at : at + len(MAGIC)]))
    if size > payload_max:
        raise PeerProtocolError(f"a payload of {size} bytes is larger than {payload_max}")
    return Head(kind, retries, size)


def _no_packet(start: bytes) -> PeerProtocolError:
    return PeerProtocolError(f"a packet begins with {start.hex(' ')}, not with {MAGIC.hex(' ')}")


def encode_packet(kind: int, retries: int = 0, payload: bytes = b"") -> bytes:
    """Any packet."""
    return HEAD.pack(_MAGIC_WORD, kind, retries, len(payload)) + payload


def encode_send(retries: int, payload: bytes) -> bytes:
    """SEND, in either direction."""
    return encode_packet(PacketType.SEND, retries, payload)


def encode_receive() -> bytes:
    """RECEIVE."""
    return encode_packet(PacketType.RECEIVE)


def encode_dead_receive() -> bytes:
    """DEAD_RECEIVE."""
    return encode_packet(PacketType.DEAD_RECEIVE)


def encode_confirm() -> bytes:
    """CONFIRM."""
    return encode_packet(PacketType.CONFIRM)


def encode_no_receive() -> bytes:
    """NO_RECEIVE."""
    return encode_packet(PacketType.NO_RECEIVE)


def encode_other() -> bytes:
    """OTHER, which nobody sends on purpose."""
    return encode_packet(PacketType.OTHER)
