"""What a topic may be called. A topic name is data, never a path.

The prefix of a topic of dead letters does not count: whatever may be published to has dead letters that can be read.
"""

from headrace.model.errors import BrokerError, Code

TOPIC_SIZE_MAX = 1024
OWN_PREFIX = "$"
DEAD_PREFIX = "$dead."
NAME_SIZE_MAX = TOPIC_SIZE_MAX + len(DEAD_PREFIX)
"""The size of the longest name there is, in bytes: what a door reads before it looks at what the name says."""

REDRIVEN_TOPIC = "$redriven"


def check_topic(name: str) -> str:
    """The name itself if a client may publish to or subscribe to it.

    Raises BrokerError(INVALID) for an empty, over-long or unprintable name.
    """
    if not name:
        raise BrokerError(Code.INVALID, "empty topic")
    if not name.isprintable():
        raise BrokerError(Code.INVALID, "topic has unprintable characters")
    if len(name.removeprefix(DEAD_PREFIX).encode()) > TOPIC_SIZE_MAX:
        raise BrokerError(Code.INVALID, f"topic longer than {TOPIC_SIZE_MAX} bytes")
    return name


def dead_topic(topic: str) -> str:
    """Where the dead letters of a topic live; a topic like any other, readable by every protocol."""
    return topic if topic.startswith(DEAD_PREFIX) else DEAD_PREFIX + topic


def is_dead_topic(topic: str) -> bool:
    """Whether a topic holds dead letters."""
    return topic.startswith(DEAD_PREFIX)


def is_own_topic(topic: str) -> bool:
    """Whether only the broker itself publishes to a topic."""
    return topic.startswith(OWN_PREFIX)
