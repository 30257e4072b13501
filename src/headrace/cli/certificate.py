"""What `headrace doctor` says about the certificate the broker shows: which, and until when it is valid."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.checks import FAIL, OK, WARN, Finding

if TYPE_CHECKING:
    from headrace.config import TlsSection

CHECK = "certificate"
SOON = timedelta(days=30)
NEED_ONE = ("fujin", "fujin_tcp")


def certificate(directory: Path, tls: "TlsSection", listen: Collection[str]) -> Finding:
    """The configured certificate; without one, the self-signed one of the data directory, which Fujin then shows."""
    try:
        from headrace.server.dev_certificate import DEV_CERT_NAME
    except ImportError as error:
        return Finding(CHECK, FAIL, f"cryptography is not usable ({error})", "pip install cryptography")
    if tls.cert:
        return _configured(Path(tls.cert), tls)
    if not any(name in listen for name in NEED_ONE):
        return Finding(CHECK, OK, "none is needed: every listener speaks plain text")
    path = directory / DEV_CERT_NAME
    if not path.exists():
        return Finding(CHECK, OK, f"a self-signed one will be made in {directory}, for fujin on this machine")
    return _judged(path, "self-signed, for fujin on this machine", "Delete it: the broker makes a new one.")


def _configured(path: Path, tls: "TlsSection") -> Finding:
    from headrace.server.tls import TlsError, server_context

    try:
        server_context(tls)
    except TlsError as error:
        return Finding(CHECK, FAIL, str(error), "Correct tls.cert, tls.key and tls.client_ca.")
    about = "clients must show their own" if tls.client_ca else "clients need none"
    return _judged(path, about, "Set tls.cert and tls.key to a new one and restart the broker.")


def _judged(path: Path, about: str, advice: str) -> Finding:
    """Until when it is valid."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        return Finding(CHECK, FAIL, f"{path}: {error}", advice)
    left = found.not_valid_after_utc - datetime.now(UTC)
    detail = f"{path}: {about}, valid until {found.not_valid_after_utc:%Y-%m-%d}"
    if left <= timedelta():
        return Finding(CHECK, FAIL, detail, advice)
    return Finding(CHECK, WARN if left < SOON else OK, detail, advice if left < SOON else "")
