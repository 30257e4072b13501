"""Which broker a command talks to, and with which credentials: the options such commands share and what they mean."""

import inspect
import json
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from headrace.cli.failure import Failure

if TYPE_CHECKING:
    from headrace.cli.api import ApiClient

DEFAULT_DATA_DIR = Path("headrace-data")
DEV_KEY = "dev-key"
SSPQ_TOPIC = "sspq"
FUJIN_DIALECT = "document"
ENDPOINTS_FILE = "endpoints.json"
PANEL = "Which broker"
SCHEMES = {
    "blipmq": ("tcp", "tls"),
    "sspq": ("tcp", "tls"),
    "fujin": ("quic", "quic"),
    "fujin_tcp": ("tls", "tls"),
    "grpc": ("grpc", "grpcs"),
    "http": ("http", "https"),
    "flight": ("grpc", "grpc+tls"),
}
"""By listener the scheme of its address: without and with the broker's own certificate."""
START_ONE = "Start one with `headrace serve --dev`, or say where it runs with --data-dir, --config or --endpoint."

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Its data directory.",
        show_default=str(DEFAULT_DATA_DIR),
        rich_help_panel=PANEL,
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Its configuration file.", rich_help_panel=PANEL)
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Its address: tcp:// or tls:// (blipmq, sspq), quic:// or tls:// (fujin), grpc:// or grpcs:// (grpcq), "
        "http:// or https:// for the rest.",
        rich_help_panel=PANEL,
    ),
]
Key = Annotated[
    str,
    typer.Option(
        metavar="KEY", envvar="HEADRACE_KEY", help="The API key.", show_default="the dev key", rich_help_panel=PANEL
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", envvar="HEADRACE_CA", help="TLS: who signed its certificate.", rich_help_panel=PANEL
    ),
]
Cert = Annotated[
    Path | None,
    typer.Option(
        "--cert",
        metavar="FILE",
        envvar="HEADRACE_CERT",
        help="TLS: our own certificate with its key.",
        rich_help_panel=PANEL,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each result.")]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A broker's addresses by listener name, where they were learnt, and the credentials to show.

    `directory` is its data directory, where that is known; `sspq_topic` is where its SSPQ door keeps its queue, and
    `fujin_dialect` how its Fujin door writes results.
    """

    endpoints: dict[str, str]
    source: str
    key: str = field(repr=False)
    directory: Path | None = None
    sspq_topic: str = SSPQ_TOPIC
    fujin_dialect: str = FUJIN_DIALECT
    ca: Path | None = None
    cert: Path | None = None

    def url(self, *names: str) -> str:
        """The address of the first of these listeners that this broker has.

        Raises Failure when it has none of them.
        """
        found = next((self.endpoints[name] for name in names if name in self.endpoints), None)
        if found is None:
            known = ", ".join(f"{k} at {v}" for k, v in self.endpoints.items()) or "none"
            scheme = SCHEMES[names[0]][0]
            closed = " If it is, the broker may have closed it for want of keys: its first lines say who may come in."
            raise Failure(
                f"this needs the broker's {names[0]} listener; {self.source} names none (known: {known})",
                f"Give its address with --endpoint {scheme}://host:port, or switch it on under [listen]."
                + closed * (names[0] in ("sspq", "fujin")),
            )
        return found

    def address(self, name: str) -> tuple[str, int]:
        """Host and port of one listener.

        Raises Failure when this broker has no such listener.
        """
        parts = urlsplit(self.url(name))
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def tls(self, name: str) -> ssl.SSLContext | None:
        """The TLS context for one listener; None where it speaks plain text."""
        if urlsplit(self.endpoints[name]).scheme != SCHEMES[name][1]:
            return None
        from headrace.server.tls import client_context

        return client_context(self.ca or "", cert=self.cert or "")

    @property
    def is_self_signed(self) -> bool:
        """Whether the broker of the data directory was given no certificate, which all its listeners would show."""
        written = endpoints_of(self.directory) if self.directory is not None else {}
        secure = {name: pair[1] for name, pair in SCHEMES.items() if pair[0] != pair[1]}
        return bool(written) and not any(
            urlsplit(written.get(name, "")).scheme == scheme for name, scheme in secure.items()
        )

    def unreachable(self, name: str, error: OSError) -> Failure:
        """The failure to report when nobody answers at a listener's address."""
        if isinstance(error, ssl.SSLError):
            return self.not_trusted(self.endpoints[name], error.reason or str(error))
        return self.silent(self.endpoints[name], error.strerror or str(error))

    def silent(self, url: str, cause: str) -> Failure:
        """The failure to report when nobody answers there."""
        return Failure(f"no broker answers at {url} ({cause}); the address is from {self.source}", START_ONE)

    def not_trusted(self, url: str, cause: str) -> Failure:
        """The failure to report when one side does not believe the other's certificate."""
        return Failure(
            f"TLS with {url} failed: {cause}",
            "Name the authority with --ca FILE, and with --cert FILE our own certificate if it asks for one.",
        )

    def api(self) -> "ApiClient":
        """A client for the broker's HTTP API."""
        from headrace.cli.api import ApiClient

        return ApiClient(self)


def find_broker(
    data_dir: DataDir = None,
    config: ConfigFile = None,
    endpoint: Endpoint = None,
    key: Key = DEV_KEY,
    ca: Ca = None,
    cert: Cert = None,
) -> Target:
    """The broker the options name: an endpoint's URL, else the data directory's or the configuration's.

    Raises Failure when there is nothing to go by.
    """
    listen: dict[str, str] = {}
    sspq_topic = os.environ.get("HEADRACE_SSPQ__TOPIC", SSPQ_TOPIC)
    fujin_dialect = os.environ.get("HEADRACE_FUJIN__DIALECT", FUJIN_DIALECT)
    if config is not None:
        from headrace.cli.settings import load_config

        settings = load_config(config, data_dir=data_dir)
        data_dir = Path(settings.data_dir)
        sspq_topic, fujin_dialect = settings.sspq.topic, settings.fujin.dialect
        addresses = settings.listen.addresses()
        secure = bool(settings.tls.cert)
        listen = {name: f"{pair[secure]}://{addresses[name]}" for name, pair in SCHEMES.items() if name in addresses}
    directory = data_dir or DEFAULT_DATA_DIR
    if endpoint is not None:
        found, source = _from_url(endpoint), "--endpoint"
    elif written := endpoints_of(directory):
        found, source = written, str(directory / ENDPOINTS_FILE)
    elif listen:
        found, source = listen, str(config)
    else:
        raise Failure(f"no broker has run in {directory}: there is no {directory / ENDPOINTS_FILE}", START_ONE)
    return Target(
        endpoints=found,
        source=source,
        key=key,
        ca=ca,
        cert=cert,
        directory=directory,
        sspq_topic=sspq_topic,
        fujin_dialect=fujin_dialect,
    )


def talks_to_broker(command: Callable[..., None], check: Callable[..., object] | None = None) -> Callable[..., None]:
    """The command with find_broker's options added to its own; its argument `target` is the broker they name.

    `check` gets the command's own options first: wrong usage is wrong without a broker too.
    """
    options = inspect.signature(find_broker).parameters
    own = [item for item in inspect.signature(command).parameters.values() if item.name != "target"]

    def _run(**given: object) -> None:
        chosen = {name: given.pop(name) for name in options}
        if check is not None:
            check(**given)
        command(target=find_broker(**chosen), **given)  # type: ignore[arg-type]

    _run.__name__ = command.__name__
    _run.__doc__ = command.__doc__
    parameters = [*own, *options.values()]
    _run.__annotations__ = {item.name: item.annotation for item in parameters}
    _run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return _run


def endpoints_of(directory: Path) -> dict[str, str]:
    """The addresses a broker wrote into its data directory, by listener; empty if none ever ran there.

    Raises Failure when the file makes no sense.
    """
    path = directory / ENDPOINTS_FILE
    try:
        found = json.loads(path.read_text())
        return {name: url for name, url in found.items() if isinstance(url, str) and _has_port(url)}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        raise Failure(
            f"{path} may be read by the broker's own user only",
            "Be that user, or give the address with --endpoint URL.",
        ) from error
    except (ValueError, AttributeError) as error:
        raise Failure(f"{path} makes no sense ({error})", "Restart the broker: it writes the file anew.") from error


def _from_url(url: str) -> dict[str, str]:
    """The address for every listener that might be there; which one it is, the protocol tells."""
    scheme = url.partition("://")[0]
    fitting = {name: url for name, schemes in SCHEMES.items() if scheme in schemes and _has_port(url)}
    if not fitting:
        known = ", ".join(dict.fromkeys(f"{scheme}://" for pair in SCHEMES.values() for scheme in pair))
        raise typer.BadParameter(
            f"{url!r} is no address of a broker; write scheme://host:port with one of {known}", param_hint="--endpoint"
        )
    return fitting


def _has_port(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.port)
    except ValueError:
        return False
