"""Who gets in by which door: certificates of every kind against real TLS, revocation, doors without keys."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from headrace.config import AuthSection, CertificateEntry, Config, ConfigError, KeyEntry, load
from headrace.protocols.fujin.client import FujinClient, Security
from headrace.protocols.grpcq.client import GrpcqClient
from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.sspq.client import SspqClient
from headrace.server.node import Node
from headrace.server.tls import client_context
from headrace.testing import broker
from tests.harness.authority import Authority
from tests.harness.eventually import eventually
from tests.harness.peer import ACK, PING, frame, handshake, publish
from tests.harness.stream import Stream

KEY = "a key that is long enough"
WAIT_S = 10.0
FREE = "127.0.0.1:0"
DOORS = ("blipmq", "sspq", "fujin", "fujin_tcp", "grpc", "http")
BY_CERTIFICATE = ("sspq", "fujin", "fujin_tcp", "grpc")
NAMED = ("worker", "*.example.org", "Zoë", "a,b", "worker/x", "x" * 64)

Visit = Callable[[Node, Authority, Path | None, AsyncExitStack], Any]


async def by_blipmq(node: Node, authority: Authority, certificate: Path | None, stack: AsyncExitStack) -> Any:
    context = client_context(authority.path, cert=certificate or "")
    host, _, port = node.endpoints["blipmq"].removeprefix("tls://").rpartition(":")
    peer = Stream(*await asyncio.open_connection(host, int(port), ssl=context))
    stack.callback(peer.writer.close)
    peer.send(handshake(KEY.encode()))
    assert [(await peer.read())[0] for _ in range(2)] == [ACK, ACK]
    peer.send(publish(b"topic", b"value"))
    await peer.fence()
    return lambda: peer.read()


async def by_sspq(node: Node, authority: Authority, certificate: Path | None, stack: AsyncExitStack) -> Any:
    context = client_context(authority.path, cert=certificate or "")
    client = await stack.enter_async_context(await SspqClient.connect(node.endpoints["sspq"], tls=context))
    await client.send(b"value")
    await (await client.receive(timeout=WAIT_S)).confirm()
    return lambda: client.receive(dead=True, timeout=60)


async def by_fujin(node: Node, authority: Authority, certificate: Path | None, stack: AsyncExitStack) -> Any:
    return await _by_fujin("fujin", node, authority, certificate, stack)


async def by_fujin_tcp(node: Node, authority: Authority, certificate: Path | None, stack: AsyncExitStack) -> Any:
    return await _by_fujin("fujin_tcp", node, authority, certificate, stack)


async def _by_fujin(
    door: str, node: Node, authority: Authority, certificate: Path | None, stack: AsyncExitStack
) -> Any:
    security = Security(ca=authority.path, cert=certificate or "")
    client = await FujinClient.connect(node.endpoints[door], security=security)
    await stack.enter_async_context(client)
    writer = await client.writer()
    await writer.write("topic", b"value")
    reader = await client.subscribe("empty", auto_commit=True)
    return lambda: reader.take(1)


async def by_grpc(node: Node, authority: Authority, certificate: Path | None, stack: AsyncExitStack) -> Any:
    own = certificate or ""
    client = GrpcqClient(node.endpoints["grpc"], ca=authority.path, certificate=own, private_key=own)
    await stack.enter_async_context(client)
    await client.publish("topic", [Message(originator="t", topic="s.S", action="A", payload=b"v")])
    return lambda: client.consume("empty", 1, wait_s=60)


async def by_http(node: Node, authority: Authority, certificate: Path | None, stack: AsyncExitStack) -> Any:
    context = client_context(authority.path, cert=certificate or "")
    client = await stack.enter_async_context(httpx.AsyncClient(verify=context, base_url=node.endpoints["http"]))

    async def ask() -> None:
        (await client.get("/api/status", headers={"authorization": f"Bearer {KEY}"})).raise_for_status()

    await ask()
    return ask


VISITS: dict[str, Visit] = {
    "blipmq": by_blipmq,
    "sspq": by_sspq,
    "fujin": by_fujin,
    "fujin_tcp": by_fujin_tcp,
    "grpc": by_grpc,
    "http": by_http,
}


@asynccontextmanager
async def guarded(authority: Authority, names: tuple[str, ...], **more: Any) -> AsyncIterator[Node]:
    """A broker whose doors all ask for certificates, and the ones that get in."""
    server = str(authority.issue_for_a_server())
    tls = {"cert": server, "key": server, "client_ca": str(authority.path)}
    auth = {"api_keys": [{"name": "ops", "key": KEY}], "certificates": list(names)}
    async with broker(listen=dict.fromkeys(DOORS, FREE), tls=tls, auth=auth, **more) as node:
        yield node


def keep(node: Node, names: tuple[str, ...], keys: tuple[KeyEntry, ...] = (KeyEntry(name="ops", key=KEY),)) -> None:
    """Have the broker read a configuration that names these."""
    auth = AuthSection(api_keys=keys, certificates=tuple(CertificateEntry(name=name) for name in names))
    node.reload_keys(msgspec.structs.replace(node.config, auth=auth))


async def failure_of(awaitable: Awaitable[Any]) -> Exception:
    """How this ends, which must not be well, nor by standing there for ever."""
    try:
        got = await asyncio.wait_for(awaitable, WAIT_S)
    except TimeoutError as error:
        raise AssertionError("left standing") from error
    except Exception as error:
        return error
    raise AssertionError(f"went well: {got!r}")


async def turned_away(visit: Visit, node: Node, authority: Authority, certificate: Path | None) -> None:
    """The visit fails, whatever the door says."""
    async with AsyncExitStack() as stack:
        assert not isinstance(await failure_of(visit(node, authority, certificate, stack)), AssertionError)


@pytest.mark.parametrize("door", DOORS)
async def test_only_certificates_that_are_named_get_in(
    tmp_path: Path, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    authority, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    visit = VISITS[door]
    bad: dict[str, Path | None] = {
        "none": None,
        "a stranger's": stranger.issue("worker"),
        "expired": authority.issue("worker", expired=True),
        "unnamed": authority.issue("intruder"),
        "nameless": authority.issue(""),
        "named beside": authority.issue("", hosts=("worker",)),
        "two names": authority.issue("worker", also=("intruder",)),
        "two names, the named one last": authority.issue("intruder", also=("worker",)),
        "the same name twice": authority.issue("worker", also=("worker",)),
        "another case": authority.issue("Worker"),
        "a longer name": authority.issue("worker "),
        "one that the pattern would match": authority.issue("www.example.org"),
        "everything": authority.issue("*"),
        "an owner": authority.issue("anonymous"),
    }
    async with guarded(authority, NAMED) as node:
        before = len(node.engine.broker.topics())
        for certificate in bad.values():
            await turned_away(visit, node, authority, certificate)
        assert len(node.engine.broker.topics()) == before
        if door != "http":
            assert node.engine.broker.counters.published == 0
        assert (
            "no entry of auth.certificates or auth.api_keys names the certificate 'intruder'"
            in str([vars(record) for record in caplog.records])
            or "intruder" in caplog.text
        )
        for name in (*NAMED, "ops"):
            async with AsyncExitStack() as stack:
                await asyncio.wait_for(visit(node, authority, authority.issue(name), stack), WAIT_S)


@pytest.mark.parametrize("door", DOORS)
async def test_a_certificate_that_is_named_no_more_is_cut_off_and_others_stay(tmp_path: Path, door: str) -> None:
    authority = Authority(tmp_path, "ours")
    leaver, stayer = authority.issue("leaver"), authority.issue("stayer")
    visit = VISITS[door]
    async with guarded(authority, ("leaver", "stayer")) as node, AsyncExitStack() as stack:
        leaving = asyncio.ensure_future((await visit(node, authority, leaver, stack))())
        going_on = await visit(node, authority, stayer, stack)
        staying = asyncio.ensure_future(going_on())
        await asyncio.sleep(0)
        keep(node, ("stayer",))
        if door != "http":
            await failure_of(leaving)
            assert not staying.done()
            staying.cancel()
        else:
            await asyncio.gather(leaving, return_exceptions=True)
            await going_on()
        await turned_away(visit, node, authority, leaver)
        async with AsyncExitStack() as again:
            await visit(node, authority, stayer, again)


@pytest.mark.parametrize("door", ["blipmq", "grpc"])
@pytest.mark.parametrize("change", ["gone", "replaced", "narrowed"])
async def test_a_key_that_is_not_good_any_more_ends_its_sessions(door: str, change: str) -> None:
    keys = {
        "gone": (),
        "replaced": (KeyEntry(name="ann", key="another long enough key"),),
        "narrowed": (KeyEntry(name="ann", key=KEY, publish=("topic",), subscribe=("topic",)),),
    }[change]
    ann = {"name": "ann", "key": KEY, "publish": ["*"], "subscribe": ["*"]}
    auth = {"api_keys": [ann, {"name": "bob", "key": "bob has a long key too"}]}
    async with broker(listen={"grpc": FREE}, auth=auth) as node, AsyncExitStack() as stack:
        waiting = await _waiting(node, door, stack)
        bob = KeyEntry(name="bob", key="bob has a long key too")
        keep(node, (), (KeyEntry(name="ann", key=KEY), bob))
        await asyncio.sleep(0)
        assert not waiting.done(), "read again and wider: nothing happens"
        keep(node, (), (*keys, bob))
        await failure_of(waiting)


async def _waiting(node: Node, door: str, stack: AsyncExitStack) -> "asyncio.Future[Any]":
    """A session of ann's that waits for something."""
    if door == "grpc":
        client = await stack.enter_async_context(GrpcqClient(node.endpoints["grpc"], KEY))
        await client.publish("topic", [Message(originator="t", topic="s.S", action="A", payload=b"v")])
        stream = await stack.enter_async_context(client.stream("empty", 1))
        waiting = asyncio.ensure_future(stream.read())
        await eventually(lambda: [each for each in node.engine.broker.subscriptions() if each.topic == "empty"])
        return waiting
    host, _, port = node.endpoints["blipmq"].removeprefix("tcp://").rpartition(":")
    peer = Stream(*await asyncio.open_connection(host, int(port)))
    stack.callback(peer.writer.close)
    peer.send(handshake(KEY.encode()))
    assert [(await peer.read())[0] for _ in range(2)] == [ACK, ACK]
    peer.send(frame(PING, 0))
    await peer.read()
    return asyncio.ensure_future(peer.read())


