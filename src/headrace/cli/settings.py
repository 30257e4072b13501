"""The configuration as commands load it: file, environment and flags; its errors become failures."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure

if TYPE_CHECKING:
    from headrace.config import Config


def load_config(path: Path | None, *, data_dir: Path | None = None, dev: bool = False) -> "Config":
    """The configuration of this file (or the defaults), the environment over it, the flags over both.

    Raises Failure that names the offending key.
    """
    from headrace.config import ConfigError, load
    from headrace.config import dev as for_trying_out

    overrides = {} if data_dir is None else {"data_dir": str(data_dir)}
    try:
        config = load(path, os.environ, overrides)
        return for_trying_out(config) if dev else config
    except ConfigError as error:
        if path is not None and not path.exists():
            raise Failure(
                str(error), "Without --config the defaults are used; `headrace doctor` checks them."
            ) from error
        raise Failure(
            str(error), "Correct it and try again; `headrace doctor` checks a file without starting."
        ) from error
