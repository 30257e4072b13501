"""The broker as it was: the newest snapshot and the log after it; and what was found wrong on the way."""

import logging
from dataclasses import asdict

from headrace.broker import Broker, BrokerSettings
from headrace.log import Log, Report
from headrace.model.batch import Batch
from headrace.model.names import REDRIVEN_TOPIC
from headrace.server.snapshots import split_snapshot

logger = logging.getLogger("headrace.log")


def tell_report(report: Report) -> None:
    """Say in the broker's log what recovery found, whether the operator accepted it or it was no harm."""
    for damage in report.damage:
        logger.error("log.damage_accepted", extra=asdict(damage))
    for torn in report.torn:
        logger.warning("log.torn", extra=asdict(torn))
    for note in report.notes:
        logger.warning("log.mended", extra={"cause": note})
    if lost := [loss for loss in report.losses if loss.given_up]:
        offsets = sum(loss.damage.count for loss in lost)
        logger.warning("log.lost_before", extra={"places": len(lost), "offsets": offsets})


def recover_broker(log: Log, settings: BrokerSettings, now: int) -> Broker:
    """A broker whose state is the fold over the log."""
    if log.snapshot is None:
        covered, events_from = 0, 0
        broker = Broker(log, settings)
    else:
        covered, stored = log.snapshot
        events_from, state = split_snapshot(stored)
        broker = Broker.restore(state, log, settings)
    for record in log.iter_records(covered):
        parts = list(record.parts())
        copied = any(isinstance(part, Batch) and part.topic == REDRIVEN_TOPIC for part in parts)
        for part in parts:
            if isinstance(part, Batch):
                broker.apply_batch(part, copied=copied)
            elif part[0] >= events_from:
                offset, event = part
                broker.apply_event(event, offset)
    broker.recovered(now)
    return broker
