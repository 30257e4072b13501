"""Compiles the load client, which shares no code with the broker, when its sources are newer than the program."""

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "load"
PROGRAM = HERE / "build" / "load"
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-pthread")
TLS = ("-DWITH_TLS", "-lssl", "-lcrypto")


class BuildError(Exception):
    """The load client cannot be compiled here; the text says what to do."""


def load_program() -> Path:
    """The compiled load client.

    Raises BuildError without a C compiler or when it refuses the sources.
    """
    files = sorted(SOURCES.glob("*.[ch]"))
    newest = max(path.stat().st_mtime for path in files)
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > newest:
        return PROGRAM
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BuildError("the load client needs a C compiler: apt install gcc libc6-dev")
    PROGRAM.parent.mkdir(exist_ok=True)
    units = [str(path) for path in files if path.suffix == ".c"]
    command = [compiler, *FLAGS, "-o", str(PROGRAM), *units]
    if _has_tls(compiler):
        command += TLS
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{compiler} failed:\n{done.stderr}")
    return PROGRAM


def _has_tls(compiler: str) -> bool:
    """Whether OpenSSL's headers are here; without them what speaks TLS is not measured."""
    probe = [compiler, "-E", "-include", "openssl/ssl.h", "-xc", "/dev/null"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0
