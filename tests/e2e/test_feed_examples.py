"""The example readers, run as programs against a real broker: pandas, polars and DuckDB over plain Arrow Flight."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocols.blipmq.client import BlipmqClient
from tests.harness.served import Served, served

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "readers"
DEV_KEY = "dev-key"


async def _publish(endpoint: str) -> None:
    async with await BlipmqClient.connect(endpoint, DEV_KEY) as client:
        for number in range(100):
            await client.publish("orders", f"order {number}".encode())
        await client.publish("stock", b"not asked for")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("data"), LISTEN__FLIGHT="127.0.0.1:0") as running:
        asyncio.run(_publish(running.endpoints["blipmq"]))
        yield running


def run(broker: Served, script: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / script), *arguments, "--endpoint", broker.endpoints["flight"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pandas(broker: Served) -> None:
    printed = run(broker, "pandas_topic.py", "orders")
    assert "blipmq    100" in printed
    assert "b'order 99'" in printed


def test_polars(broker: Served) -> None:
    lines = [line.split() for line in run(broker, "polars_topic.py", "orders").splitlines()]
    assert sum(int(messages) for _, messages, *_ in lines) == 100
    assert sum(int(size) for _, _, _, size, _ in lines) == sum(len(f"order {number}") for number in range(100))


def test_duckdb(broker: Served) -> None:
    assert run(broker, "duckdb_topic.py", "orders").split() == ["blipmq", "100", "99"]
    printed = run(broker, "duckdb_topic.py", "orders", "SELECT count(*) FROM messages WHERE value = 'order 7'::BLOB")
    assert printed.split() == ["1"]
