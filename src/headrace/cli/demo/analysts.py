"""The demo's analysts: the pipeline beside the shop, in one Spark session, and the questions they ask of its tables.

Everything here blocks; the story calls it from threads. What Spark prints is kept in a file.
"""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure
from headrace.cli.ledger import subscriptions
from headrace.cli.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.ledger.ledger import Ledger
    from headrace.spark.pipeline.run import Pipeline
    from headrace.spark.pipeline.settings import Settings

LAKE = "lake"
SPARK_LOG = "spark.log"
EVERY_S = 1.0
LOOK_S = 0.1
CONF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.sql.shuffle.partitions": "1"}


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
        self._running = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._spark: SparkSession | None = None
        self._settings: Settings | None = None
        self._freshness_ms: list[float] = []

    def start(self, target: Target) -> None:
        """Begin to fill the tables from this broker; it may be killed and come back at the same address."""
        from headrace.spark.pipeline.settings import Settings

        self._settings = Settings(lake=self.lake, endpoint=target.url("flight"), key=target.key, every_s=EVERY_S)
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

        spark, settings = self._session()
        wanted = Redrive(where=where)
        client = settings.client()
        earliest = client.span().earliest
        done = travel(
            spark,
            settings.lake,
            wanted.wish,
            lambda: wanted.choose(spark, settings.lake, settings.connection(), earliest),
            Broker(options=settings.connection(), client=client),
        )
        return done.sent if done is not None else 0

    def rows(self, table: str, where: str = "true") -> int:
        """How many rows of a table a condition holds for; 0 while there is no such table."""
        spark, settings = self._session()
        if not any((settings.lake / table).rglob("*.parquet")):
            return 0
        return spark.read.parquet(str(settings.lake / table)).where(where).count()

    def behind(self) -> int:
        """How many messages of the log are not in the table `messages` yet."""
        _, settings = self._session()
        stored = sum(topic.messages for topic in settings.client().topics())
        return stored - self.rows("messages")

    def conclude(self, target: Target) -> Findings:
        """What the tables say, once they have caught up."""
        from headrace.spark.ledger.ledger import balance
        from headrace.spark.pipeline.tables import TABLES

        spark, settings = self._session()
        rows = {name: self.rows(name) for name in TABLES}
        reasons = spark.read.parquet(str(settings.lake / "quarantine")).select("reason") if rows["quarantine"] else None
        return Findings(
            rows=rows,
            freshness_s=statistics.median(self._freshness_ms or [0.0]) / 1000,
            quarantined=[row.reason for row in reasons.collect()] if reasons is not None else [],
            ledger=balance(spark, settings.client(), settings.connection(), settings.lake, known=subscriptions(target)),
        )

    def ask(self, question: "Callable[[SparkSession, Path], list[dict[str, object]]]") -> list[dict[str, object]]:
        """Rows that somebody wants of the lake."""
        spark, settings = self._session()
        return question(spark, settings.lake)

    def _session(self) -> "tuple[SparkSession, Settings]":
        """The session, once the pipeline runs. Raises Failure if it does not."""
        while not self._running.wait(LOOK_S):
            if self._failure is not None:
                break
        if self._failure is not None:
            raise Failure(f"the pipeline failed: {self._failure}", f"Spark's own words are in {self._log}.")
        assert self._spark is not None
        assert self._settings is not None
        return self._spark, self._settings

    def _work(self) -> None:
        from headrace.spark.pipeline.run import Pipeline
        from headrace.spark.pipeline.tables import chosen
        from headrace.spark.session import new_session

        assert self._settings is not None
        try:
            self._spark = new_session("headrace demo", master="local[2]", memory="1g", conf=CONF, log=self._log)
            self._spark.sparkContext.setLogLevel("OFF")
            self._follow(Pipeline(self._spark, chosen(None), self._settings))
        except Exception as error:
            self._failure = error
        finally:
            if self._spark is not None:
                self._spark.stop()

    def _follow(self, pipeline: "Pipeline") -> None:
        from headrace.spark.pipeline.watching import Watch

        prompt = Watch(next(runner for runner in pipeline.runners if runner.name == "messages"), pipeline.settings)
        seen: float | None = None
        for _ in pipeline.run(self._stopping, LOOK_S):
            self._running.set()
            fresh = prompt.look().freshness_ms
            if fresh is not None and fresh != seen:
                seen = fresh
                self._freshness_ms.append(fresh)


def until(asked: Callable[[], bool], timeout_s: float) -> bool:
    """Ask again and again until it is so; whether it came to that in time."""
    deadline = time.monotonic() + timeout_s
    while not asked():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True
