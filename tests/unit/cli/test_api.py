"""The API client: what the broker says, and what it says no to."""

import socket
import threading

import pytest

from headrace.cli.api import PAGE, segment
from headrace.cli.failure import Failure
from headrace.cli.target import Target, find_broker
from tests.unit.cli.doubles import FakeApi, Shell


def target(url: str, key: str = "dev-key") -> Target:
    return find_broker(endpoint=url, key=key)


def test_the_key_is_shown_as_a_bearer(api: FakeApi) -> None:
    api.answer("/api/status", {"ready": True})
    with target(api.url, "secret").api() as client:
        assert client.get("/api/status") == {"ready": True}
    assert api.keys == ["Bearer secret"]


def test_queries_leave_out_what_is_not_given(api: FakeApi) -> None:
    api.answer("/api/dead-letters", {})
    with target(api.url).api() as client:
        client.get("/api/dead-letters", {"topic": None, "from": 7})
    assert api.asked == [("GET", "/api/dead-letters?from=7", None)]


def test_refusals_repeat_the_brokers_words(api: FakeApi) -> None:
    api.answer("/busy", {"error": "the log cannot be written"}, status=503)
    with target(api.url).api() as client, pytest.raises(Failure, match=r"GET /busy: the log cannot be written \(503\)"):
        client.get("/busy")


def test_what_is_not_there_is_said_plainly(api: FakeApi) -> None:
    with target(api.url).api() as client, pytest.raises(Failure, match=r"^nothing at /nowhere$"):
        client.get("/nowhere")


def test_a_refused_key_says_where_to_get_one(api: FakeApi) -> None:
    api.answer("/api/topics", {"error": "the key is not known"}, status=401)
    with target(api.url).api() as client, pytest.raises(Failure) as refused:
        client.get("/api/topics")
    assert "the key is not known" in refused.value.problem
    assert "headrace keys new" in refused.value.advice


def test_an_error_that_is_no_json_is_still_shown(api: FakeApi) -> None:
    api.answer("/api/topics", b"<h1>gateway trouble</h1>", status=502)
    with target(api.url).api() as client, pytest.raises(Failure, match="gateway trouble"):
        client.get("/api/topics")


def test_a_peer_that_speaks_something_else_is_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"\x00\x00\x00\x0bnot http\n")

        thread = threading.Thread(target=answer)
        thread.start()
        there = target(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with there.api() as client, pytest.raises(Failure, match="does not speak HTTP"):
            client.get("/")
        thread.join()


def test_pages_are_followed_to_the_end(api: FakeApi) -> None:
    stored = [{"offset": 3 * n} for n in range(2 * PAGE + 10)]

    def page(query: dict[str, str], body: object) -> tuple[int, object]:
        first, limit = int(query.get("from", 0)), int(query["limit"])
        return 200, {"items": [item for item in stored if item["offset"] >= first][:limit]}

    api.handle("/list", page)
    with target(api.url).api() as client:
        assert list(client.pages("/list", "items", {}, limit=None)) == stored
        assert list(client.pages("/list", "items", {"from": 6}, limit=PAGE + 1)) == stored[2 : PAGE + 3]


@pytest.mark.parametrize(("text", "path"), [("orders", "orders"), ("a/b c", "a%2Fb%20c"), ("?#", "%3F%23")])
def test_names_are_one_segment_of_a_path(text: str, path: str) -> None:
    assert segment(text) == path


@pytest.mark.parametrize(
    "command",
    [
        ("peek", "orders", "--from"),
        ("peek", "orders", "--limit"),
        ("subscriptions", "--remove"),
        ("deadletters", "show"),
        ("deadletters", "list", "--limit"),
        ("deadletters", "redrive", "--rate"),
    ],
)
@pytest.mark.parametrize("number", ["9" * 5000, "0x10", "1e9", "nan", "-1"])
def test_a_number_that_is_none_or_has_thousands_of_digits_is_wrong_usage(
    shell: Shell, api: FakeApi, command: tuple[str, ...], number: str
) -> None:
    assert shell(*command, number, "--endpoint", api.url) == 2
    assert "Traceback" not in shell.err


def test_a_list_is_followed_from_page_to_page(api: FakeApi) -> None:
    pages: dict[str | None, object] = {
        None: {"topics": [{"topic": "a"}], "next": "a"}, "a": {"topics": [{"topic": "b"}], "next": None},
    }  # fmt: skip
    api.handle("/api/topics", lambda query, body: (200, pages[query.get("after")]))
    with target(api.url).api() as client:
        assert [row["topic"] for row in client.listed("/api/topics", "topics")] == ["a", "b"]


def test_a_page_that_ends_before_its_limit_is_not_the_last_if_it_says_so(api: FakeApi) -> None:
    def page(query: dict[str, str], body: object) -> tuple[int, object]:
        start = int(query.get("from", 0))
        return 200, {"items": [{"offset": start}] * (start < 4), "next": start + 2, "more": start < 4}

    api.handle("/list", page)
    with target(api.url).api() as client:
        assert [item["offset"] for item in client.pages("/list", "items", {}, limit=None)] == [0, 2]
        assert [item["offset"] for item in client.pages("/list", "items", {}, limit=1)] == [0]
