"""The server's side of one Fujin stream: which commands may come when, and what they ask for.

Knows order and legality. A stream begins with CONNECT WRITER or CONNECT READER and is a writer or a reader from then
on. Knows nothing of sockets, QUIC, clocks or topics' contents.
"""

from collections.abc import Callable
from enum import Enum, auto

from headrace.kernels.fujin import COMPILED
from headrace.model.batch import Buffer
from headrace.model.delivery import Portion
from headrace.model.errors import BrokerError, Code, PeerProtocolError
from headrace.model.requests import Request, Start, Subscribe
from headrace.protocols.fujin.frames import (
    READER_COMMANDS,
    STOP,
    WRITER_COMMANDS,
    Command,
    ConnectReader,
    Cursor,
    Incomplete,
    ReaderType,
    Response,
    TooLong,
    decode_connect_reader,
    decode_connect_writer,
    encode_connected,
)
from headrace.protocols.fujin.reader import Reader
from headrace.protocols.fujin.replies import Replies
from headrace.protocols.fujin.settings import Dialect, FujinSettings
from headrace.protocols.fujin.writer import Writer, topic_of

SUBSCRIPTION_NAME = "fujin"
"""All readers of a topic share one subscription: they compete."""


class State(Enum):
    """What a stream is."""

    NEW = auto()
    JOINING = auto()
    JOINED = auto()
    WRITER = auto()
    READER = auto()
    LEAVING = auto()


REPLY_TO = {
    Command.WRITE: Response.WRITE,
    Command.FETCH: Response.FETCH,
    Command.ACK: Response.ACK,
    Command.NACK: Response.NACK,
}
"""The commands that may be too long to be read, but not for being answered."""

LEGAL = {State.WRITER: WRITER_COMMANDS, State.READER: READER_COMMANDS}


