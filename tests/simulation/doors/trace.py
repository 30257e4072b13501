"""What happened, in order: told apart from another run by its digest, and told to a human by its last lines."""

import hashlib
from collections import deque

KEPT = 400


class Trace:
    """Everything that crosses a border of the world is noted here."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._last: deque[str] = deque(maxlen=KEPT)

    def note(self, time: float, who: str, what: str, data: bytes = b"") -> None:
        """Something happened."""
        line = f"{time:.6f} {who} {what}"
        self._digest.update(line.encode())
        self._digest.update(data)
        self._last.append(f"{line} {data[:60].hex(' ')}" if data else line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def tail(self, lines: int = 60) -> str:
        """The last things that happened."""
        return "\n".join(list(self._last)[-lines:])
