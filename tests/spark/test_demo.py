"""`headrace demo` from beginning to end: it must keep its own word."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

NUMBER = r"([\d,]+)"


def numbers(pattern: str, text: str) -> list[int]:
    found = re.search(pattern.replace("#", NUMBER), text)
    assert found, f"{pattern}\n{text}"
    return [int(number.replace(",", "")) for number in found.groups()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def out(place: Path) -> str:
    command = [sys.executable, "-m", "headrace", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout


def test_the_demo_loses_nothing_and_says_so(out: str) -> None:
    assert "✗" not in out
    numbers("kill -9 with # publishes unanswered and # in flight", out)
    confirmed, lost, _ = numbers("✓ # orders were confirmed to the shop: # lost, # credits", out)
    assert confirmed > 500
    assert lost == 0
    assert numbers(r"cut off by the kill \(# stored\): # half done", out)[1] == 0
    assert numbers("✓ # acks were confirmed before the kill, # in all: # came again", out)[2] == 0
    sent, acked, unanswered, dead, unstored = numbers(
        r"✓ # messages = # acked \+ # acked, unanswered \+ # dead \+ # never stored", out
    )
    assert sent == acked + unanswered + dead + unstored
    assert dead == 0, "it was redriven"


def test_every_order_is_at_every_station_once(out: str) -> None:
    rows = [line.split("\t") for line in out.splitlines()]
    begin = next(place for place, row in enumerate(rows) if row[0] == "every order was") + 1
    stations = rows[begin : begin + 4]
    assert [row[1] for row in stations] == ["grpcq", "fujin", "blipmq", "sspq"]
    assert len({row[2] for row in stations}) == 1
    assert {tuple(row[3:]) for row in stations} == {("0", "0")}
    life = re.findall(r"[├╰╭]─[●○] (kill -9|\w+)", out)
    assert life[:2] == ["published", "delivered"]
    assert life.index("kill -9") < life.index("dead") < life.index("redriven")
    assert life[-1] == "acked"
    assert "published over fujin · delivered over blipmq · acked over blipmq" in out
    assert "published over fujin · delivered over sspq · acked over sspq" in out


def test_the_tables_tell_the_same_story(out: str, place: Path) -> None:
    messages, _, envelopes, quarantined, letters = numbers(
        r"behind: # messages, # events, # envelopes, # quarantine, # dead_letters", out
    )
    sent = numbers("✓ # messages = ", out)[0]
    assert messages >= sent - numbers(r"\+ # never stored", out)[0]
    assert envelopes > 500
    assert (quarantined, letters) == (1, 1)
    assert numbers("2 tables against the log: # do not fit", out) == [0]
    assert (place / "headrace-demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png" in (place / "headrace-demo" / "demo.html").read_text()
