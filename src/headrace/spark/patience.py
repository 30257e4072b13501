"""How work that is in no hurry makes way for a broker on the same machine.

Priority alone does not: with every core busy, whoever wakes up waits for the rest of somebody's time slice, some
milliseconds, and a sync wakes several threads, some of them the system's own and bound to the core that hears from
the disk. So that core is left alone.
"""

import os
from contextlib import suppress
from pathlib import Path

from headrace.feed.whereabouts import Whereabouts, whereabouts

NICENESS = 10
SOFTIRQS = Path("/proc/softirqs")


def is_here(place: Whereabouts | None) -> bool:
    """Whether the log, and so its broker, is on this machine; not when nobody may know."""
    return place is not None and whereabouts(Path(place.path)) == place


def spare_cores() -> set[int] | None:
    """The cores this process may use, but for the one that deals with what disks have done; None for no choice."""
    with suppress(AttributeError, OSError, ValueError):
        ended = disk_work(SOFTIRQS.read_text())
        disks = max(ended, key=lambda core: (ended[core], core))
        return os.sched_getaffinity(0) - {disks} or None
    return None


def disk_work(softirqs: str) -> dict[int, int]:
    """How often each core had to do with a disk, as /proc/softirqs tells it. Raises ValueError for anything else."""
    heads, *rows = map(str.split, softirqs.splitlines())
    counts = next((counts for kind, *counts in rows if kind == "BLOCK:"), [])
    return dict(zip((int(head.removeprefix("CPU")) for head in heads), map(int, counts), strict=True))


def stand_back(thread: int = 0, *, spared: set[int] | None = None) -> None:
    """Give a thread, by default the one that calls, little weight, and only the cores that are `spared`."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
    if spared is not None:
        with suppress(OSError):
            os.sched_setaffinity(thread, spared)
