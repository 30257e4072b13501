"""Who gets in by which header and which certificate, and for how long."""

import base64

import pytest

from headrace.auth import ANONYMOUS, Keyring
from headrace.config import CertificateEntry, KeyEntry
from headrace.feed.access import Access, bearer
from headrace.model.errors import BrokerError, Code

ANN = KeyEntry(name="ann", key="ann-key-0123456789", subscribe=("in*",))
BOB = KeyEntry(name="bob", key="bob-key-0123456789")
READER = CertificateEntry(name="reader", subscribe=("in*",))


def access(*keys: KeyEntry, **settings: bool) -> Access:
    given = {"allow_unauthenticated": False} | settings
    return Access(Keyring.from_settings(keys or (ANN, BOB), (READER,)), **given)


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "header", ["Bearer ann-key-0123456789", "bearer  ann-key-0123456789 ", basic("x:ann-key-0123456789")]
)
def test_a_key_is_taken_in_every_way_it_may_be_written(header: str) -> None:
    assert access().identify(header, None).identity.owner == "ann"
    assert access(allow_unauthenticated=True).identify(header, None).identity.owner == "ann"
    assert access().identify(bearer(header), None).identity.owner == "ann"


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic !!", "Basic ä", basic("ann-key-0123456789"), basic("x:"),
     "Nonsense ann-key-0123456789", "ann-key-0123456789", "Bearer ann-key-0123456789,Bearer x"],
)  # fmt: skip
@pytest.mark.parametrize("open_door", [True, False])
def test_others_stay_outside(header: str | None, open_door: bool) -> None:
    door = access(allow_unauthenticated=open_door)
    if open_door and not header:
        assert door.identify(header, None).identity == ANONYMOUS
        return
    with pytest.raises(BrokerError) as refused:
        door.identify(header, None)
    assert refused.value.code is Code.UNAUTHENTICATED


@pytest.mark.parametrize("header", [None, "Bearer ann-key-0123456789", "Bearer wrong"])
@pytest.mark.parametrize("certificate", [None, "", "stranger", "Reader", "read*"])
@pytest.mark.parametrize("open_door", [True, False])
def test_only_certificates_that_are_named_get_in(header: str | None, certificate: str | None, open_door: bool) -> None:
    door = access(certified=True, allow_unauthenticated=open_door)
    with pytest.raises(BrokerError, match="named in no entry"):
        door.identify(header, certificate)


def test_a_certificate_that_is_named_is_good_for_what_it_is_named_for() -> None:
    door = access(certified=True)
    caller = door.identify(None, "reader")
    assert (caller.identity.owner, caller.identity.may_subscribe("out")) == ("reader", False)
    assert door.identify("Bearer bob-key-0123456789", "reader").identity.owner == "bob"
    with pytest.raises(BrokerError, match="not known"):
        door.identify("Bearer wrong", "reader")


def test_who_is_in_stays_only_for_as_long_as_he_would_get_in() -> None:
    door = access(certified=True)
    ann, reader = door.identify("Bearer ann-key-0123456789", "reader"), door.identify(None, "reader")
    assert door.still_admits(ann)
    assert door.still_admits(reader)
    door.keyring = Keyring.from_settings([BOB], [READER])
    assert not door.still_admits(ann)
    assert door.still_admits(reader)
    door.keyring = Keyring.from_settings([ANN, BOB], [])
    assert not door.still_admits(ann)
    assert not door.still_admits(reader)
    narrower = KeyEntry(name="ann", key="ann-key-0123456789", subscribe=("in.a",))
    door.keyring = Keyring.from_settings([narrower], [READER])
    assert not door.still_admits(ann)
