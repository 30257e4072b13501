"""Who is calling: API keys in the headers of Flight calls, checked before anything else is done.

`authorization: Bearer <key>` on each call, or `Basic <user:key>` once, in a handshake, whose answer is the header to
send from then on. Knows keys and headers; what an identity may do is for others to ask.
"""

import base64
import binascii

from pyarrow import flight

from headrace.auth import ANONYMOUS, Identity, Keyring

HEADER = "authorization"
MIDDLEWARE = "access"
_BEARER, _BASIC = "bearer", "basic"


class Access(flight.ServerMiddlewareFactory):
    """Lets calls with a known key in. The keyring may be replaced while calls go on."""

    def __init__(self, keyring: Keyring, *, allow_unauthenticated: bool) -> None:
        self.keyring = keyring
        self._allow_unauthenticated = allow_unauthenticated

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str] | list[bytes]]) -> "Caller":
        """Whoever makes this call. Raises FlightUnauthenticatedError for a key that is wrong or missing."""
        given = next((values for name, values in headers.items() if name.lower() == HEADER), None)
        if not given:
            if self._allow_unauthenticated:
                return Caller(ANONYMOUS, None)
            raise flight.FlightUnauthenticatedError("an API key is needed: authorization: Bearer <key>")
        key = _key(given[0]) if isinstance(given[0], str) else None
        identity = self.keyring.check(key) if key else None
        if identity is None:
            raise flight.FlightUnauthenticatedError("the API key is not known here")
        return Caller(identity, key if info.method == flight.FlightMethod.HANDSHAKE else None)


class Caller(flight.ServerMiddleware):
    """One call's identity; in a handshake also the key to be sent from then on."""

    def __init__(self, identity: Identity, key: bytes | None) -> None:
        self.identity = identity
        self._key = key

    def sending_headers(self) -> dict[str, str]:  # type: ignore[override]  # the stubs want lists; both are taken
        """The header the caller is to send, in the answer to a handshake."""
        return {HEADER: f"Bearer {self._key.decode()}"} if self._key else {}


class Handshake(flight.ServerAuthHandler):
    """Lets handshakes come to an end: the header has been checked before."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """Nothing is left to be said."""

    def is_valid(self, token: bytes) -> str:  # type: ignore[override]  # wrong in the stubs
        """No token of its own: every call is checked by its header."""
        return ""


def identity_of(context: flight.ServerCallContext) -> Identity:
    """Who makes this call."""
    caller = context.get_middleware(MIDDLEWARE)
    assert isinstance(caller, Caller)
    return caller.identity


def _key(header: str) -> bytes | None:
    """The key in the value of an authorization header."""
    scheme, _, rest = header.partition(" ")
    rest = rest.strip()
    if scheme.lower() == _BEARER:
        return rest.encode()
    if scheme.lower() == _BASIC:
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2]
        except binascii.Error:
            return None
    return None
