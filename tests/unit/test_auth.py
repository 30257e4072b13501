"""Keys, owners and scopes."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.auth import (
    ANONYMOUS,
    DECISIONS_MAX,
    BadKeyEntry,
    Identity,
    Keyring,
    Scope,
    hash_key,
    new_key,
    owner_of,
    short_keys,
)
from headrace.config import CertificateEntry, KeyEntry


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


def test_a_certificate_is_the_entry_of_its_name_or_nobody() -> None:
    ring = Keyring.from_settings(
        [KeyEntry(name="billing", key="k", publish=("orders.*",)), KeyEntry(name="ops", key="o"), "nameless"],
        [CertificateEntry(name="probe", subscribe=("health",)), CertificateEntry(name="ops", publish=("ops",))],
    )
    billing, probe, ops = (ring.certified(name) for name in ("billing", "probe", "ops"))
    assert billing is not None
    assert billing.owner == "billing"
    assert not billing.may_publish("other")
    assert probe is not None
    assert probe.may_subscribe("health")
    assert not probe.may_publish("health")
    assert ops is not None
    assert not ops.may_publish("other"), "an entry for the certificate goes before one for a key"
    assert ring.certificates == ("probe", "ops", "billing")


@pytest.mark.parametrize(
    "name",
    [
        None, "", "stranger", "BILLING", "Billing", "billing ", " billing", "bill*", "*", "b?lling", "[b]illing",
        "billing\0", "billing,ops", "cn:billing", "key-1", "anonymous", owner_of(b"k"), "bi\u200blling",
    ],
)  # fmt: skip
def test_no_other_name_is_that_certificate(name: str | None) -> None:
    ring = Keyring.from_settings([KeyEntry(name="billing", key="k"), "k"], [CertificateEntry(name="b*")])
    assert ring.certified(name) is None


ENTRIES: list[KeyEntry | CertificateEntry] = [
    KeyEntry(name="ann", key="ann-key", publish=("a", "b"), subscribe=("c",)),
    KeyEntry(name="bob", key="bob-key"),
    KeyEntry(key="nameless-key", publish=("a",)),
    CertificateEntry(name="cert", publish=("a", "b")),
]


def ring_of(entries: Iterable[KeyEntry | CertificateEntry]) -> Keyring:
    entries = list(entries)
    keys = [entry for entry in entries if isinstance(entry, KeyEntry)]
    return Keyring.from_settings(keys, [entry for entry in entries if isinstance(entry, CertificateEntry)])


def let_in(ring: Keyring, entry: KeyEntry | CertificateEntry) -> Identity | None:
    return ring.check(entry.key.encode()) if isinstance(entry, KeyEntry) else ring.certified(entry.name)


def topics_of(entry: KeyEntry | CertificateEntry) -> tuple[set[str], set[str]]:
    """What it may publish and subscribe to, as the documents say."""
    if entry.publish is None and entry.subscribe is None:
        return {"*"}, {"*"}
    return set(entry.publish or ()), set(entry.subscribe or ())


CHANGES: list[dict[str, Any] | None] = [
    None,
    {},
    {"publish": None, "subscribe": None},
    {"publish": ("b", "x", "a"), "subscribe": ("*",)},
    {"publish": ("a",), "subscribe": ()},
    {"publish": ()},
    {"publish": ("a*", "b*")},
    {"subscribe": ("c", "d")},
    {"name": "another"},
    {"key": "a-new-key"},
]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("change", CHANGES)
def test_who_would_not_get_in_as_before_is_not_admitted(
    entry: KeyEntry | CertificateEntry, change: dict[str, Any] | None
) -> None:
    identity = let_in(ring_of(ENTRIES), entry)
    assert identity is not None
    fitting = {name: value for name, value in (change or {}).items() if hasattr(entry, name)}
    after = msgspec.structs.replace(entry, **fitting) if change is not None else None
    ring = ring_of([*(each for each in ENTRIES if each is not entry), *([after] if after is not None else [])])
    expected = after is not None and not {"name", "key"} & fitting.keys()
    if after is not None:
        for had, has in zip(topics_of(entry), topics_of(after), strict=True):
            expected = expected and ("*" in has or had <= has)
    assert ring.admits(identity) is expected
    for other in ENTRIES:
        known = let_in(ring_of(ENTRIES), other)
        assert known is not None
        assert other is entry or ring.admits(known), "nobody else is affected"


def test_a_key_that_is_only_salted_anew_is_another_credential_and_a_file_read_again_is_not() -> None:
    ring = Keyring.from_settings([KeyEntry(name="ann", key="ann-key")])
    identity = ring.check(b"ann-key")
    assert identity is not None
    assert Keyring.from_settings([KeyEntry(name="ann", key="ann-key")]).admits(identity)
    assert not Keyring.from_settings([KeyEntry(name="ann", hash=hash_key("ann-key"))]).admits(identity)
    assert Keyring.from_settings([]).admits(ANONYMOUS), "whether somebody may come in unnamed is for the door to say"


def test_credentials_are_not_shown() -> None:
    identity = Keyring.from_settings([KeyEntry(name="ann", key="ann-key")]).check(b"ann-key")
    assert identity is not None
    assert "sha256" not in repr(identity)


@pytest.mark.parametrize("name", ["*", "anonymous", "key-1", "cn:x", "key-"])
def test_names_of_the_brokers_own_are_no_certificates(name: str) -> None:
    with pytest.raises(BadKeyEntry, match=r"auth\.certificates\[0\]\.name"):
        Keyring.from_settings([], [CertificateEntry(name=name)])


def test_one_certificate_has_one_entry() -> None:
    with pytest.raises(BadKeyEntry, match=r"auth\.certificates\[1\]\.name"):
        Keyring.from_settings([], [CertificateEntry(name="a", publish=("a",)), CertificateEntry(name="a")])


def test_short_keys_are_named_by_their_place() -> None:
    ann = KeyEntry(name="ann", key="x")
    entries: list[str | KeyEntry] = ["short", "long enough, this one", hash_key("x"), ann, KeyEntry(hash="y")]
    assert short_keys(entries, 16) == ["auth.api_keys[0]", "auth.api_keys[3] (ann)"]
    assert short_keys(entries, 2) == ["auth.api_keys[3] (ann)"]


@pytest.mark.parametrize(
    "entry",
    [
        "sha256:short:1",
        KeyEntry(hash="md5:00:11"),
        *(KeyEntry(name=name, key="k") for name in ("key-1", "cn:x", "*", "anonymous")),
    ],
)
def test_an_entry_that_cannot_work_is_refused_by_its_place(entry: str | KeyEntry) -> None:
    with pytest.raises(BadKeyEntry, match=r"auth\.api_keys\[1\]"):
        Keyring.from_settings(["fine", entry])
