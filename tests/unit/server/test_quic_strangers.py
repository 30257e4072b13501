"""What strangers may cost: the accounts, and the queue in which they wait."""

import random

import pytest

from headrace.quic.datagrams import Address
from headrace.server.quic_strangers import (
    ALL_MAX,
    BYTE_COST,
    CONNECTION_COST,
    EACH_MAX,
    WAITING_ALL_MAX,
    WAITING_EACH_MAX,
    Queue,
    Strangers,
)

MIB = 1 << 20


def at(number: int) -> Address:
    return f"192.0.2.{number % 256}", 1000 + number // 256


def test_the_bounds_are_those_that_are_promised() -> None:
    assert EACH_MAX <= MIB
    assert ALL_MAX + EACH_MAX + WAITING_ALL_MAX * 1500 <= 64 * MIB


def test_one_address_is_charged_for_all_its_connections() -> None:
    strangers: Strangers[int] = Strangers()
    begun = 0
    while strangers.affords(at(1)):
        strangers.begin(begun, at(1))
        begun += 1
    assert begun == EACH_MAX // CONNECTION_COST
    assert strangers.affords(at(2))
    assert not strangers.more(0, 1200)
    for who in range(1, begun):
        strangers.over(who)
    taken = 0
    while strangers.more(0, 1200):
        taken += 1200
    assert taken // 1200 == (EACH_MAX - CONNECTION_COST) // (1200 * BYTE_COST)
    strangers.over(0)
    strangers.over(0)
    assert strangers.affords(at(1))
    assert len(strangers) == 0


def test_nobody_is_sent_away_while_there_is_room_and_then_who_costs_most() -> None:
    strangers: Strangers[int] = Strangers(all_max=10 * CONNECTION_COST)
    for who in range(10):
        strangers.begin(who, at(who))
        assert strangers.excess() is None
    assert strangers.more(7, 1)
    assert strangers.excess() == 7
    strangers.over(7)
    strangers.begin(10, at(10))
    strangers.begin(11, at(11))
    assert strangers.excess() == 0, "the first to come, of those that cost the same"


def test_who_is_in_is_not_charged() -> None:
    strangers: Strangers[str] = Strangers()
    assert strangers.more("somebody", 1 << 30)
    assert "somebody" not in strangers


@pytest.mark.parametrize("seed", range(20))
def test_accounts_balance(seed: int) -> None:
    """Whatever comes and goes, in the end nobody is charged for anything."""
    chance = random.Random(seed)
    strangers: Strangers[int] = Strangers(all_max=2 * MIB)
    known: list[int] = []
    for number in range(2000):
        match chance.randrange(4):
            case 0 if strangers.affords(at(number % 7)):
                strangers.begin(number, at(number % 7))
                known.append(number)
            case 1 if known:
                strangers.more(chance.choice(known), chance.randrange(1500))
            case 2 if known:
                strangers.over(known.pop(chance.randrange(len(known))))
            case 3:
                while (costly := strangers.excess()) is not None:
                    known.remove(costly)
                    strangers.over(costly)
    for who in known:
        strangers.over(who)
    assert len(strangers) == 0
    for number in range(7):
        assert strangers.affords(at(number))
    assert strangers.excess() is None


def test_each_address_has_its_turn() -> None:
    queue = Queue()
    for number in range(WAITING_EACH_MAX * 2):
        queue.put(at(1), b"%d" % number)
    queue.put(at(2), b"two")
    queue.put(at(3), b"three")
    assert len(queue) == WAITING_EACH_MAX + 2
    assert [queue.take() for _ in range(4)] == [(at(1), b"0"), (at(2), b"two"), (at(3), b"three"), (at(1), b"1")]


def test_the_queue_is_bounded_and_ends() -> None:
    queue = Queue()
    for number in range(2 * WAITING_ALL_MAX):
        queue.put(at(number), b"")
    assert len(queue) == WAITING_ALL_MAX
    for _ in range(WAITING_ALL_MAX):
        queue.take()
    assert not queue
    with pytest.raises(LookupError):
        queue.take()
