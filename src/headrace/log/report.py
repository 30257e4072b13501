"""What was found in a log directory, as values: damage by exact offsets, torn tails, counts, what is lost for good."""

from dataclasses import dataclass, field

from headrace.model.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that were once synced and are no longer valid: offsets `first` to `first + count` are lost.

    `segment` is the name of the file, which may also be a snapshot, a catalog or a file of the staging directory.
    """

    segment: str
    start: int
    end: int
    first: int
    count: int
    detail: str = "records fail their checksum"

    def __str__(self) -> str:
        lost = f"offsets {self.first} to {self.first + self.count - 1}" if self.count else "no offsets"
        return f"{self.segment} bytes {self.start} to {self.end}: {self.detail}; {lost} lost"


@dataclass(frozen=True, slots=True)
class Loss:
    """Damage that was met, and when (0: not known); `given_up` once the operator let the log go on without it."""

    damage: Damage
    met_us: int = 0
    given_up: bool = False

    def __str__(self) -> str:
        return str(self.damage)


@dataclass(frozen=True, slots=True)
class Torn:
    """The end of the last segment that a crash left unfinished: never synced, cut off at `first`, bytes kept aside."""

    segment: str
    start: int
    end: int
    first: int
    kept_in: str = ""

    def __str__(self) -> str:
        kept = f", kept in {self.kept_in}" if self.kept_in else ""
        return f"{self.segment} bytes {self.start} to {self.end}: unfinished write from offset {self.first} on{kept}"


@dataclass(slots=True)
class Report:
    """The state of a log directory. The counts are of what was walked: everything by verify, the end by start-up.

    `lost` are offsets that an earlier repair gave up; `superseded_bytes` follow a place where a disk error made the log
    go on in a new segment. `notes` are findings that change no answer: what was bad could be had from elsewhere.
    `losses` is what the catalog remembers of earlier damage.
    """

    segments: int = 0
    records: int = 0
    messages: int = 0
    events: int = 0
    lost: int = 0
    valid_bytes: int = 0
    superseded_bytes: int = 0
    first_offset: int = 0
    next_offset: int = 0
    log_id: str = ""
    epoch: int = 0
    damage: list[Damage] = field(default_factory=list)
    torn: list[Torn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    rebuilt_indexes: list[str] = field(default_factory=list)
    kept_aside: list[str] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Whether nothing that was ever synced is missing, but for what was given up before."""
        return not self.damage


class LogDamaged(HeadraceError):
    """The log lost records that were once synced; it opens only by the operator's explicit word."""

    def __init__(self, report: Report) -> None:
        lines = "; ".join(map(str, report.damage))
        super().__init__(f"the log is damaged: {lines}. `headrace log repair` keeps everything else")
        self.report = report
