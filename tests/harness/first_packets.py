"""QUIC's first packets made by hand, so that a test can say in them whatever it wants (RFC 9000, 17.2; RFC 9001, 5)."""

import os
import socket
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from qh3.quic.crypto import derive_key_iv_hp
from qh3.tls import CipherSuite

from headrace.quic.connection import initial_secrets
from headrace.quic.headers import hello

SIZE = 1200
RETRY, INITIAL = 0xF0, 0xC0


def number(value: int) -> bytes:
    """A variable-length integer (RFC 9000, 16)."""
    for width, mark in ((1, 0), (2, 1), (4, 2), (8, 3)):
        if value < 1 << (8 * width - 2):
            return (value | mark << (8 * width - 2)).to_bytes(width, "big")
    raise ValueError(value)


def crypto(offset: int, data: bytes) -> bytes:
    """A CRYPTO frame."""
    return b"\x06" + number(offset) + number(len(data)) + data


@dataclass
class Stranger:
    """A client that never gets beyond its first packets; `destination` and `source` are the ids it chose."""

    destination: bytes = field(default_factory=lambda: os.urandom(8))
    source: bytes = b""
    token: bytes = b""
    sent: int = 0

    def packet(self, frames: bytes, size: int = SIZE) -> bytes:
        """An Initial with these frames, padded to a datagram of this size at least."""
        head = bytes([INITIAL | 3]) + b"\0\0\0\1" + bytes([len(self.destination)]) + self.destination
        head += bytes([len(self.source)]) + self.source + number(len(self.token)) + self.token
        frames = frames.ljust(max(size - len(head) - 2 - 4 - 16, 4), b"\0")
        head += (0x4000 | (4 + len(frames) + 16)).to_bytes(2, "big") + self.sent.to_bytes(4, "big")
        secret = initial_secrets(self.destination)[0]
        key, iv, mask_key = derive_key_iv_hp(cipher_suite=CipherSuite.AES_128_GCM_SHA256, secret=secret, version=1)
        nonce = (int.from_bytes(iv, "big") ^ self.sent).to_bytes(12, "big")
        sealed = AESGCM(key).encrypt(nonce, frames, head)
        mask = Cipher(algorithms.AES(mask_key), modes.ECB()).encryptor().update(sealed[:16])
        self.sent += 1
        masked = bytes(a ^ b for a, b in zip(head[-4:], mask[1:5], strict=True))
        return bytes([head[0] ^ mask[0] & 0x0F]) + head[1:-4] + masked + sealed

    def take(self, answer: bytes) -> bool:
        """Go on with the id and the token of a Retry; whether it was one."""
        head = hello(answer)
        if head is None or answer[0] & 0xF0 != RETRY:
            return False
        at = 7 + len(head.destination) + len(head.source)
        self.destination, self.token = head.source, answer[at:-16]
        return True

    def prove(self, sock: socket.socket, frames: bytes) -> bool:
        """Send these frames until a Retry comes; whether one came before the socket's own patience ended."""
        for _ in range(20):
            sock.send(self.packet(frames))
            try:
                if self.take(sock.recv(2048)):
                    return True
            except TimeoutError:
                return False
        return False
