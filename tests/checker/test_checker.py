"""A short run of the checker; `make torture` makes half an hour of them (docs/reliability.md)."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.checker.run import check, confirmed

SECONDS = float(os.environ.get("HEADRACE_CHECKER_SECONDS", "15"))
SEEDS = range(int(os.environ.get("HEADRACE_CHECKER_RUNS", "2")))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_rule_is_broken_whatever_is_done_to_the_broker(seed: int, tmp_path: Path) -> None:
    verdict = asyncio.run(check(tmp_path, seed, SECONDS))
    assert verdict.violations == []
    assert verdict.failed_calls, "no fault reached the disk"
    assert confirmed(verdict), "nothing was confirmed"
    assert verdict.dead, "nothing died"
