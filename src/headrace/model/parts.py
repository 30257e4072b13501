"""A record's payload is one part or several: what is in one record becomes true together or not at all."""

import struct
from collections.abc import Iterator

from headrace.model.batch import HEADER_SIZE, PART_BATCH, Batch, Buffer
from headrace.model.errors import HeadraceError
from headrace.model.events import EVENT_HEADER, PART_EVENT, EventPart, decode_event
from headrace.model.mending import adds_up

RECORD_HEADER = struct.Struct("<QII")
RECORD_HEADER_SIZE = RECORD_HEADER.size
PART_HEAD = struct.Struct("<IB")

assert RECORD_HEADER_SIZE == 16


DISORDER = "cells are in no order"


class MalformedPart(HeadraceError):
    """A payload whose parts do not add up, or a part whose cells do not."""


def iter_parts(buffer: Buffer, start: int, end: int, base: int) -> Iterator[Batch | tuple[int, EventPart]]:
    """The parts of a payload in order: batches as they are, events with the offset they took.

    Raises MalformedPart when sizes or kinds make no sense.
    """
    while start < end:
        if end - start < PART_HEAD.size:
            raise MalformedPart(f"{end - start} stray bytes")
        size, kind = PART_HEAD.unpack_from(buffer, start)
        if size % 8 or size > end - start:
            raise MalformedPart(f"part of {size} bytes in {end - start}")
        if kind == PART_BATCH and size >= HEADER_SIZE:
            batch = Batch(buffer, start, base)
            if not adds_up(size, batch.count, batch.topic_size):
                raise MalformedPart(f"a batch of {batch.count} messages in {size} bytes")
            base += batch.count
            yield batch
        elif kind == PART_EVENT and size >= EVENT_HEADER.size:
            yield base, decode_event(buffer, start)
            base += 1
        else:
            raise MalformedPart(f"part of kind {kind} and {size} bytes")
        start += size


def payload_span(buffer: Buffer, start: int, end: int) -> int:
    """How many offsets the parts of a payload take."""
    span = 0
    while start < end:
        size, kind = PART_HEAD.unpack_from(buffer, start)
        span += struct.unpack_from("<I", buffer, start + 8)[0] if kind == PART_BATCH else 1
        start += size
    return span


def batches_in(buffer: Buffer, start: int, end: int, base: int) -> list[Batch]:
    """The batches of a payload known to be well-formed; its events are only counted."""
    batches = []
    while start < end:
        size, kind = PART_HEAD.unpack_from(buffer, start)
        if kind == PART_BATCH:
            batch = Batch(buffer, start, base)
            batches.append(batch)
            base += batch.count
        else:
            base += 1
        start += size
    return batches
