"""Exactly once into topics through the real broker, the real feed and real Flight; and two processes that die."""

import os
import select
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headrace.feed.client import FeedClient, FeedError
from headrace.feed.ticket import Ticket
from tests.harness.peer import PING, POLL, Peer, frame, publish
from tests.harness.served import Served, served

KEY = "dev-key"
ANY = "127.0.0.1:0"
DEADLINE_MS = 20_000


def rows(**columns: Any) -> list[pa.RecordBatch]:
    return [pa.record_batch(columns)]


def feed_of(broker: Served, key: str = KEY) -> FeedClient:
    return FeedClient(broker.endpoints["flight"], key=key)


def values(client: FeedClient, topic: str) -> list[bytes]:
    found: list[bytes] = []
    for batch in client.read(Ticket(topics=(topic,), columns=("value",))):
        found += batch.column("value").to_pylist()  # type: ignore[arg-type]
    return found


def feed_pid(broker: Served) -> int:
    children = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children").read_text().split()
    (pid,) = [int(child) for child in children if b"headrace.feed" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return pid


def ends(pidfd: int) -> bool:
    """Whether the process behind this descriptor ends before long."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(DEADLINE_MS))


def test_a_batch_is_there_once_whoever_commits_it_however_often(tmp_path: Path) -> None:
    with served(tmp_path, LISTEN__FLIGHT=ANY) as broker, feed_of(broker) as client:
        staged = [client.stage("job", 0, f"{part}", "out", rows(value=[b"%d" % part])) for part in range(3)]
        assert values(client, "out") == []
        assert client.commit("job", 0, staged) == {"replayed": False, "rows": 3, "skipped": 0}
        assert client.commit("job", 0, staged)["replayed"]
        assert client.committed("job") == 0
        broker.process.kill()
    with served(tmp_path, LISTEN__FLIGHT=ANY) as broker, feed_of(broker) as client:
        again = [client.stage("job", 0, "0", "out", rows(value=[b"again"]))]
        assert client.commit("job", 0, again)["replayed"]
        assert values(client, "out") == [b"0", b"1", b"2"]
        assert list((tmp_path / "staging").iterdir()) == []


def test_what_is_aborted_is_gone(tmp_path: Path) -> None:
    with served(tmp_path, LISTEN__FLIGHT=ANY) as broker, feed_of(broker) as client:
        staged = client.stage("job", 0, "0", "out", rows(value=[b"x"]))
        client.abort([staged])
        assert list((tmp_path / "staging").iterdir()) == []
        with pytest.raises(FeedError, match="stage it again") as refused:
            client.commit("job", 0, [staged])
        assert refused.value.code == "invalid"


def test_keys_say_who_writes_what(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(
        'auth.api_keys = [{ name = "ann", key = "ann-key", publish = ["a*"], subscribe = ["a*"] },'
        ' { name = "bob", key = "bob-key" }]\n'
    )
    with served(tmp_path, "--config", str(config), dev=False, LISTEN__FLIGHT=ANY) as broker:
        ann, bob = feed_of(broker, "ann-key"), feed_of(broker, "bob-key")
        for topic, words in (("b", "not allowed to publish to b"), ("$dead.a", "only the broker writes")):
            with pytest.raises(FeedError, match=words) as refused:
                ann.stage("job", 0, "0", topic, rows(value=[b"x"]))
            assert refused.value.code == "forbidden"
        with pytest.raises(FeedError) as refused:
            feed_of(broker, "eve-key").stage("job", 0, "0", "a", rows(value=[b"x"]))
        assert refused.value.code == "unauthenticated"
        mine = ann.stage("job", 0, "0", "a", rows(value=[b"ann"]))
        with pytest.raises(FeedError, match="was not staged"):
            bob.commit("job", 0, [mine])
        bob.commit("job", 9, [])
        assert not ann.commit("job", 0, [mine])["replayed"], "bob's batches are not ann's"
        config.write_text('auth.api_keys = [{ name = "eve", key = "eve-key" }]\n')
        broker.process.send_signal(signal.SIGHUP)
        broker.wait_for_log("keys.reloaded")
        assert feed_of(broker, "eve-key").committed("job") is None


def test_a_pipelines_lag_stands_beside_the_subscriptions(tmp_path: Path) -> None:
    with served(tmp_path, LISTEN__FLIGHT=ANY) as broker, feed_of(broker) as client:
        staged = client.stage("job", 0, "0", "out", rows(value=[b"1", b"2", b"3"]))
        client.commit("job", 0, [staged])
        client.report("lake", ["out"], 1)
        with pytest.raises(FeedError, match="beyond the end"):
            client.report("lake", None, 10**6)
        (reader,) = httpx.get(f"{broker.endpoints['http']}/api/subscriptions").json()["readers"]
        assert (reader["reader"], reader["offset"], reader["lag"]) == ("lake", 1, 2)


def test_the_feed_is_started_again_where_it_was_and_nobody_notices(tmp_path: Path) -> None:
    with served(tmp_path, LISTEN__FLIGHT=ANY) as broker, feed_of(broker) as client:
        staged = client.stage("job", 0, "0", "out", rows(value=[b"x"]))
        os.kill(feed_pid(broker), signal.SIGKILL)
        assert not client.commit("job", 0, [staged])["replayed"]
        assert values(client, "out") == [b"x"]
        assert broker.wait_for_log("feed.died")["code"] == -signal.SIGKILL


def test_the_feed_does_not_outlive_a_broker_that_is_killed(tmp_path: Path) -> None:
    with served(tmp_path, LISTEN__FLIGHT=ANY) as broker:
        watched = os.pidfd_open(feed_pid(broker))
        broker.process.kill()
        assert ends(watched)
        os.close(watched)


def test_a_drain_ends_both_and_a_start_finds_everything(tmp_path: Path) -> None:
    with served(tmp_path, LISTEN__FLIGHT=ANY) as broker, feed_of(broker) as client:
        client.commit("job", 0, [client.stage("job", 0, "0", "out", rows(value=[b"x"]))])
        watched = os.pidfd_open(feed_pid(broker))
        broker.process.terminate()
        assert broker.process.wait(30) == 0
        assert ends(watched)
        os.close(watched)
    with served(tmp_path, LISTEN__FLIGHT=ANY) as broker, feed_of(broker) as client:
        assert client.committed("job") == 0


def test_a_taken_port_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with served(tmp_path / "first", LISTEN__FLIGHT=ANY) as broker:
        taken = broker.endpoints["flight"].removeprefix("grpc://")
        with pytest.raises(AssertionError, match="headrace:"), served(tmp_path / "second", LISTEN__FLIGHT=taken):
            pass


def bury(broker: Served, api: httpx.Client, topic: str) -> int:
    """A message of this topic that died; the offset of its dead letter."""
    peer = Peer(broker.port)
    subscription = struct.pack(">Q", peer.subscribe(topic.encode()))
    peer.send(publish(topic.encode(), b"poison", 1) + frame(PING, 0))
    peer.until_pong()
    peer.send(frame(POLL, 0, subscription) + frame(PING, 0))
    peer.until_pong()
    peer.close()
    while not (found := api.get("/api/dead-letters").json()["dead_letters"]):
        pass
    return int(found[0]["offset"])


def test_a_copy_and_the_mark_of_its_dead_letter_come_together(tmp_path: Path) -> None:
    with (
        served(tmp_path, RETRY__MAX_ATTEMPTS="1", RETRY__BACKOFF_MS="1", LISTEN__FLIGHT=ANY) as broker,
        feed_of(broker) as client,
    ):
        api = httpx.Client(base_url=broker.endpoints["http"])
        letter = bury(broker, api, "out")
        copy = rows(value=[b"mended"], redriven_from=[letter])
        outcome = client.commit("redrive", 0, [client.stage("redrive", 0, "0", "out", copy)])
        assert (outcome["rows"], outcome["skipped"]) == (1, 0)
        assert api.get("/api/dead-letters").json()["dead_letters"][0]["redriven"]
        reply = api.post("/api/dead-letters/redrive", json={"offsets": [letter]})
        assert (reply.status_code, "already redriven" in reply.text) == (409, True)
        outcome = client.commit("another", 0, [client.stage("another", 0, "0", "out", copy)])
        assert (outcome["rows"], outcome["skipped"]) == (0, 1)
        assert values(client, "out") == [b"poison", b"mended"]
        wrong = rows(value=[b"x"], redriven_from=[letter + 1])
        with pytest.raises(FeedError, match=f"no dead letter of yours at offset {letter + 1}"):
            client.commit("redrive", 1, [client.stage("redrive", 1, "0", "out", wrong)])


def test_without_pyarrow_the_broker_serves_without_the_feed(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyarrow'] = None; from headrace.cli import main; sys.exit(main(sys.argv[1:]))"
    doors = {f"HEADRACE_LISTEN__{name}": "" for name in ("SSPQ", "FUJIN", "GRPC", "BLIPMQ")}
    environment = (
        os.environ | doors | {"HEADRACE_LISTEN__HTTP": "127.0.0.1:0", "HEADRACE_LISTEN__FLIGHT": "127.0.0.1:0"}
    )
    command = [sys.executable, "-c", program, "serve", "--dev", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "ready\n")
        said = [line.split()[:2] for line in lines if line.startswith("listening ")]
        process.terminate()
        errors = process.communicate()[1]
    assert said == [["listening", "http"]]
    assert "feed.unavailable" in errors
    assert "pip install 'headrace[feed]'" in errors
    assert process.returncode == 0
