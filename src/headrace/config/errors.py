"""What is wrong with a configuration: which key, where it was set, and what was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches

from headrace.model.errors import HeadraceError

KeyPath = tuple[str, ...]


class ConfigError(HeadraceError):
    """A configuration that cannot be used.

    `key` is the dotted path of the offending setting, `source` the file, environment variable or flag it came from.
    """

    def __init__(self, key: str, detail: str, *, source: str = "") -> None:
        place = ": ".join(part for part in (source, key) if part)
        super().__init__(f"{place}: {detail}" if place else detail)
        self.key = key
        self.detail = detail
        self.source = source


class BadValue(ValueError):
    """A value its own section refuses; `key` is its name within the section."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(detail)
        self.key = key


def dotted(path: KeyPath) -> str:
    """A path as the user would write it: parts that are no bare TOML key are quoted."""
    return ".".join(part if _is_bare(part) else f'"{part}"' for part in path).replace(".[", "[")


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the nearest known word, or all of them when none is near."""
    words = {word.lower(): word for word in sorted(known)}
    near = get_close_matches(wrong.lower(), words, n=1, cutoff=0.5)
    return f"did you mean {words[near[0]]}?" if near else f"known: {', '.join(words.values())}"


def _is_bare(part: str) -> bool:
    return part.startswith("[") or (part.isascii() and part.replace("_", "").replace("-", "").isalnum())
