"""What Prometheus is told: plain numbers the broker keeps anyway, and what a survey has counted aside.

Nothing here runs for each message or each topic: histograms are fed once for each flush, and what there is of every
topic is counted elsewhere.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace import __version__
from headrace.broker.views import Counters, Survey

if TYPE_CHECKING:
    from headrace.server.engine import Engine
    from headrace.server.lists import ReaderRow
    from headrace.server.survey import Taken

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OTHER_TOPICS = "_other"
LABEL_SIZE_MAX = 128


class Histogram:
    """Durations in seconds counted into fixed buckets of plain integers."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus has them: each with everything below its bound."""
        found = []
        below = 0
        for bound, number in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            below += number
            found.append((bound, float(below)))
        return found


class Metrics:
    """The metrics of one broker, in a registry of its own."""

    def __init__(self, engine: "Engine", *, kernels_compiled: bool) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._collector = _EngineCollector(engine, kernels_compiled)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)

    def exposition(self, taken: "Taken") -> bytes:
        """Everything, in Prometheus's text format, with what was counted aside."""
        self._collector.taken = taken
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    taken: "Taken"

    def __init__(self, engine: "Engine", kernels_compiled: bool) -> None:
        self._engine = engine
        self._build = {"version": __version__, "kernels": "compiled" if kernels_compiled else "interpreted"}

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of the first scrape: the engine may still be starting."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric of ours."""
        survey, readers = self.taken
        yield InfoMetricFamily("headrace_build", "The running program", self._build)
        yield GaugeMetricFamily("headrace_ready", "1 while work is accepted", float(self._engine.ready))
        yield GaugeMetricFamily("headrace_connections", "Connections open now", self._engine.connections)
        yield GaugeMetricFamily("headrace_topics", "Topics that hold messages or subscriptions", survey.topics)
        yield GaugeMetricFamily("headrace_subscribers", "Subscriptions", survey.subscriptions)
        yield from self._messages(survey.counters)
        yield from self._log()
        yield from _per_topic(survey)
        yield from _per_reader(readers)

    def _messages(self, counters: Counters) -> Iterator[Metric]:
        identities = self._engine.broker.identities
        for name, text, value in (
            ("published", "Messages accepted", counters.published),
            ("delivered", "Deliveries, every attempt counted", counters.delivered),
            ("redelivered", "Deliveries after a message's first", counters.redelivered),
            ("acked", "Messages acknowledged", counters.acked),
            ("nacked", "Deliveries given back by a subscriber", counters.nacked),
            ("expired", "Messages whose time to live ended", counters.expired),
            ("dead", "Messages given up and kept as dead letters", counters.dead),
            ("dropped", "QoS 0 messages dropped because a subscriber was too slow", counters.dropped),
            ("refused", "Messages the log could not take", self._engine.refused_total),
        ):
            yield CounterMetricFamily(f"headrace_messages_{name}", text, value)
        yield CounterMetricFamily(
            "headrace_duplicates", "Messages not stored because their topic knew their id", identities.repeated
        )
        yield CounterMetricFamily(
            "headrace_ids_forgotten",
            "Ids of messages forgotten within their window, for want of room",
            identities.forgotten,
        )
        yield GaugeMetricFamily("headrace_ids_remembered", "Ids of messages known now", identities.remembered)
        yield GaugeMetricFamily("headrace_messages_inflight", "Delivered and not settled yet", counters.inflight)

    def _log(self) -> Iterator[Metric]:
        log = self._engine.log
        yield CounterMetricFamily("headrace_wal_appends", "Records appended to the log", log.appends_total)
        yield CounterMetricFamily("headrace_wal_bytes", "Bytes appended to the log", log.bytes_total)
        yield GaugeMetricFamily("headrace_wal_pending_bytes", "Bytes waiting for the disk", log.pending_bytes)
        yield GaugeMetricFamily("headrace_wal_next_offset", "The offset the next message gets", log.next_offset)
        yield GaugeMetricFamily("headrace_wal_durable_offset", "Everything below is durable", log.durable_offset)
        yield GaugeMetricFamily(
            "headrace_wal_failing", "1 while the log cannot be written", float(log.failing is not None)
        )
        yield from self._disk()
        for name, text, histogram in (
            ("sync", "Writing and syncing one group of records", self._engine.sync_seconds),
            ("publish_durable", "From the first append of a group to its durability", self._engine.durable_seconds),
        ):
            yield HistogramMetricFamily(f"headrace_{name}_seconds", text, histogram.buckets(), histogram.total_s)

    def _disk(self) -> Iterator[Metric]:
        log, disk = self._engine.log, self._engine.disk
        damage = (*log.damage, *disk.lost)
        lost = sum(loss.damage.count for loss in log.catalog.losses if loss.given_up)
        for name, text, value in (
            ("damaged_places", "Places found damaged and not repaired", len(damage)),
            ("damaged_bytes", "Bytes in them", sum(each.end - each.start for each in damage)),
            ("damaged_offsets", "Offsets lost with them", sum(each.count for each in damage)),
            ("lost_offsets", "Offsets that were given up by repairs", lost),
            ("epoch", "How often offsets were given up", log.catalog.epoch),
        ):
            yield GaugeMetricFamily(f"headrace_log_{name}", text, value)
        yield CounterMetricFamily("headrace_log_scrub_passes", "Times the whole log was read again", disk.scrub_passes)
        yield CounterMetricFamily("headrace_log_scrubbed_bytes", "Bytes read again", disk.scrubbed_bytes)
        errors = CounterMetricFamily("headrace_storage_errors", "Work that the disk refused", labels=["work"])
        for work, count in sorted(disk.errors.items()):
            errors.add_metric([work], count)
        yield errors


def _per_topic(survey: Survey) -> Iterator[Metric]:
    """The busiest topics by name, all others as one: a topic name is data, and data must not grow the label set."""
    messages = CounterMetricFamily("headrace_topic_messages_published", "Messages accepted", labels=["topic"])
    waiting = GaugeMetricFamily(
        "headrace_topic_backlog", "Messages not settled yet, summed over the topic's subscriptions", labels=["topic"]
    )
    for counts, family in ((survey.published, messages), (survey.backlog, waiting)):
        labelled: Counter[str] = Counter()
        for name, count in counts.items():
            labelled[OTHER_TOPICS if name == Survey.OTHERS else _label(name)] += count
        for label in sorted(labelled):
            family.add_metric([label], labelled[label])
        yield family


def _per_reader(readers: "Sequence[ReaderRow]") -> Iterator[Metric]:
    """The offset and the lag of the readers outside the broker that are furthest behind."""
    lag = GaugeMetricFamily(
        "headrace_reader_lag", "Messages a reader outside the broker has yet to come to", labels=["reader", "owner"]
    )
    offset = GaugeMetricFamily(
        "headrace_reader_offset", "The offset below which a reader needs nothing any more", labels=["reader", "owner"]
    )
    for reader in readers:
        labels = [_label(reader.reader), _label(reader.owner)]
        if reader.lag is not None:
            lag.add_metric(labels, reader.lag)
        offset.add_metric(labels, reader.offset)
    yield lag
    yield offset


def _label(name: str) -> str:
    """A name as a label: short, printable, and never the one that stands for the rest."""
    text = "".join(letter if letter.isprintable() else "_" for letter in name[:LABEL_SIZE_MAX])
    return text if text != OTHER_TOPICS else "__other"
