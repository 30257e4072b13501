"""The example service, run as its README says: the same servicer behind a gRPC server and behind a queue."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.served import Served, served

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "orders"


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`serve.py`, ready; asked to stop at the end, which must succeed."""
    command = [sys.executable, "serve.py", *arguments]
    process = subprocess.Popen(command, cwd=EXAMPLE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def order(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "order.py", *arguments]
    return subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=False, timeout=60)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, LISTEN__GRPC="127.0.0.1:0", RETRY__BACKOFF_MS="1") as running:
        yield running


def test_called_directly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with serving("direct", address) as process:
        done = order("direct", address, "order-1", "tea", "2")
        assert done.stdout == "placed\n", done.stderr
        assert line(process) == "ann ordered 2 x tea (order-1)"
        refused = order("direct", address, "order-2", "tea", "0")
        assert refused.returncode == 1
        assert "INVALID_ARGUMENT" in refused.stderr


def test_out_of_a_queue(broker: Served, tmp_path: Path) -> None:
    endpoint = f"grpc://127.0.0.1:{broker.ports['grpc']}"
    for name, quantity in (("order-1", "2"), ("order-2", "0"), ("order-3", "1")):
        done = order("queue", endpoint, "orders", name, "tea", quantity)
        assert re.fullmatch(r"queued as [0-9a-f-]{36}\n", done.stdout), done.stderr
    with serving("queue", endpoint, "orders") as process:
        assert {line(process), line(process)} == {"ann ordered 2 x tea (order-1)", "ann ordered 1 x tea (order-3)"}
        assert dead_reasons(tmp_path) == ["INVALID_ARGUMENT: order order-2: nothing is ordered"]


def dead_reasons(data_dir: Path) -> list[str]:
    """What the broker says about its dead letters, once there is one."""
    command = [sys.executable, "-m", "headrace", "deadletters", "list", "--json", "--data-dir", str(data_dir)]
    environment = os.environ | {"HEADRACE_KEY": "dev-key"}
    while True:
        told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
        if found := re.findall(r'"reason": ?"([^"]*)"', told.stdout):
            return found
