"""kill -9 under load, again and again on one data directory: what was fenced is there, what was acked stays acked.

`make test` runs 100 cycles; `make torture` 1,000 and more (HEADRACE_KILL_CYCLES).
"""

import os
import random
import struct
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.harness.peer import ACK, PING, POLL, Peer, frame, publish
from tests.harness.served import served

CYCLES = int(os.environ.get("HEADRACE_KILL_CYCLES", "100"))
LANES = 4
BURST = 50
TOPIC = b"torture"
SETTINGS = {
    "RETRY__MAX_ATTEMPTS": "60000",
    "RETRY__BACKOFF_MS": "1",
    "LOG__SEGMENT_BYTES": "262144",
    "LOG__SNAPSHOT_BYTES": "131072",
}


class Ledger:
    """What the clients know for certain, and what they only tried."""

    def __init__(self) -> None:
        self.next = 0
        self.subscription = 0
        self.fenced: set[int] = set()
        self.ack_sent: set[int] = set()
        self.ack_fenced: set[int] = set()
        self.highest_first = -1

    def publish(self, peer: Peer) -> None:
        """Bursts with a fence behind each, until the connection breaks."""
        try:
            while True:
                numbers = range(self.next, self.next + BURST)
                self.next += BURST
                peer.send(b"".join(publish(TOPIC, b"%d" % n, n) for n in numbers) + frame(PING, 0))
                assert not peer.until_pong()
                self.fenced.update(numbers)
        except OSError:
            peer.close()

    def consume(self, peer: Peer) -> None:
        """Take, check, ack and fence the ack, until the connection breaks."""
        try:
            while True:
                self.settle(peer, self.take(peer))
        except OSError:
            peer.close()

    def take(self, peer: Peer) -> list[tuple[int, int]]:
        poll = frame(POLL, 0, struct.pack(">Q", self.subscription))
        peer.send(poll * BURST + frame(PING, 0))
        found = [(tag, int(value)) for tag, value in peer.until_pong()]
        for _, number in found:
            assert number not in self.ack_fenced, f"{number} was acked and came again"
        fresh = [number for _, number in found if number > self.highest_first]
        assert fresh == sorted(fresh), "first deliveries out of order"
        if fresh:
            self.highest_first = fresh[-1]
        return found

    def settle(self, peer: Peer, found: list[tuple[int, int]]) -> None:
        numbers = {number for _, number in found}
        subscription = struct.pack(">Q", self.subscription)
        self.ack_sent |= numbers
        peer.send(b"".join(frame(ACK, tag, subscription) for tag, _ in found) + frame(PING, 0))
        assert not peer.until_pong()
        self.ack_fenced |= numbers

    def reconcile(self, port: int) -> None:
        """After a restart: every fenced message was acked or is still to be had."""
        peer = Peer(port)
        missing = self.fenced - self.ack_sent
        while missing:
            found = self.take(peer)
            self.settle(peer, found)
            missing -= {number for _, number in found}
        peer.close()


@pytest.mark.parametrize("lane", range(LANES))
def test_nothing_fenced_is_lost_and_nothing_acked_comes_again(lane: int, tmp_path: Path) -> None:
    chance = random.Random(lane)
    ledger = Ledger()
    with served(tmp_path, dev=True, **SETTINGS) as broker:
        peer = Peer(broker.port)
        ledger.subscription = peer.subscribe(TOPIC)
        peer.close()
    for _ in range(CYCLES // LANES):
        with served(tmp_path, dev=True, **SETTINGS) as broker, ThreadPoolExecutor() as load:
            ledger.reconcile(broker.port)
            publisher, subscriber = Peer(broker.port), Peer(broker.port)
            work = [load.submit(ledger.publish, publisher), load.submit(ledger.consume, subscriber)]
            early = wait(work, timeout=chance.uniform(0.0, 0.3), return_when=FIRST_COMPLETED).done
            broker.process.kill()
            for task in work:
                task.result()
            assert not early, "the broker hung up before it was killed"
    with served(tmp_path, dev=True, **SETTINGS) as broker:
        ledger.reconcile(broker.port)
    assert ledger.fenced
    assert ledger.fenced <= ledger.ack_sent
