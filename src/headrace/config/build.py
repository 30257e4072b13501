"""Turns a tree of raw values into settings classes, and says exactly which value does not fit.

Knows the classes by their fields alone; nothing of files or the environment.
"""

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from headrace.config.address import Address, parse_address
from headrace.config.errors import BadValue, ConfigError, KeyPath, dotted, suggestion
from headrace.config.sections import CertificateEntry, KeyEntry, Section

S = TypeVar("S", bound=Section)


class Text(str):
    """A value that is text only because its source knows nothing else: an environment variable."""

    __slots__ = ()


def build(kind: type[S], raw: object, path: KeyPath = ()) -> S:
    """An instance of the section `kind` from raw values.

    Raises ConfigError naming the key for unknown keys, wrong types and impossible values.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(dotted(path), f"expected a table, got {_type_name(raw)}")
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values = {}
    for key, value in raw.items():
        if key not in fields:
            known = [dotted((*path, name)) for name in fields]
            wrong = dotted((*path, str(key)))
            raise ConfigError(wrong, f"unknown key; {suggestion(wrong, known)}")
        values[key] = _convert(fields[key], value, (*path, key))
    try:
        return kind(**values)
    except BadValue as error:
        raise ConfigError(dotted((*path, error.key)), str(error)) from None


def _convert(hint: Any, value: object, path: KeyPath) -> object:
    """The value as the field's type wants it."""
    if isinstance(hint, type) and issubclass(hint, Section):
        return build(hint, value, path)
    if get_origin(hint) is dict:
        kind = get_args(hint)[1]
        return _texts(value, path) if kind is str else _tables(kind, value, path)
    if Address in get_args(hint):
        return _address(value, path)
    if KeyEntry in get_args(get_args(hint)[0] if get_origin(hint) is tuple else hint):
        return _keys(value, path)
    if CertificateEntry in get_args(hint):
        return _certificates(value, path)
    return _plain(hint, value, path)


def _tables(kind: type[Section], value: object, path: KeyPath) -> dict[str, Section]:
    if not isinstance(value, Mapping):
        raise ConfigError(dotted(path), f"expected tables, got {_type_name(value)}")
    return {str(name): build(kind, table, (*path, str(name))) for name, table in value.items()}


def _texts(value: object, path: KeyPath) -> dict[str, str]:
    """Names with a text each; in an environment variable `name=text` between commas."""
    if isinstance(value, Text):
        pairs = [word.partition("=") for word in value.split(",") if word.strip()]
        value = {name.strip(): text.strip() for name, equals, text in pairs if equals}
        if len(value) != len(pairs):
            raise ConfigError(dotted(path), "expected name=text between commas, each name once")
    try:
        return msgspec.convert(value, dict[str, str])
    except msgspec.ValidationError:
        raise ConfigError(dotted(path), "expected a table of names with a text each") from None


def _address(value: object, path: KeyPath) -> Address | None:
    if not isinstance(value, str):
        raise ConfigError(dotted(path), f'expected "host:port", got {_type_name(value)}')
    try:
        return parse_address(value)
    except ValueError as error:
        raise ConfigError(dotted(path), str(error)) from None


def _keys(value: object, path: KeyPath) -> tuple[str | KeyEntry, ...]:
    """API keys; no message of ours ever repeats one."""
    if isinstance(value, Text):
        value = _items(value, path)
    if not isinstance(value, list | tuple):
        raise ConfigError(dotted(path), f"expected a list, got {_type_name(value)}")
    found: list[str | KeyEntry] = []
    for index, item in enumerate(value):
        if isinstance(item, str) and item:
            found.append(item)
        elif isinstance(item, Mapping):
            found.append(build(KeyEntry, item, (*path, f"[{index}]")))
        else:
            raise ConfigError(dotted((*path, f"[{index}]")), "expected a key, a hash or a table")
    return tuple(found)


def _certificates(value: object, path: KeyPath) -> tuple[CertificateEntry, ...]:
    """Names of certificates, or tables with a name."""
    if isinstance(value, Text):
        value = _items(value, path)
    if not isinstance(value, list | tuple):
        raise ConfigError(dotted(path), f"expected a list, got {_type_name(value)}")
    tables = [{"name": item} if isinstance(item, str) else item for item in value]
    found = []
    for index, table in enumerate(tables):
        place = (*path, f"[{index}]")
        if isinstance(table, Mapping) and "name" not in table:
            raise ConfigError(dotted((*place, "name")), "an entry needs the certificate's common name")
        found.append(build(CertificateEntry, table, place))
    return tuple(found)


def _plain(hint: Any, value: object, path: KeyPath) -> object:
    lenient = isinstance(value, Text)
    if isinstance(value, Text):
        value = _items(value, path) if _is_list(hint) else str(value)
    try:
        return msgspec.convert(value, hint, strict=not lenient)
    except msgspec.ValidationError as error:
        choices = _choices(hint)
        if choices and isinstance(value, str):
            detail = f"{value!r} is none of its values; {suggestion(value, choices)}"
        else:
            detail = str(error).replace("`", "").replace("Expected", "expected", 1)
        raise ConfigError(dotted(path), detail) from None


def _items(text: Text, path: KeyPath) -> list[object]:
    """A list in an environment variable: JSON in brackets, else words between commas."""
    if not text.lstrip().startswith("["):
        return [word.strip() for word in text.split(",") if word.strip()]
    try:
        found: list[object] = msgspec.json.decode(text.encode(), type=list)
    except msgspec.DecodeError:
        raise ConfigError(dotted(path), "expected a list in JSON or words between commas") from None
    return found


def _is_list(hint: Any) -> bool:
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return any(get_origin(option) is tuple for option in options)


def _choices(hint: Any) -> tuple[str, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _type_name(value: object) -> str:
    names = {dict: "a table", list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(value), "a text" if isinstance(value, str) else type(value).__name__)
