"""Finds the scribe where it was built."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.log.scribe import Scribe


def new_scribe() -> "Scribe | None":
    """A scribe; None where none was built, or with HEADRACE_PURE=1."""
    if os.environ.get("HEADRACE_PURE") == "1":
        return None
    try:
        from headrace.log.scribe import Scribe
    except ImportError:
        return None
    return Scribe()
