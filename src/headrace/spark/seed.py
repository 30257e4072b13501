"""Stands in for the interpreter where Spark starts one: has the nursery fork a process that is warm already.

Run by its path, without site-packages, so it knows the standard library and little of that: it starts in a fiftieth
of a second. To Spark it is the process: it passes on input, output and the exit code, and ends it when it is ended.
Where the nursery cannot help, it becomes the interpreter that was asked for.
"""

import fcntl
import json
import os
import socket
import struct
import sys
from contextlib import suppress

SOCKET, LOCK = "socket", "lock"
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!B")
STANDARD = (0, 1, 2)
BACKLOG = 128
NURSERY = "headrace.spark.nursery"
SETTLED = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
"""What is decided when an interpreter starts or numpy is loaded: as Spark has it for its workers."""


def main(folder: str, python: str, *arguments: str) -> None:
    """Be `python ARGUMENTS`, forked by the nursery of this folder."""
    if _common(arguments):
        with suppress(OSError), _nursery(folder, python) as nursery:
            _ask(nursery, arguments)
            if (code := _outcome(nursery)) is not None:
                sys.exit(code)
    os.execv(python, [python, *arguments])


def _common(arguments: tuple[str, ...]) -> bool:
    """Whether this is a module to run, in an interpreter like any other."""
    seeds = (os.environ.get("PYTHONHASHSEED", ""), SETTLED["PYTHONHASHSEED"])
    return arguments[:1] == ("-m",) and len(arguments) > 1 and seeds[0] in ("", seeds[1])


def _nursery(folder: str, python: str) -> socket.socket:
    """A connection to the nursery; the first to want one starts it. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX)
    address = f"{folder}/{SOCKET}"
    try:
        connection.connect(address)
    except OSError:
        lock = os.open(f"{folder}/{LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if connection.connect_ex(address):
            _start(folder, python, address)
            connection.connect(address)
        os.close(lock)
    return connection


def _start(folder: str, python: str, address: str) -> None:
    """Start the nursery with a socket that takes connections from now on.

    It is silent: should it fail, the interpreters that then do its work say why.
    """
    with suppress(FileNotFoundError):
        os.unlink(address)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(BACKLOG)
    listener.set_inheritable(True)
    command = [python, "-m", NURSERY, folder, str(listener.fileno()), str(os.getppid())]
    silence = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in STANDARD]
    os.posix_spawn(python, command, {**os.environ, **SETTLED}, file_actions=silence, setpgroup=0)
    listener.close()


def _ask(nursery: socket.socket, arguments: tuple[str, ...]) -> None:
    """Say what is to be run: its arguments, where and with what, and our standard streams."""
    niceness, cores = os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))
    request = json.dumps([arguments, dict(os.environ), os.getcwd(), niceness, cores]).encode()
    socket.send_fds(nursery, [LENGTH.pack(len(request))], STANDARD)
    nursery.sendall(request)


def _outcome(nursery: socket.socket) -> int | None:
    """The exit code, once there is one; None when the process never began."""
    if not nursery.recv(STATUS.size):
        return None
    code = nursery.recv(STATUS.size)
    return STATUS.unpack(code)[0] if code else 1


if __name__ == "__main__":
    main(*sys.argv[1:])
