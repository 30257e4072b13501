"""Runs the load client against one variant and keeps what happened as figures. Decides nothing."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.brokers import Variant
from bench.plan import Figure, Scenario
from bench.process import Server, StartError

LOAD_TIMEOUT_S = 180
ROOT = Path(__file__).resolve().parent.parent


class RunError(Exception):
    """A run that gave no figures; the text is the load client's or the broker's own."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run's figures."""

    published_rate: float
    published_alone_rate: float
    delivered_rate: float
    delivered_mb_s: float
    broker_cpu_ns: float
    client_cpu_ns: float
    resident_peak_mib: float
    redelivered: int
    latency_us: dict[str, float] = field(default_factory=dict)
    confirm_us: dict[str, float] = field(default_factory=dict)

    def value(self, figure: Figure) -> float:
        """The figure a scenario is about."""
        match figure:
            case Figure.PUBLISHED:
                return self.published_rate
            case Figure.DELIVERED:
                return self.delivered_rate
            case Figure.LATENCY:
                return self.latency_us["p99"]


def best(samples: Sequence[Sample], figure: Figure) -> Sample:
    """The run least disturbed by the neighbours: the fastest, or for latency the one with the lowest p99."""
    if figure is Figure.LATENCY:
        return min(samples, key=lambda sample: sample.value(figure))
    return max(samples, key=lambda sample: sample.value(figure))


@contextmanager
def served(variant: Variant, scratch: Path) -> Iterator[tuple[Server, Path]]:
    """The variant's broker on an empty directory of its own, both gone afterwards.

    What earlier runs have not synced, files they removed included, is not to be waited for by this one.
    """
    os.sync()
    directory = Path(tempfile.mkdtemp(prefix=f"{variant.name}-", dir=scratch))
    try:
        server = variant.start(directory)
        try:
            yield server, directory
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run_load(program: Path, variant: Variant, server: Server, size: int, arguments: Sequence[str]) -> dict[str, Any]:
    """What the load client printed. Raises RunError with its complaint."""
    command = [
        *(variant.client or (str(program),)), "--target", variant.protocol, "--port", str(server.port),
        "--window", str(variant.window(size)), "--batch", str(variant.batch), "--poll-us", str(variant.poll_us),
        *arguments,
    ]  # fmt: skip
    if "http" in server.ports:
        command += ["--metrics-port", str(server.ports["http"])]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RunError(f"no end after {LOAD_TIMEOUT_S} s") from None
    if done.returncode:
        raise RunError(done.stderr.strip() or f"the load client ended with {done.returncode}")
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def measure(program: Path, scenario: Scenario, variant: Variant, scratch: Path, seconds: float) -> Sample:
    """One run of a scenario on a fresh broker. Raises RunError."""
    try:
        with served(variant, scratch) as (server, _):
            cpu_before = server.cpu_s
            printed = run_load(program, variant, server, scenario.size, scenario.arguments(seconds))
            return sample_of(printed, server.cpu_s - cpu_before, server.resident_peak_mib)
    except StartError as error:
        raise RunError(str(error)) from None


def sample_of(printed: dict[str, Any], broker_cpu_s: float, resident_peak_mib: float) -> Sample:
    """The load client's counts as rates. CPU is for each message, or each delivery where there are more of those."""
    messages = max(printed["received"], printed["published"] + printed["backlog"], 1)
    delivered_rate = printed["received"] / printed["seconds"]
    return Sample(
        published_rate=printed["published"] / printed["publish_s"] if printed["published"] else 0.0,
        published_alone_rate=printed["backlog"] / printed["backlog_s"] if printed["backlog"] else 0.0,
        delivered_rate=delivered_rate,
        delivered_mb_s=delivered_rate * printed["size"] / 1e6,
        broker_cpu_ns=broker_cpu_s / messages * 1e9,
        client_cpu_ns=printed["client_cpu_s"] / messages * 1e9,
        resident_peak_mib=resident_peak_mib,
        redelivered=printed["redelivered"],
        latency_us=printed["latency_us"],
        confirm_us=printed["confirm_us"],
    )
