"""Which ids were seen lately: 128 bits of each, in the order in which they came, with the time of each.

The C types of every variable are in identities.pxd. An id that is a UUID as one usually writes it is its own 128 bits;
of any other they are a hash that nobody can make collide. Knows no topics, no clock and no limits.
"""

import re
from array import array
from hashlib import blake2s
from typing import Any

import cython  # type: ignore[import-untyped]

from headrace.model.batch import Buffer

Pointer = Any

COMPILED: bool = cython.compiled

ENTRY_SIZE = 24
"""Bytes that an id takes when it is written down: its 128 bits, then its time."""

_PLACES_MIN, _UUID_SIZE = 32, 36
_WORD = (1 << 64) - 1
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_GONE = -1
_TIME_MAX = (1 << 63) - 1


class Recent:
    """Ids in a ring, oldest first, and a table that finds their places in it by open addressing.

    first, last   the numbers of the oldest entry and of the next; an entry's place is its number modulo `places`
    count         ids remembered: entries taken back leave their place with the time -1 until it is the oldest
    slots         twice as many as places, each a place plus one, 0 for none; a free one follows every run

    Where a run begins is told by two secret multipliers, so that nobody can choose ids that all begin in one.
    """

    def __init__(self) -> None:
        self.first = self.last = self.count = 0
        self.odd_high = hash(b"high") & _WORD | 1
        self.odd_low = hash(b"low") & _WORD | 1
        self.places = _PLACES_MIN
        self.shift = 0
        self.words: Any = None
        self.times: Any = None
        self.slots: Any = None
        _make_room(self, 0)


def digest_ids(buf: Buffer, ends_at: int, count: int) -> Any:
    """The 128 bits of each cell of a column of ids, as two words, the first 0 for an empty cell.

    The column's ends begin at `ends_at`.
    """
    words = array("Q", bytes(16 * count))
    cells_at = ends_at + ((4 * (count + 1) + 7) & ~7)
    data = _pointer(buf)
    _digest_all(data, ends_at, cells_at, count, words)
    return words


def _pointer(buf: Buffer) -> Pointer:
    if cython.compiled:
        return cython.address(buf[0])
    return buf


def _digest_all(data: Pointer, ends_at: int, cells_at: int, count: int, words: Any) -> None:
    for i in range(count):
        at = cells_at + _u32(data, ends_at + 4 * i)
        size = cells_at + _u32(data, ends_at + 4 * i + 4) - at
        if size == _UUID_SIZE and _read_uuid(data, at, words, 2 * i):
            continue
        if size:
            digest = blake2s(bytes(data[at : at + size]), digest_size=16).digest()
            words[2 * i] = int.from_bytes(digest[:8]) or 1
            words[2 * i + 1] = int.from_bytes(digest[8:])


def _u32(data: Pointer, at: int) -> int:
    size: int = data[at] | data[at + 1] << 8 | data[at + 2] << 16 | data[at + 3] << 24
    return size


def _read_uuid(data: Pointer, at: int, words: Any, place: int) -> bool:
    """Take the 128 bits of a UUID in lower case; whether it was one, and not the one that is all zeros."""
    high = low = 0
    if cython.compiled:
        for i in range(36):
            byte = data[at + i]
            if i == 8 or i == 13 or i == 18 or i == 23:
                if byte != 45:
                    return False
                continue
            if 48 <= byte <= 57:
                byte -= 48
            elif 97 <= byte <= 102:
                byte -= 87
            else:
                return False
            if i < 18:
                high = high << 4 | byte
            else:
                low = low << 4 | byte
    else:
        text = bytes(data[at : at + 36])
        if not _UUID.fullmatch(text):
            return False
        digits = text.replace(b"-", b"")
        high, low = int(digits[:16], 16), int(digits[16:], 16)
    if high == 0:
        return False
    words[place] = high
    words[place + 1] = low
    return True


def admit(recent: Recent, words: Any, now: int) -> Any:
    """Remember the ids that are new, as of `now`; None when all are, else a byte for each: 1 where it was known.

    Times never go back: of an earlier `now` the time of the newest id counts. What came twice is new only once.
    """
    count = len(words) // 2
    known = None
    _make_room(recent, count)
    now = max(now, newest(recent))
    for i in range(count):
        high, low = words[2 * i], words[2 * i + 1]
        if high == 0:
            continue
        slot = _find(recent, high, low)
        if slot < 0:
            _append(recent, ~slot, high, low, now)
        else:
            if known is None:
                known = bytearray(count)
            known[i] = 1
    return known


