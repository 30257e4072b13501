"""Marks: which dead letters were redriven, as batches of the topic `$redriven`. The one place that knows their format.

A mark is a message whose value holds the offsets of dead letters, u64 little-endian each. It is in the record that
holds the copies made of them, so both become true together or not at all.
"""

import struct
from collections.abc import Sequence

from headrace.model.batch import Protocol, build_batch
from headrace.model.names import REDRIVEN_TOPIC

MARKED_MAX = 16_384
"""Dead letters in one mark, so that reading one costs about a millisecond."""

_OFFSET_SIZE = 8


def packed_offsets(offsets: Sequence[int]) -> bytes:
    """Offsets as a mark holds them."""
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def mark_part(packed: bytes, now: int, protocol: Protocol = Protocol.INTERNAL) -> bytes:
    """The batch that marks dead letters, given as packed offsets, as redriven."""
    step = MARKED_MAX * _OFFSET_SIZE
    values = [packed[at : at + step] for at in range(0, len(packed), step)]
    return build_batch(REDRIVEN_TOPIC, values, timestamp_us=now, protocol=protocol)


def marked_offsets(value: bytes) -> tuple[int, ...]:
    """The offsets of the dead letters a mark names."""
    return struct.unpack(f"<{len(value) // _OFFSET_SIZE}Q", value)
