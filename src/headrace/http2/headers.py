"""Header blocks: HPACK in, bounded and checked (RFC 7541; RFC 9113, section 8); literals out.

Table and Huffman code are the library's, the way through a block is ours: it keeps to the bounds, and costs a third.
What we send uses no table, so it is the same bytes whatever the peer allows, and can be made once and kept.
"""

from collections.abc import Iterable
from typing import Any

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from headrace.http2.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    PROTOCOL_ERROR,
    TABLE_SIZE_DEFAULT,
    Http2Error,
    StreamError,
)

Fields = tuple[tuple[bytes, bytes], ...]

BLOCK_MAX = 32_768
"""Bytes of a compressed block: more is no request."""
LIST_MAX = 65_536
"""Bytes of a list that is still decoded, if only to refuse it politely."""
KEPT_BLOCKS_MAX = 16
KEPT_BLOCK_SIZE_MAX = 512
KEPT_LIST_SIZE_MAX = 4096
ENTRY_OVERHEAD = 32
TABLE_UPDATES_MAX = 2
INTEGER_SHIFT_MAX = 28

_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_REQUIRED = {b":method", b":scheme", b":path"}
_CONNECTION_SPECIFIC = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_NAME = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class Request:
    """The header list of a request that HTTP allows; `size` as MAX_HEADER_LIST_SIZE counts it.

    `meaning` is for whoever reads it: kept with it, where the same block means the same again.
    """

    __slots__ = ("content_length", "fields", "meaning", "method", "path", "size")

    def __init__(self, fields: Fields, size: int) -> None:
        """Raises StreamError for a list that is no request."""
        self.size = size
        self.meaning: Any = None
        pseudo: dict[bytes, bytes] = {}
        first = 0
        for name, value in fields:
            if not name.startswith(b":"):
                break
            if name not in _PSEUDO or name in pseudo:
                raise StreamError(PROTOCOL_ERROR, "a pseudo-header that is unknown or doubled")
            pseudo[name] = value
            first += 1
        if not pseudo.keys() >= _REQUIRED or not pseudo[b":path"]:
            raise StreamError(PROTOCOL_ERROR, "a request needs :method, :scheme and :path")
        self.fields = fields[first:]
        check_fields(self.fields)
        self.method, self.path = pseudo[b":method"], pseudo[b":path"]
        self.content_length = _content_length(self.fields)


class HeaderReader:
    """Decodes the blocks of one connection, in their order.

    A block that left the table as it was means the same next time, for as long as the table stays: the last few of
    those are kept decoded, which is most of what a client with a steady stream of calls sends.
    """

    def __init__(self) -> None:
        self._table = HeaderTable()
        self._kept: dict[bytes, Request] = {}

    def request(self, block: bytes) -> Request:
        """The request in a block.

        Raises Http2Error for a block that cannot be decoded, StreamError for one that is no request.
        """
        known = self._kept.get(block)
        if known is not None:
            return known
        fields, size, steady = self._decode(block)
        request = Request(fields, size)
        if steady and len(block) <= KEPT_BLOCK_SIZE_MAX and size <= KEPT_LIST_SIZE_MAX:
            if len(self._kept) >= KEPT_BLOCKS_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[block] = request
        return request

    def trailers(self, block: bytes) -> None:
        """Decode a block that ends a request, for what it does to the table.

        Raises Http2Error, StreamError.
        """
        check_fields(self._decode(block)[0])

    def _decode(self, block: bytes) -> tuple[Fields, int, bool]:
        """The fields of a block, their size, and whether the table stays as it was."""
        try:
            return self._fields(block)
        except (HPACKError, IndexError) as error:
            raise Http2Error(COMPRESSION_ERROR, f"a header block that cannot be decoded: {error}"[:150]) from None

    def _fields(self, block: bytes) -> tuple[Fields, int, bool]:
        table = self._table
        fields: list[tuple[bytes, bytes]] = []
        at, end, size, changes = 0, len(block), 0, 0
        while at < end:
            first = block[at]
            at += 1
            if first & 0x80:
                index, at = (first & 0x7F, at) if first != 0xFF else _integer(block, at, 0x7F)
                field = table.get_by_index(index)
            elif first & 0xE0 == 0x20:
                changes += 1
                if fields or changes > TABLE_UPDATES_MAX:
                    raise HPACKError("the size of the table changes within a block, or more than twice")
                wanted, at = (first & 0x1F, at) if first != 0x3F else _integer(block, at, 0x1F)
                if wanted > TABLE_SIZE_DEFAULT:
                    raise HPACKError("a table larger than allowed")
                table.maxsize = wanted
                continue
            else:
                mask = 0x3F if first & 0x40 else 0x0F
                index = first & mask
                if index == mask:
                    index, at = _integer(block, at, mask)
                name, at = (table.get_by_index(index)[0], at) if index else _string(block, at)
                value, at = _string(block, at)
                field = name, value
                if first & 0x40:
                    changes += 1
                    table.add(name, value)
            fields.append(field)
            size += len(field[0]) + len(field[1]) + ENTRY_OVERHEAD
            if size > LIST_MAX:
                raise Http2Error(ENHANCE_YOUR_CALM, f"a header list of more than {LIST_MAX} bytes")
        if changes:
            self._kept.clear()
        return tuple(fields), size, not changes


def check_fields(fields: Fields) -> None:
    """Refuse what HTTP/2 forbids in headers and trailers.

    Raises StreamError.
    """
    for name, value in fields:
        if not name or not _NAME.issuperset(name):
            raise StreamError(PROTOCOL_ERROR, "a header name that is empty, upper-case or no name")
        if name in _CONNECTION_SPECIFIC or (name == b"te" and value.lower() != b"trailers"):
            raise StreamError(PROTOCOL_ERROR, "a header that speaks of the connection")
        if b"\0" in value or b"\r" in value or b"\n" in value:
            raise StreamError(PROTOCOL_ERROR, "a header value of more than one line")


def literals(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block of fields as they are, which no table remembers."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(data: bytes) -> bytes:
    size = len(data)
    if size < 0x7F:
        return bytes((size,)) + data
    size -= 0x7F
    prefix = bytearray((0x7F,))
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + data


def _content_length(fields: Fields) -> int | None:
    """What the request says its body measures; None if it does not say."""
    found = {value for name, value in fields if name == b"content-length"}
    if not found:
        return None
    if len(found) > 1 or not (text := found.pop()).isdigit() or len(text) > 18:
        raise StreamError(PROTOCOL_ERROR, "a content-length that is no number")
    return int(text)


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """An integer that did not fit its prefix, and where it ends."""
    number, shift = prefix, 0
    while True:
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > INTEGER_SHIFT_MAX:
            raise HPACKError("an integer of too many bytes")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """A string, and where it ends."""
    first = block[at]
    size, at = (first & 0x7F, at + 1) if first & 0x7F != 0x7F else _integer(block, at + 1, 0x7F)
    data = block[at : at + size]
    if len(data) != size:
        raise HPACKError("a string that is cut short")
    return (bytes(decode_huffman(data)) if first & 0x80 else data), at + size
