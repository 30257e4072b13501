"""Clients on QUIC stacks that others wrote, built from source by whatever toolchain this machine has."""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ORIGINAL = "github.com/ValerySidorin/fujin"
ORIGINAL_SOURCE = "HEADRACE_FUJIN_CLIENT"
SOURCES = Path(__file__).resolve().parents[1] / "interop"


@dataclass(frozen=True, slots=True)
class Foreign:
    """A client program; all of them take the same flags and tell the same report."""

    name: str
    program: Path

    async def round(self, address: str, ca: Path, *flags: str) -> dict[str, object]:
        """Do everything there is to do, once; what it tells. Fails with what it says."""
        process = await asyncio.create_subprocess_exec(
            self.program, "-address", address, "-ca", ca, *flags,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            told, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, f"{self.name}: {errors.decode()}"
        found: dict[str, object] = json.loads(told)
        return found


def quic_go(config: pytest.Config) -> Foreign:
    """The client on quic-go. Skips where there is no Go."""
    return _built(config, "quic_go", "go", "Go 1.24 or later", ["go", "build", "-o", "{program}", "."])


def quinn(config: pytest.Config) -> Foreign:
    """The client on quinn. Skips where there is no Rust."""
    command = ["cargo", "build", "--quiet", "--manifest-path", "{place}/quinn-source/Cargo.toml"]
    command += ["--target-dir", "{place}/quinn-target"]
    return _built(config, "quinn", "cargo", "a current Rust", command, "quinn-target/debug/quinn-client")


def _built(config: pytest.Config, name: str, tool: str, what: str, command: list[str], program_at: str = "") -> Foreign:
    """Build once for all of a run's processes; the tools themselves see what has not changed.

    `{place}` holds a copy of the source for tools that write beside it.
    """
    if shutil.which(tool) is None:
        pytest.skip(f"install {what} and put `{tool}` on the path: the client in tests/interop/{name} is built with it")
    assert config.cache is not None
    place = config.cache.mkdir("interop")
    program = place / (program_at or name)
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program_at:
            shutil.copytree(SOURCES / name, place / f"{name}-source", dirs_exist_ok=True)
        made = subprocess.run(
            [each.format(program=program, place=place) for each in command],
            cwd=SOURCES / name,
            capture_output=True,
            text=True,
            check=False,
        )
    assert made.returncode == 0, f"`{' '.join(command)}` in tests/interop/{name}: {made.stderr}"
    return Foreign(name, program)


def original(config: pytest.Config) -> Foreign:
    """Fujin's own client, unpatched. Skips where there is no Go, or its source cannot be had."""
    if shutil.which("go") is None:
        pytest.skip("install Go 1.24 or later and put `go` on the path: Fujin's own client is built with it")
    assert config.cache is not None
    place = config.cache.mkdir("interop")
    modules = place / "original.mod"
    with (place / "original.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.copy(SOURCES / "original" / "go.mod", modules)
        source = os.environ.get(ORIGINAL_SOURCE)
        if source:
            _go("mod", "edit", f"-replace={ORIGINAL}={source}", modules)
            shutil.copy(Path(source) / "go.sum", place / "original.sum")
        made = _go("build", "-mod=mod", f"-modfile={modules}", "-o", place / "original", ".")
    if made.returncode and not source and ORIGINAL in made.stderr:
        pytest.skip(
            f"{ORIGINAL} cannot be had from the Go proxy: set {ORIGINAL_SOURCE} to a checkout of commit 077855f"
        )
    assert made.returncode == 0, made.stderr
    return Foreign("original", place / "original")


def _go(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    where = SOURCES / "original"
    return subprocess.run(["go", *arguments], cwd=where, capture_output=True, text=True, check=False)
