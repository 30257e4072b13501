"""`publish` and `consume` over every protocol against a real broker process: in by one door, out by another."""

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.protocols.grpcq.grpcq_pb2 import Message
from tests.harness.served import Served, served
from tests.harness.terminal import Terminal

QUEUE = "sspq"
CROSSINGS = [("fujin", "grpcq"), ("grpcq", "blipmq"), ("blipmq", "fujin"), ("grpcq", "grpcq"), ("fujin", "fujin")]
CROSSINGS_OF_THE_QUEUE = [("blipmq", "sspq"), ("sspq", "fujin"), ("grpcq", "sspq"), ("sspq", "sspq")]
SETTINGS: dict[str, Any] = {"RETRY__MAX_ATTEMPTS": "1", "RETRY__ACK_WAIT_MS": "30000", "GRPCQ__MAX_ATTEMPTS": "1"}
SETTINGS |= {f"LISTEN__{name}": "127.0.0.1:0" for name in ("SSPQ", "FUJIN", "FUJIN_TCP", "GRPC")}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    """A broker of one's own: SSPQ has a single queue."""
    with served(tmp_path, dev=True, **SETTINGS) as running:
        yield running


@pytest.fixture
def alone(broker: Served, tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    directory = tmp_path_factory.mktemp("shared")
    with served(directory, dev=True, **SETTINGS) as running:
        yield running, directory


@pytest.fixture
def terminal(shared: tuple[Served, Path]) -> Terminal:
    """Commands to a broker that other tests use too."""
    return Terminal(shared[1])


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic no other test uses."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def values(out: str) -> list[bytes]:
    return [base64.b64decode(json.loads(line)["value"]) for line in out.splitlines()]


def life_once_acked(terminal: Terminal, offset: int) -> dict[str, Any]:
    """Settling over SSPQ has no answer, so it may take a moment."""
    while True:
        (life,) = terminal.json("trace", str(offset))
        if any(event["event"] == "acked" for event in life["events"]):
            return life


def cross(terminal: Terminal, topic: str, into: str, out_of: str) -> None:
    with terminal.consuming(topic, "-p", out_of, "-n", "3", "--json") as consumer:
        (sent,) = terminal.json("publish", topic, "one", "two", "three", "-p", into)
        out, err = consumer.communicate(timeout=30)
    assert (sent["published"], sent["protocol"], sent["durable"]) == (3, into, into != "sspq")
    assert consumer.returncode == 0
    assert "received 3, acknowledged 3" in err
    found = values(out)
    if into == "grpcq" and out_of != "grpcq":
        found = [Message.FromString(envelope).payload for envelope in found]
    assert found == [b"one", b"two", b"three"]

    first, *_ = terminal.json("peek", topic)
    life = life_once_acked(terminal, first["offset"])
    assert life["message"]["protocol"] == into
    told = terminal.run("trace", str(first["offset"])).stdout
    assert f"published  over {into}" in told
    if out_of != "blipmq":
        assert {event["name"] for event in life["events"]} == {out_of}
        assert f"acked      over {out_of}" in told


@pytest.mark.parametrize(("into", "out_of"), CROSSINGS)
def test_a_message_goes_in_by_one_door_and_out_by_another(
    terminal: Terminal, topic: str, into: str, out_of: str
) -> None:
    cross(terminal, topic, into, out_of)


@pytest.mark.parametrize(("into", "out_of"), CROSSINGS_OF_THE_QUEUE)
def test_a_message_goes_into_the_queue_and_out_of_it(alone: Terminal, into: str, out_of: str) -> None:
    cross(alone, QUEUE, into, out_of)


@pytest.mark.parametrize("protocol", ["fujin", "grpcq"])
def test_lines_of_standard_input_arrive_byte_for_byte(terminal: Terminal, topic: str, protocol: str) -> None:
    lines = [b"%d \xff\x00" % number for number in range(2500)]
    with terminal.consuming(topic, "-p", protocol, "-n", "2500", "--json") as consumer:
        terminal.run("publish", topic, "-p", protocol, given=b"\n".join(lines))
        out, _ = consumer.communicate(timeout=60)
    assert values(out) == lines


def test_what_grpcq_carries_is_told(terminal: Terminal, topic: str) -> None:
    asked = ("--service", "shop.Orders", "--action", "Placed", "--id", "order-7", "-H", "customer=c7", "-H", "a=x=y")
    terminal.run("publish", topic, "a lamp", "-p", "grpcq", *asked)
    (found,) = terminal.json("consume", topic, "-p", "grpcq", "-n", "1")
    assert (found["id"], found["service"], found["action"]) == ("order-7", "shop.Orders", "Placed")
    assert found["headers"] == {"customer": "c7", "a": "x=y"}
    assert (found["attempt"], found["text"]) == (1, "a lamp")
    told = terminal.run("trace", "order-7").stdout
    assert "a lamp" in told
    assert "customer=c7" in told
    assert terminal.run("peek", topic).stdout.rstrip().endswith("a lamp")


def test_headers_of_fujin_reach_a_grpcq_consumer(terminal: Terminal, topic: str) -> None:
    terminal.run("publish", topic, "a kite", "-p", "fujin", "--header", "customer=c8")
    (found,) = terminal.json("consume", topic, "-p", "grpcq", "-n", "1", "--push")
    assert (found["text"], found["originator"]) == ("a kite", "fujin")
    assert found["headers"]["customer"] == "c8"


@pytest.mark.parametrize(("protocol", "way"), [("fujin", "--push"), ("fujin", "--pull"), ("grpcq", "--push")])
def test_what_is_refused_is_a_dead_letter_and_can_be_sent_back(
    terminal: Terminal, topic: str, protocol: str, way: str
) -> None:
    terminal.run("publish", topic, "one", "-p", protocol)
    refused = terminal.run("consume", topic, "-p", protocol, "-n", "1", "--nack", way)
    assert "received 1, refused 1" in refused.stderr
    (letter,) = terminal.json("deadletters", "list", "--topic", topic)
    assert (letter["origin_topic"], letter["attempts"]) == (topic, 1)
    shown = terminal.run("deadletters", "show", str(letter["offset"])).stdout
    assert shown.splitlines()[-1].split() == ["value", "one"]
    terminal.run("deadletters", "redrive", "--topic", topic)
    (again,) = terminal.json("consume", topic, "-p", protocol, "-n", "1", way)
    assert again["text"] == "one"


def test_auto_commit_settles_what_was_delivered(terminal: Terminal, topic: str) -> None:
    terminal.run("publish", topic, "one", "two", "-p", "fujin")
    assert terminal.run("consume", topic, "-p", "fujin", "--auto-commit", "-n", "1").stdout == "one\n"
    assert terminal.run("consume", topic, "-p", "fujin", "-n", "1").stdout == "two\n"
    (reader,) = (item for item in terminal.json("subscriptions") if item["topic"] == topic)
    assert (reader["name"], reader["acked"], reader["pending"], reader["in_flight"]) == ("fujin", 2, 0, 0)
    (found,) = (item for item in terminal.json("topics") if item["topic"] == topic)
    assert found["shared_by"] == ["fujin"]


def test_fujin_over_tcp_trusts_the_data_directory_too(
    terminal: Terminal, shared: tuple[Served, Path], topic: str
) -> None:
    url = f"tls://127.0.0.1:{shared[0].ports['fujin_tcp']}"
    terminal.run("publish", topic, "one", "-p", "fujin", "--endpoint", url)
    assert terminal.run("consume", topic, "-p", "fujin", "-n", "1", "--endpoint", url).stdout == "one\n"


@pytest.mark.parametrize("protocol", ["fujin", "grpcq"])
def test_ctrl_c_ends_a_consumer_and_the_shared_subscription_stays(
    terminal: Terminal, topic: str, protocol: str
) -> None:
    with terminal.consuming(topic, "-p", protocol, "--format", "{topic}:{size}") as consumer:
        assert consumer.stdout
        terminal.run("publish", topic, "one", "-p", protocol)
        assert consumer.stdout.readline() == f"{topic}:3\n"
        consumer.send_signal(signal.SIGINT)
        _, err = consumer.communicate(timeout=30)
    assert "received 1" in err
    assert "Traceback" not in err
    assert consumer.returncode == 0
    assert [item["name"] for item in terminal.json("subscriptions") if item["topic"] == topic] == [protocol]


def test_a_wrong_key_is_refused_over_grpcq(terminal: Terminal) -> None:
    for arguments in (("publish", "orders", "hi"), ("consume", "orders", "-n", "1")):
        err = terminal.run(*arguments, "-p", "grpcq", "--key", "wrong", code=1).stderr
        assert "refused the key" in err
        assert "headrace keys new" in err


def test_a_bad_queue_name_is_refused_in_the_brokers_words(terminal: Terminal) -> None:
    assert "bad queue name" in terminal.run("publish", "an order", "hi", "-p", "grpcq", code=1).stderr


def test_doctor_knows_every_door_of_a_running_broker(
    terminal: Terminal, shared: tuple[Served, Path], tmp_path: Path
) -> None:
    listen = "".join(f'{name} = "127.0.0.1:{port}"\n' for name, port in shared[0].ports.items())
    config = tmp_path / "headrace.toml"
    config.write_text(f'[listen]\n{listen}flight = ""\n')
    found = {row["check"]: row for row in terminal.json("doctor", "--config", str(config))}
    for door in ("blipmq", "sspq", "fujin", "fujin_tcp", "grpc", "http"):
        assert "in use by the broker of this data directory" in found[f"port {door}"]["detail"]
    assert "valid until" in found["certificate"]["detail"]
    assert found["qh3"]["state"] == found["grpcio"]["state"] == "ok"


def test_an_sspq_message_that_is_not_confirmed_is_dead_and_asked_for(alone: Terminal) -> None:
    told = alone.run("publish", QUEUE, "a label", "-p", "sspq", "--retries", "0").stdout
    assert "not confirmed" in told
    assert alone.run("consume", QUEUE, "-p", "sspq", "-n", "1", "--no-ack").stdout == "a label\n"
    (found,) = alone.json("consume", QUEUE, "-p", "sspq", "-n", "1", "--dead")
    assert (found["text"], found["dead"], found["retries"]) == ("a label", True, 0)


@pytest.mark.parametrize("protocol", ["sspq", "fujin", "grpcq"])
def test_a_consumer_says_that_the_broker_is_gone(alone: Terminal, broker: Served, protocol: str) -> None:
    with alone.consuming(QUEUE, "-p", protocol) as consumer:
        assert consumer.stdout
        alone.run("publish", QUEUE, "one")
        consumer.stdout.readline()
        broker.process.kill()
        _, err = consumer.communicate(timeout=60)
    assert consumer.returncode == 1
    assert "headrace: " in err
    assert "Traceback" not in err
