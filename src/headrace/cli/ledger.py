"""`headrace ledger`: the proof that everything published is accounted for, in every subscription and every table."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.failure import Failure
from headrace.cli.output import Column, Output, escaped
from headrace.cli.pipeline import Conf, Master, Memory
from headrace.cli.render import number
from headrace.cli.spark_session import DEFAULT_LAKE, spark_session, spark_settings
from headrace.cli.target import AsJson, Target, talks_to_broker

if TYPE_CHECKING:
    from headrace.spark.ledger.ledger import Ledger
    from headrace.spark.ledger.rules import Life

_BALANCED = {"yes": "green", "no": "bold red"}

ACCOUNTS = (
    Column(key="topic"),
    Column(key="name", title="subscription"),
    *(
        Column(key=key, right=True, show=number)
        for key in ("published", "acked", "delivered", "pending", "dead", "expired", "dropped", "left")
    ),
    Column(key="balanced", show=lambda value: "yes" if value else "no", colours=_BALANCED),
)
TABLES = (
    Column(key="table"),
    Column(key="log", title="in the log", right=True, show=number),
    Column(key="rows", title="in the table", right=True, show=number),
    Column(key="behind", title="not yet", right=True, show=number),
    Column(key="balanced", show=lambda value: "yes" if value else "no", colours=_BALANCED),
)


@talks_to_broker
def ledger(
    target: Target,
    lake: Annotated[Path, typer.Option("--lake", metavar="DIR", help="The lake.")] = DEFAULT_LAKE,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="OFFSET|TIME", help="The first offset, or an ISO time.", show_default="oldest"),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="OFFSET|TIME", help="The offset or time before which to end.", show_default="now"),
    ] = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Prove that every message is accounted for; exit code 1 and the offsets in question if it is not."""
    from headrace.spark.ledger.ledger import balance
    from headrace.spark.ledger.tables import require_tables

    output = Output(as_json=as_json)
    settings = spark_settings(target, lake)
    require_tables(settings.lake)
    known = subscriptions(target)
    with spark_session("headrace ledger", settings, master, memory, conf) as spark:
        found = balance(
            spark, settings.client(), settings.connection(), settings.lake, begin=begin, end=end, known=known
        )  # fmt: skip
        if as_json:
            print_json(output, found)
        else:
            print_screen(output, found)
    if not found.balanced:
        raise typer.Exit(1)


def subscriptions(target: Target) -> "list[Life]":
    """The subscriptions the broker has now, where its API is within reach: the log may have forgotten some of them."""
    from headrace.spark.ledger.rules import Life

    if "http" not in target.endpoints:
        return []
    try:
        with target.api() as api:
            found = list(api.listed("/api/subscriptions", "subscriptions"))
    except Failure:
        return []
    return [Life(subscription=each["id"], name=each["name"] or str(each["id"]), topic=each["topic"]) for each in found]


def print_json(output: Output, found: "Ledger") -> None:
    """Every offset that does not fit on a line of its own, then the summary."""
    from headrace.spark.ledger.report import document

    for misfit in found.misfits():
        output.json(misfit)
    output.json(document(found))


def print_screen(output: Output, found: "Ledger") -> None:
    """A summary that fits one screen."""
    from headrace.spark.ledger import report

    accounts, more = report.shown(found.accounts.accounts)
    output.rows(ACCOUNTS, [_account(report.account_row(account)) for account in accounts])
    if more:
        output.note(f"and {number(more)} more subscriptions; --json has all of them")
    output.rows(TABLES, [report.table_row(check) for check in found.tables])
    for remark in report.remarks(found):
        output.note(remark)
    for misfit in islice(found.misfits(), report.MISFITS_SHOWN):
        output.line(report.misfit_line(misfit))
    if found.faults > report.MISFITS_SHOWN:
        output.note(f"{number(found.faults)} offsets do not fit; --json has all of them")
    span = f"offsets {found.run.start} to {found.run.end - 1}" if found.run.size else "no offsets"
    word = "[green]balanced[/]" if found.balanced else "[bold red]NOT balanced[/]"
    output.document({}, [f"{escaped(span)}: {word}"])


def _account(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "name": f"{row['name']} (removed)" if row["removed"] else row["name"]}
