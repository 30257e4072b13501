"""The Flight endpoint: calls in, rows and answers out, over our own gRPC server. Decides nothing itself.

Reading is done by `Reader` and `Actions`; what writers do is done by whoever is given as `writing`. Whatever blocks is
done in a bounded number of threads; a caller who waits, for a peer or for news, holds none.
"""

import ssl
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from inspect import isawaitable
from typing import Protocol, TypeVar

import msgspec
import pyarrow as pa

from headrace.auth import Identity, Keyring
from headrace.feed.access import HEADER, Access, Caller, bearer
from headrace.feed.actions import Action, Actions, encoded
from headrace.feed.bounds import OPEN_ALL, OPEN_EACH, Memory, Places
from headrace.feed.ipc import MESSAGE_MAX
from headrace.feed.reading import Reader
from headrace.feed.receiving import Receiving, next_message
from headrace.feed.refusals import told
from headrace.feed.schema import select
from headrace.feed.selection import range_of
from headrace.feed.sending import UNREAD_S, Batches, Sending
from headrace.feed.staging import Upload
from headrace.feed.subscriptions import Subscriptions
from headrace.feed.threads import Threads, Worker
from headrace.feed.ticket import Ticket
from headrace.feed.wire import (
    PATH_TYPE,
    SERVICE,
    Descriptor,
    action_type,
    field,
    flight_info,
    path_descriptor,
    ticket_of,
)
from headrace.feed.wire import Action as AskedAction
from headrace.http2 import Call, GrpcServer, Http2Limits, Metadata
from headrace.log.follower import Follower
from headrace.model.batch import Buffer
from headrace.model.errors import BrokerError, Code

READING_THREADS, READING_SHARE = 8, 6
WRITING_THREADS, WRITING_SHARE = 4, 2
ASKING_THREADS, ASKING_SHARE = 4, 3
LIMITS = Http2Limits(
    message_max=MESSAGE_MAX + (1 << 20),
    stream_window=1 << 20,
    connection_buffer_max=24 << 20,
    buffer_max=48 << 20,
    write_timeout_s=2 * UNREAD_S,
)

T = TypeVar("T")


class WritingSide(Protocol):
    """Takes in rows, and the actions of writers and of readers that report."""

    @property
    def actions(self) -> dict[str, Callable[[Identity, bytes], Awaitable[object]]]:
        """Actions by their names: identity and body in, answer out. They raise BrokerError."""

    def open(self, identity: Identity, command: bytes, schema: pa.Schema) -> Upload:
        """Begin to take in rows. Raises BrokerError."""