async def test_the_api_reads_keys_anew_for_who_may_do_everything(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"

    def write(*entries: str) -> None:
        listed = ", ".join((f'{{name = "ops", key = "{KEY}"}}', *entries))
        config.write_text(
            f'data_dir = "{tmp_path}/data"\n[listen]\nblipmq = "{FREE}"\nhttp = "{FREE}"\nsspq = ""\nfujin = ""\n'
            f'grpc = ""\nflight = ""\n[auth]\napi_keys = [{listed}]\n'
        )

    def read() -> Config:
        return load(config)

    scoped = '{name = "ann", key = "ann has a long key", publish = ["a"]}'
    write(scoped)
    node = await Node.start(read(), reread=read)
    try:
        async with httpx.AsyncClient(base_url=node.endpoints["http"]) as http:

            async def reload(key: str | None) -> httpx.Response:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                return await http.post("/api/keys/reload", headers=headers)

            assert [(await reload(key)).status_code for key in (None, "wrong", "ann has a long key")] == [401, 401, 403]
            write()
            assert (await http.get("/api/keys/reload", headers={"authorization": f"Bearer {KEY}"})).status_code == 405
            assert (await reload(KEY)).status_code == 200
            assert (await reload("ann has a long key")).status_code == 401
            config.write_text("[auth]\napi_kyes = []\n")
            wrong = await reload(KEY)
            assert wrong.status_code == 409
            assert "api_kyes" in wrong.json()["error"]
            assert (await http.get("/api/status", headers={"authorization": f"Bearer {KEY}"})).status_code == 200
    finally:
        await node.stop()


async def test_callers_without_a_key_have_nothing_reloaded(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, http={"allow_unauthenticated": True}) as node,
        httpx.AsyncClient(base_url=node.endpoints["http"]) as http,
    ):
        assert (await http.get("/api/status")).status_code == 200
        assert (await http.post("/api/keys/reload")).status_code == 403


