"""The three ways things go wrong: a refused request, a peer that broke its protocol, a damaged record."""

from enum import Enum


class Code(Enum):
    """Why a request was refused; each protocol has one table from these to its own codes."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    UNKNOWN = "unknown"
    VERSION = "version"
    LIMIT = "limit"
    STORAGE = "storage"
    DRAINING = "draining"


class HeadraceError(Exception):
    """Root of everything headrace raises on purpose."""


class BrokerError(HeadraceError):
    """A refused request; the session that sent it lives on."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class OverQuota(BrokerError):
    """A request that would be fine from somebody who has less, or did less in the last moment."""

    def __init__(self, detail: str) -> None:
        super().__init__(Code.LIMIT, detail)


class PeerProtocolError(HeadraceError):
    """The peer sent bytes its protocol forbids; the connection is closed."""


class CorruptRecord(HeadraceError):
    """Bytes in the log that fail their checks: damage, with the place where it begins."""

    def __init__(self, path: str, position: int, detail: str) -> None:
        super().__init__(f"{path} at byte {position}: {detail}")
        self.path = path
        self.position = position
        self.detail = detail


class StorageError(HeadraceError):
    """The disk refused a write or a sync; nothing of it was acknowledged."""
