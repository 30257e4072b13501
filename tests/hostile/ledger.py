"""The hostile ledger: every attack against a broker with a bystander beside it, and what each cost, as a table.

    python -m tests.hostile.ledger --peers 1000 --only stranger

Ends with 1 when a process died, a message was lost, somebody waited for more than 100 ms because of an attack, or
memory rose by more than 64 MiB for one peer, 300 MiB for a thousand.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.feed.client import FeedClient
from headrace.feed.ticket import Ticket
from tests.harness.bystander import TOPIC, Figures, beside
from tests.harness.served import Served, served
from tests.hostile.attacks import ATTACKS, MIB, OWN, Attack, Site

CALM_KEY, SCOPED_KEY = ("hr_" + letter * 40 for letter in "cs")
DELAY_MAX_MS = 100.0
ROSE_MAX = {1: 64 * MIB, 1000: 300 * MIB}
CONFIG = f"""
[[auth.api_keys]]
name = "calm"
key = "{CALM_KEY}"

[[auth.api_keys]]
name = "scoped"
key = "{SCOPED_KEY}"
publish = ["{OWN}*"]
subscribe = ["{OWN}*"]
"""
DOORS = ("SSPQ", "FUJIN_TCP", "FUJIN", "GRPC", "FLIGHT")


@dataclass
class Target:
    """A broker under attack."""

    broker: Served
    site: Site
    pids: list[int]

    def processes(self) -> list[int]:
        """The broker, and the feed that runs now."""
        children = Path(f"/proc/{self.broker.process.pid}/task/{self.broker.process.pid}/children").read_text()
        return [self.broker.process.pid, *map(int, children.split())]

    def same_processes(self) -> bool:
        """Whether all of them still live."""
        return self.broker.process.poll() is None and self.processes() == self.pids

    def calm_values(self) -> int:
        """How many messages of the bystander there are, as the feed tells it."""
        ticket = Ticket(topics=(TOPIC.decode(),), columns=("offset",))
        with FeedClient(self.broker.endpoints["flight"], key=CALM_KEY, retry_s=10) as client:
            return sum(rows.num_rows for rows in client.read(ticket))


@contextmanager
def attacked(folder: Path) -> Iterator[Target]:
    """A broker with keys, all of its doors open, that a stranger may knock at."""
    config = folder / "headrace.toml"
    config.write_text(CONFIG)
    (folder / "data").mkdir(mode=0o700)
    open_doors = {f"LISTEN__{door}": "127.0.0.1:0" for door in DOORS}
    keyless = {"SSPQ__ALLOW_UNAUTHENTICATED": "true", "FUJIN__ALLOW_UNAUTHENTICATED": "true"}
    with served(folder / "data", "--config", str(config), dev=False, **open_doors, **keyless) as broker:
        target = Target(broker, Site(broker.ports, SCOPED_KEY), [])
        with FeedClient(broker.endpoints["flight"], key=CALM_KEY, retry_s=30) as client:
            client.span()
        target.pids = target.processes()
        yield target


def trial(attack: Attack, peers: int) -> tuple[Figures, str]:
    """One attack by so many peers; what it cost, and what is wrong with that."""
    with tempfile.TemporaryDirectory(prefix="headrace-attacked-") as folder, attacked(Path(folder)) as target:
        with beside(target.site.ports["blipmq"], CALM_KEY.encode(), target.pids) as figures:
            attack.act(target.site, peers)
        wrong = []
        if not target.same_processes():
            wrong.append("a process died")
        elif target.calm_values() != figures.confirmed:
            wrong.append("a message is gone")
        if figures.max_ms > DELAY_MAX_MS:
            wrong.append("others waited")
        if figures.rose_bytes > (ROSE_MAX[1] if peers == 1 else ROSE_MAX[1000]):
            wrong.append("memory")
        return figures, ", ".join(wrong)


def main() -> int:
    """Try every attack and print what it cost."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.ledger", description=__doc__)
    parser.add_argument("--peers", type=int, default=1)
    parser.add_argument("--only", default="", help="attacks with this in their names")
    asked = parser.parse_args()
    bad = 0
    out = sys.stdout
    out.write(f"{'attack':40} {'confirmed':>9} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'MiB':>6}\n")
    for attack in ATTACKS:
        if asked.only in attack.name:
            figures, wrong = trial(attack, asked.peers)
            bad += bool(wrong)
            rose = figures.rose_bytes / MIB
            out.write(f"{attack.name:40} {figures.confirmed:9} {figures.p50_ms:8.2f} {figures.p99_ms:8.2f} ")
            out.write(f"{figures.max_ms:8.1f} {rose:6.0f}  {wrong}\n")
            out.flush()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
