"""Who is connected without a key: few, and whoever crowds in pushes out himself."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.server.lobby import Lobby, Room, Visit

ROOM = Room(strangers_max=3, moment_s=1.0, callers_max=4, callers_per_address_max=2)


class Hotel:
    """A lobby, and who was sent away."""

    def __init__(self) -> None:
        self.lobby = Lobby(ROOM)
        self.sent_away: list[str] = []

    def enter(self, name: str, address: str = "10.0.0.1", now: float = 0.0) -> Visit:
        return self.lobby.enter(address, now, lambda: self.sent_away.append(name))


def test_the_oldest_stranger_of_the_most_crowded_address_makes_room() -> None:
    hotel = Hotel()
    hotel.enter("probe", "10.0.0.2")
    for name in ("a", "b", "c", "d"):
        hotel.enter(name)
    assert hotel.sent_away == ["a", "b"]
    assert hotel.lobby.strangers == 3


def test_everybody_has_a_moment_before_he_must_make_room() -> None:
    hotel = Hotel()
    assert hotel.lobby.opens_at() == 0
    for now in (5.0, 6.0, 7.0):
        hotel.enter("x", now=now)
    assert hotel.lobby.opens_at() == 6.0


def test_who_shows_a_key_is_no_stranger_any_more_and_is_never_sent_away() -> None:
    hotel = Hotel()
    known = hotel.enter("known")
    assert hotel.lobby.recognise(known)
    assert hotel.lobby.recognise(known)
    for number in range(10):
        hotel.enter(str(number))
    assert "known" not in hotel.sent_away
    hotel.lobby.gone(known)
    hotel.lobby.gone(known)
    assert hotel.lobby.strangers == 3


def test_who_has_gone_is_not_counted_by_what_is_heard_of_him_late() -> None:
    hotel = Hotel()
    for _ in range(2 * ROOM.callers_max):
        late = hotel.enter("late")
        hotel.lobby.gone(late)
        assert not hotel.lobby.recognise(late)
    assert hotel.lobby.recognise(hotel.enter("after"))


def test_callers_are_as_many_as_there_is_room_for_in_all_and_from_one_address_but_this_machine() -> None:
    hotel = Hotel()
    first, second, third = (hotel.enter(name) for name in "abc")
    assert [hotel.lobby.recognise(each) for each in (first, second, third)] == [True, True, False]
    hotel.lobby.gone(first)
    assert hotel.lobby.recognise(third)
    local = [hotel.enter("local", "127.0.0.1") for _ in range(3)]
    assert [hotel.lobby.recognise(each) for each in local] == [True, True, False]


@given(st.lists(st.tuples(st.sampled_from(["enter", "recognise", "gone"]), st.integers(0, 30), st.integers(0, 3))))
def test_the_counts_are_right_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    hotel = Hotel()
    visits: list[Visit] = []
    for what, which, address in steps:
        if what == "enter":
            visits.append(hotel.enter("x", f"10.0.0.{address}"))
        elif visits and what == "recognise":
            assert hotel.lobby.recognise(visits[which % len(visits)]) in (True, False)
            hotel.lobby.recognise(visits[which % len(visits)])
        elif visits:
            hotel.lobby.gone(visits.pop(which % len(visits)))
        assert hotel.lobby.strangers <= ROOM.strangers_max
    for visit in visits:
        hotel.lobby.gone(visit)
    assert hotel.lobby.strangers == 0
    assert hotel.lobby.recognise(hotel.enter("after"))
