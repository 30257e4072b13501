"""How a log is kept: when it syncs, how big segments grow, what is remembered, when it is deleted."""

from dataclasses import dataclass
from enum import Enum

MIB = 1 << 20
_LEAST = {"segment_bytes": 4096, "retention_s": 0, "tail_cache_bytes": 0, "snapshot_bytes": 1, "fill_bytes": 0}
_LEAST |= {"scrub_bytes_s": 0, "scrub_every_s": 1}


class SyncMode(Enum):
    """When written records are forced to stable storage."""

    ALWAYS = "always"
    EVERY_N = "every_n"
    INTERVAL_MS = "interval_ms"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """When a flush syncs. What a power failure may take: nothing, the last `n` messages, the last `n`
    milliseconds, or all since the last segment or snapshot."""

    mode: SyncMode = SyncMode.ALWAYS
    n: int = 0

    @classmethod
    def parse(cls, text: str) -> "SyncPolicy":
        """The policy written as in the configuration.

        Raises ValueError, naming what is allowed.
        """
        name, colon, number = text.partition(":")
        if name in (SyncMode.ALWAYS.value, SyncMode.NONE.value) and not colon:
            return cls(SyncMode(name))
        if name in (SyncMode.EVERY_N.value, SyncMode.INTERVAL_MS.value):
            if number.isdecimal() and 0 < int(number) <= 1_000_000_000:
                return cls(SyncMode(name), int(number))
            raise ValueError(f"sync = {text!r}: {name} needs a number from 1, as in {name}:100")
        raise ValueError(f"sync = {text!r}: use always, every_n:N, interval_ms:N or none")

    def __str__(self) -> str:
        return f"{self.mode.value}:{self.n}" if self.n else self.mode.value

    def wants_sync(self, unsynced_messages: int, waited_us: int) -> bool:
        """Whether to sync now that so much is unsynced and the oldest of it waited so long."""
        if self.mode is SyncMode.ALWAYS:
            return True
        if self.mode is SyncMode.EVERY_N:
            return unsynced_messages >= self.n
        return self.mode is SyncMode.INTERVAL_MS and waited_us >= 1000 * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The [log] section of the configuration."""

    sync: SyncPolicy = SyncPolicy()
    segment_bytes: int = 256 * MIB
    retention_s: int = 604_800
    retention_hard: bool = False
    tail_cache_bytes: int = 64 * MIB
    snapshot_bytes: int = 64 * MIB
    fill_bytes: int = MIB
    scrub_bytes_s: int = 4 * MIB
    scrub_every_s: int = 86_400

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least {least}")
