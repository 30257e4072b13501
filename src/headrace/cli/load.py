"""`headrace bench`: a quick load test with our own client, on a broker of its own or on one that runs."""

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.output import Column, Output
from headrace.cli.render import duration, number, size
from headrace.cli.target import DEV_KEY, AsJson, Ca, Cert, ConfigFile, DataDir, Endpoint, Key, Target, find_broker

if TYPE_CHECKING:
    from headrace.cli.loadtest import Load, Result

STAMP_SIZE = 8

COLUMNS = (
    Column(key="phase"),
    Column(key="messages", right=True, show=number),
    Column(key="seconds", right=True, show=lambda s: f"{s:.2f}"),
    Column(key="msgs_per_s", title="msgs/s", right=True, show=number),
    Column(key="bytes_per_s", title="bytes/s", right=True, show=lambda n: f"~ {size(n)}/s"),
    Column(key="p50_s", title="p50", right=True, show=duration),
    Column(key="p99_s", title="p99", right=True, show=duration),
)


def _measured(protocol: str) -> str:
    if protocol != "blipmq":
        raise typer.BadParameter(f"this measures blipmq, not {protocol!r}; `make bench` measures every protocol")
    return protocol


def bench(
    message_size: Annotated[int, typer.Option("--size", min=STAMP_SIZE, help="Bytes in a message.")] = 100,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many messages, if that is sooner.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Stop after so long.")] = 5.0,
    sync: Annotated[
        str | None, typer.Option(help="Sync policy of the bench's own broker.", show_default="always")
    ] = None,
    protocol: Annotated[
        str, typer.Option("--protocol", "-p", callback=_measured, help="The protocol to speak; here blipmq only.")
    ] = "blipmq",
    data_dir: DataDir = None,
    config: ConfigFile = None,
    endpoint: Endpoint = None,
    key: Key = DEV_KEY,
    ca: Ca = None,
    cert: Cert = None,
    as_json: AsJson = False,
) -> None:
    """Measure messages a second and latency from publish to delivery, with acknowledgements.

    Starts a broker of its own unless one is named. The load comes from our Python client and is the limit; `make
    bench` in the source tree has an independent client in C and compares with other brokers.
    """
    from headrace.cli.loadtest import Load

    running = data_dir or config or endpoint
    if running and sync:
        raise typer.BadParameter("a running broker has its own sync policy", param_hint="--sync")
    output = Output(as_json=as_json)
    load = Load(message_size, count, seconds)
    if running:
        target = find_broker(data_dir, config, endpoint, key, ca, cert)
        results = asyncio.run(_on(target, load, f"the broker of {target.source}", output))
    else:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
            results = asyncio.run(_on_own(Path(directory), sync or "always", load, output))
    output.rows(COLUMNS, (result.row() for result in results))


async def _on_own(directory: Path, sync: str, load: "Load", output: Output) -> "list[Result]":
    from headrace.cli.process import own_broker

    async with own_broker(directory, f'[log]\nsync = "{sync}"\n') as broker:
        return await _on(broker.target, load, f"a broker of its own in {directory}, sync {sync}", output)


async def _on(target: Target, load: "Load", where: str, output: Output) -> "list[Result]":
    from headrace.cli.loadtest import run
    from headrace.kernels import compiled

    output.note(
        f"1 publisher, 1 subscriber with acks, {size(load.message_size)} messages, blipmq; {where}; "
        f"kernels {'compiled' if compiled() else 'interpreted'}"
    )
    return await run(target, load)
