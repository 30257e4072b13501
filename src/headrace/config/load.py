"""Reads a configuration: the file first, the environment over it, the command line over both.

The only place that opens a configuration file. What the keys mean is in `sections`.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import msgspec

from headrace.config.blipmq import CONFIG_VARIABLE, FLAT_KEYS, flat_environment, from_flat, is_flat
from headrace.config.build import Text, build
from headrace.config.errors import ConfigError, KeyPath, dotted, suggestion
from headrace.config.sections import AuthSection, Config, KeyEntry, Section, TopicSection

ENVIRONMENT_PREFIX = "HEADRACE_"
DEV_KEY = "dev-key"
FILE_SIZE_MAX = 1 << 20

_YAML_SUFFIXES = {".yaml", ".yml"}
_TOP_LEVEL = "HEADRACE_DATA_DIR"
_NO_SETTINGS = frozenset({"HEADRACE_KEY", "HEADRACE_CA", "HEADRACE_CERT", "HEADRACE_PURE", "HEADRACE_FLIGHT"})
"""What clients, examples and the choice of kernels read."""

_NEAR = 0.8
_ORCHESTRATED = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""What Kubernetes makes up for a service whose name begins with ours."""


def load(
    path: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """The configuration of a file, an environment and command line flags, the later winning over the earlier.

    `overrides` is keyed by dotted path, or by section with a mapping of keys. Relative paths are relative to the
    working directory, wherever they are written. Without a path the environment of the original BlipMQ daemon may
    name one.
    Raises ConfigError.
    """
    environ = environ or {}
    path = path or environ.get(CONFIG_VARIABLE)
    raw = _read(Path(path)) if path else {}
    sources: dict[KeyPath, str] = {}
    tree = _unflatten(raw, environ, sources, str(path or ""))
    for key, (name, text) in _from_environment(environ).items():
        _put(tree, key, Text(text))
        sources[key] = _variable(name)
    for key, value in _flat(overrides or {}):
        _put(tree, key, value)
        sources[key] = "command line"
    try:
        return build(Config, tree)
    except ConfigError as error:
        raise ConfigError(error.key, error.detail, source=_source(error.key, sources, path)) from None


def dev(config: Config, data_dir: Path | str | None = None) -> Config:
    """The same configuration for trying things out: loopback only, the key `dev-key`, callers without a key let in.

    Raises ConfigError when a listener would be reachable from other machines.
    """
    for name, address in config.listen.addresses().items():
        if not address.is_loopback:
            raise ConfigError(f"listen.{name}", f"--dev listens on loopback only, not on {address}")
    keys = (*config.auth.api_keys, KeyEntry(name="dev", key=DEV_KEY))
    replace = msgspec.structs.replace
    return replace(
        config,
        data_dir=str(data_dir) if data_dir is not None else config.data_dir,
        auth=AuthSection(api_keys=keys, certificates=config.auth.certificates),
        http=replace(config.http, allow_unauthenticated=True),
        flight=replace(config.flight, allow_unauthenticated=True),
        grpcq=replace(config.grpcq, allow_unauthenticated=True),
        sspq=replace(config.sspq, allow_unauthenticated=True),
        fujin=replace(config.fujin, allow_unauthenticated=True),
    )


def environment_name(path: KeyPath) -> str:
    """The environment variable that sets this key."""
    return ENVIRONMENT_PREFIX + "__".join(part.upper() for part in path)


def known_keys() -> list[KeyPath]:
    """Every key a user may set, those of a topic under the name `*`."""
    keys: list[KeyPath] = []
    for field in msgspec.structs.fields(Config):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            keys += [(field.name, inner.name) for inner in msgspec.structs.fields(field.type)]
        elif field.name == "topics":
            keys += [("topics", "*", inner.name) for inner in msgspec.structs.fields(TopicSection)]
        else:
            keys.append((field.name,))
    return keys


def _read(path: Path) -> dict[str, object]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError("", f"cannot read it: {error.strerror}", source=str(path)) from None
    if len(data) > FILE_SIZE_MAX:
        raise ConfigError("", f"larger than {FILE_SIZE_MAX} bytes", source=str(path))
    try:
        text = data.decode()
        raw = _yaml(text) if path.suffix.lower() in _YAML_SUFFIXES else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError("", " ".join(str(error).split()), source=str(path)) from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError("", "expected a table of sections at the top", source=str(path))
    return raw


def _yaml(text: str) -> object:
    """What a YAML document says. Raises ValueError."""
    import yaml  # slow to load, and most have no file or a TOML file

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _unflatten(
    raw: dict[str, object], environ: Mapping[str, str], sources: dict[KeyPath, str], path: str
) -> dict[str, object]:
    """The tree with BlipMQ's flat keys, of the file and over them of the environment, moved to their places in ours."""
    flat = is_flat(raw)
    variables = flat_environment(environ, bare=flat)
    if variables and raw and not flat:
        name = next(iter(variables.values()))[0]
        detail = f"sets nothing, because {path} is not in BlipMQ's style; use our own name for it"
        raise ConfigError("", detail, source=_variable(name))
    if not variables and not flat:
        return raw

    def source(key: str) -> str:
        """Where BlipMQ's key was set."""
        return _variable(variables[key][0]) if key in variables else path

    try:
        values, origins = from_flat(raw | {key: Text(text) for key, (_, text) in variables.items()})
    except ConfigError as error:
        raise ConfigError(error.key, error.detail, source=source(error.key)) from None
    tree = {key: value for key, value in raw.items() if key not in FLAT_KEYS}
    for key, value in values.items():
        _put(tree, key, value)
        if key in origins:
            sources[key] = source(origins[key]) if origins[key] in variables else f"{path}: {origins[key]}"
    return tree


def _from_environment(environ: Mapping[str, str]) -> dict[KeyPath, tuple[str, str]]:
    """Variables that set keys, by key; sections and keys in any case, a topic's name exactly as it is."""
    known = {environment_name(key): key for key in known_keys()}
    found: dict[KeyPath, tuple[str, str]] = {}
    for name, text in environ.items():
        if not name.upper().startswith(ENVIRONMENT_PREFIX):
            continue
        if "__" not in name and name.upper() != _TOP_LEVEL:
            _check_meant(name, known)
            continue
        key = known.get(name.upper()) or _topic_key(name)
        if key is None:
            raise ConfigError("", f"sets nothing; {suggestion(name, known)}", source=_variable(name))
        found[key] = (name, text)
    return found


def _check_meant(name: str, known: Iterable[str]) -> None:
    """Let a variable pass that is none of our settings, unless it was surely meant to be one. Raises ConfigError."""
    if name.upper() in _NO_SETTINGS or _ORCHESTRATED.fullmatch(name.upper()):
        return
    squeezed = {right.replace("__", "_").removeprefix(ENVIRONMENT_PREFIX): right for right in known}
    near = get_close_matches(name.upper().removeprefix(ENVIRONMENT_PREFIX), squeezed, n=1, cutoff=_NEAR)
    if near:
        raise ConfigError("", f"sets nothing; did you mean {squeezed[near[0]]}?", source=_variable(name))


def _variable(name: str) -> str:
    return f"environment variable {name}"


def _topic_key(name: str) -> KeyPath | None:
    section, _, rest = name.partition("__")
    topic, _, key = rest.rpartition("__")
    fields = {field.name for field in msgspec.structs.fields(TopicSection)}
    if section.upper() != "HEADRACE_TOPICS" or not topic or key.lower() not in fields:
        return None
    return ("topics", topic, key.lower())


def _flat(values: Mapping[str, object], above: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Nested mappings as paths; dots separate parts at the top, where no topic can stand."""
    for name, value in values.items():
        path = (*above, name) if above else tuple(name.split("."))
        if isinstance(value, Mapping) and value:
            yield from _flat(value, path)
        else:
            yield path, value


def _put(tree: dict[str, object], path: KeyPath, value: object) -> None:
    """Sets a value in the tree, making the tables on the way; something else in a table's place is left to `build`."""
    node: dict[str, object] = tree
    for part in path[:-1]:
        inner = node.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        node = inner
    node[path[-1]] = value


def _source(key: str, sources: Mapping[KeyPath, str], path: Path | str | None) -> str:
    """Where the key, or something inside or around it, was set."""
    for known, source in sources.items():
        name = dotted(known)
        if key == name or key.startswith((f"{name}.", f"{name}[")):
            return source
    return str(path) if path is not None else ""
