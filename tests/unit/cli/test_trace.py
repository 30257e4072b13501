"""`trace`: a life drawn as a line of time."""

import base64
from typing import Any

from tests.unit.cli.doubles import FakeApi, Shell

BEGAN = 1_700_000_000_000_000


def life() -> dict[str, Any]:
    value = b'{"n": 7} [bold]'
    message = {
        "offset": 7, "topic": "orders", "timestamp_us": BEGAN, "protocol": "blipmq", "qos": 1, "message_id": None,
        "value": base64.b64encode(value).decode(), "text": value.decode(),
    }  # fmt: skip
    events = [
        {"event": "delivered", "timestamp_us": BEGAN + 800, "subscription": 1, "attempt": 1, "reason": ""},
        {"event": "delivered", "timestamp_us": BEGAN + 100_800, "subscription": 1, "attempt": 2, "reason": ""},
        {
            "event": "dead", "timestamp_us": BEGAN + 2_100_800, "subscription": 1, "attempt": 2,
            "reason": "not acknowledged", "copy_topic": "$dead.orders", "copy_offset": 12,
        },
    ]  # fmt: skip
    return {"message": message, "events": events, "complete": True, "walked_to": 13}


def test_a_life_is_told_in_order_with_the_time_between(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/trace/7", life())
    assert shell("trace", "7", "--endpoint", api.url) == 0
    lines = shell.out.splitlines()
    assert lines[0] == "offset 7  ·  topic orders  ·  15 B"
    assert lines[1] == '{"n": 7} [bold]'
    steps = [line.split("─", 1) for line in lines[3:]]
    assert [step[0].strip() for step in steps][1:] == ["+800 µs  ├", "+100 ms  ├", "+2.0 s  ╰"]
    assert [step[1].split()[1] for step in steps] == ["published", "delivered", "delivered", "dead"]
    assert steps[3][1].endswith("subscription 1, attempt 2, not acknowledged → $dead.orders, offset 12")


def test_a_life_tells_by_which_door_and_by_whose_subscription(shell: Shell, api: FakeApi) -> None:
    found = life()
    found["message"] |= {"protocol": "grpcq", "headers": [{"name": "customer", "value": "", "text": "c7"}]}
    for event, name in zip(found["events"], ("fujin", "", None), strict=True):
        event["name"] = name
    api.answer("/api/trace/7", found)
    assert shell("trace", "7", "--endpoint", api.url) == 0
    assert "customer=c7" in shell.out
    about = [line.split("─", 1)[1].split(maxsplit=2)[2] for line in shell.out.splitlines() if "─" in line]
    assert about[:3] == ["over grpcq, qos 1", "over fujin, attempt 1", "over blipmq, subscription 1, attempt 2"]
    assert about[3].startswith("subscription 1, attempt 2, not acknowledged")


def test_a_life_as_json_is_the_brokers_own_words(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/trace/7", life())
    assert shell("trace", "7", "--json", "--endpoint", api.url) == 0
    assert shell.documents == [life()]


def test_a_walk_that_was_cut_short_says_so(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/trace/order%2F7", life() | {"complete": False})
    assert shell("trace", "order/7", "--endpoint", api.url) == 0
    assert "read up to offset 13" in shell.err


def test_an_unknown_message_fails(shell: Shell, api: FakeApi) -> None:
    api.answer("/api/trace/9", {"error": "there is no message at offset 9"}, status=404)
    assert shell("trace", "9", "--endpoint", api.url) == 1
    assert shell.err == "headrace: there is no message at offset 9\n"


def test_an_id_is_looked_for_until_the_end_of_the_log(shell: Shell, api: FakeApi) -> None:
    def look(query: dict[str, str], body: object) -> tuple[int, object]:
        start = int(query.get("from", 0))
        return (200, life()) if start == 20 else (404, {"error": f"below offset {start}", "next": start + 10})

    api.handle("/api/trace/far", look)
    assert shell("trace", "far", "--json", "--endpoint", api.url) == 0
    assert shell.documents == [life()]
