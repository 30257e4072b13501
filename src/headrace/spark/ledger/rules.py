"""What balances: the outcomes a message can have in a subscription, and what may not happen. Pure.

A subscription reads its topic in the order of offsets and leaves an event for every message its cursor passes. So of
the messages between its beginning and the highest one it touched, each has an event; each has at most one outcome; and
what has none is pending.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.broker.dispatch import AT_MOST_ONCE

DELIVERED = "delivered"
OUTCOMES = ("acked", "delivered", "dead", "expired", "dropped")
"""How a message can end. A delivery is the end when the recipient was promised one at most."""

SUBSCRIBED, UNSUBSCRIBED = "subscribed", "unsubscribed"
ONCE = AT_MOST_ONCE
NEVER = (1 << 63) - 1


class Fault(StrEnum):
    """Why an offset does not fit."""

    LOST = "lost from the log"
    MISSING = "not in the table"
    TWICE = "in the table more than once"
    FOREIGN = "in the table, not in the log"
    DIFFERS = "not the same in the table"
    UNACCOUNTED = "passed over without an event"
    UNKNOWN = "an event about no message of the topic"
    SETTLED_TWICE = "settled more than once"
    UNDELIVERED = "acked without having been delivered"
    NO_LETTER = "died without a dead letter"
    NO_DEATH = "a dead letter of a message that did not die"


@dataclass(frozen=True, kw_only=True)
class Life:
    """What the log tells of a subscription: from where to where it lived, and the messages it touched.

    `subscribed` and `unsubscribed` are the offsets of those events, None where the log has none; `lowest` and `highest`
    the messages its events are about, None for no event.
    """

    subscription: int
    name: str
    topic: str
    subscribed: int | None = None
    unsubscribed: int | None = None
    lowest: int | None = None
    highest: int | None = None

    @property
    def is_shared(self) -> bool:
        """Whether it has a name of its own: then it began with the oldest message there was."""
        return self.name != str(self.subscription)

    @property
    def begin(self) -> int:
        """The first offset that is its concern.

        A consumer's own begins where it was made, or with the first message it touched if that was on its way just
        then. One that was made before the log's oldest record has everything.
        """
        if self.subscribed is None or self.is_shared:
            return 0
        return self.subscribed if self.lowest is None else min(self.subscribed, self.lowest)

    @property
    def end(self) -> int:
        """The first offset that is not its concern any more."""
        return NEVER if self.unsubscribed is None else self.unsubscribed

    @property
    def frontier(self) -> int:
        """Every message of its concern below this offset has been passed."""
        return 0 if self.highest is None else self.highest + 1


@dataclass(frozen=True, kw_only=True)
class Account:
    """One subscription's messages of a range, by what became of them.

    `waiting` is what the cursor has not come to, `underway` what it has passed and is not settled; of a subscription
    that was removed, both went with it.
    """

    life: Life
    published: int
    waiting: int
    underway: int
    acked: int = 0
    delivered: int = 0
    dead: int = 0
    expired: int = 0
    dropped: int = 0

    @property
    def pending(self) -> int:
        """What will be delivered yet, or again."""
        return 0 if self.removed else self.waiting + self.underway

    @property
    def left(self) -> int:
        """What was not settled when the subscription was removed."""
        return self.waiting + self.underway if self.removed else 0

    @property
    def removed(self) -> bool:
        """Whether the subscription is gone."""
        return self.life.unsubscribed is not None

    @property
    def balanced(self) -> bool:
        """Whether everything published is accounted for, once."""
        settled = self.acked + self.delivered + self.dead + self.expired + self.dropped
        return self.published == settled + self.waiting + self.underway
