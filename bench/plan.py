"""What is measured: every scenario, the variants it runs on and the figure that decides which run was best."""

from dataclasses import dataclass
from enum import StrEnum

MIB = 1 << 20
LEAD_MESSAGES_MAX = 262_144
LEAD_BYTES_MAX = 32 * MIB
QOS0_LEAD = 50_000
LATENCY_RATE = 20_000
LATENCY_POLL_US = 1500
SECONDARY_REPEATS = 2

OURS = ("headrace", "headrace-pure", "headrace-nosync")
PEERS = ("redis-always", "redis-everysec", "redis-none", "jetstream", "nats-core")
STORING = ("headrace", "headrace-pure", "redis-always", "jetstream")
SSPQ = ("sspq", "sspq-pure")
FUJIN = ("fujin", "fujin-pure", "fujin-tcp", "fujin-tcp-pure")
GRPCQ = ("grpcq", "grpcq-pure")
CHOSEN = ("headrace", "headrace-pure", "redis-always", "jetstream", "nats-core")


class Figure(StrEnum):
    """The figure a scenario is about."""

    PUBLISHED = "messages published/s"
    DELIVERED = "messages delivered and acked/s"
    LATENCY = "µs from due to delivered, p99"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One shape of load."""

    name: str
    title: str
    shape: str
    figure: Figure
    variants: tuple[str, ...]
    size: int = 100
    qos: int = 1
    topics: int = 1
    fanout: int = 1
    rate: int = 0
    poll_us: int = 0
    backlog: int = 0
    publishing: bool = False
    spin: bool = False
    repeats: int = 0
    seconds_factor: float = 1.0

    @property
    def lead(self) -> int:
        """How many messages the publisher may be ahead of the slowest consumer."""
        return QOS0_LEAD if self.qos == 0 else min(LEAD_MESSAGES_MAX, LEAD_BYTES_MAX // self.size)

    def arguments(self, seconds: float) -> list[str]:
        """What the load client is told about the shape."""
        given: dict[str, object] = {
            "scenario": self.shape,
            "size": self.size,
            "qos": self.qos,
            "topics": self.topics,
            "fanout": self.fanout,
            "backlog": self.backlog,
            "lead": self.lead,
            "seconds": round(seconds * self.seconds_factor, 3),
        }
        if self.rate:
            given["rate"] = self.rate
        if self.poll_us:
            given["poll-us"] = self.poll_us
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        return words + ["--publishing"] * self.publishing + ["--spin"] * self.spin


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A backlog left in the broker: its memory, the restart on it, and draining it afterwards."""

    name: str
    title: str
    messages: int
    size: int = 100


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything one invocation measures."""

    scenarios: tuple[Scenario, ...]
    storages: tuple[Storage, ...]
    seconds: float
    repeats: int
    disk_s: float

    def repeats_of(self, scenario: Scenario) -> int:
        """How often each variant of a scenario runs."""
        return min(scenario.repeats or self.repeats, self.repeats)

    def scenarios_of(self, turn: int) -> list[Scenario]:
        """What is run in a turn: each scenario once, so that its runs are minutes apart, until it has had its share."""
        return [scenario for scenario in self.scenarios if turn < self.repeats_of(scenario)]


def _publish(size: int, variants: tuple[str, ...], repeats: int = 0) -> Scenario:
    return Scenario(
        name=f"publish-{size}",
        title=f"publish alone, {_bytes(size)}",
        shape="publish",
        figure=Figure.PUBLISHED,
        variants=variants,
        size=size,
        repeats=repeats,
    )


def _end_to_end(size: int, variants: tuple[str, ...], repeats: int = 0) -> Scenario:
    return Scenario(
        name=f"e2e-{size}",
        title=f"end to end with acks, {_bytes(size)}",
        shape="e2e",
        figure=Figure.DELIVERED,
        variants=variants,
        size=size,
        repeats=repeats,
    )


def _bytes(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"


QOS0 = Scenario(
    name="e2e-qos0",
    title="end to end, 100 B, QoS 0",
    shape="e2e",
    figure=Figure.DELIVERED,
    variants=("headrace", "headrace-nosync"),
    qos=0,
    repeats=SECONDARY_REPEATS,
)
FANOUT = Scenario(
    name="fanout-10",
    title="fan-out 1 → 10, 100 B",
    shape="e2e",
    figure=Figure.DELIVERED,
    variants=CHOSEN,
    fanout=10,
    repeats=SECONDARY_REPEATS,
)
TOPICS = Scenario(
    name="topics-100",
    title="100 topics round-robin, 100 B",
    shape="e2e",
    figure=Figure.DELIVERED,
    variants=CHOSEN,
    topics=100,
    repeats=SECONDARY_REPEATS,
)
LATENCY = Scenario(
    name="latency-20k",
    title=f"latency at {LATENCY_RATE // 1000} k messages/s, 100 B",
    shape="latency",
    figure=Figure.LATENCY,
    variants=("headrace", "headrace-pure", "headrace-nosync", "redis-always", "jetstream", "nats-core"),
    rate=LATENCY_RATE,
    poll_us=LATENCY_POLL_US,
    seconds_factor=1.5,
)


def _drain(backlog: int) -> Scenario:
    return Scenario(
        name="drain",
        title=f"drain a backlog of {backlog // 1000} k × 100 B",
        shape="drain",
        figure=Figure.DELIVERED,
        variants=STORING,
        backlog=backlog,
        repeats=SECONDARY_REPEATS,
    )


def _drain_busy(backlog: int) -> Scenario:
    return Scenario(
        name="drain-busy",
        title=f"publish while a backlog of {_millions(backlog)} × 100 B drains",
        shape="drain",
        figure=Figure.PUBLISHED,
        variants=("headrace",),
        backlog=backlog,
        publishing=True,
        repeats=SECONDARY_REPEATS,
    )


def _sspq_publish(size: int, repeats: int = 0) -> Scenario:
    return Scenario(
        name=f"sspq-publish-{size}",
        title=f"SSPQ: publish alone, {_bytes(size)}",
        shape="publish",
        figure=Figure.PUBLISHED,
        variants=SSPQ,
        size=size,
        repeats=repeats,
    )


def _sspq_round_trips(backlog: int) -> Scenario:
    return Scenario(
        name="sspq-round-trips",
        title="SSPQ: receive and confirm one by one on one connection, 100 B",
        shape="drain",
        figure=Figure.DELIVERED,
        variants=SSPQ,
        backlog=backlog,
        spin=True,
        repeats=SECONDARY_REPEATS,
    )


def _fujin_publish(size: int, variants: tuple[str, ...] = FUJIN) -> Scenario:
    return Scenario(
        name=f"fujin-publish-{size}",
        title=f"Fujin: pipelined WRITEs, {_bytes(size)}",
        shape="publish",
        figure=Figure.PUBLISHED,
        variants=variants,
        size=size,
        repeats=SECONDARY_REPEATS,
    )


def _fujin_push(backlog: int, variants: tuple[str, ...] = FUJIN) -> Scenario:
    return Scenario(
        name="fujin-push",
        title="Fujin: one push reader with ACKs, 100 B",
        shape="drain",
        figure=Figure.DELIVERED,
        variants=variants,
        backlog=backlog,
        repeats=SECONDARY_REPEATS,
    )


FUJIN_END_TO_END = Scenario(
    name="fujin-e2e-100",
    title="Fujin: end to end with ACKs, 100 B",
    shape="e2e",
    figure=Figure.DELIVERED,
    variants=("fujin-tcp", "fujin-tcp-pure"),
    repeats=SECONDARY_REPEATS,
)


def _grpcq_publish(variants: tuple[str, ...] = (*GRPCQ, "grpcq-unary"), size: int = 100) -> Scenario:
    return Scenario(
        name=f"grpcq-publish-{size}",
        title=f"grpcq: publish alone, {_bytes(size)} of payload",
        shape="publish",
        figure=Figure.PUBLISHED,
        variants=variants,
        size=size,
        repeats=SECONDARY_REPEATS,
    )


def _grpcq_stream(backlog: int) -> Scenario:
    return Scenario(
        name="grpcq-stream",
        title="grpcq: one stream with acks, 100 B of payload",
        shape="drain",
        figure=Figure.DELIVERED,
        variants=GRPCQ,
        backlog=backlog,
        repeats=SECONDARY_REPEATS,
    )


def _storage(messages: int, size: int, title: str) -> Storage:
    return Storage(name=f"backlog-{_millions(messages)}-{size}", title=title, messages=messages, size=size)


def _millions(count: int) -> str:
    return f"{count / 1e6:g}M"


def full_plan(seconds: float, repeats: int) -> Plan:
    """Every scenario on every broker it makes sense for: about ten minutes."""
    return Plan(
        scenarios=(
            LATENCY,
            _end_to_end(100, OURS + PEERS),
            _publish(100, OURS + PEERS),
            _end_to_end(1024, OURS + PEERS),
            _end_to_end(16, CHOSEN, SECONDARY_REPEATS),
            _end_to_end(16384, CHOSEN, SECONDARY_REPEATS),
            _publish(16, ("headrace", "nats-core"), SECONDARY_REPEATS),
            _publish(1024, ("headrace", "nats-core"), SECONDARY_REPEATS),
            _publish(16384, ("headrace", "nats-core"), SECONDARY_REPEATS),
            QOS0,
            FANOUT,
            TOPICS,
            _drain(200_000),
            _drain_busy(5_000_000),
            _sspq_publish(100),
            _sspq_publish(1024, SECONDARY_REPEATS),
            _sspq_round_trips(30_000),
            _fujin_publish(100),
            _fujin_publish(65535, ("fujin", "fujin-tcp")),
            _fujin_push(500_000),
            FUJIN_END_TO_END,
            _grpcq_publish(),
            _grpcq_publish(GRPCQ[:1], 1024),
            _grpcq_stream(200_000),
        ),
        storages=(
            _storage(1_000_000, 100, "1 M × 100 B"),
            _storage(5_000_000, 100, "5 M × 100 B"),
            _storage(1_048_576, 1024, "1 GiB of 1 KiB messages"),
        ),
        seconds=seconds,
        repeats=repeats,
        disk_s=2.0,
    )


def quick_plan(seconds: float, repeats: int) -> Plan:
    """The same questions with fewer peers and shorter runs, in one to two minutes."""
    return Plan(
        scenarios=(
            LATENCY,
            _end_to_end(100, (*OURS, "redis-always", "jetstream", "nats-core")),
            _publish(100, ("headrace", "headrace-pure", "nats-core")),
            _end_to_end(1024, ("headrace", "nats-core")),
            FANOUT,
            TOPICS,
            _drain_busy(1_000_000),
            _sspq_publish(100),
            _sspq_round_trips(10_000),
            _fujin_publish(100, ("fujin", "fujin-tcp")),
            _fujin_push(200_000, ("fujin", "fujin-tcp")),
            FUJIN_END_TO_END,
            _grpcq_publish(("grpcq", "grpcq-unary")),
            _grpcq_stream(100_000),
        ),
        storages=(_storage(1_000_000, 100, "1 M × 100 B"),),
        seconds=seconds,
        repeats=repeats,
        disk_s=1.0,
    )
