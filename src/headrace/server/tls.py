"""TLS contexts for listeners and clients.

TLS 1.3 only. Knows files and `ssl`; nothing of protocols.
"""

import ssl
from pathlib import Path

from headrace.config import TlsSection
from headrace.model.errors import HeadraceError


class TlsError(HeadraceError):
    """Certificate files that cannot be used."""


def server_context(tls: TlsSection) -> ssl.SSLContext:
    """The context of a listener; with `client_ca` set every client must show a certificate signed by it.

    Raises TlsError naming the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_chain(context, tls.cert, tls.key)
    if tls.client_ca:
        _load_authority(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    ca: Path | str = "", *, cert: Path | str = "", key: Path | str = "", verify: bool = True
) -> ssl.SSLContext:
    """The context of a client: `ca` instead of the system's authorities, a certificate of its own if the server asks.

    `verify=False` accepts any server and is for trying things out on one machine.
    Raises TlsError naming the file.
    """
    context = ssl.create_default_context() if not ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca:
        _load_authority(context, ca)
    if cert:
        _load_chain(context, cert, key or cert)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_chain(context: ssl.SSLContext, cert: Path | str, key: Path | str) -> None:
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except FileNotFoundError:
        missing = next((path for path in (cert, key) if not Path(path).exists()), cert)
        raise TlsError(f"{missing}: no such file") from None
    except (OSError, ValueError) as error:
        raise TlsError(f"{cert}, {key}: not a certificate chain with its private key: {error}") from None


def _no_password() -> str:
    """Keeps OpenSSL from asking the terminal; an encrypted key is refused instead."""
    raise ValueError("the private key is encrypted")


def _load_authority(context: ssl.SSLContext, ca: Path | str) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except FileNotFoundError:
        raise TlsError(f"{ca}: no such file") from None
    except OSError as error:
        raise TlsError(f"{ca}: not a file of certificates: {error}") from None
