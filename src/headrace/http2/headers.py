"""Header blocks: HPACK in, bounded and checked (RFC 7541; RFC 9113, section 8); literals out.

What we send uses no table, so it is the same bytes whatever the peer allows, and can be made once and kept.
"""

from collections.abc import Iterable
from typing import Any

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from headrace.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, PROTOCOL_ERROR, Http2Error, StreamError

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
        self._decoder = Decoder(max_header_list_size=LIST_MAX)
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
        _check_updates(block)
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = entries[0] if entries else None, len(entries), table.maxsize
        try:
            fields = tuple((bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            raise Http2Error(ENHANCE_YOUR_CALM, f"a header list of more than {LIST_MAX} bytes") from None
        except (HPACKError, IndexError, ValueError) as error:
            raise Http2Error(COMPRESSION_ERROR, f"a header block that cannot be decoded: {error}"[:150]) from None
        after = entries[0] if entries else None, len(entries), table.maxsize
        steady = after[0] is before[0] and after[1:] == before[1:]
        if not steady:
            self._kept.clear()
        return fields, sum(len(name) + len(value) + ENTRY_OVERHEAD for name, value in fields), steady


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


def _check_updates(block: bytes) -> None:
    """Refuse more changes of the table's size than anybody needs: they cost time and say nothing."""
    at = updates = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        updates += 1
        if updates > TABLE_UPDATES_MAX:
            raise Http2Error(COMPRESSION_ERROR, "the size of the table changes more than twice in a block")
        more = block[at] & 0x1F == 0x1F
        at += 1
        while more and at < len(block):
            more = block[at] >= 0x80
            at += 1
