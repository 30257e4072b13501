"""Peers that vanish are found out by the system."""

import asyncio
import socket

from headrace.server.tcp import PROBE_EVERY_S, PROBES, SILENCE_S, TcpListener
from headrace.testing import broker
from tests.harness.peer import handshake

HELLO = handshake()[:15]


async def test_every_connection_is_kept_alive() -> None:
    async with broker() as node:
        host, port = node.endpoints["blipmq"].removeprefix("tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(HELLO)
        await reader.readexactly(13)
        listener = node._listeners[0]
        assert isinstance(listener, TcpListener)
        (connection,) = listener.connections
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == SILENCE_S
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == PROBE_EVERY_S
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == PROBES
        writer.close()
