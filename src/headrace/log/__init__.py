"""The durable log: segments of checksummed records, flushed in groups, read by topic and offset."""

from headrace.log.catalog import LossesWrite
from headrace.log.disk import Disk, OsDisk
from headrace.log.dump import Row, dump
from headrace.log.flush import Fill, Flush, Flushed
from headrace.log.log import Log
from headrace.log.native import new_scribe
from headrace.log.reader import Record
from headrace.log.repair import repair
from headrace.log.report import Damage, LogDamaged, Report, Torn
from headrace.log.retention import Removal
from headrace.log.scrub import Scrub
from headrace.log.settings import LogSettings, SyncMode, SyncPolicy
from headrace.log.snapshot import SnapshotWrite
from headrace.log.verify import verify

__all__ = [
    "Damage",
    "Disk",
    "Fill",
    "Flush",
    "Flushed",
    "Log",
    "LogDamaged",
    "LogSettings",
    "LossesWrite",
    "OsDisk",
    "Record",
    "Removal",
    "Report",
    "Row",
    "Scrub",
    "SnapshotWrite",
    "SyncMode",
    "SyncPolicy",
    "Torn",
    "dump",
    "new_scribe",
    "repair",
    "verify",
]
