"""`deadletters list|show|redrive`."""

import base64
from typing import Any

import pytest

from headrace.cli.deadletters import REDRIVE_MAX, slices
from tests.unit.cli.doubles import FakeApi, Shell


def letter(offset: int, **given: Any) -> dict[str, Any]:
    found = {
        "offset": offset, "topic": "$dead.orders", "timestamp_us": 1_700_000_000_000_000, "protocol": "blipmq",
        "qos": 1, "value": base64.b64encode(b"refund %d" % offset).decode(), "text": f"refund {offset}", "states": {},
        "origin_topic": "orders", "origin_offset": offset - 1, "subscription": 1, "attempts": 3,
        "reason": "not acknowledged", "redriven": False,
    }  # fmt: skip
    return found | given


@pytest.fixture
def letters(api: FakeApi) -> list[dict[str, Any]]:
    found = [letter(10), letter(20, attempts=5), letter(30, redriven=True), letter(40, reason="expired")]

    def page(query: dict[str, str], body: object) -> tuple[int, object]:
        chosen = [item for item in found if item["offset"] >= int(query.get("from", 0))]
        return 200, {"dead_letters": chosen[: int(query["limit"])]}

    def redrive(query: dict[str, str], body: Any) -> tuple[int, object]:
        return 200, {"redriven": len(body["offsets"]), "skipped": []}

    api.handle("/api/dead-letters", page)
    api.handle("/api/dead-letters/redrive", redrive, method="POST")
    return found


def posted(api: FakeApi) -> list[Any]:
    return [body for method, _, body in api.asked if method == "POST"]


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_listed_with_origin_and_reason(shell: Shell, api: FakeApi) -> None:
    assert shell("deadletters", "list", "--endpoint", api.url) == 0
    assert [row[0] for row in shell.rows] == ["10", "20", "30", "40"]
    assert shell.rows[0][2:] == ["orders", "9", "1", "3", "not acknowledged", "no", "refund 10"]


@pytest.mark.usefixtures("letters")
def test_a_condition_chooses_before_the_limit_counts(shell: Shell, api: FakeApi) -> None:
    arguments = ("--where", "attempts = 3", "--limit", "2", "--json", "--endpoint", api.url)
    assert shell("deadletters", "list", *arguments) == 0
    assert [found["offset"] for found in shell.documents] == [10, 30]
    assert shell.documents[0]["value"] == "refund 10"


@pytest.mark.usefixtures("letters")
def test_a_wrong_condition_fails_with_the_columns(shell: Shell, api: FakeApi) -> None:
    assert shell("deadletters", "list", "--where", "age > 3", "--endpoint", api.url) == 1
    assert "no such column: age" in shell.err
    assert "origin_topic" in shell.err


@pytest.mark.usefixtures("letters")
def test_one_is_shown_whole(shell: Shell, api: FakeApi) -> None:
    assert shell("deadletters", "show", "20", "--endpoint", api.url) == 0
    assert "attempts       5\n" in shell.out
    assert "value          refund 20\n" in shell.out
    assert shell("deadletters", "show", "21", "--endpoint", api.url) == 1
    assert "no dead letter at offset 21" in shell.err


@pytest.mark.usefixtures("letters")
def test_redrive_sends_back_what_was_not_sent_back_before(shell: Shell, api: FakeApi) -> None:
    assert shell("deadletters", "redrive", "--endpoint", api.url) == 0
    assert posted(api) == [{"offsets": [10, 20, 40], "to": None}]
    assert shell.out == "sent 3 back to where they came from\n"


@pytest.mark.usefixtures("letters")
def test_redrive_can_choose_and_change_the_target(shell: Shell, api: FakeApi) -> None:
    arguments = ("--where", "reason = 'expired'", "--to", "later", "--json", "--endpoint", api.url)
    assert shell("deadletters", "redrive", *arguments) == 0
    assert posted(api) == [{"offsets": [40], "to": "later"}]
    assert shell.documents == [{"redriven": 1, "skipped": []}]


@pytest.mark.usefixtures("letters")
def test_a_dry_run_touches_nothing(shell: Shell, api: FakeApi) -> None:
    assert shell("deadletters", "redrive", "--dry-run", "--endpoint", api.url) == 0
    assert posted(api) == []
    assert [row[0] for row in shell.rows] == ["10", "20", "40"]
    assert "3 would be sent" in shell.err


@pytest.mark.usefixtures("letters")
def test_what_the_broker_skipped_is_named(shell: Shell, api: FakeApi) -> None:
    skipped = [{"offset": 20, "cause": "not allowed to publish to orders"}]
    api.answer("/api/dead-letters/redrive", {"redriven": 2, "skipped": skipped}, method="POST")
    assert shell("deadletters", "redrive", "--endpoint", api.url) == 0
    assert "skipped offset 20: not allowed" in shell.out


def test_a_rate_spreads_small_portions_over_time() -> None:
    portions = list(slices(range(100), 20))
    assert [len(part) for _, part in portions] == [2] * 50
    assert [when for when, _ in portions] == pytest.approx([n / 10 for n in range(50)])


def test_without_a_rate_everything_goes_at_once() -> None:
    portions = list(slices(range(REDRIVE_MAX + 1), None))
    assert [(when, len(part)) for when, part in portions] == [(0.0, REDRIVE_MAX), (0.0, 1)]
