"""A feed process as simple as can be: listens, and does what single-word files in its log directory tell it to.

Speaks over the real socket with the real messages. `python feed_child.py --channel FD`.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from headrace.feed.messages import (
    FromBroker,
    FromFeed,
    Keys,
    Lines,
    Listening,
    Open,
    Ping,
    Pong,
    Report,
    Subscriptions,
    encode,
    from_broker,
)


def messages(channel: socket.socket) -> Iterator[FromBroker]:
    lines = Lines()
    with suppress(ConnectionError):
        while data := channel.recv(1 << 16):
            for line in lines.receive(data):
                yield from_broker(line)


def say(channel: socket.socket, message: FromFeed) -> None:
    """Say it, if the broker has not hung up already."""
    with suppress(ConnectionError):
        channel.sendall(encode(message))


def main() -> None:
    """Serve until the broker hangs up; note what happened in files beside the log."""
    channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--channel") + 1]))
    notes: Path | None = None
    for message in messages(channel):
        match message:
            case Open():
                notes = Path(message.log).parent
                if (notes / "fail").exists():
                    say(channel, Listening(failure="told to fail"))
                    return
                with (notes / "opened").open("a") as file:
                    file.write(f"{os.getpid()} {message.port} {len(message.api_keys)}\n")
                if (notes / "nonsense").exists():
                    (notes / "nonsense").unlink()
                    channel.sendall(b"this is not JSON\n")
                say(channel, Listening(port=message.port or 4711))
                say(channel, Subscriptions(id=1))
                say(channel, Report(id=2, owner="ann", subscribe=("a",), reader="lake", topics=("a",), offset=0))
                say(channel, Report(id=3, owner="ann", subscribe=("*",), reader="lake", topics=None, offset=10**9))
            case Keys():
                assert notes is not None
                (notes / "keys").write_text(f"{len(message.api_keys)}")
            case Ping():
                say(channel, Pong())
            case reply:
                assert notes is not None
                with (notes / "replies").open("a") as file:
                    file.write(f"{reply.id} {reply.ok} {reply.code} {reply.detail}\n")
    if notes is not None:
        (notes / "hung-up").write_text("")


main()
