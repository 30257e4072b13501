"""Tokens that prove a client receives at the address it sends from (RFC 9000, 8.1.2). Nothing is kept between them."""

import hashlib
import hmac
import secrets
from struct import Struct

from headrace.quic.datagrams import Address

TOKEN_AGE_MAX_S = 10.0

_HEAD = Struct(">dBB")
_MAC_SIZE = 16


class RetryTokens:
    """Makes and checks the tokens of one listener; time is an argument."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def make(self, address: Address, original: bytes, retried: bytes, now: float) -> bytes:
        """A token for the client that first sent to the id `original` and is told to use `retried`."""
        body = _HEAD.pack(now, len(original), len(retried)) + original + retried
        return self._mac(address, body) + body

    def check(self, address: Address, token: bytes, now: float) -> tuple[bytes, bytes] | None:
        """The two ids of a token made here for this address not long ago; None for any other."""
        mac, body = token[:_MAC_SIZE], token[_MAC_SIZE:]
        if len(body) < _HEAD.size or not hmac.compare_digest(mac, self._mac(address, body)):
            return None
        made_at, original_size, _ = _HEAD.unpack_from(body)
        if not 0 <= now - made_at <= TOKEN_AGE_MAX_S:
            return None
        ids = body[_HEAD.size :]
        return ids[:original_size], ids[original_size:]

    def _mac(self, address: Address, body: bytes) -> bytes:
        named = f"{address[0]} {address[1]} ".encode() + body
        return hmac.new(self._secret, named, hashlib.sha256).digest()[:_MAC_SIZE]
