"""The examples of docs/spark.md, run as they stand but for the broker's address."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.lakeside import Lakeside
from tests.spark.conftest import Publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_examples_run(spark: "SparkSession", feed_broker: Lakeside, publish: Publish, tmp_path: Path) -> None:
    publish("orders", [b"%d" % number for number in range(1100)])
    names: dict[str, Any] = {
        "spark": spark,
        "checkpoint": str(tmp_path / "checkpoint"),
        "directory": tmp_path,
        "report": spark.createDataFrame([("all is well",)], "value string"),
    }
    blocks = examples("python")
    for code in [*blocks, blocks[-2]]:
        there = f'.format("headrace").option("endpoint", "{feed_broker.endpoint}")'
        exec(compile(code.replace('.format("headrace")', there), "docs/spark.md", "exec"), names)
    assert spark.table("counts").collect() == [("orders", 1100)]
    written = spark.read.format("headrace").option("endpoint", feed_broker.endpoint)
    assert written.option("subscribe", "numbers").load().count() == 1000
    assert written.option("subscribe", "reports").load().count() == 1, "the job ran twice"
    (statements,) = examples("sql")
    create, select = statements.replace("OPTIONS (", f"OPTIONS (endpoint '{feed_broker.endpoint}', ").split(";")[:2]
    spark.sql(create)
    try:
        assert spark.sql(select).collect()[0][0] < 1100
    finally:
        spark.sql("DROP TABLE orders")
