"""One byte of a small log of several segments goes bad, every byte in turn: all else survives, the loss is named."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.log import Log, LogDamaged, LogSettings, repair, verify
from headrace.log.format import SEGMENT_HEADER_SIZE
from headrace.log.hop import Hopper
from headrace.log.report import Damage
from tests.crash.faultdisk import FaultDisk, Survival
from tests.crash.witness import DIRECTORY, Witness, found_in
from tests.unit.log.records import batches_of

SETTINGS = LogSettings(segment_bytes=4096, fill_bytes=1000)
MASKS = (0x01, 0x80)


@dataclass
class Place:
    """A record: its bytes in its segment, filled space after the last one included; its number, its offsets."""

    path: Path
    start: int
    size: int
    end: int
    number: int
    first: int
    span: int


def written(*, clean: bool) -> tuple[FaultDisk, list[Place]]:
    """A disk with a log of three segments, each flush one to four records, and where they are.

    `clean`: shut down with a snapshot; otherwise killed after the last flush, which was of one record.
    """
    disk = FaultDisk()
    witness = Witness(disk, SETTINGS)
    for _ in range(5):
        witness.publish(count=2)
        witness.settle()
        witness.transact()
        witness.publish(count=7, size=100)
        assert witness.flush()
        witness.settle()
        assert witness.flush()
    if clean:
        witness.snapshot()
    numbers = iter([number for number, _ in found_in(witness.log)])
    witness.log.close()
    paths = segments(disk)
    assert len(paths) >= 2
    places = []
    for path, following in zip(paths, [*paths[1:], None], strict=True):
        limit = int(following.stem) if following else None
        file = disk.open(path)
        for found in Hopper(file, SEGMENT_HEADER_SIZE, file.size(), int(path.stem), limit):
            end = found.position + found.size
            places.append(Place(path, found.position, found.size, end, next(numbers), found.first, found.span))
        places[-1].end = file.size()
    return disk, places


def segments(disk: FaultDisk) -> list[Path]:
    return sorted(DIRECTORY / name for name in disk.list(DIRECTORY) if name.endswith(".seg"))


def numbers_in(disk: FaultDisk) -> list[int]:
    log = Log.open(DIRECTORY, disk, SETTINGS)
    numbers = [number for number, _ in found_in(log)]
    log.close()
    return numbers


def loss_of(place: Place) -> Damage:
    return Damage(place.path.name, place.start, place.end, place.first, place.span)


@pytest.mark.parametrize("mask", MASKS)
def test_after_a_clean_shutdown_every_flip_is_damage_named_exactly(mask: int) -> None:
    disk, places = written(clean=True)
    everything = [place.number for place in places]
    for place in places:
        for position in range(place.start, place.start + place.size):
            disk.damage(place.path, position, mask)
            report = verify(DIRECTORY, disk)
            assert (report.damage, report.torn) == ([loss_of(place)], [])
            disk.damage(place.path, position, mask)
        assert numbers_in(disk) == everything


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_everything_but_the_flipped_record_is_served_and_repaired(clean: bool) -> None:
    pristine, places = written(clean=clean)
    for place in places:
        for position in range(place.start, place.start + place.size, 11):
            disk = pristine.after_crash(Survival.KEPT)
            disk.damage(place.path, position, 0x04)
            others = [other.number for other in places if other is not place]
            with pytest.raises(LogDamaged) as raised:
                Log.open(DIRECTORY, disk, SETTINGS, full_scan=True)
            assert raised.value.report.damage == [loss_of(place)]
            log = Log.open(DIRECTORY, disk, SETTINGS, accept_damage=True, full_scan=True)
            assert [number for number, _ in found_in(log)] == others
            assert log.report.damage == [loss_of(place)]
            log.close()
            assert verify(DIRECTORY, disk).intact
            assert numbers_in(disk) == others


def test_a_flip_in_the_last_record_is_cut_as_torn_after_a_power_failure() -> None:
    """Nothing is left that tells whether the last flush was ever synced."""
    pristine, places = written(clean=False)
    last = places[-1]
    for position in range(last.start, last.start + last.size):
        disk = pristine.after_crash(Survival.LOST)
        disk.damage(last.path, position, 0x20)
        report = verify(DIRECTORY, disk)
        assert report.intact
        assert [(torn.start, torn.first) for torn in report.torn] == [(last.start, last.first)]
        assert numbers_in(disk) == [place.number for place in places[:-1]]
        kept = DIRECTORY / f"{last.path.name}.torn-{last.start}"
        assert len(disk.contents(kept)) == last.end - last.start


def test_a_log_that_trusts_its_indexes_notes_the_damage_when_it_reads_it() -> None:
    pristine, places = written(clean=True)
    for place in places:
        disk = pristine.after_crash(Survival.KEPT)
        disk.damage(place.path, place.start + 20, 0x02)
        log = Log.open(DIRECTORY, disk, SETTINGS)
        assert [number for number, _ in found_in(log)] == [p.number for p in places if p is not place]
        assert [(d.segment, d.start, d.first, d.count) for d in log.damage] == [
            (place.path.name, place.start, place.first, place.span)
        ]
        log.close()


def test_a_flip_in_a_segment_header_loses_no_record() -> None:
    pristine, places = written(clean=True)
    everything = [place.number for place in places]
    for path in segments(pristine):
        for position in range(SEGMENT_HEADER_SIZE):
            disk = pristine.after_crash(Survival.KEPT)
            disk.damage(path, position, 0x40)
            report = verify(DIRECTORY, disk)
            assert [(d.segment, d.start, d.end, d.count) for d in report.damage] == [
                (path.name, 0, SEGMENT_HEADER_SIZE, 0)
            ]
            repair(DIRECTORY, disk)
            assert numbers_in(disk) == everything


@pytest.mark.parametrize("suffix", [".idx", ".snap"])
def test_a_flip_in_what_can_be_rebuilt_loses_nothing(suffix: str) -> None:
    pristine, places = written(clean=True)
    everything = [place.number for place in places]
    for name in [name for name in pristine.list(DIRECTORY) if name.endswith(suffix)]:
        for position in range(len(pristine.contents(DIRECTORY / name))):
            disk = pristine.after_crash(Survival.KEPT)
            disk.damage(DIRECTORY / name, position, 0x08)
            assert numbers_in(disk) == everything
            log = Log.open(DIRECTORY, disk, SETTINGS)
            assert [batch.base for batch in batches_of(log, "orders", 0)]
            log.close()
