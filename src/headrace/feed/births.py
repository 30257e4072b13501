"""When messages were published and to which topic, by their offsets: many at a time, from blocks of the log kept.

Reads the log by way of a follower. What it keeps is bounded, however many offsets are asked for.
"""

import threading
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.feed.columns import Numbers, table_of
from headrace.feed.selection import Topics
from headrace.kernels.records import BATCHES, CODE, OFFSET, ROWS, TIMESTAMP
from headrace.log.bearings import block
from headrace.log.follower import Choice, Follower
from headrace.log.walk import Gone

BLOCKS_MAX = 128
UNKNOWN = -1


class _Block(NamedTuple):
    """The batches with offsets below `end`: their first and last offsets, times and topics."""

    end: int
    firsts: Numbers
    lasts: Numbers
    times: Numbers
    codes: Numbers


class Births:
    """Looks up messages. `topics` are the names of the codes it gives; more are added as it meets them."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._codes = Topics(lambda _: True)
        self._blocks: OrderedDict[int, _Block] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def topics(self) -> list[str]:
        """Topics by their codes."""
        return self._codes.names

    def find(self, offsets: Numbers) -> tuple[Numbers, Numbers]:
        """The time of publishing and the topic's code of each message, UNKNOWN for those that are gone.

        Raises StorageError.
        """
        times = np.full(len(offsets), UNKNOWN, np.int64)
        codes = np.full(len(offsets), UNKNOWN, np.int64)
        order = np.argsort(offsets, kind="stable")
        ordered = offsets[order]
        at = int(np.searchsorted(ordered, self._follower.committed().earliest))
        with self._lock:
            while at < len(ordered):
                held = self._block(int(ordered[at]))
                after = int(np.searchsorted(ordered, held.end))
                times[order[at:after]], codes[order[at:after]] = _found(held, ordered[at:after])
                at = max(after, at + 1)
        return times, codes

    def _block(self, offset: int) -> _Block:
        first, end = block(self._follower, offset)
        held = self._blocks.get(first)
        if held is None or held.end < end:
            held = self._blocks[first] = self._load(first, end)
            if len(self._blocks) > BLOCKS_MAX:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(first)
        return held

    def _load(self, first: int, end: int) -> _Block:
        pieces: list[Numbers] = []
        for found in self._follower.walk(first, end, Choice(BATCHES, self._codes)):
            if not isinstance(found, Gone):
                pieces.append(table_of(found)[:, [OFFSET, ROWS, TIMESTAMP, CODE]].copy())
        table = np.concatenate(pieces) if pieces else np.empty((0, 4), np.int64)
        firsts, rows, times, codes = (np.ascontiguousarray(table[:, column]) for column in range(4))
        return _Block(end, firsts, firsts + rows - 1, times, codes)


def _found(held: _Block, offsets: Numbers) -> tuple[Numbers, Numbers]:
    place = np.searchsorted(held.firsts, offsets, side="right") - 1
    if not len(held.firsts):
        nothing = np.full(len(offsets), UNKNOWN, np.int64)
        return nothing, nothing
    known: npt.NDArray[np.bool_] = (place >= 0) & (offsets <= held.lasts[place])
    return np.where(known, held.times[place], UNKNOWN), np.where(known, held.codes[place], UNKNOWN)
