"""What is left of a batch that is not as we make them: made anew, message by message, so that nobody meets its bytes.

Such a batch can be in a log that an older version wrote, or in a file that somebody changed. Each of its messages keeps
its offset and every cell that is sound. One with a cell that is not has `fault` set: it is given to nobody, and whoever
looks at the log sees what is left of it, with the reason as a header. Slow, and called for nothing else.
"""

import struct
from collections.abc import Iterator
from itertools import groupby, pairwise

from headrace.model.batch import (
    HEADER_SIZE,
    TIME_MAX_US,
    Batch,
    Buffer,
    Column,
    Headers,
    Protocol,
    build_batch,
    padded,
)
from headrace.model.names import NAME_SIZE_MAX

MALFORMED = "headrace-malformed"
"""The header that tells why a message was not delivered."""

_PROTOCOLS = frozenset(Protocol)
_KEY_SIZE_MAX = 0xFFFF

Cell = tuple[bytes, str]
"""The bytes of a cell as far as they are sound, and what is wrong with it, if anything."""

_NAMES = {Column(0): "value", Column.KEY: "key", Column.HEADERS: "headers", Column.MESSAGE_ID: "message id"}


def adds_up(size: int, count: int, topic_size: int) -> bool:
    """Whether a part of this size has room for its topic and for the ends of so many values.

    A batch that has not is no record at all: how many offsets it takes is not to be believed.
    """
    return count > 0 and HEADER_SIZE + padded(topic_size) + padded(4 * (count + 1)) <= size


def mended(batch: Batch) -> list[Batch]:
    """Batches that together hold the messages of one that is not sound, each with all its messages sound or none."""
    pieces = []
    rows = list(_rows(batch))
    first = 0
    for fault, group in groupby(rows, lambda row: row[0]):
        run = [row[1:] for row in group]
        pieces.append(_made(batch, first, run, fault))
        first += len(run)
    return pieces


def _rows(batch: Batch) -> Iterator[tuple[str, bytes, bytes, Headers, str]]:
    """Each message: what is wrong with it, value, key, headers and message id."""
    columns = {column: list(cells) for column, cells in _columns(batch).items()}
    unknown = "" if batch.columns <= sum(Column) else "columns that this version does not know"
    nothing: list[Cell] = [(b"", "")] * batch.count
    for value, key, headers, name in zip(
        columns[Column(0)],
        columns.get(Column.KEY, nothing),
        columns.get(Column.HEADERS, nothing),
        columns.get(Column.MESSAGE_ID, nothing),
        strict=True,
    ):
        found, headers_fault = _headers(headers[0])
        text, text_fault = _text(name[0])
        faults = (unknown, value[1], key[1], headers[1] or headers_fault, name[1] or text_fault)
        yield next(filter(None, faults), ""), value[0], key[0], found, text


def _columns(batch: Batch) -> dict[Column, Iterator[Cell]]:
    """The cells of every column the batch says it has, whatever there is of them."""
    after = min(batch.start + batch.size, len(batch.buffer))
    at = batch.ends_start
    ends_size = padded(4 * (batch.count + 1))
    found: dict[Column, Iterator[Cell]] = {}
    for column in (Column(0), *Column):
        if column and not batch.columns & column:
            continue
        begins = at + ends_size
        if begins > after:
            found[column] = iter([(b"", f"{_NAMES[column]}: not in the batch")] * batch.count)
            continue
        ends = struct.unpack_from(f"<{batch.count + 1}I", batch.buffer, at)
        size = ends[-1] if column else batch.values_size
        found[column] = _cells(batch.buffer, begins, min(size, after - begins), ends, _NAMES[column])
        at = begins + padded(size)
    return found


def _cells(buffer: Buffer, begins: int, size: int, ends: tuple[int, ...], name: str) -> Iterator[Cell]:
    """Cells that lie in their column, behind all sound ones before them; others are empty."""
    reached = 0
    for first, last in pairwise(ends):
        if reached <= first <= last <= size:
            reached = last
            yield bytes(buffer[begins + first : begins + last]), ""
        else:
            yield b"", f"{name}: a cell from {first} to {last} in {size} bytes"


def _headers(cell: bytes) -> tuple[list[tuple[str, bytes]], str]:
    """The headers of a cell up to the place where it makes no sense."""
    found: list[tuple[str, bytes]] = []
    fault = ""
    at = 0
    while at < len(cell):
        if len(cell) - at < 6:
            return found, "headers: they end in the middle"
        value_at = at + 2 + int.from_bytes(cell[at : at + 2], "little")
        size = int.from_bytes(cell[value_at : value_at + 4], "little")
        if value_at + 4 + size > len(cell):
            return found, "headers: they end in the middle"
        key, wrong = _text(cell[at + 2 : value_at])
        if wrong:
            key = key.encode()[:_KEY_SIZE_MAX].decode(errors="ignore")
        found.append((key, cell[value_at + 4 : value_at + 4 + size]))
        fault = fault or (wrong and "headers: a key is not UTF-8")
        at = value_at + 4 + size
    return found, fault


def _text(cell: bytes) -> tuple[str, str]:
    try:
        return cell.decode(), ""
    except UnicodeDecodeError:
        return cell.decode(errors="replace"), "message id: not UTF-8"


def _made(batch: Batch, first: int, run: list[tuple[bytes, bytes, Headers, str]], fault: str) -> Batch:
    values, keys, headers, names = zip(*run, strict=True)
    if fault:
        headers = tuple([*each, (MALFORMED, fault.encode())] for each in headers)
    part = build_batch(
        batch.topic.encode()[:NAME_SIZE_MAX].decode(errors="ignore") or "?",
        values,
        timestamp_us=_time(batch.timestamp_us),
        qos=min(batch.qos, 1),
        protocol=Protocol(batch.protocol) if batch.protocol in _PROTOCOLS else Protocol.INTERNAL,
        max_attempts=batch.max_attempts,
        due_us=_time(batch.due_us),
        expires_us=_time(batch.expires_us),
        keys=keys if any(keys) else None,
        headers=headers if any(headers) else None,
        message_ids=names if any(names) else None,
    )
    return Batch(part, 0, batch.base + first, batch.topic, f"malformed: {fault}" if fault else "")


def _time(when: int) -> int:
    return min(max(when, 0), TIME_MAX_US)
