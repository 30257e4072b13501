"""The broker core: subscriptions as cursors over a log it does not own. Pure: no clock, socket, disk or logging."""

from headrace.broker.broker import Broker
from headrace.broker.identities import Admitted
from headrace.broker.settings import BrokerSettings, RetryPolicy, TopicSettings
from headrace.broker.views import Counters, Status, SubscriptionInfo, TopicInfo

__all__ = [
    "Admitted",
    "Broker",
    "BrokerSettings",
    "Counters",
    "RetryPolicy",
    "Status",
    "SubscriptionInfo",
    "TopicInfo",
    "TopicSettings",
]
