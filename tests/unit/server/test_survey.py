"""What is counted aside: for few things at every scrape, for many now and then, and once for all who ask at a time."""

import asyncio
from pathlib import Path

import pytest

from headrace.broker import Broker
from headrace.broker.views import Survey
from headrace.server import survey
from headrace.server.survey import Surveys
from headrace.testing import broker
from tests.harness.web import Hand


async def test_of_few_things_the_numbers_are_those_of_the_moment(tmp_path: Path) -> None:
    async with broker(tmp_path) as node:
        hand, surveys = Hand(node.engine), Surveys(node.engine, 10)
        for count in (1, 2, 3):
            await hand.publish("a", b"x")
            taken = await surveys.latest()
            assert taken.survey.counters.published == count
            assert taken.survey.published == {"a": count}


async def test_many_things_are_counted_once_for_all_who_ask_and_not_at_every_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Survey] = []
    usual = Broker.survey

    def noted(self: Broker, named_max: int) -> Survey:
        counted.append(usual(self, named_max))
        return counted[-1]

    monkeypatch.setattr(Broker, "survey", noted)
    monkeypatch.setattr(survey, "AT_ONCE_MAX", 3)
    monkeypatch.setattr(survey, "GOOD_FOR_S", 3600)
    async with broker(tmp_path) as node:
        hand, surveys = Hand(node.engine), Surveys(node.engine, 2)
        for number in range(10):
            await hand.publish(f"t{number}", b"x")
        found = await asyncio.gather(*(surveys.latest() for _ in range(20)))
        assert len(counted) == 1
        assert all(each is found[0] for each in found)
        await hand.publish("t0", b"x")
        assert (await surveys.latest()).survey.counters.published == 10


async def test_the_readers_furthest_behind_are_named_with_their_lag(tmp_path: Path) -> None:
    async with broker(tmp_path) as node:
        hand, readers = Hand(node.engine), node.engine.broker.readers
        await hand.publish("a", b"1", b"2", b"3")
        await hand.publish("b", b"4")
        for name, topics, offset in (("one", ["a"], 1), ("all", None, 2), ("done", None, 4), ("none", ["nowhere"], 0)):
            readers.report("ann", name, topics, offset, node.engine.clock.now())
        taken = await Surveys(node.engine, 3).latest()
        assert [(reader.reader, reader.lag) for reader in taken.readers] == [("none", 0), ("one", 2), ("all", 2)]


async def test_a_reader_of_more_topics_than_are_counted_has_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.server.lists.COUNTED_MAX", 2)
    async with broker(tmp_path) as node:
        hand, readers = Hand(node.engine), node.engine.broker.readers
        for topic in ("a", "b", "c"):
            await hand.publish(topic, b"x")
        readers.report("ann", "all", None, 1, node.engine.clock.now())
        (reader,) = (await Surveys(node.engine, 1).latest()).readers
        assert (reader.lag, reader.lag_estimated) == (2, True)
