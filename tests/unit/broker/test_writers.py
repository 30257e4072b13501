"""Writers: what is a replay, what is open, what survives a restart, and what is forgotten."""

import pytest

from headrace.broker.writers import FORGOTTEN_AFTER_US, WRITERS_MAX, Chunk, Progress, Writers
from headrace.model.batch import build_batch
from headrace.model.errors import BrokerError, Code
from tests.unit.broker.desk import Desk

KEY = ("ann", "query")


def chunk(batch: int, number: int = 0, of: int = 1, owner: str = "ann") -> Chunk:
    return Chunk(owner=owner, writer="query", batch=batch, chunk=number, chunks=of)


def test_a_batch_at_or_below_the_last_is_known_and_gaps_are_allowed() -> None:
    writers = Writers()
    assert not writers.has(KEY, 0)
    writers.committed(chunk(3), 1)
    assert [writers.has(KEY, batch) for batch in (0, 3, 4)] == [True, True, False]
    writers.committed(chunk(9), 2)
    assert writers.has(KEY, 7)
    assert not writers.has(("bob", "query"), 0), "a writer belongs to its owner"


def test_a_batch_of_several_chunks_counts_with_its_last() -> None:
    writers = Writers()
    writers.committed(chunk(0), 1)
    writers.committed(chunk(1, 0, 3), 2)
    writers.committed(chunk(1, 1, 3), 3)
    assert writers.progress(KEY) == Progress(0, 1, 2, 3)
    assert not writers.has(KEY, 1)
    writers.committed(chunk(1, 2, 3), 4)
    assert writers.progress(KEY) == Progress(1, None, 0, 4)


def test_what_the_log_refused_is_taken_back() -> None:
    writers = Writers()
    before = writers.progress(KEY)
    writers.committed(chunk(0), 1)
    writers.restore(KEY, before)
    assert not writers.has(KEY, 0)
    assert len(writers) == 0


def test_a_writer_unused_for_thirty_days_is_forgotten_unless_a_batch_is_open() -> None:
    writers = Writers()
    writers.committed(chunk(1, 0, 2, owner="open"), 0)
    writers.committed(chunk(1, owner="old"), 0)
    writers.committed(chunk(1, owner="new"), FORGOTTEN_AFTER_US)
    assert [owner for (owner, _), _ in writers.items()] == ["open", "new"]


def test_there_is_room_for_so_many() -> None:
    writers = Writers()
    for number in range(WRITERS_MAX):
        writers.restore(("ann", str(number)), Progress(0, last_used=1))
    writers.check_room(("ann", "7"))
    with pytest.raises(BrokerError) as refused:
        writers.check_room(KEY)
    assert refused.value.code is Code.LIMIT


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_progress_survives_a_restart(with_snapshot: bool) -> None:
    desk = Desk()
    for done in (chunk(4), chunk(5, 0, 2), chunk(2, owner="bob")):
        desk.log.append(build_batch("out", [b"x"], timestamp_us=desk.now) + done.event(desk.now).encode())
        desk.broker.writers.committed(done, desk.now)
    desk.sync()
    before = desk.broker.writers.items()
    if with_snapshot:
        desk.broker = type(desk.broker).restore(desk.broker.snapshot(), desk.log, desk.settings)
    else:
        desk.restart()
    assert desk.broker.writers.items() == before
    assert desk.broker.writers.progress(KEY) == Progress(4, 5, 1, desk.now)
