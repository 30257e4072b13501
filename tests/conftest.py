"""What every test gets: logging as it was before, whatever a command set up, and the profiles for properties."""

import logging
from collections.abc import Iterator

import pytest

from tests.harness.properties import register_profiles

register_profiles()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what `headrace.server.logs.setup` did to the process's loggers."""
    root, ours = logging.getLogger(), logging.getLogger("headrace")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
