"""The feed's end of its socket: questions and answers in any order, news in between, and a broker that goes away."""

import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.feed.link import BrokerFault, Link
from headrace.feed.messages import BadLine, FromBroker, Keys, Lines, Reply, Subscriptions, encode, from_feed
from headrace.model.errors import BrokerError, Code


class Broker:
    """The other end."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._lines = Lines()

    def heard(self, count: int) -> list[int]:
        """The numbers of the next questions."""
        numbers: list[int] = []
        while len(numbers) < count:
            for line in self._lines.receive(self.end.recv(1 << 16)):
                question = from_feed(line)
                assert isinstance(question, Subscriptions)
                numbers.append(question.id)
        return numbers

    def say(self, message: FromBroker) -> None:
        self.end.sendall(encode(message))


@pytest.fixture
def ends() -> Iterator[tuple[Link, Broker]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Link(ours), Broker(theirs)


def listening(link: Link) -> tuple[threading.Thread, list[FromBroker]]:
    news: list[FromBroker] = []
    thread = threading.Thread(target=lambda: news.extend(link.news()), daemon=True)
    thread.start()
    return thread, news


def asking(link: Link, answers: dict[int, object], name: int) -> threading.Thread:
    def _ask() -> None:
        try:
            answers[name] = link.ask(Subscriptions(id=0))
        except (BrokerError, BrokerFault) as error:
            answers[name] = error

    thread = threading.Thread(target=_ask, daemon=True)
    thread.start()
    return thread


def test_answers_find_who_asked_whatever_their_order(ends: tuple[Link, Broker]) -> None:
    link, broker = ends
    thread, news = listening(link)
    answers: dict[int, object] = {}
    threads = [asking(link, answers, name) for name in range(8)]
    for number in reversed(broker.heard(8)):
        broker.say(Reply(id=number, ok=[number]))
        broker.say(Reply(id=number + 1000, ok="for nobody"))
    for each in threads:
        each.join(60)
    assert sorted(answers.values(), key=str) == [[number] for number in range(1, 9)]
    broker.say(Keys(api_keys=("k",)))
    broker.end.close()
    thread.join(60)
    assert news == [Keys(api_keys=("k",))]


def test_refusals_are_raised_where_the_question_was_asked(ends: tuple[Link, Broker]) -> None:
    link, broker = ends
    listening(link)
    answers: dict[int, object] = {}
    for code in ("forbidden", "internal"):
        thread = asking(link, answers, len(answers))
        (number,) = broker.heard(1)
        broker.say(Reply(id=number, code=code, detail="no"))
        thread.join(60)
    assert isinstance(answers[0], BrokerError)
    assert answers[0].code is Code.FORBIDDEN
    assert isinstance(answers[1], BrokerFault)


def test_a_broker_that_is_gone_is_told_to_who_asks(ends: tuple[Link, Broker]) -> None:
    link, broker = ends
    broker.end.close()
    with pytest.raises(BrokerError, match="does not answer") as refused:
        link.ask(Subscriptions(id=0))
    assert refused.value.code is Code.DRAINING
    assert list(link.news()) == []


def test_nonsense_ends_the_conversation(ends: tuple[Link, Broker]) -> None:
    link, broker = ends
    broker.end.sendall(b"{}\n")
    with pytest.raises(BadLine):
        list(link.news())
