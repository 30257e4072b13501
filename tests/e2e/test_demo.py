"""`headrace demo` from beginning to end: it must keep its own word."""

import re
import subprocess
import sys


def test_the_demo_loses_nothing_and_says_so() -> None:
    done = subprocess.run([sys.executable, "-m", "headrace", "demo"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"✓ [\d,]+ publishes were answered: 0 lost", done.stdout)
    assert re.search(r"✓ [\d,]+ acks were answered before the kill, [\d,]+ in all: 0 came again", done.stdout)
    assert re.search(r"kill -9 with [\d,]+ publishes unanswered", done.stdout)
    assert "dead letter after 3 attempts" in done.stdout
    assert "✗" not in done.stdout
    sent, acked, recorded, dead, unstored = (
        int(number.replace(",", ""))
        for number in re.search(
            r"([\d,]+) sent = ([\d,]+) acked \+ ([\d,]+) acked without an answer \+ ([\d,]+) dead "
            r"\+ ([\d,]+) never stored",
            done.stdout,
        ).groups()  # type: ignore[union-attr]
    )
    assert sent == acked + recorded + dead + unstored
    assert sent > 1000
    assert dead == 1
