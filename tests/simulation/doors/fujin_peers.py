"""Peers at the Fujin door, over a QUIC stream or over TCP: writers with transactions, push and pull readers."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from headrace.protocols.fujin.frames import (
    DISCONNECT,
    Command,
    Cursor,
    Incomplete,
    ReaderType,
    Response,
    encode_command,
    encode_connect_reader,
    encode_connect_writer,
    encode_fetch,
    encode_settle,
    encode_write,
)
from tests.simulation.doors.ledger import Fate, Sent
from tests.simulation.doors.peer import Peer, Publisher, Talk
from tests.simulation.doors.wire import Gone, Wire
from tests.simulation.doors.world import World

SIZE_MAX = 1 << 24
SETTLED = 0x80
"""An id that begins with this bit needs no settling: the message was delivered at most once."""

STORAGE_TEXTS = ("durable publish failed", "durable subscribe failed")


@dataclass
class Reply:
    """Anything the broker says. `items` are (id, value), or (id, success) as b"1" and b""."""

    code: Response
    tag: int = 0
    error: str | None = None
    items: tuple[tuple[bytes, bytes], ...] = ()


def parser(*, with_ids: bool) -> Callable[[bytearray], tuple[Reply, int] | None]:
    """What understands the broker; messages have ids unless they are settled by their delivery."""

    def parse(data: bytearray) -> tuple[Reply, int] | None:
        cursor = Cursor(data, 0, len(data))
        try:
            return _reply(cursor, with_ids=with_ids), cursor.at
        except Incomplete:
            return None

    return parse


def _reply(cursor: Cursor, *, with_ids: bool) -> Reply:
    code = Response(cursor.u8())
    if code in (Response.STOP, Response.DISCONNECT):
        return Reply(code)
    if code is Response.CONNECT_READER:
        return Reply(code, 0, cursor.error())
    if code is Response.MSG:
        return Reply(code, 0, None, (_message(cursor, with_ids=with_ids),))
    reply = Reply(code, cursor.u32(), cursor.error())
    if reply.error is None and code is Response.FETCH:
        reply.items = tuple(_message(cursor, with_ids=with_ids) for _ in range(cursor.u32()))
    elif reply.error is None and code in (Response.ACK, Response.NACK):
        results = ((cursor.string("id", SIZE_MAX), cursor.u8()) for _ in range(cursor.u32()))
        reply.items = tuple((key, b"1" if result else b"") for key, result in results)
    return reply


def _message(cursor: Cursor, *, with_ids: bool) -> tuple[bytes, bytes]:
    key = cursor.string("id", SIZE_MAX) if with_ids else b""
    return key, cursor.string("message", SIZE_MAX)


def connect(peer: Peer) -> Talk:
    """A stream, or a connection that is one."""
    return peer.open_stream() if peer.chance.random() < 0.5 else peer.dial("fujin")


class FujinWriter(Publisher):
    """Writes runs and transactions; a reply without an error means that it is stored."""

    async def converse(self) -> None:
        talk = connect(self)
        await talk.say(encode_connect_writer(self.chance.choice((0, 7, "writer"))))
        self._tag = 0
        self._hear = parser(with_ids=True)
        self._headers = self.chance.choice((None, (), (("trace", b"1"),)))
        while self.wanted and not self.rarely(0.05):
            if self.chance.random() < 0.5:
                await self._write(talk)
            else:
                await self._transact(talk)
            await self.pause(0.3)
        if self.rarely(0.3):
            talk.leave()
        if self.chance.random() < 0.5:
            talk.wire.finish()
        else:
            await talk.say(DISCONNECT)
        reply = await self._reply(talk)
        assert reply.code is Response.DISCONNECT

    def _encode(self, tag: int, sent: Sent) -> bytes:
        padding = 1 + self.world.padding(self.chance)
        return encode_write(tag, sent.topic, sent.value(padding), self._headers)

    async def _reply(self, talk: Talk) -> Reply:
        while (reply := await talk.hear(self._hear)).code is Response.STOP:
            if self.chance.random() < 0.5:
                talk.wire.finish()
        return reply

    async def _expect(self, talk: Talk, code: Response, tags: Collection[int]) -> Reply:
        reply = await self._reply(talk)
        if reply.code is Response.DISCONNECT:
            raise Gone
        assert reply.code is code
        assert reply.tag in tags
        return reply

    async def _write(self, talk: Talk) -> None:
        ledger = self.world.ledger
        sents = [
            ledger.new(talk.wire.name, self.world.some_topic(self.chance))
            for _ in range(self.chance.choice((1, 2, 6, 25)))
        ]
        await talk.say(b"".join(self._encode(self._tag + i, sent) for i, sent in enumerate(sents)))
        if self.rarely(0.03):
            talk.leave()
        if self.rarely(0.03):
            await talk.stop_reading(3.0)
        first, self._tag = self._tag, self._tag + len(sents)
        open_tags = set(range(first, self._tag))
        while open_tags:
            reply = await self._expect(talk, Response.WRITE, open_tags)
            open_tags.remove(reply.tag)
            self._decide(sents[reply.tag - first], reply)

    def _decide(self, sent: Sent, reply: Reply) -> None:
        assert reply.error is None or reply.error.startswith(STORAGE_TEXTS), reply
        self.world.ledger.decide(sent, Fate.REFUSED if reply.error else Fate.CONFIRMED, self.life)

    async def _transact(self, talk: Talk) -> None:
        ledger, chance = self.world.ledger, self.chance
        transaction = ledger.new_transaction()
        topics = [self.world.some_topic(chance) for _ in range(chance.choice((1, 2, 5)))]
        sents = [ledger.new(talk.wire.name, topic, transaction=transaction) for topic in topics]
        await talk.say(encode_command(Command.BEGIN, 1) + b"".join(self._encode(2, sent) for sent in sents))
        assert (await self._expect(talk, Response.BEGIN, [1])).error is None
        for _ in sents:
            assert (await self._expect(talk, Response.WRITE, [2])).error is None
        ending = chance.choice((Command.COMMIT, Command.COMMIT, Command.COMMIT, Command.ROLLBACK))
        if self.rarely(0.1):
            for sent in sents:
                ledger.decide(sent, Fate.WITHDRAWN, self.life)
            talk.leave()
        if ending is Command.ROLLBACK:
            for sent in sents:
                ledger.decide(sent, Fate.WITHDRAWN, self.life)
        await talk.say(encode_command(ending, 3))
        if self.rarely(0.05):
            talk.leave()
        reply = await self._expect(talk, Response[ending.name], [3])
        if ending is Command.COMMIT:
            for sent in sents:
                self._decide(sent, reply)


class FujinReader(Peer):
    """Reads one topic, pushed or fetched, with or without auto commit; whatever is not settled it holds.

    `readers` are all of the world, it included: what they hold it tries to settle, too.
    """

    def __init__(self, world: World, name: str, topic: str, readers: list["FujinReader"]) -> None:
        super().__init__(world, name)
        self._topic = topic
        self._subscription = f"fujin/{topic}"
        self._held: dict[bytes, int] = {}
        self._wire: Wire | None = None
        self._readers = readers
        readers.append(self)

    async def converse(self) -> None:
        chance = self.chance
        self._push = chance.random() < 0.5
        self._auto = chance.random() < 0.2
        self._hear = parser(with_ids=not self._auto)
        self._held = {}
        self._tag = 0
        talk = connect(self)
        kind = ReaderType.PUSH if self._push else ReaderType.PULL
        await talk.say(encode_connect_reader(kind, self._auto, self._topic))
        while (reply := await talk.hear(self._hear)).code is Response.STOP:
            self.note("is asked to stop")
        assert reply.code is Response.CONNECT_READER
        if reply.error is not None:
            assert reply.error.startswith(STORAGE_TEXTS)
            talk.leave()
        self._fickle = chance.random() < 0.5
        while self.wanted and not (self._fickle and self.rarely(0.05)):
            await self._read(talk)
        if self.rarely(0.5):
            talk.leave()
        await self._leave(talk)

    async def _read(self, talk: Talk) -> None:
        """Get something, and settle some of it."""
        await self.doze(talk, 0.3 if self.world.lull else 0.03, 8.0)
        if self._push:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5 if self._held else None):
                    await self._hear_one(talk, Response.MSG, idle=True)
        else:
            await self._fetch(talk)
        if self.rarely(0.05):
            await self.pause(1.0)
        if self._held and not self.rarely(0.2):
            await self._settle(talk)

    async def _fetch(self, talk: Talk) -> None:
        """One FETCH, or several at once."""
        first = self._tag + 1
        self._tag += 12 if self.rarely(0.1) else 1
        tags = set(range(first, self._tag + 1))
        await talk.say(b"".join(encode_fetch(tag, self.chance.choice((1, 2, 10, 100))) for tag in tags))
        if self.rarely(0.03):
            await talk.stop_reading(4.0)
        found = False
        while tags:
            reply = await self._hear_one(talk, Response.FETCH)
            tags.remove(reply.tag)
            found |= bool(reply.items)
        if not found:
            await self.pause(0.2)

    async def _hear_one(self, talk: Talk, awaited: Response, *, idle: bool = False) -> Reply:
        """Whatever comes, up to what is awaited."""
        while True:
            reply = await talk.hear(self._hear, idle=idle)
            if reply.code is Response.STOP:
                await self._leave(talk)
                raise Gone
            if reply.code is Response.DISCONNECT:
                raise Gone
            if reply.code in (Response.MSG, Response.FETCH):
                self._take(talk, reply)
            if reply.code is awaited:
                return reply

    def _take(self, talk: Talk, reply: Reply) -> None:
        ledger = self.world.ledger
        for key, value in reply.items:
            settled = self._auto or key[0] >= SETTLED
            holder = None if settled else talk.wire
            number = ledger.take(self._subscription, value, self.life, holder=holder, once=settled)
            if not settled:
                self._held[key] = number
        self._wire = talk.wire

    async def _settle(self, talk: Talk) -> None:
        chance, ledger = self.chance, self.world.ledger
        command = Command.NACK if self.rarely(0.2) else Command.ACK
        share = 1.0 if self.world.lull else chance.choice((0.3, 0.9, 1.0))
        chosen = {key: number for key, number in self._held.items() if chance.random() <= share}
        ids = list(chosen)
        if self.rarely(0.05):
            ids += [*ids[:1], b"nonsense", (1 << 50).to_bytes(8)]
        stolen = self._others() if self.rarely(0.1) else {}
        ids += [key for key in stolen if key not in chosen]
        if not ids:
            return
        self._tag += 1
        for key, number in chosen.items():
            del self._held[key]
            ledger.let_go(self._subscription, number)
        await talk.say(encode_settle(command, self._tag, ids))
        reply = await self._hear_one(talk, Response[command.name])
        assert reply.tag == self._tag
        assert reply.error is None
        assert [key for key, _ in reply.items] == ids
        settled = {key for key, success in reply.items if success}
        assert set(chosen) <= settled, "what it held it could not settle"
        taken = [key for key, other in self._others().items() if key in settled and stolen.get(key) is other]
        assert not taken, "it settled what another holds"
        if command is Command.ACK:
            for key, number in chosen.items():
                if key in settled:
                    ledger.ack_confirmed(self._subscription, number, self.life)

    def _others(self) -> dict[bytes, Wire]:
        """What other readers of the topic hold now, and by which connection."""
        return {
            key: other._wire
            for other in self._readers
            if other is not self and other._topic == self._topic and other._wire is not None and not other._wire.over
            for key in other._held
        }

    async def _leave(self, talk: Talk) -> None:
        """Say goodbye; what is held goes back."""
        ledger = self.world.ledger
        for number in self._held.values():
            ledger.let_go(self._subscription, number)
        self._held.clear()
        await talk.say(DISCONNECT)
        while (await talk.hear(self._hear)).code is not Response.DISCONNECT:
            pass
