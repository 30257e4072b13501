"""Promises of room: never beyond the limit by more than one share, never lost, never starving; allowances."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.http2.ledger import Allowance, Ledger

LIMIT, SHARE = 100, 50


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcd"), st.integers(1, 60)), max_size=60))
def test_what_is_promised_is_bounded_and_given_back(steps: list[tuple[bool, str, int]]) -> None:
    ledger = Ledger(LIMIT, SHARE)
    held: dict[str, list[int]] = {name: [] for name in "abcd"}
    for taking, who, size in steps:
        if taking:
            before = ledger.promised
            if ledger.take(who, size):
                held[who].append(size)
                assert sum(held[who]) <= SHARE or len(held[who]) == 1
                assert ledger.promised <= LIMIT + SHARE
            else:
                assert ledger.promised == before
        elif held[who]:
            ledger.give(who, held[who].pop())
        assert ledger.promised == sum(map(sum, held.values()))
    for who, sizes in held.items():
        for size in sizes:
            ledger.give(who, size)
    assert not ledger.promised
    assert not ledger.holders


def test_whoever_waits_is_served_in_turn() -> None:
    ledger, got = Ledger(LIMIT, SHARE), []
    for who in "ab":
        assert ledger.take(who, 50)

    def wants(who: str) -> None:
        def again() -> bool:
            if not ledger.take(who, 30):
                return False
            got.append(who)
            return True

        assert not ledger.take("a", 30)
        ledger.wait(again)

    for who in ("a", "b"):
        wants(who)
    ledger.give("b", 50)
    assert got == ["b"], "a has its share"
    ledger.give("a", 50)
    assert got == ["b", "a"]


def test_a_holder_has_no_more_than_its_share_while_others_want_some() -> None:
    ledger = Ledger(LIMIT, SHARE)
    assert [ledger.take("greedy", 25) for _ in range(4)] == [True, True, False, False]
    assert ledger.take("other", 50)


@given(st.lists(st.floats(0, 100), max_size=200))
def test_an_allowance_is_never_exceeded(gaps: list[float]) -> None:
    allowance, now, spent = Allowance(10, 2.0), 0.0, 0
    for gap in gaps:
        now += gap
        spent += allowance.spend(now)
        assert spent <= 10 + 2.0 * now + 1


def test_an_allowance_comes_back_with_time_and_with_reasons() -> None:
    allowance = Allowance(3, 1.0)
    assert [allowance.spend(0.0) for _ in range(4)] == [True, True, True, False]
    assert [allowance.spend(2.0) for _ in range(3)] == [True, True, False]
    allowance.earn(2)
    assert [allowance.spend(2.0) for _ in range(3)] == [True, True, False]
