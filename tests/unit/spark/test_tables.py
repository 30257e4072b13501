"""Options of a catalog table travel in its schema."""

from pyspark.sql.types import StructType

from headrace.spark.source.tables import is_table, recall, remember

SCHEMA = StructType().add("key", "binary").add("value", "binary")


def test_options_come_back_without_the_key_and_what_spark_adds() -> None:
    created = {"provider": "headrace", "owner": "me", "subscribe": "orders", "option.subscribe": "orders", "key": "k"}
    assert is_table(created)
    schema = StructType.fromJson(remember(SCHEMA, created).jsonValue())
    assert recall(schema, {}) == {"subscribe": "orders"}
    assert recall(schema, {"subscribe": "payments"}) == {"subscribe": "payments"}
    assert schema.simpleString() == SCHEMA.simpleString()


def test_a_plain_schema_remembers_nothing() -> None:
    assert not is_table({"subscribe": "orders"})
    assert recall(SCHEMA, {"subscribe": "orders"}) == {"subscribe": "orders"}
    assert recall(StructType(), {}) == {}
