"""What the broker hands out: portions of stored batches, never single messages."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.model.batch import Batch


class Portion(NamedTuple):
    """`count` neighbouring messages of one batch, delivered together.

    Message `index + i` has delivery id `first_delivery + i`; all are at their `attempt`-th delivery.
    `qos` is the subscription's: with 0, or a batch of QoS 0, the delivery itself settles them.
    """

    batch: Batch
    index: int  # type: ignore[assignment]  # shadows tuple.index on purpose
    count: int  # type: ignore[assignment]
    first_delivery: int
    attempt: int
    qos: int = 1


class BatchSource(Protocol):
    """Where the broker finds stored batches; the log is one, a list in a test is another.

    Only what is as durable as promised is ever shown.
    """

    def batch_at(self, topic: str, offset: int) -> Batch | None:
        """The batch of the topic that holds this offset, else its first batch after it, else None."""

    def topic_end(self, topic: str) -> int:
        """The offset after the topic's last message; 0 when it has none."""

    def lost_between(self, topic: str, start: int, end: int) -> Sequence[tuple[int, int]]:
        """Where messages of the topic with offsets from `start` on are lost to damage: first offset, how many.

        To be asked when `batch_at(topic, start)` gave a batch that begins at `end`, or none before the topic's end.
        """

    def count_from(self, topic: str, offset: int) -> int:
        """How many messages of the topic have this offset or a later one."""
