"""`make bench`: the benchmark as a script, with the repository's root on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.main import main

sys.exit(main())
