"""`--seed N` runs exactly the world that seed N makes."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="simulate only the world of this seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--seed", default=None)
        metafunc.parametrize("seed", range(50) if chosen is None else [chosen])
