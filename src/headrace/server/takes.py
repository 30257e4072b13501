"""The takes of one conversation: of what there is, of what is on its way to the disk, of what comes a moment later."""

from headrace.model.requests import Take
from headrace.protocols.spec import Session
from headrace.server.engine import Engine
from headrace.server.readings import TAKE_BYTES_MAX, TAKE_MAX, size_of
from headrace.server.standing import Standing, Taker

STANDING_MAX = 128


class Takes:
    """Carries out takes.

    One that finds nothing waits for what was on its way to the disk when it came, and for nothing after that. If
    nothing was, and its messages are settled one by one, it stands: what comes within `stand_us` is its, unless the
    conversation ends that first.

    awaited   the ticket the first take in line waits for; 0 when it waits for none
    """

    __slots__ = ("_engine", "_session", "_stand_us", "_standing", "_taker", "awaited")

    def __init__(self, engine: Engine, session: Session, taker: Taker, stand_us: int) -> None:
        self.awaited = 0
        self._engine = engine
        self._session = session
        self._taker = taker
        self._stand_us = stand_us
        self._standing: dict[int, Standing] = {}

    def take(self, request: Take, owner: str, *, again: bool = False) -> tuple[int, Take | None]:
        """Deliver, no more at once than a peer can be trusted to read.

        Returns about how many bytes that was, and what of the take is to be carried out next.
        """
        engine, now = self._engine, self._engine.clock.now()
        awaited, self.awaited = self.awaited, 0
        portions = engine.broker.take(
            request.subscription, min(request.count, TAKE_MAX), owner=owner, size_max=TAKE_BYTES_MAX, now=now
        )
        if not portions:
            return 0, None if awaited or again else self._later(request, owner, now)
        taken = 0
        for portion in portions:
            self._session.deliver(portion, request.tags[8 * taken : 8 * (taken + portion.count)])
            taken += portion.count
        rest = None
        if taken < request.count and engine.broker.has_more(request.subscription, now):
            rest = Take(request.subscription, request.count - taken, request.tags[8 * taken :])
        return size_of(portions), rest

    def end_standing(self) -> None:
        """What stood has found nothing."""
        for standing in self._standing.values():
            self._engine.standing.leave(standing)
        self._standing.clear()

    def _later(self, request: Take, owner: str, now: int) -> Take | None:
        """The take itself if it is to wait for the disk, before everything else; else it may stand."""
        definition = self._engine.broker.caught_up(request.subscription, owner)
        if definition is None:
            return None
        self.awaited = self._engine.ticket_of(definition.topic)
        if self.awaited:
            return request
        if definition.qos and self._stand_us:
            self._stand(Standing(self._taker, request, definition.topic, now + self._stand_us))
        return None

    def _stand(self, standing: Standing) -> None:
        """Stand, in place of an earlier take of the same subscription."""
        before = self._standing.pop(standing.request.subscription, None)
        if before is not None:
            self._engine.standing.leave(before)
        if len(self._standing) < STANDING_MAX:
            self._standing[standing.request.subscription] = standing
            self._engine.standing.enter(standing)
