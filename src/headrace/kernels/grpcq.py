"""grpcq messages on their way in: the serialized envelopes of a publish call, checked and laid out as a batch.

The C types of every variable are in grpcq.pxd. Lines under `cython.compiled` move bytes with pointers; their `else`
does the same with slices. Nothing here decides what is said to a peer: a scan stops at the first envelope that is not
right and says which, and why.

An envelope is protobuf: fields in any order, the last of a kind counts, unknown ones are left alone. Groups are no part
of proto3 and are refused.
"""

from array import array
from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.kernels.grpcq_envelope import (
    ACTION_HEADER,
    NAME_CHARACTERS,
    ORIGINATOR_HEADER,
    TOPIC_HEADER,
    UUID_SIZE,
    Reason,
)
from headrace.model.batch import Buffer

if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

Pointer = Any

COMPILED: bool = cython.compiled

_FINE, _NOT_PROTOBUF, _NOT_UTF8 = Reason.FINE, Reason.NOT_PROTOBUF, Reason.NOT_UTF8
_TOPIC_EMPTY, _TOPIC_NOT_TRIMMED = Reason.TOPIC_EMPTY, Reason.TOPIC_NOT_TRIMMED
_ACTION_EMPTY, _ACTION_NOT_TRIMMED = Reason.ACTION_EMPTY, Reason.ACTION_NOT_TRIMMED
_PAYLOAD_TOO_LARGE, _KEY_TOO_LONG, _TOO_MANY = Reason.PAYLOAD_TOO_LARGE, Reason.KEY_TOO_LONG, Reason.TOO_MANY
_TOPIC_CHARACTER, _ACTION_CHARACTER = Reason.TOPIC_CHARACTER, Reason.ACTION_CHARACTER
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ORIGINATOR, _TOPIC, _ACTION, _PAYLOAD, _MESSAGE_ID, _TIMESTAMP, _METADATA = 1, 2, 3, 4, 5, 6, 7
_KEY_SIZE_MAX = 0xFFFF
_MARKS, _UUID_SIZE = 12, UUID_SIZE
_ID_HEAD = bytes((0x2A, UUID_SIZE))
_TOPIC_KEY, _ACTION_KEY, _ORIGINATOR_KEY = TOPIC_HEADER, ACTION_HEADER, ORIGINATOR_HEADER
_TOPIC_KEY_SIZE, _ACTION_KEY_SIZE, _ORIGINATOR_KEY_SIZE = len(_TOPIC_KEY), len(_ACTION_KEY), len(_ORIGINATOR_KEY)


class Fields:
    """A walk over protobuf fields: where it is, and what the field it just passed was.

    `number` and `kind` are from the tag, `value` is a varint's; `body` and `size` say where the bytes of a
    length-delimited field are.
    """

    data: Pointer

    def __init__(self) -> None:
        self.at = self.end = 0
        self.number = self.kind = self.value = 0
        self.body = self.size = 0


class Envelope:
    """Where the parts of one envelope are that anybody asks for; sizes of those that are missing are 0."""

    def __init__(self) -> None:
        self.originator_at = self.originator_size = 0
        self.topic_at = self.topic_size = 0
        self.action_at = self.action_size = 0
        self.id_at = self.id_size = 0
        self.payload_size = self.metadata_size = 0
        self.timestamp = False


class Scan:
    """What a publish call holds. `reason` is FINE, or why `failed`, counted from 0, is not right.

    A call that is no protobuf, or holds too many, has failed as a whole: then `failed` is -1.
    """

    def __init__(self) -> None:
        self.queue = b""
        self.count = 0
        self.reason: int = _FINE
        self.failed = -1
        self.failed_at = self.failed_size = 0
        self.ids_missing = self.stamps_missing = 0
        self.values_size = self.ids_size = self.headers_size = 0
        self.marks: Any = None


