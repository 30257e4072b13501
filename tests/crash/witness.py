"""Writes to a log and remembers what it was promised, so that after a crash it can say what must be there.

The model is a plain list: records that became visible, in order; behind them those still on their way, any prefix of
which a crash may leave behind; and those refused, which must never be seen again.
"""

from pathlib import Path

from headrace.log import Disk, Log, LogSettings, Record
from headrace.model.batch import Batch, build_batch
from headrace.model.events import Event, EventPart
from headrace.model.parts import RECORD_HEADER_SIZE
from tests.unit.log.records import batches_of

DIRECTORY = Path("/log")
TOPICS = ("orders", "payments", "stock")


class Witness:
    """One log, opened again and again, and everything known about it."""

    def __init__(self, disk: Disk, settings: LogSettings) -> None:
        self.settings = settings
        self.visible: list[int] = []
        self.underway: list[tuple[int, bool]] = []
        self.refused: set[int] = set()
        self.doubts: list[list[int]] = []
        self.damaged: set[int] = set()
        self.retired: set[int] = set()
        self._number = 0
        self.log = Log.open(DIRECTORY, disk, settings)

    def publish(self, count: int = 3, size: int = 40) -> None:
        """Append a batch."""
        number = self._next_number(refusable=True)
        values = [f"{number}.{i}".encode().ljust(size, b".") for i in range(count)]
        self._append(build_batch(TOPICS[number % 3], values, timestamp_us=number), refusable=True)

    def settle(self) -> None:
        """Append an event, which the log may not refuse."""
        number = self._next_number(refusable=False)
        self._append(EventPart(Event.ACKED, number, number).encode(), refusable=False)

    def transact(self) -> None:
        """Append one record with batches of two topics."""
        number = self._next_number(refusable=True)
        parts = [build_batch(topic, [f"{number}.0".encode()], timestamp_us=number) for topic in TOPICS[:2]]
        self._append(b"".join(parts), refusable=True)

    def flush(self, now: int = 0, *, sync: bool = False) -> bool:
        """Flush everything; whether the disk obeyed."""
        flush = self.log.begin_flush(now, sync=sync)
        if flush is None:
            return True
        flush.run()
        flushed = self.log.end_flush(flush)
        if flushed.error is not None:
            if flushed.in_doubt:
                self.doubts.append([number for number, _ in self.underway])
            else:
                self.doubts.clear()
            self.refused |= {number for number, refusable in self.underway if refusable}
            self.underway = [(number, False) for number, refusable in self.underway if not refusable]
            return False
        self.visible += [number for number, _ in self.underway]
        self.underway = []
        self.doubts = []
        return True

    def fill(self) -> bool:
        """Fill ground ahead of the next flush; whether there was any to fill."""
        if (fill := self.log.begin_fill()) is None:
            return False
        fill.run()
        return True

    def snapshot(self) -> None:
        """Write a snapshot of everything visible."""
        self.log.write_snapshot(repr(self.visible).encode(), self.log.durable_offset)

    def retire(self, now: int, needed_from: int) -> None:
        """Let go of old segments."""
        before = {number for number, _ in found_in(self.log)}
        removal = self.log.retire(now, needed_from)
        self.retired |= before - {number for number, _ in found_in(self.log)}
        if removal is not None:
            removal.run()

    def reopen(self, disk: Disk, *, accept_damage: bool = False) -> None:
        """Close the log, if it still can be, and open it anew."""
        self.log.close()
        self.log = Log.open(DIRECTORY, disk, self.settings, accept_damage=accept_damage)

    def recover(self, disk: Disk, *, may_lose: int = 0) -> None:
        """Open the log after a crash and check it; `may_lose` visible records from the end may be gone."""
        known = bool(self.damaged)
        self.log = Log.open(DIRECTORY, disk, self.settings, accept_damage=known, full_scan=known)
        found = [number for number, _ in found_in(self.log)]
        gone = self.damaged | self.retired
        promised = self.visible[: len(self.visible) - may_lose] if may_lose else self.visible
        possible = self.visible + self._underway_on_disk(set(found))
        missing = [number for number in promised if number not in found and number not in gone]
        assert not missing, f"lost {missing}"
        assert not self.refused & set(found) - set(possible), "refused and yet there"
        reached = max((possible.index(number) for number in found), default=-1) + 1
        expected = [number for number in possible[:reached] if number in found or number not in gone]
        assert found == expected, "not a prefix of what was written, in order"
        self.visible = possible[: max(reached, len(promised))]
        self.underway = []
        self.doubts = []

    def _underway_on_disk(self, found: set[int]) -> list[int]:
        """The records not yet visible of which some may be there: the last flush's, or earlier ones left in doubt."""
        visible = set(self.visible)
        for numbers in ([number for number, _ in self.underway], *self.doubts):
            if found <= visible.union(numbers):
                return numbers
        return []

    def check(self) -> None:
        """Compare every way of reading with what was promised."""
        gone = self.damaged | self.retired
        found = found_in(self.log)
        numbers = [number for number, _ in found]
        assert numbers == [n for n in self.visible if n in numbers or n not in gone]
        batches = [batch for _, parts in found for batch in parts]
        for topic in TOPICS:
            mine = [(b.base, b.count, b.value(0)) for b in batches if b.topic == topic]
            read = [(b.base, b.count, b.value(0)) for b in batches_of(self.log, topic, 0)]
            assert read == mine
            assert self.log.count_from(topic, 0) == sum(count for _, count, _ in mine)
            assert self.log.topic_end(topic) >= (mine[-1][0] + mine[-1][1] if mine else 0)

    def _append(self, payload: bytes, *, refusable: bool) -> None:
        self.log.append(bytearray(RECORD_HEADER_SIZE) + payload, refusable=refusable)

    def _next_number(self, *, refusable: bool) -> int:
        self._number += 1
        self.underway.append((self._number, refusable))
        return self._number


def found_in(log: Log) -> list[tuple[int, list[Batch]]]:
    """The numbers of the records that can be read, with their batches; checks that offsets have no unknown gaps."""
    return [(_number(record), [p for p in record.parts() if isinstance(p, Batch)]) for record in log.iter_records(0)]


def _number(record: Record) -> int:
    part = next(record.parts())
    return part.timestamp_us if isinstance(part, Batch) else part[1].timestamp_us
