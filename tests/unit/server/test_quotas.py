"""The book of quotas against a plain model: what is open, and how fast things come."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.shares import Shares
from headrace.config import LimitsSection
from headrace.model.errors import BrokerError, Code
from headrace.server.quotas import REMEMBERED_MAX, SECOND_US, Kind, Lease, Quotas, Rate, is_loopback

OWNERS = ("ann", "bob", "*", "anonymous")
ADDRESSES = ("", "10.0.0.1", "10.0.0.2", "fe80::1", "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1")
OPEN = st.tuples(st.just("open"), st.sampled_from(Kind), st.sampled_from(OWNERS), st.sampled_from(ADDRESSES))
END = st.tuples(st.just("end"), st.integers(0, 30))


@given(
    st.lists(OPEN | END, max_size=60),
    st.fixed_dictionaries(
        {
            "connections_per_key_max": st.integers(0, 4),
            "streams_per_key_max": st.integers(0, 4),
            "streams_per_address_max": st.integers(0, 4),
        }
    ),
)
def test_nobody_has_more_open_than_allowed_and_nothing_leaks(actions: list[Any], limits: dict[str, int]) -> None:
    quotas = Quotas(LimitsSection(**limits))
    leases: list[tuple[Lease, Kind, str, str]] = []
    alive: list[int] = []
    for action in actions:
        if action[0] == "end":
            if leases:
                which = action[1] % len(leases)
                leases[which][0].end()
                alive = [each for each in alive if each != which]
            continue
        _, kind, owner, address = action
        mine = sum(leases[each][1:3] == (kind, owner) for each in alive)
        here = sum((leases[each][1], leases[each][3]) == (kind, address) for each in alive)
        most = limits[f"{kind.value}_per_key_max"]
        far = limits["streams_per_address_max"] if kind is Kind.STREAMS and address and not is_loopback(address) else 0
        allowed = (not most or mine < most) and (not far or here < far)
        if allowed:
            leases.append((quotas.lease(kind, owner, address), kind, owner, address))
            alive.append(len(leases) - 1)
        else:
            with pytest.raises(BrokerError, match=r"limits\.") as refused:
                quotas.lease(kind, owner, address)
            assert refused.value.code is Code.LIMIT
    for owner in OWNERS:
        for kind in Kind:
            assert quotas.held(kind, owner) == sum(leases[each][1:3] == (kind, owner) for each in alive)
    for each in leases:
        each[0].end()
        each[0].end()
    assert not any(quotas.held(kind, owner) for kind in Kind for owner in OWNERS)


@given(
    st.integers(1, 100_000),
    st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(1, 50_000)), min_size=1, max_size=60),
)
def test_whoever_waits_as_told_stays_within_the_rate(per_s: int, batches: list[tuple[int, int]]) -> None:
    quotas = Quotas(LimitsSection(messages_per_key_s=per_s))
    now, sent = 10 * SECOND_US, []
    for pause, amount in batches:
        now += pause
        sent.append((now, amount))
        now += quotas.spend("ann", "", amount, amount * 100, now)
    for first, (begins, _) in enumerate(sent):
        total = 0
        for ends, amount in sent[first:]:
            total += amount
            before = total - amount
            # one second's worth at once, then the rate; a batch is let in whole as soon as there is any room
            assert before <= Fraction(per_s * (ends - begins), SECOND_US) + per_s + len(sent)


@given(st.integers(1, 10_000), st.integers(1, 200), st.integers(1, 50))
def test_nobody_waits_longer_than_the_rate_asks(per_s: int, amount: int, count: int) -> None:
    rate, began = Rate("", per_s), 5 * SECOND_US
    now = began
    for _ in range(count):
        rate.spend("ann", amount, now)
        now += rate.wait_us("ann", now)
    assert now - began <= Fraction(amount * count * SECOND_US, per_s)


def test_rates_of_keys_and_addresses_are_apart_and_loopback_has_none() -> None:
    quotas = Quotas(LimitsSection(bytes_per_key_s=1000, messages_per_address_s=10))
    now = 100 * SECOND_US
    assert quotas.rated
    assert quotas.spend("ann", "10.0.0.1", 10, 1000, now) == 0
    assert quotas.spend("ann", "10.0.0.2", 1, 500, now) == SECOND_US // 2
    assert quotas.spend("bob", "10.0.0.1", 5, 1, now) == SECOND_US // 2
    assert quotas.spend("eve", "127.0.0.1", 10_000, 1, now) == 0
    with pytest.raises(BrokerError, match=r"1000 bytes a second; try again in 0\.5 s"):
        quotas.admit("ann", "", 1, 1, now)
    quotas.admit("ann", "", 1, 1, now + SECOND_US)


def test_without_limits_nothing_is_counted_against_anybody() -> None:
    quotas = Quotas()
    assert not quotas.rated
    for _ in range(10_000):
        quotas.lease(Kind.CONNECTIONS, "ann", "10.0.0.1")
    assert quotas.spend("ann", "10.0.0.1", 1 << 40, 1 << 60, 0) == 0


def test_a_rate_forgets_who_is_even() -> None:
    rate = Rate("", 1)
    for number in range(4 * REMEMBERED_MAX):
        rate.spend(str(number), 1, number * SECOND_US)
    assert len(rate._even_us) <= REMEMBERED_MAX + 1


@given(st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(1, 5), st.sampled_from(["take", "add", "give"]))))
def test_shares_are_a_counter_with_a_bound(actions: list[tuple[str, int, str]]) -> None:
    shares, model = Shares("things", "limits.x", 7), dict.fromkeys(OWNERS, 0)
    for owner, amount, what in actions:
        if what == "give":
            amount = min(amount, model[owner])
            shares.give(owner, amount)
            model[owner] -= amount
        elif what == "add" or model[owner] + amount <= 7:
            (shares.add if what == "add" else shares.take)(owner, amount)
            model[owner] += amount
        else:
            with pytest.raises(BrokerError, match="things: more than 7"):
                shares.take(owner, amount)
        assert shares.owners() == {name: count for name, count in model.items() if count}
