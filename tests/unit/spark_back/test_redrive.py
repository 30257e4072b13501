"""Which letters are meant, and the offsets that marks hold."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.model.marks import MARKED_MAX
from headrace.model.names import REDRIVEN_TOPIC
from headrace.spark.back.redrive import Redrive, offsets_in, quoted
from headrace.spark.pipeline.dead_letters import unfolded


def test_topic_and_condition_are_one_condition() -> None:
    assert Redrive().condition == "true"
    assert Redrive(topic="orders").condition == "topic = '$dead.orders'"
    assert Redrive(where="attempts > 3 OR true").condition == "(attempts > 3 OR true\n)"
    both = Redrive(where="a -- b", topic="it's").condition
    assert both == "(a -- b\n) AND topic = '$dead.it\\'s'"


def test_a_literal_says_what_the_text_says() -> None:
    assert quoted("a\\b'c") == r"'a\\b\'c'"


def rows(*marks: tuple[int, str, bytes | None]) -> pa.RecordBatch:
    """Rows of the topic of marks, with the time that the table of dead letters wants besides."""
    offsets, doors, values = zip(*marks, strict=True)
    columns: dict[str, pa.Array[Any]] = {
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array(range(len(marks)), pa.timestamp("us")),
        "topic": pa.array([REDRIVEN_TOPIC] * len(marks)),
        "protocol": pa.array(doors, pa.string()),
        "value": pa.array(values, pa.binary()),
    }
    return pa.record_batch(columns)


def packed(*offsets: int) -> bytes:
    return np.array(offsets, "<u8").tobytes()


def test_marks_are_offsets_back_to_back() -> None:
    batch = rows((1 << 41, "internal", packed(1, 2, 1 << 40)), (1 << 42, "spark", b""), (8, "internal", packed(7)))
    (found,) = offsets_in([batch])
    assert found.column("offset").to_pylist() == [1, 2, 1 << 40, 7]


@pytest.mark.parametrize(
    "forged",
    [
        (50, "blipmq", packed(3)),
        (50, "internal", packed(3) + b"x"),
        (50, "spark", b"1234567"),
        (50, "internal", packed(50, 51, 2**64 - 1)),
        (50, "internal", None),
        (50, "grpcq", b""),
        (50, "internal", packed(*range(MARKED_MAX + 1))),
    ],
)
def test_what_is_no_mark_says_nothing_and_spoils_no_other(forged: tuple[int, str, bytes | None]) -> None:
    batch = rows((40, "internal", packed(1)), forged, (60, "spark", packed(9, 10)))
    (found,) = offsets_in([batch])
    assert found.column("offset").to_pylist() == [1, 9, 10]
    _, named = unfolded([batch])
    assert named.column("offset").to_pylist() == [1, 9, 10]
    assert named.column("redriven_at").cast(pa.int64()).to_pylist() == [0, 2, 2]
