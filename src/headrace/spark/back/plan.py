"""What is to be sent, written down in the lake before the first row goes. Knows files, not Spark.

<lake>/_replays/<id>/plan.json   what was asked for, the chunks, and whether all are sent
<lake>/_replays/<id>/rows/       the rows, as they will be sent, in the order of their offsets; gone once they are
<lake>/_replays/<id>.lock        held by the process that sends
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from headrace.spark.back.chunks import Chunk
from headrace.spark.lake.disk import locked, make_folder, write_atomically
from headrace.spark.lake.table import LakeError

FOLDER = "_replays"
ID_SIZE = 12
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for. `to` is None when each row has a topic of its own."""

    kind: str
    table: str
    where: str
    edits: tuple[str, ...] = ()
    to: str | None = None

    def identity(self, extent: tuple[int, int, int]) -> str:
        """A name for this wish over a table of this extent: the same wish has the same name."""
        text = json.dumps([asdict(self), extent], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:ID_SIZE]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A wish with its name and its chunks."""

    id: str
    wish: Wish
    chunks: tuple[Chunk, ...]
    done: bool = False

    @property
    def rows(self) -> int:
        """How many rows there are to send."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def writer(self) -> str:
        """The name under which the broker remembers which chunks it has."""
        return f"{self.wish.kind}:{self.id}"

    def sent(self, committed: int | None) -> int:
        """How many rows the broker has when this was the last chunk it committed."""
        return sum(chunk.rows for chunk in self.chunks[: 0 if committed is None else committed + 1])

    def encode(self) -> bytes:
        """The plan as it is kept."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Plan":
        """The inverse of `encode`. Raises ValueError, TypeError or KeyError for something else."""
        given = json.loads(data)
        wish = Wish(**{**given["wish"], "edits": tuple(given["wish"]["edits"])})
        chunks = tuple(Chunk(*each) for each in given["chunks"])
        return cls(id=given["id"], wish=wish, chunks=chunks, done=given["done"])


class Plans:
    """The plans kept in one lake."""

    def __init__(self, lake: Path) -> None:
        self._folder = lake / FOLDER

    def rows(self, identity: str) -> Path:
        """Where the rows of a plan are."""
        return self._folder / identity / "rows"

    def find(self, identity: str) -> Plan | None:
        """The plan of this name. Raises LakeError when the file makes no sense."""
        path = self._folder / checked(identity) / "plan.json"
        try:
            return Plan.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise LakeError(f"{path} makes no sense: {error!r}") from error

    def unfinished(self, wish: Wish) -> Plan | None:
        """The plan of this wish that is not sent to the end, if there is one."""
        names = sorted(path.parent.name for path in self._folder.glob("*/plan.json"))
        found = (self.find(name) for name in names)
        return next((plan for plan in found if plan is not None and plan.wish == wish and not plan.done), None)

    def keep(self, plan: Plan) -> None:
        """Have the plan on disk; its rows are there already."""
        make_folder(self._folder / plan.id)
        write_atomically(self._folder / plan.id / "plan.json", plan.encode())

    def finish(self, plan: Plan) -> None:
        """Note that everything is sent; the rows are not needed any more."""
        self.keep(replace(plan, done=True))
        shutil.rmtree(self.rows(plan.id), ignore_errors=True)

    @contextmanager
    def locked(self, identity: str) -> Iterator[None]:
        """Be the only one to work on this plan. Raises LakeError when another process does."""
        make_folder(self._folder)
        with locked(self._folder / f"{checked(identity)}.lock", timeout_s=0.0):
            yield


def checked(identity: str) -> str:
    """The name itself if a plan can have it. Raises LakeError."""
    if not _ID.fullmatch(identity):
        raise LakeError(f"bad id {identity[:100]!r}: letters, digits, '.', '_' and '-', at most 100")
    return identity
