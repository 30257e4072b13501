"""What happened since the last drain, on its way to the log. Knows how events become payloads, not what they mean.

Events of one subscription that name different messages may change places, and an ack is always the last word about
its messages. So acks are gathered until the payload is closed, and neighbouring events of one kind become one; all
others keep their order.
"""

from headrace.model.events import Event, EventPart, Range


class Journal:
    """Gathers events into as few parts and records as their order allows. `recorded` counts them."""

    __slots__ = ("_acked", "_entries", "_last", "_payloads", "recorded")

    def __init__(self) -> None:
        self.recorded = 0
        self._payloads: list[bytes] = []
        self._entries: list[EventPart] = []
        self._last: dict[int, tuple[EventPart, list[Range]]] = {}
        self._acked: dict[int, tuple[int, list[Range]]] = {}

    def record(self, event: Event, subscription: int, now: int, item: Range, reason: str = "") -> None:
        """Something happened to these messages, other than an ack."""
        self.recorded += 1
        last = self._last.get(subscription)
        if last is not None:
            part, ranges = last
            if part.event == event and part.timestamp_us == now and part.reason == reason:
                ranges.append(item)
                return
        ranges = [item]
        part = EventPart(event, now, subscription, ranges, reason)
        self._last[subscription] = part, ranges
        self._entries.append(part)

    def acked(self, subscription: int, now: int, ranges: list[Range]) -> None:
        """These messages are done."""
        self.recorded += 1
        known = self._acked.get(subscription)
        if known is not None:
            known[1].extend(ranges)
            ranges = known[1]
        self._acked[subscription] = now, ranges

    def subscription(self, event: Event, subscription: int, now: int, reason: str = "", detail: bytes = b"") -> None:
        """A subscription came or went."""
        self.recorded += 1
        acked = self._acked.pop(subscription, None)
        if acked is not None:
            self._entries.append(EventPart(Event.ACKED, acked[0], subscription, acked[1]))
        self._last.pop(subscription, None)
        self._entries.append(EventPart(event, now, subscription, (), reason, detail))

    def told(self, event: Event, now: int, detail: bytes) -> None:
        """Something happened that is about no subscription."""
        self.recorded += 1
        self._entries.append(EventPart(event, now, 0, (), "", detail))

    def dead(self, subscription: int, now: int, item: Range, reason: str, copy: bytes) -> None:
        """These messages were given up; `copy` is the batch of their dead letters, true together with the event."""
        self.recorded += 1
        self._close()
        self._payloads.append(copy + EventPart(Event.DEAD, now, subscription, (item,), reason).encode())

    def drain(self) -> list[bytes]:
        """The payloads of everything recorded since the last call, in order."""
        self._close()
        payloads = self._payloads
        if payloads:
            self._payloads = []
        return payloads

    def _close(self) -> None:
        """End the open payload."""
        entries = self._entries
        for subscription, (now, ranges) in self._acked.items():
            entries.append(EventPart(Event.ACKED, now, subscription, ranges))
        if entries:
            self._payloads.append(b"".join([part.encode() for part in entries]))
            self._entries = []
            self._last = {}
            self._acked = {}
