"""The sections of a configuration file, one small frozen class each, with their defaults and bounds.

Knows what a user may write; not where it was written (`load`) nor what is done with it.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.broker.settings import (
    CENTURY_S,
    DAY_MS,
    DEDUP_IDS_MAX,
    WEEK_S,
    BrokerSettings,
    RetryPolicy,
    TopicSettings,
)
from headrace.config.address import Address
from headrace.config.errors import BadValue
from headrace.log.settings import LogSettings, SyncPolicy
from headrace.model.batch import Protocol

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Byte = Annotated[int, Meta(ge=0, le=255)]
Attempts = Annotated[int, Meta(ge=1, le=65535)]
UpToASecondMs = Annotated[int, Meta(ge=0, le=1000)]
UpToAWeekS = Annotated[int, Meta(ge=0, le=WEEK_S)]
UpToADayMs = Annotated[int, Meta(ge=0, le=DAY_MS)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every section is: frozen, built by keyword, strict about names."""


class ListenSection(Section, frozen=True, kw_only=True):
    """Where each listener binds; None is switched off."""

    blipmq: Address | None = Address("127.0.0.1", 5555)
    sspq: Address | None = Address("127.0.0.1", 8888)
    fujin: Address | None = Address("127.0.0.1", 4848)
    fujin_tcp: Address | None = None
    grpc: Address | None = Address("127.0.0.1", 50051)
    http: Address | None = Address("127.0.0.1", 9100)
    flight: Address | None = Address("127.0.0.1", 8815)

    def addresses(self) -> dict[str, Address]:
        """The listeners that are switched on, by name."""
        found = msgspec.structs.asdict(self)
        return {name: address for name, address in found.items() if address is not None}


class LogSection(Section, frozen=True, kw_only=True):
    """How messages reach the disk and how long they stay."""

    sync: str = "always"
    segment_bytes: Annotated[int, Meta(ge=4096, le=1 << 40)] = 256 << 20
    retention_s: Natural = 604800
    retention_hard: bool = False
    tail_cache_bytes: Natural = 64 << 20
    snapshot_bytes: Annotated[int, Meta(ge=4096)] = 64 << 20
    fill_bytes: Annotated[int, Meta(ge=0, le=1 << 30)] = 1 << 20
    scrub_bytes_s: Annotated[int, Meta(ge=0, le=1 << 40)] = 4 << 20
    scrub_every_s: Annotated[int, Meta(ge=1, le=CENTURY_S)] = 86400

    def __post_init__(self) -> None:
        try:
            SyncPolicy.parse(self.sync)
        except ValueError as error:
            raise BadValue("sync", str(error)) from None


class RetrySection(Section, frozen=True, kw_only=True):
    """What happens to a delivery nobody acknowledges."""

    max_attempts: Attempts = 3
    backoff_ms: UpToADayMs = 100
    ack_wait_ms: UpToADayMs = 30_000


class BrokerSection(Section, frozen=True, kw_only=True):
    """Bounds of a subscription, and for how long ids of messages are remembered."""

    subscription_expiry_s: Annotated[int, Meta(ge=1, le=CENTURY_S)] = 86400
    qos0_pending_max: Annotated[int, Meta(ge=1, le=1 << 40)] = 100_000
    inflight_max: Annotated[int, Meta(ge=1, le=1 << 40)] = 100_000
    dedup_s: UpToAWeekS = 0
    dedup_ids_max: Annotated[int, Meta(ge=1, le=DEDUP_IDS_MAX)] = 1_000_000


class TopicSection(Section, frozen=True, kw_only=True):
    """One topic's own rules; None is the general one, no TTL and no delay are 0."""

    ttl_s: Annotated[int, Meta(ge=0, le=CENTURY_S)] = 0
    delay_ms: Annotated[int, Meta(ge=0, le=CENTURY_S * 1000)] = 0
    max_attempts: Attempts | None = None
    backoff_ms: UpToADayMs | None = None
    dedup_s: UpToAWeekS | None = None


class LimitsSection(Section, frozen=True, kw_only=True):
    """What one peer, or all together, may cost."""

    connections_max: Positive = 10_000
    connections_per_address_max: Positive = 4096
    connections_per_key_max: Natural = 8192
    streams_per_key_max: Natural = 4096
    streams_per_address_max: Natural = 4096
    topics_per_key_max: Natural = 10_000
    subscriptions_per_key_max: Natural = 10_000
    readers_per_key_max: Natural = 1000
    writers_per_key_max: Natural = 10_000
    uploads_per_key_max: Natural = 256
    staged_bytes_per_key_max: Natural = 16 << 30
    staged_files_per_key_max: Natural = 10_000
    staging_free_bytes_min: Natural = 1 << 30
    messages_per_key_s: Natural = 0
    bytes_per_key_s: Natural = 0
    messages_per_address_s: Natural = 0
    bytes_per_address_s: Natural = 0
    write_buffer_max: Annotated[int, Meta(ge=65536)] = 4 << 20
    pending_bytes_max: Annotated[int, Meta(ge=1 << 20)] = 64 << 20
    write_timeout_s: Seconds = 60
    auth_timeout_s: Seconds = 10
    auth_failures_max: Positive = 5
    drain_timeout_s: Seconds = 10


