"""Keys, owners and scopes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.auth import DECISIONS_MAX, BadKeyEntry, Identity, Keyring, Scope, hash_key, new_key, owner_of
from headrace.config import KeyEntry


def test_a_fresh_key_opens_the_ring_that_holds_its_hash() -> None:
    key, hashed = new_key()
    assert key not in hashed
    identity = Keyring.from_settings([hashed]).check(key.encode())
    assert identity is not None
    assert identity.may_publish("anything")
    assert identity.may_subscribe("anything")
    assert identity.is_unrestricted


def test_two_hashes_of_one_key_differ_and_both_open() -> None:
    first, second = hash_key("k"), hash_key("k")
    assert first != second
    assert Keyring.from_settings([first]).check(b"k") == Keyring.from_settings([second]).check(b"k")


def test_an_empty_ring_lets_nobody_in() -> None:
    assert Keyring.from_settings([]).check(b"") is None
    assert Keyring.from_settings([]).check(b"dev-key") is None


@given(st.lists(st.text(min_size=1).filter(lambda k: not k.startswith("sha256:")), max_size=5), st.binary(max_size=40))
def test_exactly_the_listed_keys_open(keys: list[str], presented: bytes) -> None:
    listed = {key.encode("utf-8", "surrogatepass") for key in keys}
    ring = Keyring.from_settings([key for key in keys if key.isascii()])
    listed = {key.encode() for key in keys if key.isascii()}
    assert (ring.check(presented) is not None) == (presented in listed)
    for key in listed:
        assert ring.check(key) == Identity(owner_of(key))


def test_the_ring_never_shows_a_key() -> None:
    entry = KeyEntry(name="n", key="hunter2")
    ring = Keyring.from_settings(["hunter2", entry])
    assert "hunter2" not in repr(ring) + repr(vars(ring)) + repr(ring.check(b"hunter2"))


def test_every_entry_is_hashed_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Keyring.from_settings(["first", "second", "third"])
    compared = []

    def counting(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return a == b

    monkeypatch.setattr("hmac.compare_digest", counting)
    for key in (b"first", b"third", b"none"):
        compared.clear()
        ring.check(key)
        assert len(compared) == 3


def test_an_owner_outlives_a_new_salt_and_a_name_outlives_a_new_key() -> None:
    nameless = [Keyring.from_settings([entry]).check(b"k") for entry in ("k", hash_key("k"), hash_key("k"))]
    assert len({identity.owner for identity in nameless if identity}) == 1
    rotating = Keyring.from_settings([KeyEntry(name="billing", key="old"), KeyEntry(name="billing", key="new")])
    old, new = rotating.check(b"old"), rotating.check(b"new")
    assert old == new == Identity("billing")


@pytest.mark.parametrize(
    ("entry", "publishes", "reads"),
    [
        (KeyEntry(key="k"), True, True),
        (KeyEntry(key="k", publish=("orders.*",)), True, False),
        (KeyEntry(key="k", subscribe=("orders.*",)), False, True),
        (KeyEntry(key="k", publish=(), subscribe=()), False, False),
        (KeyEntry(key="k", publish=("billing",), subscribe=("b*", "orders.[ab]")), False, True),
    ],
)
def test_an_entry_may_do_what_it_lists(entry: KeyEntry, publishes: bool, reads: bool) -> None:
    identity = Keyring.from_settings([entry]).check(b"k")
    assert identity is not None
    assert identity.may_publish("orders.a") is publishes
    assert identity.may_subscribe("orders.a") is reads
    assert identity.may_subscribe("$dead.orders.a") is reads


def test_a_scope_does_not_reach_beyond_the_whole_name() -> None:
    scope = Scope(["orders.*"])
    assert scope.allows("orders.")
    assert not scope.allows("my.orders.a")
    assert not scope.allows("orders")
    assert not scope.allows("ORDERS.a")
    assert not Scope(["orders"]).allows("orders\n")


def test_a_scope_remembers_no_more_than_it_may() -> None:
    scope = Scope(["*"])
    for number in range(2 * DECISIONS_MAX + 5):
        assert scope.allows(str(number))
    assert len(scope._decisions) <= DECISIONS_MAX


def test_a_certificate_is_the_entry_of_its_name_or_somebody_new() -> None:
    ring = Keyring.from_settings([KeyEntry(name="billing", key="k", publish=("orders.*",))])
    assert ring.certified("billing").owner == "billing"
    assert not ring.certified("billing").may_publish("other")
    assert ring.certified("stranger") == Identity("cn:stranger")


@pytest.mark.parametrize(
    "entry",
    ["sha256:short:1", KeyEntry(hash="md5:00:11"), KeyEntry(name="key-1", key="k"), KeyEntry(name="cn:x", key="k")],
)
def test_an_entry_that_cannot_work_is_refused_by_its_place(entry: str | KeyEntry) -> None:
    with pytest.raises(BadKeyEntry, match=r"auth\.api_keys\[1\]"):
        Keyring.from_settings(["fine", entry])
