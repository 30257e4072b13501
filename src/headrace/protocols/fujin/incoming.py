"""Responses by the run, for the client: what usually comes, read in one go; the unusual is left to the cursor.

Each function moves the cursor over what it read and leaves it alone where there is nothing of its kind.
"""

import struct

from headrace.kernels.strides import alike
from headrace.protocols.fujin.frames import MESSAGE_ID_SIZE, Cursor, Response

REPLY_SIZE = 6
RESULT_SIZE = 4 + MESSAGE_ID_SIZE + 1
_NAMED = struct.Struct(f">BI{MESSAGE_ID_SIZE}sI")
_UNNAMED = struct.Struct(">BI")
_REPLY = struct.Struct(">BIB")


def read_written(cursor: Cursor) -> list[int]:
    """The correlation ids of a run of replies to WRITEs without an error."""
    data, at = bytes(cursor.data), cursor.at
    if cursor.end - at < REPLY_SIZE or data[at] != Response.WRITE or data[at + REPLY_SIZE - 1]:
        return []
    cursor.at = at + REPLY_SIZE * alike(data, at, cursor.end, REPLY_SIZE, (0, REPLY_SIZE - 1))
    return [tag for _, tag, _ in _REPLY.iter_unpack(data[at : cursor.at])]


def read_messages(cursor: Cursor, *, with_ids: bool) -> list[tuple[bytes, bytes]]:
    """A run of MSGs, as ids and values; the ids are empty where there are none."""
    data, at, end = bytes(cursor.data), cursor.at, cursor.end
    found: list[tuple[bytes, bytes]] = []
    head = _NAMED if with_ids else _UNNAMED
    head_size = head.size
    name = b""
    while end - at >= head_size:
        if with_ids:
            code, name_size, name, size = head.unpack_from(data, at)
            if name_size != MESSAGE_ID_SIZE:
                break
        else:
            code, size = head.unpack_from(data, at)
        value_at = at + head_size
        if code != Response.MSG or size > end - value_at:
            break
        at = value_at + size
        found.append((name, data[value_at:at]))
    cursor.at = at
    return found


def read_results(cursor: Cursor, count: int) -> list[bool]:
    """So many results of ACK or NACK, each one byte; none of them where an id has not our size."""
    at, end = cursor.at, cursor.at + RESULT_SIZE * count
    results = bytes(cursor.data[at:end])
    if end > cursor.end or results[3::RESULT_SIZE].count(MESSAGE_ID_SIZE) != count:
        return []
    if any(results[place::RESULT_SIZE].count(0) != count for place in range(3)):
        return []
    cursor.at = end
    return list(map(bool, results[RESULT_SIZE - 1 :: RESULT_SIZE]))
