"""Seeded worlds in which all four doors of one broker are used and abused at once.

A failure names its seed; `python -m pytest tests/simulation/doors --seed N` runs the same world again.
"""

import os
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.simulation.doors.blipmq_peers import BlipmqConsumer, BlipmqNewcomer, BlipmqPublisher, Team
from tests.simulation.doors.fujin_peers import FujinReader, FujinWriter
from tests.simulation.doors.grpcq_peers import GrpcqConsumer, GrpcqPublisher, GrpcqRepeater, GrpcqStreamer
from tests.simulation.doors.peer import Peer
from tests.simulation.doors.sspq_peers import SspqReceiver, SspqSender
from tests.simulation.doors.world import LATE, PLAIN, QUEUE, SHORT, World

SEEDS = 30
ROOT = Path(__file__).resolve().parents[3]


def everybody(world: World) -> list[Coroutine[Any, Any, None]]:
    """Publishers at every door, and at least one honest consumer, once it is calm, for every subscription."""
    teams = [Team(PLAIN, 1), Team(QUEUE, 1), Team(PLAIN, 0)]
    readers: list[FujinReader] = []
    peers: list[Peer] = [
        BlipmqPublisher(world, "blipmq-publisher"),
        BlipmqNewcomer(world, "blipmq-newcomer"),
        SspqSender(world, "sspq-sender"),
        FujinWriter(world, "fujin-writer"),
        GrpcqPublisher(world, "grpcq-publisher"),
        GrpcqRepeater(world, "grpcq-repeater"),
        *(SspqReceiver(world, f"sspq-receiver-{n}", dead=False) for n in range(3)),
        SspqReceiver(world, "sspq-undertaker", dead=True),
        *(BlipmqConsumer(world, f"blipmq-consumer-{n}", teams[n % len(teams)]) for n in range(5)),
    ]
    for topic in (PLAIN, QUEUE, SHORT, LATE):
        peers.append(FujinReader(world, f"fujin-reader-{topic}", topic, readers))
        peers.append(GrpcqConsumer(world, f"grpcq-consumer-{topic}", topic))
    peers.append(FujinReader(world, "fujin-reader-2", PLAIN, readers))
    peers.append(FujinReader(world, "fujin-reader-3", PLAIN, readers))
    peers.append(GrpcqStreamer(world, "grpcq-streamer-1", PLAIN))
    peers.append(GrpcqStreamer(world, "grpcq-streamer-2", QUEUE))
    return [peer.live() for peer in peers]


def run(seed: int) -> World:
    """The world of a seed, until its end."""
    world = World(seed, everybody)
    try:
        world.run()
    except BaseException as failure:
        failure.add_note(f"replay with: python -m pytest tests/simulation/doors --seed {seed}")
        failure.add_note(world.trace.tail())
        raise
    return world


def test_a_world_with_four_doors(seed: int) -> None:
    world = run(seed)
    assert world.ledger.received


def test_the_same_seed_is_the_same_world() -> None:
    assert run(3).trace.digest == run(3).trace.digest


def test_another_process_sees_the_same_world() -> None:
    """Neither addresses in memory nor the order of sets and hashes decide anything."""
    command = [sys.executable, "-m", "tests.simulation.doors.test_doors", "3"]
    digests = {
        subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True
        ).stdout
        for salt in ("1", "2")
    }
    assert len(digests) == 1


if __name__ == "__main__":
    sys.stdout.write(run(int(sys.argv[1])).trace.digest)
