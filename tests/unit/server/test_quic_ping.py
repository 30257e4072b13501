"""When a peer is asked whether it is there, and when it is given up. No clock: time is a number."""

from headrace.server.quic_ping import Pinger, Verdict


def test_a_peer_that_answers_is_asked_every_interval() -> None:
    pinger = Pinger(2.0, 5.0, now=0.0)
    for now in (2.0, 4.0, 6.0):
        assert pinger.next_at == now
        assert pinger.judge(now - 0.1) is Verdict.WAIT
        assert pinger.judge(now) is Verdict.PING
        pinger.answered()


def test_a_late_answer_puts_the_next_ping_off_no_further() -> None:
    pinger = Pinger(2.0, 5.0, now=0.0)
    pinger.judge(2.0)
    assert pinger.judge(6.5) is Verdict.WAIT
    pinger.answered()
    assert pinger.judge(6.5) is Verdict.PING


def test_a_silent_peer_is_given_up_at_the_timeout() -> None:
    pinger = Pinger(2.0, 5.0, now=0.0)
    assert pinger.judge(2.0) is Verdict.PING
    assert pinger.next_at == 7.0
    assert pinger.judge(6.99) is Verdict.WAIT
    assert pinger.judge(7.0) is Verdict.GIVE_UP


def test_a_peer_nobody_listens_to_gets_more_time() -> None:
    pinger = Pinger(2.0, 5.0, now=0.0)
    pinger.judge(2.0)
    assert pinger.judge(7.0, heard=False) is Verdict.WAIT
    assert pinger.judge(11.9) is Verdict.WAIT
    assert pinger.judge(12.0) is Verdict.GIVE_UP
