"""What files in the staging directory are called. Names are digests and numbers, never what somebody sent.

`<writer's digest>-<batch>-<when, µs>-<token>.staged` holds rows, `<writer's digest>-<batch>.manifest` promises that a
transaction of several records will be finished, and `<writer's digest>-<batch>.second.manifest` says the same.
A writer's digest begins with that of the owner, so that what each owner has can be counted.
"""

import hashlib
import re
import secrets

STAGED_SUFFIX = ".staged"
MANIFEST_SUFFIX = ".manifest"
OWNER_SIZE = 16

_STAGED = re.compile(r"(?P<prefix>[0-9a-f]{32}-\d{20})-(?P<created_us>\d{20})-[0-9a-f]{32}\.staged", re.ASCII)


def transaction_prefix(owner: str, writer: str, batch: int) -> str:
    """How the names of all files of one transaction begin."""
    digest = hashlib.sha256(writer.encode()).hexdigest()[:OWNER_SIZE]
    return f"{owner_digest(owner)}{digest}-{batch:020}"


def owner_digest(owner: str) -> str:
    """How the names of everything an owner stages begin."""
    return hashlib.sha256(b"headrace staging\0" + owner.encode()).hexdigest()[:OWNER_SIZE]


def staged_name(owner: str, writer: str, batch: int, now: int) -> str:
    """A name no other staged file has."""
    return f"{transaction_prefix(owner, writer, batch)}-{now:020}-{secrets.token_hex(16)}{STAGED_SUFFIX}"


def prefix_of(name: str) -> str:
    """The transaction that a staged file of this name is of."""
    return name[: 2 * OWNER_SIZE + 21]


def manifest_name(owner: str, writer: str, batch: int) -> str:
    """The name of the transaction's manifest."""
    return transaction_prefix(owner, writer, batch) + MANIFEST_SUFFIX


def belongs(name: str, prefix: str) -> bool:
    """Whether this is the name of a staged file of the transaction."""
    found = _STAGED.fullmatch(name)
    return found is not None and found["prefix"] == prefix


def created_us(name: str) -> int | None:
    """When the staged file of this name was made; None for a name of another kind."""
    found = _STAGED.fullmatch(name)
    return None if found is None else int(found["created_us"])
