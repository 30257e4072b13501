"""Transactions on a real engine and a real disk: once, whoever asks however often, and whatever was redriven before."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.broker.deadletters import ORIGIN_TOPIC
from headrace.log import LogDamaged, OsDisk
from headrace.model.batch import Batch, Protocol, build_batch
from headrace.model.errors import BrokerError, Code
from headrace.model.events import Event
from headrace.server.manifests import decode_manifest, encode_manifest
from headrace.server.node import Node
from headrace.server.offline import repair_directory, verify_directory
from headrace.server.transactions import Outcome
from headrace.testing import broker
from tests.harness.clock import TurnedClock
from tests.harness.drivers import OWNER, TOPIC, WRITER, Office, messages_of, values
from tests.harness.eventually import eventually
from tests.unit.server.test_engine import MoodyDisk

SMALL = 1024
WIDE = 200


@asynccontextmanager
async def office(tmp_path: Path, record_bytes: int = 8 << 20, disk: OsDisk | None = None) -> AsyncIterator[Office]:
    clock = TurnedClock()
    async with broker(tmp_path, disk=disk, clock=clock) as node:
        yield desk(node, tmp_path, record_bytes, disk)


def desk(node: Node, tmp_path: Path, record_bytes: int = 8 << 20, disk: OsDisk | None = None) -> Office:
    return Office(node.engine, tmp_path / "staging", disk or OsDisk(), record_bytes)


def rows(batch: int, count: int) -> list[bytes]:
    return [b"%d/%d" % (batch, row) + b"." * 80 for row in range(count)]


async def test_staged_rows_are_seen_when_they_are_committed_and_not_before(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        receipts = [here.stage(0, [b"one", b"two"], part="0"), here.stage(0, [b"three"], part="1")]
        assert values(here.engine.log) == []
        outcome = await here.commit(0, *receipts)
        assert (outcome.replayed, outcome.rows, outcome.skipped) == (False, 3, 0)
        found = messages_of(here.engine.log, TOPIC)
        assert [message.value for message in found] == [b"one", b"two", b"three"]
        assert {message.protocol for message in found} == {Protocol.SPARK}
        now = here.engine.clock.now()
        assert all(now - 60_000_000 < message.timestamp_us <= now for message in found)
        assert here.names() == []


async def test_the_event_is_in_the_record_of_the_rows(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        await here.commit(4, here.stage(4, [b"one"]))
        (record,) = here.engine.log.iter_records(0)
        batch, told = record.parts()
        assert isinstance(batch, Batch)
        assert not isinstance(told, Batch)
        assert told[1].event is Event.COMMITTED
        assert msgspec.json.decode(told[1].detail) == {
            "owner": OWNER, "writer": WRITER, "batch": 4, "chunk": 0, "chunks": 1,
        }  # fmt: skip


async def test_a_batch_that_comes_again_is_recognised_and_its_files_dropped(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        await here.commit(5, here.stage(5, [b"five"]))
        for batch in (5, 3):
            assert (await here.commit(batch, here.stage(batch, [b"again"]))).replayed
        assert here.names() == []
        assert not (await here.commit(9, here.stage(9, [b"nine"]))).replayed, "gaps are allowed"
        assert values(here.engine.log) == [b"five", b"nine"]


async def test_an_empty_batch_is_progress_too(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        assert not (await here.commit(0)).replayed
        assert not (await here.commit(1, here.stage(1, []))).replayed
        assert await here.transactions.committed((OWNER, WRITER)) == 1
        assert (await here.commit(1)).replayed


async def test_a_writer_is_its_owners_own(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        await here.commit(7, here.stage(7, [b"mine"]))
        theirs = here.stage(1, [b"theirs"], owner="mallory")
        with pytest.raises(BrokerError, match="was not staged for batch 1") as refused:
            await here.commit(1, theirs, writer="other")
        assert refused.value.code is Code.INVALID
        assert not (await here.commit(1, theirs, owner="mallory")).replayed
        assert await here.transactions.committed(("mallory", WRITER)) == 1
        assert await here.transactions.committed(("mallory", "nobody")) is None


@pytest.mark.parametrize("record_bytes", [8 << 20, SMALL])
async def test_two_drivers_with_the_same_batch_write_it_once(tmp_path: Path, record_bytes: int) -> None:
    async with office(tmp_path, record_bytes) as here:
        staged = [[here.stage(0, rows(0, 9), part=f"{part}") for part in range(5)] for _ in range(3)]
        outcomes = await asyncio.gather(*(here.commit(0, *receipts) for receipts in staged))
        assert sorted(outcome.replayed for outcome in outcomes) == [False, True, True]
        assert values(here.engine.log) == rows(0, 9) * 5
        assert here.names() == []


async def test_a_big_transaction_takes_several_records_and_tells_which(tmp_path: Path) -> None:
    async with office(tmp_path, SMALL) as here:
        await here.commit(0, *(here.stage(0, rows(0, 9), part=f"{part}") for part in range(4)))
        events = [
            msgspec.json.decode(part[1].detail)
            for record in here.engine.log.iter_records(0)
            for part in record.parts()
            if not isinstance(part, Batch)
        ]
        assert [(event["chunk"], event["chunks"]) for event in events] == [(0, 4), (1, 4), (2, 4), (3, 4)]
        assert here.engine.broker.writers.has((OWNER, WRITER), 0)


async def test_a_restart_remembers_with_and_without_a_snapshot(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        await here.commit(0, here.stage(0, [b"zero"]))
    for snapshot in sorted((tmp_path / "log").glob("*.snap")):
        async with office(tmp_path) as here:
            assert (await here.commit(0, here.stage(0, [b"zero"]))).replayed
        snapshot.unlink(missing_ok=True)
    async with office(tmp_path) as here:
        assert values(here.engine.log) == [b"zero"]


async def test_receipts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    replace = msgspec.structs.replace
    async with office(tmp_path) as here:
        good = here.stage(0, [b"one"], part="7")
        for wrong, words in (
            (replace(good, crc=good.crc ^ 1), "part '7' is not what its receipt says"),
            (replace(good, bytes=good.bytes - 8), "part '7' is not what its receipt says"),
            (replace(good, file="../../etc/passwd"), "was not staged"),
            (replace(good, file=good.file.replace(".staged", ".manifest")), "was not staged"),
            (replace(good, file=good.file[:-39] + "0" * 32 + ".staged"), "not staged any more"),
        ):
            with pytest.raises(BrokerError, match=words) as refused:
                await here.commit(0, wrong)
            assert refused.value.code is Code.INVALID
        with pytest.raises(BrokerError, match="twice"):
            await here.commit(0, good, good)
        assert values(here.engine.log) == []
        assert not (await here.commit(0, good)).replayed


async def test_a_file_damaged_after_it_was_staged_is_refused(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        receipt = here.stage(0, rows(0, 20))
        path = here.directory / receipt.file
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(BrokerError, match="stage it again"):
            await here.commit(0, receipt)


class ListingDisk(OsDisk):
    """Counts how often a directory is listed."""

    listed = 0

    def list(self, directory: Path) -> list[str]:
        self.listed += 1
        return super().list(directory)


async def test_a_commit_does_not_look_through_what_others_staged(tmp_path: Path) -> None:
    disk = ListingDisk()
    async with broker(tmp_path, clock=TurnedClock()) as node:
        here = desk(node, tmp_path, disk=disk)
        for number in range(50):
            here.stage(number + 10, [b"of others"])
        receipts = [here.stage(number, rows(number, 20)) for number in range(5)]
        again = here.directory / here.stage(3, rows(3, 20)).file
        before = disk.listed
        for number, receipt in enumerate(receipts):
            await here.commit(number, receipt)
        assert disk.listed == before
        assert again.exists()
        await here.transactions.tend()
        assert disk.listed <= before + 2, "once for all of them, and once for what was abandoned"
        assert not again.exists()
        assert len(here.names()) == 50


async def test_what_is_aborted_or_abandoned_is_cleared_away(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        receipt = here.stage(0, [b"one"])
        await here.transactions.abort("mallory", [receipt])
        assert here.names() == [receipt.file], "only one's own"
        await here.transactions.abort(OWNER, [receipt, receipt])
        assert here.names() == []
        here.stage(1, [b"abandoned"])
        await here.transactions.tend()
        assert len(here.names()) == 1
        clock = here.engine.clock
        assert isinstance(clock, TurnedClock)
        clock.turn(86_400 + 1)
        await here.transactions.tend()
        assert here.names() == []


@pytest.mark.parametrize("fault", ["write_error", "sync_error"])
@pytest.mark.parametrize("record_bytes", [8 << 20, SMALL])
async def test_a_full_disk_refuses_and_the_commit_can_be_tried_again(
    tmp_path: Path, record_bytes: int, fault: str
) -> None:
    disk = MoodyDisk()
    async with office(tmp_path, record_bytes, disk) as here:
        await here.commit(0, here.stage(0, [b"before"]))
        receipts = [here.stage(1, rows(1, 9), part=f"{part}") for part in range(3)]
        setattr(disk, fault, errno.ENOSPC)
        for work in (here.commit(1, *receipts), here.commit(1, *receipts)):
            with pytest.raises(BrokerError) as refused:
                await work
            assert refused.value.code is Code.STORAGE
        with pytest.raises(BrokerError, match="cannot stage the rows"):
            here.stage(2, [b"no room"])
        setattr(disk, fault, 0)
        assert not (await here.commit(1, *receipts)).replayed
        assert values(here.engine.log) == [b"before", *rows(1, 9) * 3]
        assert here.names() == []


def wide(topics: int) -> pa.RecordBatch:
    """A row for each of so many topics: as many parts, and where records are small as many records."""
    columns: dict[str, list[Any]] = {"value": [b"." * 900] * topics, "topic": [f"t{n:03}" for n in range(topics)]}
    return pa.record_batch(columns)


def counts(here: Office) -> list[int]:
    """How many rows of a wide batch are in each topic that has any."""
    log = here.engine.log
    return [log.count_from(topic, 0) for topic in log.topics() if topic.startswith("t")]


async def begun(here: Office, batch: int) -> "asyncio.Task[Outcome]":
    """A commit of a wide batch that has begun to write."""
    receipt = here.stage(batch, wide(WIDE))
    committing = asyncio.ensure_future(here.commit(batch, receipt))
    await eventually(lambda: here.engine.broker.writers.progress((OWNER, WRITER)).chunks_done)
    return committing


async def test_a_commit_nobody_waits_for_is_done_all_the_same(tmp_path: Path) -> None:
    async with office(tmp_path, SMALL) as here:
        committing = await begun(here, 0)
        committing.cancel()
        assert await here.transactions.committed((OWNER, WRITER)) == 0
        assert counts(here) == [1] * WIDE


async def test_a_stop_ends_between_records_and_the_next_start_goes_on(tmp_path: Path) -> None:
    async with office(tmp_path, SMALL) as here:
        committing = await begun(here, 0)
        await here.transactions.drained(10.0)
        with pytest.raises(BrokerError) as refused:
            await committing
        assert refused.value.code is Code.DRAINING
        assert 0 < len(counts(here)) < WIDE
    async with broker(tmp_path) as node:
        again = Office(node.engine, tmp_path / "staging", OsDisk(), transactions=node.transactions)
        assert (await again.commit(0, again.stage(0, wide(WIDE)))).replayed
        assert counts(again) == [1] * WIDE
        assert again.names() == []


async def test_a_promise_whose_files_are_gone_is_told_and_the_writer_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with office(tmp_path, SMALL) as here:
        committing = await begun(here, 0)
        await here.transactions.drained(10.0)
        await asyncio.gather(committing, return_exceptions=True)
        for path in here.directory.glob("*.staged"):
            path.unlink()
    async with broker(tmp_path) as node:
        await node.transactions.tend()
        assert "transaction.lost" in caplog.messages
        again = Office(node.engine, tmp_path / "staging", OsDisk(), transactions=node.transactions)
        assert not (await again.commit(0, again.stage(0, [b"whole"]))).replayed
        assert values(node.engine.log) == [b"whole"]


async def bury(here: Office, topic: str, *letters: bytes) -> list[int]:
    """Dead letters of a topic; their offsets."""
    headers = [[(ORIGIN_TOPIC, topic.encode())]] * len(letters)
    part = build_batch(f"$dead.{topic}", letters, timestamp_us=here.engine.clock.now(), headers=headers)
    await here.engine.publish_durably(f"$dead.{topic}", part, len(letters))
    end = here.engine.log.topic_end(f"$dead.{topic}")
    return list(range(end - len(letters), end))


def copies(letters: list[int | None]) -> pa.RecordBatch:
    names = [b"copy of %d" % letter if letter is not None else b"no copy" for letter in letters]
    columns: dict[str, list[Any]] = {"value": names, "key": [b"k"] * len(names), "redriven_from": letters}
    return pa.record_batch(columns)


@pytest.mark.parametrize("record_bytes", [8 << 20, SMALL])
async def test_copies_of_dead_letters_and_their_marks_become_true_together(tmp_path: Path, record_bytes: int) -> None:
    async with office(tmp_path, record_bytes) as here:
        first, second, third = await bury(here, "orders", b"a", b"b", b"c")
        outcome = await here.commit(0, here.stage(0, copies([first, None, second])))
        assert (outcome.rows, outcome.skipped) == (3, 0)
        assert await here.marks.among({first, second, third}) == {first, second}
        assert sorted(values(here.engine.log)) == [b"copy of %d" % first, b"copy of %d" % second, b"no copy"]
        for record in here.engine.log.iter_records(third + 1):
            topics = [part.topic for part in record.parts() if isinstance(part, Batch)]
            assert ("$redriven" in topics) == any(
                b"copy of" in bytes(record.buffer[record.start : record.end]) for _ in [0]
            )


async def test_a_letter_redriven_by_somebody_else_is_skipped(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        letters = await bury(here, "orders", *(b"%d" % n for n in range(6)))
        staged = here.stage(0, copies([*letters, letters[0]]))
        await here.commit(0, here.stage(0, copies([letters[1], letters[4]]), writer="other"), writer="other")
        outcome = await here.commit(0, staged)
        assert (outcome.rows, outcome.skipped) == (4, 3)
        assert sorted(values(here.engine.log)) == sorted(b"copy of %d" % letter for letter in letters)
        keys = {message.key for message in messages_of(here.engine.log, TOPIC)}
        assert keys == {b"k"}
        assert await here.marks.among(set(letters)) == set(letters)
        again = await here.commit(1, here.stage(1, copies(list(letters))))
        assert (again.rows, again.skipped) == (0, 6)


async def test_only_ones_own_dead_letters_can_be_marked(tmp_path: Path) -> None:
    async with office(tmp_path) as here:
        (orders,) = await bury(here, "orders", b"a")
        (billing,) = await bury(here, "billing", b"b")
        for wrong in (billing, billing + 1000):
            with pytest.raises(BrokerError, match=f"no dead letter of yours at offset {wrong}"):
                await here.commit(0, here.stage(0, copies([orders, wrong])), subscribe="orders*")
        assert await here.marks.among({orders, billing}) == set()
        await here.commit(0, here.stage(0, copies([orders])), subscribe="orders*")
        assert await here.marks.among({orders, billing}) == {orders}


async def unfinished(tmp_path: Path) -> list[Path]:
    """A directory in which a transaction is decided and half written; its manifest and the copy of it."""
    async with office(tmp_path, SMALL) as here:
        committing = await begun(here, 0)
        await here.transactions.drained(10.0)
        await asyncio.gather(committing, return_exceptions=True)
    return sorted((tmp_path / "staging").glob("*.manifest"))


async def finished(tmp_path: Path, *, accept_damage: bool = False) -> list[bytes]:
    """What is in the topics once a broker has done what was promised."""
    async with broker(tmp_path, accept_damage=accept_damage) as node:
        await node.transactions.tend()
        await node.engine.drained(10)
        return everything(node)


def everything(node: Node) -> list[bytes]:
    return [value for topic in node.engine.log.topics() for value in values(node.engine.log, topic)]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("harm", ["removed", "garbage", "flipped", "cut", "another's"])
async def test_one_manifest_is_as_good_as_two(tmp_path: Path, number: int, harm: str) -> None:
    manifests = await unfinished(tmp_path)
    assert len(manifests) == 2
    spoil(manifests[number], harm)
    report = verify_directory(tmp_path / "log", OsDisk())
    assert (report.damage, [manifests[number].name in note for note in report.notes]) == ([], [True])
    assert len(await finished(tmp_path)) == WIDE
    assert list((tmp_path / "staging").iterdir()) == []


def spoil(path: Path, harm: str) -> None:
    content = path.read_bytes()
    if harm == "removed":
        path.unlink()
    elif harm == "garbage":
        path.write_bytes(b"half")
    elif harm == "flipped":
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    elif harm == "cut":
        path.write_bytes(content[:-1])
    else:
        plan = decode_manifest(content)
        path.write_bytes(encode_manifest(msgspec.structs.replace(plan, batch=plan.batch + 1)))


@pytest.mark.parametrize("harm", ["removed", "garbage", "flipped"])
@pytest.mark.parametrize("how", ["accepted", "repaired"])
async def test_a_transaction_that_nothing_tells_the_rest_of_stops_the_start(
    tmp_path: Path, harm: str, how: str
) -> None:
    for path in await unfinished(tmp_path):
        spoil(path, harm)
    (found,) = verify_directory(tmp_path / "log", OsDisk()).damage
    assert "batch 0 of 'query'" in found.detail
    with pytest.raises(LogDamaged, match="batch 0 of 'query'"):
        await finished(tmp_path)
    if how == "repaired":
        assert repair_directory(tmp_path / "log", OsDisk(), now=5).damage == [found]
    assert 0 < len(await finished(tmp_path, accept_damage=how == "accepted")) < WIDE
    report = verify_directory(tmp_path / "log", OsDisk())
    assert report.damage == []
    assert [(loss.damage.segment, loss.given_up) for loss in report.losses] == [(found.segment, True)]
    await finished(tmp_path)
    async with broker(tmp_path) as node:
        again = Office(node.engine, tmp_path / "staging", OsDisk(), transactions=node.transactions)
        assert not (await again.commit(0, again.stage(0, [b"whole"]))).replayed


@pytest.mark.parametrize("harm", ["removed", "flipped", "cut"])
async def test_damaged_rows_of_a_promise_are_never_written_and_told(tmp_path: Path, harm: str) -> None:
    await unfinished(tmp_path)
    spoil(max((tmp_path / "staging").glob("*.staged"), key=lambda path: path.stat().st_size), harm)
    (found,) = verify_directory(tmp_path / "log", OsDisk()).damage
    assert "batch 0 of 'query'" in found.detail
    async with broker(tmp_path) as node:
        before = everything(node)
        await node.transactions.tend()
        assert everything(node) == before
        assert [each.segment.endswith(".manifest") for each in node.engine.disk.lost] == [True]
        await eventually(lambda: node.engine.log.catalog.losses)
    await finished(tmp_path)
    assert verify_directory(tmp_path / "log", OsDisk()).damage == []


async def test_a_manifest_of_before_there_were_two_is_enough(tmp_path: Path) -> None:
    first, second = sorted(await unfinished(tmp_path), key=lambda path: len(path.name))
    first.write_bytes(msgspec.json.encode(decode_manifest(second.read_bytes())))
    second.unlink()
    assert verify_directory(tmp_path / "log", OsDisk()).notes == []
    assert len(await finished(tmp_path)) == WIDE


async def test_a_manifest_that_makes_no_sense_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "x.manifest.tmp").write_text("half")
    async with broker(tmp_path):
        assert list((tmp_path / "staging").iterdir()) == []
    (tmp_path / "staging" / "x.manifest").write_text("half")
    with pytest.raises(LogDamaged, match=r"x\.manifest is damaged"):
        await finished(tmp_path)
    assert await finished(tmp_path, accept_damage=True) == []
    assert await finished(tmp_path) == []
