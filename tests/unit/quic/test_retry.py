"""Tokens prove an address, for a moment, to the listener that made them."""

import pytest

from headrace.quic.retry import TOKEN_AGE_MAX_S, RetryTokens

ADDRESS = ("192.0.2.1", 4433)


def test_a_token_gives_back_both_ids() -> None:
    tokens = RetryTokens()
    token = tokens.make(ADDRESS, b"original", b"retried!", now=100.0)
    assert tokens.check(ADDRESS, token, now=100.0) == (b"original", b"retried!")
    assert tokens.check(ADDRESS, token, now=100.0 + TOKEN_AGE_MAX_S) == (b"original", b"retried!")


@pytest.mark.parametrize("now", [99.0, 100.1 + TOKEN_AGE_MAX_S])
def test_a_token_of_another_time_is_none(now: float) -> None:
    tokens = RetryTokens()
    assert tokens.check(ADDRESS, tokens.make(ADDRESS, b"a", b"b", now=100.0), now=now) is None


def test_a_token_of_another_address_or_listener_is_none() -> None:
    tokens = RetryTokens()
    token = tokens.make(ADDRESS, b"a", b"b", now=0.0)
    assert tokens.check(("192.0.2.2", 4433), token, now=0.0) is None
    assert tokens.check(("192.0.2.1", 4434), token, now=0.0) is None
    assert RetryTokens().check(ADDRESS, token, now=0.0) is None


def test_a_changed_or_cut_token_is_none() -> None:
    tokens = RetryTokens()
    token = tokens.make(ADDRESS, b"a", b"b", now=0.0)
    for at in range(len(token)):
        assert tokens.check(ADDRESS, token[:at], now=0.0) is None
        assert tokens.check(ADDRESS, token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :], now=0.0) is None
