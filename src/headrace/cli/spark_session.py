"""What the commands that run a Spark job share: a session, where broker and lake are, errors in the user's words."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure
from headrace.cli.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.pipeline.settings import Settings

DEFAULT_LAKE = Path("headrace-lake")
LOG = Path("_control", "spark.log")
_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Loss): (.+)$", re.MULTILINE)


def has_spark() -> bool:
    """Whether Spark is installed."""
    from importlib.util import find_spec

    return find_spec("pyspark") is not None and find_spec("pyarrow") is not None


def spark_settings(target: Target, lake: Path) -> "Settings":
    """Where the broker's feed and the lake are. Raises Failure when Spark is not installed or there is no lake."""
    if not has_spark():
        raise Failure("Spark is not installed", "Install it with: pip install 'headrace[spark]'")
    from headrace.spark.lake.layout import Layout
    from headrace.spark.pipeline.settings import Settings

    form = Layout(lake).format()
    if form is None:
        raise Failure(
            f"there is no lake in {lake}", "Name its directory with --lake; `headrace pipeline run` makes one."
        )
    roots = str(target.ca) if target.ca is not None else None
    return Settings(
        lake=lake.absolute(), form=form, endpoint=target.url("flight"), key=target.key, tls_roots=roots
    )  # fmt: skip


@contextmanager
def spark_session(
    name: str, settings: "Settings", master: str, memory: str, conf: Sequence[str] | None = None
) -> "Iterator[SparkSession]":
    """A session that ends with the command, unless it was there before; what Spark and the feed refuse is a Failure.

    The feed is asked first: a broker that is not there is known before Spark is. What Spark prints goes to a file.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from headrace.feed.client import FeedError
    from headrace.spark.session import new_session

    given = dict(item.partition("=")[::2] for item in conf or ())
    logging.getLogger("SQLQueryContextLogger").disabled = True
    before = SparkSession.getActiveSession()
    session = None
    try:
        settings.client().span()
        log = settings.lake / LOG
        session = new_session(name, master=master, memory=memory, conf=given, log=log)
        yield session
    except FeedError as error:
        raise refusal(error.code, error.detail) from error
    except PySparkException as error:
        raise Failure(cause(str(error)), f"Spark's own words are in {settings.lake / LOG}.") from error
    finally:
        if before is None and session is not None:
            session.stop()


def refusal(code: str, detail: str) -> Failure:
    """What the broker's feed refused, and what to do about it."""
    if code in ("unauthenticated", "forbidden"):
        return Failure(f"the broker refused: {detail}", "Give a key that may with --key or HEADRACE_KEY.")
    if code == "unavailable":
        return Failure(f"no feed answers: {detail}", "Is the broker running, and its flight listener switched on?")
    return Failure(f"the broker refused: {detail}")


def cause(text: str) -> str:
    """What went wrong in a Spark job: the last thing its Python said, else Spark's first line."""
    said = _PYTHON_ERROR.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return str(said[-1] if said else (lines or ["Spark failed"])[0])[:500]
