"""Runs the declarative pipeline once: what `spark-pipelines run` does, with the settings it needs.

    python examples/declarative/run.py DIRECTORY

The tables are in DIRECTORY/warehouse afterwards, as Parquet.
"""

import os
import subprocess
import sys
from pathlib import Path
from string import Template

import pyspark

from headrace.spark.java import find_java

HERE = Path(__file__).resolve().parent


def main(directory: str) -> int:
    """Fill in where to keep things, and run the pipeline there."""
    place = Path(directory).resolve()
    (place / "storage").mkdir(parents=True, exist_ok=True)
    spec = place / "spark-pipeline.yml"
    spec.write_text(Template((HERE / "spark-pipeline.yml").read_text()).substitute(STORAGE=f"file://{place}/storage"))
    linked = place / "transformations"
    if not linked.exists():
        linked.symlink_to(HERE / "transformations")
    conf = {
        "spark.sql.catalogImplementation": "hive",  # tables that the next run finds again
        "spark.sql.warehouse.dir": f"{place}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place}/metastore;create=true",
        "spark.ui.enabled": "false",
    }
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    environ = os.environ | {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run([program, "run", "--spec", spec, *settings], cwd=place, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
