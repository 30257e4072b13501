"""Staged files are not believed, whoever is said to have written them: any byte may be any other."""

import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed.messages import Receipt
from headrace.feed.schema import HEADERS
from headrace.feed.staging import Put, Upload
from headrace.kernels.gate import Fault, check_part
from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.errors import BrokerError, Code
from headrace.model.names import REDRIVEN_TOPIC
from headrace.server.manifests import Found, Plan, check_files
from headrace.server.staging import Staging
from tests.crash.faultdisk import FaultDisk
from tests.harness.drivers import uploaded
from tests.harness.properties import tried

DIRECTORY = Path("staging")
OWNER, WRITER = "ann", "query"
COLUMNS: dict[str, Any] = {
    "value": pa.array([b"one", b"two", b"", b"four"]),
    "key": pa.array([b"k", None, b"", b"kk"]),
    "topic": pa.array(["a", "b", "a", "a"]),
    "headers": pa.array([[("h", b"1")], None, [], [("i", b""), ("j", b"22")]], HEADERS),
    "message_id": pa.array(["1", "ü", None, "4"]),
}
ROWS = pa.record_batch(COLUMNS)
LETTERS = pa.RecordBatch.from_arrays([pa.array([b"x", b"y"]), pa.array([7, 9])], ["value", "redriven_from"])


class Desk:
    """A staging directory with one staged file."""

    def __init__(self, rows: pa.RecordBatch = ROWS, *, record_bytes: int = 1 << 20) -> None:
        self.disk = FaultDisk()
        self.staging = Staging(DIRECTORY, self.disk, record_bytes=record_bytes)
        put = Put(WRITER, 0, "", "out")
        upload = Upload(self.disk, DIRECTORY, OWNER, put, rows.schema, allow=lambda _: None, now=1)
        self.receipt = uploaded(upload, [rows])

    @property
    def contents(self) -> bytes:
        return bytes(self.disk.contents(DIRECTORY / self.receipt.file))

    def write(self, data: bytes) -> Receipt:
        """Put other bytes in the file; a receipt that fits them."""
        path = DIRECTORY / self.receipt.file
        file = self.disk.open(path, writable=True)
        file.truncate(0)
        if data:
            file.pwritev([data], 0)
        file.fdatasync()
        file.close()
        return msgspec.structs.replace(self.receipt, bytes=len(data), crc=zlib.crc32(data))

    def plan_and_read(self, receipt: Receipt, allows: Callable[[str], bool] = lambda _: True) -> list[Batch]:
        """What would go into the log. Raises BrokerError."""
        plan, _ = self.staging.plan(OWNER, WRITER, 0, [receipt], allows)
        found = []
        for number in range(plan.chunks):
            chunk = self.staging.read(plan, number)
            for batch in chunk.batches():
                assert check_part(chunk.record, batch.start, batch.start + batch.size) == Fault.SOUND
                found.append(batch)
        return found


NUMBERS = st.sampled_from((0, 1, 2, 8, 47, 48, 0x7FFFFFFF, 0xFFFFFFFF)) | st.integers(0, 300)
CHANGES = st.lists(
    st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=1) | NUMBERS.map(lambda n: struct.pack("<I", n))),
    min_size=1,
    max_size=3,
)


