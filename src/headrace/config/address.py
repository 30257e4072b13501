"""Addresses as the user writes them."""

import ipaddress
from typing import NamedTuple


class Address(NamedTuple):
    """Where a listener binds; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address | None:
    """The address in `host:port` or `[v6]:port`; None for the empty text, which switches a listener off.

    Raises ValueError.
    """
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        raise ValueError(f"an IPv6 address needs brackets, as in [::1]:5555: {text!r}")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        raise ValueError(f"expected host:port, got {text!r}")
    if int(port) > 65535:
        raise ValueError(f"port {port} is above 65535")
    return Address(host, int(port))
