"""Handlers over batches of calls: results, failures, and what is none of their business."""

from typing import Any

import pyarrow as pa
import pytest

from headrace.spark import handler
from headrace.spark.lake.table import LakeError
from headrace.spark.pipeline.handlers import Handler, handle, load

BAD = 3


def calls(count: int, service: str = "s", action: str = "a") -> pa.RecordBatch:
    rows = [
        {"offset": at, "topic": "q", "service": service, "action": action, "message_id": f"m{at}",
         "payload": b"%d" % at, "envelope": b"whole %d" % at}
        for at in range(count)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows)


def echo(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"value": batch.column("payload")})


def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
    if b"%d" % BAD in batch.column("payload").to_pylist():
        raise ValueError("not this one")
    return echo(batch)


def outcome(function: Any, batch: pa.RecordBatch, to: str | None = "out") -> list[dict[str, Any]]:
    found = list(handle(batch, {("s", "a"): Handler(function, to)}))
    return [row for part in found for row in part.to_pylist()]


def test_results_go_where_the_handler_says() -> None:
    assert [(row["topic"], row["value"]) for row in outcome(echo, calls(3))] == [("out", b"%d" % at) for at in range(3)]
    assert outcome(echo, calls(3), to=None) == []
    assert outcome(lambda batch: None, calls(3)) == []


def test_calls_of_others_are_left_alone() -> None:
    assert outcome(echo, calls(3, action="b")) == []


def test_only_the_culprit_fails() -> None:
    rows = outcome(picky, calls(6))
    assert [row["value"] for row in rows if row["topic"] == "out"] == [b"%d" % at for at in range(6) if at != BAD]
    [dead] = [row for row in rows if row["topic"] != "out"]
    headers = {each["key"]: each["value"] for each in dead["headers"]}
    assert (dead["topic"], dead["value"], dead["message_id"]) == ("dead.q", b"whole 3", "m3")
    assert headers["headrace-reason"] == b"ValueError: not this one"
    assert (headers["headrace-origin-topic"], headers["headrace-origin-offset"]) == (b"q", b"3")


def test_a_result_that_is_none_is_a_failure() -> None:
    [row] = outcome(lambda batch: "done", calls(1))
    assert row["topic"] == "dead.q"


def test_handlers_are_found_by_module() -> None:
    handler("user.UserService", "CreateUser", to="created")(echo)
    found = load([__name__])
    assert found["user.UserService", "CreateUser"] == Handler(echo, "created")
    with pytest.raises(LakeError, match="cannot import"):
        load(["no_such_module_anywhere"])
    with pytest.raises(LakeError, match="no function with @handler"):
        load(["json"])
