import pytest

from headrace.log import LogSettings, SyncMode, SyncPolicy


@pytest.mark.parametrize(
    ("text", "mode", "n"),
    [
        ("always", SyncMode.ALWAYS, 0),
        ("none", SyncMode.NONE, 0),
        ("every_n:100", SyncMode.EVERY_N, 100),
        ("interval_ms:5", SyncMode.INTERVAL_MS, 5),
    ],
)
def test_policies_as_written(text: str, mode: SyncMode, n: int) -> None:
    policy = SyncPolicy.parse(text)
    assert policy == SyncPolicy(mode, n)
    assert str(policy) == text


@pytest.mark.parametrize("text", ["", "sometimes", "always:1", "every_n", "every_n:0", "every_n:x", "interval_ms:-1"])
def test_a_policy_that_is_none_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"always, every_n:N|needs a number") as raised:
        SyncPolicy.parse(text)
    assert repr(text) in str(raised.value)


def test_when_policies_want_a_sync() -> None:
    assert SyncPolicy.parse("always").wants_sync(1, 0)
    assert not SyncPolicy.parse("none").wants_sync(10**9, 10**12)
    every = SyncPolicy.parse("every_n:10")
    assert [every.wants_sync(n, 10**12) for n in (9, 10)] == [False, True]
    interval = SyncPolicy.parse("interval_ms:2")
    assert [interval.wants_sync(10**9, us) for us in (1999, 2000)] == [False, True]


def test_impossible_values_are_named() -> None:
    with pytest.raises(ValueError, match="segment_bytes = 1"):
        LogSettings(segment_bytes=1)
