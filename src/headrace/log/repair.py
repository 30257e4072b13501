"""Makes a damaged log whole again: every valid record stays, every removed byte is kept aside.

A damaged segment is written anew; where records are lost it gets one record that takes their offsets, so that offsets
have no gaps and the loss stays on record. Repairing twice changes nothing.
"""

from collections.abc import Iterator
from pathlib import Path

from headrace.log.disk import Disk, File, keep_aside, write_atomically
from headrace.log.format import (
    LOCK_NAME,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    lost_record,
)
from headrace.log.recovery import Recovered, recover
from headrace.log.report import Damage, Report
from headrace.log.segment import segment_path
from headrace.model.batch import Buffer

_COPY_BYTES = 1 << 20


def repair(directory: Path, disk: Disk) -> Report:
    """Repair the log in this directory, which no broker may have open.

    The report is of what was found, with the names of the files that keep removed bytes. Raises OSError when the disk
    fails (the log is then as damaged as before, or less) or when the log is open.
    """
    lock = disk.lock(directory / LOCK_NAME)
    try:
        return repair_locked(directory, disk)
    finally:
        lock.close()


def repair_locked(directory: Path, disk: Disk) -> Report:
    """The same for a caller who holds the lock."""
    found = recover(directory, disk, full=True, write=False)
    report = found.report
    damaged = {damage.segment for damage in report.damage}
    for segment in found.segments:
        if segment.path.name in damaged:
            lost = [damage for damage in report.damage if damage.segment == segment.path.name]
            report.kept_aside += _rewrite(segment.path, disk, segment.header, lost)
    if not found.segments and found.snapshot is not None:
        _begin_after(directory, disk, found)
    after = recover(directory, disk)
    report.torn = after.report.torn
    report.kept_aside += [torn.kept_in for torn in report.torn]
    report.next_offset = after.report.next_offset
    return report


def _rewrite(path: Path, disk: Disk, header: SegmentHeader, damage: list[Damage]) -> list[str]:
    """Write a segment anew without its damage; returns the names of the files with the bytes left out."""
    file = disk.open(path)
    try:
        kept = []
        for lost in damage:
            if lost.end > lost.start:
                aside = path.with_name(f"{path.name}.damaged-{lost.start}")
                kept.append(keep_aside(disk, aside, file.pread(lost.end - lost.start, lost.start)))
        fresh = header._replace(generation=header.generation + 1)
        write_atomically(disk, path, [fresh.encode(), *_pieces(file, damage, file.size())])
        return kept
    finally:
        file.close()


def _pieces(file: File, damage: list[Damage], size: int) -> Iterator[Buffer]:
    """What the new segment holds after its header: the bytes between the damage, and records for what is lost."""
    position = SEGMENT_HEADER_SIZE
    for lost in damage:
        if lost.start >= position:
            yield from _copied(file, position, lost.start)
        if lost.count:
            yield lost_record(lost.first, lost.count)
        position = max(position, lost.end)
    yield from _copied(file, position, size)


def _copied(file: File, start: int, end: int) -> Iterator[bytes]:
    for position in range(start, end, _COPY_BYTES):
        yield file.pread(min(_COPY_BYTES, end - position), position)


def _begin_after(directory: Path, disk: Disk, found: Recovered) -> None:
    """Begin a segment after everything a snapshot knows to be lost with all segment files."""
    assert found.snapshot is not None
    header = SegmentHeader(found.snapshot.synced, 0)
    write_atomically(disk, segment_path(directory, header.first), [header.encode()])
