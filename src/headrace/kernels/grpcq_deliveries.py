"""grpcq messages on their way out: stored batches into deliveries, and the receipts that come back into ranges.

The C types of every variable are in grpcq_deliveries.pxd. Lines under `cython.compiled` move bytes with pointers; their
`else` does the same with slices.

A delivery is field 1 of the messages that carry deliveries, and holds the envelope (1), the receipt (2), the attempt
(3) and the offset (4). A value that came in by another door is put into an envelope here.
"""

from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.kernels.grpcq_envelope import RECEIPT
from headrace.model.batch import HEADER_SIZE, Buffer
from headrace.model.parts import DISORDER, MalformedPart

if cython.compiled:
    from cython.cimports.cpython.bytes import (  # type: ignore[import-untyped]
        PyBytes_AS_STRING,
        PyBytes_FromStringAndSize,
    )
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

Pointer = Any

COMPILED: bool = cython.compiled

_HEADER_SIZE = HEADER_SIZE
_RECEIPT_SIZE = RECEIPT.size
_DELIVERY_TAG = _MESSAGE_TAG = 0x0A
_RECEIPT_TAG, _ATTEMPT_TAG, _OFFSET_TAG = 0x12, 0x18, 0x20
_PAYLOAD_TAG, _ID_TAG = 0x22, 0x2A
_OFFSET_ID = b"headrace-"
_OFFSET_ID_SIZE = len(_OFFSET_ID)


class Output:
    """Bytes being written, and how many there are already."""

    out: Pointer

    def __init__(self) -> None:
        self.at = 0


def encode_deliveries(
    buffer: Buffer, start: int, index: int, count: int, base: int, subscription: int, delivery: int, attempt: int,
    prefix: bytes, suffix: bytes,
) -> bytes:  # fmt: skip
    """Deliveries of `count` messages, from message `index` on, of the batch whose part is at `start`.

    The first has this delivery id; `base` is the offset of the batch's first message. Without a subscription there is
    nothing to settle, and no receipt. With a `prefix` the values are not envelopes: each becomes the payload of one
    that begins with the prefix, goes on with an id made from its offset and ends with the suffix. Raises MalformedPart,
    which no batch that came through the gate leads to.
    """
    data: Pointer = cython.address(buffer[0]) if cython.compiled else buffer
    topic_size = data[start + 12] | data[start + 13] << 8
    ends_at = start + _HEADER_SIZE + ((topic_size + 7) & ~7)
    values_at = ends_at + ((4 * (_u32(data, start + 8) + 1) + 7) & ~7)
    if values_at > len(buffer) or index + count > _u32(data, start + 8):
        raise MalformedPart(DISORDER)
    first = _u32(data, ends_at + 4 * index)
    final = last = _u32(data, ends_at + 4 * (index + count))
    if final > len(buffer) - values_at:
        raise MalformedPart(DISORDER)
    receipt = RECEIPT.pack(subscription, attempt, delivery) if subscription else b""
    framing = len(prefix) + len(suffix)
    size = 0
    for i in range(count):
        last = _u32(data, ends_at + 4 * (index + i + 1))
        if first > last or last > final:
            raise MalformedPart(DISORDER)
        size += _delivery_size(last - first, framing, base + index + i, len(receipt), attempt)
        first = last
    first = _u32(data, ends_at + 4 * index)
    written: Any = PyBytes_FromStringAndSize(cython.NULL, size) if cython.compiled else bytearray(size)
    output = Output()
    output.out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(written)) if cython.compiled else written
    for i in range(count):
        last = _u32(data, ends_at + 4 * (index + i + 1))
        _put_delivery(
            output, data, values_at + first, last - first, base + index + i, receipt, delivery + i, attempt,
            prefix, suffix,
        )  # fmt: skip
        first = last
    assert output.at == size
    return bytes(written)


def _message_size(size: int, framing: int, offset: int) -> int:
    """The size of the envelope a value of this size goes out in; `framing` is 0 for one that is an envelope."""
    if not framing:
        return size
    return framing + 1 + _number_size(size) + size + 2 + _OFFSET_ID_SIZE + _digits(offset)


def _body_size(message_size: int, offset: int, receipt_size: int, attempt: int) -> int:
    size = 1 + _number_size(message_size) + message_size + 2 + _number_size(attempt) + _number_size(offset)
    return size + 2 + receipt_size if receipt_size else size


