"""Which broker a command talks to, and with which credentials: the options such commands share and what they mean."""

import inspect
import json
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
ENDPOINTS_FILE = "endpoints.json"
PANEL = "Which broker"
SCHEMES = {"blipmq": ("tcp", "tls"), "http": ("http", "https")}
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
        help="Its address: tcp:// or tls:// for messages, http:// or https:// for the rest.",
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
    """A broker's addresses by listener name, where they were learnt, and the credentials to show."""

    endpoints: dict[str, str]
    source: str
    key: str = field(repr=False)
    ca: Path | None = None
    cert: Path | None = None

    def address(self, name: str) -> tuple[str, int]:
        """Host and port of one listener.

        Raises Failure when this broker has no such listener.
        """
        url = self.endpoints.get(name)
        if not url:
            known = ", ".join(f"{k} at {v}" for k, v in self.endpoints.items()) or "none"
            raise Failure(
                f"this needs the broker's {name} listener; {self.source} names none (known: {known})",
                f"Give its address with --endpoint {SCHEMES[name][0]}://host:port, or switch it on under [listen].",
            )
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def tls(self, name: str) -> ssl.SSLContext | None:
        """The TLS context for one listener; None where it speaks plain text."""
        if urlsplit(self.endpoints[name]).scheme != SCHEMES[name][1]:
            return None
        from headrace.server.tls import client_context

        return client_context(self.ca or "", cert=self.cert or "")

    def unreachable(self, name: str, error: OSError) -> Failure:
        """The failure to report when nobody answers at a listener's address."""
        url = self.endpoints[name]
        if isinstance(error, ssl.SSLError):
            return Failure(
                f"TLS with {url} failed: {error.reason or error}",
                "Name the authority with --ca FILE, and with --cert FILE our own certificate if it asks for one.",
            )
        return Failure(
            f"no broker answers at {url} ({error.strerror or error}); the address is from {self.source}", START_ONE
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
    if endpoint is not None:
        return Target(endpoints=_from_url(endpoint), source="--endpoint", key=key, ca=ca, cert=cert)
    listen: dict[str, str] = {}
    if config is not None:
        from headrace.cli.settings import load_config

        settings = load_config(config, data_dir=data_dir)
        data_dir = Path(settings.data_dir)
        addresses = settings.listen.addresses()
        secure = bool(settings.tls.cert)
        listen = {name: f"{pair[secure]}://{addresses[name]}" for name, pair in SCHEMES.items() if name in addresses}
    directory = data_dir or DEFAULT_DATA_DIR
    written = endpoints_of(directory)
    if written:
        return Target(endpoints=written, source=str(directory / ENDPOINTS_FILE), key=key, ca=ca, cert=cert)
    if listen:
        return Target(endpoints=listen, source=str(config), key=key, ca=ca, cert=cert)
    raise Failure(f"no broker has run in {directory}: there is no {directory / ENDPOINTS_FILE}", START_ONE)


def talks_to_broker(command: Callable[..., None]) -> Callable[..., None]:
    """The command with find_broker's options added to its own; its argument `target` is the broker they name."""
    options = inspect.signature(find_broker).parameters
    own = [item for item in inspect.signature(command).parameters.values() if item.name != "target"]

    def _run(**given: object) -> None:
        chosen = {name: given.pop(name) for name in options}
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
    except (ValueError, AttributeError) as error:
        raise Failure(f"{path} makes no sense ({error})", "Restart the broker: it writes the file anew.") from error


def _from_url(url: str) -> dict[str, str]:
    for name, schemes in SCHEMES.items():
        if url.startswith(tuple(f"{scheme}://" for scheme in schemes)) and _has_port(url):
            return {name: url}
    raise typer.BadParameter(
        f"{url!r} is no address of a broker; write tcp://host:port or http://host:port", param_hint="--endpoint"
    )


def _has_port(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.port)
    except ValueError:
        return False
