"""The feed as a child process: starting it, and nothing else, so that it can be started before anything else is loaded.

Standard library only. The child imports what it needs and waits at its end of the socket to be told more.
"""

import importlib.util
import logging
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

COMMAND = (sys.executable, "-m", "headrace.feed")
log = logging.getLogger("headrace.feed")


@dataclass(slots=True)
class FeedChild:
    """A feed process and our end of the socket shared with it."""

    process: subprocess.Popen[bytes]
    end: socket.socket


NEEDED = ("pyarrow", "re2")


def feed_installed() -> bool:
    """Whether what the feed needs is installed; says so in the log if it is not."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        cause = f"{' and '.join(missing)} missing"
        log.warning("feed.unavailable", extra={"cause": cause, "hint": "pip install 'headrace[feed]'"})
    return not missing


def start_feed(command: Sequence[str] = COMMAND) -> FeedChild:
    """A new feed process. It has a session of its own: Ctrl-C is for the broker, which then hangs up.

    Raises OSError when it cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*command, "--channel", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    return FeedChild(process, ours)