def _delivery_size(size: int, framing: int, offset: int, receipt_size: int, attempt: int) -> int:
    body_size = _body_size(_message_size(size, framing, offset), offset, receipt_size, attempt)
    return 1 + _number_size(body_size) + body_size


def _put_delivery(
    output: Output, data: Pointer, at: int, size: int, offset: int, receipt: bytes, delivery: int, attempt: int,
    prefix: bytes, suffix: bytes,
) -> None:  # fmt: skip
    prefix_size = len(prefix)
    message_size = _message_size(size, prefix_size + len(suffix), offset)
    body_size = _body_size(message_size, offset, len(receipt), attempt)
    _number(output, _DELIVERY_TAG)
    _number(output, body_size)
    _number(output, _MESSAGE_TAG)
    _number(output, message_size)
    if prefix_size:
        _bytes(output, prefix, 0, prefix_size)
        _number(output, _PAYLOAD_TAG)
        _number(output, size)
    _bytes(output, data, at, size)
    if prefix_size:
        _number(output, _ID_TAG)
        _number(output, _OFFSET_ID_SIZE + _digits(offset))
        _bytes(output, _OFFSET_ID, 0, _OFFSET_ID_SIZE)
        _decimal(output, offset)
        _bytes(output, suffix, 0, len(suffix))
    if receipt:
        _number(output, _RECEIPT_TAG)
        _number(output, _RECEIPT_SIZE)
        _bytes(output, receipt, 0, 8)
        _u64_out(output, delivery)
    _number(output, _ATTEMPT_TAG)
    _number(output, attempt)
    _number(output, _OFFSET_TAG)
    _number(output, offset)


def group_receipts(receipts: bytes) -> list[tuple[int, int, int, int]]:
    """Receipts, back to back, as (subscription, attempt, first delivery id, count) of those that follow each other."""
    assert len(receipts) % _RECEIPT_SIZE == 0
    groups: list[tuple[int, int, int, int]] = []
    open_count = 0
    open_subscription = open_attempt = open_first = 0
    data: Pointer = receipts
    for i in range(len(receipts) // _RECEIPT_SIZE):
        if cython.compiled:
            subscription, attempt = _u32_be(data, _RECEIPT_SIZE * i), _u32_be(data, _RECEIPT_SIZE * i + 4)
            delivery = _u64_be(data, _RECEIPT_SIZE * i + 8)
        else:
            subscription, attempt, delivery = RECEIPT.unpack_from(receipts, _RECEIPT_SIZE * i)
        if open_count:
            if delivery == open_first + open_count and subscription == open_subscription and attempt == open_attempt:
                open_count += 1
                continue
            groups.append((open_subscription, open_attempt, open_first, open_count))
        open_subscription, open_attempt, open_first, open_count = subscription, attempt, delivery, 1
    if open_count:
        groups.append((open_subscription, open_attempt, open_first, open_count))
    return groups


def _bytes(output: Output, data: Pointer, at: int, size: int) -> None:
    if cython.compiled:
        memcpy(output.out + output.at, data + at, size)
    else:
        output.out[output.at : output.at + size] = data[at : at + size]
    output.at += size


def _number(output: Output, number: int) -> None:
    """Write a varint; a tag is one too."""
    while number > 0x7F:
        output.out[output.at] = number & 0x7F | 0x80
        output.at += 1
        number >>= 7
    output.out[output.at] = number
    output.at += 1


def _number_size(number: int) -> int:
    size = 1
    while number > 0x7F:
        number >>= 7
        size += 1
    return size


def _digits(number: int) -> int:
    size = 1
    while number > 9:
        number //= 10
        size += 1
    return size


def _decimal(output: Output, number: int) -> None:
    size = _digits(number)
    for place in range(size):
        output.out[output.at + size - 1 - place] = 48 + number % 10
        number //= 10
    output.at += size


def _u64_out(output: Output, number: int) -> None:
    for shift in range(56, -8, -8):
        output.out[output.at] = number >> shift & 0xFF
        output.at += 1


def _u32(data: Pointer, at: int) -> int:
    a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
    word: int = a | b << 8 | c << 16 | d << 24
    return word


def _u32_be(data: Pointer, at: int) -> int:
    a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
    word: int = a << 24 | b << 16 | c << 8 | d
    return word


def _u64_be(data: Pointer, at: int) -> int:
    high, low = _u32_be(data, at), _u32_be(data, at + 4)
    word: int = high << 32 | low
    return word
