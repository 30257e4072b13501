"""Who may stage how much: the count of what lies there against a plain model, whoever removes it."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed.places import STAGED_SUFFIX, owner_digest, staged_name
from headrace.feed.room import Room
from headrace.model.errors import Code, OverQuota

OWNERS = ("ann", "bob")
ACTIONS = st.tuples(
    st.sampled_from(["stage", "stage", "fail", "remove", "restart"]), st.sampled_from(OWNERS), st.integers(0, 60)
)


def stage(room: Room, directory: Path, owner: str, size: int, *, keep: bool = True) -> Path:
    """As `stage` does it: room first, then the bytes."""
    path = directory / staged_name(owner, "writer", 0, 0)
    upload = room.begin(owner)
    path.touch()
    try:
        upload.grow(size)
        path.write_bytes(b"x" * size)
        if not keep:
            raise OverQuota("failed for another reason")
    except OverQuota:
        path.unlink()
        raise
    finally:
        upload.end()
        upload.end()
    return path


@given(st.lists(ACTIONS, max_size=40), st.integers(0, 4), st.integers(0, 100))
def test_nobody_stages_more_than_allowed(actions: list[tuple[str, str, int]], files: int, size: int) -> None:
    with TemporaryDirectory() as scratch:
        directory = Path(scratch)
        room = Room(directory, files=files, size=size)
        there: dict[str, list[Path]] = {owner: [] for owner in OWNERS}
        for what, owner, amount in actions:
            mine = there[owner]
            if what == "restart":
                room = Room(directory, files=files, size=size)
            elif what == "remove" and mine:
                mine.pop(amount % len(mine)).unlink()
            elif what in ("stage", "fail"):
                held = sum(path.stat().st_size for path in mine)
                fits = (not files or len(mine) < files) and (not size or held + amount <= size)
                if fits and what == "stage":
                    mine.append(stage(room, directory, owner, amount))
                else:
                    with pytest.raises(OverQuota) as refused:
                        stage(room, directory, owner, amount, keep=what == "stage")
                    assert refused.value.code is Code.LIMIT
            assert {path.name for path in directory.iterdir()} == {
                path.name for each in there.values() for path in each
            }


def test_uploads_under_way_are_counted_and_given_back(tmp_path: Path) -> None:
    room = Room(tmp_path, uploads=2)
    for _ in range(3):
        begun = [room.begin("ann"), room.begin("ann")]
        with pytest.raises(OverQuota, match="uploads under way: more than 2"):
            room.begin("ann")
        begun.append(room.begin("bob"))
        for upload in begun:
            upload.end()


def test_what_is_not_staged_counts_for_nobody(tmp_path: Path) -> None:
    (tmp_path / f"{owner_digest('ann')}-something{STAGED_SUFFIX}").write_bytes(b"x" * 100)
    room = Room(tmp_path, files=1, size=10)
    stage(room, tmp_path, "ann", 10)


def test_names_tell_owners_apart() -> None:
    names = [staged_name(owner, writer, 7, 9) for owner in OWNERS for writer in ("w", "ann", "bob")]
    assert {name[:16] for name in names} == {owner_digest(owner) for owner in OWNERS}
    assert len({name[:53] for name in names}) == len(names)
