"""A client's addresses and what qh3 is told of them."""

from headrace.quic.moves import ASK_AGAIN_AFTER_S, NAMES_MAX, ROUND_TRIPS, Moves

HOME, AWAY = ("192.0.2.1", 1000), ("192.0.2.1", 2000)


def test_a_new_address_is_called_what_it_is() -> None:
    moves = Moves(HOME)
    assert [moves.at_home(each) for each in (HOME, AWAY)] == [True, False]
    assert moves.name(AWAY, 0.0, 1.0) == AWAY
    moves.heard(AWAY, AWAY)
    moves.answered_at(AWAY)
    assert moves.at_home(AWAY)


def test_it_gets_another_name_when_the_core_does_not_follow() -> None:
    moves = Moves(HOME)
    for name in (AWAY, AWAY):
        assert moves.name(AWAY, 0.0, 1.0) == name
        moves.heard(AWAY, name)
    again = moves.name(AWAY, 0.0, 1.0 + ASK_AGAIN_AFTER_S)
    assert again not in (HOME, AWAY)
    moves.heard(AWAY, again)
    assert moves.address(again) == moves.address(AWAY) == AWAY
    moves.answered_at(again)
    assert moves.at_home(AWAY)


def test_a_slow_path_has_more_time() -> None:
    moves = Moves(HOME)
    moves.heard(AWAY, moves.name(AWAY, 1.0, 1.0))
    assert moves.name(AWAY, 1.0, 0.9 + ROUND_TRIPS) == AWAY
    assert moves.name(AWAY, 1.0, 1.0 + ROUND_TRIPS) != AWAY


def test_stragglers_of_a_former_address_move_nobody() -> None:
    moves = Moves(HOME)
    moves.heard(AWAY, moves.name(AWAY, 0.0, 1.0))
    moves.answered_at(AWAY)
    for tenth in range(100):
        assert moves.name(HOME, 0.0, tenth / 10) == HOME
        assert moves.at_home(AWAY)


def test_names_are_as_many_as_the_core_takes() -> None:
    moves = Moves(HOME)
    names = set()
    for second in range(100):
        name = moves.name(AWAY, 0.0, float(second))
        moves.heard(AWAY, name)
        names.add(name)
    assert len(names) == NAMES_MAX - 1


def test_what_is_not_the_client_s_uses_no_name_up() -> None:
    moves = Moves(HOME)
    for port in range(100):
        moves.name(("198.51.100.1", port), 0.0, float(port))
    assert not moves.any
    assert moves.name(AWAY, 0.0, 200.0) == AWAY


def test_names_of_version_6_addresses_and_at_the_last_port() -> None:
    home = ("2001:db8::1", 65535, 0, 0)
    moves = Moves(("2001:db8::1", 1, 0, 0))
    moves.heard(home, moves.name(home, 0.0, 0.0))
    assert moves.name(home, 0.0, 1.0) == ("2001:db8::1", 2, 0, 0)
