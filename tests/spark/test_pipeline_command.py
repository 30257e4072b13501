"""`headrace pipeline` as a user runs it, in processes of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.harness.lakeside import Lakeside
from tests.spark.conftest import Publish
from tests.spark.shopfloor import rows

TIMEOUT_S = 300


def pipeline(*arguments: str, broker: Lakeside, lake: Path) -> list[str]:
    """A command line."""
    given = [*arguments, "--lake", str(lake), "--data-dir", str(broker.data_dir), "--key", broker.key, "--json"]
    return [sys.executable, "-m", "headrace", "pipeline", *given]


def answers(command: list[str]) -> list[dict[str, Any]]:
    """What a command that ends well prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_run_until_told_then_once_then_status(feed_broker: Lakeside, publish: Publish, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    publish("notes", [b"text", b'{"v": 1}'])
    run = pipeline("run", "--tables", "messages", "--master", "local[2]", broker=feed_broker, lake=lake)
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["batch"] is not None:
                break
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, said) == (0, "")
    assert (lake / "_control" / "spark.log").exists(), "that is where Spark talks"
    assert [row["value"] for row in rows(lake, "messages")] == [b"text", b'{"v": 1}']

    changed = [b'{"v": 2, "more": []}', b"\xff\x00"]
    publish("notes", changed)
    [progress] = answers([*run, "--once"])[-1:]
    assert (progress["table"], progress["state"]) == ("messages", "done")
    assert [row["value"] for row in rows(lake, "messages")] == [b"text", b'{"v": 1}', *changed]
    found = {row["table"]: row for row in answers(pipeline("status", broker=feed_broker, lake=lake))}
    assert (found["messages"]["rows"], found["messages"]["files"], found["traffic"]["rows"]) == (4, 2, 0)
    [joined] = answers([sys.executable, "-m", "headrace", "pipeline", "compact", "--lake", str(lake), "--json",
                        "--tables", "messages"])  # fmt: skip
    assert (joined["before"], joined["after"]) == (2, 1)
    assert len(rows(lake, "messages")) == 4


def test_nobody_there(feed_broker: Lakeside, tmp_path: Path) -> None:
    feed_broker.stop()
    command = pipeline("run", "--once", broker=feed_broker, lake=tmp_path / "lake")
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "headrace: the feed at grpc://" in done.stderr
