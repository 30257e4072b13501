"""`--seed N` runs exactly the world that seed N makes; otherwise a module has its number of SEEDS."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="simulate only the world of this seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--seed", default=None)
        metafunc.parametrize("seed", range(metafunc.module.SEEDS) if chosen is None else [chosen])
