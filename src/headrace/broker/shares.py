"""How much of one thing each owner has, and that nobody has more than their share. Knows neither what it is nor why."""

from collections.abc import Mapping

from headrace.model.errors import OverQuota


class Shares:
    """What each owner has of `what`; more than `most` is refused, 0 is no bound. `setting` is where `most` is set."""

    __slots__ = ("_had", "most", "setting", "what")

    def __init__(self, what: str, setting: str, most: int = 0) -> None:
        self.what = what
        self.setting = setting
        self.most = most
        self._had: dict[str, int] = {}

    def of(self, owner: str) -> int:
        """What this owner has."""
        return self._had.get(owner, 0)

    def owners(self) -> dict[str, int]:
        """Everybody who has anything, and how much."""
        return dict(self._had)

    def check(self, owner: str, more: int = 1) -> None:
        """Raises OverQuota if so much more is too much for this owner."""
        if self.most and self.of(owner) + more > self.most:
            raise OverQuota(f"too many {self.what}: more than {self.most} ({self.setting})")

    def take(self, owner: str, more: int = 1) -> None:
        """The owner has so much more. Raises OverQuota if that is too much; then nothing changes."""
        self.check(owner, more)
        self.add(owner, more)

    def add(self, owner: str, more: int = 1) -> None:
        """The owner has so much more, whatever the bound: it is so already."""
        self._had[owner] = self.of(owner) + more

    def found(self, had: Mapping[str, int]) -> None:
        """This is what everybody has, as was found out."""
        self._had = {owner: amount for owner, amount in had.items() if amount}

    def give(self, owner: str, less: int = 1) -> None:
        """The owner has so much less."""
        left = self.of(owner) - less
        assert left >= 0, f"{self.what}: more given back than was taken"
        if left:
            self._had[owner] = left
        else:
            self._had.pop(owner, None)
