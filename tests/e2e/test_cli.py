"""The command line against a real broker process, as a person would use it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.server.dev_certificate import dev_certificate
from tests.harness.served import Served, served
from tests.harness.terminal import Terminal


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, RETRY__ACK_WAIT_MS="30000") as running:
        yield running


@pytest.fixture
def terminal(broker: Served, tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


def test_what_is_published_is_consumed_and_the_subscription_goes(terminal: Terminal) -> None:
    with terminal.consuming("orders", "-n", "3") as consumer:
        told = terminal.run("publish", "orders", "one", "two", "three").stdout
        out, err = consumer.communicate(timeout=30)
    assert told.startswith("published 3 messages (11 B) to orders, durable, ")
    assert out.splitlines() == ["one", "two", "three"]
    assert "received 3, acknowledged 3" in err
    assert "removed" in err
    assert consumer.returncode == 0
    assert terminal.json("subscriptions") == []


def test_lines_of_standard_input_arrive_byte_for_byte(terminal: Terminal) -> None:
    lines = [b"%d \xff\x00" % number for number in range(5000)]
    with terminal.consuming("bytes", "-n", "5000", "--json") as consumer:
        terminal.run("publish", "bytes", given=b"\n".join(lines))
        out, _ = consumer.communicate(timeout=30)
    found = [json.loads(line) for line in out.splitlines()]
    assert [item["tag"] for item in found] == list(range(1, 5001))
    assert {item["text"] for item in found} == {None}


def test_ctrl_c_ends_a_consumer_with_a_summary(terminal: Terminal) -> None:
    with terminal.consuming("orders", "--format", "{topic}:{value}") as consumer:
        assert consumer.stdout
        terminal.run("publish", "orders", "one")
        assert consumer.stdout.readline() == "orders:one\n"
        consumer.send_signal(signal.SIGINT)
        _, err = consumer.communicate(timeout=30)
    assert "received 1, acknowledged 1" in err
    assert "Traceback" not in err
    assert consumer.returncode == 0


def test_a_kept_subscription_goes_on_where_it_was(terminal: Terminal) -> None:
    with terminal.consuming("orders", "-n", "1", "--keep") as consumer:
        terminal.run("publish", "orders", "one", "two", "three")
        out, err = consumer.communicate(timeout=30)
    assert out == "one\n"
    number = err.rsplit(" ", 1)[1].strip()
    assert terminal.run("consume", "orders", "--subscription", number, "-n", "2").stdout == "two\nthree\n"
    terminal.run("subscriptions", "--remove", number)
    assert "no subscription" in terminal.run("subscriptions", "--remove", number, code=1).stderr


def test_looking_consumes_nothing(terminal: Terminal) -> None:
    with terminal.consuming("orders", "-n", "1", "--keep", "--no-ack") as consumer:
        terminal.run("publish", "orders", "one", "two")
        consumer.communicate(timeout=30)
    (topic,) = terminal.json("topics")
    assert (topic["topic"], topic["messages"], topic["in_flight"], topic["pending"]) == ("orders", 2, 1, 1)
    first, second = terminal.json("peek", "orders")
    assert (first["text"], first["states"]) == ("one", {"1": "in flight, attempt 1"})
    assert (second["text"], second["states"]) == ("two", {"1": "pending"})
    assert terminal.json("topics") == [topic]
    (life,) = terminal.json("trace", str(first["offset"]))
    assert [event["event"] for event in life["events"]] == ["delivered"]


def test_a_wrong_key_is_refused_with_advice(terminal: Terminal) -> None:
    for arguments in (("publish", "orders", "hi"), ("consume", "orders", "-n", "1"), ("topics",)):
        err = terminal.run(*arguments, "--key", "wrong", code=1).stderr
        assert "refused the key" in err
        assert "headrace keys new" in err


def test_a_message_nobody_acknowledges_dies_is_sent_back_and_tells_its_life(tmp_path: Path) -> None:
    with served(tmp_path, RETRY__MAX_ATTEMPTS="1", RETRY__BACKOFF_MS="1000"):
        terminal = Terminal(tmp_path)
        with terminal.consuming("orders", "-n", "1", "--no-ack", "--keep") as consumer:
            terminal.run("publish", "orders", "refund 12")
            consumer.communicate(timeout=30)
        letters: list[dict[str, Any]] = []
        while not letters:
            letters = terminal.json("deadletters", "list", "--where", "value LIKE 'refund%' AND attempts = 1")
        (letter,) = letters
        assert (letter["origin_topic"], letter["attempts"], letter["redriven"]) == ("orders", 1, False)
        assert "refund 12" in terminal.run("deadletters", "show", str(letter["offset"])).stdout
        assert "1 would be sent" in terminal.run("deadletters", "redrive", "--dry-run").stderr

        with terminal.consuming("again", "-n", "1") as consumer:
            terminal.run("deadletters", "redrive", "--to", "again", "--rate", "5")
            out, _ = consumer.communicate(timeout=30)
        assert out == "refund 12\n"
        assert terminal.json("deadletters", "redrive") == [{"redriven": 0, "skipped": []}]
        (life,) = terminal.json("trace", str(letter["origin_offset"]))
        assert [event["event"] for event in life["events"]] == ["delivered", "dead", "redriven"]


def test_tls_needs_to_know_who_signed(tmp_path: Path) -> None:
    cert, key = dev_certificate(tmp_path, now=datetime.now(UTC))
    with served(tmp_path, TLS__CERT=str(cert), TLS__KEY=str(key)):
        terminal = Terminal(tmp_path)
        for arguments in (("publish", "orders", "one"), ("topics",)):
            assert "--ca FILE" in terminal.run(*arguments, code=1).stderr
            terminal.run(*arguments, "--ca", str(cert))
        (topic,) = terminal.json("topics", "--ca", str(cert))
    assert topic["messages"] == 1


def test_serve_drains_on_sigterm_and_its_directory_can_be_served_again(tmp_path: Path) -> None:
    with served(tmp_path) as first:
        Terminal(tmp_path).run("publish", "orders", "one")
        second = Terminal(tmp_path).run("serve", "--dev", code=1)
        assert "another process has the log" in second.stderr
        first.process.terminate()
        assert first.process.wait(timeout=30) == 0
    assert "no broker answers" in Terminal(tmp_path).run("topics", code=1).stderr
    with served(tmp_path):
        assert [message["text"] for message in Terminal(tmp_path).json("peek", "orders")] == ["one"]


def test_a_damaged_log_needs_the_operators_word(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        for value in ("one", "two", "three"):
            Terminal(tmp_path).run("publish", "orders", value)
        broker.process.terminate()
        broker.process.wait(timeout=30)
    (segment,) = (tmp_path / "log").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"two")] ^= 1
    segment.write_bytes(data)
    for leftover in (*(tmp_path / "log").glob("*.snap"), *(tmp_path / "log").glob("*.idx")):
        leftover.unlink()

    refused = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--dev", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    assert "offsets 1 to 1 lost" in refused.stderr
    with served(tmp_path, "--accept-damage"):
        assert [message["text"] for message in Terminal(tmp_path).json("peek", "orders")] == ["one", "three"]


def test_bench_measures_a_running_broker_and_cleans_up(terminal: Terminal) -> None:
    flat_out, calm = terminal.json("bench", "--count", "3000", "--size", "64")
    assert flat_out["messages"] == 3000
    assert flat_out["msgs_per_s"] > 0
    assert 0 < calm["p50_s"] <= calm["p99_s"]
    assert terminal.json("subscriptions") == []
