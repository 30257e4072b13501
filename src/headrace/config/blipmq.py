"""The flat configuration of the original BlipMQ daemon, its file and its environment, read as ours.

bind_addr, port              listen.blipmq
metrics_addr, metrics_port   listen.http
wal_path                     data_dir, without a `.wal` suffix: theirs is one file, ours a directory
fsync_policy                 log.sync
max_retries                  retry.max_attempts: both count deliveries, the first one included
retry_backoff_ms             retry.backoff_ms
allowed_api_keys             auth.api_keys
tls_cert_path, tls_key_path  tls.cert, tls.key
enable_tokio_console         nothing: there is no such console here

Its retry timer is the backoff alone, so a configuration in its style means `retry.ack_wait_ms = 0` unless that is set.

Its environment goes before its file. Its document prints the bare names (`PORT`), its program reads them behind a
prefix (`BLIPMQ_PORT`): the second is unmistakable and counts everywhere, the first only beside a file in its style.
"""

from collections.abc import Mapping
from typing import TypeVar

from headrace.config.address import Address
from headrace.config.build import Text
from headrace.config.errors import ConfigError, KeyPath, dotted

_T = TypeVar("_T", str, int)

_RENAMED: dict[str, KeyPath] = {
    "fsync_policy": ("log", "sync"),
    "max_retries": ("retry", "max_attempts"),
    "retry_backoff_ms": ("retry", "backoff_ms"),
    "allowed_api_keys": ("auth", "api_keys"),
    "tls_cert_path": ("tls", "cert"),
    "tls_key_path": ("tls", "key"),
}
_ADDRESSES = {
    "blipmq": ("bind_addr", "port", Address("127.0.0.1", 5555)),
    "http": ("metrics_addr", "metrics_port", Address("127.0.0.1", 9100)),
}
_IGNORED = "enable_tokio_console"

_PREFIX = "BLIPMQ_"
_LITERAL_TIMER: KeyPath = ("retry", "ack_wait_ms")

CONFIG_VARIABLE = f"{_PREFIX}CONFIG"
"""Names the file where nobody else does."""

FLAT_KEYS = frozenset({*_RENAMED, *(key for pair in _ADDRESSES.values() for key in pair[:2]), "wal_path", _IGNORED})


def is_flat(raw: Mapping[str, object]) -> bool:
    """Whether the file is written in BlipMQ's style: at least one of its keys at the top."""
    return not FLAT_KEYS.isdisjoint(raw)


def flat_environment(environ: Mapping[str, str], *, bare: bool) -> dict[str, tuple[str, str]]:
    """For each of BlipMQ's keys that the environment sets, the variable's name and text; `bare` names count last."""
    found = {}
    for key in sorted(FLAT_KEYS):
        names = (_PREFIX + key.upper(), key.upper()) if bare else (_PREFIX + key.upper(),)
        for name in names:
            if name in environ:
                found[key] = (name, environ[name])
                break
    return found


def from_flat(raw: Mapping[str, object]) -> tuple[dict[KeyPath, object], dict[KeyPath, str]]:
    """Our settings for BlipMQ's keys, and for each of ours the key it came from; other keys are left out.

    Raises ConfigError for a value that cannot be carried over.
    """
    values: dict[KeyPath, object] = {}
    origins: dict[KeyPath, str] = {}
    for theirs, ours in _RENAMED.items():
        if raw.get(theirs) is not None:
            values[ours] = raw[theirs]
            origins[ours] = theirs
    for listener, (host_key, port_key, default) in _ADDRESSES.items():
        if host_key in raw or port_key in raw:
            host = _typed(raw, host_key, str, default.host)
            port = _typed(raw, port_key, int, default.port)
            values["listen", listener] = str(Address(host, port))
            origins["listen", listener] = host_key if host_key in raw else port_key
    if "wal_path" in raw:
        values["data_dir",] = _typed(raw, "wal_path", str, "").removesuffix(".wal")
        origins["data_dir",] = "wal_path"
    if not _holds(raw, _LITERAL_TIMER):
        values[_LITERAL_TIMER] = 0
    for ours, theirs in origins.items():
        if _holds(raw, ours):
            raise ConfigError(theirs, f"says the same as {dotted(ours)}; keep one of them")
    return values, origins


def _typed(raw: Mapping[str, object], key: str, kind: type[_T], default: _T) -> _T:
    value = raw.get(key, default)
    if kind is int and isinstance(value, Text) and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(key, f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _holds(raw: object, path: KeyPath) -> bool:
    for part in path:
        if not isinstance(raw, Mapping) or part not in raw:
            return False
        raw = raw[part]
    return True