def scan_publish(buf: Buffer, payload_max: int, count_max: int) -> Scan:
    """Look through a serialized PublishRequest: its queue, and whether every envelope is right."""
    scan = Scan()
    fields = _walk(buf, 0, len(buf))
    count = 0
    while fields.at < fields.end:
        if not _next_field(fields):
            scan.reason = _NOT_PROTOBUF
            return scan
        if fields.kind == _BYTES and fields.number == 1:
            scan.queue = bytes(buf[fields.body : fields.body + fields.size])
        elif fields.kind == _BYTES and fields.number == 2:
            count += 1
    if count > count_max:
        scan.reason = _TOO_MANY
        return scan
    scan.marks = array("q", bytes(8 * _MARKS * count))
    marks = scan.marks
    envelope = Envelope()
    inner = _walk(buf, 0, 0)
    fields = _walk(buf, 0, len(buf))
    while fields.at < fields.end:
        _next_field(fields)
        if fields.kind != _BYTES or fields.number != 2:
            continue
        inner.at = fields.body
        inner.end = fields.body + fields.size
        reason = _read_envelope(inner, envelope, payload_max)
        if reason != _FINE:
            scan.reason = reason
            scan.failed, scan.failed_at, scan.failed_size = scan.count, fields.body, fields.size
            return scan
        _note(scan, marks, fields, envelope)
    return scan


def _walk(buf: Buffer, at: int, end: int) -> Fields:
    fields = Fields()
    if cython.compiled:
        fields.data = cython.address(buf[0]) if len(buf) else cython.NULL
    else:
        fields.data = buf
    fields.at, fields.end = at, end
    return fields


def _next_field(fields: Fields) -> bool:
    """Pass one field; whether it was one."""
    if not _varint(fields) or fields.value >> 32 or fields.value < 8:
        return False
    fields.number = fields.value >> 3
    fields.kind = fields.value & 7
    if fields.kind == _VARINT:
        return _varint(fields)
    if fields.kind == _BYTES:
        if not _varint(fields):
            return False
        size = fields.value
    elif fields.kind == _FIXED64:
        size = 8
    elif fields.kind == _FIXED32:
        size = 4
    else:
        return False
    if size > fields.end - fields.at:
        return False
    fields.body = fields.at
    fields.size = size
    fields.at += size
    return True


def _varint(fields: Fields) -> bool:
    """Read a varint of at most ten bytes, of which 64 bits count; whether it was one."""
    at = fields.at
    word = 0
    shift = 0
    while at < fields.end and shift < 70:
        byte = fields.data[at]
        at += 1
        word |= (byte & 0x7F) << shift
        if byte < 0x80:
            fields.at = at
            fields.value = word if cython.compiled else word & 0xFFFFFFFFFFFFFFFF
            return True
        shift += 7
    return False


def _read_envelope(fields: Fields, found: Envelope, payload_max: int) -> int:
    """Find the parts of the envelope the fields are; FINE, or why it is not right."""
    found.originator_size = found.topic_size = found.action_size = 0
    found.payload_size = found.id_size = found.metadata_size = 0
    found.timestamp = False
    while fields.at < fields.end:
        if not _next_field(fields):
            return _NOT_PROTOBUF
        if fields.kind == _BYTES:
            if fields.number == _PAYLOAD:
                found.payload_size = fields.size
            elif fields.number == _METADATA:
                reason = _read_entry(fields, found)
                if reason != _FINE:
                    return reason
            elif fields.number <= _MESSAGE_ID:
                if not _is_utf8(fields.data, fields.body, fields.body + fields.size):
                    return _NOT_UTF8
                _found_text(fields, found)
        elif fields.kind == _VARINT and fields.number == _TIMESTAMP:
            found.timestamp = fields.value != 0
    if not found.topic_size:
        return _TOPIC_EMPTY
    if not _is_name(fields.data, found.topic_at, found.topic_at + found.topic_size):
        trimmed = _is_trimmed(fields.data, found.topic_at, found.topic_at + found.topic_size)
        return _TOPIC_CHARACTER if trimmed else _TOPIC_NOT_TRIMMED
    if not found.action_size:
        return _ACTION_EMPTY
    if not _is_name(fields.data, found.action_at, found.action_at + found.action_size):
        trimmed = _is_trimmed(fields.data, found.action_at, found.action_at + found.action_size)
        return _ACTION_CHARACTER if trimmed else _ACTION_NOT_TRIMMED
    return _FINE if found.payload_size <= payload_max else _PAYLOAD_TOO_LARGE


