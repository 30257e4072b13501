"""Batches as we make them, and what becomes of one when somebody changes it: for tests of what is behind the gate."""

import struct
from typing import Any

from hypothesis import strategies as st

from headrace.model.batch import HEADER_SIZE, Batch, Column, Headers, Protocol, build_batch, padded

NUMBERS = (0, 1, 2, 7, 8, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)

values = st.lists(st.binary(max_size=20), min_size=1, max_size=8)
texts = st.text(max_size=5)
headers = st.lists(st.tuples(texts, st.binary(max_size=6)), max_size=3)


@st.composite
def sound_parts(draw: st.DrawFn) -> bytes:
    """A batch with any of the columns, by any door, with any settings."""
    cells = draw(values)

    def _column(cell: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(cell, min_size=len(cells), max_size=len(cells)))

    return build_batch(
        draw(st.sampled_from(("orders", "o", "größe", "a-topic-of-16-byt"))),
        cells,
        timestamp_us=draw(st.integers(0, 1 << 60)),
        qos=draw(st.integers(0, 1)),
        protocol=draw(st.sampled_from(Protocol)),
        max_attempts=draw(st.sampled_from((0, 3, 0xFFFF))),
        due_us=draw(st.sampled_from((0, 1 << 50))),
        expires_us=draw(st.sampled_from((0, 1 << 51))),
        keys=_column(st.binary(max_size=5)),
        headers=_column(headers),
        message_ids=_column(texts),
    )


@st.composite
def spoilt_parts(draw: st.DrawFn) -> bytes:
    """A batch of which some bytes were changed, most of them where lengths, ends and fields are; as long as before.

    The first five bytes, which every record is checked by before its batches are looked at, stay.
    """
    part = bytearray(draw(sound_parts()))
    places = _numbers_in(bytes(part))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.integers(0, 3))
        if kind == 0:
            at = draw(st.integers(5, len(part) - 1))
            part[at] = draw(st.integers(0, 255))
        elif kind == 1:
            at = draw(st.integers(5, len(part) - 1))
            part[at] ^= 1 << draw(st.integers(0, 7))
        else:
            at = draw(st.sampled_from(places))
            (before,) = struct.unpack_from("<I", part, at)
            near = (before + draw(st.integers(-9, 9))) % (1 << 32)
            struct.pack_into("<I", part, at, draw(st.sampled_from((*NUMBERS, near, len(part)))))
    return bytes(part)


def _numbers_in(part: bytes) -> list[int]:
    """Where a sound batch keeps its numbers: the header's, and all ends."""
    batch = Batch(part, 0, 0)
    places = list(range(8, HEADER_SIZE, 4))
    at = batch.ends_start
    for column in (Column(0), *Column):
        if column and not batch.columns & column:
            continue
        ends_at, at = at, at + padded(4 * (batch.count + 1))
        places += range(ends_at, ends_at + 4 * (batch.count + 1), 4)
        at += padded(struct.unpack_from("<I", part, ends_at + 4 * batch.count)[0])
    return places


def rebuilt(part: bytes) -> bytes:
    """The same batch put together from its messages, by the plain way. For sound batches only."""
    batch = Batch(part, 0, 0)
    messages = [batch.message(index) for index in range(batch.count)]
    has = Column(batch.columns)
    found: list[Headers] = [list(message.headers) for message in messages]
    return build_batch(
        batch.topic,
        [message.value for message in messages],
        timestamp_us=batch.timestamp_us,
        qos=batch.qos,
        protocol=Protocol(batch.protocol),
        max_attempts=batch.max_attempts,
        due_us=batch.due_us,
        expires_us=batch.expires_us,
        keys=[message.key or b"" for message in messages] if Column.KEY in has else None,
        headers=found if Column.HEADERS in has else None,
        message_ids=[message.message_id or "" for message in messages] if Column.MESSAGE_ID in has else None,
    )
