"""Seeded worlds: a thousand random operations each, with crashes that lose what was not synced.

A failure names its seed; `python -m pytest tests/simulation --seed N` runs the same world again.
"""

from collections.abc import Callable
from random import Random

from headrace.model.batch import ATTEMPTS_UNLIMITED
from tests.simulation.world import TAIL, TOPICS, World

SEEDS = 50
OPERATIONS = 1000
SUBSCRIPTIONS_MAX = 8
CONSUMERS = ("ann", "bob", "cid", None)


class Life:
    """What happens in a world, by chance."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World()
        self.taken: dict[int, list[int]] = {}

    def step(self) -> None:
        (operation,) = self.random.choices(OPERATION, WEIGHT)
        operation(self)

    def some_subscription(self) -> int | None:
        known = sorted(self.world.model.subscriptions)
        return self.random.choice(known) if known else None

    def publish(self) -> None:
        chance = self.random
        self.world.publish(
            chance.choice(TOPICS),
            chance.choice((1, 1, 2, 5, 12)),
            qos=chance.choice((1, 1, 1, 0)),
            delay_us=chance.choice((0, 0, 0, 0, 150_000, 2_000_000)),
            ttl_us=chance.choice((0, 0, 0, 0, 50_000, 1_500_000)),
            max_attempts=chance.choice((0, 0, 0, 1, 5, ATTEMPTS_UNLIMITED)),
        )

    def sync(self) -> None:
        self.world.sync()

    def subscribe(self) -> None:
        chance = self.random
        if len(self.world.model.subscriptions) < SUBSCRIPTIONS_MAX:
            self.world.subscribe(
                chance.choice(TOPICS),
                chance.choice((1, 1, 0)),
                name=chance.choice(("", "", "team", TAIL)),
                earliest=chance.random() < 0.3,
            )

    def unsubscribe(self) -> None:
        identity = self.some_subscription()
        if identity is not None:
            self.world.unsubscribe(identity)

    def take(self) -> None:
        identity = self.some_subscription()
        if identity is not None:
            limit = self.random.choice((1, 2, 3, 7, 20))
            consumer = self.random.choice(CONSUMERS)
            timed = consumer is None or self.random.random() < 0.6
            self.taken[identity] = self.world.take(identity, limit, consumer, timed=timed)

    def exchange(self) -> None:
        identity = self.some_subscription()
        if identity is not None:
            self.world.exchange(identity, self.random.choice((3, 4, 9)), self.random.choice(CONSUMERS))

    def wait(self) -> None:
        identity = self.some_subscription()
        if identity is not None:
            self.world.wait(identity, self.random.choice(CONSUMERS[:-1]))

    def settle(self) -> None:
        """Mostly what was taken last; sometimes out of order, twice, or never delivered at all."""
        identity = self.some_subscription()
        if identity is None:
            return
        chance = self.random
        ids = self.taken.get(identity) or [1]
        ids = chance.sample(ids, chance.randint(1, len(ids)))
        if chance.random() < 0.5:
            ids.sort()
        if chance.random() < 0.1:
            ids.append(chance.choice((ids[0], 0, -1, chance.randint(1, 200))))
        self.world.settle(identity, ids, negatively=chance.random() < 0.2)

    def release(self) -> None:
        self.world.release(self.random.choice(CONSUMERS[:-1]))

    def report(self) -> None:
        gone = self.random.random() < 0.1
        self.world.report(self.random.choice(("lake", "archive")), None if gone else self.world.log.durable_offset)

    def transact(self) -> None:
        self.world.transact(self.random.choice(("query", "job")), self.random.randint(1, 3))

    def pass_time(self) -> None:
        self.world.now += self.random.choice((1, 1000, 30_000, 120_000, 400_000, 1_200_000))
        if self.random.random() < 0.7:
            self.world.tick()

    def pass_long_time(self) -> None:
        self.world.now += self.random.choice((10_000_000, 45_000_000))
        self.world.tick()

    def save(self) -> None:
        self.world.save()

    def retire(self) -> None:
        self.world.retire(self.random.random() / 2)

    def restart(self) -> None:
        self.taken.clear()
        self.world.restart()

    def refuse(self) -> None:
        self.world.refuse()

    def crash(self) -> None:
        lost = len(self.world.log.records) - self.world.log.synced
        self.world.crash(self.random.randint(0, lost))


CHANCES: dict[Callable[[Life], None], int] = {
    Life.publish: 22,
    Life.sync: 10,
    Life.subscribe: 4,
    Life.unsubscribe: 1,
    Life.take: 20,
    Life.exchange: 4,
    Life.wait: 5,
    Life.settle: 24,
    Life.release: 2,
    Life.report: 2,
    Life.transact: 4,
    Life.pass_time: 14,
    Life.pass_long_time: 1,
    Life.save: 2,
    Life.retire: 1,
    Life.restart: 1,
    Life.refuse: 1,
    Life.crash: 2,
}
OPERATION = list(CHANCES)
WEIGHT = list(CHANCES.values())


def test_a_life_of_the_broker(seed: int) -> None:
    life = Life(seed)
    try:
        for number in range(OPERATIONS):
            life.step()
            if number % 8 == 0:
                life.world.check()
        life.world.restart()
    except BaseException as failure:
        failure.add_note(f"replay with: python -m pytest tests/simulation --seed {seed}")
        raise
