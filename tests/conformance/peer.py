"""The other side of a vector, whatever it is made of: sessions in memory here, a broker behind a socket elsewhere."""

from typing import Protocol


class Peer(Protocol):
    """One connection to a broker that knows the key `dev-key`, has empty topics, max_attempts 3 and backoff 100 ms."""

    def send(self, data: bytes) -> None:
        """Bytes to the broker, as one write."""

    def receive(self, size: int) -> bytes:
        """Exactly this many bytes, or fewer when the broker closes or says no more."""

    def closed(self) -> bool:
        """Whether the broker has closed the connection, having said nothing more."""

    def reconnect(self) -> None:
        """Go on with a new, silent connection to the same broker."""

    def fail(self, cause: str) -> None:
        """Needs `faults`: from now on the disk refuses every write."""

    def heal(self) -> None:
        """Needs `faults`: the disk works again."""

    def advance(self, milliseconds: int) -> None:
        """Needs `clock`: let time pass."""