KEYLESS = ("sspq", "fujin", "fujin_tcp")


@pytest.mark.parametrize("name", KEYLESS)
@pytest.mark.parametrize("auth", [{}, {"api_keys": [KEY]}, {"certificates": ["worker"]}])
@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("certified", [False, True])
async def test_doors_without_keys(
    tmp_path: Path, name: str, auth: dict[str, Any], allowed: bool, certified: bool
) -> None:
    authority = Authority(tmp_path, "ours")
    server = str(authority.issue_for_a_server())
    section = name.removesuffix("_tcp")
    settings: dict[str, Any] = {"auth": auth, section: {"allow_unauthenticated": allowed}}
    if certified:
        settings["tls"] = {"cert": server, "key": server, "client_ca": str(authority.path)}
    async with broker(listen={name: FREE, "http": ""}, **settings) as node:
        told = next(line for line in node.admissions() if line.startswith(f"admits {name}: "))
        assert (name in node.endpoints) is (certified or allowed or not auth)
        if certified:
            assert ("worker" in told) is ("certificates" in auth)
            assert ("nobody" in told) is ("certificates" not in auth)
        elif name in node.endpoints:
            assert "everybody from this machine" in told
        else:
            assert f"{section}.allow_unauthenticated = true" in told


@pytest.mark.parametrize("name", KEYLESS)
async def test_a_door_that_nobody_guarded_closes_when_keys_come(tmp_path: Path, name: str) -> None:
    async with broker(tmp_path, listen={name: FREE, "http": ""}, auth={}) as node, AsyncExitStack() as stack:
        security = Security(verify=False)
        if name == "sspq":
            client: Any = await stack.enter_async_context(await SspqClient.connect(node.endpoints[name]))
            waiting = asyncio.ensure_future(client.receive())
            await client.send(b"v")
            await (await waiting).confirm()
            waiting = asyncio.ensure_future(client.receive())
        else:
            client = await stack.enter_async_context(await FujinClient.connect(node.endpoints[name], security=security))
            reader = await client.subscribe("empty", auto_commit=True)
            waiting = asyncio.ensure_future(reader.take(1))
        keep(node, (), (KeyEntry(key=KEY),))
        await failure_of(waiting)
        await failure_of(_come_again(node, name))


