"""Makes a damaged log whole again: every valid record stays, every removed byte is kept aside.

A damaged segment is written anew; where records are lost it gets one record that takes their offsets, so that offsets
have no gaps and the loss stays on record. Repairing twice changes nothing.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from headrace.log.catalog import Catalog, CatalogFile, new_log_id
from headrace.log.disk import Disk, File, keep_aside, rename_aside, write_atomically
from headrace.log.format import (
    LOCK_NAME,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    lost_record,
)
from headrace.log.recovery import MISSING, Recovered, recover, take_over
from headrace.log.report import Damage, Loss, Report
from headrace.log.segment import segment_path
from headrace.model.batch import Buffer

_COPY_BYTES = 1 << 20


def repair(directory: Path, disk: Disk, *, now: int = 0) -> Report:
    """Repair the log in this directory, which no broker may have open; `now` is written beside what is lost.

    The report is of what was found, with the names of the files that keep removed bytes. Raises OSError when the disk
    fails (the log is then as damaged as before, or less) or when the log is open.
    """
    lock = disk.lock(directory / LOCK_NAME)
    try:
        return repair_locked(directory, disk, now=now)
    finally:
        lock.close()


def repair_locked(directory: Path, disk: Disk, *, now: int = 0) -> Report:
    """The same for a caller who holds the lock.

    What is lost is in the catalog before anything is rewritten, and given up in it when all of that is done: a repair
    that was cut short is done again.
    """
    found = recover(directory, disk, full=True, write=False)
    report = found.report
    if report.damage:
        catalog = CatalogFile(directory, disk, found.catalog or _new_catalog(found, now))
        catalog.met([Loss(damage, now) for damage in report.damage])
        _mend(directory, disk, found, catalog.catalog.log)
        catalog.replace(_settled(catalog.catalog, found))
    for name in (*found.snapshots.bad, *found.strays):
        report.kept_aside.append(rename_aside(disk, directory / name))
    after = recover(directory, disk)
    if after.catalog is not None:
        report.losses = list(take_over(directory, disk, after).catalog.losses)
    report.torn = after.report.torn
    report.kept_aside += [torn.kept_in for torn in report.torn]
    report.next_offset = after.report.next_offset
    return report


def _new_catalog(found: Recovered, now: int) -> Catalog:
    """What can be said of a log whose catalogs are gone, or that never had one.

    How often offsets were given up is not known then; seconds are more than that.
    """
    epoch = max([now // 1_000_000, *(segment.header.generation for segment in found.segments)])
    segments = found.segments
    log = next((segment.header.log for segment in reversed(segments) if segment.header.log), b"") or new_log_id()
    last = segments[-1].first if segments else None
    floor = segments[0].first if segments else 0
    return Catalog(log=log, epoch=epoch, floor=floor, last=last, snapshots=tuple(found.snapshots.good))


def _mend(directory: Path, disk: Disk, found: Recovered, log: bytes) -> None:
    """Write anew what is damaged, and put something in the place of what is missing."""
    report = found.report
    by_name: dict[str, list[Damage]] = {}
    for damage in report.damage:
        by_name.setdefault(damage.segment, []).append(damage)
    for segment in found.segments:
        if lost := by_name.get(segment.path.name):
            report.kept_aside += _rewrite(segment.path, disk, segment.header, lost)
    created_us = found.segments[-1].header.created_us if found.segments else 0
    for damage in report.damage:
        if damage.detail == MISSING:
            header = SegmentHeader(damage.first, created_us, log=log)
            pieces: list[Buffer] = [header.encode()]
            if damage.count:
                pieces.append(lost_record(damage.first, damage.count))
            write_atomically(disk, segment_path(directory, damage.first), pieces)
    if not found.segments and found.synced:
        header = SegmentHeader(found.synced, 0, log=log)
        write_atomically(disk, segment_path(directory, header.first), [header.encode()])


def _settled(catalog: Catalog, found: Recovered) -> Catalog:
    """The catalog once everything that is lost has been given up."""
    losses = tuple(replace(loss, given_up=True) for loss in catalog.losses)
    missing = [damage.first for damage in found.report.damage if damage.detail == MISSING]
    firsts = sorted({segment.first for segment in found.segments}.union(missing)) or [found.synced]
    return msgspec.structs.replace(
        catalog,
        epoch=catalog.epoch + 1,
        floor=firsts[0],
        last=firsts[-1] if found.segments or missing or found.synced else None,
        snapshots=tuple(found.snapshots.good),
        losses=losses,
    )


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