def _found_text(fields: Fields, found: Envelope) -> None:
    if fields.number == _TOPIC:
        found.topic_at, found.topic_size = fields.body, fields.size
    elif fields.number == _ACTION:
        found.action_at, found.action_size = fields.body, fields.size
    elif fields.number == _MESSAGE_ID:
        found.id_at, found.id_size = fields.body, fields.size
    else:
        found.originator_at, found.originator_size = fields.body, fields.size


def _read_entry(fields: Fields, found: Envelope) -> int:
    """Check the metadata entry just passed, and count what it takes among the headers."""
    after, end = fields.at, fields.end
    fields.at = fields.body
    fields.end = after
    key_size = value_size = 0
    while fields.at < fields.end:
        if not _next_field(fields):
            return _NOT_PROTOBUF
        if fields.kind == _BYTES and fields.number <= 2:
            if not _is_utf8(fields.data, fields.body, fields.body + fields.size):
                return _NOT_UTF8
            if fields.number == 1:
                key_size = fields.size
            else:
                value_size = fields.size
    fields.at, fields.end = after, end
    found.metadata_size += 6 + key_size + value_size
    return _FINE if key_size <= _KEY_SIZE_MAX else _KEY_TOO_LONG


def _is_utf8(data: Pointer, at: int, end: int) -> bool:
    if cython.compiled:
        i = at
        while i < end and data[i] < 0x80:
            i += 1
        if i == end:
            return True
    try:
        bytes(data[at:end]).decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_name(data: Pointer, at: int, end: int) -> bool:
    """Whether a text has only characters that names may be made of."""
    if cython.compiled:
        while at < end:
            byte = data[at]
            letter = 97 <= byte <= 122 or 65 <= byte <= 90
            if not (letter or 48 <= byte <= 57 or byte == 45 or byte == 46 or byte == 95):
                return False
            at += 1
        return True
    return not bytes(data[at:end]).translate(None, NAME_CHARACTERS)


def _is_trimmed(data: Pointer, at: int, end: int) -> bool:
    """Whether a text that is not empty neither begins nor ends with white space."""
    text = bytes(data[at:end]).decode()
    return text == text.strip()


def _note(scan: Scan, marks: Any, fields: Fields, found: Envelope) -> None:
    """Keep what `fill_part` needs of an envelope that is right."""
    at = _MARKS * scan.count
    marks[at], marks[at + 1] = fields.body, fields.size
    marks[at + 2], marks[at + 3] = found.id_at, found.id_size
    marks[at + 4], marks[at + 5] = found.topic_at, found.topic_size
    marks[at + 6], marks[at + 7] = found.action_at, found.action_size
    marks[at + 8], marks[at + 9] = found.originator_at, found.originator_size
    marks[at + 10], marks[at + 11] = found.timestamp, found.metadata_size
    scan.count += 1
    scan.values_size += fields.size
    scan.headers_size += 12 + _TOPIC_KEY_SIZE + found.topic_size + _ACTION_KEY_SIZE + found.action_size
    scan.headers_size += found.metadata_size
    if found.originator_size:
        scan.headers_size += 6 + _ORIGINATOR_KEY_SIZE + found.originator_size
    if found.id_size:
        scan.ids_size += found.id_size
    else:
        scan.ids_missing += 1
        scan.ids_size += _UUID_SIZE
        scan.values_size += 2 + _UUID_SIZE
    if not found.timestamp:
        scan.stamps_missing += 1


class Cells:
    """A column of a batch being filled: where its ends go, where its bytes begin, where the next ones go."""

    out: Pointer

    def __init__(self) -> None:
        self.ends_at = self.start = self.at = 0


