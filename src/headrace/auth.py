"""Who may do what: API keys as salted hashes, certificates by their names, identities and the topics they are good for.

Knows nothing of protocols: a session hands over the credential as presented and gets an `Identity` or None. Whether an
identity given out before is still good, a later keyring tells by `admits`.

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

from headrace.config import CertificateEntry, KeyEntry
from headrace.model.errors import HeadraceError
from headrace.model.names import DEAD_PREFIX

KEY_PREFIX = "hr_"
HASH_SCHEME = "sha256"
SALT_SIZE = 16
DECISIONS_MAX = 4096
KEY_SIZE_MIN, KEY_SIZE_SAFE = 16, 32
"""Characters of a key that a human made: fewer than the first can be tried out, from the second on nobody can."""

_PLAIN_SALT = secrets.token_bytes(32)
_HASH = re.compile(rf"{HASH_SCHEME}:(?P<salt>[0-9a-f]{{{2 * SALT_SIZE}}}):(?P<digest>[0-9a-f]{{64}})")


class BadKeyEntry(HeadraceError):
    """An entry of `auth.api_keys` or `auth.certificates` that cannot be used; the message never repeats a key."""


class Scope:
    """A set of topic patterns (`*`, `?`, `[…]` as in a shell, dots are ordinary), with its decisions remembered."""

    __slots__ = ("_decisions", "_match", "heads", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self.heads = tuple(re.split(r"[*?\[]", pattern, maxsplit=1)[0] for pattern in self.patterns)
        """How the names begin that the patterns match, as far as that is the same for all names of a pattern."""
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

    def covers(self, other: "Scope") -> bool:
        """Whether everything the other allows is surely allowed here: it has all of its patterns, or `*`."""
        return "*" in self.patterns or set(other.patterns) <= set(self.patterns)

    def __repr__(self) -> str:
        return f"Scope({self.patterns!r})"


EVERYTHING = Scope(["*"])
SHARED_OWNER = "*"
UNNAMED = "anonymous"
DIGEST_PREFIX = "key-"
CERTIFICATE = "certificate:"
RESERVED_PREFIXES = (DIGEST_PREFIX, "cn:")
RESERVED_NAMES = (SHARED_OWNER, UNNAMED)


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who got in.

    `owner` is what subscriptions belong to and what the log remembers. It is the entry's name, so it survives
    restarts, new salts and new keys under the same name; for an entry without a name it is a digest of the key,
    which survives restarts and new salts but not a new key. `credential` tells what was shown, for `Keyring.admits`;
    whoever showed nothing has none.
    """

    owner: str
    publish: Scope = field(default=EVERYTHING, compare=False)
    subscribe: Scope = field(default=EVERYTHING, compare=False)
    metrics: bool = field(default=False, compare=False)
    credential: str = field(default="", compare=False, repr=False)

    def may_publish(self, topic: str) -> bool:
        """Whether this identity may publish to the topic."""
        return self.publish.allows(topic)

    def may_subscribe(self, topic: str) -> bool:
        """Whether this identity may read the topic; who may read a topic may read its dead letters."""
        return self.subscribe.allows(topic) or (
            topic.startswith(DEAD_PREFIX) and self.subscribe.allows(topic[len(DEAD_PREFIX) :])
        )

    @property
    def may_watch(self) -> bool:
        """Whether it may see numbers that tell of all topics: the metrics, and everything in the broker's status."""
        return self.metrics or "*" in self.subscribe.patterns

    @property
    def is_unrestricted(self) -> bool:
        """Whether every topic is open to it, so that it may also manage what belongs to others."""
        return "*" in self.publish.patterns and "*" in self.subscribe.patterns


