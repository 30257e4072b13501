"""The scribe writes what a plain write would have written, tells when it is done, and says what went wrong."""

import errno
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.log import OsDisk, new_scribe
from headrace.log.disk import WriteOrder
from headrace.model.batch import Buffer

if TYPE_CHECKING:
    from headrace.log.scribe import Scribe


@pytest.fixture
def scribe() -> Iterator["Scribe"]:
    scribe = new_scribe()
    if scribe is None:
        pytest.skip("built without a compiler, or told not to use what was built")
    thread = threading.Thread(target=scribe.work)
    thread.start()
    yield scribe
    scribe.stop()
    thread.join()
    scribe.close()


def carried_out(scribe: "Scribe", order: WriteOrder) -> None:
    scribe.order(*order)
    assert select.select([scribe.done], [], [], 60)[0]
    scribe.finish()


def test_orders_are_written_where_they_belong(scribe: "Scribe", tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    file = OsDisk().open(path, writable=True)
    orders: list[tuple[int, list[Buffer]]] = [
        (10, [bytearray(b"one"), b"two"]),
        (40, [memoryview(b"three")] * 3),
        (90, [b""]),
    ]
    for position, buffers in orders:
        order = file.order(buffers, position)
        assert order is not None
        carried_out(scribe, order)
    expected = bytearray(100)
    expected[10:16] = b"onetwo"
    expected[40:55] = b"three" * 3
    assert path.read_bytes() == bytes(expected)
    file.close()


def test_a_failure_is_told_and_the_next_order_is_carried_out(scribe: "Scribe", tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(OSError) as refused:  # noqa: PT011 - the number is what matters
        carried_out(scribe, WriteOrder(full, [b"x"], 0, 0))
    os.close(full)
    assert refused.value.errno == errno.ENOSPC
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    carried_out(scribe, WriteOrder(fd, [bytearray(b"good")], 0, os.RWF_DSYNC))
    assert os.pread(fd, 10, 0) == b"good"
    os.close(fd)


def test_buffers_are_let_go_once_they_are_written(scribe: "Scribe", tmp_path: Path) -> None:
    record = bytearray(b"record")
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    carried_out(scribe, WriteOrder(fd, [record], 0, 0))
    record.extend(b" can grow again")
    os.close(fd)


def test_big_and_many_buffers_are_left_to_pwritev(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    file = OsDisk().open(path, writable=True)
    assert file.order([b"x"] * 2000, 0) is None
    file.close()


def test_pure_means_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PURE", "1")
    assert new_scribe() is None
