"""Which topics and subscriptions there are, and how they are found. Delivers nothing."""

from collections.abc import Iterable

from headrace.broker.ordered import Ordered
from headrace.broker.settings import BrokerSettings
from headrace.broker.shares import Shares
from headrace.broker.subscription import Definition, Subscription
from headrace.broker.topic import Topic
from headrace.model.delivery import BatchSource
from headrace.model.events import OUTCOMES


class Registry:
    """All topics and subscriptions.

    subscriptions         by id
    names                 of all topics, in order
    placed                the topic and the id of each subscription, in order
    removed               the tally of subscriptions that are gone
    removed_redelivered   their redeliveries
    last_id               the highest subscription id ever given
    topic_shares          whose share of topics is how big; topics are for good
    subscription_shares   the same of subscriptions
    """

    def __init__(self, source: BatchSource, settings: BrokerSettings) -> None:
        self._source = source
        self._settings = settings
        self._topics: dict[str, Topic] = {}
        self._named: dict[tuple[str, str, str], Subscription] = {}
        self._unclaimed: dict[tuple[str, str, int], list[Subscription]] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.names: Ordered[str] = Ordered()
        self.placed: Ordered[tuple[str, int]] = Ordered()
        self.removed = [0] * OUTCOMES
        self.removed_redelivered = 0
        self.last_id = 0
        self.topic_shares = Shares("topics", "limits.topics_per_key_max")
        self.subscription_shares = Shares("subscriptions", "limits.subscriptions_per_key_max")
        self._claimed: dict[str, str] = {}

    def topics(self) -> Iterable[Topic]:
        """Every topic published to or subscribed to."""
        return self._topics.values()

    def known(self, name: str) -> Topic | None:
        """The topic of this name if there is one."""
        return self._topics.get(name)

    def knows(self, name: str) -> bool:
        """Whether there is a topic of this name, or somebody is about to make it."""
        return name in self._topics or name in self._claimed

    def claim(self, names: Iterable[str], maker: str) -> None:
        """Count topics that are about to be made for their maker's share. Those that are known are nothing to do.

        Raises OverQuota; then none is counted.
        """
        new = {name for name in names if not self.knows(name)}
        if new:
            self.topic_shares.take(maker, len(new))
            self._claimed.update(dict.fromkeys(new, maker))

    def topic(self, name: str) -> Topic:
        """The topic of this name, made with what is stored of it when it is new here."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self.restore_topic(name, 0, 0)
            topic.maker = self._claimed.pop(name, "")
        return topic

    def restore_topic(self, name: str, published: int, end: int, maker: str = "") -> Topic:
        """A topic of which the messages before an offset are counted; the source knows of the others."""
        if name not in self._topics:
            self.names.add(name)
        topic = self._topics[name] = Topic(name, self._settings)
        topic.published = published + self._source.count_from(name, end)
        topic.end = max(end, self._source.topic_end(name))
        if maker:
            topic.maker = maker
            self.topic_shares.add(maker)
        return topic

    def create(self, definition: Definition, identity: int | None = None) -> Subscription:
        """A new subscription, with the next id unless it has one."""
        sub = Subscription(identity or self.last_id + 1, definition, self.topic(definition.topic))
        self.add(sub)
        return sub

    def add(self, sub: Subscription) -> None:
        """Make a subscription known."""
        definition = sub.definition
        self.last_id = max(self.last_id, sub.id)
        if sub.id not in self.subscriptions:
            self.placed.add((definition.topic, sub.id))
        self.subscriptions[sub.id] = sub
        sub.topic.subscriptions[sub.id] = sub
        sub.topic.has_qos0 |= not sub.qos
        self.subscription_shares.add(definition.maker or definition.owner)
        if definition.name:
            self._named[definition.owner, definition.topic, definition.name] = sub

    def remove(self, sub: Subscription) -> None:
        """Forget a subscription but for what it counted."""
        definition = sub.definition
        del self.subscriptions[sub.id]
        self.placed.remove((definition.topic, sub.id))
        del sub.topic.subscriptions[sub.id]
        sub.batch = None
        self.subscription_shares.give(definition.maker or definition.owner)
        self._named.pop((definition.owner, definition.topic, definition.name), None)
        self.removed = [a + b for a, b in zip(self.removed, sub.tally, strict=True)]
        self.removed_redelivered += sub.redelivered

    def offer(self, sub: Subscription) -> None:
        """Let a recovered subscription be claimed."""
        definition = sub.definition
        if not definition.name:
            key = definition.owner, definition.topic, definition.qos
            self._unclaimed.setdefault(key, []).append(sub)

    def shared(self, owner: str, topic: str, name: str) -> Subscription | None:
        """The owner's shared subscription of this name."""
        return self._named.get((owner, topic, name))

    def found_again(self, owner: str, topic: str, qos: int) -> Subscription | None:
        """The oldest recovered subscription of this owner, topic and QoS that nobody has used yet."""
        key = owner, topic, qos
        offered = self._unclaimed.get(key, [])
        while offered:
            sub = offered.pop(0)
            if sub.untouched and sub.id in self.subscriptions:
                return sub
        self._unclaimed.pop(key, None)
        return None
