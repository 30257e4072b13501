"""The house rules as tests: sizes, words, layers of the tree, links in the docs."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "headrace"
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
LINE_LENGTH_MAX = 120

MODULES = sorted(path for path in SRC.rglob("*.py") if not path.stem.endswith("_pb2"))
TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.split("\n")
TEXTS = [ROOT / name for name in TRACKED if name and (ROOT / name).is_file() and not name.endswith((".png", ".ico"))]


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_module_is_small_and_says_what_it_knows(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= MODULE_LINES_MAX, "look for the second noun in it"
    assert ast.get_docstring(tree), "a module says what it knows"
    long = [f.name for f in functions(tree) if (f.end_lineno or 0) - f.lineno + 1 > FUNCTION_LINES_MAX]
    assert not long, f"functions over {FUNCTION_LINES_MAX} lines: {long}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_public_names_are_documented(path: Path) -> None:
    missing = [
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        and not any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)
    ]
    assert not missing, f"public without a docstring: {missing}"


def test_no_room_without_a_name() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
    assert not [str(p.relative_to(ROOT)) for p in MODULES if p.stem in vague or p.parent.name in vague]


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|except Exception:\s*pass")
    found = [
        f"{p.relative_to(ROOT)}:{number}"
        for p in TEXTS
        if p.suffix in {".py", ".c", ".md", ".toml"}
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if later.search(line)
    ]
    assert not found


def test_no_test_waits_by_sleeping() -> None:
    nap = re.compile(r"\b(?:asyncio|time)\.sleep\((?!0\))")
    found = [
        f"{p.relative_to(ROOT)}:{number}"
        for p in sorted((ROOT / "tests").rglob("*.py"))
        if p != Path(__file__)
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if nap.search(line)
    ]
    assert not found, "advance `now` or await an event"


def test_no_machine_is_named() -> None:
    place = re.compile(r"(?<![.\w])/(?:work|farm|root)/|https?://[a-z0-9.-]*(?:proxy|mirror|artifact|nexus)")
    found = [str(p.relative_to(ROOT)) for p in TEXTS if p != Path(__file__) and place.search(p.read_text())]
    assert not found


def test_links_in_the_docs_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
    broken = [
        f"{p.relative_to(ROOT)} -> {target}"
        for p in TEXTS
        if p.suffix == ".md"
        for target in link.findall(p.read_text())
        if not (p.parent / target).exists()
    ]
    assert not broken


def test_source_lines_fit_the_screen() -> None:
    wide = [
        f"{p.relative_to(ROOT)}:{number}"
        for p in MODULES
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if len(line) > LINE_LENGTH_MAX
    ]
    assert not wide
