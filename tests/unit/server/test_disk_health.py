"""Damage under a running broker: told once, shown everywhere, passed over with a word, remembered."""

import errno
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.log import LogDamaged, OsDisk, verify
from headrace.log.format import SEGMENT_HEADER_SIZE
from headrace.model.batch import build_batch
from headrace.model.errors import BrokerError
from headrace.model.events import Event
from headrace.server.disk_health import DiskHealth
from headrace.server.node import Node
from headrace.testing import broker
from tests.harness.api import calling
from tests.harness.eventually import eventually
from tests.unit.server.test_engine import MoodyDisk
from tests.unit.server.test_http import Rig

LOG = {"segment_bytes": 4096, "tail_cache_bytes": 0, "scrub_bytes_s": 0}
VALUES = [f"value {n}".encode() + bytes(300) for n in range(16)]


async def filled(node: Node) -> None:
    """Messages in several segments."""
    async with calling(node.endpoints["http"]) as http:
        rig = Rig(node, http)
        for value in VALUES:
            await rig.publish("orders", value)


def flip(directory: Path, position: int = SEGMENT_HEADER_SIZE + 200) -> Path:
    """A bit of the first segment goes bad."""
    path = min((directory / "log").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return path


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with broker(tmp_path, log=LOG) as node:
        await filled(node)
        yield node


async def test_a_subscriber_passes_over_what_is_lost_and_everybody_is_told(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with calling(node.endpoints["http"]) as http:
        rig = Rig(node, http)
        path = flip(tmp_path)
        with caplog.at_level(logging.ERROR):
            subscription = rig.subscribe("orders")
            taken = rig.take(subscription, 100)
            again = rig.take(rig.subscribe("orders"), 100)
        assert len(taken) == len(again) == len(VALUES) - 1
        (told,) = [record for record in caplog.records if record.getMessage() == "log.damaged"]
        assert (told.segment, told.first, told.count) == (path.name, 0, 1)  # type: ignore[attr-defined]
        await rig.engine.drained(10)
        status = await rig.get("/api/status")
        assert status["degraded"] == "the log is damaged"
        (damage,) = status["disk"]["damage"]
        assert (damage["segment"], damage["first"], damage["count"]) == (path.name, 0, 1)
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        metrics = (await http.get("/metrics")).text
        assert "headrace_log_damaged_places 1.0" in metrics
        assert "headrace_log_damaged_offsets 1.0" in metrics
        page = await rig.get("/api/topics/orders/messages")
        assert page["lost"] == [{"first": 0, "count": 1}]
        events = [
            part[1] for record in rig.engine.log.iter_records(0) for part in record.parts() if isinstance(part, tuple)
        ]
        dropped = [(event.reason, *event.ranges) for event in events if event.event is Event.DROPPED]
        assert dropped == [("lost to damage", (0, 1, 0))] * 2
        assert len([event for event in events if event.event is Event.DAMAGED]) == 1
        assert [loss.damage.first for loss in rig.engine.log.catalog.losses] == [0]
        info = rig.engine.broker.subscription(subscription)
        assert info is not None
        assert (info.dropped, info.pending) == (1, 0)


async def test_damage_at_the_end_of_a_topic_does_not_keep_it_pending(node: Node, tmp_path: Path) -> None:
    async with calling(node.endpoints["http"]) as http:
        rig = Rig(node, http)
        await rig.publish("early", b"only one")
        for value in VALUES:
            await rig.publish("orders", value)
        batch = rig.engine.log.batch_at("early", 0)
        assert batch is not None
        path = max(p for p in (tmp_path / "log").glob("*.seg") if int(p.stem) <= batch.base)
        data = path.read_bytes()
        path.write_bytes(data.replace(b"only one", b"only two"))
        assert b"only one" in data
        subscription = rig.subscribe("early")
        rig.engine.log._reader.forget(next(s for s in rig.engine.log._segments if s.path == path))
        assert rig.take(subscription) == []
        info = rig.engine.broker.subscription(subscription)
        assert info is not None
        assert (info.dropped, info.pending) == (1, 0)


async def test_what_was_met_stops_the_next_start_and_is_named_for_ever_after(tmp_path: Path) -> None:
    async with broker(tmp_path, log=LOG) as node:
        await filled(node)
        flip(tmp_path)
        async with calling(node.endpoints["http"]) as http:
            rig = Rig(node, http)
            rig.take(rig.subscribe("orders"), 100)
            await rig.engine.drained(10)
    with pytest.raises(LogDamaged, match="offsets 0 to 0 lost"):
        async with broker(tmp_path, log=LOG):
            pass
    async with broker(tmp_path, log=LOG, accept_damage=True) as node, calling(node.endpoints["http"]) as http:
        status = await Rig(node, http).get("/api/status")
        assert (status["degraded"], status["disk"]["lost_offsets"], status["disk"]["epoch"]) == (None, 1, 1)
    report = verify(tmp_path / "log", OsDisk())
    assert report.intact
    assert [(loss.damage.first, loss.damage.count, loss.given_up) for loss in report.losses] == [(0, 1, True)]


async def test_damage_restored_from_a_copy_is_forgotten(tmp_path: Path) -> None:
    async with broker(tmp_path, log=LOG) as node:
        await filled(node)
        path = min((tmp_path / "log").glob("*.seg"))
        whole = path.read_bytes()
        flip(tmp_path)
        async with calling(node.endpoints["http"]) as http:
            rig = Rig(node, http)
            rig.take(rig.subscribe("orders"), 100)
            await rig.engine.drained(10)
    path.write_bytes(whole)
    async with broker(tmp_path, log=LOG) as node:
        assert node.engine.log.catalog.losses == ()
        assert any("not there any more" in note for note in node.engine.log.report.notes)


async def test_the_scrub_finds_damage_that_nobody_reads(tmp_path: Path) -> None:
    async with broker(tmp_path, log=LOG) as node:
        await filled(node)
    flip(tmp_path)
    async with broker(tmp_path, log=LOG | {"scrub_bytes_s": 1 << 30}) as node:
        await eventually(lambda: node.engine.disk.scrub_passes)
        assert [damage.first for damage in node.engine.log.damage] == [0]
        await eventually(lambda: node.engine.log.catalog.losses)


async def test_errors_of_the_disk_are_logged_once_for_each_episode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MoodyDisk()
    with caplog.at_level(logging.INFO, logger="headrace.disk"):
        async with broker(tmp_path, disk=disk, log=LOG) as node:
            part = build_batch("orders", [b"one"], timestamp_us=1)
            for _ in range(2):
                await node.engine.publish_durably("orders", part, 1)
                assert node.engine.disk.failing == {}
                disk.write_error = errno.ENOSPC
                for _ in range(3):
                    with pytest.raises(BrokerError):
                        await node.engine.publish_durably("orders", part, 1)
                assert node.engine.disk.failing
                disk.write_error = 0
            await node.engine.publish_durably("orders", part, 1)
    said = [(record.getMessage(), record.work) for record in caplog.records]  # type: ignore[attr-defined]
    assert said == [("storage.failed", "flush"), ("storage.recovered", "flush")] * 2


def test_each_work_has_episodes_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    health = DiskHealth()
    with caplog.at_level(logging.INFO):
        for work, error in (
            ("flush", None), ("flush", "full"), ("catalog", "EIO"), ("flush", "full"), ("flush", None),
            ("flush", None), ("catalog", None),
        ):  # fmt: skip
            health.ended(work, error)
    assert [(record.getMessage(), record.work) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("storage.failed", "flush"),
        ("storage.failed", "catalog"),
        ("storage.recovered", "flush"),
        ("storage.recovered", "catalog"),
    ]
    assert health.errors == {"flush": 2, "catalog": 1}
