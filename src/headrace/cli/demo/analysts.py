"""The demo's analysts: the pipeline beside the shop, in one Spark session, and the questions they ask of its tables.

Everything here blocks; the story calls it from threads. Spark knows its session by the thread, so one thread of ours
does all that needs it. What Spark prints is kept in a file.
"""

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.cli.failure import Failure
from headrace.cli.ledger import subscriptions
from headrace.cli.target import Target

if TYPE_CHECKING:
    from pyarrow.compute import Expression
    from pyspark.sql import SparkSession

    from headrace.spark.ledger.ledger import Ledger
    from headrace.spark.pipeline.run import Pipeline
    from headrace.spark.pipeline.settings import Settings

T = TypeVar("T")
Question = Callable[["SparkSession", "Settings"], T]

LAKE = "lake"
SPARK_LOG = "spark.log"
EVERY_S = 1.0
LOOK_S = 0.2
JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""A JVM that lives for a minute is better off without the compiler that needs one to warm up."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the analysts know in the end.

    `rows` counts each table's; `freshness_s` is how old the newest row of a batch was when it could be read, at the
    median; `quarantined` are the reasons.
    """

    rows: dict[str, int]
    freshness_s: float
    quarantined: list[str]
    ledger: "Ledger"


class Analysts:
    """A pipeline that fills a lake from when it is started until it is closed."""

    def __init__(self, directory: Path) -> None:
        self.lake = directory / LAKE
        self._log = directory / SPARK_LOG
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._settings: Settings | None = None
        self._questions: SimpleQueue[tuple[Question[Any], Future[Any]]] = SimpleQueue()
        self._freshness_ms: list[float] = []

    def start(self, target: Target) -> None:
        """Begin to fill the tables from this broker; it may be killed and come back at the same address."""
        from headrace.spark.lake.layout import Layout
        from headrace.spark.pipeline.settings import Settings

        form = Layout(self.lake).settle_format(None)
        self._settings = Settings(
            lake=self.lake, form=form, endpoint=target.url("flight"), key=target.key, every_s=EVERY_S
        )
        self._thread = threading.Thread(target=self._work, name="analysts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the pipeline and Spark."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def redrive(self, where: str) -> int:
        """Send back the dead letters for which a condition over their table holds; how many that were."""
        from headrace.spark.back.journey import travel
        from headrace.spark.back.redrive import Redrive
        from headrace.spark.back.sending import Broker

        wanted = Redrive(where=where)

        def _travel(spark: "SparkSession", settings: "Settings") -> int:
            client, options = settings.client(), settings.connection()
            earliest = client.span().earliest
            done = travel(
                spark,
                settings.lake,
                wanted.wish,
                lambda: wanted.choose(spark, settings.lake, options, earliest),
                Broker(options=options, client=client),
            )
            return done.sent if done is not None else 0

        return self.ask(_travel)

    def rows(self, table: str, where: "Expression | None" = None) -> int:
        """How many rows of a table a condition holds for, by the files themselves; 0 while there is no such table."""
        import pyarrow.dataset as ds

        files = [str(path) for path in (self.lake / table).rglob("*.parquet")]
        return ds.dataset(files, format="parquet").count_rows(filter=where) if files else 0

    def behind(self) -> int:
        """How many messages of the log are not in the table `messages` yet."""
        assert self._settings is not None
        return sum(topic.messages for topic in self._settings.client().topics()) - self.rows("messages")

    def has_letter(self, offset: int) -> bool:
        """Whether the dead letter at this offset is in its table."""
        import pyarrow.dataset as ds

        return self.rows("dead_letters", ds.field("offset") == offset) == 1

    def conclude(self, target: Target) -> Findings:
        """What the tables say, once they have caught up."""
        from headrace.spark.ledger.ledger import balance
        from headrace.spark.pipeline.tables import TABLES

        known = subscriptions(target)
        return Findings(
            rows={name: self.rows(name) for name in TABLES},
            freshness_s=statistics.median(self._freshness_ms or [0.0]) / 1000,
            quarantined=self.ask(_reasons),
            ledger=self.ask(
                lambda spark, settings: balance(
                    spark, settings.client(), settings.connection(), settings.lake, known=known
                )
            ),
        )

    def ask(self, question: Question[T]) -> T:
        """The answer to a question that needs Spark. Raises Failure if the pipeline does not run."""
        answer: Future[T] = Future()
        self._questions.put((question, answer))
        while True:
            try:
                return answer.result(LOOK_S)
            except TimeoutError:
                if answer.done():
                    raise
                if self._failure is not None:
                    raise Failure(
                        f"the pipeline failed: {self._failure}", f"Spark's own words are in {self._log}."
                    ) from None

    def _work(self) -> None:
        from headrace.spark.pipeline.run import Pipeline
        from headrace.spark.pipeline.settings import SESSION
        from headrace.spark.pipeline.tables import chosen
        from headrace.spark.session import new_session

        assert self._settings is not None
        spark: SparkSession | None = None
        try:
            spark = new_session("headrace demo", master="local[2]", memory="1g", conf={**SESSION, **JVM}, log=self._log)
            spark.sparkContext.setLogLevel("OFF")
            self._follow(spark, Pipeline(spark, chosen(None), self._settings))
        except Exception as error:
            self._failure = error
        finally:
            if spark is not None:
                spark.stop()

    def _follow(self, spark: "SparkSession", pipeline: "Pipeline") -> None:
        """Look after the queries, note how fresh the table of messages is, and answer questions in between."""
        from headrace.spark.pipeline.watching import Watch

        prompt = Watch(next(runner for runner in pipeline.runners if runner.name == "messages"), pipeline.settings)
        seen: float | None = None
        for _ in pipeline.run(self._stopping, LOOK_S):
            fresh = prompt.look().freshness_ms
            if fresh is not None and fresh != seen:
                seen = fresh
                self._freshness_ms.append(fresh)
            self._answer(spark, pipeline.settings)

    def _answer(self, spark: "SparkSession", settings: "Settings") -> None:
        try:
            question, answer = self._questions.get_nowait()
        except Empty:
            return
        try:
            answer.set_result(question(spark, settings))
        except Exception as error:
            answer.set_exception(error)


def _reasons(spark: "SparkSession", settings: "Settings") -> list[str]:
    """Why records are in quarantine."""
    if not any((settings.lake / "quarantine").rglob("*.parquet")):
        return []
    return [row.reason for row in spark.read.parquet(str(settings.lake / "quarantine")).select("reason").collect()]


def until(asked: Callable[[], bool], timeout_s: float) -> bool:
    """Ask again and again until it is so; whether it came to that in time."""
    deadline = time.monotonic() + timeout_s
    while not asked():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True
