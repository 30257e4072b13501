"""Rows of a log that lies on this machine, without sending them through the feed.

The feed says where its log is to those who may read all of it. Who finds that very directory, and is allowed by the
system to open the files, reads them as the feed would; everybody else asks the feed.
"""

from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from headrace.auth import Identity
from headrace.feed.client import DataLoss
from headrace.feed.reading import Reader
from headrace.feed.selection import OffsetsGone
from headrace.feed.subscriptions import Subscriptions
from headrace.feed.ticket import Ticket
from headrace.feed.whereabouts import Whereabouts, whereabouts
from headrace.kernels import records
from headrace.log.disk import OsDisk
from headrace.log.follower import Follower
from headrace.model.errors import HeadraceError

ANYBODY = Identity("nearby")
"""The feed has seen the key, and the system lets us read the files: there is nothing more to ask."""


def nearby(place: Whereabouts, ticket: Ticket) -> Generator[pa.RecordBatch, None, Ticket | None]:
    """The ticket's messages, read from the log itself; returns the ticket for what the feed is to be asked for.

    That is nothing (None) in the end, and all of it where the log is not here, may not be opened, or would be read by
    interpreted kernels. Raises DataLoss.
    """
    if ticket.stream != "messages" or not records.COMPILED or whereabouts(Path(place.path)) != place:
        return ticket
    try:
        with closing(Follower(Path(place.path), OsDisk())) as follower:
            for batch, position in Reader(follower, Subscriptions(list)).read(ticket, ANYBODY).batches:
                ticket = ticket.behind(position)
                yield batch
    except OffsetsGone as error:
        raise DataLoss(str(error), error.first, error.count) from None
    except (HeadraceError, OSError):
        return ticket
    return None
