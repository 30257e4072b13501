"""The writing side of the feed: rows put by executors are staged, what drivers decide goes to the broker.

Knows who may write what, and the bodies of the actions; nothing of Flight itself. Permissions are checked here: the
broker takes the feed's word for who is asking.
"""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from headrace.auth import Identity
from headrace.feed.messages import Abort, Commit, Committed, Name, Number, Receipt, Report, Request
from headrace.feed.room import Room
from headrace.feed.staging import Put, Upload
from headrace.log.disk import Disk
from headrace.model.errors import BrokerError, Code
from headrace.model.names import check_topic, is_own_topic

BODY_SIZE_MAX = 16 << 20

Ask = Callable[[Request], Awaitable[object]]
"""Puts a request, whose number it chooses, to the broker; gives the answer. Raises BrokerError when it is refused."""


class CommitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `commit`."""

    writer: Name
    batch: Number
    staged: tuple[Receipt, ...]


class AbortBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `abort`."""

    staged: tuple[Receipt, ...]


class CommittedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `committed`."""

    writer: Name


class ReportBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `report`."""

    reader: Name
    offset: Number
    topics: tuple[str, ...] | None = None


T = TypeVar("T")


class Writing:
    """Uploads, and the actions of writers and readers: they look at a body, and return what is to be awaited."""

    def __init__(self, directory: Path, disk: Disk, ask: Ask, room: Room | None = None) -> None:
        """`room` bounds what each owner may stage."""
        self._room = room
        self._directory = directory
        self._disk = disk
        self._ask = ask
        self.actions: dict[str, Callable[[Identity, bytes], Awaitable[object]]] = {
            "commit": self.commit,
            "abort": self.abort,
            "committed": self.committed,
            "report": self.report,
        }

    def open(self, identity: Identity, command: bytes, schema: pa.Schema) -> Upload:
        """Begin to stage the rows of a DoPut; what `finish` returns is its receipt. Raises BrokerError."""
        return Upload(
            self._disk, self._directory, identity.owner, _decoded(command, Put), schema,
            allow=lambda topic: _allow(identity, topic), now=time.time_ns() // 1000, room=self._room,
        )  # fmt: skip

    def commit(self, identity: Identity, body: bytes) -> Awaitable[object]:
        """Make staged rows visible; returns once they are durable. Raises BrokerError."""
        wanted = _decoded(body, CommitBody)
        return self._ask(
            Commit(
                id=0, owner=identity.owner, publish=identity.publish.patterns, subscribe=identity.subscribe.patterns,
                writer=wanted.writer, batch=wanted.batch, staged=wanted.staged,
            )
        )  # fmt: skip

    def abort(self, identity: Identity, body: bytes) -> Awaitable[object]:
        """Throw away staged rows. Raises BrokerError."""
        return self._ask(Abort(id=0, owner=identity.owner, staged=_decoded(body, AbortBody).staged))

    def committed(self, identity: Identity, body: bytes) -> Awaitable[object]:
        """The last batch a writer of this identity committed. Raises BrokerError."""
        return self._ask(Committed(id=0, owner=identity.owner, writer=_decoded(body, CommittedBody).writer))

    def report(self, identity: Identity, body: bytes) -> Awaitable[object]:
        """How far a reader of this identity is. Raises BrokerError."""
        wanted = _decoded(body, ReportBody)
        for topic in wanted.topics or ():
            if not identity.may_subscribe(topic):
                raise BrokerError(Code.FORBIDDEN, f"not allowed to read {topic}")
        return self._ask(
            Report(
                id=0, owner=identity.owner, subscribe=identity.subscribe.patterns,
                reader=wanted.reader, topics=wanted.topics, offset=wanted.offset,
            )
        )  # fmt: skip


def _allow(identity: Identity, topic: str) -> None:
    check_topic(topic)
    if is_own_topic(topic):
        raise BrokerError(Code.FORBIDDEN, f"only the broker writes to {topic}")
    if not identity.may_publish(topic):
        raise BrokerError(Code.FORBIDDEN, f"not allowed to publish to {topic}")


def _decoded(body: bytes, kind: type[T]) -> T:
    if len(body) > BODY_SIZE_MAX:
        raise BrokerError(Code.LIMIT, f"{len(body)} bytes; at most {BODY_SIZE_MAX} are read")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokerError(Code.INVALID, f"bad body: {error}") from None
