"""The demo's books: they must notice every broken promise."""

from headrace.cli.demo.ledger import Ledger


def kept_ledger() -> Ledger:
    """Ten messages, all durable, delivered and settled."""
    ledger = Ledger()
    numbers = ledger.send(10)
    ledger.mark_durable(numbers)
    ledger.mark_delivered(numbers)
    ledger.mark_acked(numbers)
    ledger.mark_settled(numbers)
    return ledger


def test_books_balance_when_every_promise_is_kept() -> None:
    balance = kept_ledger().balance()
    assert balance.kept
    assert (balance.sent, balance.durable, balance.settled) == (10, 10, 10)


def test_a_durable_message_nobody_saw_is_lost() -> None:
    ledger = kept_ledger()
    ledger.mark_durable(ledger.send(2))
    balance = ledger.balance()
    assert balance.lost == (10, 11)
    assert not balance.kept


def test_a_settled_message_that_comes_again_is_a_broken_promise() -> None:
    ledger = kept_ledger()
    ledger.mark_delivered([3])
    assert ledger.balance().returned == (3,)
    assert not ledger.balance().kept


def test_a_message_whose_ack_was_not_fenced_may_come_again() -> None:
    ledger = Ledger()
    ledger.mark_durable(ledger.send(1))
    ledger.mark_delivered([0])
    ledger.mark_acked([0])
    ledger.mark_delivered([0])
    ledger.mark_acked([0])
    ledger.mark_settled([0])
    assert ledger.balance().kept
    assert (ledger.delivered, ledger.again, ledger.acked, ledger.in_flight) == (2, 1, 1, 0)


def test_what_was_sent_without_an_answer_may_be_kept_or_not() -> None:
    ledger = kept_ledger()
    ledger.send(4)
    ledger.mark_delivered([10])
    ledger.mark_acked([10])
    ledger.mark_settled([10])
    balance = ledger.balance()
    assert balance.kept
    assert (balance.unanswered, balance.unanswered_kept) == (4, 1)


def test_a_dead_letter_is_accounted_for_without_an_ack() -> None:
    ledger = Ledger()
    ledger.mark_durable(ledger.send(1))
    ledger.mark_delivered([0])
    assert ledger.in_flight == 1
    assert ledger.balance().unfinished == (0,)
    ledger.mark_dead(0)
    assert ledger.in_flight == 0
    assert ledger.balance().kept


def test_an_ack_whose_answer_never_came_counts_once_nothing_is_left() -> None:
    ledger = Ledger()
    ledger.mark_durable(ledger.send(2))
    ledger.mark_delivered([0, 1])
    ledger.mark_acked([0, 1])
    ledger.mark_settled([1])
    balance = ledger.balance()
    assert (balance.settled, balance.settled_unanswered, balance.unfinished) == (1, 1, ())
    assert balance.kept
    assert balance.reconciles


def test_a_dead_letter_that_was_sent_back_ends_anew() -> None:
    ledger = Ledger()
    ledger.mark_durable(ledger.send(1))
    ledger.mark_delivered([0])
    ledger.mark_dead(0)
    ledger.mark_redriven(0)
    assert (ledger.in_flight, ledger.dead) == (1, 1)
    assert ledger.balance().unfinished == (0,)
    ledger.mark_delivered([0])
    ledger.mark_acked([0])
    ledger.mark_settled([0])
    balance = ledger.balance()
    assert (ledger.in_flight, balance.dead, balance.settled) == (0, 0, 1)
    assert balance.kept
    assert balance.reconciles
