"""What the Fujin client asks of a transport: byte streams that either side may open. Knows no QUIC, no TCP.

`headrace.protocols.fujin.transports.connect(endpoint, security, timeout_s)` makes one for `quic://` and `tls://`
endpoints. A transport with one stream a connection makes a new connection for every stream.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.model.errors import HeadraceError


class ConnectionLost(HeadraceError):
    """The stream or its connection broke; what was not answered may or may not have happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a client knows its broker, and shows who it is.

    `ca`: the authorities to trust instead of the system's; `cert` and `key`: a certificate of one's own, for brokers
    that ask for one (`key` may be in the same file); `server_name`: whom to expect where that is not the endpoint's
    host. `verify=False` accepts any broker and is for trying things out on one machine.
    """

    ca: Path | str = ""
    cert: Path | str = ""
    key: Path | str = ""
    server_name: str = ""
    verify: bool = True


class Stream(Protocol):
    """Bytes in both directions, each ended by its sender. One task reads, any task writes."""

    def write(self, data: bytes) -> None:
        """Send, in order, soon; buffers without limit, so await `drain` now and then. Ignored once the stream broke."""

    async def drain(self) -> None:
        """Wait until the peer has credit for more. Raises ConnectionLost."""

    async def read(self) -> bytes:
        """What has come, at least one byte; empty, for ever, once the peer ended its side.

        Raises ConnectionLost when the stream was reset or the connection broke.
        """

    def write_eof(self) -> None:
        """End our side behind everything written; what the peer says is still read. More than once is the same."""

    def close(self) -> None:
        """Be done with both sides at once: nothing more is read, what was written may be lost. Never raises."""


class StreamTransport(Protocol):
    """A connection to one broker."""

    async def open_stream(self, *, alone: bool = False) -> Stream:
        """A new stream of our own. Nothing reaches the broker before the first write. Raises ConnectionLost.

        Streams may share a connection, and one that is not read may hold back the others on it. Where the broker sends
        unasked, a stream is to be `alone`.
        """

    async def accept_stream(self) -> Stream | None:
        """The next stream the broker opens (to ping us); None once the connection is over.

        Where brokers cannot open streams this waits until the connection is over.
        """

    async def close(self) -> None:
        """Close the connection and return when it is closed; streams still open break. More than once is the same."""
