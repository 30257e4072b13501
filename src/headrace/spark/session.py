"""A Spark session with what headrace measured to be good defaults; whatever the caller sets wins.

Knows settings, not tables. `docs/spark.md` says what each default is for.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.spark.home import spark_home
from headrace.spark.java import Java, SparkUnavailable, cache_dir, find_java
from headrace.spark.launch import STACK, gateway
from headrace.spark.patience import NICENESS, spare_cores, stand_back
from headrace.spark.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
DAEMON = "headrace.spark.daemon"
MEMORY = "2g"
SHUFFLE_PARTITIONS = 2

DEFAULTS: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def new_session(
    name: str,
    *,
    master: str = "local[*]",
    memory: str = MEMORY,
    conf: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> "SparkSession":
    """A session of this name at `master`: `local[N]`, `spark://host:port`, or `sc://host:port` for Spark Connect.

    `memory` is the driver's heap; the executors of a cluster have `spark.executor.memory`, and are given the headrace
    of this process. What a new JVM and its workers print goes to `log`; one that Spark's scripts start cannot be sent
    there, and is silent once it is up. A session that is already active in this process is handed back with `conf`
    applied to it. Raises SparkUnavailable with what to install.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkUnavailable("Spark is not installed: pip install 'headrace[spark]'") from None
    if master.startswith("sc://"):
        return ship(_configured(SparkSession.builder.remote(master), conf or {}).getOrCreate())
    own = {"spark.python.daemon.module": DAEMON} if master.startswith("local") else {}
    settings = {"spark.app.name": name, "spark.master": master, **DEFAULTS, **own, **(conf or {})}
    builder = _configured(SparkSession.builder, settings)
    if SparkSession.getActiveSession() is not None:
        return builder.getOrCreate()
    java = find_java()
    with _jvm(java, settings, memory, log) as asked:
        session = _configured(builder, asked).getOrCreate()
    _leave_out_checksums(session)
    return ship(session)


@contextmanager
def _jvm(java: Java, settings: Mapping[str, str], memory: str, log: Path | None) -> Iterator[dict[str, str]]:
    """The JVM a session is made in: ours, else what Spark's scripts start; what it has to be asked for besides."""
    if not java.bundled or "SPARK_HOME" in os.environ:
        os.environ["JAVA_HOME"] = str(java.home)
        options = f"-Xss{STACK} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
        silence = {"spark.log.level": "OFF"} if log is not None and "spark.log.level" not in settings else {}
        yield {"spark.driver.extraJavaOptions": options, "spark.driver.memory": memory, **silence}
    else:
        with gateway(java, spark_home(cache_dir()), settings, memory, log):
            yield {}


def give_way(spark: "SparkSession", *, broker_here: bool = False) -> None:
    """Have the driver, and workers it starts on this machine, take cores only when others leave them some; for good.

    With a broker on this machine they leave it one core besides. Linux shares cores out among sessions first, if the
    JVM has one of its own, and then among the threads of each.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        return
    jvm: Any = spark.sparkContext._jvm
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    spared = spare_cores() if broker_here else None
    with suppress(OSError):
        if os.getsid(pid) == pid:
            Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))
        for thread in Path(f"/proc/{pid}/task").iterdir():
            stand_back(int(thread.name), spared=spared)


def _leave_out_checksums(spark: "SparkSession") -> None:
    """Have the driver write local files without one of checksums beside each: it is half the work of a checkpoint."""
    jvm: Any = spark.sparkContext._jvm
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark.sparkContext._jsc.hadoopConfiguration())
    files.setWriteChecksum(False)


def _configured(builder: "SparkSession.Builder", conf: Mapping[str, str]) -> "SparkSession.Builder":
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder
