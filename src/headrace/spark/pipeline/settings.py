"""What a pipeline is told: where the broker is, where the lake is, how often to write."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.feed.client import DEFAULT_ENDPOINT, FeedClient

READER_PREFIX = "pipeline:"
SESSION: Mapping[str, str] = {
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""Spark settings that suit many small queries in one session: no query waits behind another's tasks, and none runs
without news. A cluster that is to share the work of the aggregates wants more shuffle partitions from the beginning:
a checkpoint keeps the number it was made with."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One pipeline's settings. `form` is the table format; `tls_roots` a file of certificates or nothing."""

    lake: Path
    form: str = "parquet"
    endpoint: str = DEFAULT_ENDPOINT
    key: str | None = field(default=None, repr=False)
    tls_roots: str | None = None
    prompt_every_s: float = 0.2
    """How often `messages` is brought up to date; less would leave the other tables, and the broker, no time."""
    every_s: float = 5.0
    """How often the tables other than `messages` are brought up to date."""
    offsets_max: int = 1_000_000
    """How much of the log one micro-batch takes at most."""
    duplicates_within: str = "10 minutes"
    """How long an envelope's message id is remembered."""
    late_by: str = "2 minutes"
    """How long after its end a minute is kept open for messages that are out of order."""
    lossy: bool = False
    """Whether to go on when the log no longer has what a table still lacks."""

    def connection(self) -> dict[str, str]:
        """The options of `format("headrace")` that say where the broker is."""
        given = {"endpoint": self.endpoint, "key": self.key, "tlsRoots": self.tls_roots}
        return {name: value for name, value in given.items() if value}

    def client(self, retry_s: float = 5.0) -> FeedClient:
        """A client of the broker's feed."""
        ca = Path(self.tls_roots).read_bytes() if self.tls_roots else None
        return FeedClient(self.endpoint, key=self.key, ca=ca, retry_s=retry_s)
