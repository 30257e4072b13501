"""Splitting a range by bytes, and questions answered from a log without a process around it."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.auth import Identity
from headrace.feed.actions import Actions, split_cells
from headrace.feed.ticket import BadTicket
from headrace.log import Log, LogSettings, OsDisk
from headrace.log.bearings import Cell
from headrace.log.follower import Follower
from headrace.model.errors import BrokerError
from tests.unit.feed.logs import UNSYNCED
from tests.unit.log.records import batch, flushed, record

SOMEBODY = Identity("somebody")
cells = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1000)), max_size=40)


def laid_out(widths: list[tuple[int, int]]) -> list[Cell]:
    found, first = [], 0
    for width, size in widths:
        found.append(Cell(first, first + width, size, width))
        first += width
    return found


@given(widths=cells, parts=st.integers(1, 12))
def test_parts_are_neighbours_that_cover_everything(widths: list[tuple[int, int]], parts: int) -> None:
    shares = laid_out(widths)
    end = shares[-1].end if shares else 0
    found = split_cells(0, end, shares, parts)
    assert len(found) <= parts
    if not end:
        assert found == []
        return
    assert (found[0]["start"], found[-1]["end"]) == (0, end)
    assert [each["end"] for each in found[:-1]] == [each["start"] for each in found[1:]]
    assert all(each["start"] < each["end"] for each in found)
    assert sum(each["bytes"] for each in found) == sum(cell.bytes for cell in shares)
    assert sum(each["rows"] for each in found) == end


@given(widths=cells, parts=st.integers(1, 12))
def test_no_part_is_much_bigger_than_its_share(widths: list[tuple[int, int]], parts: int) -> None:
    shares = laid_out(widths)
    total = sum(cell.bytes for cell in shares)
    biggest = max((cell.bytes for cell in shares), default=0)
    for each in split_cells(0, shares[-1].end if shares else 0, shares, parts):
        assert each["bytes"] <= -(-total // parts) + biggest


def test_equal_cells_are_dealt_out_evenly() -> None:
    found = split_cells(0, 100, laid_out([(10, 100)] * 10), 5)
    assert [(each["start"], each["end"], each["bytes"]) for each in found] == [
        (start, start + 20, 200) for start in range(0, 100, 20)
    ]


def test_a_topic_is_split_where_it_is(tmp_path: Path) -> None:
    settings = LogSettings(sync=UNSYNCED, segment_bytes=1 << 20, fill_bytes=0)
    with closing(Log.open(tmp_path, OsDisk(), settings)) as log:
        for topic in ["mine", *["other"] * 6] * 12:
            log.append(record(batch(topic, count=10, size=9000)), refusable=True)
            flushed(log)
        actions = Actions(Follower(tmp_path, OsDisk())).actions

        def _split(**body: Any) -> Any:
            return actions["split"](SOMEBODY, json.dumps(body).encode())

        found = _split(topics=["mine"], start=0, end=560, parts=4)
        assert len(found) == 4
        assert {each["rows"] for each in found} <= {10, 20, 30}
        assert _split(topics=["unheard of"], start=0, end=560, parts=4) == [
            {"start": 0, "end": 560, "rows": 0, "bytes": 0}
        ]
        assert len(_split(parts=4)) == 4
        assert len(_split(parts=4, stream="events")) == 4
        assert _split(parts=3, start=900, end=2000) == []
        with pytest.raises(BadTicket):
            _split(parts=3, start="a")
        with pytest.raises(BrokerError, match="parts is 'x'"):
            _split(parts="x")
