"""`headrace` commands as a person would give them, each a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Terminal:
    """Runs `headrace` commands against the broker of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "headrace", *arguments, "--data-dir", str(self.data_dir)]

    def run(self, *arguments: str, given: str | bytes = b"", code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run to the end; the exit code must be the expected one."""
        data = given.encode() if isinstance(given, str) else given
        done = subprocess.run(self.command(*arguments), input=data, capture_output=True, timeout=60)
        out, err = done.stdout.decode(errors="surrogateescape"), done.stderr.decode()
        assert done.returncode == code, err
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def json(self, *arguments: str, given: str = "") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*arguments, "--json", given=given).stdout.splitlines()]

    @contextmanager
    def consuming(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A consumer that has subscribed."""
        process = subprocess.Popen(
            self.command("consume", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout
        assert process.stderr
        try:
            assert process.stderr.readline().startswith("subscription ")
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()
