"""The one error a command ends with: what was wrong, where, and what to do about it."""

from headrace.model.errors import HeadraceError


class Failure(HeadraceError):
    """Ends the command with exit code 1; `advice` is the next thing to try."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice
