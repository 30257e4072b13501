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

if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

Pointer = Any

COMPILED: bool = cython.compiled

ENTRY_SIZE = 24
"""Bytes that an id takes when it is written down: its 128 bits, then its time."""

_PLACES_MIN, _UUID_SIZE, _DASH = 32, 36, 45
_WORD = (1 << 64) - 1
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LOW_NIBBLES, _ONES, _SIXES, _ZERO_DIGITS = (byte * (_WORD // 0xFF) for byte in (0x0F, 0x01, 0x06, 0x30))
_EVEN_NIBBLES, _HALVES, _QUARTER = 0x000F000F000F000F, 0x0000FFFF0000FFFF, 0xFFFFFFFF
_AHEAD = 255
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
        self.touched = 0
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
    """Take the 16 bytes of a UUID in lower case; whether it was one, and does not begin with eight zeros."""
    if data[at + 8] != _DASH or data[at + 13] != _DASH or data[at + 18] != _DASH or data[at + 23] != _DASH:
        return False
    if cython.compiled:
        bad = 0
        high = _nibbles(data, at, at + 4, cython.address(bad))
        high |= _nibbles(data, at + 9, at + 14, cython.address(bad)) << 32
        low = _nibbles(data, at + 19, at + 24, cython.address(bad))
        low |= _nibbles(data, at + 28, at + 32, cython.address(bad)) << 32
        if bad:
            return False
    else:
        text = bytes(data[at : at + _UUID_SIZE])
        if not _UUID.fullmatch(text):
            return False
        raw = bytes.fromhex(text.replace(b"-", b"").decode())
        high, low = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")
    if high == 0:
        return False
    words[place] = high
    words[place + 1] = low
    return True


def _nibbles(data: Pointer, first: int, second: int, bad: Any) -> int:
    """Twice four hexadecimal digits as four bytes; `bad` becomes true where they are none in lower case.

    All eight at once: digits become numbers, and the numbers digits again, which must be the same.
    """
    assert cython.compiled, "interpreted, a regular expression does this"
    text = 0
    memcpy(cython.address(text), data + first, 4)
    memcpy(cython.cast("unsigned char*", cython.address(text)) + 4, data + second, 4)
    number = (text & _LOW_NIBBLES) + 9 * ((text >> 6) & _ONES)
    bad[0] |= (number + _ZERO_DIGITS + 39 * (((number + _SIXES) >> 4) & _ONES)) != text
    number = (number & _EVEN_NIBBLES) << 4 | (number >> 8) & _EVEN_NIBBLES
    number = (number | number >> 8) & _HALVES
    return (number | number >> 16) & _QUARTER


def admit(recent: Recent, words: Any, now: int) -> Any:
    """Remember the ids that are new, as of `now`; None when all are, else a byte for each: 1 where it was known.

    Times never go back: of an earlier `now` the time of the newest id counts. What came twice is new only once.
    """
    count = len(words) // 2
    known = None
    _make_room(recent, count)
    if cython.compiled:
        _warm(recent, words, count)
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


def _warm(recent: Recent, words: Any, count: int) -> None:
    """Have the slots that will be looked at fetched from memory, many at a time."""
    touched = 0
    for i in range(count):
        touched += recent.slots[_home(recent, words[2 * i], words[2 * i + 1])]
    recent.touched = touched


def _warm_ring(recent: Recent, first: int) -> None:
    """The same for the entries from the `first` on."""
    touched = 0
    for number in range(first, min(first + _AHEAD + 1, recent.last)):
        place = number & (recent.places - 1)
        touched += recent.slots[_home(recent, recent.words[2 * place], recent.words[2 * place + 1])]
    recent.touched = touched


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
        if cython.compiled and recent.first & _AHEAD == 0:
            _warm_ring(recent, recent.first)
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
    recent.words, recent.times = array("Q", (0,)) * (2 * size), array("q", (0,)) * size
    recent.slots = array("I", (0,)) * (2 * size)
    recent.shift = 63 - (size.bit_length() - 1)
    recent.first = recent.last = recent.count = 0
    mask = 2 * size - 1
    for number in range(first, last):
        place = number & (places - 1)
        if cython.compiled and number & _AHEAD == 0 and number + _AHEAD < last and place + _AHEAD < places:
            _warm(recent, words[2 * place : 2 * (place + _AHEAD + 1)], _AHEAD + 1)
        if times[place] != _GONE:
            slot = _home(recent, words[2 * place], words[2 * place + 1])
            while recent.slots[slot]:
                slot = (slot + 1) & mask
            _append(recent, slot, words[2 * place], words[2 * place + 1], times[place])


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
