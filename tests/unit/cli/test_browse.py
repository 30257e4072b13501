"""`topics`, `subscriptions` and `peek`: the same facts for people, pipes and scripts."""

import base64
from typing import Any

import pytest

from tests.unit.cli.doubles import FakeApi, Shell

TOPIC = {
    "topic": "orders", "messages": 12345, "published": 12345, "first_offset": 0, "next_offset": 20000,
    "subscriptions": 2, "shared_by": ["fujin"], "pending": 17, "in_flight": 3, "dead": 1,
}  # fmt: skip


def message(offset: int, value: bytes, **given: Any) -> dict[str, Any]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = None
    found = {"offset": offset, "topic": "orders", "timestamp_us": 1_700_000_000_000_000, "protocol": "blipmq", "qos": 1}
    return found | {"value": base64.b64encode(value).decode(), "text": text, "states": {}} | given


def test_topics_in_a_pipe_are_tab_separated(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/topics", {"topics": [TOPIC]})
    assert shell("topics", "--endpoint", api.url) == 0
    assert shell.rows == [["orders", "12,345", "0", "20000", "2", "fujin", "17", "3", "1"]]


def test_topics_as_json_are_the_brokers_own_words(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/topics", {"topics": [TOPIC, TOPIC | {"topic": "mail"}]})
    assert shell("topics", "--json", "--endpoint", api.url) == 0
    assert shell.documents == [TOPIC, TOPIC | {"topic": "mail"}]


@pytest.mark.usefixtures("terminal")
def test_topics_in_a_terminal_are_a_table(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/topics", {"topics": [TOPIC]})
    assert shell("topics", "--endpoint", api.url) == 0
    assert "readers" in shell.out
    assert "12,345" in shell.out
    assert "\t" not in shell.out


def test_no_topics_is_a_remark_and_no_result(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/topics", {"topics": []})
    assert shell("topics", "--endpoint", api.url) == 0
    assert shell.out == ""
    assert "first message" in shell.err


def test_a_subscription_is_removed_by_its_id(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/subscriptions/7", b"", method="DELETE", status=204)
    assert shell("subscriptions", "--remove", "7", "--endpoint", api.url) == 0
    assert shell.out == "removed subscription 7\n"
    assert api.asked == [("DELETE", "/api/subscriptions/7", None)]


READER = {"reader": "lake", "owner": "dev", "topics": ["orders", "mail"], "offset": 7, "lag": 1200, "reported_us": 9}


def test_pipelines_stand_beside_subscriptions(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/subscriptions", {"subscriptions": [], "readers": [READER, READER | {"topics": None}]})
    assert shell("subscriptions", "--endpoint", api.url) == 0
    assert shell.rows == [
        ["-", "orders, mail", "lake", "-", "1,200", "-", "-", "-", "-", "-"],
        ["-", "all", "lake", "-", "1,200", "-", "-", "-", "-", "-"],
    ]


def test_pipelines_as_json_are_the_brokers_own_words(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/subscriptions", {"subscriptions": [], "readers": [READER]})
    assert shell("subscriptions", "--json", "--endpoint", api.url) == 0
    assert shell.documents == [READER]


def test_a_pipeline_is_forgotten_by_its_name(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/readers/my%20lake", b"", method="DELETE", status=204)
    assert shell("subscriptions", "--remove-reader", "my lake", "--endpoint", api.url) == 0
    assert shell.out == "removed reader my lake\n"


def test_peek_shows_values_and_states_and_tames_both(shell: Shell, api: FakeApi) -> None:
    found = [
        message(5, b"\x1b[31mred\tone\n", states={"1": "acked", "2": "in flight, attempt 2"}),
        message(9, b"\xff\xfe"),
        message(11, b"x" * 500),
    ]
    api.answer("/api/topics/a%2Fb/messages", {"messages": found})
    assert shell("peek", "a/b", "--from", "5", "--limit", "3", "--endpoint", api.url) == 0
    assert [row[0] for row in shell.rows] == ["5", "9", "11"]
    assert shell.rows[0][3:] == ["1 acked, 2 in flight, attempt 2", "\\x1b[31mred\\tone\\n"]
    assert shell.rows[1][3:] == ["-", "0xfffe"]
    assert len(shell.rows[2][4]) == 120
    assert api.asked[0][1] == "/api/topics/a%2Fb/messages?from=5&limit=3"


def test_peek_as_json_has_everything(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/topics/orders/messages", {"messages": [message(5, b"one")]})
    assert shell("peek", "orders", "--json", "--endpoint", api.url) == 0
    assert shell.documents == [message(5, b"one")]


def test_the_key_comes_from_the_environment(shell: Shell, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KEY", "from-environment")
    api.answer("/api/topics", {"topics": []})
    shell("topics", "--endpoint", api.url)
    shell("topics", "--endpoint", api.url, "--key", "from-option")
    assert api.keys == ["Bearer from-environment", "Bearer from-option"]
