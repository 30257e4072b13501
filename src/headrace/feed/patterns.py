"""Regular expressions that readers send: matched by RE2, in time in proportion to the name, whatever they are.

Python's own would let one reader hold the feed for ever with `(a*)*b`.
"""

from collections.abc import Callable
from functools import lru_cache

from headrace.model.errors import BrokerError, Code

MEMORY_MAX = 256 << 10
PROGRAM_MAX = 2000
"""Steps of a compiled pattern: what one character of a name costs at most."""

KEPT = 64
HINT = "the syntax is RE2's: regular expressions without back references and look-around"


@lru_cache(KEPT)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a whole name matches the pattern, as a function. Raises BrokerError(INVALID).

    RE2 is loaded only here: executors that read near the log have no need of it without a pattern.
    """
    try:
        import re2
    except ModuleNotFoundError:
        raise BrokerError(Code.INVALID, "patterns need google-re2: pip install 'headrace[feed]'") from None
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY_MAX
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        cause = error.args[0] if error.args and isinstance(error, re2.error) else "not Unicode text"
        said = cause.decode(errors="replace") if isinstance(cause, bytes) else cause
        raise BrokerError(Code.INVALID, f"pattern {pattern!r}: {said}; {HINT}") from None
    if compiled.programsize > PROGRAM_MAX:
        raise BrokerError(Code.INVALID, f"pattern {pattern!r}: it is too big; choose topics by a simpler one")
    return lambda name: compiled.fullmatch(name) is not None
