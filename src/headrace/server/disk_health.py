"""How the disk does: errors said once for each episode, damage said once for each place, the scrub and how far it is.

Lives on the event loop; a step of the scrub runs in a thread.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from headrace.log import Damage, LogSettings, Scrub

if TYPE_CHECKING:
    from headrace.server.engine import Engine

STEPS_PER_S = 16
log = logging.getLogger("headrace.disk")


class DiskHealth:
    """What is known of the disk of one broker.

    failing    the work that failed when it was tried last, and why
    errors     how often each work failed
    lost       what was lost beside the log, since the start
    """

    def __init__(self) -> None:
        self.failing: dict[str, str] = {}
        self.errors: Counter[str] = Counter()
        self.lost: list[Damage] = []
        self.scrub: Scrub | None = None
        self.scrub_passes = 0
        self._scrubbed = 0
        self._since: Counter[str] = Counter()

    @property
    def scrubbed_bytes(self) -> int:
        """How many bytes scrubs have read."""
        return self._scrubbed + (self.scrub.done if self.scrub is not None else 0)

    def ended(self, work: str, error: object) -> None:
        """Some work on the disk was done, or failed; only the first failure of a row is logged, and its end."""
        if error is None:
            if self.failing.pop(work, None) is not None:
                log.warning("storage.recovered", extra={"work": work, "failures": self._since.pop(work)})
            return
        self.errors[work] += 1
        self._since[work] += 1
        if work not in self.failing:
            log.error("storage.failed", extra={"work": work, "cause": str(error)})
        self.failing[work] = str(error)

    def met(self, damage: Sequence[Damage]) -> None:
        """Damage was met that nobody knew of."""
        for each in damage:
            log.error("log.damaged", extra=asdict(each))

    def scrub_over(self) -> None:
        """A pass has come to its end."""
        assert self.scrub is not None
        self._scrubbed += self.scrub.done
        self.scrub_passes += 1
        self.ended("scrub", self.scrub.failures[0] if self.scrub.failures else None)
        self.scrub = None


def degraded(engine: "Engine") -> str | None:
    """What is wrong though work is accepted; None when nothing is. Says nothing that a stranger should not know."""
    if engine.log.damage or engine.disk.lost:
        return "the log is damaged"
    return "the disk fails now and then" if engine.disk.failing else None


def describe(engine: "Engine") -> dict[str, object]:
    """For the API: damage, losses, errors, the scrub."""
    stored, disk = engine.log, engine.disk
    given_up = [loss for loss in stored.catalog.losses if loss.given_up]
    return {
        "log_id": stored.catalog.log.hex(),
        "epoch": stored.catalog.epoch,
        "damage": [asdict(damage) for damage in (*stored.damage, *disk.lost)],
        "lost": [asdict(loss.damage) | {"met_us": loss.met_us} for loss in given_up],
        "lost_offsets": sum(loss.damage.count for loss in given_up),
        "storage_errors": dict(disk.errors),
        "storage_failing": dict(disk.failing),
        "scrub": {
            "passes": disk.scrub_passes,
            "bytes": disk.scrubbed_bytes,
            "pass_done_bytes": disk.scrub.done if disk.scrub else 0,
            "pass_size_bytes": disk.scrub.size if disk.scrub else 0,
        },
    }


async def scrub_for_ever(engine: "Engine", settings: LogSettings) -> None:
    """Pass over the log again and again, `scrub_bytes_s` at most, a pass each `scrub_every_s` at most."""
    loop, disk = asyncio.get_running_loop(), engine.disk
    size = max(1, settings.scrub_bytes_s // STEPS_PER_S)
    while settings.scrub_bytes_s:
        began = loop.time()
        disk.scrub = scrub = engine.log.begin_scrub()
        while not scrub.is_over:
            before = scrub.done
            await asyncio.to_thread(scrub.step, size)
            for damage in scrub.take_damage():
                engine.log.note_damage(damage)
            engine.journal()
            await asyncio.sleep((scrub.done - before) / settings.scrub_bytes_s)
        disk.scrub_over()
        await asyncio.sleep(max(1.0, began + settings.scrub_every_s - loop.time()))