class FujinSession:
    """One stream. Implements protocols.spec.ReadingSession.

    `original_met` is called when the stream's peer proves to be the client that existed first, which only a writer with
    a string for its id does, while the dialect is the document's.
    """

    def __init__(self, settings: FujinSettings | None = None, original_met: Callable[[], None] = lambda: None) -> None:
        self.state = State.NEW
        self._original_met = original_met
        self._settings = settings or FujinSettings()
        self._replies = Replies()
        self._role: Writer | Reader | None = None
        self._asked = ConnectReader(0, 0, b"")
        self._asked_tag = 0

    def receive(self, view: memoryview, now: int) -> tuple[int, list[Request]]:
        """How many bytes are done with, and what they ask for; the rest is to be presented again with more.

        A CONNECT READER is not done with before its Subscribe is answered. No request refers to `view`.
        Raises PeerProtocolError for a stream that does not begin with CONNECT WRITER or CONNECT READER.
        """
        data: Buffer = view if COMPILED else bytes(view)
        requests: list[Request] = []
        at, end = 0, len(data)
        while at < end and self.state not in (State.JOINING, State.LEAVING):
            try:
                at = STEPS[self.state](self, data, at, end, now, requests)
            except Incomplete:
                break
            except PeerProtocolError:
                if requests:
                    break
                raise
        return (end if self.state is State.LEAVING else at), requests

    def bytes_wanted(self, view: memoryview) -> int:
        """The size of the whole command `view` begins with, as far as it can be known yet."""
        try:
            if view and self.state is State.NEW:
                _decode_connect(view[0], Cursor(view, 1, len(view)))
            elif view and self._role is not None and self.state is not State.LEAVING:
                self._role.measure(view)
        except Incomplete as incomplete:
            return incomplete.wanted
        return len(view) + 1

    def authenticated(self, tag: int) -> None:
        """A stream's peer is known from the start."""
        raise AssertionError("nobody asked")

    def refused(self, tag: int, error: BrokerError) -> None:
        """The command with this tag was refused."""
        if self.state is State.JOINING and tag == self._asked_tag:
            self.state = State.JOINED
        if isinstance(self._role, Reader):
            self._role.refused(tag, error)
        else:
            self._replies.refused(tag, error)

    def subscribed(self, tag: int, subscription: int) -> None:
        """The reader is connected; a push reader begins with the next `receive`."""
        assert self.state is State.JOINING
        self.state = State.JOINED
        kind, auto_commit, _ = self._asked
        self._role = Reader(
            self._settings, self._replies, subscription, ReaderType(kind), auto_commit=bool(auto_commit)
        )
        self._replies.say(encode_connected())

    def published(self, tags: bytes) -> None:
        """The WRITEs or the COMMIT with these tags are durable."""
        self._writer.published(tags)

    def publish_refused(self, tags: bytes, error: BrokerError) -> None:
        """The WRITEs or the COMMIT with these tags were not stored."""
        self._writer.publish_refused(tags, error)

    def deliver(self, portion: Portion, tags: bytes) -> None:
        """Nothing is taken one by one here."""
        raise AssertionError("nobody asked")

    def fetched(self, tag: int, portions: list[Portion]) -> None:
        """What the FETCH with this tag brought; nothing when its time was up."""
        self._reader.fetched(tag, portions)

    def pushed(self, tag: int, portions: list[Portion]) -> None:
        """What has come for a push reader."""
        self._reader.pushed(portions)

    def settled(self, tag: int, deliveries: list[int], accepted: list[bool]) -> None:
        """What became of the deliveries of the ACKs or NACKs with this tag."""
        self._reader.settled(tag, accepted)

    def fence_passed(self, tag: int) -> None:
        """Everything before is answered, or will be ahead of this."""
        self._replies.passed(tag)

    def data_to_send(self) -> bytes:
        """What to send to the peer now; each byte is given out once."""
        return self._replies.take()

    def ended(self) -> list[Request]:
        """The peer ended its side, which is a DISCONNECT."""
        requests: list[Request] = []
        if self.state is not State.LEAVING:
            self._leave(requests)
        return requests

    def draining(self) -> None:
        """Ask the peer to disconnect."""
        self._replies.mention(STOP)

    @property
    def _writer(self) -> Writer:
        assert isinstance(self._role, Writer)
        return self._role

    @property
    def _reader(self) -> Reader:
        assert isinstance(self._role, Reader)
        return self._role

    def _connect(self, data: Buffer, at: int, end: int, _now: int, requests: list[Request]) -> int:
        """A stream begins. Raises PeerProtocolError when it does not begin with either CONNECT."""
        cursor = Cursor(data, at + 1, end)
        try:
            asked = _decode_connect(data[at], cursor)
        except TooLong as error:
            if data[at] == Command.CONNECT_WRITER:
                raise PeerProtocolError(str(error)) from None
            requests.append(self._replies.refusal(Response.CONNECT_READER, 0, BrokerError(Code.LIMIT, str(error))))
            return self._leave(requests)
        if not isinstance(asked, ConnectReader):
            if isinstance(asked, bytes) and self._settings.dialect is Dialect.DOCUMENT:
                self._original_met()
            self.state = State.WRITER
            self._role = Writer(self._settings, self._replies)
            return cursor.at
        try:
            topic = self._judge(asked)
        except BrokerError as error:
            requests.append(self._replies.refusal(Response.CONNECT_READER, 0, error))
            return cursor.at
        self.state = State.JOINING
        self._asked = asked
        self._asked_tag = self._replies.tag(Response.CONNECT_READER)
        requests.append(Subscribe(self._asked_tag, topic, 1, SUBSCRIPTION_NAME, Start.EARLIEST))
        return at

    def _judge(self, asked: ConnectReader) -> str:
        """The topic a CONNECT READER may have. Raises BrokerError."""
        if asked.type not in list(ReaderType):
            raise BrokerError(Code.INVALID, f"reader type {asked.type} is neither 1 (push) nor 2 (pull)")
        if asked.auto_commit > 1:
            raise BrokerError(Code.INVALID, f"auto commit {asked.auto_commit} is neither 0 nor 1")
        return topic_of(asked.topic, self._settings.names)

    def _joined(self, data: Buffer, at: int, end: int, _now: int, requests: list[Request]) -> int:
        """The CONNECT READER at `at` is answered: be done with it."""
        cursor = Cursor(data, at + 1, end)
        decode_connect_reader(cursor)
        self.state = State.NEW
        if isinstance(self._role, Reader):
            self.state = State.READER
            requests += self._role.opening()
        return cursor.at

    def _serve(self, data: Buffer, at: int, end: int, now: int, requests: list[Request]) -> int:
        """A command of a stream that is connected; one of the wrong role ends it."""
        assert self._role is not None
        command = data[at]
        if command == Command.DISCONNECT or command not in LEGAL[self.state]:
            return self._leave(requests)
        try:
            return self._role.step(data, at, end, now, requests)
        except TooLong as error:
            correlation_id = Cursor(data, at + 1, end).u32()
            refusal = BrokerError(Code.LIMIT, str(error))
            requests.append(self._replies.refusal(REPLY_TO[Command(command)], correlation_id, refusal))
            return self._leave(requests)

    def _leave(self, requests: list[Request]) -> int:
        """Say goodbye once everything is answered; nothing that follows is read. What is open is rolled back."""
        self.state = State.LEAVING
        requests.append(self._replies.farewell())
        return 0


def _decode_connect(command: int, cursor: Cursor) -> ConnectReader | int | bytes:
    """What a CONNECT READER asks for, the id of a CONNECT WRITER. Raises PeerProtocolError for anything else."""
    if command == Command.CONNECT_READER:
        return decode_connect_reader(cursor)
    if command != Command.CONNECT_WRITER:
        raise PeerProtocolError(f"a stream that begins with {command}")
    return decode_connect_writer(cursor)


STEPS = {
    State.NEW: FujinSession._connect,
    State.JOINED: FujinSession._joined,
    State.WRITER: FujinSession._serve,
    State.READER: FujinSession._serve,
}
"""What each state makes of the next bytes; in the others nothing is read."""
