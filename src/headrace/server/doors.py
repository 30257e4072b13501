"""Who may come in by which door, and what SSPQ's sessions are told.

A door asks for keys, for client certificates, for both or for neither. Where certificates are asked for, only those
that an entry names get in, whatever else is shown. Without either only callers are let in whom the door's own setting
allows, or this machine's while no key and no certificate is configured at all.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headrace.auth import ANONYMOUS, KEY_SIZE_MIN, KEY_SIZE_SAFE, Identity, Keyring, short_keys
from headrace.config import DEV_KEY, Address, Config, ConfigError, KeyEntry
from headrace.http2 import common_name
from headrace.model.errors import BrokerError, Code
from headrace.protocols.sspq import SspqSession, SspqSettings

SECTIONS = {"fujin_tcp": "fujin", "grpc": "grpcq"}
KEYLESS = ("sspq", "fujin", "fujin_tcp")
ALWAYS_TLS = ("fujin", "fujin_tcp")
BY_CERTIFICATE = ("grpc", "flight", *KEYLESS)
"""Doors at which a certificate says who somebody is; at the others it only lets them show a key."""
REVOKED = "its key or certificate is not good any more"
log = logging.getLogger("headrace.sspq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """Who may come in by one door, as of now: `keyring` is asked anew for each caller."""

    name: str
    address: Address
    keyring: Callable[[], Keyring]
    certified: bool = False
    allow_unauthenticated: bool = False

    @classmethod
    def of(cls, config: Config, name: str, address: Address, keyring: Callable[[], Keyring]) -> "Entrance":
        """The entrance to one listener."""
        section = getattr(config, SECTIONS.get(name, name))
        return cls(
            name=name,
            address=address,
            keyring=keyring,
            certified=bool(config.tls.client_ca),
            allow_unauthenticated=getattr(section, "allow_unauthenticated", False),
        )

    @property
    def keyed(self) -> bool:
        """Whether callers can show a key."""
        return self.name not in KEYLESS

    @property
    def admits_anybody(self) -> bool:
        """Whether callers get in who show nothing."""
        if self.certified:
            return False
        return self.allow_unauthenticated or (not self.keyed and self.address.is_loopback and self.keyring().is_empty)

    @property
    def closed(self) -> bool:
        """Whether nobody could get in, whatever they show, before the configuration is another."""
        return not self.keyed and not self.certified and not self.admits_anybody

    def by_certificate(self, transport: asyncio.BaseTransport) -> Identity | None:
        """Who is there by the client certificate the transport has verified; None where none is asked for.

        Raises BrokerError(UNAUTHENTICATED) for a certificate that is not named.
        """
        return self.named(common_name(transport.get_extra_info("peercert")))

    def identify(self, transport: asyncio.BaseTransport) -> Identity:
        """Who is there where no key is asked for. Raises BrokerError(UNAUTHENTICATED) for whoever may not come in."""
        return self.by_certificate(transport) or self.anybody()

    def named(self, name: str | None) -> Identity | None:
        """Whose certificate has this common name; None where none is asked for.

        Raises BrokerError(UNAUTHENTICATED) for one that is not named.
        """
        if not self.certified:
            return None
        identity = self.keyring().certified(name)
        if identity is None:
            raise BrokerError(Code.UNAUTHENTICATED, unnamed(name))
        return identity

    def anybody(self) -> Identity:
        """Who came without showing anything. Raises BrokerError(UNAUTHENTICATED) where that is not enough."""
        if not self.admits_anybody:
            raise BrokerError(Code.UNAUTHENTICATED, "this door lets nobody in without a certificate that is named")
        return ANONYMOUS

    def still_valid(self, identity: Identity) -> bool:
        """Whether somebody who is in would still get in."""
        if not identity.credential:
            return self.admits_anybody
        return self.keyring().admits(identity)

    def described(self) -> str:
        """Who gets in, for people."""
        keyring = self.keyring()
        keys = _listed("a key", len(keyring), keyring.key_names)
        names = keyring.certificates
        certificates = f"a certificate named {', '.join(names)}" if names else ""
        if self.closed:
            section = SECTIONS.get(self.name, self.name)
            return (
                "nobody: it has no keys, and auth names who may come in; "
                f"tls.client_ca lets named certificates in, {section}.allow_unauthenticated = true everybody"
            )
        if self.admits_anybody:
            where = "this machine" if self.address.is_loopback else "anywhere"
            return f"everybody from {where}" + (f", a key is checked if given: {keys}" if keys and self.keyed else "")
        if not self.certified:
            return keys or "nobody: auth.api_keys is empty"
        if not names:
            return "nobody: tls.client_ca asks for certificates, and no entry of auth names one"
        if self.name in BY_CERTIFICATE:
            return certificates
        return f"{certificates}, with {keys}" if keys else "nobody: auth.api_keys is empty"


def unnamed(name: str | None) -> str:
    """Why a certificate is refused."""
    if not name:
        return "the certificate has no common name, or more than one"
    return f"no entry of auth.certificates or auth.api_keys names the certificate {name!r}"


def check_callers(config: Config, name: str, address: Address) -> None:
    """By a door without keys only this machine may come in unnamed, unless its own section says otherwise.

    Raises ConfigError.
    """
    section = SECTIONS.get(name, name)
    if address.is_loopback or config.tls.client_ca or getattr(config, section).allow_unauthenticated:
        return
    raise ConfigError(
        f"listen.{name}",
        f"{address} can be reached from other machines, and this protocol has no keys: set tls.client_ca to ask for "
        f"client certificates, or {section}.allow_unauthenticated = true",
    )


def check_keys(config: Config) -> list[str]:
    """What is to be said of keys that humans made.

    Raises ConfigError for one that other machines could find out by trying.
    """
    own = KeyEntry(name="dev", key=DEV_KEY)
    entries = [entry if entry != own else KeyEntry(hash="dev") for entry in config.auth.api_keys]
    exposed = not all(at.is_loopback for name, at in config.listen.addresses().items() if name not in KEYLESS)
    if exposed and (short := short_keys(entries, KEY_SIZE_MIN)):
        raise ConfigError(
            short[0].partition(" ")[0],
            f"a key of fewer than {KEY_SIZE_MIN} characters can be found out by trying, and other machines can try: "
            "make one with `headrace keys new`",
        )
    wanted = KEY_SIZE_SAFE if exposed else KEY_SIZE_MIN
    return [
        f"{place} has fewer than {wanted} characters; `headrace keys new` makes one that nobody can guess"
        for place in short_keys(entries, wanted)
    ]


def sspq_sessions(config: Config) -> Callable[[], SspqSession]:
    """What makes the sessions of the SSPQ door.

    Raises ConfigError.
    """
    section, broker = config.sspq, config.broker_settings()
    own = broker.topics.get(section.topic)
    policy = own.retry(broker.retry) if own is not None else broker.retry
    try:
        settings = SspqSettings(
            topic=section.topic,
            dead_letter=section.dead_letter,
            force_retries=section.force_retries,
            max_payload=section.max_payload,
            max_attempts=policy.max_attempts,
        )
    except ValueError as error:
        key, _, detail = str(error).partition(": ")
        raise ConfigError(f"sspq.{key}", detail) from None
    return partial(SspqSession, settings, _ignored)


def _ignored(kind: int) -> None:
    log.info("sspq.ignored", extra={"packet": f"{kind:#04x}", "cause": "a packet no client sends"})


def _listed(what: str, count: int, names: tuple[str, ...]) -> str:
    """`a key (billing, 2 without a name)`; empty when there is none."""
    if not count:
        return ""
    rest = count - len(names)
    words = [*dict.fromkeys(names), *([f"{rest} without a name"] if rest else [])]
    return f"{what} ({', '.join(words)})"
