"""The broker's doors as commands use them: one small module for each protocol, all with the same two functions.

A door's module is loaded when it is asked for, so that no command pays for a protocol it does not speak.
"""

from headrace.cli.doors.door import Door
from headrace.cli.failure import Failure

PROTOCOLS = ("blipmq", "sspq", "fujin", "grpcq")


def door(protocol: str) -> Door:
    """The door where this protocol is spoken.

    Raises Failure when a package it needs is not installed.
    """
    try:
        match protocol:
            case "sspq":
                from headrace.cli.doors import sspq

                return sspq
            case "fujin":
                from headrace.cli.doors import fujin

                return fujin
            case "grpcq":
                from headrace.cli.doors import grpcq

                return grpcq
            case _:
                from headrace.cli.doors import blipmq

                return blipmq
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "headrace":
            raise
        raise Failure(
            f"--protocol {protocol} needs the Python package {package!r}, which is not installed",
            f"Install headrace again with everything it needs: `pip install --force-reinstall headrace`; "
            f"`headrace doctor` tells what is missing. ({error})",
        ) from error
