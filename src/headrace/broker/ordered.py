"""Keys kept in order, so that a page of them costs what the page holds and not what there is. Knows no broker."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

BLOCK_MAX = 1024

K = TypeVar("K", str, tuple[str, int], tuple[str, str])


class Ordered(Generic[K]):
    """A sorted set in blocks, none of which is empty: a change moves the keys of one block, not all of them."""

    __slots__ = ("_blocks", "_firsts", "_size")

    def __init__(self) -> None:
        self._blocks: list[list[K]] = []
        self._firsts: list[K] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for block in self._blocks:
            yield from block

    def add(self, key: K) -> None:
        """Take in a key that is not there."""
        self._size += 1
        if not self._blocks:
            self._blocks.append([key])
            self._firsts.append(key)
            return
        number = self._block_of(key)
        block = self._blocks[number]
        insort(block, key)
        self._firsts[number] = block[0]
        if len(block) > BLOCK_MAX:
            half = len(block) // 2
            self._blocks.insert(number + 1, block[half:])
            self._firsts.insert(number + 1, block[half])
            del block[half:]

    def remove(self, key: K) -> None:
        """Take out a key that is there."""
        self._size -= 1
        number = self._block_of(key)
        block = self._blocks[number]
        del block[bisect_left(block, key)]
        if block:
            self._firsts[number] = block[0]
        else:
            del self._blocks[number], self._firsts[number]

    def page(self, start: K, limit: int) -> list[K]:
        """The first keys from `start` on, itself included, at most so many."""
        found: list[K] = []
        if not self._blocks:
            return found
        number = self._block_of(start)
        at = bisect_left(self._blocks[number], start)
        while len(found) < limit and number < len(self._blocks):
            found += self._blocks[number][at : at + limit - len(found)]
            number += 1
            at = 0
        return found

    def _block_of(self, key: K) -> int:
        """The last block that begins with this key or one before it, else the first."""
        number = bisect_left(self._firsts, key)
        if number < len(self._firsts) and self._firsts[number] == key:
            return number
        return max(0, number - 1)
