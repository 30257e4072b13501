"""Whatever a stranger or a key with a narrow scope does: the processes live, others are served, memory is bounded.

How long others waited goes into the ledger that `python -m tests.hostile.ledger` prints; times are judged there, by
`make torture`, never here.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.harness.bystander import beside
from tests.hostile.attacks import ATTACKS, MIB, Attack
from tests.hostile.ledger import CALM_KEY, Target, attacked

ONE_PEER_MAX = 64 * MIB


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Shared"]:
    with ExitStack() as stack:
        yield Shared(tmp_path_factory.mktemp("attacked"), stack)


class Shared:
    """One broker for attack after attack, and a new one when it did not survive the last."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._target: Target | None = None
        self.confirmed = 0

    def target(self) -> Target:
        """A broker that lives."""
        if self._target is None or not self._target.same_processes():
            folder = Path(mkdtemp(dir=self._folder))
            self._target, self.confirmed = self._stack.enter_context(attacked(folder)), 0
        return self._target


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.name)
def test_an_attack_hurts_only_its_author(attack: Attack, shared: Shared) -> None:
    target = shared.target()
    with beside(target.site.ports["blipmq"], CALM_KEY.encode(), target.pids) as figures:
        attack.act(replace(target.site, patience_s=1.0), 1)
    shared.confirmed += figures.confirmed
    assert target.same_processes(), "the broker or its feed died"
    assert target.calm_values() == shared.confirmed, "the bystander's messages are not what it was promised"
    assert figures.rose_bytes <= ONE_PEER_MAX, f"{figures.rose_bytes / MIB:.0f} MiB for one peer"
