"""A broker as a child process: what is said when it does not start."""

from pathlib import Path

import pytest

from headrace.cli.failure import Failure
from headrace.cli.process import own_broker


async def test_a_broker_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"(?s)did not start: .*log\.sync"):
        async with own_broker(tmp_path, '[log]\nsync = "sometimes"\n'):
            pytest.fail("it must not start")
