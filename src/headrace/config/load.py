"""Reads a configuration: the file first, the environment over it, the command line over both.

The only place that opens a configuration file. What the keys mean is in `sections`.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from headrace.config.blipmq import FLAT_KEYS, from_flat, is_flat
from headrace.config.build import Text, build
from headrace.config.errors import ConfigError, KeyPath, dotted, suggestion
from headrace.config.sections import AuthSection, Config, KeyEntry, Section, TopicSection

ENVIRONMENT_PREFIX = "HEADRACE_"
DEV_KEY = "dev-key"
FILE_SIZE_MAX = 1 << 20

_YAML_SUFFIXES = {".yaml", ".yml"}
_TOP_LEVEL = "HEADRACE_DATA_DIR"


def load(
    path: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """The configuration of a file, an environment and command line flags, the later winning over the earlier.

    `overrides` is keyed by dotted path, or by section with a mapping of keys. Relative paths are relative to the
    working directory, wherever they are written.
    Raises ConfigError.
    """
    tree: dict[str, object] = {}
    sources: dict[KeyPath, str] = {}
    if path is not None:
        tree = _read(Path(path))
        try:
            tree = _unflatten(tree, sources, str(path))
        except ConfigError as error:
            raise ConfigError(error.key, error.detail, source=str(path)) from None
    for key, (name, text) in _from_environment(environ or {}).items():
        _put(tree, key, Text(text))
        sources[key] = f"environment variable {name}"
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


def _unflatten(raw: dict[str, object], sources: dict[KeyPath, str], path: str) -> dict[str, object]:
    """The tree with BlipMQ's flat keys, if there are any, moved to their places in ours."""
    if not is_flat(raw):
        return raw
    values, origins = from_flat(raw)
    tree = {key: value for key, value in raw.items() if key not in FLAT_KEYS}
    for key, value in values.items():
        _put(tree, key, value)
        sources[key] = f"{path}: {origins[key]}"
    return tree


def _from_environment(environ: Mapping[str, str]) -> dict[KeyPath, tuple[str, str]]:
    """Variables that set keys, by key; sections and keys in any case, a topic's name exactly as it is."""
    known = {environment_name(key): key for key in known_keys()}
    found: dict[KeyPath, tuple[str, str]] = {}
    for name, text in environ.items():
        if not name.upper().startswith(ENVIRONMENT_PREFIX) or ("__" not in name and name.upper() != _TOP_LEVEL):
            continue
        key = known.get(name.upper()) or _topic_key(name)
        if key is None:
            raise ConfigError("", f"sets nothing; {suggestion(name, known)}", source=f"environment variable {name}")
        found[key] = (name, text)
    return found


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
