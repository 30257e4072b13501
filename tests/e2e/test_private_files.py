"""Every file a broker writes: for its owner alone, whatever the umask, and never through a link."""

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.feed.client import FeedClient
from headrace.model.errors import HeadraceError
from headrace.server.dev_certificate import dev_certificate
from headrace.server.node import Node
from headrace.server.private import keep_private
from headrace.testing import KEY, broker
from tests.harness.peer import publish
from tests.harness.stream import connected

OPEN = dict.fromkeys(("sspq", "fujin", "fujin_tcp", "grpc", "flight"), "127.0.0.1:0")
VICTIM = b"not to be touched\n"


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o177])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def everything(directory: Path) -> list[Path]:
    return [directory, *sorted(directory.rglob("*"))]


def wrong_modes(directory: Path) -> dict[str, str]:
    found = {}
    for path in everything(directory):
        mode = path.lstat().st_mode
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600):
            found[str(path.relative_to(directory))] = oct(mode)
    return found


async def work(node: Node) -> None:
    """Have a segment, a snapshot and a staged file written."""
    async with connected(node) as peer:
        for number in range(64):
            peer.send(publish(b"topic", b"%d" % number * 512))
        await peer.fence()
    if "flight" in node.endpoints:
        await asyncio.to_thread(_stage, node.endpoints["flight"])


def _stage(url: str) -> None:
    with FeedClient(url, key=KEY) as client:
        rows = pa.record_batch({"value": pa.array([b"v"], pa.binary())})
        client.stage("w", 1, "p", "topic", [rows])


async def test_all_of_it_is_private(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "deep" / "er" / "data"
    async with broker(data, listen=OPEN, log={"segment_bytes": 8192, "snapshot_bytes": 4096}) as node:
        await work(node)
        assert wrong_modes(data) == {}
    assert wrong_modes(tmp_path / "deep") == {}
    written = {path.name for path in everything(data)}
    assert {"endpoints.json", "dev-cert.pem", "dev-private-key.pem", "log", "staging"} <= written
    assert any(name.endswith(".staged") for name in written)


async def test_what_was_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with broker(data, listen=OPEN) as node:
        await work(node)
    for path in everything(data):
        path.chmod(0o777 if path.is_dir() else 0o666)
    async with broker(data) as node:
        assert wrong_modes(data) == {}
        assert not [line for line in node.admissions() if str(data) in line]


async def test_a_directory_that_holds_what_is_not_ours_is_left_alone_and_spoken_of(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    (data / "holiday.jpg").write_bytes(VICTIM)
    (data / "holiday.jpg").chmod(0o644)
    async with broker(data) as node:
        assert [line for line in node.admissions() if "warning" in line and "holiday.jpg" in line]
        assert stat.S_IMODE(data.stat().st_mode) == 0o755
        assert stat.S_IMODE((data / "holiday.jpg").stat().st_mode) == 0o644
        assert stat.S_IMODE((data / "log").stat().st_mode) == 0o700


async def test_the_data_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "really").mkdir()
    (tmp_path / "data").symlink_to("really")
    async with broker(tmp_path / "data") as node:
        await work(node)
    assert wrong_modes(tmp_path / "really") == {}


@pytest.mark.parametrize("name", ["log", "staging"])
def test_a_link_in_place_of_a_directory_of_ours_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HeadraceError, match=f"{name} is a link"):
        keep_private(tmp_path / "data")


async def test_no_link_is_followed(tmp_path: Path) -> None:
    learnt = tmp_path / "learnt"
    settings = {"segment_bytes": 8192, "snapshot_bytes": 4096}
    async with broker(learnt, listen=OPEN, log=settings) as node:
        await work(node)
        names = {path.relative_to(learnt) for path in everything(learnt) if path.is_file()}
    names |= {path.relative_to(learnt) for path in everything(learnt) if path.is_file()}
    names |= {name.with_name(name.name + suffix) for name in names for suffix in (".tmp", ".new")}
    names = {name for name in names if name.suffix != ".staged"}
    victim = tmp_path / "victim"
    victim.write_bytes(VICTIM)
    victim.chmod(0o644)
    for number, name in enumerate(sorted(names)):
        data = tmp_path / str(number)
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).symlink_to(victim)
        dev_certificate(data, now=datetime.now(UTC))
        with contextlib.suppress(HeadraceError, OSError):  # refused, which is as good as replaced
            async with broker(data, log=settings) as node:
                await work(node)
        assert victim.read_bytes() == VICTIM, name
        assert stat.S_IMODE(victim.stat().st_mode) == 0o644, name