async def _come_again(node: Node, name: str) -> None:
    async with AsyncExitStack() as stack:
        if name == "sspq":
            queue = await stack.enter_async_context(await SspqClient.connect(node.endpoints[name]))
            await queue.receive()
        else:
            client = await FujinClient.connect(node.endpoints[name], security=Security(verify=False))
            await (await stack.enter_async_context(client)).writer()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_nothing_older_than_tls_1_3(tmp_path: Path, version: ssl.TLSVersion) -> None:
    authority = Authority(tmp_path, "ours")
    server = str(authority.issue_for_a_server())
    doors = ("blipmq", "sspq", "fujin_tcp", "http")
    async with broker(listen=dict.fromkeys(doors, FREE), tls={"cert": server, "key": server}) as node:
        for door in doors:
            host, _, port = node.endpoints[door].partition("://")[2].rpartition(":")
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.load_verify_locations(authority.path)
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = version
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(host, int(port), ssl=old)
            new = client_context(authority.path)
            _, writer = await asyncio.open_connection(host, int(port), ssl=new)
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            writer.close()


@pytest.mark.parametrize(
    ("listen", "keys", "says"),
    [
        ({"blipmq": "0.0.0.0:0"}, ["short"], "auth.api_keys[0]"),
        ({"http": "0.0.0.0:0"}, [KEY, {"name": "ann", "key": "x" * 15}], "auth.api_keys[1]"),
        ({"blipmq": "0.0.0.0:0"}, ["x" * 16], "warning: auth.api_keys[0] has fewer than 32"),
        ({"blipmq": "0.0.0.0:0"}, ["x" * 32], ""),
        ({}, ["short"], "warning: auth.api_keys[0] has fewer than 16"),
        ({}, ["x" * 16], ""),
    ],
)
async def test_keys_that_can_be_found_out_are_refused_or_warned_of(
    listen: dict[str, str], keys: list[Any], says: str
) -> None:
    running = broker(listen=listen, auth={"api_keys": keys})
    if says.startswith("auth"):
        with pytest.raises(ConfigError, match=re.escape(says)):
            await running.__aenter__()
        return
    async with running as node:
        warned = "".join(line for line in node.admissions() if line.startswith("warning"))
    assert (says in warned) if says else not warned
