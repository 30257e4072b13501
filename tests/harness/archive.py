"""An archive of Spark's classes before the tests begin, or all JVMs they start together would each write one."""

import os
import subprocess
import sys
import threading
import time

from headrace.spark.archive import archive_of, archive_options
from headrace.spark.home import spark_home
from headrace.spark.java import cache_dir, find_java

SESSION = "from headrace.spark.session import new_session; new_session('archive').stop()"
QUICK = "-XX:TieredStopAtLevel=1"
WRITING_TIMEOUT_S = 60.0
_pause = threading.Event()


def have_archive() -> None:
    """Have a session write one, unless there is one or this Java cannot."""
    java, home = find_java(), spark_home(cache_dir())
    archive = archive_of(java, home)
    if not java.bundled or not archive_options(java, home) or archive.exists():
        return
    environ = os.environ | {"JDK_JAVA_OPTIONS": QUICK}
    subprocess.run([sys.executable, "-c", SESSION], env=environ, check=True, capture_output=True)
    deadline = time.monotonic() + WRITING_TIMEOUT_S
    while not archive.exists() and time.monotonic() < deadline:
        _pause.wait(0.2)
        archive_options(java, home)
