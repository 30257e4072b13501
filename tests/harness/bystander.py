"""A well-behaved client in a process of its own, and the books of what others cost it and the broker.

It publishes and confirms some hundred times a second for as long as it is there, and remembers how long each took.
Memory is read from the system: how far the broker and its feed rose above what they had before.
"""

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.peer import PING, Peer, frame, publish

TOPIC = b"calm"
PACE_S = 0.004
PATIENCE_S = 120
LEAST = 50


@dataclass
class Figures:
    """What a bystander went through. Milliseconds; `rose_bytes` is how far broker and feed rose at their highest."""

    confirmed: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    rose_bytes: int = 0


@contextmanager
def beside(port: int, key: bytes, processes: list[int]) -> Iterator[Figures]:
    """A bystander for as long as the block lasts; its figures are there when it has ended."""
    figures = Figures()
    command = [sys.executable, "-m", "tests.harness.bystander", str(port), key.decode()]
    before = {pid: memory(pid) for pid in processes}
    for pid in processes:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    try:
        assert client.stdout.readline() == "begun\n"
        yield figures
        told = json.loads(client.communicate("enough\n", timeout=PATIENCE_S)[0])
    finally:
        client.kill()
        client.wait()
    for name, value in told.items():
        setattr(figures, name, value)
    figures.rose_bytes = sum(max(0, memory(pid, "VmHWM") - before[pid]) for pid in processes)


def memory(pid: int, which: str = "VmRSS") -> int:
    """What a process has in memory now, or had at most since it was last asked to forget (`VmHWM`)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{which}:")[1].split()[0]) * 1024


def main(port: int, key: bytes) -> None:
    """Publish and confirm until a line comes in; then tell the figures."""
    peer = Peer(port, key=key)
    peer.socket.settimeout(PATIENCE_S)
    taken: list[float] = []
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while len(taken) < LEAST or not select.select([sys.stdin], [], [], PACE_S)[0]:
        began = time.monotonic()
        peer.send(publish(TOPIC, b"%d" % len(taken)) + frame(PING, 0))
        assert peer.until_pong() == []
        taken.append((time.monotonic() - began) * 1000)
    taken.sort()
    told = {
        "confirmed": len(taken),
        "p50_ms": round(taken[len(taken) // 2], 2),
        "p99_ms": round(taken[len(taken) * 99 // 100], 2),
        "max_ms": round(taken[-1], 2),
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].encode())
