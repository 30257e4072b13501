"""Damage is never silent: whatever happens to a file of a data directory, the answers are the same or somebody is told.

A few hundred damages here; `make torture` does as many as HEADRACE_DAMAGES says. A failure names the seed, which does
the same damage again to a directory made from HEADRACE_DAMAGE_SEED; where its segments begin depends on time.
"""

import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.log import LogDamaged, OsDisk, Report
from headrace.log.recovery import BEFORE_REPAIR
from headrace.model.errors import HeadraceError, StorageError
from headrace.server.offline import repair_directory, verify_directory
from tests.crash.damages import Harm, harmed
from tests.crash.directories import Answers, Directory, answers_of, built, copied

DAMAGES = int(os.environ.get("HEADRACE_DAMAGES", "240"))
SEED = int(os.environ.get("HEADRACE_DAMAGE_SEED", "1"))
SHAPES = {
    "clean": {"clean": True, "retention": True},
    "killed": {"clean": False, "retention": True},
    "whole": {"clean": False, "retention": False},
    "repaired": {"clean": True, "retention": False, "repaired": True},
}


class Silent(AssertionError):
    """Damage that nobody was told of."""


class Ordeal:
    """One directory, damaged again and again in a copy; `outcomes` counts how that went."""

    def __init__(self, scratch: Path, shape: str, seed: int) -> None:
        self._scratch = scratch
        self._copy = scratch / "copy"
        self.directory: Directory = built(scratch, seed, **SHAPES[shape])
        self.outcomes: Counter[str] = Counter()
        told = verify_directory(self.directory.path / "log", OsDisk())
        self._base = told
        assert told.damage == []

    def go(self, seed: int) -> None:
        """Do one damage. Raises Silent."""
        chance = random.Random(seed)
        copied(self.directory.path, self._copy)
        harms = harmed(self.directory, self._copy, chance)
        about = f"seed {seed}: {'; '.join(map(str, harms))}"
        verified = self._verified()
        try:
            answers = answers_of(self._copy)
        except (LogDamaged, StorageError) as error:
            self._refused(error, verified, about)
            return
        except Exception as error:
            raise Silent(f"{about}: {error!r}") from error
        self._served(answers, verified, harms, about)

    def _verified(self) -> Report | None:
        """What verify says; None when it refuses the directory as a whole. It changes nothing."""
        before = {path: path.read_bytes() for path in self._copy.rglob("*") if path.is_file()}
        try:
            return verify_directory(self._copy / "log", OsDisk())
        except StorageError:
            return None
        finally:
            assert before == {path: path.read_bytes() for path in self._copy.rglob("*") if path.is_file()}

    def _refused(self, error: HeadraceError, verified: Report | None, about: str) -> None:
        if isinstance(error, LogDamaged):
            if verified is None or not verified.damage:
                raise Silent(f"{about}: the start is refused ({error}) and verify says nothing")
            self._mended(about)
        self.outcomes["refused at start"] += 1

    def _mended(self, about: str) -> None:
        """After a repair a broker starts, serves nothing that was not there, and verify names what is lost."""
        repair_directory(self._copy / "log", OsDisk(), now=1)
        try:
            answers = answers_of(self._copy)
        except LogDamaged as error:
            raise Silent(f"{about}: damaged after a repair: {error}") from error
        strange = self._strange(answers)
        if strange:
            raise Silent(f"{about}: {len(strange)} messages served that never were, or elsewhere: {strange[:1]}")
        report = verify_directory(self._copy / "log", OsDisk())
        if report.damage:
            raise Silent(f"{about}: damaged after a repair: {report.damage}")
        fresh = [loss for loss in report.losses if loss not in self._base.losses]
        if not fresh or report.lost < self._base.lost:
            raise Silent(f"{about}: repaired, and verify does not say so")
        if report.epoch <= self._base.epoch and not all(loss.damage.segment.startswith("staging/") for loss in fresh):
            raise Silent(f"{about}: repaired, and the epoch is the same")

    def _restored(self, answers: Answers) -> bool:
        """Whether a segment is there again as it was before its repair, which is said, and nothing else changed."""
        known = self.directory.answers.messages
        kept = all(set(found) <= set(answers.messages.get(topic, [])) for topic, found in known.items())
        real = {(topic, m[1]) for topic, found in answers.messages.items() if topic in known for m in found}
        held = {pair for pair in real if pair[0] in ("orders", "payments", "stock", "rare")}
        said = any(BEFORE_REPAIR in note for note in answers.report.notes)
        return said and kept and held <= self.directory.published

    def _strange(self, answers: Answers) -> list[object]:
        known = self.directory.answers.messages
        return [m for topic, found in answers.messages.items() for m in found if m not in known.get(topic, [])]

    def _served(self, answers: Answers, verified: Report | None, harms: list[Harm], about: str) -> None:
        if verified is None:
            raise Silent(f"{about}: served, and verify refuses the directory")
        same = answers.same(self.directory.answers)
        staged = [damage for damage in verified.damage if damage.segment.startswith("staging/")]
        if answers.damage:
            self.outcomes["met by reader or scrub"] += 1
        elif staged:
            self.outcomes["told by verify and when transactions are finished"] += 1
        elif same:
            self.outcomes["harmless, noted" if verified.notes else "harmless"] += 1
        if answers.damage and not verified.damage:
            raise Silent(f"{about}: met {answers.damage}, and verify says nothing")
        if verified.damage and not answers.damage and not staged:
            raise Silent(f"{about}: verify says {verified.damage}, and neither scrub nor start met it")
        if not same and self._restored(answers):
            self.outcomes["what was given up is back, noted"] += 1
            return
        if not same and not answers.damage:
            raise Silent(f"{about}: other answers, and nobody is told; {answers.report}")
        if strange := self._strange(answers):
            raise Silent(f"{about}: messages served that never were: {strange[:1]}")


@pytest.mark.parametrize("shape", SHAPES)
def test_no_damage_is_silent(shape: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    ordeal = Ordeal(tmp_path, shape, SEED)
    assert ordeal.directory.answers.report.damage == []
    held = {(topic, m[1]) for topic, found in ordeal.directory.answers.messages.items() for m in found}
    published = {pair for pair in held if pair[0] in ("orders", "payments", "stock", "rare")}
    assert published
    assert published <= ordeal.directory.published
    silent: list[str] = []
    for number in range(DAMAGES // len(SHAPES)):
        try:
            ordeal.go(1_000_000 * SEED + number)
        except Silent as error:
            silent.append(str(error))
    record_property("outcomes", dict(ordeal.outcomes))
    sys.stdout.write(
        f"{shape}: {sum(ordeal.outcomes.values())} damages, {dict(ordeal.outcomes)}, {len(silent)} silent\n"
    )
    shutil.rmtree(tmp_path)
    assert silent == []
