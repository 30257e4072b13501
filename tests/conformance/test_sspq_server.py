"""The same vectors against a real broker behind a real socket, all but those that need its clockwork in hand."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conformance.test_sspq import MEMORY, VECTORS, hold, settings_of
from tests.conformance.vectors import Talk
from tests.harness.served import Served, served
from tests.harness.sspq import FOR_EVER, SspqPeer, send

TALKS = [talk for talk in VECTORS.talks if talk.needs != MEMORY]


class SocketHouse:
    """Connections by name to a broker in another process."""

    def __init__(self, broker: Served) -> None:
        self._port = broker.ports["sspq"]
        self._peers: dict[str, SspqPeer] = {}

    def peer(self, name: str) -> SspqPeer:
        if name not in self._peers:
            self._peers[name] = SspqPeer(self._port)
        return self._peers[name]

    def drain(self) -> None:
        raise AssertionError("vectors that need this run against the session alone")

    def check_nothing_left(self) -> None:
        """A message that will not be given up comes back as the first one, and nobody else has heard anything."""
        for name, peer in self._peers.items():
            assert peer.socket.fileno() < 0 or peer.quiet(), name
            peer.vanish()
        probe = SspqPeer(self._port)
        probe.send(send(b"p", FOR_EVER))
        assert probe.take()[1] == b"p"
        probe.confirm()
        assert probe.quiet()
        probe.vanish()


class Brokers:
    """One broker for each combination of settings, started when it is first needed."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, stack: ExitStack) -> None:
        self._paths = tmp_path_factory
        self._stack = stack
        self._running: dict[str, Served] = {}

    def of(self, talk: Talk) -> Served:
        if talk.needs not in self._running:
            settings = {f"SSPQ__{name.upper()}": text for name, text in settings_of(talk).items()}
            started = served(self._paths.mktemp("sspq"), dev=True, LISTEN__SSPQ="127.0.0.1:0", **settings)
            self._running[talk.needs] = self._stack.enter_context(started)
        return self._running[talk.needs]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(tmp_path_factory, stack)


@pytest.mark.parametrize("way", ["whole", "byte by byte", "random 1"])
@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
def test_the_broker_holds_every_talk(brokers: Brokers, talk: Talk, way: str) -> None:
    hold(SocketHouse(brokers.of(talk)), talk, way)
