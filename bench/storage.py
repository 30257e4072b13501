"""What a stored backlog costs headrace: memory while it lies there, the restart on it, draining it afterwards."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.brokers import Variant
from bench.measure import RunError, run_load, sample_of
from bench.plan import Storage
from bench.process import Server, StartError

_SUBSCRIBED = ("--qos", "1")


@dataclass(frozen=True, kw_only=True)
class StorageSample:
    """One backlog's figures."""

    messages: int
    log_mib: float
    start_empty_s: float
    resident_empty_mib: float
    resident_mib: float
    start_after_kill_s: float
    start_after_stop_s: float
    stop_s: float
    resident_restarted_mib: float
    drained_rate: float
    resident_peak_mib: float


def measure_storage(program: Path, storage: Storage, variant: Variant, scratch: Path) -> StorageSample:
    """Fill, kill -9, start, stop kindly, start again, drain what survived. Raises RunError."""
    directory = Path(tempfile.mkdtemp(prefix="backlog-", dir=scratch))
    server: Server | None = None
    try:
        server = variant.start(directory)
        start_empty_s, resident_empty = server.ready_s, server.resident_mib
        shape = [*_SUBSCRIBED, "--size", str(storage.size)]
        filled = run_load(
            program,
            variant,
            server,
            storage.size,
            [*shape, "--scenario", "backlog", "--backlog", str(storage.messages)],
        )
        resident, peak = server.resident_mib, server.resident_peak_mib
        server.kill()
        log_mib = sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file()) / (1 << 20)

        server = variant.start(directory)
        start_after_kill_s = server.ready_s
        stop_s = server.stop()

        server = variant.start(directory)
        start_after_stop_s, resident_restarted = server.ready_s, server.resident_mib
        drained = sample_of(
            run_load(
                program, variant, server, storage.size,
                [*shape, "--scenario", "drain", "--stored", str(filled["backlog"])],
            ),
            0.0, 0.0,
        )  # fmt: skip
        return StorageSample(
            messages=filled["backlog"],
            log_mib=log_mib,
            start_empty_s=start_empty_s,
            resident_empty_mib=resident_empty,
            resident_mib=resident,
            start_after_kill_s=start_after_kill_s,
            start_after_stop_s=start_after_stop_s,
            stop_s=stop_s,
            resident_restarted_mib=resident_restarted,
            drained_rate=drained.delivered_rate,
            resident_peak_mib=max(peak, server.resident_peak_mib),
        )
    except StartError as error:
        raise RunError(str(error)) from None
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)
