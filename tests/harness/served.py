"""A real `headrace serve --dev` process on free ports."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OTHER_DOORS_OFF = {f"HEADRACE_LISTEN__{name}": "" for name in ("SSPQ", "FUJIN", "GRPC", "FLIGHT")}


@dataclass
class Served:
    """The process and where it listens."""

    process: subprocess.Popen[str]
    endpoints: dict[str, str]
    stderr: Path

    @property
    def ports(self) -> dict[str, int]:
        """The port of each listener."""
        return {name: int(url.rsplit(":", 1)[1]) for name, url in self.endpoints.items()}

    @property
    def port(self) -> int:
        """BlipMQ's port."""
        return self.ports["blipmq"]

    def wait_for_log(self, event: str) -> dict[str, object]:
        """The first line of the broker's log about this event, once it is there."""
        with self.stderr.open() as lines:
            while self.process.poll() is None:
                if (line := lines.readline()) and event in line:
                    found: dict[str, object] = json.loads(line)
                    return found
        raise AssertionError(f"the broker ended before {event}")

    def resident_bytes(self) -> int:
        """The broker's resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024


@contextmanager
def served(data_dir: Path, *arguments: str, dev: bool = True, **settings: str) -> Iterator[Served]:
    """Run a broker; `settings` are environment names without the prefix (RETRY__MAX_ATTEMPTS="5")."""
    environment = os.environ | OTHER_DOORS_OFF
    environment |= {"HEADRACE_LISTEN__BLIPMQ": "127.0.0.1:0", "HEADRACE_LISTEN__HTTP": "127.0.0.1:0"}
    environment |= {f"HEADRACE_{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "headrace", "serve", "--data-dir", str(data_dir), *arguments]
    command += ["--dev"] * dev
    errors = data_dir / "stderr.txt"
    with errors.open("w") as stderr:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout
    endpoints: dict[str, str] = {}
    try:
        for line in process.stdout:
            if line.startswith("listening "):
                _, name, url = line.split()
                endpoints[name] = url
            if line.strip() == "ready":
                break
        assert endpoints, errors.read_text()
        yield Served(process, endpoints, errors)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
