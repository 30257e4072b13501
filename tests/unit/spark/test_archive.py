"""Who writes an archive of classes, and who maps it."""

import os
from pathlib import Path

from headrace.spark.archive import archive_options
from tests.unit.spark.javas import WRITES_ITS_ARCHIVE, a_java


def test_a_jvm_that_cannot_make_archives_runs_without(tmp_path: Path) -> None:
    assert archive_options(a_java(tmp_path, "exit 1"), tmp_path) == []


def test_the_first_run_leaves_an_archive_that_the_next_ones_map(tmp_path: Path) -> None:
    java = a_java(tmp_path, WRITES_ITS_ARCHIVE)
    first = archive_options(java, tmp_path)
    draft = next(Path(option.split("=")[1]) for option in first if "ArchiveClassesAtExit" in option)
    draft.write_bytes(b"classes")
    assert any("ArchiveClassesAtExit" in option for option in archive_options(java, tmp_path)), "not whole yet"
    os.utime(draft, (0, 0))
    later = archive_options(java, tmp_path)
    assert not any("ArchiveClassesAtExit" in option for option in later)
    mapped = next(Path(option.split("=")[1]) for option in later if "SharedArchiveFile" in option)
    assert mapped.read_bytes() == b"classes"


def test_an_archive_the_jvm_refuses_is_thrown_away(tmp_path: Path) -> None:
    java = a_java(tmp_path, f'case "$*" in *-Xshare:on*) exit 1;; esac\n{WRITES_ITS_ARCHIVE}')
    first = archive_options(java, tmp_path)
    draft = next(Path(option.split("=")[1]) for option in first if "ArchiveClassesAtExit" in option)
    draft.write_bytes(b"half")
    os.utime(draft, (0, 0))
    archive_options(java, tmp_path)
    assert not draft.exists()


def test_one_archive_is_enough(tmp_path: Path) -> None:
    java = a_java(tmp_path, WRITES_ITS_ARCHIVE)
    first = archive_options(java, tmp_path)
    draft = next(Path(option.split("=")[1]) for option in first if "ArchiveClassesAtExit" in option)
    another = draft.with_name(draft.name.replace(str(os.getpid()), "1"))
    for path in (draft, another):
        path.write_bytes(b"classes")
        os.utime(path, (0, 0))
    archive_options(java, tmp_path)
    assert not draft.exists()
    assert not another.exists()
    assert len(list(tmp_path.glob("*.jsa"))) == 2, "the runtime's and Spark's"
