"""Who is calling: API keys in the headers of Flight calls and client certificates, judged before anything else is read.

`authorization: Bearer <key>` on each call, or `Basic <user:key>` once, in a handshake, whose answer is the header to
send from then on. Where client certificates are asked for, one that nobody named gets nowhere, whatever key comes with
it; without a key the certificate says who calls. What an identity may do is for others to ask.
"""

import base64
import binascii
from typing import NamedTuple

from headrace.auth import ANONYMOUS, Identity, Keyring
from headrace.model.errors import BrokerError, Code

HEADER = "authorization"
_BEARER, _BASIC = "bearer", "basic"


class Caller(NamedTuple):
    """Whoever makes a call, and the name in the certificate that was shown; None where none is asked for."""

    identity: Identity
    certificate: str | None = None


class Access:
    """Lets calls with a known key in. The keyring may be replaced while calls go on."""

    def __init__(self, keyring: Keyring, *, allow_unauthenticated: bool, certified: bool = False) -> None:
        """`certified`: client certificates are asked for."""
        self.keyring = keyring
        self._allow_unauthenticated = allow_unauthenticated
        self._certified = certified

    def identify(self, header: str | None, certificate: str | None) -> Caller:
        """Whoever makes a call with this `authorization` header. Raises BrokerError(UNAUTHENTICATED)."""
        named = None
        if self._certified:
            named = self.keyring.certified(certificate) if certificate else None
            if named is None:
                raise BrokerError(Code.UNAUTHENTICATED, "the client certificate is named in no entry of auth")
        shown = certificate if self._certified else None
        if header:
            key = key_in(header)
            identity = self.keyring.check(key) if key else None
            if identity is None:
                raise BrokerError(Code.UNAUTHENTICATED, "the API key is not known here")
            return Caller(identity, shown)
        if named is not None:
            return Caller(named, shown)
        if not self._allow_unauthenticated:
            raise BrokerError(Code.UNAUTHENTICATED, "an API key is needed: authorization: Bearer <key>")
        return Caller(ANONYMOUS)

    def still_admits(self, caller: Caller) -> bool:
        """Whether somebody who came in before would be let in now, with nothing less than he got then."""
        if caller.certificate is not None and self.keyring.certified(caller.certificate) is None:
            return False
        return self.keyring.admits(caller.identity)


def key_in(header: str) -> bytes | None:
    """The key in the value of an authorization header."""
    scheme, _, rest = header.partition(" ")
    rest = rest.strip()
    if scheme.lower() == _BEARER:
        return rest.encode()
    if scheme.lower() == _BASIC:
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return None
    return None


def bearer(header: str) -> str:
    """The header to send from now on instead of this one, which was good."""
    key = key_in(header)
    return f"Bearer {key.decode()}" if key else header
