"""Counts everything there is for the metrics and the status, aside: a little at a time, and not for every scrape.

Of a broker with few topics and subscriptions the numbers are those of the moment. With many they are counted again only
after a time in proportion, so that counting takes a small share of the event loop however often somebody asks.
"""

import asyncio
from heapq import nsmallest
from typing import NamedTuple

from headrace.auth import Identity
from headrace.broker.views import Survey
from headrace.server.engine import Engine
from headrace.server.lists import ReaderRow, reader_row
from headrace.server.walk import Turns

AT_ONCE_MAX = 2000
"""Steps that may be taken for each scrape."""

GOOD_FOR_S = 1e-4
"""How long the numbers are good for each step that they took: about fifty times as long as the step."""

_EVERYBODY = Identity("metrics")


class Taken(NamedTuple):
    """A survey that is done, and the readers furthest behind."""

    survey: Survey
    readers: list[ReaderRow]


class Surveys:
    """The numbers of one broker, with names for the `named_max` busiest topics and as many readers."""

    def __init__(self, engine: Engine, named_max: int = 0) -> None:
        self._engine = engine
        self._named_max = named_max
        self._counting = asyncio.Lock()
        self._last: Taken | None = None
        self._good_until = 0.0

    async def latest(self) -> Taken:
        """Numbers of this moment, or of one not long ago."""
        loop = asyncio.get_running_loop()
        async with self._counting:
            if self._last is None or loop.time() >= self._good_until:
                turns = Turns()
                self._last = await self._take(turns)
                steps = turns.total
                self._good_until = loop.time() + (steps * GOOD_FOR_S if steps > AT_ONCE_MAX else 0)
            return self._last

    async def _take(self, turns: Turns) -> Taken:
        broker = self._engine.broker
        survey = broker.survey(self._named_max)
        for _ in survey.steps():
            await turns.step()
        behind = nsmallest(self._named_max, broker.readers.all(), key=lambda reader: reader.offset or 0)
        readers = [await reader_row(self._engine, _EVERYBODY, reader, turns) for reader in behind]
        return Taken(survey, readers)
