"""The Flight endpoint: calls in, rows and answers out. Decides nothing itself.

Reading is done by `Reader` and `Actions`; what writers do is done by whoever is given as `writing`.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from headrace.auth import Identity
from headrace.feed.access import MIDDLEWARE, Access, Handshake, identity_of
from headrace.feed.actions import Action, Actions, encoded
from headrace.feed.reading import Reader
from headrace.feed.refusals import told
from headrace.feed.schema import select
from headrace.feed.selection import range_of
from headrace.feed.subscriptions import Subscriptions
from headrace.feed.ticket import Ticket
from headrace.log.follower import Follower
from headrace.model.errors import BrokerError, Code


class WritingSide(Protocol):
    """Takes in rows, and the actions of writers and of readers that report."""

    @property
    def actions(self) -> dict[str, Action]:
        """Actions by their names: identity and body in, answer out. They raise BrokerError."""

    def put(self, identity: Identity, command: bytes, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Store rows; the receipt, once they are durable. Raises BrokerError."""


class Tls:
    """A certificate and its key, and whose certificates are asked for, all PEM."""

    def __init__(self, cert: bytes, key: bytes, client_ca: bytes | None) -> None:
        self.settings: dict[str, Any] = {"tls_certificates": [(cert, key)]}
        if client_ca is not None:
            self.settings |= {"verify_client": True, "root_certificates": client_ca}


class FeedServer(flight.FlightServerBase):
    """Serves one followed log at `host` and `port`; listens once it is made, `port` says where."""

    def __init__(
        self,
        host: str,
        port: int,
        follower: Follower,
        access: Access,
        writing: WritingSide,
        subscriptions: Subscriptions,
        tls: Tls | None = None,
    ) -> None:
        """Raises OSError or ArrowException when the address is not to be had."""
        self._follower = follower
        self._reader = Reader(follower, subscriptions)
        self._writing = writing
        self._actions = Actions(follower).actions | writing.actions
        scheme = "grpc+tls" if tls is not None else "grpc"
        host = f"[{host}]" if ":" in host else host
        super().__init__(
            f"{scheme}://{host}:{port}",
            auth_handler=Handshake(),
            middleware={MIDDLEWARE: access},
            **(tls.settings if tls is not None else {}),
        )

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """The rows of a ticket."""
        with told():
            schema, batches = self._reader.read(Ticket.decode(ticket.ticket), identity_of(context))
            rows = _told_while(batches, context)
            return flight.GeneratorStream(schema, rows)  # type: ignore[arg-type]  # wrong in the stubs

    def list_flights(  # type: ignore[override]  # wrong in the stubs
        self, context: flight.ServerCallContext, criteria: bytes
    ) -> Iterator[flight.FlightInfo]:
        """One flight for each topic."""
        with told():
            identity = identity_of(context)
            for topic in sorted(filter(identity.may_subscribe, self._follower.topics())):
                yield self._info(flight.FlightDescriptor.for_path(topic), Ticket(topics=(topic,)))

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """What a descriptor leads to: the path of a topic, or a command that is a ticket."""
        with told():
            return self._info(descriptor, self._ticket(context, descriptor))

    def get_schema(  # type: ignore[override]  # wrong in the stubs
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.SchemaResult:
        """The schema of what a descriptor leads to."""
        with told():
            ticket = self._ticket(context, descriptor)
            return flight.SchemaResult(select(ticket.stream, ticket.columns))

    def list_actions(  # type: ignore[override]  # wrong in the stubs
        self, context: flight.ServerCallContext
    ) -> list[flight.ActionType]:
        """What may be asked."""
        return [
            flight.ActionType(name, (action.__doc__ or "").partition(".")[0]) for name, action in self._actions.items()
        ]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        """The answer to a question, in one piece."""
        with told():
            asked = self._actions.get(action.type)
            if asked is None:
                known = ", ".join(self._actions)
                raise BrokerError(Code.UNKNOWN, f"there is no action {action.type!r}; there are {known}")
            answer = asked(identity_of(context), action.body.to_pybytes())
            yield encoded(answer)

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Take in rows; the receipt is the one message sent back."""
        with told():
            rows = (chunk.data for chunk in reader if chunk.data is not None)
            receipt = self._writing.put(identity_of(context), descriptor.command or b"", reader.schema, rows)
            writer.write(pa.py_buffer(receipt))

    def _ticket(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> Ticket:
        if descriptor.descriptor_type == flight.DescriptorType.PATH:
            if not descriptor.path or len(descriptor.path) != 1:
                raise BrokerError(Code.INVALID, "a path is the name of one topic")
            ticket = Ticket(topics=(descriptor.path[0].decode(errors="replace"),))
        else:
            ticket = Ticket.decode(descriptor.command or b"")
        self._reader.check(ticket, identity_of(context))
        return ticket

    def _info(self, descriptor: flight.FlightDescriptor, ticket: Ticket) -> flight.FlightInfo:
        """A flight whose range is fixed by now, so that everybody who takes it reads the same."""
        offsets = range_of(ticket, self._follower.committed())
        fixed = ticket.over(offsets.start, offsets.end)
        endpoint = flight.FlightEndpoint(fixed.encode(), [])
        return flight.FlightInfo(select(ticket.stream, ticket.columns), descriptor, [endpoint], -1, -1)


def _told_while(
    batches: Iterator[tuple[pa.RecordBatch, bytes]], context: flight.ServerCallContext
) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """The same, until the caller has gone."""
    with told():
        for each in batches:
            if context.is_cancelled():
                return
            yield each