class KeyEntry(Section, frozen=True, kw_only=True):
    """One API key: the key itself or its hash, with a name and the topics it is good for.

    An entry that lists neither `publish` nor `subscribe` may do everything; one that lists either may do only
    what it lists. With `metrics` it may read the metrics, which tell of all topics; alone, nothing but them.
    """

    name: str = ""
    key: str = ""
    hash: str = ""
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    metrics: bool = False

    def __post_init__(self) -> None:
        if bool(self.key) == bool(self.hash):
            raise BadValue("hash", "an entry needs exactly one of key and hash")

    def __repr__(self) -> str:
        scope = f"publish={self.publish!r}, subscribe={self.subscribe!r}, metrics={self.metrics}"
        return f"KeyEntry(name={self.name!r}, {scope})"


class CertificateEntry(Section, frozen=True, kw_only=True):
    """One client certificate that gets in without a key: its common name, and topics as in a KeyEntry."""

    name: Annotated[str, Meta(min_length=1)]
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    metrics: bool = False


class AuthSection(Section, frozen=True, kw_only=True):
    """Who gets in. Empty: nobody. An entry of `api_keys` with a name also names the certificate of that name."""

    api_keys: tuple[str | KeyEntry, ...] = ()
    certificates: tuple[CertificateEntry, ...] = ()

    def __repr__(self) -> str:
        return f"AuthSection({len(self.api_keys)} keys, {len(self.certificates)} certificates)"


class TlsSection(Section, frozen=True, kw_only=True):
    """Certificate files; with `client_ca` every client must show a certificate signed by it, which an entry names."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise BadValue("key" if self.cert else "cert", "cert and key must be set together")
        if self.client_ca and not self.cert:
            raise BadValue("client_ca", "client certificates need cert and key")


class HttpSection(Section, frozen=True, kw_only=True):
    """The API, the metrics and the health probes."""

    allow_unauthenticated: bool = False
    metrics_unauthenticated: bool = False
    metrics_topics_max: Annotated[int, Meta(ge=0, le=10_000)] = 100
    body_max: Positive = 1 << 20


class FlightSection(Section, frozen=True, kw_only=True):
    """The log feed for Spark and other Arrow clients."""

    allow_unauthenticated: bool = False


class BlipmqSection(Section, frozen=True, kw_only=True):
    """The BlipMQ door."""

    poll_wait_ms: UpToASecondMs = 2


class SspqSection(Section, frozen=True, kw_only=True):
    """The SSPQ door."""

    topic: Annotated[str, Meta(min_length=1)] = "sspq"
    dead_letter: bool = True
    force_retries: Byte | None = None
    max_payload: Annotated[int, Meta(ge=1, le=512 << 20)] = 16 << 20
    allow_unauthenticated: bool = False


class FujinSection(Section, frozen=True, kw_only=True):
    """The Fujin door; without a word about headers the dialect decides."""

    dialect: Literal["document", "reference"] = "document"
    write_headers: Literal["auto", "always", "never"] | None = None
    ping_interval_s: Seconds = 2
    ping_timeout_s: Seconds = 5
    stop_timeout_s: Seconds = 15
    datagram_max: Annotated[int, Meta(ge=1200, le=65507)] = 1350
    fetch_wait_ms: UpToADayMs = 500
    push_window: Annotated[int, Meta(ge=1, le=1 << 20)] = 4096
    message_max: Annotated[int, Meta(ge=1, le=256 << 20)] = 16 << 20
    headers_max: Annotated[int, Meta(ge=0, le=16 << 20)] = 64 << 10
    transaction_max: Annotated[int, Meta(ge=1, le=512 << 20)] = 16 << 20
    routes: dict[str, str] = {}
    allow_unauthenticated: bool = False


class GrpcqSection(Section, frozen=True, kw_only=True):
    """The grpcq door."""

    payload_max: Positive = 262144
    request_max: Annotated[int, Meta(ge=1024, le=1 << 30)] = 4 << 20
    max_attempts: Attempts = 3
    ack_wait_ms: Annotated[int, Meta(ge=1, le=DAY_MS)] = 30_000
    dedup_s: UpToAWeekS = 600
    allow_unauthenticated: bool = False


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration, composed once at start. Only `cli` and `server/node.py` read it."""

    data_dir: Annotated[str, Meta(min_length=1)] = "headrace-data"
    listen: ListenSection = ListenSection()
    log: LogSection = LogSection()
    retry: RetrySection = RetrySection()
    broker: BrokerSection = BrokerSection()
    limits: LimitsSection = LimitsSection()
    auth: AuthSection = AuthSection()
    tls: TlsSection = TlsSection()
    http: HttpSection = HttpSection()
    flight: FlightSection = FlightSection()
    topics: dict[str, TopicSection] = {}
    blipmq: BlipmqSection = BlipmqSection()
    sspq: SspqSection = SspqSection()
    fujin: FujinSection = FujinSection()
    grpcq: GrpcqSection = GrpcqSection()

    def log_settings(self) -> LogSettings:
        """What the log is opened with."""
        given = msgspec.structs.asdict(self.log)
        return LogSettings(**given | {"sync": SyncPolicy.parse(self.log.sync)})

    def broker_settings(self) -> BrokerSettings:
        """What the broker is made with."""
        return BrokerSettings(
            retry=RetryPolicy(**msgspec.structs.asdict(self.retry)),
            topics={name: TopicSettings(**msgspec.structs.asdict(own)) for name, own in self.topics.items()},
            dedup_door_s={Protocol.GRPCQ: self.grpcq.dedup_s},
            **msgspec.structs.asdict(self.broker),
        )