def changed(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    out = bytearray(data)
    for place, piece in changes:
        at = place % len(data)
        out[at : at + len(piece)] = piece
    return bytes(out[: len(data)])


@tried(600)
@given(changes=CHANGES, cut=st.integers(0, 3), letters=st.booleans(), small=st.booleans())
def test_whatever_was_changed_only_sound_batches_get_by(
    changes: list[tuple[int, bytes]], cut: int, letters: bool, small: bool
) -> None:
    desk = Desk(LETTERS if letters else ROWS, record_bytes=100 if small else 1 << 20)
    data = changed(desk.contents, changes)
    receipt = desk.write(data[: len(data) - 8 * (cut % 3)])
    refused = None
    try:
        found = desk.plan_and_read(receipt, {"a", "b", "out"}.__contains__)
    except BrokerError as error:
        refused = error
    else:
        assert {batch.topic for batch in found} <= {"a", "b", "out", REDRIVEN_TOPIC}
        assert all((batch.protocol, batch.due_us, batch.expires_us) == (Protocol.SPARK, 0, 0) for batch in found)
        assert sum(batch.count for batch in found if batch.topic != REDRIVEN_TOPIC) == receipt.rows
    assert refused is None or refused.code in (Code.INVALID, Code.FORBIDDEN)


@tried(200)
@given(changes=CHANGES, cut=st.integers(0, 200))
def test_a_file_that_changes_once_it_is_decided_upon_is_damage_or_read_as_sound_batches(
    changes: list[tuple[int, bytes]], cut: int
) -> None:
    desk = Desk(record_bytes=100)
    plan, _ = desk.staging.plan(OWNER, WRITER, 0, [desk.receipt])
    before = desk.contents
    data = changed(before, changes)[: max(0, len(before) - cut)]
    desk.write(data)
    assert bool(check_files(DIRECTORY, desk.disk, plan)) is (data != before)
    for number in range(plan.chunks):
        damaged = None
        try:
            chunk = desk.staging.read(plan, number)
        except BrokerError as error:
            damaged = error
        else:
            for batch in chunk.batches():
                assert check_part(chunk.record, batch.start, batch.start + batch.size) == Fault.SOUND
        assert damaged is None or damaged.code is Code.UNKNOWN


def spark(topic: str, values: list[bytes], **settings: int) -> bytes:
    settings = {"timestamp_us": 0, "protocol": Protocol.SPARK} | settings
    return build_batch(topic, values, **settings)  # type: ignore[arg-type]  # the settings of a batch


@pytest.mark.parametrize(
    ("parts", "rows", "code", "words"),
    [
        ([spark("secrets", [b"x"])], 1, Code.FORBIDDEN, "not allowed to publish to secrets"),
        ([spark("$dead.a", [b"x"])], 1, Code.FORBIDDEN, "not allowed to publish"),
        ([spark("a\tb", [b"x"])], 1, Code.INVALID, "unprintable"),
        ([spark("a" * 1025, [b"x"])], 1, Code.INVALID, "longer than 1024"),
        ([spark("a", [b"x"], qos=0)], 1, Code.INVALID, "no row can ask for"),
        ([spark("a", [b"x"], max_attempts=9)], 1, Code.INVALID, "no row can ask for"),
        ([spark("a", [b"x"], due_us=9)], 1, Code.INVALID, "no row can ask for"),
        ([spark("a", [b"x"], expires_us=9)], 1, Code.INVALID, "no row can ask for"),
        ([spark("a", [b"x"], timestamp_us=9)], 1, Code.INVALID, "no row can ask for"),
        ([spark("a", [b"x"], protocol=Protocol.GRPCQ)], 1, Code.INVALID, "no row can ask for"),
        ([spark("a", [b"x", b"y"])], 1, Code.INVALID, "not what its receipt says"),
        ([spark(REDRIVEN_TOPIC, [bytes(8)])], 0, Code.INVALID, "other messages than those before"),
        ([spark("a", [b"x"]), spark(REDRIVEN_TOPIC, [bytes(16)])], 1, Code.INVALID, "other messages"),
        ([spark("a", [b"x"]), spark(REDRIVEN_TOPIC, [bytes(7)])], 1, Code.INVALID, "names no dead letters"),
        ([spark("a", [b"x"]), *[spark(REDRIVEN_TOPIC, [bytes(8)])] * 2], 1, Code.INVALID, "other messages"),
        ([spark("a", [b"x"])[:40] + bytes(8)], 1, Code.INVALID, "not as long"),
        ([spark("a", [b"x"]) + bytes(8)], 1, Code.INVALID, "stray"),
    ],
)
def test_what_the_feed_would_never_stage_is_refused(parts: list[bytes], rows: int, code: Code, words: str) -> None:
    desk = Desk()
    receipt = msgspec.structs.replace(desk.write(b"".join(parts)), rows=rows)
    with pytest.raises(BrokerError, match=words) as refused:
        desk.plan_and_read(receipt, lambda topic: topic != "secrets")
    assert refused.value.code is code


def _promised() -> tuple[Desk, Plan]:
    desk = Desk(record_bytes=100)
    plan, _ = desk.staging.plan(OWNER, WRITER, 0, [desk.receipt])
    assert plan.chunks > 1
    desk.staging.promise(plan)
    return desk, plan


def _overwrite(desk: Desk, name: str, data: bytes) -> None:
    with closing(desk.disk.open(DIRECTORY / name, writable=True)) as file:
        file.truncate(len(data))
        file.pwritev([data], 0)


@tried(200)
@given(changes=CHANGES, cut=st.integers(0, 400), both=st.booleans())
def test_a_manifest_with_any_bytes_changed_is_read_from_its_copy_or_told(
    changes: list[tuple[int, bytes]], cut: int, both: bool
) -> None:
    desk, plan = _promised()
    before = bytes(desk.disk.contents(DIRECTORY / plan.names[0]))
    data = changed(before, changes)[: len(before) - (cut if cut < len(before) else 0)]
    for name in plan.names if both else plan.names[:1]:
        _overwrite(desk, name, data)
    found = desk.staging.prepare()
    if data == before or not both:
        assert (found.plans, found.damage) == ([plan], [])
        assert bool(found.notes) is (data != before)
        return
    assert (found.plans, [each.segment for each in found.damage]) == ([], [f"staging/{plan.names[0]}"])
    desk.staging.set_aside(plan.names[0])
    assert desk.staging.prepare() == Found()


def test_manifests_of_before_that_kept_no_checksums_are_read() -> None:
    desk, plan = _promised()
    old = msgspec.to_builtins(plan)
    old["files"] = [each[:2] for each in old["files"]]
    desk.disk.unlink(DIRECTORY / plan.names[1])
    _overwrite(desk, plan.names[0], msgspec.json.encode(old))
    (read,) = desk.staging.prepare().plans
    assert check_files(DIRECTORY, desk.disk, read) is None
    assert [desk.staging.read(read, number).rows for number in range(read.chunks)]
