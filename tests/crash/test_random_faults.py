"""Random appends, flushes, disk errors, crashes and reopenings against a plain list, for every sync policy."""

import errno

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from headrace.log import LogSettings, SyncPolicy
from tests.crash.faultdisk import Crash, FaultDisk, Survival
from tests.crash.witness import Witness

FAILURES = st.sampled_from(
    [
        ("segment.write", errno.ENOSPC),
        ("segment.write", errno.EIO),
        ("segment.sync", errno.EIO),
        ("segment.truncate", errno.EIO),
        ("new-segment.create", errno.ENOSPC),
        ("new-segment.write", errno.ENOSPC),
        ("new-segment.sync", errno.EIO),
        ("new-segment.rename", errno.EIO),
        ("directory.sync", errno.EIO),
        ("index.write", errno.ENOSPC),
    ]
)
CRASHES = st.sampled_from(
    [f"segment.{op}.{when}" for op in ("write", "sync") for when in ("before", "after")]
    + ["segment.write.torn", "segment.truncate.after", "new-segment.rename.after", "directory.sync.before"]
)
SEEDS = st.integers(0, 2**16)


class FaultyLog(RuleBasedStateMachine):
    """One log whose disk misbehaves; the test sets its policy."""

    policy = SyncPolicy()
    fill_bytes = 0

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.promised = 0
        self.disk = FaultDisk()
        self.settings = LogSettings(
            sync=self.policy, segment_bytes=4096, tail_cache_bytes=3000, fill_bytes=self.fill_bytes
        )
        self.witness = Witness(self.disk, self.settings)

    @rule(count=st.integers(1, 12), size=st.sampled_from([10, 200]))
    def publish(self, count: int, size: int) -> None:
        self.witness.publish(count, size)

    @rule()
    def settle(self) -> None:
        self.witness.settle()

    @rule()
    def transact(self) -> None:
        self.witness.transact()

    @rule(sync=st.booleans())
    def flush(self, sync: bool) -> None:
        self.now += 700
        self._flush(sync=sync)

    @rule()
    def fill(self) -> None:
        self.witness.fill()

    @rule(failure=FAILURES)
    def fill_on_a_failing_disk(self, failure: tuple[str, int]) -> None:
        self.disk.fail(*failure)
        self.witness.fill()
        self.disk.heal()

    @rule(point=CRASHES, survival=st.sampled_from(Survival), seed=SEEDS)
    def crash_in_a_fill(self, point: str, survival: Survival, seed: int) -> None:
        self.disk.crash_at(point, 1)
        try:
            self.witness.fill()
        except Crash:
            self._recover(survival, seed)
        self.disk.heal()

    @rule(failure=FAILURES, times=st.integers(1, 2))
    def flush_on_a_failing_disk(self, failure: tuple[str, int], times: int) -> None:
        self.witness.publish(4, 100)
        self.disk.fail(*failure, times)
        self._flush(sync=False)
        self.disk.heal()

    @rule(first=FAILURES, second=FAILURES)
    def flush_on_a_disk_failing_twice(self, first: tuple[str, int], second: tuple[str, int]) -> None:
        self.witness.settle()
        self.witness.publish(4, 100)
        self.disk.fail(*first)
        self.disk.fail(*second)
        self._flush(sync=True)
        self.disk.heal()

    @precondition(lambda self: self.witness.log.synced_offset == self.witness.log.durable_offset)
    @rule()
    def snapshot(self) -> None:
        self.witness.snapshot()

    @rule(point=CRASHES, passage=st.integers(1, 2), survival=st.sampled_from(Survival), seed=SEEDS)
    def crash_in_a_flush(self, point: str, passage: int, survival: Survival, seed: int) -> None:
        self.witness.publish(6, 150)
        self.disk.crash_at(point, passage)
        try:
            self._flush(sync=False)
        except Crash:
            self._recover(survival, seed)
        self.disk.heal()

    @rule(survival=st.sampled_from(Survival), seed=SEEDS)
    def crash(self, survival: Survival, seed: int) -> None:
        self._recover(survival, seed)

    @precondition(lambda self: not self.witness.underway and self.witness.log.failing is None)
    @rule()
    def reopen(self) -> None:
        self.witness.reopen(self.disk)
        self.promised = len(self.witness.visible)

    @invariant()
    def everything_visible_can_be_read(self) -> None:
        self.witness.check()

    def _flush(self, *, sync: bool) -> None:
        self.witness.flush(self.now, sync=sync)
        if self.witness.log.synced_offset == self.witness.log.durable_offset:
            self.promised = len(self.witness.visible)

    def _recover(self, survival: Survival, seed: int) -> None:
        """Only what was synced outlives a power failure; a killed process leaves everything visible behind."""
        witness = self.witness
        self.disk = self.disk.after_crash(survival, seed)
        may_lose = 0 if survival is Survival.KEPT else len(witness.visible) - self.promised
        witness.recover(self.disk, may_lose=may_lose)
        self.promised = len(witness.visible)


@pytest.mark.parametrize("fill_bytes", [0, 1500])
@pytest.mark.parametrize("policy", ["always", "every_n:20", "interval_ms:1", "none"])
def test_the_log_keeps_its_promises(policy: str, fill_bytes: int) -> None:
    class Machine(FaultyLog):
        pass

    Machine.policy = SyncPolicy.parse(policy)
    Machine.fill_bytes = fill_bytes
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
