from headrace.broker.alarms import NEVER, SLACK, Alarms


def due(alarms: Alarms[int], now: int) -> list[int]:
    keys = []
    while (key := alarms.pop(now)) is not None:
        keys.append(key)
    return keys


def test_keys_come_when_they_are_due_and_only_once() -> None:
    alarms: Alarms[int] = Alarms()
    for key, at in ((1, 30), (2, 10), (3, 20)):
        alarms.wake_by(key, at)
    assert alarms.next_due() == 10
    assert due(alarms, 20) == [2, 3]
    assert due(alarms, 29) == []
    assert due(alarms, 30) == [1]
    assert alarms.next_due() == NEVER


def test_an_earlier_time_replaces_a_later_one_and_not_the_other_way_round() -> None:
    alarms: Alarms[int] = Alarms()
    alarms.wake_by(1, 20)
    alarms.wake_by(1, 30)
    alarms.wake_by(1, 10)
    assert due(alarms, 10) == [1]
    assert due(alarms, 99) == []


def test_a_cancelled_key_does_not_come() -> None:
    alarms: Alarms[int] = Alarms()
    alarms.wake_by(1, 10)
    alarms.cancel(1)
    alarms.cancel(2)
    assert alarms.next_due() == NEVER
    assert due(alarms, 99) == []


def test_replaced_times_do_not_pile_up() -> None:
    alarms: Alarms[int] = Alarms()
    for now in range(10_000):
        alarms.wake_by(1, now + 1_000_000)
        alarms.wake_by(1, now)
        assert due(alarms, now) == [1]
    assert len(alarms) <= SLACK + 2
