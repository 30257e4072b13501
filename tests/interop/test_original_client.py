"""Fujin's own Go client of the time of the document, unpatched, against the dialect made for it, and without."""

import asyncio
from pathlib import Path

import pytest

from headrace.server.dev_certificate import DEV_CERT_NAME
from tests.harness.foreign import original
from tests.harness.served import Served, served

OWN_BUGS = {"one byte within a fetch": "timeout"}
"""A message of one byte ends what the client takes for the reply to its FETCH."""


async def outcomes(pytestconfig: pytest.Config, broker: Served, tmp_path: Path) -> dict[str, object]:
    """What became of each check."""
    client = original(pytestconfig)
    return await client.round(f"127.0.0.1:{broker.ports['fujin']}", tmp_path / DEV_CERT_NAME)


async def test_all_it_can_do_holds_in_its_dialect(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    with served(tmp_path, LISTEN__FUJIN="127.0.0.1:0", FUJIN__DIALECT="reference") as broker:
        found = await outcomes(pytestconfig, broker, tmp_path)
        assert len(found) > 45
        assert {name: outcome for name, outcome in found.items() if outcome != "held"} == OWN_BUGS


async def test_the_log_says_what_to_set_where_it_meets_the_other(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    with served(tmp_path, LISTEN__FUJIN="127.0.0.1:0") as broker:
        found = await outcomes(pytestconfig, broker, tmp_path)
        said = await asyncio.get_running_loop().run_in_executor(None, broker.wait_for_log, "fujin.original_client")
        assert "fujin.dialect" in str(said["cause"])
        assert broker.stderr.read_text().count("fujin.original_client") == 1
        assert "fujin.dialect to reference" in str(found['first write of 65536 by "writer"'])
