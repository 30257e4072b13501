"""Records and logs for the tests of the log package."""

from collections.abc import Iterator
from pathlib import Path

from headrace.log import Flushed, Log, LogSettings, OsDisk
from headrace.model.batch import Batch, build_batch
from headrace.model.events import Event, EventPart
from headrace.model.parts import RECORD_HEADER_SIZE

SMALL = LogSettings(segment_bytes=4096, fill_bytes=0)


def record(*parts: bytes) -> bytearray:
    """A record as the log wants it: room for its header, then the parts."""
    return bytearray(RECORD_HEADER_SIZE) + b"".join(parts)


def batch(topic: str = "orders", count: int = 1, *, timestamp_us: int = 1, size: int = 10) -> bytes:
    """A batch part of `count` messages."""
    return build_batch(topic, [f"{i}".encode().ljust(size, b".") for i in range(count)], timestamp_us=timestamp_us)


def event(timestamp_us: int = 1) -> bytes:
    """An event part."""
    return EventPart(Event.ACKED, timestamp_us, 1).encode()


def opened(directory: Path, settings: LogSettings = SMALL) -> Log:
    """The log in this directory on the real disk."""
    return Log.open(directory, OsDisk(), settings)


def flushed(log: Log, now: int = 0, *, sync: bool = False) -> Flushed:
    """What a flush of everything pending achieved."""
    flush = log.begin_flush(now, sync=sync)
    assert flush is not None
    flush.run()
    return log.end_flush(flush)


def batches_of(log: Log, topic: str, offset: int) -> Iterator[Batch]:
    """The topic's batches from the one that holds `offset` on."""
    while (found := log.batch_at(topic, offset)) is not None:
        yield found
        offset = found.end


def filled(directory: Path, records: int, settings: LogSettings = SMALL) -> Log:
    """A log with so many records of three messages, for three topics in turn, each flushed with an event behind it."""
    log = opened(directory, settings)
    for number in range(records):
        topic = ("orders", "payments", "stock")[number % 3]
        log.append(record(batch(topic, 3, timestamp_us=number * 1_000_000)), refusable=True)
        log.append(record(event(number * 1_000_000)), refusable=False)
        assert flushed(log).error is None
    return log
