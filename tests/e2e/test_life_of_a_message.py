"""Executes docs/life-of-a-message.md: what the page says happens is what happens, in that order."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(r"^\d+\. `([\w/.]+): ([\w.]+)`", re.MULTILINE)


def test_the_page_tells_what_really_happens(tmp_path: Path) -> None:
    told = STEP.findall((ROOT / "docs" / "life-of-a-message.md").read_text())
    assert len(told) >= 24
    command = [sys.executable, "-m", "tests.harness.life", str(tmp_path)]
    interpreted = os.environ | {"HEADRACE_PURE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=interpreted, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calls = iter(tuple(call) for call in json.loads(done.stdout))
    for step in told:
        assert step in calls, f"{step[0]}: {step[1]} did not run after the step before it"
