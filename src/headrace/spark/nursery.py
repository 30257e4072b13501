"""The process from which every Python process of a local session is forked: what they need is loaded once.

Spark starts an interpreter for each kind of question it has for a source, for each stream, and for the daemons of its
workers: some thirty processes before the first rows of a pipeline, each of which loads Arrow, pandas, Spark and
ourselves. Here `seed` asks for them instead, and what comes is loaded already. Ends with the JVM.
"""

import atexit
import gc
import json
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from headrace.spark import seed
from headrace.spark.daemon import LOADED

FOLDER = "headrace-python-"
PYTHON = "python"
KNOWN = (
    *LOADED, "pyspark.sql.streaming.python_streaming_source_runner", "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source", "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read", "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source", "pyspark.worker",
)  # fmt: skip
"""Not the worker that pushes filters: a source tells by its presence whether filters are pushed."""


def stand_in(python: str) -> str:
    """An executable to be named in place of an interpreter, in a folder of its own that ends with the nursery.

    The interpreter itself where the system lacks what a nursery needs. Folders that nobody was left to remove go, too.
    """
    if not hasattr(os, "pidfd_open"):
        return python
    for other in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        if not Path("/proc", other.name.removeprefix(FOLDER).partition("-")[0]).exists():
            shutil.rmtree(other, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-"))
    command = [python, "-I", "-S", seed.__file__, str(folder), python]
    executable = folder / PYTHON
    executable.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    executable.chmod(0o700)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(executable)


def load() -> None:
    """Load what the processes will need, and have collections pass over it in all of them."""
    for name in KNOWN:
        if find_spec(name) is not None:
            import_module(name)
    gc.collect()
    gc.freeze()


class Nursery:
    """Forks what it is asked for, and tells who asked how it ended."""

    def __init__(self, listener: socket.socket, parent: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._children: set[int] = set()
        self._over = False
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(os.pidfd_open(parent), selectors.EVENT_READ, self._end)

    def serve(self) -> None:
        """Work until the parent has ended; what is left of the children then is asked to end, too."""
        while not self._over:
            for key, _ in self._selector.select():
                callback: Callable[[], None] = key.data
                callback()
        for child in self._children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    def _end(self) -> None:
        self._over = True

    def _accept(self) -> None:
        seedling, _ = self._listener.accept()
        try:
            request, streams = _request(seedling)
        except (OSError, ValueError):
            seedling.close()
            return
        child = os.fork()
        if not child:
            _become(request, streams, seedling)
        for stream in streams:
            os.close(stream)
        self._children.add(child)
        ended = os.pidfd_open(child)
        self._selector.register(ended, selectors.EVENT_READ, partial(self._ended, child, ended, seedling))
        self._selector.register(seedling, selectors.EVENT_READ, partial(self._abandoned, child, seedling))

    def _abandoned(self, child: int, seedling: socket.socket) -> None:
        """Whoever Spark takes for the child has been ended; the child, too, unless it has just ended by itself."""
        if child in self._children:
            self._selector.unregister(seedling)
            os.kill(child, signal.SIGTERM)

    def _ended(self, child: int, pidfd: int, seedling: socket.socket) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._children.discard(child)
        _, status = os.waitpid(child, 0)
        with suppress(OSError):
            seedling.send(seed.STATUS.pack(os.waitstatus_to_exitcode(status) & 0xFF))
        with suppress(KeyError):
            self._selector.unregister(seedling)
        seedling.close()


Request = tuple[list[str], dict[str, str], str, int, list[int]]


def _request(seedling: socket.socket) -> tuple[Request, list[int]]:
    """What is asked for, with the streams it is to have. Raises OSError or ValueError when nobody asks properly."""
    head, streams, _, _ = socket.recv_fds(seedling, seed.LENGTH.size, len(seed.STANDARD))
    try:
        if len(head) < seed.LENGTH.size or len(streams) < len(seed.STANDARD):
            raise ValueError("no request")
        data = seedling.recv(seed.LENGTH.unpack(head)[0], socket.MSG_WAITALL)
        arguments, environ, folder, niceness, cores = json.loads(data)
    except (OSError, ValueError):
        for stream in streams:
            os.close(stream)
        raise
    return (arguments, environ, folder, niceness, cores), streams


def _become(request: Request, streams: list[int], seedling: socket.socket) -> NoReturn:
    """Be the process that was asked for, in a fork of this one.

    It tells so itself, before anything else: whoever asked begins an interpreter of its own when nobody does.
    """
    (_, module, *arguments), environ, folder, niceness, cores = request
    code = 1
    try:
        with suppress(OSError):
            seedling.send(seed.STATUS.pack(0))
        os.setpgid(0, 0)
        for stream, standard in zip(streams, seed.STANDARD, strict=True):
            os.dup2(stream, standard)
        os.closerange(max(seed.STANDARD) + 1, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(environ)
        time.tzset()
        os.chdir(folder)
        given = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
        sys.path[:1] = [folder, *given]
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            os.sched_setaffinity(0, cores)
        sys.argv[1:] = arguments
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # as an interpreter would say it in the end
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main(folder: str, listener: str, parent: str) -> None:
    """Serve on an inherited socket until the parent has ended."""
    try:
        with socket.socket(fileno=int(listener)) as inherited:
            nursery = Nursery(inherited, int(parent))
            load()
            nursery.serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
