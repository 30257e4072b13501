"""The broker as it was: the newest snapshot and the log after it."""

from headrace.broker import Broker, BrokerSettings
from headrace.log import Log
from headrace.model.batch import Batch
from headrace.server.snapshots import split_snapshot


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
        for part in record.parts():
            if isinstance(part, Batch):
                broker.apply_batch(part)
            elif part[0] >= events_from:
                offset, event = part
                broker.apply_event(event, offset)
    broker.recovered(now)
    return broker
