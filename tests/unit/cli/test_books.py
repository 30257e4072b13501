"""The demo's books over three topics: where each order must be, and transactions that are whole."""

from headrace.cli.demo.books import Books


def kept_books(count: int) -> Books:
    """Orders that were confirmed, charged, shown and printed, everything confirmed that can be."""
    books = Books()
    orders = books.orders.send(count)
    books.orders.mark_durable(orders)
    books.orders.mark_delivered(orders)
    for order in orders:
        number = books.begin(order)
        books.committed(number)
    for ledger in (books.payments, books.labels):
        ledger.mark_delivered(orders)
        ledger.mark_acked(orders)
    books.payments.mark_settled(orders)
    books.orders.mark_acked(orders)
    books.orders.mark_settled(orders)
    return books


def test_books_balance_when_every_order_is_everywhere() -> None:
    proof = kept_books(5).proof()
    assert proof.kept
    assert [station.orders for station in proof.stations] == [5, 5, 5, 5]


def test_an_order_that_was_charged_twice_is_named() -> None:
    books = kept_books(5)
    again = books.begin(2)
    books.committed(again)
    for ledger in (books.payments, books.labels):
        ledger.mark_delivered([again])
        ledger.mark_acked([again])
    proof = books.proof()
    assert not proof.kept
    assert [station.twice for station in proof.stations] == [(), (2,), (2,), (2,)]


def test_an_order_without_a_label_is_named() -> None:
    books = kept_books(5)
    books.orders.mark_durable(books.orders.send(1))
    books.orders.mark_delivered([5])
    books.orders.mark_acked([5])
    books.begin(5)
    books.payments.mark_delivered([5])
    books.payments.mark_acked([5])
    proof = books.proof()
    assert [station.missing for station in proof.stations] == [(), (5,), (), (5,)]
    assert proof.halves == (5,)
    assert not proof.kept


def test_a_transaction_without_an_answer_is_looked_up_before_it_is_made_again() -> None:
    books = kept_books(1)
    for order in books.orders.send(2):
        books.begin(order)
    assert books.found({0, 1}) == (2, 1)
    assert books.is_paid(1)
    assert not books.is_paid(2)
