"""A stopped broker's directory as a whole: the log, and the transactions that were decided and not finished.

Says what `log verify` says and mends what `log repair` mends. Blocks; for use without a broker.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.broker.snapshot import load_writers
from headrace.broker.writers import Chunk, Writers
from headrace.log import Report, repair, verify
from headrace.log.catalog import CatalogFile
from headrace.log.disk import Disk, rename_aside
from headrace.log.reader import Reader
from headrace.log.recovery import Recovered, recover, take_over
from headrace.log.report import Damage, Loss
from headrace.model.batch import Batch
from headrace.model.events import Event
from headrace.server.manifests import STAGING, both_names, check_files, read_manifests, with_unfinished
from headrace.server.snapshots import split_snapshot


def verify_directory(log: Path, disk: Disk) -> Report:
    """Check every byte of the log in this directory, and of what is staged beside it, without changing any.

    Raises OSError when it cannot be read, StorageError for files of a later version.
    """
    report = verify(log, disk)
    report.damage += _staging_damage(log, disk, report)
    return report


def repair_directory(log: Path, disk: Disk, *, now: int) -> Report:
    """Mend log and staging; what no transaction can be finished from any more is set aside and remembered as lost.

    Raises OSError when the disk fails or a broker has the log open.
    """
    report = repair(log, disk, now=now)
    damage = _staging_damage(log, disk, report)
    staging = log.parent / STAGING
    for each in damage:
        name = each.segment.removeprefix(f"{STAGING}/")
        for there in {*both_names(name)}.intersection(disk.list(staging)):
            report.kept_aside.append(f"{STAGING}/{rename_aside(disk, staging / there)}")
    if damage:
        catalog: CatalogFile = take_over(log, disk, recover(log, disk))
        catalog.met([Loss(each, now, given_up=True) for each in damage])
        report.damage += damage
        report.losses = list(catalog.catalog.losses)
    return report


def _staging_damage(log: Path, disk: Disk, report: Report) -> list[Damage]:
    """What of the decided transactions is damaged and was not given up before; notes go into the report."""
    staging = log.parent / STAGING
    try:
        names = disk.list(staging)
    except FileNotFoundError:
        names = []
    found = read_manifests(staging, disk, names)
    report.notes += found.notes
    writers = _writers(log, disk)
    unfinished = [plan for plan in found.plans if not writers.has(plan.key, plan.batch)]
    damage = with_unfinished(found, _open_batches(writers))
    damage += filter(None, (check_files(staging, disk, plan) for plan in unfinished))
    known = {loss.damage.segment for loss in report.losses if loss.given_up}
    return [each for each in damage if each.segment not in known]


def _open_batches(writers: Writers) -> Iterator[tuple[str, str, int, int]]:
    for (owner, writer), progress in writers.items():
        if progress.open_batch is not None:
            yield owner, writer, progress.open_batch, progress.chunks_done


def _writers(log: Path, disk: Disk) -> Writers:
    """How far every writer is, by the newest snapshot and the records after it."""
    recovered: Recovered = recover(log, disk, write=False)
    covered, events_from, writers = 0, 0, Writers()
    if recovered.snapshot is not None:
        covered = recovered.snapshot.offset
        events_from, state = split_snapshot(recovered.snapshot.state)
        writers = load_writers(state)
    reader = Reader(disk)
    for segment in recovered.segments:
        if segment.end <= covered:
            continue
        for record in reader.records(segment, covered):
            for part in record.parts():
                if isinstance(part, Batch) or part[0] < events_from or part[1].event != Event.COMMITTED:
                    continue
                writers.committed(msgspec.json.decode(part[1].detail, type=Chunk), part[1].timestamp_us)
    reader.close()
    return writers
