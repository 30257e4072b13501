"""Where a server's client is, told to qh3's core in a way that it acts on.

The core asks an address it has not seen for proof (RFC 9000, 8.2), once, and moves to it when the answer comes. It does
not ask again when the answer was lost, nor when the client is back at an address that it once had; then the client is
shown to it under a name it has not seen. Time is an argument.
"""

from headrace.quic.datagrams import Address

ASK_AGAIN_AFTER_S = 0.25
"""Longer than an answer takes on nearly every path; what is slower is waited for by its round trips."""
ROUND_TRIPS = 3
NAMES_MAX = 4
"""How many addresses the core takes in a connection's life, the first one included."""


class Moves:
    """One client's addresses, and what each is called towards the core."""

    def __init__(self, home: Address) -> None:
        self._home = home
        self._names: dict[Address, Address] = {home: home}
        self._addresses: dict[Address, Address] = {home: home}
        self._elsewhere: Address | None = None
        self._since = 0.0

    @property
    def any(self) -> bool:
        """Whether the client was ever heard from elsewhere."""
        return len(self._addresses) > 1

    def at_home(self, address: Address) -> bool:
        """Whether this is where the client is answered; if so all is as it was."""
        if address != self._home:
            return False
        self._elsewhere = None
        return True

    def name(self, address: Address, round_trip_s: float, now: float) -> Address:
        """What to call an address that is not home; another name once the core had its time to move there."""
        known = self._names.get(address)
        if address != self._elsewhere:
            self._elsewhere, self._since = address, now
        elif now - self._since >= max(ASK_AGAIN_AFTER_S, ROUND_TRIPS * round_trip_s):
            self._since = now
            if len(self._addresses) < NAMES_MAX:
                known = None
        return known or self._unused(address)

    def heard(self, address: Address, name: Address) -> None:
        """What came from there was the client's own; only now is a name used up."""
        if name not in self._addresses and len(self._addresses) < NAMES_MAX:
            self._names[address] = name
            self._addresses[name] = address

    def answered_at(self, name: Address) -> None:
        """Where the core sends to now."""
        self._home = self.address(name)

    def address(self, name: Address) -> Address:
        """Where datagrams for this name go."""
        return self._addresses.get(name, name)

    def _unused(self, address: Address) -> Address:
        host, port, *rest = address
        while (host, port, *rest) in self._addresses:
            port = port % 65535 + 1
        return (host, port, *rest)  # type: ignore[return-value]
