"""What each key and each address may have open at a time, and how fast it may publish. Time is an argument.

What is remembered by the log (topics, subscriptions, readers, writers) the broker counts by itself, what is staged the
feed does; all with the same `Shares`. This book is for what ends with its holder. Callers on this machine have no
address here: whoever comes through a proxy, or tries things out, is one of many at it.
"""

from collections.abc import Callable
from enum import Enum

from headrace.broker.shares import Shares
from headrace.config import LimitsSection
from headrace.model.errors import OverQuota

SECOND_US = 1_000_000
REMEMBERED_MAX = 4096


class Kind(Enum):
    """What is counted."""

    CONNECTIONS = "connections"
    STREAMS = "streams"


class Lease:
    """Something that counts for its holder until `end`."""

    __slots__ = ("_back",)

    def __init__(self, back: list[Callable[[], None]]) -> None:
        self._back = back

    def end(self) -> None:
        """Give it back; doing so twice does nothing."""
        back, self._back = self._back, []
        for each in back:
            each()


class Rate:
    """At most so much a second for each, one second's worth at once.

    Of each is known when it is even: when so much would have been let through at that rate as was.
    """

    __slots__ = ("_even_us", "per_s", "what")

    def __init__(self, what: str, per_s: int) -> None:
        self.what = what
        self.per_s = per_s
        self._even_us: dict[str, int] = {}

    def wait_us(self, who: str, now: int) -> int:
        """How long until there is room again; 0 when there is."""
        return max(0, self._even_us.get(who, 0) - now)

    def spend(self, who: str, amount: int, now: int) -> None:
        """So much was let through, more than there was room for perhaps: that has to be waited for afterwards."""
        even = max(self._even_us.pop(who, 0), now - SECOND_US)
        self._even_us[who] = even + amount * SECOND_US // self.per_s
        if len(self._even_us) > REMEMBERED_MAX:
            self._even_us = {each: at for each, at in self._even_us.items() if at > now - SECOND_US}


class Quotas:
    """The shares and rates of one broker; without limits there are none. `rated` is whether any rate is set."""

    def __init__(self, limits: LimitsSection | None = None) -> None:
        most = {} if limits is None else {name: getattr(limits, name) for name in limits.__struct_fields__}

        def share(kind: Kind, whose: str) -> Shares:
            """The shares of keys or addresses in a kind."""
            name = f"{kind.value}_per_{whose}_max"
            return Shares(f"{kind.value} of one {whose}", f"limits.{name}", most.get(name, 0))

        def rates(whose: str) -> list[tuple[Rate, bool]]:
            """The rates that are set for each of them, and whether they are of bytes."""
            named = ((what, most.get(f"{what}_per_{whose}_s", 0)) for what in ("messages", "bytes"))
            return [(Rate(f"{per_s} {what} a second", per_s), what == "bytes") for what, per_s in named if per_s]

        self._by_key = {kind: share(kind, "key") for kind in Kind}
        self._by_address = {Kind.STREAMS: share(Kind.STREAMS, "address")}
        self._key_rates = rates("key")
        self._address_rates = rates("address")
        self.rated = bool(self._key_rates or self._address_rates)

    def lease(self, kind: Kind, owner: str, address: str = "") -> Lease:
        """Count one more of a kind. Raises OverQuota if that is too much for the key or the address."""
        back: list[Callable[[], None]] = []
        lease = Lease(back)
        by_address = self._by_address.get(kind)
        for shares, who in ((self._by_key[kind], owner), (by_address, _far(address))):
            if shares is None or not who:
                continue
            try:
                shares.take(who)
            except OverQuota:
                lease.end()
                raise
            back.append(lambda shares=shares, who=who: shares.give(who))  # type: ignore[misc]
        return lease

    def held(self, kind: Kind, owner: str) -> int:
        """How many of a kind a key has."""
        return self._by_key[kind].of(owner)

    def spend(self, owner: str, address: str, messages: int, size: int, now: int) -> int:
        """So much is published; how many microseconds the publisher is to be kept waiting before more is."""
        wait = 0
        for rates, who in ((self._key_rates, owner), (self._address_rates, _far(address))):
            for rate, is_bytes in rates if who else ():
                rate.spend(who, size if is_bytes else messages, now)
                wait = max(wait, rate.wait_us(who, now))
        return wait

    def admit(self, owner: str, address: str, messages: int, size: int, now: int) -> None:
        """The same where nobody can be kept waiting.

        Raises OverQuota while what was published before has to be waited for.
        """
        for rates, who in ((self._key_rates, owner), (self._address_rates, _far(address))):
            for rate, _ in rates if who else ():
                if wait := rate.wait_us(who, now):
                    raise OverQuota(f"more than {rate.what}; try again in {wait / SECOND_US:.1f} s")
        self.spend(owner, address, messages, size, now)


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    return address.startswith(("127.", "::ffff:127.")) or address in ("::1", "localhost")


def _far(address: str) -> str:
    return "" if is_loopback(address) else address
