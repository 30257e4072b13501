import zlib

import pytest

from headrace.log.format import (
    LOST_PART,
    PART_LOST,
    SEGMENT_HEADER_SIZE,
    SEGMENT_VERSION,
    SYNCED_MARK,
    BadHeader,
    NewerFormat,
    SegmentHeader,
    crc32,
    decode_segment_header,
    lost_record,
    name_number,
    numbered_name,
    part_timestamp,
    record_intact,
    record_span,
    stamp,
)
from headrace.model.parts import RECORD_HEADER, RECORD_HEADER_SIZE
from tests.unit.log.records import batch, event, record


def test_the_checksum_is_zlibs_whatever_computes_it() -> None:
    assert crc32(b"headrace") == zlib.crc32(b"headrace")


IDS = pytest.mark.parametrize("log", [b"", bytes(range(16))], ids=["nameless", "named"])


@IDS
def test_a_segment_header_comes_back(log: bytes) -> None:
    header = SegmentHeader(first=2**40, created_us=-5, generation=3, log=log)
    data = header.encode()
    assert len(data) == SEGMENT_HEADER_SIZE
    assert decode_segment_header(data) == header


@IDS
@pytest.mark.parametrize("position", range(SEGMENT_HEADER_SIZE))
def test_a_flipped_bit_anywhere_in_a_segment_header_is_found(position: int, log: bytes) -> None:
    data = bytearray(SegmentHeader(7, 7, log=log).encode())
    data[position] ^= 1
    with pytest.raises(BadHeader):
        decode_segment_header(bytes(data))


def test_a_short_header_is_bad() -> None:
    with pytest.raises(BadHeader):
        decode_segment_header(SegmentHeader(7, 7).encode()[:-1])


@IDS
def test_an_intact_header_of_a_later_version_is_not_damage(log: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("SEGMENT_VERSION", "SEGMENT_VERSION_NAMELESS"):
        monkeypatch.setattr(f"headrace.log.format.{version}", SEGMENT_VERSION + 1)
    data = SegmentHeader(7, 7, log=log).encode()
    monkeypatch.undo()
    with pytest.raises(NewerFormat, match=f"version {SEGMENT_VERSION + 1}"):
        decode_segment_header(data)


def test_headers_that_differ_have_different_identities() -> None:
    logs = (b"", bytes(16), bytes([1]) * 16)
    identities = {SegmentHeader(f, c, g, log).identity for f in (0, 1) for c in (0, 1) for g in (0, 1) for log in logs}
    assert len(identities) == 24


def test_stamp_fills_in_id_length_and_checksum() -> None:
    stamped = record(batch(count=4))
    stamp(stamped, 99)
    first, size, crc = RECORD_HEADER.unpack_from(stamped)
    assert (first, size) == (99, len(stamped) - RECORD_HEADER_SIZE)
    assert crc == zlib.crc32(stamped[RECORD_HEADER_SIZE:], zlib.crc32(stamped[:12]))
    assert record_intact(memoryview(stamped), 0, len(stamped), crc)


def test_the_sync_mark_is_covered_by_the_checksum() -> None:
    plain, marked = record(event()), record(event())
    stamp(plain, 5)
    stamp(marked, 5, mark=SYNCED_MARK)
    assert RECORD_HEADER.unpack_from(marked)[1] == RECORD_HEADER.unpack_from(plain)[1] | SYNCED_MARK
    assert RECORD_HEADER.unpack_from(marked)[2] != RECORD_HEADER.unpack_from(plain)[2]


def test_span_adds_up_batches_and_events() -> None:
    payload = batch(count=4) + event() + batch("payments", count=2)
    assert record_span(payload, 0, len(payload)) == 7


@pytest.mark.parametrize("payload", [b"", bytes(8), bytes(48), batch()[:-8], batch() + bytes(8), event()[:16]])
def test_span_of_parts_that_do_not_add_up_is_none_at_all(payload: bytes) -> None:
    assert record_span(payload, 0, len(payload)) == 0


def test_a_lost_record_takes_the_offsets_it_stands_for() -> None:
    lost = lost_record(10, 2**33)
    assert RECORD_HEADER.unpack_from(lost)[0] == 10
    assert LOST_PART.unpack_from(lost, RECORD_HEADER_SIZE)[1:] == (PART_LOST, 2**33)
    assert record_span(lost, RECORD_HEADER_SIZE, len(lost)) == 2**33


def test_the_timestamp_of_either_kind_of_part() -> None:
    assert part_timestamp(batch(timestamp_us=123), 0) == 123
    assert part_timestamp(event(456), 0) == 456


def test_names_keep_the_order_of_offsets() -> None:
    names = [numbered_name(offset, ".seg") for offset in (0, 9, 10, 2**63)]
    assert names == sorted(names)
    assert [name_number(name, ".seg") for name in names] == [0, 9, 10, 2**63]


@pytest.mark.parametrize("name", ["1.seg", f"{1:020}.idx", f"{1:020}.seg.tmp", "x" * 20 + ".seg"])
def test_other_names_are_no_segments(name: str) -> None:
    assert name_number(name, ".seg") is None
