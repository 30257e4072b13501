"""A home for Spark made of links."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark

from headrace.spark.home import NAMED_TWICE, spark_home

JARS = Path(pyspark.__file__).resolve().parent / "jars"


def test_it_has_everything_but_the_zip(tmp_path: Path) -> None:
    home = spark_home(tmp_path)
    assert (home / "bin" / "spark-submit").exists()
    assert not (home / "python").exists()
    assert {link.resolve() for link in (home / "jars").iterdir()} == set(JARS.iterdir())
    assert spark_home(tmp_path) == home


def test_no_jar_has_the_name_that_scripts_look_for(tmp_path: Path) -> None:
    assert any(jar.name.startswith(NAMED_TWICE) for jar in JARS.iterdir())
    assert not any(jar.name.startswith(NAMED_TWICE) for jar in (spark_home(tmp_path) / "jars").iterdir())


def test_it_is_whole_for_all_who_want_it_at_once(tmp_path: Path) -> None:
    count = len(list(JARS.iterdir()))
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: len(list((spark_home(tmp_path) / "jars").iterdir())), range(8))
        assert set(found) == {count}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_new_one_takes_the_place_of_those_whose_pyspark_is_gone(tmp_path: Path) -> None:
    lost, replaced, found, begun = (tmp_path / f"spark-{name}" for name in ("lost", "replaced", "found", "begun"))
    for home in (lost, replaced, found, begun):
        (home / "jars").mkdir(parents=True)
    (lost / "classes.jsa").write_bytes(b"big")
    (lost / "bin").symlink_to(tmp_path / "nowhere")
    for home in (replaced, found):
        (home / "bin").symlink_to(tmp_path)
    (replaced / "jars" / "core-1.jar").symlink_to(tmp_path / "core-1.jar")
    (found / "jars" / "core-2.jar").symlink_to(JARS)
    spark_home(tmp_path)
    left = [home.exists() for home in (lost, replaced, found, begun)]
    assert left == [False, False, True, True]
