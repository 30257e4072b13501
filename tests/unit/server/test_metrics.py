"""Counters read at scrape time, and a label set that data cannot grow."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headrace.broker.views import Counters, Survey
from headrace.log.catalog import Catalog
from headrace.log.report import Damage, Loss
from headrace.model.requests import Start
from headrace.server.disk_health import DiskHealth
from headrace.server.engine import Engine
from headrace.server.lists import ReaderRow
from headrace.server.metrics import BOUNDS_S, Histogram, Metrics
from headrace.server.survey import Taken
from tests.unit.broker.desk import Desk

LOSS = Loss(Damage("b.seg", 0, 9, 1, 4), given_up=True)


@dataclass
class StubLog:
    appends_total: int = 11
    bytes_total: int = 1200
    pending_bytes: int = 5
    next_offset: int = 40
    durable_offset: int = 39
    failing: object | None = None
    damage: list[Damage] = field(default_factory=lambda: [Damage("a.seg", 100, 150, 7, 3)])
    catalog: Catalog = field(default_factory=lambda: Catalog(log=bytes(16), epoch=2, losses=(LOSS,)))


@dataclass
class StubIdentities:
    repeated: int = 6
    forgotten: int = 5
    remembered: int = 4


@dataclass
class StubBroker:
    identities: StubIdentities = field(default_factory=StubIdentities)


@dataclass
class StubEngine:
    log: StubLog = field(default_factory=StubLog)
    connections: int = 3
    refused_total: int = 2
    ready: bool = True
    disk: DiskHealth = field(default_factory=DiskHealth)
    broker: StubBroker = field(default_factory=StubBroker)
    sync_seconds: Histogram = field(default_factory=Histogram)
    durable_seconds: Histogram = field(default_factory=Histogram)


def counters() -> Counters:
    return Counters(
        published=100, delivered=90, redelivered=8, acked=80, nacked=1, expired=2, dead=3, dropped=4, inflight=5
    )


def taken(
    published: dict[str, int] | None = None,
    backlog: dict[str, int] | None = None,
    readers: Sequence[ReaderRow] = (),
) -> Taken:
    """What a survey of a desk without anything would say, had it found this."""
    survey = Desk().broker.survey(100)
    survey.counters = counters()
    survey.published, survey.backlog = published or {}, backlog or {}
    return Taken(survey, list(readers))


def scrape(engine: StubEngine, found: Taken) -> dict[tuple[str, str], float]:
    """Every sample by name and by the value of its topic or bucket label."""
    text = Metrics(cast(Engine, engine), kernels_compiled=False).exposition(found).decode()
    return {
        (sample.name, sample.labels.get("topic", sample.labels.get("le", ""))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_names_blipmq_had_are_there_under_our_prefix() -> None:
    found = scrape(StubEngine(), taken())
    for name, value in {
        "topics": 0,
        "subscribers": 0,
        "messages_published_total": 100,
        "messages_delivered_total": 90,
        "messages_inflight": 5,
        "wal_appends_total": 11,
        "wal_bytes_total": 1200,
    }.items():
        assert found[f"headrace_{name}", ""] == value


def test_every_outcome_of_a_message_is_counted() -> None:
    found = scrape(StubEngine(), taken())
    for name, value in {
        "acked": 80, "redelivered": 8, "nacked": 1, "expired": 2, "dead": 3, "dropped": 4, "refused": 2,
    }.items():  # fmt: skip
        assert found[f"headrace_messages_{name}_total", ""] == value
    assert found["headrace_connections", ""] == 3
    assert found["headrace_ready", ""] == 1
    assert found["headrace_wal_failing", ""] == 0


def test_the_process_and_the_build_are_described() -> None:
    text = Metrics(cast(Engine, StubEngine()), kernels_compiled=True).exposition(taken()).decode()
    assert 'headrace_build_info{kernels="compiled"' in text
    assert "process_resident_memory_bytes" in text
    assert "process_open_fds" in text


def test_a_scrape_reads_what_is_true_now() -> None:
    engine = StubEngine()
    metrics = Metrics(cast(Engine, engine), kernels_compiled=True)
    metrics.exposition(taken())
    engine.log.appends_total = 12
    assert b"headrace_wal_appends_total 12.0" in metrics.exposition(taken())


def test_only_the_busiest_topics_have_a_label_of_their_own() -> None:
    desk = Desk()
    for number in range(1, 6):
        desk.publish(f"t{number}", *[b"x"] * number)
    for topic in ("t5", "t1", "never published to"):
        desk.subscribe(topic, start=Start.EARLIEST)
    survey = desk.broker.survey(2)
    for _ in survey.steps():
        continue
    assert (survey.topics, survey.subscriptions, survey.counters) == (6, 3, desk.broker.counters)
    found = scrape(StubEngine(), Taken(survey, []))
    published = {label: v for (name, label), v in found.items() if name == "headrace_topic_messages_published_total"}
    assert published == {"t5": 5, "t4": 4, "_other": 6}
    assert found["headrace_topic_backlog", "t5"] == 5
    assert found["headrace_topic_backlog", "_other"] == 1


def test_what_is_counted_never_falls_though_subscriptions_go_while_they_are_counted() -> None:
    desk = Desk()
    desk.publish("a", b"1", b"2")
    seen = []
    for gone in range(4):
        subscriptions = [desk.subscribe("a", start=Start.EARLIEST) for _ in range(3)]
        for subscription in subscriptions:
            desk.ack(subscription, (desk.take(subscription)[0][0], 1))
        survey = desk.broker.survey(1)
        for number, _ in enumerate(survey.steps()):
            if number == gone:
                desk.broker.unsubscribe(subscriptions[1], "gone", desk.now)
        seen.append(survey.counters.acked)
    assert seen == [3, 6, 9, 12]


@given(st.lists(st.text(min_size=1, max_size=300), unique=True, max_size=8))
def test_no_topic_name_breaks_the_exposition_or_loses_messages(names: list[str]) -> None:
    names = [name for name in names if name.isprintable()]
    found = scrape(StubEngine(), taken(dict.fromkeys([*names, "_other", Survey.OTHERS], 3)))
    published = [v for (name, _), v in found.items() if name == "headrace_topic_messages_published_total"]
    assert sum(published) == 3 * (len(names) + 2 - ("_other" in names))


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
    text = Metrics(cast(Engine, StubEngine()), kernels_compiled=True).exposition(taken())
    names = [line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE headrace_")]
    assert len(names) > 20
    assert not [name for name in names if f"`{name}`" not in docs]
