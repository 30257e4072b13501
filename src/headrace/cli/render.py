"""Values as people read them: times, sizes, rates, message bytes. Knows nothing of where they are printed."""

import base64
import binascii
from datetime import datetime

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def when(timestamp_us: int | None) -> str:
    """Microseconds of wall time as local date and time, to the millisecond."""
    if timestamp_us is None:
        return "-"
    return datetime.fromtimestamp(timestamp_us / 1e6).isoformat(sep=" ", timespec="milliseconds")


def number(value: float) -> str:
    """A count with thousands set apart."""
    return f"{round(value):,}"


def size(count: float) -> str:
    """Bytes in the largest unit that leaves at least one."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("UNITS is not empty")


def duration(seconds: float) -> str:
    """A span of time in the unit that suits it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"


def rate(count: int, seconds: float) -> str:
    """Messages a second."""
    return f"{number(count / seconds)} msgs/s" if seconds > 0 else "- msgs/s"


def throughput(count: int, count_bytes: int, seconds: float) -> str:
    """Messages and bytes a second, as load tests print them."""
    if seconds <= 0:
        return rate(count, seconds)
    return f"{rate(count, seconds)} ~ {size(count_bytes / seconds)}/s"


def safe(text: str) -> str:
    """The text with everything a terminal could take for a command spelt out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def clipped(text: str, width: int) -> str:
    """At most `width` characters, the last one an ellipsis if something is missing."""
    return text if len(text) <= width else text[: width - 1] + "…"


def payload(value: bytes) -> str:
    """Message bytes for a terminal: text if they are UTF-8, else hexadecimal."""
    try:
        return safe(value.decode())
    except UnicodeDecodeError:
        return "0x" + value.hex()


def unwrapped(text: str | None, encoded: str) -> bytes:
    """The bytes of a message as the API sends them: `text` if they are UTF-8, base64 always."""
    if text is not None:
        return text.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return encoded.encode()


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` of an ordered, non-empty list lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