class FeedServer:
    """Serves one followed log. Belongs to one event loop."""

    def __init__(
        self,
        follower: Follower,
        access: Access,
        writing: WritingSide,
        subscriptions: Subscriptions,
        tls: ssl.SSLContext | None = None,
        limits: Http2Limits = LIMITS,
    ) -> None:
        self._follower = follower
        self._access = access
        self._reader = Reader(follower, subscriptions)
        self._writing = writing
        self._actions: dict[str, Action] = {**Actions(follower).actions, **writing.actions}
        self._memory = Memory()
        self._places = {what: Places(what, OPEN_EACH[what], OPEN_ALL[what]) for what in OPEN_ALL}
        self._reading = Threads("feed-read", READING_THREADS, READING_SHARE)
        self._staging = Threads("feed-write", WRITING_THREADS, WRITING_SHARE)
        self._asking = Threads("feed-ask", ASKING_THREADS, ASKING_SHARE)
        methods = {
            "Handshake": self._handshake,
            "ListFlights": self._list_flights,
            "GetFlightInfo": self._get_flight_info,
            "GetSchema": self._get_schema,
            "DoGet": self._do_get,
            "DoPut": self._do_put,
            "DoAction": self._do_action,
            "ListActions": self._list_actions,
        }
        self._server = GrpcServer(
            {f"/{SERVICE}/{name}": self._counted(method) for name, method in methods.items()}, self._admit, limits, tls
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; the port. Raises OSError when the address is not to be had."""
        return (await self._server.start(host, port))[1]

    def take_keys(self, keyring: Keyring) -> None:
        """Other keys from now on. What was begun with one that is good no more ends at once."""
        self._access.keyring = keyring
        self._server.revoke(self._access.still_admits)

    def _admit(self, method: str, metadata: Metadata, peer: str, certificate: str | None) -> Caller:
        """Whoever makes a call, judged by its headers alone. Raises GrpcError."""
        with told():
            return self._access.identify(_header(metadata), certificate)

    def _counted(self, method: Callable[[Call], Awaitable[None]]) -> Callable[[Call], Awaitable[None]]:
        async def _serve(call: Call) -> None:
            with told(), self._taken("calls", call):
                await method(call)

        return _serve

    def _taken(self, what: str, call: Call) -> AbstractContextManager[None]:
        return self._places[what].taken(_owner(call), call.peer)

    async def _handshake(self, call: Call) -> None:
        """The header to be sent from now on: whoever comes so far has been checked by the one that was sent."""
        header = _header(call.metadata)
        if header:
            call.initial_metadata = {HEADER: bearer(header)}
        while await next_message(call) is not None:
            pass

    async def _do_get(self, call: Call) -> None:
        """The rows of a ticket."""
        asked = ticket_of(await _request(call))
        with self._taken("streams", call):
            worker = Worker(self._reading, _owner(call))
            ticket = await worker.run(lambda: Ticket.decode(asked))
            batches = Batches(self._reader, ticket, _identity(call))
            await Sending(call, batches, worker, self._memory, _owner(call)).run()

    async def _do_put(self, call: Call) -> None:
        """Take in rows; the receipt is the one message sent back."""
        with self._taken("uploads", call):
            first = await next_message(call)
            if first is None or first.descriptor is None:
                raise BrokerError(Code.INVALID, "the first message of an upload must have a descriptor and a schema")
            command, identity = first.descriptor.command, _identity(call)
            worker = Worker(self._staging, identity.owner)
            receiving = Receiving(call, worker, self._memory, identity.owner)
            receipt = await receiving.run(first, lambda rows: self._writing.open(identity, command, rows.schema))
        await call.write(field(1, msgspec.json.encode(receipt)))

    async def _do_action(self, call: Call) -> None:
        """The answer to a question, in one piece."""
        asked = AskedAction.decode(await _request(call))
        action = self._actions.get(asked.type)
        if action is None:
            raise BrokerError(Code.UNKNOWN, f"there is no action {asked.type!r}; there are {', '.join(self._actions)}")
        answer = await self._ask(call, lambda: action(_identity(call), asked.body))
        if isawaitable(answer):
            answer = await answer
        await call.write(field(1, await self._ask(call, lambda: encoded(answer))))

    async def _list_actions(self, call: Call) -> None:
        """What may be asked."""
        await _request(call)
        for name, action in self._actions.items():
            await call.write(action_type(name, (action.__doc__ or "").partition(".")[0]))

    async def _list_flights(self, call: Call) -> None:
        """One flight for each topic."""
        await _request(call)
        identity = _identity(call)
        topics = await self._ask(call, lambda: sorted(filter(identity.may_subscribe, self._follower.topics())))
        for topic in topics:
            await call.write(self._info(path_descriptor(topic), Ticket(topics=(topic,))))

    async def _get_flight_info(self, call: Call) -> None:
        """What a descriptor leads to: the path of a topic, or a command that is a ticket."""
        descriptor = Descriptor.decode(await _request(call))
        ticket = await self._ask(call, lambda: self._ticket(descriptor, _identity(call)))
        await call.write(self._info(descriptor.encoded, ticket))

    async def _get_schema(self, call: Call) -> None:
        """The schema of what a descriptor leads to."""
        descriptor = Descriptor.decode(await _request(call))
        ticket = await self._ask(call, lambda: self._ticket(descriptor, _identity(call)))
        await call.write(field(1, _schema(ticket)))

    async def _ask(self, call: Call, job: Callable[[], T]) -> T:
        return await self._asking.run(_owner(call), job)

    def _ticket(self, descriptor: Descriptor, identity: Identity) -> Ticket:
        if descriptor.type == PATH_TYPE:
            if len(descriptor.path) != 1:
                raise BrokerError(Code.INVALID, "a path is the name of one topic")
            ticket = Ticket(topics=descriptor.path)
        else:
            ticket = Ticket.decode(descriptor.command)
        self._reader.check(ticket, identity)
        return ticket

    def _info(self, descriptor: bytes, ticket: Ticket) -> bytes:
        """A flight whose range is fixed by now, so that everybody who takes it reads the same."""
        offsets = range_of(ticket, self._follower.committed())
        return flight_info(_schema(ticket), descriptor, [ticket.over(offsets.start, offsets.end).encode()])


def _header(metadata: Metadata) -> str | None:
    value = metadata.get(HEADER)
    return value if isinstance(value, str) else None


async def _request(call: Call) -> bytes:
    """The one message of a call that has one. Raises BrokerError."""
    data = await call.read()
    if data is None:
        raise BrokerError(Code.INVALID, "the call ended without a request")
    return data


def _schema(ticket: Ticket) -> Buffer:
    return memoryview(select(ticket.stream, ticket.columns).serialize())


def _identity(call: Call) -> Identity:
    caller: Caller = call.identity
    return caller.identity


def _owner(call: Call) -> str:
    return _identity(call).owner
