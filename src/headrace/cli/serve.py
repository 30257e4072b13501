"""`headrace serve`: the broker itself, in the foreground."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from headrace.cli.target import ConfigFile, DataDir


def serve(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="For trying out: loopback only, API key `dev-key`, HTTP without a key.")
    ] = False,
    accept_damage: Annotated[
        bool, typer.Option("--accept-damage", help="Start although the log is damaged, without what was lost.")
    ] = False,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C; prints where it listens, then `ready`."""
    from headrace.cli.settings import load_config
    from headrace.server.feed_child import feed_installed, start_feed
    from headrace.server.logs import setup

    setup()
    read = partial(load_config, config, data_dir=data_dir, dev=dev)
    settings = read()
    feed_child = start_feed() if settings.listen.flight is not None and feed_installed() else None
    from headrace.server.node import run  # while the feed loads what it needs

    if dev:
        from headrace.server.dev_certificate import dev_certificate

        dev_certificate(settings.data_dir, now=datetime.now(UTC))
    raise typer.Exit(run(settings, accept_damage=accept_damage, reread=read, feed_child=feed_child))
