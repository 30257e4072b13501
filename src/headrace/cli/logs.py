"""`headrace log verify|dump|repair`: a log directory read, and mended, without a broker."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.failure import Failure
from headrace.cli.output import Column, Output, escaped, progress
from headrace.cli.render import number, when
from headrace.cli.target import AsJson

if TYPE_CHECKING:
    from headrace.log import Report

app = typer.Typer(no_args_is_help=True, help="A log directory without a broker: check it, read it, mend it.")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The broker's data directory, or the log inside it.")]

COLUMNS = (
    Column(key="segment", width=24),
    Column(key="position", right=True, width=10),
    Column(key="offset", right=True, width=10),
    Column(key="span", right=True, width=6),
    Column(key="kind", width=12),
    Column(key="topic", width=20),
    Column(key="timestamp_us", title="time", width=23, show=lambda us: when(us) if us else "-"),
    Column(key="detail"),
)


@app.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Check every byte; exit code 1 if something that was once safe is missing, with the offsets.

    What was given up by an earlier repair, or by `serve --accept-damage`, is said ever after; the code is 0 then.
    """
    from headrace.cli.reading import WatchedDisk, log_size
    from headrace.server.offline import verify_directory

    place = log_directory(directory)
    with progress("verifying", log_size(place), unit="bytes") as meter:
        report = verify_directory(place, WatchedDisk(meter))
    Output(as_json=as_json).document(as_row(report), described(report))
    if not report.intact:
        raise Failure(
            f"the log in {place} is damaged: {lost(report)}",
            f"`headrace log repair {directory}` keeps everything else; "
            "`headrace serve --accept-damage` starts without repairing.",
        )


@app.command()
def dump(
    directory: Directory,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset.")] = 0,
    end: Annotated[int | None, typer.Option("--to", metavar="OFFSET", min=0, help="The offset to stop before.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what is in the log, one line for each batch, event and hole."""
    from headrace.log import OsDisk
    from headrace.log import dump as dump_log

    rows = dump_log(log_directory(directory), OsDisk(), offset=start, to=end)
    Output(as_json=as_json).stream(COLUMNS, (row._asdict() for row in rows))


@app.command()
def repair(
    directory: Directory,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Mend a damaged log: every valid record stays, what is removed is kept aside."""
    from headrace.cli.reading import WatchedDisk, check_closed, log_size
    from headrace.server.offline import repair_directory, verify_directory

    place = log_directory(directory)
    output = Output(as_json=as_json)
    check_closed(place)
    with progress("verifying", log_size(place), unit="bytes") as meter:
        found = verify_directory(place, WatchedDisk(meter))
    if found.intact and not found.torn and not found.notes:
        output.document(as_row(found), ["nothing to repair", *described(found)])
        return
    if not yes:
        output.note("\n".join(map(str, [*found.damage, *found.torn, *found.notes])))
        typer.confirm(f"Repair the log in {place}?", abort=True, err=True)
    with progress("repairing", log_size(place), unit="bytes") as meter:
        report = repair_directory(place, WatchedDisk(meter), now=time.time_ns() // 1000)
    output.document(as_row(report), mended(report))


def log_directory(directory: Path) -> Path:
    """The log in a data directory, or the directory itself if it is one.

    Raises Failure when there is no log.
    """
    for place in (directory / "log", directory):
        if any(any(place.glob(pattern)) for pattern in ("*.seg", "*.snap", "*.catalog")):
            return place
    raise Failure(f"there is no log in {directory}", "Give the broker's data directory.")


def as_row(report: "Report") -> dict[str, Any]:
    """The report for scripts."""
    return {
        "intact": report.intact,
        "log_id": report.log_id,
        "epoch": report.epoch,
        "segments": report.segments,
        "first_offset": report.first_offset,
        "next_offset": report.next_offset,
        "damage": [asdict(item) for item in report.damage],
        "torn": [asdict(item) for item in report.torn],
        "lost": [asdict(item.damage) | {"met_us": item.met_us, "given_up": item.given_up} for item in report.losses],
        "lost_offsets": lost_offsets(report),
        "notes": report.notes,
        "kept_aside": report.kept_aside,
    }


def described(report: "Report") -> list[str]:
    """What there is in a log, and what is missing."""
    lines = [f"{number(report.segments)} segments with offsets {report.first_offset} to {report.next_offset - 1}"]
    lines += [f"[yellow]torn[/]    {escaped(str(torn))}" for torn in report.torn]
    lines += [f"[yellow]mended[/]  {escaped(note)}" for note in report.notes]
    lines += [f"[bold red]damage[/]  {escaped(str(damage))}" for damage in report.damage]
    lines += earlier(report)
    if report.damage:
        return lines
    if lost_offsets(report) or report.losses:
        return [*lines, "[yellow]intact but for that[/]: nothing is missing that was not given up before"]
    return [*lines, "[green]intact[/]: nothing that was ever safe is missing"]


def earlier(report: "Report") -> list[str]:
    """What was lost before now."""
    lines = []
    for loss in report.losses:
        since = f" (met {when(loss.met_us)})" if loss.met_us else ""
        if loss.given_up:
            lines.append(f"[red]lost[/]    {escaped(str(loss))}{since}")
        elif loss.damage not in report.damage:
            lines.append(f"[red]met[/]     {escaped(str(loss))}{since}")
    listed = sum(loss.damage.count for loss in report.losses if loss.given_up)
    if report.lost > listed:
        lines.append(f"[red]lost[/]    {number(report.lost - listed)} more offsets, given up by repairs before that")
    return lines


def lost_offsets(report: "Report") -> int:
    """How many offsets were given up, by the catalog or by what repairs left in the segments."""
    return max(report.lost, sum(loss.damage.count for loss in report.losses if loss.given_up))


def mended(report: "Report") -> list[str]:
    """What a repair did."""
    lines = [f"[yellow]removed[/]  {escaped(str(item))}" for item in (*report.damage, *report.torn)]
    lines += [f"[cyan]kept in[/]  {escaped(name)}" for name in report.kept_aside]
    return [*lines, f"[green]repaired[/]: the log goes on at offset {report.next_offset}"]


def lost(report: "Report") -> str:
    """The offsets that are gone."""
    ranges = [f"{item.first} to {item.first + item.count - 1}" for item in report.damage if item.count]
    return f"lost offsets {', '.join(ranges)}" if ranges else "no offsets are lost"
