"""What an operator may choose about Fujin, and what a peer may cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headrace.model.errors import BrokerError
from headrace.model.names import check_topic


class Dialect(Enum):
    """Where the document and the client that already exists differ, whose word counts."""

    DOCUMENT = "document"
    REFERENCE = "reference"


class WriteHeaders(Enum):
    """Whether a WRITE carries headers: told by its first one on each stream, by all, or by none."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class FujinSettings:
    """How sessions read and answer. `routes` gives topics further names.

    Left open, `write_headers` follows the dialect: the client that exists never writes headers. `form` is what counts.

    Raises ValueError, beginning with the setting's name, for a route that can be none.
    """

    dialect: Dialect = Dialect.DOCUMENT
    write_headers: WriteHeaders | None = None
    fetch_wait_ms: int = 500
    push_window: int = 4096
    message_size_max: int = 16 << 20
    headers_size_max: int = 64 << 10
    transaction_size_max: int = 16 << 20
    routes: Mapping[str, str] = field(default_factory=dict)
    form: WriteHeaders = field(init=False, repr=False)
    names: dict[bytes, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            named = {check_topic(route).encode(): check_topic(topic) for route, topic in self.routes.items()}
        except BrokerError as error:
            raise ValueError(f"routes: {error.detail}") from None
        object.__setattr__(self, "names", named)
        by_dialect = WriteHeaders.NEVER if self.dialect is Dialect.REFERENCE else WriteHeaders.AUTO
        object.__setattr__(self, "form", self.write_headers or by_dialect)
