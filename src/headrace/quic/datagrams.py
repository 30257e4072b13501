"""One UDP socket on the event loop: bursts in, bursts out, as few system calls as the kernel allows.

On Linux a run of equal datagrams leaves in one call (UDP_SEGMENT) and arrives as one buffer (UDP_GRO); elsewhere, or
where the network card will not, one call carries one datagram. Knows nothing of QUIC.
"""

import asyncio
import contextlib
import errno
import socket
from collections import deque
from collections.abc import Callable, Sequence
from struct import pack, unpack_from

Address = tuple[str, int] | tuple[str, int, int, int]
Received = Callable[[bytes, int, Address], None]
"""Called with a buffer of datagrams, the size of each but the last, and who sent them."""

RECEIVE_BUFFER = 4 << 20
SEND_BUFFER = 1 << 20
READ_SIZE = 1 << 16
READS_PER_TURN = 16
SEGMENTS_MAX = 64
SEGMENTED_SIZE_MAX = 65_000

_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
_PROBE = 3
_MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, getattr(socket, "IP_MTU_DISCOVER", 10)),
    socket.AF_INET6: (socket.IPPROTO_IPV6, getattr(socket, "IPV6_MTU_DISCOVER", 23)),
}
_ANCILLARY_SIZE = socket.CMSG_SPACE(4)
_NOT_SEGMENTED = {errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOPROTOOPT}


class DatagramSocket:
    """Hands over what arrives and sends what it can; what it cannot send at once waits, a burst at most.

    Callers ask `blocked` before they make more, and `when_writable` to be called once it ends. `failed` hears of errors
    of the network: for a connected socket, that nobody listens there.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        received: Received,
        turned: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._socket = sock
        self._received = received
        self._turned = turned
        self._waiting: dict[Callable[[], None], None] = {}
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[Sequence[bytes], Address | None]] = deque()
        self._segmenting = _set_up(sock)
        self._loop.add_reader(sock.fileno(), self._read)

    @property
    def address(self) -> Address:
        """Where it is bound."""
        found: Address = self._socket.getsockname()
        return found

    @property
    def blocked(self) -> bool:
        """Whether the kernel takes nothing more for now."""
        return bool(self._unsent)

    def when_writable(self, call: Callable[[], None]) -> None:
        """Call once when the kernel takes more."""
        self._waiting[call] = None

    def close(self) -> None:
        """Stop at once; what waits is dropped, as the network might have."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        if self._unsent:
            self._loop.remove_writer(self._socket.fileno())
            self._unsent.clear()
        self._socket.close()

    def send(self, datagrams: Sequence[bytes], address: Address | None) -> None:
        """Send a burst to one peer, in order; `address` is None on a connected socket."""
        if self._socket.fileno() < 0:
            return
        runs = deque((run, address) for run in _runs(datagrams, self._segmenting))
        if self._unsent:
            self._unsent.extend(runs)
            return
        self._send_runs(runs)
        if runs:
            self._unsent = runs
            self._loop.add_writer(self._socket.fileno(), self._write)

    def _write(self) -> None:
        self._send_runs(self._unsent)
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())
            waiting, self._waiting = self._waiting, {}
            for call in waiting:
                call()

    def _send_runs(self, runs: deque[tuple[Sequence[bytes], Address | None]]) -> None:
        """Send from the front until the kernel has enough."""
        while runs:
            run, address = runs[0]
            try:
                self._send_run(run, address)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if len(run) > 1 and error.errno in _NOT_SEGMENTED:
                    self._segmenting = False
                    runs.popleft()
                    runs.extendleft(([each], address) for each in reversed(run))
                    continue
                if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS, errno.EPERM):
                    self._failed(error)
            runs.popleft()

    def _send_run(self, run: Sequence[bytes], address: Address | None) -> None:
        segments = [(_SOL_UDP, _UDP_SEGMENT, pack("=H", len(run[0])))] if len(run) > 1 else []
        if address is None:
            self._socket.sendmsg(run, segments)
        else:
            self._socket.sendmsg(run, segments, 0, address)

    def _read(self) -> None:
        for _ in range(READS_PER_TURN):
            try:
                data, ancillary, _, address = self._socket.recvmsg(READ_SIZE, _ANCILLARY_SIZE)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._failed(error)
                break
            if data:
                self._received(data, _segment_size(ancillary) or len(data), address)
            if self._socket.fileno() < 0:
                return
        self._turned()


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address of this machine. Raises OSError."""
    return _opened(host, port, lambda made, where: made.bind(where), socket.AI_PASSIVE)


def connect(host: str, port: int) -> socket.socket:
    """A socket that speaks to one peer only. Raises OSError."""
    return _opened(host, port, lambda made, where: made.connect(where), 0)


def _opened(host: str, port: int, attach: Callable[[socket.socket, Address], None], flags: int) -> socket.socket:
    failure: OSError | None = None
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags):
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        try:
            attach(made, where)  # type: ignore[arg-type]
        except OSError as error:
            made.close()
            failure = failure or error
        else:
            return made
    raise failure or OSError(f"{host}: no address")


def _set_up(sock: socket.socket) -> bool:
    """Ask for room, for datagrams that are never cut up on the way, and for bursts; whether they can be sent."""
    for option, size in ((socket.SO_RCVBUF, RECEIVE_BUFFER), (socket.SO_SNDBUF, SEND_BUFFER)):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, size)
    with contextlib.suppress(OSError):
        sock.setsockopt(*_MTU_DISCOVER[socket.AddressFamily(sock.family)], _PROBE)
    try:
        sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        return sock.getsockopt(_SOL_UDP, _UDP_SEGMENT) == 0
    except OSError:
        return False


def _runs(datagrams: Sequence[bytes], segmenting: bool) -> list[Sequence[bytes]]:
    """Runs that may leave in one call: equal sizes, only the last of a run may be smaller."""
    if not segmenting:
        return [[each] for each in datagrams]
    runs: list[Sequence[bytes]] = []
    start, end = 0, len(datagrams)
    while start < end:
        size = len(datagrams[start])
        stop = min(end, start + max(1, min(SEGMENTS_MAX, SEGMENTED_SIZE_MAX // size)))
        at = start + 1
        while at < stop and len(datagrams[at]) == size:
            at += 1
        if at < stop and len(datagrams[at]) < size:
            at += 1
        runs.append(datagrams[start:at])
        start = at
    return runs


def _segment_size(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in ancillary:
        if level == _SOL_UDP and kind == _UDP_GRO:
            return int(unpack_from("=i" if len(value) >= 4 else "=H", value)[0])
    return 0
