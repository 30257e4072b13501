"""`python -m tests.checker --seconds 300 --seed 7 --runs 6`: the checker by itself, for as long as one likes."""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.checker.run import check


def main() -> int:
    """Run one seed after the other; 1 when a rule was broken, whose history is then kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long each run makes load and faults")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next ones count on")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--faults", nargs="*", default=(), help="only these; all of them unless told")
    asked = parser.parse_args()
    bad = 0
    for seed in range(asked.seed, asked.seed + asked.runs):
        folder = Path(tempfile.mkdtemp(prefix=f"headrace-checker-{seed}-"))
        verdict = asyncio.run(check(folder, seed, asked.seconds, asked.faults))
        sys.stdout.write(json.dumps(asdict(verdict)) + "\n")
        sys.stdout.flush()
        if verdict.violations:
            bad += 1
            sys.stderr.write(f"history and data directory: {folder}\n")
        else:
            shutil.rmtree(folder)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