ANONYMOUS = Identity(UNNAMED)
"""Whoever comes in by a door that asks nobody's name."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    salt: bytes
    digest: bytes
    publish: Scope
    subscribe: Scope
    metrics: bool

    @property
    def credential(self) -> str:
        """The entry as `auth.api_keys` takes it."""
        return f"{HASH_SCHEME}:{self.salt.hex()}:{self.digest.hex()}"


class Keyring:
    """The keys and certificates of one configuration. Reloading makes a new one, which `admits` who is in or not."""

    def __init__(self, entries: Iterable[_Entry], certificates: Iterable[Identity] = ()) -> None:
        self._entries = tuple(entries)
        self._keys = {entry.credential: entry for entry in reversed(self._entries)}
        self._certificates = {each.owner: each for each in certificates}
        for entry in self._entries:
            if entry.name and entry.name not in self._certificates:
                self._certificates[entry.name] = _certified(entry.name, entry.publish, entry.subscribe, entry.metrics)

    @classmethod
    def from_settings(
        cls, entries: Iterable[str | KeyEntry], certificates: Iterable[CertificateEntry] = ()
    ) -> "Keyring":
        """The keyring for the entries of `auth.api_keys`: keys, hashes or tables; and those of `auth.certificates`.

        Raises BadKeyEntry.
        """
        return cls([_entry(item, index) for index, item in enumerate(entries)], _named(certificates))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of keys that have one, each as often as it is given."""
        return tuple(entry.name for entry in self._entries if entry.name)

    @property
    def certificates(self) -> tuple[str, ...]:
        """The common names that get in."""
        return tuple(self._certificates)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is named at all, neither by a key nor by a certificate."""
        return not self._entries and not self._certificates

    def check(self, key: bytes) -> Identity | None:
        """Whom this key belongs to. Takes the same time whichever entry matches, or none."""
        found: _Entry | None = None
        for entry in self._entries:
            if hmac.compare_digest(_digest(entry.salt, key), entry.digest) and found is None:
                found = entry
        if found is None:
            return None
        return Identity(found.name or owner_of(key), found.publish, found.subscribe, found.metrics, found.credential)

    def certified(self, common_name: str | None) -> Identity | None:
        """Whose certificate this is, which the transport has verified; None for one that no entry names.

        An entry of `auth.certificates` goes before one of `auth.api_keys`, the first before later ones of its name.
        Names are compared as they are: no pattern, no other case, no alternative name.
        """
        return self._certificates.get(common_name) if common_name else None

    def admits(self, identity: Identity) -> bool:
        """Whether somebody who came in by an earlier keyring would still get in by the same credential, as the same
        owner and with no topic less. Who showed no credential is admitted: that is for the door to decide.
        """
        if not identity.credential:
            return True
        now: Identity | _Entry | None = self._keys.get(identity.credential)
        owner = identity.owner
        if isinstance(now, _Entry):
            owner = now.name or (owner if owner.startswith(DIGEST_PREFIX) else "")
        elif identity.credential.startswith(CERTIFICATE):
            now = self._certificates.get(owner)
        return (
            now is not None
            and owner == identity.owner
            and now.publish.covers(identity.publish)
            and now.subscribe.covers(identity.subscribe)
            and now.metrics >= identity.metrics
        )


def short_keys(entries: Iterable[str | KeyEntry], fewer_than: int) -> list[str]:
    """The places of keys in plain text with fewer characters than that; a hash tells nothing of its key's length."""
    keys = ((item, "") if isinstance(item, str) else (item.key, item.name) for item in entries)
    return [
        f"auth.api_keys[{index}]" + (f" ({name})" if name else "")
        for index, (key, name) in enumerate(keys)
        if key and not key.startswith(f"{HASH_SCHEME}:") and len(key) < fewer_than
    ]


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
    return DIGEST_PREFIX + hashlib.sha256(b"headrace owner\0" + key).hexdigest()[:12]


def _digest(salt: bytes, key: bytes) -> bytes:
    return hashlib.sha256(salt + key).digest()


def _entry(item: str | KeyEntry, index: int) -> _Entry:
    if isinstance(item, str):
        item = KeyEntry(hash=item) if item.startswith(f"{HASH_SCHEME}:") else KeyEntry(key=item)
    if item.hash:
        parts = _HASH.fullmatch(item.hash)
        if parts is None:
            raise BadKeyEntry(f"auth.api_keys[{index}]: not a hash made by `headrace keys`")
        salt, digest = bytes.fromhex(parts["salt"]), bytes.fromhex(parts["digest"])
    else:
        key = item.key.encode()
        salt = hmac.digest(_PLAIN_SALT, key, HASH_SCHEME)[:SALT_SIZE]  # the same each time the file is read anew
        digest = _digest(salt, key)
    _check_name(item.name, f"auth.api_keys[{index}].name")
    return _Entry(item.name, salt, digest, *_scopes(item), item.metrics)


def _named(entries: Iterable[CertificateEntry]) -> list[Identity]:
    named: dict[str, Identity] = {}
    for index, item in enumerate(entries):
        place = f"auth.certificates[{index}].name"
        _check_name(item.name, place)
        if item.name in named:
            raise BadKeyEntry(f"{place}: an earlier entry names {item.name!r}; keep one of them")
        named[item.name] = _certified(item.name, *_scopes(item), item.metrics)
    return list(named.values())


def _certified(name: str, publish: Scope, subscribe: Scope, metrics: bool) -> Identity:
    return Identity(name, publish, subscribe, metrics, CERTIFICATE + name)


def _check_name(name: str, place: str) -> None:
    """Raises BadKeyEntry for a name that others have: callers without a key, keys without a name, what all share."""
    if name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES:
        words = ", ".join((*(f"{prefix}…" for prefix in RESERVED_PREFIXES), *RESERVED_NAMES))
        raise BadKeyEntry(f"{place}: {name!r} is taken by the broker itself, as are {words}; choose another")


def _scopes(item: KeyEntry | CertificateEntry) -> tuple[Scope, Scope]:
    """What an entry may publish and subscribe to: what it lists, or everything if it lists nothing at all."""
    if item.publish is None and item.subscribe is None and not item.metrics:
        return EVERYTHING, EVERYTHING
    return Scope(item.publish or ()), Scope(item.subscribe or ())
