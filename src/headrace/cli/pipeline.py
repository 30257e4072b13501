"""`headrace pipeline run|status|backfill|compact`: the tables that Spark keeps of the log."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.failure import Failure
from headrace.cli.output import Column, Output
from headrace.cli.render import number, size, when
from headrace.cli.spark_session import DEFAULT_LAKE, LOG
from headrace.cli.target import AsJson, Target, talks_to_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.pipeline.definition import PipelineTable
    from headrace.spark.pipeline.run import Pipeline
    from headrace.spark.pipeline.settings import Settings
    from headrace.spark.pipeline.watching import TableProgress

SPARK_PANEL = "Spark"
REFRESH_S = 1.0
PLAIN_S = 5.0

app = typer.Typer(no_args_is_help=True, help="The Spark pipeline: the log as tables in a lake directory.")

Lake = Annotated[Path, typer.Option("--lake", metavar="DIR", help="Where the tables are.")]
Form = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="NAME", help="parquet, delta or iceberg.", show_default="what the lake has, else parquet"
    ),
]
Tables = Annotated[
    str | None, typer.Option("--tables", metavar="NAMES", help="Only these, with commas.", show_default="all")
]
Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="local[N] or spark://host:port.", rich_help_panel=SPARK_PANEL)
]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="The driver's heap.", rich_help_panel=SPARK_PANEL)]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.", rich_help_panel=SPARK_PANEL
    ),
]

PROGRESS = (
    Column(key="table"),
    Column(key="state", colours={"running": "green", "failed": "red"}),
    Column(key="batch", right=True),
    Column(key="rows_per_s", title="rows/s", right=True, show=lambda value: number(round(value or 0))),
    Column(key="lag", right=True, show=lambda value: "-" if value is None else number(value)),
    Column(key="freshness_ms", title="freshness", right=True, show=lambda ms: _milliseconds(ms)),
    Column(key="files", right=True),
    Column(key="restarts", right=True),
    Column(key="reason"),
)
STATUS = (
    Column(key="table"),
    Column(key="rows", right=True, show=number),
    Column(key="files", right=True, show=number),
    Column(key="bytes", right=True, show=size),
    Column(key="batches", right=True, show=number),
    Column(key="offset", right=True),
    Column(key="lag", right=True, show=lambda value: "-" if value is None else number(value)),
    Column(key="freshness_ms", title="freshness", right=True, show=lambda ms: _milliseconds(ms)),
    Column(key="committed_us", title="last batch", show=lambda us: "-" if us is None else when(us)),
)


@app.command()
@talks_to_broker
def run(
    target: Target,
    once: Annotated[bool, typer.Option("--once", help="End when all tables have caught up.")] = False,
    lake: Lake = DEFAULT_LAKE,
    form: Form = None,
    tables: Tables = None,
    handlers: Annotated[
        list[str] | None,
        typer.Option("--handlers", metavar="MODULE", help="Run its @handler functions, too; may be repeated."),
    ] = None,
    every: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How often tables other than `messages` are written.")
    ] = 5.0,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Go on when the log no longer has what a table lacks.")
    ] = False,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Fill the tables from the log, and keep them up to date until stopped."""
    from headrace.spark.pipeline.handlers import load
    from headrace.spark.pipeline.run import Pipeline

    chosen = _tables(tables)
    settings = _settings(target, lake, form, every_s=every, lossy=lossy)
    _must_answer(settings)
    loaded = _load(load, handlers)
    with _session(settings.lake, master, memory, conf) as spark, _stopped_by_signals() as stopping:
        pipeline = Pipeline(spark, chosen, settings, handlers=loaded, once=once)
        _show(pipeline, stopping, Output(as_json=as_json))


@app.command()
@talks_to_broker
def status(target: Target, lake: Lake = DEFAULT_LAKE, tables: Tables = None, as_json: AsJson = False) -> None:
    """Show rows, files, lag and freshness of every table; the lag only if the broker answers."""
    from headrace.spark.pipeline.watching import status as status_of

    chosen = _tables(tables)
    settings = _settings(target, lake, None, must_exist=True)
    latest = _latest(settings)
    rows = [asdict(status_of(table, settings, latest)) for table in chosen]
    Output(as_json=as_json).rows(STATUS, rows)


