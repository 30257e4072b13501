"""Our reasons for refusing a request, as the numbers and texts of BlipMQ's NACK."""

from headrace.model.errors import BrokerError, Code

NACK_CODES = {
    Code.INVALID: 400,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 401,
    Code.UNKNOWN: 404,
    Code.VERSION: 426,
    Code.LIMIT: 500,
    Code.STORAGE: 500,
    Code.DRAINING: 500,
}

UNKNOWN_TEXT = "unknown subscription or delivery tag"


def nack_of(error: BrokerError) -> tuple[int, str]:
    """The code and message of the NACK that reports an error."""
    return NACK_CODES[error.code], UNKNOWN_TEXT if error.code is Code.UNKNOWN else error.detail
