"""The broker alone, in an environment of its own: light, and it starts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES_MAX = 40
BYTES_MAX = 150_000_000


@pytest.mark.slow
def test_the_broker_alone_installs_light_and_starts(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "constraints.txt"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = ["--constraint", str(source / "constraints.txt")]
    ordinary = {name: value for name, value in os.environ.items() if name != "HEADRACE_PURE"}
    subprocess.run([python, "-m", "pip", "install", "--quiet", *constraints, str(source)], check=True, env=ordinary)
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True)
    packages = {entry["name"] for entry in json.loads(listed.stdout)} - {"pip", "setuptools", "wheel"}
    assert len(packages) < PACKAGES_MAX, sorted(packages)

    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    tools = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}
    files = [p for p in site.rglob("*") if p.is_file() and p.relative_to(site).parts[0].split("-")[0] not in tools]
    assert sum(p.stat().st_size for p in files) < BYTES_MAX

    headrace = tmp_path / "venv" / "bin" / "headrace"
    command = [str(headrace), "doctor", "--json", "--data-dir", str(tmp_path / "data")]
    checked = subprocess.run(command, capture_output=True, check=False, env=ordinary)
    assert checked.returncode in (0, 1), checked.stderr
    assert b"compiled" in checked.stdout