def fill_part(
    buf: Buffer, scan: Scan, part: Any, values_at: int, headers_at: int, ids_at: int, stamp: bytes, fresh: bytes
) -> None:
    """Copy every envelope of a scanned call, all of which are right, and what is taken out of them to their places.

    The columns of `part`, which is zeroed, begin at `values_at`, `headers_at` and `ids_at`. An envelope without a
    timestamp gets `stamp`, which is that field; one without an id the next of `fresh`, which holds UUIDs as text.
    """
    assert scan.reason == _FINE
    assert len(fresh) == _UUID_SIZE * scan.ids_missing
    fields = _walk(buf, 0, 0)
    data, marks = fields.data, scan.marks
    values = _cells(part, values_at, scan.count)
    headers = _cells(part, headers_at, scan.count)
    ids = _cells(part, ids_at, scan.count)
    used = 0
    for i in range(scan.count):
        at = _MARKS * i
        _copy(values, data, marks[at], marks[at + 1])
        if marks[at + 3]:
            _copy(ids, data, marks[at + 2], marks[at + 3])
        else:
            _copy(values, _ID_HEAD, 0, 2)
            _copy(values, fresh, used, _UUID_SIZE)
            _copy(ids, fresh, used, _UUID_SIZE)
            used += _UUID_SIZE
        if not marks[at + 10]:
            _copy(values, stamp, 0, len(stamp))
        _header(headers, _TOPIC_KEY, 0, _TOPIC_KEY_SIZE, data, marks[at + 4], marks[at + 5])
        _header(headers, _ACTION_KEY, 0, _ACTION_KEY_SIZE, data, marks[at + 6], marks[at + 7])
        if marks[at + 9]:
            _header(headers, _ORIGINATOR_KEY, 0, _ORIGINATOR_KEY_SIZE, data, marks[at + 8], marks[at + 9])
        if marks[at + 11]:
            fields.at = marks[at]
            fields.end = marks[at] + marks[at + 1]
            _metadata_headers(headers, fields)
        _close(values, i)
        _close(headers, i)
        _close(ids, i)


def _metadata_headers(headers: Cells, fields: Fields) -> None:
    """The metadata of an envelope, which is known to be right, as headers."""
    while fields.at < fields.end:
        _next_field(fields)
        if fields.kind != _BYTES or fields.number != _METADATA:
            continue
        after, end = fields.at, fields.end
        fields.at = fields.body
        fields.end = after
        key_at = key_size = value_at = value_size = 0
        while fields.at < fields.end:
            _next_field(fields)
            if fields.kind == _BYTES and fields.number == 1:
                key_at, key_size = fields.body, fields.size
            elif fields.kind == _BYTES and fields.number == 2:
                value_at, value_size = fields.body, fields.size
        _header(headers, fields.data, key_at, key_size, fields.data, value_at, value_size)
        fields.at, fields.end = after, end


def _cells(part: Any, ends_at: int, count: int) -> Cells:
    cells = Cells()
    if cython.compiled:
        view = part
        cells.out = cython.address(view[0])
    else:
        cells.out = part
    cells.ends_at = ends_at
    cells.start = cells.at = ends_at + _padded(4 * (count + 1))
    return cells


def _copy(cells: Cells, data: Pointer, at: int, size: int) -> None:
    """Append bytes to the cell that is open."""
    if cython.compiled:
        memcpy(cells.out + cells.at, data + at, size)
    else:
        cells.out[cells.at : cells.at + size] = data[at : at + size]
    cells.at += size


def _close(cells: Cells, index: int) -> None:
    """End the cell that is open, which is the one with this index."""
    _put_u32(cells.out, cells.ends_at + 4 * index + 4, cells.at - cells.start)


def _header(
    cells: Cells, key: Pointer, key_at: int, key_size: int, value: Pointer, value_at: int, value_size: int
) -> None:
    """Append a header as model.batch.encode_headers does."""
    cells.out[cells.at] = key_size & 0xFF
    cells.out[cells.at + 1] = key_size >> 8
    cells.at += 2
    _copy(cells, key, key_at, key_size)
    _put_u32(cells.out, cells.at, value_size)
    cells.at += 4
    _copy(cells, value, value_at, value_size)


def _put_u32(out: Pointer, at: int, word: int) -> None:
    out[at], out[at + 1], out[at + 2], out[at + 3] = word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFF, word >> 24 & 0xFF


def _padded(size: int) -> int:
    return (size + 7) & ~7
