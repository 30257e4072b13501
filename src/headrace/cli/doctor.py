"""`headrace doctor`: is this machine fit to run the broker and the pipeline, and how fast will it be?"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headrace.cli.output import Column, Output
from headrace.cli.target import AsJson, ConfigFile, DataDir

if TYPE_CHECKING:
    from headrace.cli.checks import Finding

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}
PACKAGES = (("qh3", "qh3", "fujin"), ("grpcio", "grpc", "grpc"), ("protobuf", "google.protobuf", "grpc"))
"""What the doors need beyond the broker itself: package, module, listener."""
COLUMNS = (
    Column(key="state", colours=COLOURS),
    Column(key="check"),
    Column(key="detail", title="found"),
    Column(key="advice", title="what to do"),
)


def doctor(config: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check this machine and the configuration; exit code 1 if the broker could not run."""
    from headrace.cli import checks

    findings = list(examine(config, data_dir))
    Output(as_json=as_json).rows(COLUMNS, (finding.row() for finding in findings))
    if any(finding.state == checks.FAIL for finding in findings):
        raise typer.Exit(1)


def examine(config: ConfigFile, data_dir: DataDir) -> "Iterator[Finding]":
    """Every check in turn."""
    from headrace.cli import checks
    from headrace.cli.certificate import certificate
    from headrace.cli.failure import Failure
    from headrace.cli.settings import load_config
    from headrace.cli.spark_checks import pipeline
    from headrace.cli.target import endpoints_of

    yield checks.python()
    yield checks.system()
    yield checks.kernels()
    yield checks.package("uvloop", "the event loop", "asyncio's own loop is used, a little slower")
    yield checks.package("isal", "checksums", "zlib's are used, several times slower")
    yield checks.open_files()
    yield from pipeline()
    try:
        settings = load_config(config, data_dir=data_dir)
    except Failure as failure:
        yield checks.Finding("configuration", checks.FAIL, failure.problem, failure.advice)
        return
    yield checks.Finding("configuration", checks.OK, str(config) if config else "defaults and environment")
    directory = Path(settings.data_dir)
    yield from checks.data_dir(directory)
    running = endpoints_of(directory)
    listen = settings.listen.addresses()
    for package, module, listener in PACKAGES:
        yield checks.needed(package, module, listener, used=listener in listen)
    yield certificate(directory, settings.tls, listen)
    for name, address in listen.items():
        yield checks.port(name, address.host, address.port, running)
