"""Who may do what: API keys as salted hashes, identities and the topics they are good for.

Knows nothing of protocols: a session hands over the credential as presented and gets an `Identity` or None.

Keys made by `new_key` carry 256 random bits, so nobody can guess them and one fast salted SHA-256 protects them as well
as a slow password hash would, without making each connection cost milliseconds of the event loop. A key chosen by a
human does not have that strength; it is hashed the same way, and is as good as its secrecy.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import translate

from headrace.config import KeyEntry
from headrace.model.errors import HeadraceError
from headrace.model.names import DEAD_PREFIX

KEY_PREFIX = "hr_"
HASH_SCHEME = "sha256"
SALT_SIZE = 16
DECISIONS_MAX = 4096

_HASH = re.compile(rf"{HASH_SCHEME}:(?P<salt>[0-9a-f]{{{2 * SALT_SIZE}}}):(?P<digest>[0-9a-f]{{64}})")


class BadKeyEntry(HeadraceError):
    """An entry of `auth.api_keys` that cannot be used; the message never repeats the key."""


class Scope:
    """A set of topic patterns (`*`, `?`, `[…]` as in a shell, dots are ordinary), with its decisions remembered."""

    __slots__ = ("_decisions", "_match", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._match = re.compile("|".join(map(translate, self.patterns)) or r"(?!)").match
        self._decisions: dict[str, bool] = {}

    def allows(self, topic: str) -> bool:
        """Whether one of the patterns matches the whole topic."""
        known = self._decisions.get(topic)
        if known is None:
            known = self._match(topic) is not None
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[topic] = known
        return known

    def __repr__(self) -> str:
        return f"Scope({self.patterns!r})"


EVERYTHING = Scope(["*"])
SHARED_OWNER = "*"


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who got in.

    `owner` is what subscriptions belong to and what the log remembers. It is the entry's name, so it survives
    restarts, new salts and new keys under the same name; for an entry without a name it is a digest of the key,
    which survives restarts and new salts but not a new key.
    """

    owner: str
    publish: Scope = field(default=EVERYTHING, compare=False)
    subscribe: Scope = field(default=EVERYTHING, compare=False)

    def may_publish(self, topic: str) -> bool:
        """Whether this identity may publish to the topic."""
        return self.publish.allows(topic)

    def may_subscribe(self, topic: str) -> bool:
        """Whether this identity may read the topic; who may read a topic may read its dead letters."""
        return self.subscribe.allows(topic) or (
            topic.startswith(DEAD_PREFIX) and self.subscribe.allows(topic[len(DEAD_PREFIX) :])
        )

    @property
    def is_unrestricted(self) -> bool:
        """Whether every topic is open to it, so that it may also manage what belongs to others."""
        return "*" in self.publish.patterns and "*" in self.subscribe.patterns


ANONYMOUS = Identity("anonymous")
"""Whoever comes in by a door that asks nobody's name."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    salt: bytes
    digest: bytes
    publish: Scope
    subscribe: Scope

    def identity(self, key: bytes) -> Identity:
        """Who presents this key, which is the entry's."""
        return Identity(self.name or owner_of(key), self.publish, self.subscribe)


class Keyring:
    """The keys of one configuration. Reloading makes a new one; identities already given out stay as they are."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._entries = tuple(entries)

    @classmethod
    def from_settings(cls, entries: Iterable[str | KeyEntry]) -> "Keyring":
        """The keyring for the entries of `auth.api_keys`: keys, hashes or tables.

        Raises BadKeyEntry.
        """
        return cls([_entry(item, index) for index, item in enumerate(entries)])

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, key: bytes) -> Identity | None:
        """Whom this key belongs to. Takes the same time whichever entry matches, or none."""
        found: _Entry | None = None
        for entry in self._entries:
            if hmac.compare_digest(_digest(entry.salt, key), entry.digest) and found is None:
                found = entry
        return found.identity(key) if found is not None else None

    def certified(self, common_name: str) -> Identity:
        """The identity behind a client certificate that the transport has verified.

        A common name equal to an entry's name is that entry's identity, its scopes included. Any other is an
        identity of its own for which every topic is open: whoever signs certificates decides who gets in.
        """
        for entry in self._entries:
            if entry.name == common_name:
                return Identity(entry.name, entry.publish, entry.subscribe)
        return Identity(f"cn:{common_name}")


def new_key() -> tuple[str, str]:
    """A fresh key and its hash: the key for the client, the hash for the configuration."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return key, hash_key(key)


def hash_key(key: str) -> str:
    """A hash of the key under a fresh salt, as `auth.api_keys` takes it."""
    salt = secrets.token_bytes(SALT_SIZE)
    return f"{HASH_SCHEME}:{salt.hex()}:{_digest(salt, key.encode()).hex()}"


def owner_of(key: bytes) -> str:
    """The owner behind a key without a name: 48 bits that tell keys apart and are far too few to recover one."""
    return "key-" + hashlib.sha256(b"headrace owner\0" + key).hexdigest()[:12]


def _digest(salt: bytes, key: bytes) -> bytes:
    return hashlib.sha256(salt + key).digest()


def _entry(item: str | KeyEntry, index: int) -> _Entry:
    if isinstance(item, str):
        item = KeyEntry(hash=item) if item.startswith(f"{HASH_SCHEME}:") else KeyEntry(key=item)
    parts = _HASH.fullmatch(item.hash or hash_key(item.key))
    if parts is None:
        raise BadKeyEntry(f"auth.api_keys[{index}]: not a hash made by `headrace keys`")
    if item.name.startswith(("key-", "cn:")) or item.name == SHARED_OWNER:
        raise BadKeyEntry(f"auth.api_keys[{index}].name: must not begin with key- or cn:, nor be {SHARED_OWNER}")
    return _Entry(
        name=item.name,
        salt=bytes.fromhex(parts["salt"]),
        digest=bytes.fromhex(parts["digest"]),
        publish=_scope(item.publish, item.subscribe),
        subscribe=_scope(item.subscribe, item.publish),
    )


def _scope(own: tuple[str, ...] | None, other: tuple[str, ...] | None) -> Scope:
    """An entry that lists neither kind of topics may do everything; one that lists either may do what it lists."""
    if own is None:
        return EVERYTHING if other is None else Scope(())
    return Scope(own)
