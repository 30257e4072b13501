"""Staged files: synced before the receipt, checked by it, named by digests, and gone when something is wrong."""

import errno
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.auth import Identity, Scope
from headrace.feed.messages import Commit, Receipt, Report, Request
from headrace.feed.places import belongs, created_us, manifest_name, staged_name, transaction_prefix
from headrace.feed.staging import Put, Upload
from headrace.feed.writing import Writing
from headrace.log import OsDisk
from headrace.model.errors import BrokerError, Code
from headrace.model.parts import batches_in
from tests.crash.faultdisk import FaultDisk, Survival
from tests.harness.drivers import uploaded

DIRECTORY = Path("staging")
PUT = Put("query", 3, "7", "out")


def batch(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def staged(disk: FaultDisk, *batches: pa.RecordBatch) -> Receipt:
    upload = Upload(disk, DIRECTORY, "ann", PUT, batches[0].schema, allow=lambda topic: None, now=5)
    return uploaded(upload, batches)


def test_a_receipt_tells_what_is_on_disk_even_after_a_power_failure() -> None:
    disk = FaultDisk()
    receipt = staged(disk, batch(b"one", b"two"), batch(), batch(b"three"))
    survivor = disk.after_crash(Survival.LOST)
    (name,) = survivor.list(DIRECTORY)
    data = bytes(survivor.contents(DIRECTORY / name))
    assert (receipt.file, receipt.rows, receipt.bytes, receipt.crc) == (name, 3, len(data), zlib.crc32(data))
    assert (receipt.writer, receipt.batch, receipt.part) == ("query", 3, "7")
    found = [part.value(i) for part in batches_in(data, 0, len(data), 0) for i in range(part.count)]
    assert found == [b"one", b"two", b"three"]


def test_what_is_written_at_once_is_one_part() -> None:
    disk = FaultDisk()
    receipt = staged(disk, *(batch(b"%d" % n) for n in range(500)))
    data = bytes(disk.contents(DIRECTORY / receipt.file))
    assert [part.count for part in batches_in(data, 0, len(data), 0)] == [500]


@pytest.mark.parametrize("operation", ["staged.create", "staged.write", "staged.sync", "directory.sync"])
def test_a_full_disk_is_told_and_leaves_nothing_behind(operation: str) -> None:
    disk = FaultDisk()
    disk.fail(operation, errno.ENOSPC)
    with pytest.raises(BrokerError, match="cannot stage the rows") as refused:
        staged(disk, batch(b"one"))
    assert refused.value.code is Code.STORAGE
    assert disk.list(DIRECTORY) == []
    assert staged(disk, batch(b"one")).rows == 1


def test_rows_that_are_wrong_leave_nothing_behind() -> None:
    disk = FaultDisk()
    with pytest.raises(BrokerError, match="null"):
        staged(disk, batch(*([b"x"] * 70_000)), pa.record_batch({"value": pa.array([None], pa.binary())}))
    assert disk.list(DIRECTORY) == []


def test_names_tell_writer_batch_and_time_and_nothing_anybody_sent() -> None:
    name = staged_name("ann", "../../etc/passwd", 3, 1_700_000_000_000_000)
    prefix = transaction_prefix("ann", "../../etc/passwd", 3)
    assert belongs(name, prefix)
    assert set(name) <= set("0123456789abcdef-.staged")
    assert created_us(name) == 1_700_000_000_000_000
    assert name != staged_name("ann", "../../etc/passwd", 3, 1_700_000_000_000_000)
    assert created_us(manifest_name("ann", "x", 3)) is None
    others = [("ann", "x", 3), ("ann", "../../etc/passwd", 4), ("an", "n../../etc/passwd", 3)]
    assert not any(belongs(name, transaction_prefix(*other)) for other in others)
    assert not belongs(f"{prefix}-../../../etc/passwd", prefix)


class Asked:
    """A broker that remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def __call__(self, request: Request) -> object:
        self.requests.append(request)
        return {}


ANN = Identity("ann", publish=Scope(["out*"]), subscribe=Scope(["in*"]))


def writing(tmp_path: Path, asked: Asked) -> Writing:
    return Writing(tmp_path, OsDisk(), asked)


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("secret", "not allowed to publish to secret"),
        ("$dead.out", "only the broker writes to \\$dead.out"),
        ("$redriven", "only the broker writes"),
        ("out\n", "unprintable"),
        ("", "empty topic"),
    ],
)
@pytest.mark.parametrize("by_column", [True, False])
def test_every_topic_of_the_rows_is_checked(tmp_path: Path, topic: str, words: str, by_column: bool) -> None:
    columns: dict[str, list[Any]] = {"value": [b"x", b"y"], "topic": ["out", topic]}
    rows = pa.record_batch(columns) if by_column else batch(b"x")
    command = msgspec.json.encode({"writer": "w", "batch": 0, "part": "0", "topic": "out" if by_column else topic})
    with pytest.raises(BrokerError, match=words):
        uploaded(writing(tmp_path, Asked()).open(ANN, command, rows.schema), [rows])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [b"", b"{", b"[]", b'{"writer": "w"}', b'{"writer": "", "batch": 0}', b'{"writer": "w", "batch": -1}',
     b'{"writer": "w", "batch": 0, "more": 1}', b'{"writer": "' + b"w" * 300 + b'", "batch": 0}', b"\xff"],
)  # fmt: skip
def test_bad_commands_are_refused(tmp_path: Path, command: bytes) -> None:
    with pytest.raises(BrokerError) as refused:
        writing(tmp_path, Asked()).open(ANN, command, batch(b"x").schema)
    assert refused.value.code is Code.INVALID


async def test_what_drivers_decide_is_passed_on_in_the_name_of_the_key(tmp_path: Path) -> None:
    asked = Asked()
    side = writing(tmp_path, asked)
    receipt = uploaded(
        side.open(ANN, b'{"writer": "w", "batch": 0, "topic": "out"}', batch(b"x").schema), [batch(b"x")]
    )
    body = msgspec.json.encode({"writer": "w", "batch": 0, "staged": [receipt]})
    assert await side.actions["commit"](ANN, body) == {}
    await side.actions["report"](ANN, b'{"reader": "lake", "topics": ["in"], "offset": 5}')
    commit, report = asked.requests
    assert isinstance(commit, Commit)
    assert (commit.owner, commit.subscribe, commit.staged[0].rows) == ("ann", ("in*",), 1)
    assert isinstance(report, Report)
    assert (report.owner, report.reader, report.topics, report.offset) == ("ann", "lake", ("in",), 5)


def test_a_reader_may_only_report_what_it_may_read(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="not allowed to read secret"):
        writing(tmp_path, Asked()).report(ANN, b'{"reader": "lake", "topics": ["secret"], "offset": 5}')
