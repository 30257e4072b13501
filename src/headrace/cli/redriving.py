"""`headrace deadletters redrive --lake DIR`: dead letters chosen from the lake's table, sent back by Spark."""

from collections.abc import Sequence
from pathlib import Path

from headrace.cli.output import Output, escaped
from headrace.cli.render import number
from headrace.cli.shipment import ship, show_preview
from headrace.cli.spark_session import spark_session, spark_settings
from headrace.cli.target import Target


def redrive_from_lake(
    target: Target,
    lake: Path,
    output: Output,
    *,
    topic: str | None,
    where: str | None,
    to: str | None,
    rate: int | None,
    dry_run: bool,
    edits: Sequence[str],
    identity: str | None,
    master: str,
    memory: str,
) -> None:
    """Send the letters of the lake that the options choose, or show them. Raises Failure."""
    from headrace.spark.back.journey import Choice, preview
    from headrace.spark.back.redrive import Redrive

    settings = spark_settings(target, lake)
    wanted = Redrive(where=where, topic=topic, to=to, edits=tuple(edits))
    with spark_session("headrace redrive", settings, master, memory) as spark:

        def _choose() -> Choice:
            return wanted.choose(spark, settings.lake, settings.connection(), settings.client().span().earliest)

        if dry_run:
            show_preview(output, preview(_choose()), rate)
            return
        done = ship(output, settings, spark, wanted.wish, _choose, identity=identity, rate=rate)
    if done is None:
        output.document({"id": None, "redriven": 0, "skipped": []}, ["no dead letter is chosen; nothing was sent"])
        return
    line = f"sent {number(done.sent)} back to {escaped(to) if to else 'where they came from'}"
    output.document({"id": done.id, "redriven": done.sent, "skipped": []}, [line])
