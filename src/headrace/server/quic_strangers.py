"""What clients that are not in yet may cost: memory, counted for each address and for all; and time, by taking turns.

Knows sizes and addresses, nothing of packets. What a stranger's bytes cost is qh3's account: it keeps what does not
follow on what it has byte by byte, in a tree.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.quic.datagrams import Address

T = TypeVar("T", bound=Hashable)

CONNECTION_COST = 64 << 10
BYTE_COST = 22
"""Measured: 50 KiB for a connection that is not in yet, 21 bytes for each byte that waits for those before it."""
EACH_MAX = 640 << 10
ALL_MAX = 56 << 20
WAITING_EACH_MAX = 48
WAITING_ALL_MAX = 1024
"""Datagrams that wait for their turn: at most 1.5 MiB."""


@dataclass(slots=True)
class _Account:
    """One connection's."""

    address: Address
    cost: int


class Strangers(Generic[T]):
    """The connections that are not in yet, and what they have cost so far."""

    def __init__(self, each_max: int = EACH_MAX, all_max: int = ALL_MAX) -> None:
        self._each_max = each_max
        self._all_max = all_max
        self._accounts: dict[T, _Account] = {}
        self._addresses: dict[Address, int] = {}
        self._total = 0

    def __contains__(self, who: object) -> bool:
        return who in self._accounts

    def __len__(self) -> int:
        return len(self._accounts)

    def affords(self, address: Address) -> bool:
        """Whether this address may begin another connection."""
        return self._addresses.get(address, 0) + CONNECTION_COST <= self._each_max

    def begin(self, who: T, address: Address) -> None:
        """Another one."""
        self._accounts[who] = _Account(address, 0)
        self._charge(self._accounts[who], CONNECTION_COST)

    def more(self, who: T, size: int) -> bool:
        """Bytes of this one have come; false if they are too many, and to be dropped."""
        account = self._accounts.get(who)
        if account is None:
            return True
        cost = size * BYTE_COST
        if self._addresses[account.address] + cost > self._each_max:
            return False
        self._charge(account, cost)
        return True

    def over(self, who: T) -> None:
        """It is in, or gone."""
        account = self._accounts.pop(who, None)
        if account is not None:
            self._charge(account, -account.cost)
            if not self._addresses[account.address]:
                del self._addresses[account.address]

    def excess(self) -> T | None:
        """Whom to send away while all together cost too much: who costs most, of those the first to come."""
        if self._total <= self._all_max:
            return None
        return max(self._accounts, key=lambda who: self._accounts[who].cost)

    def _charge(self, account: _Account, cost: int) -> None:
        account.cost += cost
        self._addresses[account.address] = self._addresses.get(account.address, 0) + cost
        self._total += cost


class Queue:
    """Datagrams of strangers that wait until there is time for them; each address has its turn, then the next has.

    What does not fit is dropped, as the network might have: whoever means it sends it again.
    """

    def __init__(self, each_max: int = WAITING_EACH_MAX, all_max: int = WAITING_ALL_MAX) -> None:
        self._each_max = each_max
        self._all_max = all_max
        self._waiting: dict[Address, deque[bytes]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, address: Address, datagram: bytes) -> None:
        """Let it wait where there is room."""
        line = self._waiting.get(address)
        if self._size >= self._all_max or (line is not None and len(line) >= self._each_max):
            return
        if line is None:
            line = self._waiting[address] = deque()
        line.append(datagram)
        self._size += 1

    def take(self) -> tuple[Address, bytes]:
        """The next one. Raises LookupError where none waits."""
        address, line = next(iter(self._waiting.items()), (None, None))
        if address is None or line is None:
            raise LookupError("nothing waits")
        datagram = line.popleft()
        self._size -= 1
        del self._waiting[address]
        if line:
            self._waiting[address] = line
        return address, datagram
