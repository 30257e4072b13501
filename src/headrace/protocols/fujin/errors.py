"""Our reasons for refusing a request, as the texts of Fujin's error strings. It has no error codes."""

from headrace.model.errors import BrokerError, Code

BARE_TEXTS = {
    Code.INVALID: "invalid request",
    Code.UNAUTHENTICATED: "unauthenticated",
    Code.FORBIDDEN: "not allowed",
    Code.UNKNOWN: "unknown",
    Code.VERSION: "unsupported version",
    Code.LIMIT: "limit exceeded",
    Code.STORAGE: "storage failed",
    Code.DRAINING: "the broker is about to stop",
}
"""What is said when a refusal has no detail: an error string is never empty."""

INVALID_TX_STATE = "invalid tx state"
NOT_HELD = "message is not held by this reader"
NO_MESSAGES = "no messages"


def text_of(error: BrokerError) -> str:
    """The error string that reports an error."""
    return error.detail or BARE_TEXTS[error.code]
