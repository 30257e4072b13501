"""Marks: which dead letters were redriven, as batches of the topic `$redriven`. The one place that knows their format.

A mark is a message whose value holds the offsets of dead letters, u64 little-endian each. It is in the record that
holds the copies made of them, so both become true together or not at all.
"""

import struct
from collections.abc import Sequence

from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.names import REDRIVEN_TOPIC

MARKED_MAX = 16_384
"""Dead letters in one mark, so that reading one costs about a millisecond."""

_OFFSET_SIZE = 8
_MARKERS = (Protocol.INTERNAL, Protocol.SPARK)


def packed_offsets(offsets: Sequence[int]) -> bytes:
    """Offsets as a mark holds them."""
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def mark_part(packed: bytes, now: int, protocol: Protocol = Protocol.INTERNAL) -> bytes:
    """The batch that marks dead letters, given as packed offsets, as redriven."""
    step = MARKED_MAX * _OFFSET_SIZE
    values = [packed[at : at + step] for at in range(0, len(packed), step)]
    return build_batch(REDRIVEN_TOPIC, values, timestamp_us=now, protocol=protocol)


def marked_offsets(value: bytes) -> tuple[int, ...]:
    """The offsets of the dead letters a mark names; none for a value that is no mark's."""
    if len(value) % _OFFSET_SIZE or len(value) > MARKED_MAX * _OFFSET_SIZE:
        return ()
    return struct.unpack(f"<{len(value) // _OFFSET_SIZE}Q", value)


def marked_in(batch: Batch, index: int) -> list[int]:
    """What a message of the topic `$redriven` marks: nothing unless the broker wrote it, and only what came before it.

    Whatever else may be found in that topic is somebody's message that was sent there, and says nothing.
    """
    size = batch.value_size(index)
    if batch.protocol not in _MARKERS or size > MARKED_MAX * _OFFSET_SIZE:
        return []
    offset = batch.base + index
    return [letter for letter in marked_offsets(batch.value(index)) if letter < offset]
