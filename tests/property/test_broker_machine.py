"""Hypothesis drives the broker against the plain model, operation by operation, and shrinks what goes wrong."""

from collections.abc import Hashable

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.model.batch import ATTEMPTS_UNLIMITED
from tests.simulation.world import TOPICS, World

PICK = st.integers(0, 2)
CONSUMER = st.sampled_from(["ann", "bob"])


class BrokerMachine(RuleBasedStateMachine):
    """Each rule is an operation of the world, which checks it; the invariant is that both sides count alike."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.taken: dict[int, list[int]] = {}

    def subscribed(self) -> bool:
        return bool(self.world.model.subscriptions)

    def subscription(self, pick: int) -> int:
        known = sorted(self.world.model.subscriptions)
        return known[pick % len(known)]

    @initialize(topic=st.sampled_from(TOPICS), qos=st.sampled_from([1, 1, 0]), count=st.integers(1, 12))
    def begin(self, topic: str, qos: int, count: int) -> None:
        self.world.subscribe(topic, qos)
        self.world.publish(topic, count)
        self.world.sync()

    def crowded(self) -> bool:
        return len(self.world.model.subscriptions) > 2

    @rule(
        topic=st.sampled_from(TOPICS),
        count=st.integers(1, 6),
        qos=st.sampled_from([1, 1, 0]),
        delay_us=st.sampled_from([0, 0, 100_000]),
        ttl_us=st.sampled_from([0, 0, 150_000]),
        max_attempts=st.sampled_from([0, 1, 4, ATTEMPTS_UNLIMITED]),
        visible=st.sampled_from([True, True, False]),
    )
    def publish(
        self, topic: str, count: int, qos: int, delay_us: int, ttl_us: int, max_attempts: int, visible: bool
    ) -> None:
        self.world.publish(topic, count, qos=qos, delay_us=delay_us, ttl_us=ttl_us, max_attempts=max_attempts)
        if visible:
            self.world.sync()

    @precondition(lambda self: not self.crowded())
    @rule(
        topic=st.sampled_from(TOPICS), qos=st.integers(0, 1), name=st.sampled_from(["", "team"]), earliest=st.booleans()
    )
    def subscribe(self, topic: str, qos: int, name: str, earliest: bool) -> None:
        self.world.subscribe(topic, qos, name=name, earliest=earliest)

    @precondition(subscribed)
    @rule(pick=PICK, limit=st.integers(1, 12), consumer=st.none() | CONSUMER)
    def take(self, pick: int, limit: int, consumer: Hashable | None) -> None:
        identity = self.subscription(pick)
        self.taken[identity] = self.world.take(identity, limit, consumer)

    @precondition(subscribed)
    @rule(pick=PICK, limit=st.integers(3, 6))
    def exchange(self, pick: int, limit: int) -> None:
        self.world.exchange(self.subscription(pick), limit)

    @precondition(subscribed)
    @rule(pick=PICK, chosen=st.lists(st.integers(0, 11), min_size=1, max_size=6), nack=st.booleans())
    def settle_what_was_taken(self, pick: int, chosen: list[int], nack: bool) -> None:
        identity = self.subscription(pick)
        ids = self.taken.get(identity)
        if ids:
            self.world.settle(identity, [ids[index % len(ids)] for index in chosen], negatively=nack)

    @precondition(subscribed)
    @rule(pick=PICK, ids=st.lists(st.integers(-1, 30), min_size=1, max_size=4), nack=st.booleans())
    def settle_anything(self, pick: int, ids: list[int], nack: bool) -> None:
        self.world.settle(self.subscription(pick), ids, negatively=nack)

    @precondition(subscribed)
    @rule(pick=PICK, consumer=CONSUMER)
    def wait(self, pick: int, consumer: Hashable) -> None:
        self.world.wait(self.subscription(pick), consumer)

    @rule(consumer=CONSUMER)
    def release(self, consumer: Hashable) -> None:
        self.world.release(consumer)

    @precondition(crowded)
    @rule(pick=PICK)
    def unsubscribe(self, pick: int) -> None:
        self.world.unsubscribe(self.subscription(pick))

    @rule(reader=st.sampled_from(["lake", "archive"]), share=st.none() | st.floats(0, 1))
    def report(self, reader: str, share: float | None) -> None:
        self.world.report(reader, None if share is None else int(share * self.world.log.next_offset))

    @rule(writer=st.sampled_from(["query", "job"]), chunks=st.integers(1, 3))
    def transact(self, writer: str, chunks: int) -> None:
        self.world.transact(writer, chunks)

    @rule(passed_us=st.sampled_from([1000, 60_000, 130_000, 500_000, 2_000_000]), tick=st.booleans())
    def pass_time(self, passed_us: int, tick: bool) -> None:
        self.world.now += passed_us
        if tick:
            self.world.tick()

    @rule()
    def pass_most_of_a_minute(self) -> None:
        self.world.now += 40_000_000
        self.world.tick()

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule()
    def refuse(self) -> None:
        self.world.refuse()

    @rule(share=st.floats(0, 1))
    def crash(self, share: float) -> None:
        unsynced = len(self.world.log.records) - self.world.log.synced
        self.world.crash(round(share * unsynced))

    @rule(share=st.floats(0.1, 0.9))
    def retire(self, share: float) -> None:
        self.world.retire(share)

    @invariant()
    def both_count_alike(self) -> None:
        self.world.check_messages()


TestBrokerMachine = BrokerMachine.TestCase
TestBrokerMachine.settings = settings(
    max_examples=400,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
