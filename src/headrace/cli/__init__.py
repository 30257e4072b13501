"""The command line. Commands parse, call into the packages below and print; they decide nothing themselves."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code: 0 done, 1 failed with a message on stderr, 2 wrong usage."""
    from headrace.cli.app import new_app
    from headrace.cli.failure import Failure
    from headrace.cli.output import report
    from headrace.model.errors import HeadraceError

    try:
        given = sys.argv[1:] if arguments is None else arguments
        new_app(given)(args=given, prog_name="headrace")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Failure as failure:
        report(failure)
    except HeadraceError as error:
        report(Failure(str(error)))
    except KeyboardInterrupt:
        report(Failure("stopped"))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        report(Failure(f"{where}{error.strerror or error}"))
    return 1
