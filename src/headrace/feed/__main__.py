"""`python -m headrace.feed --channel FD`: the feed process, started by the broker."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

NICENESS = 5
"""Readers of the log wait rather than the broker's publishers and subscribers, where both want the same core."""


class _NoPandas(MetaPathFinder):
    """pyarrow loads pandas at its first array, wherever it is installed: 0.3 s and 37 MiB for nothing."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Refuse pandas, leave the rest to the others."""
        if fullname == "pandas":
            raise ModuleNotFoundError("the feed does without pandas", name=fullname)


def main() -> None:
    """Run the process until the broker is gone."""
    parser = argparse.ArgumentParser(prog="headrace.feed", description=__doc__)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the socket shared with the broker")
    arguments = parser.parse_args()
    os.nice(NICENESS)
    sys.meta_path.insert(0, _NoPandas())
    from headrace.feed.process import run

    run(arguments.channel)


if __name__ == "__main__":
    main()