def take_back(recent: Recent, words: Any) -> None:
    """Forget these ids, wherever they are."""
    for i in range(len(words) // 2):
        high, low = words[2 * i], words[2 * i + 1]
        slot = _find(recent, high, low) if high else -1
        if slot >= 0:
            _forget(recent, slot)


def expire(recent: Recent, until: int, at_least: int) -> int:
    """Forget the oldest ids: those of a time up to `until`, and `at_least` so many; how many that were."""
    forgotten = 0
    while recent.first < recent.last:
        place = recent.first & (recent.places - 1)
        time = recent.times[place]
        if time != _GONE:
            if time > until and forgotten >= at_least:
                break
            _forget(recent, _find(recent, recent.words[2 * place], recent.words[2 * place + 1]))
            forgotten += 1
        recent.first += 1
    return forgotten


def newest(recent: Recent) -> int:
    """The time of the newest id; 0 when there is none."""
    number, time = recent.last, _GONE
    while number > recent.first and time == _GONE:
        number -= 1
        time = recent.times[number & (recent.places - 1)]
    return max(time, 0)


def written(recent: Recent) -> bytes:
    """Every id, oldest first, ENTRY_SIZE bytes each."""
    found = array("Q", bytes(ENTRY_SIZE * recent.count))
    at = 0
    out = found
    for number in range(recent.first, recent.last):
        place = number & (recent.places - 1)
        if recent.times[place] != _GONE:
            out[at] = recent.words[2 * place]
            out[at + 1] = recent.words[2 * place + 1]
            out[at + 2] = recent.times[place]
            at += 3
    return found.tobytes()


def read(data: bytes) -> Recent:
    """The ids that were written down so, in the order of their times. What is no whole entry is left out."""
    recent = Recent()
    count = len(data) // ENTRY_SIZE
    words = array("Q", data[: count * ENTRY_SIZE])
    _make_room(recent, count)
    for i in range(count):
        high, low = words[3 * i], words[3 * i + 1]
        slot = _find(recent, high, low)
        if slot < 0 and high:
            _append(recent, ~slot, high, low, words[3 * i + 2] & _TIME_MAX)
    return recent


def _make_room(recent: Recent, count: int) -> None:
    """Have places for so many more, moving everything where there are not."""
    held = recent.last - recent.first
    if recent.slots is not None and held + count <= recent.places:
        return
    words, times, places = recent.words, recent.times, recent.places
    first, last = recent.first, recent.last
    while recent.places < recent.count + count or recent.places < _PLACES_MIN:
        recent.places *= 2
    if recent.places < 2 * (recent.count + count):
        recent.places *= 2
    size = recent.places
    recent.words, recent.times = array("Q", bytes(16 * size)), array("q", bytes(8 * size))
    recent.slots = array("I", bytes(8 * size))
    recent.shift = 63 - (size.bit_length() - 1)
    recent.first = recent.last = recent.count = 0
    for number in range(first, last):
        place = number & (places - 1)
        if times[place] != _GONE:
            slot = _find(recent, words[2 * place], words[2 * place + 1])
            _append(recent, ~slot, words[2 * place], words[2 * place + 1], times[place])


def _home(recent: Recent, high: int, low: int) -> int:
    """Where the run that an id belongs to begins."""
    mixed = high * recent.odd_high + low * recent.odd_low
    if not cython.compiled:
        mixed &= _WORD
    return mixed >> recent.shift


def _find(recent: Recent, high: int, low: int) -> int:
    """The slot of an id; if there is none the complement of where it would be."""
    words, slots = recent.words, recent.slots
    mask = 2 * recent.places - 1
    slot = _home(recent, high, low)
    while slots[slot]:
        place = slots[slot] - 1
        if words[2 * place] == high and words[2 * place + 1] == low:
            return slot
        slot = (slot + 1) & mask
    return ~slot


def _append(recent: Recent, slot: int, high: int, low: int, time: int) -> None:
    place = recent.last & (recent.places - 1)
    recent.words[2 * place] = high
    recent.words[2 * place + 1] = low
    recent.times[place] = time
    recent.slots[slot] = place + 1
    recent.last += 1
    recent.count += 1


def _forget(recent: Recent, slot: int) -> None:
    """Free a slot, closing the run behind it, and mark the place."""
    words, slots = recent.words, recent.slots
    mask = 2 * recent.places - 1
    recent.times[slots[slot] - 1] = _GONE
    recent.count -= 1
    following = (slot + 1) & mask
    while slots[following]:
        place = slots[following] - 1
        home = _home(recent, words[2 * place], words[2 * place + 1])
        if ((following - home) & mask) >= ((following - slot) & mask):
            slots[slot] = slots[following]
            slot = following
        following = (following + 1) & mask
    slots[slot] = 0
