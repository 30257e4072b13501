"""Which letters are meant, and the offsets that marks hold."""

import numpy as np
import pyarrow as pa

from headrace.spark.back.redrive import Redrive, offsets_in, quoted


def test_topic_and_condition_are_one_condition() -> None:
    assert Redrive().condition == "true"
    assert Redrive(topic="orders").condition == "topic = '$dead.orders'"
    assert Redrive(where="attempts > 3 OR true").condition == "(attempts > 3 OR true\n)"
    both = Redrive(where="a -- b", topic="it's").condition
    assert both == "(a -- b\n) AND topic = '$dead.it\\'s'"


def test_a_literal_says_what_the_text_says() -> None:
    assert quoted("a\\b'c") == r"'a\\b\'c'"


def test_marks_are_offsets_back_to_back() -> None:
    marks = [np.array(offsets, "<u8").tobytes() for offsets in ([1, 2, 1 << 40], [], [7])]
    batch = pa.record_batch({"value": pa.array([*marks, None], pa.binary())})
    (found,) = offsets_in([batch])
    assert found.column("offset").to_pylist() == [1, 2, 1 << 40, 7]
