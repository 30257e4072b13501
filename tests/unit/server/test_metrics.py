"""Counters read at scrape time, and a label set that data cannot grow."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker.views import Counters, ReaderInfo, SubscriptionInfo, TopicInfo
from headrace.server.engine import Engine
from headrace.server.metrics import BOUNDS_S, Histogram, Metrics


@dataclass
class StubBroker:
    counters: Counters
    topic_infos: list[TopicInfo] = field(default_factory=list)
    subscription_infos: list[SubscriptionInfo] = field(default_factory=list)
    reader_infos: list[ReaderInfo] = field(default_factory=list)

    def topics(self) -> list[TopicInfo]:
        return self.topic_infos

    def subscriptions(self) -> list[SubscriptionInfo]:
        return self.subscription_infos

    def following(self) -> list[ReaderInfo]:
        return self.reader_infos


@dataclass
class StubLog:
    appends_total: int = 11
    bytes_total: int = 1200
    pending_bytes: int = 5
    next_offset: int = 40
    durable_offset: int = 39
    failing: object | None = None


@dataclass
class StubEngine:
    broker: StubBroker
    log: StubLog = field(default_factory=StubLog)
    connections: int = 3
    refused_total: int = 2
    ready: bool = True
    sync_seconds: Histogram = field(default_factory=Histogram)
    durable_seconds: Histogram = field(default_factory=Histogram)


def counters() -> Counters:
    return Counters(
        published=100, delivered=90, redelivered=8, acked=80, nacked=1, expired=2, dead=3, dropped=4, inflight=5
    )


def topic(name: str, published: int) -> TopicInfo:
    return TopicInfo(name=name, published=published, end=published, subscriptions=1)


def subscription(topic: str, pending: int) -> SubscriptionInfo:
    zeros = dict.fromkeys(
        ("cursor", "attempts", "delivered", "redelivered", "acked", "nacked", "expired", "dead", "dropped"), 0
    )
    return SubscriptionInfo(
        id=1, topic=topic, name="", owner="o", qos=1, pending=pending, deferred=1, in_flight=1,
        waiting_consumers=0, last_used_us=0, **zeros,
    )  # fmt: skip


def scrape(engine: StubEngine, topics_max: int = 100) -> dict[tuple[str, str], float]:
    """Every sample by name and by the value of its topic or bucket label."""
    text = Metrics(cast(Engine, engine), topics_max=topics_max, kernels_compiled=False).exposition().decode()
    return {
        (sample.name, sample.labels.get("topic", sample.labels.get("le", ""))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_names_blipmq_had_are_there_under_our_prefix() -> None:
    found = scrape(StubEngine(StubBroker(counters(), [topic("a", 100)], [subscription("a", 7)])))
    for name, value in {
        "topics": 1,
        "subscribers": 1,
        "messages_published_total": 100,
        "messages_delivered_total": 90,
        "messages_inflight": 5,
        "wal_appends_total": 11,
        "wal_bytes_total": 1200,
    }.items():
        assert found[f"headrace_{name}", ""] == value


def test_every_outcome_of_a_message_is_counted() -> None:
    found = scrape(StubEngine(StubBroker(counters())))
    for name, value in {
        "acked": 80, "redelivered": 8, "nacked": 1, "expired": 2, "dead": 3, "dropped": 4, "refused": 2,
    }.items():  # fmt: skip
        assert found[f"headrace_messages_{name}_total", ""] == value
    assert found["headrace_connections", ""] == 3
    assert found["headrace_ready", ""] == 1
    assert found["headrace_wal_failing", ""] == 0


def test_the_process_and_the_build_are_described() -> None:
    engine = StubEngine(StubBroker(counters()))
    text = Metrics(cast(Engine, engine), topics_max=1, kernels_compiled=True).exposition().decode()
    assert 'headrace_build_info{kernels="compiled"' in text
    assert "process_resident_memory_bytes" in text
    assert "process_open_fds" in text


def test_a_scrape_reads_what_is_true_now() -> None:
    engine = StubEngine(StubBroker(counters()))
    metrics = Metrics(cast(Engine, engine), topics_max=1, kernels_compiled=True)
    metrics.exposition()
    engine.log.appends_total = 12
    assert b"headrace_wal_appends_total 12.0" in metrics.exposition()


def test_only_the_busiest_topics_have_a_label_of_their_own() -> None:
    topics = [topic(f"t{number}", number) for number in range(50)]
    broker = StubBroker(counters(), topics, [subscription("t49", 5), subscription("t0", 5)])
    found = scrape(StubEngine(broker), topics_max=2)
    published = {label: v for (name, label), v in found.items() if name == "headrace_topic_messages_published_total"}
    assert published == {"t49": 49, "t48": 48, "_other": sum(range(48))}
    assert found["headrace_topic_backlog", "t49"] == 7
    assert found["headrace_topic_backlog", "_other"] == 7


@given(st.lists(st.text(min_size=1, max_size=300), unique=True, max_size=8), st.integers(0, 8))
def test_no_topic_name_breaks_the_exposition_or_loses_messages(names: list[str], topics_max: int) -> None:
    names = [name for name in names if name.isprintable()]
    broker = StubBroker(counters(), [topic(name, 3) for name in [*names, "_other"]])
    found = scrape(StubEngine(broker), topics_max)
    published = [v for (name, _), v in found.items() if name == "headrace_topic_messages_published_total"]
    assert sum(published) == 3 * (len(names) + 1)
    assert len(published) <= topics_max + 1


@given(st.lists(st.floats(0, 100, allow_nan=False)))
def test_a_histogram_counts_each_duration_below_every_bound_it_fits(durations: list[float]) -> None:
    histogram = Histogram()
    for seconds in durations:
        histogram.observe(seconds)
    for (label, below), bound in zip(histogram.buckets(), (*BOUNDS_S, float("inf")), strict=True):
        assert label == ("+Inf" if bound == float("inf") else str(bound))
        assert below == sum(seconds <= bound for seconds in durations)
    assert histogram.total_s == sum(durations)


def test_every_metric_of_ours_is_in_the_docs() -> None:
    docs = (Path(__file__).resolve().parents[3] / "docs/operations.md").read_text()
    text = Metrics(cast(Engine, StubEngine(StubBroker(counters()))), topics_max=1, kernels_compiled=True).exposition()
    names = [line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE headrace_")]
    assert len(names) > 20
    assert not [name for name in names if f"`{name}`" not in docs]
