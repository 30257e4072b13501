"""Errors as the caller of a Flight call sees them: a status, one line of text, and our code with its details as JSON.

Arrow's own clients read Arrow's status from the trailing metadata, others the status of gRPC.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.feed.selection import OffsetsGone
from headrace.feed.ticket import BadTicket
from headrace.feed.wire import BadMessage
from headrace.http2 import GrpcError, Status
from headrace.model.errors import BrokerError, Code, StorageError
from headrace.model.parts import MalformedPart

DATA_LOSS = "data_loss"
INTERNAL = "internal"

_KINDS = {
    Code.UNAUTHENTICATED.value: (Status.UNAUTHENTICATED, b"Unauthenticated"),
    Code.FORBIDDEN.value: (Status.PERMISSION_DENIED, b"Unauthorized"),
    Code.DRAINING.value: (Status.UNAVAILABLE, b"Unavailable"),
}
_FAILED = (Status.UNKNOWN, b"Failed")
"""With another status than UNKNOWN Arrow's clients raise another error than they always did."""

_ARROW_IO_ERROR = "5"

log = logging.getLogger("headrace.feed")


@contextmanager
def told() -> Iterator[None]:
    """Turn whatever is raised inside into what the caller is told."""
    try:
        yield
    except GrpcError:
        raise
    except OffsetsGone as error:
        raise refusal(DATA_LOSS, str(error), first=error.first, count=error.count) from None
    except BrokerError as error:
        raise refusal(error.code.value, error.detail) from None
    except (BadTicket, BadMessage) as error:
        raise refusal(Code.INVALID.value, str(error)) from None
    except (StorageError, MalformedPart) as error:
        log.error("feed.storage", extra={"cause": str(error)})
        raise refusal(Code.STORAGE.value, str(error)) from None
    except Exception:
        log.exception("feed.failed")
        raise refusal(INTERNAL, "internal error; the log of the feed has the details") from None


def refusal(code: str, detail: str, **more: int) -> GrpcError:
    """The status of a call that is refused."""
    said = json.dumps({"code": code, "detail": detail, **more}).encode()
    status, kind = _KINDS.get(code, _FAILED)
    trailing: dict[str, str | bytes] = {
        "grpc-status-details-bin": said,
        "x-arrow-status": _ARROW_IO_ERROR,
        "x-arrow-status-message-bin": detail.encode(errors="replace"),
        "x-arrow-status-detail-bin": kind,
    }
    return GrpcError(status, detail, trailing)
