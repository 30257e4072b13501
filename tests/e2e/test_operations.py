"""What an operator does to a running broker: new keys, a graceful stop, old segments, a long backlog."""

import json
import os
import signal
import struct
from pathlib import Path

import pytest

from headrace.testing import broker
from tests.harness.clock import TurnedClock
from tests.harness.peer import ACK, NACK, PING, POLL, Peer, frame, handshake, publish
from tests.harness.served import Served, served
from tests.harness.stream import connected

MIB = 1 << 20


def answers(running: Served, key: bytes) -> list[int]:
    peer = Peer(running.port, silent=True)
    peer.send(handshake(key))
    found = [peer.read()[0], peer.read()[0]]
    peer.close()
    return found


def test_keys_are_read_anew_on_sighup_and_who_came_by_an_old_one_is_cut_off(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[auth]\napi_keys = ["old-key"]\n')
    with served(tmp_path, "--config", str(config), dev=False) as running:
        assert answers(running, b"old-key") == [ACK, ACK]
        insider = Peer(running.port, silent=True)
        insider.send(handshake(b"old-key"))
        assert [insider.read()[0], insider.read()[0]] == [ACK, ACK]
        config.write_text('[auth]\napi_keys = ["new-key"]\n')
        running.process.send_signal(signal.SIGHUP)
        running.wait_for_log("keys.reloaded")
        assert answers(running, b"new-key") == [ACK, ACK]
        assert answers(running, b"old-key") == [ACK, NACK]
        with pytest.raises(ConnectionError):
            insider.read()


def test_a_broken_configuration_on_sighup_changes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[auth]\napi_keys = ["old-key"]\n')
    with served(tmp_path, "--config", str(config), dev=False) as running:
        config.write_text("[auth]\napi_kyes = []\n")
        running.process.send_signal(signal.SIGHUP)
        assert "api_kyes" in json.dumps(running.wait_for_log("keys.reload_failed"))
        assert answers(running, b"old-key") == [ACK, ACK]


def test_sigterm_answers_what_was_asked_and_exits_zero(tmp_path: Path) -> None:
    with served(tmp_path) as running:
        peer = Peer(running.port)
        peer.send(b"".join(publish(b"demo", b"%d" % n) for n in range(1000)) + frame(PING, 0))
        peer.until_pong()
        running.process.terminate()
        with pytest.raises(ConnectionError):
            peer.read()
        assert running.process.wait(30) == 0
    with served(tmp_path) as running:
        peer = Peer(running.port)
        peer.subscribe(b"demo")
        assert not list(tmp_path.glob("log/*.torn-*"))


def test_a_subscriber_far_behind_costs_no_memory_and_gets_everything_in_order(tmp_path: Path) -> None:
    count, burst = 1_000_000, 10_000
    with served(tmp_path, LOG__TAIL_CACHE_BYTES=str(8 * MIB), LIMITS__PENDING_BYTES_MAX=str(16 * MIB)) as running:
        peer = Peer(running.port)
        behind = peer.subscribe(b"deep")
        peer.send(publish(b"deep", bytes(100)) * 1000)
        peer.fence()
        before = running.resident_bytes()
        numbers = iter(range(count))
        for _ in range(count // burst):
            peer.send(b"".join(publish(b"deep", b"%0100d" % next(numbers)) for _ in range(burst)))
            peer.fence()
        assert running.resident_bytes() - before < 32 * MIB
        poll = frame(POLL, 0, struct.pack(">Q", behind)) * burst
        got: list[bytes] = []
        while len(got) < count + 1000:
            peer.send(poll)
            deliveries = peer.fence()
            peer.send(b"".join(frame(ACK, tag, struct.pack(">Q", behind)) for tag, _ in deliveries))
            got += [value for _, value in deliveries]
        assert [int(value) for value in got[1000:]] == list(range(count))
        assert running.resident_bytes() - before < 96 * MIB


async def test_hard_retention_drops_what_a_subscription_still_had_and_counts_it(tmp_path: Path) -> None:
    settings = {"segment_bytes": 65536, "retention_s": 1, "retention_hard": True, "snapshot_bytes": 65536}
    clock = TurnedClock()
    async with broker(tmp_path, clock=clock, log=settings) as node, connected(node) as peer:
        subscription = await peer.subscribe(b"demo")
        for _ in range(20):
            peer.send(publish(b"demo", os.urandom(16384)))
            await peer.fence()
        clock.ahead_us = 10_000_000
        node.engine.retire()
        await node.engine.drained(10)
        (info,) = node.engine.broker.subscriptions()
        assert info.dropped > 0
        assert info.dropped + info.pending == 20
        assert node.engine.log.first_offset > 0
        values = await peer.take(subscription, 20)
        assert len(values) == info.pending
