"""Errors as the caller of a Flight call sees them: one line of text, and our code with its details as JSON."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import flight

from headrace.feed.selection import OffsetsGone
from headrace.feed.ticket import BadTicket
from headrace.model.errors import BrokerError, Code, StorageError
from headrace.model.parts import MalformedPart

DATA_LOSS = "data_loss"
INTERNAL = "internal"

_KINDS: dict[str, type[flight.FlightError]] = {
    Code.UNAUTHENTICATED.value: flight.FlightUnauthenticatedError,
    Code.FORBIDDEN.value: flight.FlightUnauthorizedError,
    Code.DRAINING.value: flight.FlightUnavailableError,
}

log = logging.getLogger("headrace.feed")


@contextmanager
def told() -> Iterator[None]:
    """Turn whatever is raised inside into what the caller is told."""
    try:
        yield
    except flight.FlightError:
        raise
    except OffsetsGone as error:
        raise _refusal(DATA_LOSS, str(error), first=error.first, count=error.count) from None
    except BrokerError as error:
        raise _refusal(error.code.value, error.detail) from None
    except BadTicket as error:
        raise _refusal(Code.INVALID.value, str(error)) from None
    except (StorageError, MalformedPart) as error:
        log.error("feed.storage", extra={"cause": str(error)})
        raise _refusal(Code.STORAGE.value, str(error)) from None
    except Exception:
        log.exception("feed.failed")
        raise _refusal(INTERNAL, "internal error; the log of the feed has the details") from None


def _refusal(code: str, detail: str, **more: int) -> flight.FlightError:
    kind = _KINDS.get(code, flight.FlightServerError)
    said = json.dumps({"code": code, "detail": detail, **more}).encode()
    refusal: flight.FlightError = kind(detail, extra_info=said)  # type: ignore[call-arg]  # wrong in the stubs
    return refusal
