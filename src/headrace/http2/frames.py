"""HTTP/2 frames as bytes (RFC 9113, sections 4 and 6). Knows nothing of the order they come in."""

from struct import Struct

from headrace.model.errors import PeerProtocolError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE = 9
FRAME_SIZE_MAX = 16_384
"""The largest frame we take: what every peer may send without asking."""
WINDOW_DEFAULT = 65_535
WINDOW_MAX = (1 << 31) - 1
TABLE_SIZE_DEFAULT = 4096

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
INTERNAL_ERROR = 0x2
FLOW_CONTROL_ERROR = 0x3
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

HEADER_TABLE_SIZE = 0x1
ENABLE_PUSH = 0x2
MAX_CONCURRENT_STREAMS = 0x3
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5
MAX_HEADER_LIST_SIZE = 0x6

HEAD = Struct(">HBBBI")
"""Length in 16 and 8 bits, type, flags, stream."""
U32 = Struct(">I")
TWO_U32 = Struct(">II")
SETTING = Struct(">HI")

SETTINGS_ACK = HEAD.pack(0, 0, SETTINGS, ACK, 0)


class Http2Error(PeerProtocolError):
    """The peer broke HTTP/2 in a way that ends its connection; `code` is what GOAWAY says."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class StreamError(PeerProtocolError):
    """The peer broke HTTP/2 in a way that ends one stream; `code` is what RST_STREAM says."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def head(size: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload of `size`."""
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return head(6 * len(values), SETTINGS, 0, 0) + b"".join(SETTING.pack(*each) for each in values.items())


def window_update(stream: int, credit: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return HEAD.pack(0, 4, WINDOW_UPDATE, 0, stream) + U32.pack(credit)


def rst_stream(stream: int, code: int) -> bytes:
    """An RST_STREAM frame."""
    return HEAD.pack(0, 4, RST_STREAM, 0, stream) + U32.pack(code)


def goaway(last_stream: int, code: int, detail: str = "") -> bytes:
    """A GOAWAY frame; `detail` is for people."""
    text = detail.encode()[:200]
    return head(8 + len(text), GOAWAY, 0, 0) + TWO_U32.pack(last_stream, code) + text


def ping_ack(payload: bytes) -> bytes:
    """The answer to a PING."""
    return HEAD.pack(0, 8, PING, ACK, 0) + payload


def header_block(stream: int, block: bytes, *, end: bool, size_max: int = FRAME_SIZE_MAX) -> bytes:
    """HEADERS, and CONTINUATION where one frame is too small."""
    flags = END_STREAM if end else 0
    if len(block) <= size_max:
        return head(len(block), HEADERS, flags | END_HEADERS, stream) + block
    parts = [block[at : at + size_max] for at in range(0, len(block), size_max)]
    frames = [head(len(parts[0]), HEADERS, flags, stream) + parts[0]]
    frames += [head(len(part), CONTINUATION, 0, stream) + part for part in parts[1:-1]]
    frames.append(head(len(parts[-1]), CONTINUATION, END_HEADERS, stream) + parts[-1])
    return b"".join(frames)


def unpadded(payload: memoryview) -> memoryview:
    """What a padded frame carries.

    Raises Http2Error for padding longer than the frame.
    """
    if not len(payload) or payload[0] >= len(payload):
        raise Http2Error(PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