@app.command()
@talks_to_broker
def backfill(
    target: Target,
    begin: Annotated[str, typer.Option("--from", metavar="OFFSET|TIME", help="The first offset, or an ISO time.")],
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="OFFSET|TIME", help="The offset or time before which to end.", show_default="now"),
    ] = None,
    lake: Lake = DEFAULT_LAKE,
    form: Form = None,
    tables: Tables = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Fill a range of the log into the tables afterwards; rows that are there stay as they are."""
    from headrace.spark.patience import is_here
    from headrace.spark.pipeline.backfill import backfill as fill
    from headrace.spark.session import give_way

    chosen = _tables(tables)
    settings = _settings(target, lake, form)
    _must_answer(settings)
    client = settings.client()
    start = _offset(client, begin, "--from")
    stop = client.span().latest if end is None else _offset(client, end, "--to")
    output = Output(as_json=as_json)
    with _session(settings.lake, master, memory, conf) as spark:
        give_way(spark, broker_here=is_here(client.whereabouts()))
        for table in chosen:
            done = fill(spark, table, settings, start, stop)
            speed = number(round(done.rows / done.seconds)) if done.seconds else "-"
            line = f"{table.name}: {number(done.rows)} rows of offsets {done.start} to {done.end}, {speed} rows/s"
            output.document({"table": table.name, **asdict(done)}, [line])


@app.command()
def compact(
    lake: Lake = DEFAULT_LAKE,
    tables: Tables = None,
    as_json: AsJson = False,
) -> None:
    """Join small files of the tables into bigger ones; readers and a running pipeline go on meanwhile."""
    from headrace.spark.lake.compaction import compact as join
    from headrace.spark.lake.stores import open_store

    form = _form_of(lake)
    output = Output(as_json=as_json)
    for table in _tables(tables):
        done = join(open_store(lake, form, table.spec), files_min=2)
        line = f"{table.name}: {number(done.before)} files became {number(done.after)}" if done.before else ""
        output.document({"table": table.name, **asdict(done)}, [line or f"{table.name}: nothing to join"])


def _tables(names: str | None) -> "list[PipelineTable]":
    _need_spark()
    from headrace.spark.pipeline.tables import chosen

    return chosen(None if names is None else [name.strip() for name in names.split(",") if name.strip()])


def _need_spark() -> None:
    from importlib.util import find_spec

    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise Failure("Spark is not installed", "Install it with: pip install 'headrace[spark]'")


def _settings(target: Target, lake: Path, form: str | None, *, must_exist: bool = False, **given: Any) -> "Settings":
    from headrace.spark.lake.layout import Layout
    from headrace.spark.pipeline.settings import Settings

    lake = lake.absolute()
    found = _form_of(lake) if must_exist else Layout(lake).settle_format(form)
    roots = str(target.ca) if target.ca is not None else None
    return Settings(lake=lake, form=found, endpoint=target.url("flight"), key=target.key, tls_roots=roots, **given)


def _form_of(lake: Path) -> str:
    from headrace.spark.lake.layout import Layout

    found = Layout(lake).format()
    if found is None:
        raise Failure(f"there is no lake in {lake}", "`headrace pipeline run --lake DIR` makes one.")
    return found


def _load(load: Any, modules: Sequence[str] | None) -> Any:
    """The handlers of these modules; the current directory counts, as with python -m."""
    if not modules:
        return None
    if "" not in sys.path:
        sys.path.insert(0, "")
    return load(modules)


def _must_answer(settings: "Settings") -> None:
    """Find out before Spark is started whether the feed is there and the key is good."""
    from headrace.feed.client import FeedError

    try:
        settings.client().span()
    except FeedError as error:
        raise Failure(
            f"the feed at {settings.endpoint} does not answer: {error.detail}", "Is the broker running?"
        ) from None


def _latest(settings: "Settings") -> int | None:
    from headrace.feed.client import FeedError

    try:
        return settings.client(retry_s=1.0).span().latest
    except FeedError:
        return None


def _offset(client: Any, text: str, option: str) -> int:
    """An offset as it is, or the first one at or after a time."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither an offset nor a time like 2026-05-04T12:00", param_hint=option
        ) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(client.offset_at(round(aware.timestamp() * 1e6)))


@contextmanager
def _session(lake: Path, master: str, memory: str, conf: Sequence[str] | None) -> "Iterator[SparkSession]":
    """A session that ends with the command; what Spark prints goes to a file of the lake."""
    from headrace.spark.pipeline.settings import SESSION
    from headrace.spark.session import new_session

    given = dict(item.partition("=")[::2] for item in conf or ())
    log = lake / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    session = new_session("headrace pipeline", master=master, memory=memory, conf={**SESSION, **given}, log=log)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Set when the user or the system wants the process to end. To be entered after Spark set its own handler."""
    stopping = threading.Event()
    before = {each: signal.signal(each, lambda *_: stopping.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for each, old in before.items():
            signal.signal(each, old)


def _show(pipeline: "Pipeline", stopping: threading.Event, output: Output) -> None:
    """Run the pipeline with a live table in a terminal, with lines elsewhere."""
    from headrace.spark.pipeline.watching import Watch

    watches = [Watch(runner, pipeline.settings) for runner in pipeline.runners]
    pause_s = REFRESH_S if output.is_terminal or output.as_json else PLAIN_S
    with _screen(output) as show:
        due_s = time.monotonic() + pause_s
        for _ in pipeline.run(stopping):
            if time.monotonic() >= due_s:
                show([watch.look() for watch in watches])
                due_s = time.monotonic() + pause_s
        show([watch.look() for watch in watches])


@contextmanager
def _screen(output: Output) -> "Iterator[Any]":
    if not output.is_terminal or output.as_json:
        yield lambda tables: _lines(output, tables)
        return
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        yield lambda tables: live.update(_table(tables))


def _lines(output: Output, tables: "Sequence[TableProgress]") -> None:
    """What happened to each table since the last look; without --json only where something did."""
    if output.as_json:
        for table in tables:
            output.json(asdict(table))
        return
    shown = [table for table in tables if table.rows_per_s or table.state != "running" or table.lag]
    output.rows(PROGRESS, [asdict(table) for table in shown or tables[:1]])


def _table(tables: "Sequence[TableProgress]") -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", title="headrace pipeline", title_justify="left")
    for column in PROGRESS:
        shown.add_column(column.heading, justify="right" if column.right else "left")
    for each in tables:
        row = asdict(each)
        texts = [(column, column.text(row)) for column in PROGRESS]
        shown.add_row(*(Text(text, style=column.colours.get(text, "")) for column, text in texts))
    return shown


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms"
