"""What the README shows to newcomers works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

from tests.harness.served import served

ROOT = Path(__file__).resolve().parents[2]


def example(number: int) -> str:
    found: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return found[number]


def test_the_python_example_runs(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        script = example(0).replace("127.0.0.1:5555", f"127.0.0.1:{broker.port}")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["b'one'", "b'two'"]


def test_the_commands_it_names_exist() -> None:
    text = "".join(re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for command in set(re.findall(r"^headrace (\w+)", text, re.MULTILINE)):
        done = subprocess.run([sys.executable, "-m", "headrace", command, "--help"], capture_output=True, check=False)
        assert done.returncode == 0, command
